//! What a diagnosis says, as plain data.
//!
//! A verdict without its figures is an opinion: layer and cause come with the evidence and its intervals, the counter that had
//! to move if it were true, what else fits, and the experiment that would overturn it. What was cleared is kept as well, and
//! so is what could not be asked.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::cause::{Cause, Layer};
use super::experiment::NextExperiment;
use super::fact::{Is, Observed};
use plimsoll_measure::excerpt::Excerpt;
use plimsoll_measure::findings::{Estimate, Validity, unbounded};

/// Version of this layout.
pub(crate) const DIAGNOSIS_SCHEMA: u32 = 1;

/// How a diagnosis ends.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// Nothing material is wrong.
    NothingMaterial,
    /// A cause was found.
    Found,
    /// Something is wrong and the run can't say what, or the run is too thin to say whether.
    Unknown,
    /// The measurement itself is at fault.
    Invalid,
}

/// A diagnosis.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Diagnosis {
    /// Version of this layout.
    pub schema: u32,
    /// How it ends.
    pub answer: Answer,
    /// One sentence.
    pub headline: String,
    /// What was looked at and what it was held against.
    pub subject: Subject,
    /// How far the measurement itself may be trusted: the run's own verdict.
    #[serde(default)]
    pub validity: Option<Validity>,
    /// What is wrong, most weighty first; the second was judged after the first one's effect had been removed. Where the answer
    /// is "nothing material" or "unknown" the only verdict says so.
    pub verdicts: Vec<Verdict>,
    /// The five questions, answered.
    pub questions: Vec<Question>,
    /// What was found to be fine, with its figure.
    pub cleared: Vec<Cleared>,
    /// Every question that was asked of the records, whatever came of it.
    #[serde(default)]
    pub observed: Vec<AskedQuestion>,
    /// Did latency move with the artefact unchanged?
    pub changed: Changed,
    /// What could not be judged, and what it would take.
    pub missing: Vec<Missing>,
}

/// What was looked at.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Subject {
    /// The level judged.
    pub level: Option<u32>,
    /// Levels that could be judged, where this one was chosen among several; 0 = it was asked for, or there is no other.
    #[serde(default)]
    pub chosen_of: u64,
    /// Its load in words.
    pub load: String,
    /// Requests in its window.
    pub requests: u64,
    /// The part of the level that was looked at, where it has more than can be held; `None` = all of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub excerpt: Option<Excerpt>,
    /// What it was held against: `baseline`, `probe`, `quiet`, `nothing`.
    pub reference: Reference,
    /// Level of the baseline.
    pub baseline_level: Option<u32>,
    /// Requests that had the target to themselves.
    pub alone: u64,
}

/// What the level is held against.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Reference {
    /// Another run.
    Baseline,
    /// The run's own single requests.
    Probe,
    /// The run's own quiet parts.
    Quiet,
}

/// One thing that is wrong.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Verdict {
    /// Where.
    pub layer: Layer,
    /// What.
    pub cause: Cause,
    /// The fact that decided it.
    pub rule: String,
    /// How likely it is, 0 to 1: the posterior; 0 where no cause is named. How often such verdicts are right is in `docs/diagnosis-validation.md`.
    pub confidence: f64,
    /// One sentence with the figure that decides.
    pub says: String,
    /// Share of the excess that it explains, where that is known.
    pub explains: Option<f64>,
    /// What speaks for it.
    pub evidence: Vec<Evidence>,
    /// The counter that must have moved if it is true.
    pub counter: Counter,
    /// What else fits.
    pub runner_up: Option<RunnerUp>,
    /// The cheapest experiment that would overturn it.
    pub overturn: NextExperiment,
    /// What to do first.
    pub do_first: String,
    /// What not to do.
    pub do_not: String,
}

/// What speaks for a verdict.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Evidence {
    /// A stable word for the figure, such as `ttft_p95_ratio`.
    pub figure: String,
    /// One sentence part.
    pub says: String,
    /// The figure with its interval; `None` = it is no figure.
    pub value: Option<Estimate>,
    /// What it had to reach.
    #[serde(with = "unbounded::option")]
    #[schemars(with = "Option<unbounded::Number>")]
    pub limit: Option<f64>,
    /// Inferred from the client's side rather than said by the server.
    pub inferred: bool,
}

/// The counter that must have moved if a verdict is true.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "is", rename_all = "snake_case")]
pub enum Counter {
    /// It did.
    Moved {
        /// Its name.
        name: String,
        /// By how much.
        by: f64,
    },
    /// The run does not hold it.
    NotRead {
        /// What to read.
        name: String,
    },
    /// There is none for this cause: the evidence is the client's own.
    NoneExists,
}

/// What else fits.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct RunnerUp {
    /// What.
    pub cause: Cause,
    /// 0 to 1.
    pub confidence: f64,
    /// Why it did not win.
    pub why: String,
    /// What would tell the two apart.
    pub experiment: NextExperiment,
}

/// A question of the method, answered.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Question {
    /// The question.
    pub asks: String,
    /// `yes`, `no`, or that it can't be told.
    pub answer: YesNo,
    /// The figure in a sentence part, or what is missing.
    pub says: String,
    /// The figure.
    pub value: Option<Estimate>,
}

/// The answer to a question.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum YesNo {
    /// It is so.
    Yes,
    /// It is not.
    No,
    /// Something is missing.
    CantTell,
}

/// What was found to be fine.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Cleared {
    /// The layer that is not the cause.
    pub layer: Layer,
    /// One sentence with its figure.
    pub says: String,
    /// The figure.
    pub value: Option<Estimate>,
}

/// What is known to have changed between the two runs.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct Changed {
    /// Facts that differ, as `name: before -> after`.
    pub differ: Vec<String>,
    /// Facts known on both sides and equal.
    pub same: Vec<String>,
    /// Facts that a side does not know: never counted as unchanged.
    pub unknown: Vec<String>,
}

/// A question that was asked of the records.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct AskedQuestion {
    /// The fact, as a stable word.
    pub fact: Observed,
    /// Whether it is so; `None` = the run does not hold what it takes.
    pub is: Option<Is>,
    /// The figure in a sentence part.
    pub says: String,
    /// The figure.
    pub value: Option<Estimate>,
}

/// What could not be judged.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Missing {
    /// What could not be judged.
    pub what: String,
    /// What it would take.
    pub needs: NextExperiment,
}
