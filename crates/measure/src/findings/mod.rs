//! What a run is found to say: the words between the judges and the pages.
//!
//! Everything here is plain data that serialises to JSON (`Manifest.findings`) and back without loss. Latencies and
//! lengths of time are **seconds** as `f64` (`…_s`), because they are figures and no longer stamps; instants on the
//! run's axis stay [`plimsoll_model::At`]. A figure is never alone: it is a [`Reading`], which either carries its interval and its
//! counts or says why it is refused. A quantile that falls among failed requests is `+∞`, which is a figure; JSON
//! has no word for it, so the field holds the text `"inf"` ([`unbounded`]). The alternative, `null`, would make
//! "infinite" and "not measured" look alike.

mod budget;
pub mod cold_start;
pub mod cost;
mod figure;
mod level;
pub mod price;
mod sweep;
mod trust;
pub mod unbounded;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::network::Network;
use crate::server_side::ServerReport;
use cold_start::ColdStartFinding;
use cost::CostFinding;

pub use budget::{BudgetFinding, BudgetRow, BudgetSpec, Ceiling, Held, Metric, Pool, VerdictBasis};
pub use figure::{Bounded, Estimate, Percentiles, Reading};
pub use level::{
    Concurrency, Counts, CutLatency, Drift, ErrorCount, FAILURES, FanOut, Histogram, Itl, KeptUp, Latencies,
    LengthFigures, Lengths, LevelSummary, Little, Rates, Records, SessionCounts, SessionTokens, SlowStretch,
    Stability, Tail, TargetSummary, Timeline, TimelineBucket, Window,
};
pub use sweep::{CapacityLine, CapacityLines, Curve, CurvePoint, FitPoint, Hold, LadderRung, LoadWords};
pub use trust::{Passed, Reason, Trust, Validity};

/// Version of this layout.
pub const FINDINGS_SCHEMA: u32 = 1;

/// One level with its verdict.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct LevelFinding {
    /// What was measured.
    pub summary: LevelSummary,
    /// How far it may be trusted.
    pub validity: Validity,
}

/// Everything a run is found to say.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Findings {
    /// Version of this layout.
    pub schema: u32,
    /// How far the run may be trusted.
    pub validity: Validity,
    /// The lines, one entry per kind of traffic; empty for a run that is no sweep.
    pub lines: Vec<CapacityLines>,
    /// The curves, likewise.
    pub curves: Vec<Curve>,
    /// Every level, in order of execution.
    pub levels: Vec<LevelFinding>,
    /// What it costs; `None` where no price was given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost: Option<CostFinding>,
    /// What servers said of themselves; `None` where nobody looked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server: Option<ServerReport>,
    /// What the kernel says of the connections; `None` where there were none (a simulated client).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network: Option<Network>,
    /// What requests pay after idling; only of a run that looked for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cold_start: Option<ColdStartFinding>,
}
