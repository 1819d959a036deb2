//! The state of a watch at an instant, as plain data.

use plimsoll_judge::cost::PriceSpec;
use serde::{Deserialize, Serialize};

use crate::Alert;

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct WatchFinding {
    /// Name in the budget file; `None` if the file has none.
    pub budget: Option<String>,
    /// Time since the start of the watch, s.
    pub at_s: f64,
    /// Lookback window of the rows, s.
    pub window_s: f64,
    /// Rows of the budget, in file order.
    pub rows: Vec<WatchRow>,
    /// Shed requests in the window; `None` if the source does not distinguish them from other failures.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shed: Option<u64>,
    pub fleet: FleetNow,
    /// Cost of the fleet; `None` without a price.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost: Option<CostNow>,
    /// Firing alerts, and the last resolved ones, newest first.
    pub alerts: Vec<Alert>,
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct WatchRow {
    /// Id of the row in the file.
    pub id: String,
    /// Limit of the row, for example `ttft p99 ≤ 350 ms`.
    pub budget: String,
    pub state: RowState,
    pub why: String,
    /// Number of requests behind the state.
    pub n: u64,
    /// Share of requests over the ceiling, minimum and maximum; `None` without requests.
    pub over: Option<[f64; 2]>,
    /// Interval of the share, from the bracket and from chance; `None` without requests.
    pub interval: Option<[f64; 2]>,
    /// Share of requests that may exceed the ceiling; `None` for rows without a share.
    pub allowed: Option<f64>,
    /// Limitation of this source for the row; empty if there is none that matters.
    pub unseen: String,
}

plimsoll_model::named! {
    /// The state of a budget row.
    #[derive(Copy, Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    pub enum RowState {
        /// The share over the ceiling exceeds the allowed share with certainty.
        Broken => "broken",
        /// Every replica is stalled: requests run without progress.
        Stalled => "stalled",
        /// All metrics endpoints of the row fail.
        SourceLost => "source_lost",
        /// The row's signal is missing on every metrics endpoint.
        Absent => "absent",
        CannotTell => "cannot_tell",
        NoTraffic => "no_traffic",
        /// The share over the ceiling is within the allowed share with certainty.
        Holds => "holds",
    }
}

impl RowState {
    pub fn words(self) -> &'static str {
        match self {
            RowState::SourceLost => "source lost",
            RowState::Absent => "no signal",
            RowState::CannotTell => "inconclusive",
            RowState::NoTraffic => "no traffic",
            RowState::Holds => "pass",
            other => other.name(),
        }
    }
}

/// The fleet at the last scrape; `None` fields are unknown.
#[derive(Clone, PartialEq, Default, Debug, Serialize, Deserialize)]
pub struct FleetNow {
    /// Number of metrics endpoints that respond, and of all.
    pub pages: [u64; 2],
    /// Replicas, if they are distinguished.
    pub replicas: Vec<ReplicaNow>,
    /// Number of running requests on responding replicas; `None` if unknown.
    pub running: Option<f64>,
    pub waiting: Option<f64>,
    /// Completed requests per second over the window.
    pub requests_per_s: Option<f64>,
    /// Generated tokens per second over the window.
    pub output_tokens_per_s: Option<f64>,
    /// Maximum KV cache usage of a replica, 0 to 1.
    pub kv_usage: Option<f64>,
    /// Number of restarts in the window.
    pub restarts: u64,
}

/// The cost of the fleet; `None` fields are unknown.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct CostNow {
    pub given: PriceSpec,
    pub currency: String,
    /// Present cost per hour; for a price per token, the mean over the window.
    pub per_hour: Option<f64>,
    /// Cost per completed request in the window.
    pub per_request: Option<f64>,
    /// Cost per million generated tokens in the window.
    pub per_million_output: Option<f64>,
    /// Basis of the cost, or the reason why it is unknown.
    pub basis: String,
}

#[derive(Clone, PartialEq, Default, Debug, Serialize, Deserialize)]
pub struct ReplicaNow {
    pub name: String,
    /// Number of running requests; `None` if unknown.
    pub running: Option<f64>,
    /// Number of waiting requests; `None` if unknown.
    pub waiting: Option<f64>,
    pub answers: bool,
    /// Time in s without a change of its counters although requests run; `None` if it is not stalled.
    pub stalled_s: Option<f64>,
}
