//! The state of a canary.

use serde::Serialize;

/// The recommended action for a canary.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum CanaryVerdict {
    /// The canary is certainly no worse, and was watched for long enough.
    Promote,
    /// The canary is certainly worse, or does not respond.
    RollBack,
    /// The evidence is inconclusive.
    KeepWatching,
}

impl CanaryVerdict {
    pub fn words(self) -> &'static str {
        match self {
            CanaryVerdict::Promote => "promote",
            CanaryVerdict::RollBack => "roll back",
            CanaryVerdict::KeepWatching => "keep watching",
        }
    }
}

/// The state of a canary at an instant.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct CanaryFinding {
    pub at_s: f64,
    pub verdict: CanaryVerdict,
    pub why: String,
    /// Number of replicas counted in the last minute: base, canary.
    pub replicas: [usize; 2],
    /// Number of counted minutes: with one version everywhere, and with the new version on the canary.
    pub minutes: [u64; 2],
    /// Evidence that the canary is worse, as odds N : 1 over all rows. 1 / (false-alarm probability) decides.
    pub worse: f64,
    /// Odds at which the evidence decides.
    pub decides: f64,
    /// Ratio of requests per replica and second, canary over base; `None` if unknown.
    pub load: Option<f64>,
    /// Ratio of prompt tokens per request, canary over base; `None` if unknown.
    pub prompts: Option<f64>,
    /// One row per latency and edge, and one for failures.
    pub rows: Vec<CanaryRow>,
}

/// The share of requests over an edge on both sides.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct CanaryRow {
    /// Name of the measure: `ttft over 0.25 s`, or `failed`.
    pub what: String,
    /// Counted requests (for itl: token gaps) with the new version: base, canary.
    pub n: [u64; 2],
    /// Shares over the edge: base, canary; `None` if unknown.
    pub over: [Option<f64>; 2],
    /// Evidence that the canary's share is larger, as odds.
    pub worse: f64,
    /// Maximum accepted increase of the share.
    pub margin: f64,
    /// Set if the increase is proven to be within the margin.
    pub is_within: bool,
}
