//! One steady load, as it was asked for and as the generator lived through it.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{At, ShardsHealth, SizeUnit, Span};

/// What load a level puts on the target.
#[derive(Copy, Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "mode", rename_all = "snake_case")]
pub enum Load {
    /// Arrivals follow the schedule whatever the server does.
    Open {
        /// Mean arrivals per second over the level.
        rate_per_s: f64,
    },
    /// A fixed number of requests in flight; each end starts the next.
    Closed {
        /// How many.
        concurrency: u32,
    },
    /// So many requests at once, and none after them.
    Wave {
        /// How many.
        requests: u32,
    },
    /// As many as the target takes: closed loop with the concurrency doubled until throughput stops growing.
    Saturating {
        /// The concurrency it ended at.
        concurrency: u32,
    },
}

/// Whether the rate of arrivals was meant to be the same throughout a level.
#[derive(Copy, Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum RateCourse {
    /// It was, whatever chance made of it. So is a closed loop.
    #[default]
    Even,
    /// It rises, falls or follows a recording, on purpose: no part of the level stands for another.
    Shaped,
}

/// Why a level ended.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum EndedBy {
    /// All that was scheduled was sent and ended.
    Complete,
    /// The drain limit passed with requests still in flight.
    DrainLimit,
    /// The person asked, once: no new requests, those in flight were waited for.
    User,
    /// The person asked twice: stopped at once.
    UserNow,
    /// The figure that was asked for is known as well as was asked.
    Known,
    /// A ceiling the user set (rate, requests, tokens, spend).
    Ceiling,
    /// Too many errors.
    Errors,
    /// The generator itself was cut off (killed, crashed, out of power): requests that were in flight then left no row.
    Cut,
}

/// Where arrival stamps come from.
#[derive(Copy, Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum StampSource {
    /// The kernel's software receive stamp.
    Kernel,
    /// Some reads had the kernel's stamp, some not.
    Mixed,
    /// The clock, read in user space after the read returned.
    #[default]
    User,
}

/// A few order statistics of an internal quantity of the generator. Nanoseconds.
#[derive(Copy, Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Quantiles {
    /// How many observations.
    pub count: u64,
    /// Median.
    pub p50_ns: i64,
    /// 90th percentile.
    pub p90_ns: i64,
    /// 99th percentile.
    pub p99_ns: i64,
    /// 99.9th percentile.
    pub p999_ns: i64,
    /// Largest.
    pub max_ns: i64,
}

/// What the generator measured of itself during one level.
#[derive(Clone, PartialEq, Default, Debug, Serialize, Deserialize, JsonSchema)]
pub struct GeneratorHealth {
    /// `sent − due` of every first attempt (open loop), less the wait for a connection, which is the target's or the
    /// connection policy's.
    pub lag: Quantiles,
    /// User-space stamp − kernel stamp of every read.
    pub user_delay: Quantiles,
    /// Where arrival stamps came from.
    pub stamps: StampSource,
    /// Load-generating threads.
    pub workers: u32,
    /// CPU time of the busiest worker thread / wall time (0 to 1). `None` = the platform does not say.
    pub cpu_share_max: Option<f64>,
    /// CPU time of all worker threads, ns.
    pub cpu_ns: Option<i64>,
    /// Time the worst worker thread was runnable and not running / wall time. `None` = the platform does not say.
    pub run_queue_share_max: Option<f64>,
    /// Token events received.
    pub events: u64,
    /// Of those, the ones whose time is an upper bound because a later event came with the same read.
    pub events_coalesced: u64,
    /// Steps of the realtime clock against the monotonic one larger than a millisecond.
    pub clock_steps: u32,
    /// Time-weighted mean of requests in flight (due and not ended), from the driver's sampled counter.
    pub in_flight_mean: Option<f64>,
    /// Largest sample of it.
    pub in_flight_max: u64,
    /// How many samples.
    pub in_flight_samples: u64,
    /// First moment at which a ceiling held an arrival back: from there on the level was closed loop.
    pub closed_since: Option<At>,
    /// Most sockets open at once.
    pub sockets_max: u32,
    /// Connections made during the level, warming included.
    pub connects: u32,
    /// How the target kept the connections that it was to keep. `None` = nobody looked (a simulated client, an older run).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kept: Option<KeptConnections>,
    /// What the machine had for connections. `None` = nobody looked (a simulated client needs none).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub room: Option<Room>,
    /// How the machines fared together that sent it, where there were several. Everything else here is then the sum over them, or the worst.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shards: Option<ShardsHealth>,
}

/// How a target kept the connections that it had not said it would close, during a level.
#[derive(Copy, Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize, JsonSchema)]
pub struct KeptConnections {
    /// Times that a kept connection was looked at before it was used again.
    pub looks: u64,
    /// Of these, those that found it ended within a second of its last answer.
    pub ended: u64,
    /// Requests that were written on one within a second of its last answer and met its end instead of an answer: failed
    /// attempts. The server had not kept the connection or gave the request up; which of both, HTTP does not tell.
    pub lost: u64,
    /// How long a connection rested after an answer before it was used again, at the level's end. `None` = not at all: there was no
    /// reason.
    pub rest: Option<Span>,
    /// When the first of them began to rest, on the run's axis: on an earlier level, maybe.
    pub resting_since: Option<At>,
}

/// What a machine has of what connections take, and what ran out during a level.
#[derive(Copy, Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Room {
    /// Files the process may have open. `None` = the platform does not say.
    pub descriptors: Option<u64>,
    /// Local ports to each address of the target. `None` = the platform does not say.
    pub ports: Option<u32>,
    /// Connections for which a listening socket of this machine had no place (`ListenOverflows`) during the level. `None` =
    /// the target is on another machine, or the platform does not say.
    pub listen_overflows: Option<u64>,
    /// Attempts for which this machine had no descriptor, port or memory.
    pub no_socket: u64,
}

/// One level of a run: a steady load and what the generator lived through.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Level {
    /// Its number in the run, from 0, in the order of execution.
    pub id: u32,
    /// Kind of traffic, as the scenario names it: `steady`, `burst`, …
    pub traffic: String,
    /// What it was run for: `baseline`, `ladder`, `curve`, `bisect`, `hold`, `run`.
    pub purpose: String,
    /// The load asked for.
    pub load: Load,
    /// Whether the rate was meant to be even.
    #[serde(default)]
    pub rate_course: RateCourse,
    /// First instant at which an arrival could be due.
    pub start: At,
    /// No arrivals are due from here on.
    pub stop: At,
    /// All attempts had ended or been given up.
    pub drained: At,
    /// Why it ended.
    pub ended_by: EndedBy,
    /// Arrivals scheduled in `[start, stop)`.
    pub arrivals: u64,
    /// 64-bit hash of the schedule, the same on every machine for the same spec, seed and nonce.
    pub schedule_hash: String,
    /// What the sizes of its requests count.
    #[serde(default)]
    pub unit: SizeUnit,
    /// How the generator fared.
    pub generator: GeneratorHealth,
}

impl Level {
    /// The part of the level in which arrivals fell.
    pub fn window(&self) -> Span {
        self.stop - self.start
    }
}
