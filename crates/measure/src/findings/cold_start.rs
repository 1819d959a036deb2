//! Result types of a cold start: the extra latency of the first request after idling, and its phases.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{BoundedValue, Reading};

/// The verdict on the first requests after idling.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ColdVerdict {
    /// A replica had stopped and had to start.
    Started,
    /// Significantly slower, but without a replica start. Causes are a clock, a cache or a connection.
    Idle,
    /// Not significantly slower than steady requests.
    None,
    /// The data allow no verdict.
    CannotTell,
}

/// One idle period and the requests after it.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct ColdTrial {
    /// Number of the level in the run, from 0.
    pub level: u32,
    /// Idle time before the first request, in seconds.
    pub idle_s: f64,
    /// Time from the due time of the first request to its first token, over all attempts, in seconds. For a response that does not
    /// stream, the time to its end; `null` if the request got no response.
    pub first_s: Option<f64>,
    /// `first_s` minus the steady median, in seconds; `null` if the request got no response.
    pub penalty_s: Option<f64>,
    /// Time until the connection was established, in seconds; `null` for a reused connection, or if unknown (after a failed attempt).
    pub connect_s: Option<f64>,
    /// Attempts that the server rejected (429, 503) before it accepted the request.
    pub turned_away: u64,
    /// Attempts that could not connect or lost their connection.
    pub refused: u64,
    /// Time from the first attempt to the sending of the successful attempt, in seconds.
    pub turned_away_s: f64,
    /// Time from the sending of the successful attempt to its first token, in seconds; `null` if unknown.
    pub waited_s: Option<f64>,
    /// Requests after the first until one was as fast as the 95th percentile of steady requests; `null` if no request was.
    pub warm_after: Option<u64>,
    /// Time from the first due time until a request was as fast as steady requests, in seconds; `null` if no request was.
    pub warm_after_s: Option<f64>,
    /// Phases of the first request's time that the client can observe; their sum is `first_s`.
    #[serde(default)]
    pub parts: Vec<ColdPart>,
}

/// The cold-start result of a run.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct ColdStartFinding {
    /// Verdict on the first requests after idling.
    pub verdict: ColdVerdict,
    /// Reason of the verdict, as a sentence.
    pub why: String,
    /// Median latency of the steady requests in seconds, with their number.
    pub warm: Reading,
    /// Observed 95th percentile of the steady requests in seconds; `null` if there are none.
    pub warm_p95_s: Option<f64>,
    /// Extra latency of the first request over the steady median in seconds: mean over the idle periods, with minimum and maximum.
    pub penalty: Option<BoundedValue>,
    /// Probability of a first request this slow if it were like any other (p-value); `null` if not tested.
    pub p: Option<f64>,
    /// Results of the idle periods, in order of time.
    pub trials: Vec<ColdTrial>,
    /// Set if a run found the idle period without a cold-start test. Its requests then count in the figures of their levels.
    #[serde(default)]
    pub in_passing: bool,
}

/// A phase that the first request after idling waited for.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ColdPhase {
    /// Connections were refused, lost or not established, because no process listened.
    NoListener,
    /// A process listened and rejected the request: 429, 503, another error, or a timeout.
    NotReady,
    /// The server accepted the request and was slower than for a steady request.
    /// Behind a gateway that queues requests while a replica starts, this phase is the whole start. Otherwise it is a
    /// compilation or a cold cache.
    Slower,
    /// Time that a steady request takes.
    Steady,
}

/// One phase of the first request's time.
#[derive(Copy, Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct ColdPart {
    /// Phase that the request waited for.
    pub phase: ColdPhase,
    /// Duration in seconds, with its minimum and maximum.
    pub seconds: BoundedValue,
    /// Number of attempts in this phase.
    pub attempts: u64,
}
