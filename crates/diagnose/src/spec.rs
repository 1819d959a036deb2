//! What a diagnosis is told: its thresholds, each argued. `docs/diagnosis.md` holds the same list for readers.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Thresholds of the rules. The defaults were set on one half of a set of simulated systems and judged on the other.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct DiagnoseSpec {
    /// Level of the candidate to judge; `None` = the one that matches the baseline's load best, else the last that was not a probe.
    pub level: Option<u32>,
    /// Level of the two-sided intervals shown.
    pub confidence: f64,
    /// Chance of calling a clean run faulty, over all metrics together.
    pub alpha: f64,
    /// Ratio of medians from which a change is material.
    pub material_p50: f64,
    /// Ratio of p95 from which it is.
    pub material_p95: f64,
    /// Share of requests that fail, over the baseline's share, from which it is.
    pub material_errors: f64,
    /// Confidence from which a rule may be named.
    pub confident: f64,
    /// Half width of "the same", as a share.
    pub same: f64,
}

impl Default for DiagnoseSpec {
    fn default() -> DiagnoseSpec {
        DiagnoseSpec {
            level: None,
            confidence: 0.95,
            alpha: 0.01,
            material_p50: 1.1,
            material_p95: 1.15,
            material_errors: 0.01,
            confident: 0.5,
            same: 0.05,
        }
    }
}
