//! What a watch says at an instant, as plain data.

use plimsoll_judge::cost::PriceSpec;
use serde::{Deserialize, Serialize};

use crate::Alert;

/// Everything that is said at once.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct WatchFinding {
    /// The budget file's name.
    pub budget: Option<String>,
    /// Seconds since the watch began.
    pub at_s: f64,
    /// Seconds that the rows look back.
    pub window_s: f64,
    /// The budget's rows, in its order.
    pub rows: Vec<WatchRow>,
    /// Requests of the window that were shed; `None` = the source does not tell them from other failures.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shed: Option<u64>,
    pub fleet: FleetNow,
    /// What it costs, where a price was given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost: Option<CostNow>,
    /// Alerts that stand, and the last that were resolved, the newest first.
    pub alerts: Vec<Alert>,
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct WatchRow {
    pub id: String,
    /// What is held: `ttft p99 ≤ 350 ms`.
    pub budget: String,
    pub state: RowState,
    /// Why, in a sentence part.
    pub why: String,
    /// Requests that it rests on.
    pub n: u64,
    /// Share of them over the ceiling: at least and at most.
    pub over: Option<[f64; 2]>,
    /// The share's interval, with what the bracket leaves open and what chance does.
    pub interval: Option<[f64; 2]>,
    /// The share that may be over it.
    pub allowed: Option<f64>,
    /// What this source can't see of it; empty = nothing that matters.
    pub unseen: String,
}

/// What is known of a row.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RowState {
    /// More are over the ceiling than allowed, for certain.
    Broken,
    /// Every replica hangs: requests are running and nothing moves.
    Stalled,
    /// Nothing is known any more: its pages do not answer.
    SourceLost,
    /// No page has a signal for it.
    Absent,
    /// The evidence decides neither way.
    CannotTell,
    NoTraffic,
    /// No more are over it than allowed, for certain.
    Holds,
}

impl RowState {
    /// All of them, the worst first.
    pub const ALL: [RowState; 7] = [
        RowState::Broken,
        RowState::Stalled,
        RowState::SourceLost,
        RowState::Absent,
        RowState::CannotTell,
        RowState::NoTraffic,
        RowState::Holds,
    ];

    /// On the screen.
    pub fn words(self) -> &'static str {
        match self {
            RowState::Broken => "broken",
            RowState::Stalled => "stalled",
            RowState::SourceLost => "source lost",
            RowState::Absent => "no signal",
            RowState::CannotTell => "cannot tell",
            RowState::NoTraffic => "no traffic",
            RowState::Holds => "holds",
        }
    }

    /// In a label of a metric.
    pub fn name(self) -> &'static str {
        match self {
            RowState::Broken => "broken",
            RowState::Stalled => "stalled",
            RowState::SourceLost => "source_lost",
            RowState::Absent => "absent",
            RowState::CannotTell => "cannot_tell",
            RowState::NoTraffic => "no_traffic",
            RowState::Holds => "holds",
        }
    }
}

/// The fleet at the last scrape; `None` = no page says it.
#[derive(Clone, PartialEq, Default, Debug, Serialize, Deserialize)]
pub struct FleetNow {
    /// Pages that answer, and pages there are.
    pub pages: [u64; 2],
    /// Replicas that can be told apart.
    pub replicas: Vec<ReplicaNow>,
    /// Requests that are computed.
    pub running: Option<f64>,
    pub waiting: Option<f64>,
    /// Requests answered per second over the window.
    pub requests_per_s: Option<f64>,
    /// Tokens generated per second over the window.
    pub output_tokens_per_s: Option<f64>,
    /// The fullest KV cache, 0 to 1.
    pub kv_usage: Option<f64>,
    /// Restarts that were seen over the window.
    pub restarts: u64,
}

/// What the fleet costs; `None` = nobody knows.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct CostNow {
    pub given: PriceSpec,
    /// The currency of every figure.
    pub currency: String,
    /// An hour as it is now; of a price per token, as over the window.
    pub per_hour: Option<f64>,
    /// A request that was answered in the window.
    pub per_request: Option<f64>,
    /// A million tokens that were generated in it.
    pub per_million_output: Option<f64>,
    /// What is counted, or why it is not known.
    pub basis: String,
}

#[derive(Clone, PartialEq, Default, Debug, Serialize, Deserialize)]
pub struct ReplicaNow {
    pub name: String,
    /// Requests that it computes.
    pub running: Option<f64>,
    pub waiting: Option<f64>,
    pub answers: bool,
    /// With requests running, for how long none of its counters has moved, s.
    pub stalled_s: Option<f64>,
}
