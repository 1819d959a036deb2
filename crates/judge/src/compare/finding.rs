//! What a comparison says: plain data between the judge and the pages.
//!
//! A row carries everything its verdict rests on; a verdict without its margin or its method could not be argued with.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use plimsoll_measure::findings::{Estimate, unbounded};

/// Version of this layout.
pub const COMPARISON_SCHEMA: u32 = 1;

/// What a change did to a figure.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ChangeVerdict {
    /// Shown to be better.
    Improved,
    /// Shown to be no worse than the margin allows.
    NoChange,
    /// The data allow both.
    Inconclusive,
    /// Shown to be worse, and not shown to stay within the margin.
    Regressed,
}

impl ChangeVerdict {
    /// The words on the screen.
    pub fn words(self) -> &'static str {
        match self {
            ChangeVerdict::Improved => "improved",
            ChangeVerdict::NoChange => "no change",
            ChangeVerdict::Inconclusive => "inconclusive",
            ChangeVerdict::Regressed => "regressed",
        }
    }
}

/// In what an effect is counted.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Scale {
    /// Candidate over base.
    Ratio,
    /// Candidate less base, a share.
    Difference,
}

/// Which way is worse.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum WorseWay {
    /// Latencies and errors.
    Higher,
    /// Rates.
    Lower,
}

/// An effect with its 95 % interval.
#[derive(Copy, Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Effect {
    /// In what it is counted.
    pub scale: Scale,
    /// The estimate; `+∞` where only the candidate's percentile falls among failures.
    #[serde(with = "unbounded")]
    #[schemars(with = "unbounded::Number")]
    pub value: f64,
    /// Lower end.
    #[serde(with = "unbounded")]
    #[schemars(with = "unbounded::Number")]
    pub lower: f64,
    /// Upper end.
    #[serde(with = "unbounded")]
    #[schemars(with = "unbounded::Number")]
    pub upper: f64,
}

/// One arm's figure and the counts it rests on.
#[derive(Copy, Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct ArmFigure {
    /// The figure: seconds, a rate or a share. `None` where it does not exist.
    #[serde(with = "unbounded::option")]
    #[schemars(with = "Option<unbounded::Number>")]
    pub value: Option<f64>,
    /// Observations.
    pub n: u64,
    /// Their worth in independent ones.
    pub n_eff: f64,
}

/// One figure of both runs, and the verdict on it.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct ComparedFigure {
    /// `ttft`, `tpot`, `e2e`, `event_gap`, `itl`, `throughput`, `error_rate`, `onset`, …
    pub metric: String,
    /// `p50`, `p95`, `p99`, `mean`, `per request`, `rate`.
    pub statistic: String,
    /// In the declared family, which decides; the others describe.
    pub primary: bool,
    /// The base's.
    pub base: ArmFigure,
    /// The candidate's.
    pub candidate: ArmFigure,
    /// Candidate against base. `None` where there is none.
    pub effect: Option<Effect>,
    /// Which way is worse.
    pub worse: WorseWay,
    /// How much worse is still no change: of the ratio, or of the share.
    pub margin: f64,
    /// Two-sided p of "nothing changed".
    pub p: Option<f64>,
    /// The same after all of the family were asked: of one load's figures jointly (Westfall and Young), loads and lines by their share of the
    /// family (Bonferroni).
    pub p_family: Option<f64>,
    /// What the flips turn, a value per unit, where the row is asked jointly with the others of its load; not written.
    #[serde(skip)]
    #[schemars(skip)]
    pub differences: Vec<f64>,
    /// How it was computed, in a few words.
    pub method: String,
    /// The verdict.
    pub verdict: ChangeVerdict,
    /// What to know about it, where there is something.
    pub why: Option<String>,
    /// About how long each level would have to be, s, for the requests that the row lacks; `None` where it lacks none.
    #[serde(default)]
    pub needs_s: Option<f64>,
    /// Why the effect is shown and not judged, where it isn't.
    pub described: Option<String>,
    /// The effect before standardisation to the base's mix, where that was needed.
    pub as_it_came: Option<Effect>,
}

/// What differs between two runs so that they can't be taken for the same experiment.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Difference {
    /// `load`, `prompts`, `lengths`, `client`, `network path`, `clock`, `schedule`.
    pub about: String,
    /// In the base.
    pub base: String,
    /// In the candidate.
    pub candidate: String,
}

/// How the two runs were put side by side.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Design {
    /// One schedule on both sides: requests and stretches of time in pairs.
    Paired,
    /// Different requests: percentiles of either side, at the base's mix of lengths and classes.
    Standardised,
    /// Two curves: line against line.
    Curves,
}

/// What the comparison counts as one observation.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Unit {
    /// A whole level and its counterpart: what changes from one to the next is in the interval.
    Alternation,
    /// A stretch of a level.
    Section,
}

/// The levels of one load, compared.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Group {
    /// Kind of traffic and load, as a sentence part.
    pub load: String,
    /// Level numbers, base and candidate.
    pub levels: Vec<(u32, u32)>,
    /// What one observation is.
    pub unit: Unit,
    /// How many there are.
    pub units: u32,
    /// The rows, by metric.
    pub rows: Vec<ComparedFigure>,
    /// The leading metric along its whole distribution: description, with a band that holds all points at once.
    pub shift: Vec<ShiftPoint>,
    /// Requests by class and prompt length, where they were standardised.
    pub slices: Vec<ComparedSlice>,
    /// Stages that the server reports.
    pub stages: Vec<ComparedStage>,
}

/// One point of the shift function.
#[derive(Copy, Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct ShiftPoint {
    /// The percentile, 0 to 1.
    pub p: f64,
    /// Candidate over base.
    pub effect: Effect,
}

/// Requests of one class and prompt length.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct ComparedSlice {
    /// Which.
    pub name: String,
    /// Share of the base's requests.
    pub base_share: f64,
    /// Share of the candidate's.
    pub candidate_share: f64,
    /// The median of the leading metric, candidate over base; `None` where a side has too few.
    pub effect: Option<Effect>,
}

/// One stage of the serving path on both sides.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct ComparedStage {
    /// The server's name of it.
    pub name: String,
    /// Its mean in the base, s.
    pub base_mean_s: f64,
    /// And in the candidate.
    pub candidate_mean_s: f64,
    /// Candidate over base.
    pub effect: Effect,
    /// Its share of the base's mean `e2e`.
    pub share: f64,
    /// How many times faster the whole could be at most, were it free (Amdahl).
    pub ceiling: f64,
    /// What it adds to the base's slowest hundredth over its middle requests, s.
    pub tail_gap_base_s: Option<Estimate>,
    /// The same of the candidate.
    pub tail_gap_candidate_s: Option<Estimate>,
    /// It got faster, and the whole did not.
    pub local_only: bool,
}

/// A fact of the target on both sides.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "is", rename_all = "snake_case")]
pub enum Fact {
    /// Known on both sides and the same.
    Same,
    /// Known and different.
    Changed {
        /// In the base.
        base: String,
        /// In the candidate.
        candidate: String,
    },
    /// Not known on one side or both, so not known to be unchanged.
    Unknown,
}

/// Two runs, compared.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Comparison {
    /// Version of this layout.
    pub schema: u32,
    /// The verdict: regressed where a row of the family is, else inconclusive where one is, else improved or no change.
    pub verdict: ChangeVerdict,
    /// The verdict in sentences.
    pub says: Vec<String>,
    /// How they were put side by side.
    pub design: Design,
    /// Confidence of the intervals.
    pub level: f64,
    /// What differs between the two experiments, all the same.
    pub differences: Vec<Difference>,
    /// What to know beside the verdict.
    pub notes: Vec<String>,
    /// The levels, one entry per load.
    pub groups: Vec<Group>,
    /// Of sweeps: lines, and levels at nearly the same load.
    pub lines: Vec<ComparedFigure>,
    /// What is known of the targets.
    pub target: BTreeMap<String, Fact>,
}
