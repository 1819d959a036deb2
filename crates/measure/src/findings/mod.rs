//! The result types of a run: the interface between the evaluations and the reports.
//!
//! All types are plain data that serialises to JSON (`Manifest.findings`) and back without loss. Latencies and durations
//! are **seconds** as `f64` (`…_s`), because they are figures and no longer timestamps. Instants on the run's axis stay
//! [`plimsoll_model::At`]. Each figure is a [`Reading`], with either its interval and counts or the reason why it is refused.
//!
//! A quantile that falls among failed requests is `+∞`, which is a valid figure. JSON has no infinity, so the field contains
//! the text `"inf"` ([`unbounded`]). The alternative `null` was rejected because "infinite" and "not measured" would be indistinguishable.

mod budget;
pub mod cold_start;
pub mod cost;
mod figure;
mod level;
mod pareto;
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
pub use figure::{BoundedValue, Estimate, Percentiles, Reading};
pub use level::{
    ClassSummary, Concurrency, Counts, CutLatency, Drift, ErrorCount, FAILURES, FanOut, GroupSummary,
    Histogram, Itl, Latencies, LengthFigures, Lengths, LevelSummary, LittlesLawCheck, LoadKeptUp, Rates,
    Records, SessionCounts, SessionTokens, SlowStretch, Stability, Tail, TargetSummary, Timeline,
    TimelineBucket, Window,
};
pub use pareto::{ParetoCurve, ParetoPoint};
pub use sweep::{
    CapacityLine, CapacityLines, Curve, CurvePoint, FitPoint, LadderRung, LoadWords, SustainedLine,
};
pub use trust::{PassedCheck, Reason, Trust, Validity};

/// Version of the layout of [`Findings`].
pub const FINDINGS_SCHEMA: u32 = 1;

/// One level with its verdict.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct LevelFinding {
    /// Measured result of the level: counts, rates, latencies.
    pub summary: LevelSummary,
    /// Trust in the result, with its checks.
    pub validity: Validity,
}

/// The complete results of a run.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Findings {
    /// Version of the JSON layout of this object.
    pub schema: u32,
    /// Trust in the run, with its checks.
    pub validity: Validity,
    /// Capacity limits, one entry per kind of traffic; empty if the run is not a sweep.
    pub lines: Vec<CapacityLines>,
    /// Latency curves, one entry per kind of traffic; empty if the run is not a sweep.
    pub curves: Vec<Curve>,
    /// Throughput against speed per user, one entry per kind of traffic; absent if the run has one load.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pareto: Vec<ParetoCurve>,
    /// List of the levels in order of execution.
    pub levels: Vec<LevelFinding>,
    /// Cost of requests and tokens; absent if no price was given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost: Option<CostFinding>,
    /// Metrics that the servers reported; absent if no metrics endpoint was scraped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server: Option<ServerReport>,
    /// Connection statistics from the kernel; absent if there are none (a simulated client).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network: Option<Network>,
    /// Extra latency after idling; absent if the run did not test it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cold_start: Option<ColdStartFinding>,
}
