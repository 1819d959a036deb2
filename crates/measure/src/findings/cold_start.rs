//! The words of a cold start: what the first request after idling paid, and what it waited for.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Bounded, Reading};

/// What it was.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ColdVerdict {
    /// A replica had gone and had to start.
    Started,
    /// Slower by more than chance, and not by what a start takes: a clock, a cache, a connection.
    Idle,
    /// No slower than steady requests by more than chance.
    None,
    /// Nothing can be said.
    CannotTell,
}

/// One idle stretch and what followed it.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct ColdTrial {
    /// The level.
    pub level: u32,
    /// Idle before it, s.
    pub idle_s: f64,
    /// From when the first request was due to its first token (its end, where answers come whole), over all its attempts, s; `None` = it
    /// was never answered.
    pub first_s: Option<f64>,
    /// That less the steady median, s.
    pub penalty_s: Option<f64>,
    /// Until its connection stood, s; `None` = a kept connection, or unknown (after a try that failed).
    pub connect_s: Option<f64>,
    /// Attempts that were turned away (429, 503) before it was taken.
    pub turned_away: u64,
    /// Attempts that found no connection or lost it.
    pub refused: u64,
    /// From its first attempt to the sending of the one that was answered, s.
    pub turned_away_s: f64,
    /// From sending the attempt that was answered to its first token, s.
    pub waited_s: Option<f64>,
    /// Requests after the first until one was as fast as steady ones are (their 95th percentile); `None` = none was.
    pub warm_after: Option<u64>,
    /// The same as time since the first was due, s.
    pub warm_after_s: Option<f64>,
    /// What the first one waited for, as far as the client can see it; the parts add up to `first_s`.
    #[serde(default)]
    pub parts: Vec<ColdPart>,
}

/// The cold-start figure of a run.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct ColdStartFinding {
    /// What it was.
    pub verdict: ColdVerdict,
    /// Why, as a sentence.
    pub why: String,
    /// Steady requests, and their median, s.
    pub warm: Reading,
    /// Their 95th percentile as it was observed, s.
    pub warm_p95_s: Option<f64>,
    /// What the first request pays over the steady median: mean over the stretches, from the least to the most, s.
    pub penalty: Option<Bounded>,
    /// Chance of a first request this slow if it were like any other.
    pub p: Option<f64>,
    /// The stretches.
    pub trials: Vec<ColdTrial>,
    /// Was it met in passing, by a run that did not look for it? Its requests are then in the figures of their levels.
    #[serde(default)]
    pub in_passing: bool,
}

/// What it waited for.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ColdPhase {
    /// Connections were refused, lost or not made: nothing listened.
    NoListener,
    /// Something listened and turned the request away: 429, 503, another error, or a time-out.
    NotReady,
    /// The request was taken, and took longer than a steady one. Of a gateway that holds requests while a replica starts it is the whole
    /// start; else what a first request pays: a compilation, cold caches.
    Slower,
    /// What a steady request takes.
    Steady,
}

/// One part of the first request's time.
#[derive(Copy, Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct ColdPart {
    /// What it waited for.
    pub phase: ColdPhase,
    /// How long, s, with the least and the most that it can have been.
    pub seconds: Bounded,
    /// Attempts that met it.
    pub attempts: u64,
}
