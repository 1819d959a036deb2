//! A budget and what it is judged to be: pass, fail, or not enough data to say.
//!
//! Two verdicts lost: where the bounds allow both, a pass or a fail would be a guess.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::figure::{Estimate, Reading};

/// A simple budget: ceilings on percentiles and on errors. An absent ceiling does not apply.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct BudgetSpec {
    /// What it is called in output.
    pub name: String,
    /// The percentile that the latency ceilings hold for.
    pub percentile: f64,
    /// Ceiling of `ttft`, s.
    pub ttft_s: Option<f64>,
    /// Ceiling of `tpot`, s.
    pub tpot_s: Option<f64>,
    /// Ceiling of `e2e`, s.
    pub e2e_s: Option<f64>,
    /// Largest share of requests that may fail or come back broken.
    pub error_rate: Option<f64>,
}

impl Default for BudgetSpec {
    /// An example for a person who waits and reads: a first token within half a second, twenty tokens a second, one
    /// failure in a hundred. A convention, not a truth.
    fn default() -> BudgetSpec {
        BudgetSpec {
            name: "example: interactive".into(),
            percentile: 0.99,
            ttft_s: Some(0.5),
            tpot_s: Some(0.05),
            e2e_s: None,
            error_rate: Some(0.01),
        }
    }
}

/// Pass, fail, or not enough data to say.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Held {
    /// The upper bound of the share over the ceiling is within what is allowed.
    Pass,
    /// The bounds allow both.
    Inconclusive,
    /// The lower bound is beyond it.
    Fail,
}

/// A budget, judged on one level.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct BudgetFinding {
    /// The budget's name.
    pub name: String,
    /// The worst of the rows.
    pub verdict: Held,
    /// One row per ceiling.
    pub rows: Vec<BudgetRow>,
}

/// One ceiling.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct BudgetRow {
    /// `ttft`, `tpot`, `e2e` or `error_rate`.
    pub metric: String,
    /// The percentile held to it; for `error_rate` 1 − the ceiling.
    pub percentile: f64,
    /// The ceiling: seconds, for `error_rate` a share.
    pub ceiling: f64,
    /// The measured percentile, or the error rate.
    pub measured: Reading,
    /// Share of the requests over the ceiling, with one-sided 95 % Beta bounds.
    pub share_over: Estimate,
    /// The share that may be over it.
    pub allowed: f64,
    /// The verdict of this row.
    pub verdict: Held,
    /// Inconclusive: about how many requests in all would settle it, if the share stays as it is.
    pub needed: Option<u64>,
}
