//! What is known of a canary.

use serde::Serialize;

/// What to do with it.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum CanaryVerdict {
    /// It is no worse, for certain, and was watched for long enough.
    Promote,
    /// It is worse, for certain, or does not answer.
    RollBack,
    /// Neither is known yet.
    KeepWatching,
}

impl CanaryVerdict {
    /// On the screen.
    pub fn words(self) -> &'static str {
        match self {
            CanaryVerdict::Promote => "promote",
            CanaryVerdict::RollBack => "roll back",
            CanaryVerdict::KeepWatching => "keep watching",
        }
    }
}

/// What is known at an instant.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct CanaryFinding {
    /// When, s since it began.
    pub at_s: f64,
    pub verdict: CanaryVerdict,
    /// Why, in a sentence.
    pub why: String,
    /// Replicas that were counted in the last minute: base, canary.
    pub replicas: [usize; 2],
    /// Minutes with the same version everywhere, and with the new one on the canary, that were counted.
    pub minutes: [u64; 2],
    /// Evidence that it is worse, as odds: this many to one, over all rows together. 1 / (accepted chance of a false alarm) decides.
    pub worse: f64,
    /// What decides, as odds.
    pub decides: f64,
    /// Requests per replica and second, canary over base; `None` = not known.
    pub load: Option<f64>,
    /// Prompt tokens per request, canary over base; `None` = not known.
    pub prompts: Option<f64>,
    /// One per latency and edge, and failures.
    pub rows: Vec<CanaryRow>,
}

/// The share of requests over an edge, on both sides.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct CanaryRow {
    /// `ttft over 0.25 s`, or `failed`.
    pub what: String,
    /// Requests (of itl: gaps between tokens) that were counted with the new version out: base, canary.
    pub n: [u64; 2],
    /// Shares over the edge: base, canary.
    pub over: [Option<f64>; 2],
    /// Evidence that the canary's is larger, as odds.
    pub worse: f64,
    /// How much larger it may be, a share.
    pub margin: f64,
    /// Is it proven to be within that?
    pub is_within: bool,
}
