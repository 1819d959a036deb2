//! The output of a diagnosis as plain data.
//!
//! A verdict names layer and cause together with its evidence and intervals. It also names the counter that must have
//! moved, the runner-up, and the experiment that would overturn it. A verdict without these figures would be an
//! opinion. The output also lists the layers that were cleared and the facts that could not be checked.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::cause::{Cause, Layer};
use super::experiment::NextExperiment;
use super::fact::{FactState, Observed};
use plimsoll_measure::excerpt::Excerpt;
use plimsoll_measure::findings::{Estimate, Validity, unbounded};

pub(crate) const DIAGNOSIS_SCHEMA: u32 = 1;

/// The overall answer of a diagnosis.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "Answer")]
pub enum DiagnosisOutcome {
    /// Healthy: without a significant change.
    NothingMaterial,
    /// A cause was found.
    Found,
    /// A problem without a known cause, or too little data to decide whether there is a problem.
    Unknown,
    /// The measurement itself is invalid.
    Invalid,
}

/// The result of a diagnosis.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Diagnosis {
    /// Version of the JSON layout.
    pub schema: u32,
    /// Overall answer.
    pub answer: DiagnosisOutcome,
    /// Summary in one sentence.
    pub headline: String,
    /// The data that was analysed and its reference.
    pub subject: Subject,
    /// The run's own verdict on its measurement.
    #[serde(default)]
    pub validity: Option<Validity>,
    /// Problems in order of weight; each is evaluated after the effect of the earlier ones is removed. For the
    /// answers "no significant problem" and "unknown" the only verdict contains the reason.
    pub verdicts: Vec<Verdict>,
    /// Answers to the five questions of the method.
    pub questions: Vec<Question>,
    /// Layers that were cleared, with figures.
    pub cleared: Vec<ClearedSuspect>,
    /// All facts that were checked, with any result.
    #[serde(default)]
    pub observed: Vec<AskedQuestion>,
    /// Known changes of the target between the two runs.
    pub changed: TargetChange,
    /// Facts that could not be evaluated, and the experiments that would show them.
    pub missing: Vec<MissingEvidence>,
}

/// The data that was analysed.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Subject {
    /// Number of the analysed level.
    pub level: Option<u32>,
    /// Number of levels to choose from; 0 if the level was requested or is the only one.
    #[serde(default)]
    pub chosen_of: u64,
    /// Description of the load.
    pub load: String,
    /// Number of requests in the window.
    pub requests: u64,
    /// Part of the level that was analysed, if the level does not fit in memory; `None` for all of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub excerpt: Option<Excerpt>,
    /// Reference of the comparison: `baseline`, `probe`, `quiet` or `nothing`.
    pub reference: Reference,
    /// Level number of the baseline.
    pub baseline_level: Option<u32>,
    /// Number of isolated requests.
    pub alone: u64,
}

/// The reference that a level is compared with.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Reference {
    /// Another run.
    Baseline,
    /// The isolated requests of the run.
    Probe,
    /// The quiet parts of the run.
    Quiet,
}

/// One problem that was found.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Verdict {
    /// Layer of the problem.
    pub layer: Layer,
    /// Cause of the problem.
    pub cause: Cause,
    /// Name of the decisive fact.
    pub rule: String,
    /// Posterior probability of the cause, 0 to 1; 0 if no cause is named. `docs/diagnosis-validation.md` lists how
    /// often verdicts of each confidence are right.
    pub confidence: f64,
    /// One sentence with the decisive figure.
    pub says: String,
    /// Share of the excess that the cause explains; `None` if unknown.
    pub explains: Option<f64>,
    /// Evidence for the verdict.
    pub evidence: Vec<Evidence>,
    /// Counter that must have moved if the verdict is true.
    pub counter: Counter,
    /// Second most likely cause.
    pub runner_up: Option<RunnerUp>,
    /// Cheapest experiment that would overturn the verdict.
    pub overturn: NextExperiment,
    /// Recommended action.
    pub do_first: String,
    /// Action to avoid.
    pub do_not: String,
}

/// Evidence for a verdict.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Evidence {
    /// Stable name of the figure, such as `ttft_p95_ratio`.
    pub figure: String,
    /// Description as a phrase.
    pub says: String,
    /// Value with its interval; `None` if the evidence is not a number.
    pub value: Option<Estimate>,
    /// Limit that the value had to reach.
    #[serde(with = "unbounded::option")]
    #[schemars(with = "Option<unbounded::Number>")]
    pub limit: Option<f64>,
    /// Set if the evidence is inferred from the client's side and not reported by the server.
    pub inferred: bool,
}

/// The counter that must have moved if a verdict is true.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "is", rename_all = "snake_case")]
pub enum Counter {
    /// The counter moved.
    Moved {
        /// Name of the counter.
        name: String,
        /// Change of the counter.
        by: f64,
    },
    /// The run does not contain the counter.
    NotRead {
        /// Name of the counter to read.
        name: String,
    },
    /// The cause has no counter, because the evidence is the client's own.
    NoneExists,
}

/// The second most likely cause.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct RunnerUp {
    /// Name of the cause.
    pub cause: Cause,
    /// Posterior probability, 0 to 1.
    pub confidence: f64,
    /// Reason why another cause is named.
    pub why: String,
    /// Experiment that would distinguish the two causes.
    pub experiment: NextExperiment,
}

/// A question of the method and its answer.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Question {
    /// Text of the question.
    pub asks: String,
    /// Answer: `yes`, `no`, or inconclusive.
    pub answer: YesNo,
    /// The figure as a phrase, or the missing data.
    pub says: String,
    /// The figure with its interval.
    pub value: Option<Estimate>,
}

/// The answer to a question.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum YesNo {
    Yes,
    No,
    /// The data is insufficient.
    CantTell,
}

/// A layer that was cleared.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Cleared")]
pub struct ClearedSuspect {
    /// Layer that is not the cause.
    pub layer: Layer,
    /// One sentence with the figure.
    pub says: String,
    /// The figure with its interval.
    pub value: Option<Estimate>,
}

/// Known changes of the target between the two runs.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Changed")]
pub struct TargetChange {
    /// Facts that differ, as `name: before -> after`.
    pub differ: Vec<String>,
    /// Facts that are known for both runs and equal.
    pub same: Vec<String>,
    /// Facts that are unknown for one run; they never count as unchanged.
    pub unknown: Vec<String>,
}

/// A fact that was checked in the records.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct AskedQuestion {
    /// Name of the fact.
    pub fact: Observed,
    /// Whether the fact applies; `None` if the run lacks the data.
    pub is: Option<FactState>,
    /// The figure as a phrase.
    pub says: String,
    /// The figure with its interval.
    pub value: Option<Estimate>,
}

/// A fact or layer that could not be evaluated.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Missing")]
pub struct MissingEvidence {
    /// The fact or layer.
    pub what: String,
    /// Experiment that would provide the data.
    pub needs: NextExperiment,
}
