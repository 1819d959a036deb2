//! Defines one steady load: its plan, and the generator's measurements of itself.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{At, ShardsHealth, SizeUnit, Span};

/// Load of a level: a rate or a concurrency.
#[derive(Copy, Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "mode", rename_all = "snake_case")]
pub enum Load {
    /// Open loop: arrivals follow the schedule, independent of the server.
    Open {
        /// Mean arrivals per second over the level.
        rate_per_s: f64,
    },
    /// Closed loop: a fixed number of requests in flight, where each end starts the next.
    Closed {
        /// Number of requests that are kept in flight.
        concurrency: u32,
    },
    /// A single burst of simultaneous requests.
    Wave {
        /// Number of requests in the burst.
        requests: u32,
    },
    /// Maximum throughput: a closed loop whose concurrency doubles until throughput stops growing.
    Saturating {
        /// Number of requests in flight at the end.
        concurrency: u32,
    },
}

/// Intended shape of the arrival rate over a level.
#[derive(Copy, Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum RateCourse {
    /// Constant, apart from random variation. Closed loops count as constant.
    #[default]
    Even,
    /// Rising, falling or recorded; parts of the level are not representative of each other.
    Shaped,
}

/// Reason for the end of a level.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum EndedBy {
    /// All scheduled requests were sent and have ended.
    Complete,
    /// The drain limit passed with requests still in flight.
    DrainLimit,
    /// One stop by the user: no new requests, and those in flight were awaited.
    User,
    /// Two stops by the user: immediate end.
    UserNow,
    /// The precision that was requested was reached.
    Known,
    /// A limit set by the user was reached (rate, requests, tokens, spend).
    Ceiling,
    /// Too many errors occurred.
    Errors,
    /// The generator died (killed, crashed, power failure); requests that were in flight have no row.
    Cut,
}

/// Source of the timestamps of arriving data.
#[derive(Copy, Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum StampSource {
    /// Software receive stamp of the kernel.
    Kernel,
    /// Kernel stamps for some reads only.
    Mixed,
    /// Clock reading in user space after the read returned.
    #[default]
    User,
}

/// Order statistics of an internal quantity of the generator, in ns.
#[derive(Copy, Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Quantiles {
    /// Number of observations in the summary.
    pub count: u64,
    /// Median in ns.
    pub p50_ns: i64,
    /// 90th percentile in ns.
    pub p90_ns: i64,
    /// 99th percentile in ns.
    pub p99_ns: i64,
    /// 99.9th percentile in ns.
    pub p999_ns: i64,
    /// Maximum in ns.
    pub max_ns: i64,
}

/// Measurements of the generator itself during one level.
#[derive(Clone, PartialEq, Default, Debug, Serialize, Deserialize, JsonSchema)]
pub struct GeneratorHealth {
    /// `sent − due` of every first attempt (open loop), less the wait for a connection, which belongs to the target or the
    /// connection policy.
    pub lag: Quantiles,
    /// User-space stamp minus kernel stamp of every read.
    pub user_delay: Quantiles,
    /// Source of the timestamps of arriving data.
    pub stamps: StampSource,
    /// Number of threads that generated the load.
    pub workers: u32,
    /// CPU time of the busiest worker thread / wall time (0 to 1). `None` = the platform does not report it.
    pub cpu_share_max: Option<f64>,
    /// CPU time of all worker threads in ns.
    pub cpu_ns: Option<i64>,
    /// Largest share of wall time that a worker thread was runnable but not running. `None` = the platform does not report
    /// it.
    pub run_queue_share_max: Option<f64>,
    /// Number of token events that were received.
    pub events: u64,
    /// Token events with an upper bound as time, because one read also contained a later event.
    pub events_coalesced: u64,
    /// Number of steps of the realtime clock against the monotonic one by more than a millisecond.
    pub clock_steps: u32,
    /// Time-weighted mean of requests in flight (due and not ended), from the driver's sampled counter.
    pub in_flight_mean: Option<f64>,
    /// Largest sample of the requests in flight.
    pub in_flight_max: u64,
    /// Number of samples of the requests in flight.
    pub in_flight_samples: u64,
    /// First time at which a ceiling delayed an arrival, so that the level was closed loop from then on.
    pub closed_since: Option<At>,
    /// Maximum number of simultaneously open sockets.
    pub sockets_max: u32,
    /// Number of connections opened during the level, warm-up included.
    pub connects: u32,
    /// Behaviour of kept connections. `None` = not measured (a simulated client, an older run).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kept: Option<KeptConnections>,
    /// Connection limits of the machine. `None` = not measured (a simulated client has none).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub room: Option<Room>,
    /// Comparison of the machines that sent the load, if there were several. All other values are then sums over them, or
    /// the worst.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shards: Option<ShardsHealth>,
}

/// Behaviour of persistent connections during a level.
#[derive(Copy, Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize, JsonSchema)]
pub struct KeptConnections {
    /// Number of checks of a kept connection before its reuse.
    pub looks: u64,
    /// Checks that found the connection closed within a second of its last response.
    pub ended: u64,
    /// Failed attempts: requests written within a second of the connection's last response whose connection ended without a
    /// response. The server had closed the connection or dropped the request; HTTP does not distinguish the two.
    pub lost: u64,
    /// Idle time after a response before a connection was reused, at the end of the level. `None` = immediate reuse.
    pub rest: Option<Span>,
    /// Time on the run's axis from which connections rested, possibly on an earlier level.
    pub resting_since: Option<At>,
}

/// Connection limits of a machine, and their exhaustion during a level.
#[derive(Copy, Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Room {
    /// Most files that the process may have open. `None` = the platform does not report it.
    pub descriptors: Option<u64>,
    /// Number of local ports to each address of the target. `None` = the platform does not report it.
    pub ports: Option<u32>,
    /// Connections dropped by a listening socket of this machine because its queue was full (`ListenOverflows`), during the
    /// level. `None` = the target is on another machine, or the platform does not report it.
    pub listen_overflows: Option<u64>,
    /// Attempts for which this machine had no descriptor, port or memory.
    pub no_socket: u64,
}

/// One level of a run: a steady load, and the generator's measurements of itself.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Level {
    /// Level number in the run, from 0, in order of execution.
    pub id: u32,
    /// Kind of traffic, in the scenario's terms: `steady`, `burst`, …
    pub traffic: String,
    /// Purpose of the level: `baseline`, `ladder`, `curve`, `bisect`, `hold`, `run`.
    pub purpose: String,
    /// Requested load: a rate or a concurrency.
    pub load: Load,
    /// Intended shape of the arrival rate.
    #[serde(default)]
    pub rate_course: RateCourse,
    /// First time at which an arrival could be due.
    pub start: At,
    /// End of the arrivals; none is due from this time on.
    pub stop: At,
    /// Time at which all attempts had ended or been abandoned.
    pub drained: At,
    /// Reason for the end of the level.
    pub ended_by: EndedBy,
    /// Number of arrivals scheduled in `[start, stop)`.
    pub arrivals: u64,
    /// 64-bit hash of the schedule, equal on every machine for equal spec, seed and nonce.
    pub schedule_hash: String,
    /// Unit of the request sizes: tokens or items.
    #[serde(default)]
    pub unit: SizeUnit,
    /// Measurements of the load generator itself.
    pub generator: GeneratorHealth,
}

impl Level {
    /// Returns the time during which arrivals were due.
    pub fn window(&self) -> Span {
        self.stop - self.start
    }
}
