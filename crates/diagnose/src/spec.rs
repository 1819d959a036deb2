//! The thresholds of a diagnosis, with their reasons. `docs/diagnosis.md` contains the list for users.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Thresholds of a diagnosis. The defaults were set on one half of a set of simulated systems and evaluated on the
/// other half.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct DiagnoseSpec {
    /// Level of the candidate to diagnose [default: the level that matches the baseline's load best, else the last
    /// level that is not a probe].
    pub level: Option<u32>,
    /// Confidence level of the two-sided intervals.
    pub confidence: f64,
    /// Probability of calling a clean run faulty, over all metrics together.
    pub alpha: f64,
    /// Ratio of medians from which a change is significant.
    pub material_p50: f64,
    /// Ratio of p95 from which a change is significant.
    pub material_p95: f64,
    /// Increase of the share of failed requests, over the baseline's share, from which it is significant.
    pub material_errors: f64,
    /// Confidence from which a cause is named.
    pub confident: f64,
    /// Half-width of the equivalence margin, as a share.
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
