//! Trust in a measurement, with the reasons for and against it.
//!
//! Passed checks are stored too: otherwise a passed check and a check that never ran would be indistinguishable.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The trust in a measurement, from valid to invalid.
#[derive(
    Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum Trust {
    /// All checks of the measurement passed.
    #[default]
    Valid,
    /// All checks passed except the length: some percentiles have too few requests for a verdict.
    Short,
    /// A check found a problem; the reasons explain it.
    Suspect,
    /// The figures do not describe the target.
    Invalid,
}

/// The verdict on a level or a run, with its checks.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct Validity {
    /// The worst verdict of the reasons; valid without reasons.
    pub verdict: Trust,
    /// Problems that the checks found, worst first.
    pub reasons: Vec<Reason>,
    /// Checks that found no problem.
    pub passed: Vec<PassedCheck>,
}

/// A problem that a check found.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Reason {
    /// Name of the check: a stable word such as `schedule_lag`.
    pub check: String,
    /// Severity of the problem: short, suspect or invalid.
    pub verdict: Trust,
    /// Level with the problem; `null` for the whole run.
    pub level: Option<u32>,
    /// Measured value, with its unit and limit.
    pub figure: String,
    /// Consequence of the problem for the results.
    pub means: String,
    /// Recommended action that removes the problem.
    pub advice: String,
}

/// A check that found no problem.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Passed")]
pub struct PassedCheck {
    /// Name of the check that passed.
    pub check: String,
    /// Measured value, with its unit and limit.
    pub figure: String,
    /// Remark on the results; absent if there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}
