//! How far a measurement may be trusted, with the reasons for and against.
//!
//! What passed is kept too: a verdict without the checks behind it could not be told from one that was never made.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How far a measurement may be trusted.
#[derive(
    Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum Trust {
    /// No check found anything.
    #[default]
    Valid,
    /// No check found anything but its length: some percentiles rest on too few requests for a verdict.
    Short,
    /// Read it with the reasons beside it.
    Suspect,
    /// The figures are not the target's.
    Invalid,
}

/// The verdict on a level or a run, with what it rests on.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct Validity {
    /// The worst of the reasons; valid without any.
    pub verdict: Trust,
    /// What speaks against it, worst first.
    pub reasons: Vec<Reason>,
    /// Checks that were made and found nothing.
    pub passed: Vec<Passed>,
}

/// One thing that speaks against a measurement.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Reason {
    /// Which check: a stable word such as `schedule_lag`.
    pub check: String,
    /// How bad.
    pub verdict: Trust,
    /// The level it was found on; `None` = the run.
    pub level: Option<u32>,
    /// The figure, with its unit and its limit.
    pub figure: String,
    /// What it means for the figures.
    pub means: String,
    /// What to do about it.
    pub advice: String,
}

/// A check that found nothing.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Passed {
    /// Which check.
    pub check: String,
    /// The figure it looked at.
    pub figure: String,
    /// What is to be known beside the figures all the same, where there is anything.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}
