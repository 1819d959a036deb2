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
    /// Healthy: no metric has a significant change.
    NothingMaterial,
    /// At least one cause was found.
    Found,
    /// A problem without a known cause, or too little data to decide whether there is a problem.
    Unknown,
    /// The measurement itself is invalid, so it has no diagnosis.
    Invalid,
}

/// The result of a diagnosis, with its evidence.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Diagnosis {
    /// Version of the JSON layout of this object.
    pub schema: u32,
    /// Overall answer: `nothing_material`, `found`, `unknown` or `invalid`.
    pub answer: DiagnosisOutcome,
    /// Summary of the diagnosis in one sentence.
    pub headline: String,
    /// The data that was analysed and its reference.
    pub subject: Subject,
    /// The run's own verdict on its measurement.
    #[serde(default)]
    pub validity: Option<Validity>,
    /// Problems in order of weight; each is evaluated after the effect of the earlier ones is removed. For the
    /// answers `nothing_material` and `unknown` the only verdict contains the reason.
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

/// The data that the diagnosis analysed.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Subject {
    /// Number of the analysed level; null without levels.
    pub level: Option<u32>,
    /// Number of levels to choose from; 0 if the level was requested or is the only one.
    #[serde(default)]
    pub chosen_of: u64,
    /// Description of the load as a phrase.
    pub load: String,
    /// Number of requests in the window.
    pub requests: u64,
    /// Part of the level that was analysed, if the level does not fit in memory; `None` for all of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub excerpt: Option<Excerpt>,
    /// Reference of the comparison: `baseline`, `probe`, `quiet` or `nothing`.
    pub reference: Reference,
    /// Level number of the baseline; null without a baseline.
    pub baseline_level: Option<u32>,
    /// Number of isolated requests in the data.
    pub alone: u64,
    /// Shares of the GPU's peaks in prefill and decode, as sentences; empty without a known model and GPU.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub roofline: Vec<String>,
}

impl Subject {
    /// Returns requests under a load without a level.
    pub(crate) fn of(load: String, requests: u64, reference: Reference) -> Subject {
        Subject {
            level: None,
            chosen_of: 0,
            load,
            requests,
            excerpt: None,
            reference,
            baseline_level: None,
            alone: 0,
            roofline: Vec::new(),
        }
    }
}

/// The reference that a level is compared with.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Reference {
    /// Another run, which is the baseline.
    Baseline,
    /// The isolated requests of the run.
    Probe,
    /// The quiet parts of the run.
    Quiet,
}

/// One problem that the diagnosis found.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Verdict {
    /// Layer that the problem is in.
    pub layer: Layer,
    /// Cause of the problem, by its name.
    pub cause: Cause,
    /// Name of the fact that decides the verdict.
    pub rule: String,
    /// Posterior probability of the cause, 0 to 1; 0 if no cause is named. `docs/diagnosis-validation.md` lists how
    /// often verdicts of each confidence are right.
    pub confidence: f64,
    /// One sentence with the decisive figure.
    pub says: String,
    /// Evidence for the verdict, one entry per fact.
    pub evidence: Vec<Evidence>,
    /// Counter that must have moved if the verdict is true.
    pub counter: Counter,
    /// Second most likely cause; null without another.
    pub runner_up: Option<RunnerUp>,
    /// Cheapest experiment that would overturn the verdict.
    pub overturn: NextExperiment,
    /// Recommended action as the next step.
    pub do_first: String,
    /// Action to avoid, with its reason.
    pub do_not: String,
}

/// Evidence for a verdict: one fact.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Evidence {
    /// Stable name of the figure, such as `ttft_p95_ratio`.
    pub figure: String,
    /// Description of the evidence as a phrase.
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
    /// The server's counter moved during the interval.
    Moved {
        /// Name of the counter of the server.
        name: String,
        /// Change of the counter during the interval.
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

/// The second most likely cause of a problem.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct RunnerUp {
    /// Name of the second most likely cause.
    pub cause: Cause,
    /// Posterior probability of the cause, 0 to 1.
    pub confidence: f64,
    /// Reason why another cause is named.
    pub why: String,
    /// Experiment that would distinguish the two causes.
    pub experiment: NextExperiment,
}

/// A question of the method and its answer.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Question {
    /// Text of the question, as reports print it.
    pub asks: String,
    /// Answer to the question: `yes`, `no`, or inconclusive.
    pub answer: YesNo,
    /// The figure as a phrase, or the missing data.
    pub says: String,
    /// The figure with its interval; null without a figure.
    pub value: Option<Estimate>,
}

/// The answer to a yes-or-no question.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum YesNo {
    Yes,
    No,
    /// The data is insufficient for an answer.
    CantTell,
}

impl YesNo {
    /// Returns the answer of a fact.
    pub(crate) fn of(state: FactState) -> YesNo {
        match state {
            FactState::Yes => YesNo::Yes,
            FactState::No => YesNo::No,
            FactState::Unclear => YesNo::CantTell,
        }
    }
}

/// A layer that is not the cause.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Cleared")]
pub struct ClearedSuspect {
    /// Layer that is not the cause.
    pub layer: Layer,
    /// The reason in one sentence with the figure.
    pub says: String,
    /// The figure with its interval; null without a figure.
    pub value: Option<Estimate>,
}

/// Known changes of the target between the two runs.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Changed")]
pub struct TargetChange {
    /// Facts that differ, each as `name: before -> after`.
    pub differ: Vec<String>,
    /// Facts that are known for both runs and equal.
    pub same: Vec<String>,
    /// Facts that are unknown for one run; they never count as unchanged.
    pub unknown: Vec<String>,
}

/// A fact that was checked in the records.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct AskedQuestion {
    /// Name of the fact that was checked.
    pub fact: Observed,
    /// Whether the fact applies; `None` if the run lacks the data.
    pub is: Option<FactState>,
    /// The figure as a phrase for reports.
    pub says: String,
    /// The figure with its interval; null without a figure.
    pub value: Option<Estimate>,
}

/// A fact or layer that could not be evaluated.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Missing")]
pub struct MissingEvidence {
    /// The fact or layer without data.
    pub what: String,
    /// Experiment that would provide the data.
    pub needs: NextExperiment,
}
