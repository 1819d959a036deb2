//! Result types of a comparison: the interface between evaluation and reports.
//!
//! A row contains all data of its verdict. A verdict without margin or method was rejected because it could not be verified.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use plimsoll_measure::findings::{Estimate, unbounded};

/// Version of the layout of [`Comparison`].
pub const COMPARISON_SCHEMA: u32 = 1;

/// The effect of a change on a figure.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ChangeVerdict {
    /// The candidate is proven to be better.
    Improved,
    /// Proven to be worse by at most the margin.
    NoChange,
    /// The data allow both a change and no change.
    Inconclusive,
    /// Proven to be worse, and not proven to stay within the margin.
    Regressed,
}

impl ChangeVerdict {
    /// Returns the text for the screen.
    pub fn words(self) -> &'static str {
        match self {
            ChangeVerdict::Improved => "improved",
            ChangeVerdict::NoChange => "no change",
            ChangeVerdict::Inconclusive => "inconclusive",
            ChangeVerdict::Regressed => "regressed",
        }
    }
}

/// The scale of an effect: ratio or difference.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Scale {
    /// Ratio of the candidate to the base.
    Ratio,
    /// Candidate minus base, for a share.
    Difference,
}

/// The direction in which a figure is worse.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum WorseWay {
    /// Higher values are worse: latencies and errors.
    Higher,
    /// Lower values are worse, as for rates.
    Lower,
}

/// An effect with its 95 % interval.
#[derive(Copy, Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Effect {
    /// Scale of the effect: ratio or difference.
    pub scale: Scale,
    /// Estimate; `"inf"` if only the candidate's percentile falls among failures.
    #[serde(with = "unbounded")]
    #[schemars(with = "unbounded::Number")]
    pub value: f64,
    /// Lower end of the confidence interval.
    #[serde(with = "unbounded")]
    #[schemars(with = "unbounded::Number")]
    pub lower: f64,
    /// Upper end of the confidence interval.
    #[serde(with = "unbounded")]
    #[schemars(with = "unbounded::Number")]
    pub upper: f64,
}

/// The figure of one run with its counts.
#[derive(Copy, Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct ArmFigure {
    /// Figure in seconds, per second, or as a share; `null` if it does not exist.
    #[serde(with = "unbounded::option")]
    #[schemars(with = "Option<unbounded::Number>")]
    pub value: Option<f64>,
    /// Number of observations in this run.
    pub n: u64,
    /// Effective sample size of this run.
    pub n_eff: f64,
}

/// One figure of both runs with its verdict.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct ComparedFigure {
    /// Metric: `ttft`, `tpot`, `e2e`, `event_gap`, `itl`, `throughput`, `error_rate`, `onset`, …
    pub metric: String,
    /// Statistic: `p50`, `p95`, `p99`, `mean`, `per request` or `rate`.
    pub statistic: String,
    /// Set if the row is in the declared family, which decides; other rows are descriptive.
    pub primary: bool,
    /// Figure of the base run with its sample size.
    pub base: ArmFigure,
    /// Figure of the candidate run with its sample size.
    pub candidate: ArmFigure,
    /// Effect of the candidate compared with the base; `null` if it cannot be computed.
    pub effect: Option<Effect>,
    /// Direction in which the figure is worse.
    pub worse: WorseWay,
    /// Largest change for the worse that counts as no change, on the effect's scale.
    pub margin: f64,
    /// Two-sided p-value of "nothing changed"; `null` if not tested.
    pub p: Option<f64>,
    /// Family-wise p-value; `null` if not tested. The figures of one load are tested jointly (Westfall and Young).
    /// Loads and limits share the family by Bonferroni.
    pub p_family: Option<f64>,
    /// Differences per unit for the sign flips, if the row is tested jointly with others of its load; not serialised.
    #[serde(skip)]
    #[schemars(skip)]
    pub differences: Vec<f64>,
    /// Method of the comparison in a few words.
    pub method: String,
    /// Verdict on the change of this figure.
    pub verdict: ChangeVerdict,
    /// Remark on the verdict; `null` if there is none.
    pub why: Option<String>,
    /// Approximate length of each level in seconds for the requests that the row lacks; `null` if it lacks none.
    #[serde(default)]
    pub needs_s: Option<f64>,
    /// Reason why the effect is shown without a verdict; `null` if it has one.
    pub described: Option<String>,
    /// Effect before standardisation to the base's mix; `null` without standardisation.
    pub as_it_came: Option<Effect>,
}

/// A difference between two runs that makes them different experiments.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Difference {
    /// Subject: `load`, `prompts`, `lengths`, `client`, `network path`, `clock` or `schedule`.
    pub about: String,
    /// Value in the base run, as text.
    pub base: String,
    /// Value in the candidate run, as text.
    pub candidate: String,
}

/// The design of a comparison, which sets its unit.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Design {
    /// One schedule on both sides: requests and time intervals are paired.
    Paired,
    /// Different requests: percentiles of both sides at the base's mix of lengths and classes.
    Standardised,
    /// Two sweeps: capacity limits are compared.
    Curves,
}

/// The unit of observation in a comparison.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "Unit")]
pub enum ComparisonUnit {
    /// A whole level and its counterpart. The interval includes changes from one level to the next.
    Alternation,
    /// An interval of a level, as one observation.
    Section,
}

/// The comparison of the levels of one load.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Group")]
pub struct ComparedLevels {
    /// Kind of traffic and load, as a phrase.
    pub load: String,
    /// Level numbers of base and candidate.
    pub levels: Vec<(u32, u32)>,
    /// Unit of observation in this comparison.
    pub unit: ComparisonUnit,
    /// Number of units in the comparison.
    pub units: u32,
    /// Rows of the comparison, grouped by metric.
    pub rows: Vec<ComparedFigure>,
    /// Shift of the leading metric over its whole distribution: descriptive, with a simultaneous band.
    pub shift: Vec<ShiftPoint>,
    /// Requests by class and prompt length; empty without standardisation.
    pub slices: Vec<ComparedSlice>,
    /// Stages that the server reports; empty without them.
    pub stages: Vec<ComparedStage>,
}

/// One point of the shift function.
#[derive(Copy, Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct ShiftPoint {
    /// Percentile as a fraction, 0 to 1.
    pub p: f64,
    /// Ratio of the candidate to the base.
    pub effect: Effect,
}

/// The requests of one class and prompt length.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct ComparedSlice {
    /// Name of the class and the range of prompt lengths.
    pub name: String,
    /// Share of the base's requests, 0 to 1.
    pub base_share: f64,
    /// Share of the candidate's requests, 0 to 1.
    pub candidate_share: f64,
    /// Median of the leading metric, candidate divided by base; `null` if a side has too few requests.
    pub effect: Option<Effect>,
}

/// One stage of the serving path on both sides.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct ComparedStage {
    /// Name of the stage, as the server reports it.
    pub name: String,
    /// Mean duration in the base, in seconds.
    pub base_mean_s: f64,
    /// Mean duration in the candidate, in seconds.
    pub candidate_mean_s: f64,
    /// Ratio of the candidate to the base.
    pub effect: Effect,
    /// Share of the base's mean `e2e`, 0 to 1.
    pub share: f64,
    /// Maximum speed-up of the whole if the stage took no time (Amdahl).
    pub ceiling: f64,
    /// Extra time of the stage in the base's slowest hundredth over its middle requests, in seconds; `null` with too few requests.
    pub tail_gap_base_s: Option<Estimate>,
    /// Extra time of the stage in the candidate's slowest hundredth, in seconds; `null` with too few requests.
    pub tail_gap_candidate_s: Option<Estimate>,
    /// Set if the stage became faster and the whole did not.
    pub local_only: bool,
}

/// The comparison of one property of the targets.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "is", rename_all = "snake_case")]
pub enum Fact {
    /// Known on both sides and equal.
    Same,
    /// Known on both sides and different.
    Changed {
        /// Value in the base run, as text.
        base: String,
        /// Value in the candidate run, as text.
        candidate: String,
    },
    /// Unknown on one side or both, so a change is possible.
    Unknown,
}

/// The comparison of two runs, base and candidate.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Comparison {
    /// Version of the JSON layout of this object.
    pub schema: u32,
    /// Verdict: regressed if a row of the family is, else inconclusive if one is, else improved or no change.
    pub verdict: ChangeVerdict,
    /// Verdict on the comparison in sentences.
    pub says: Vec<String>,
    /// Design of the comparison, which sets its unit.
    pub design: Design,
    /// Confidence level of the intervals, 0 to 1.
    pub level: f64,
    /// Differences between the experiments that were accepted.
    pub differences: Vec<Difference>,
    /// Remarks in addition to the verdict.
    pub notes: Vec<String>,
    /// Results of the levels, one entry per load.
    pub groups: Vec<ComparedLevels>,
    /// Results of sweeps: capacity limits, and levels at nearly equal loads.
    pub lines: Vec<ComparedFigure>,
    /// Comparison of the targets' known properties.
    pub target: BTreeMap<String, Fact>,
}
