//! The curve of one kind of traffic and the lines on it.
//!
//! A line that was not found still says on which side of the levels it lies; an absent figure would waste that.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::budget::{BudgetSpec, Held};
use super::figure::{Estimate, Reading};
use super::level::{KeptUp, Lengths};
use super::trust::Trust;

/// The curve of one kind of traffic.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Curve {
    /// Kind of traffic.
    pub traffic: String,
    /// Open-loop levels by offered load, lowest first.
    pub points: Vec<CurvePoint>,
    /// The closed-loop ladder by concurrency: how the capacity was bracketed.
    pub ladder: Vec<LadderRung>,
    /// What the knee is read from: `ttft`, or `e2e` for answers that do not stream.
    pub metric: String,
    /// The percentile of it: 0.99, or a lower one where the time could not support 0.99.
    pub percentile: f64,
    /// Times the zero-contention value that marks the onset.
    pub knee_factor: f64,
    /// That percentile with zero contention.
    pub zero_contention: Reading,
    /// Where the zero-contention value comes from, as a sentence.
    pub zero_contention_from: String,
    /// The monotone fit; empty where there is none.
    pub fit: Vec<FitPoint>,
}

/// One open-loop level on the curve.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct CurvePoint {
    /// The level.
    pub level: u32,
    /// What it was run for.
    pub purpose: String,
    /// Offered load as it fell, requests/s.
    pub offered_per_s: f64,
    /// Finished per second.
    pub achieved_per_s: Option<f64>,
    /// Goodput, where there is a budget.
    pub good_per_s: Option<f64>,
    /// Mean in flight.
    pub in_flight: f64,
    /// p50 of the curve's metric.
    pub p50: Reading,
    /// p90.
    pub p90: Reading,
    /// p95.
    pub p95: Reading,
    /// p99.
    pub p99: Reading,
    /// Share of requests that failed.
    pub error_rate: f64,
    /// Stable, undecided, unstable.
    pub stability: KeptUp,
    /// The budget on this level.
    pub budget: Option<Held>,
    /// Trust in the level.
    pub trust: Trust,
}

/// One closed-loop level.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct LadderRung {
    /// The level.
    pub level: u32,
    /// Requests kept in flight.
    pub concurrency: u32,
    /// Finished per second.
    pub achieved_per_s: f64,
    /// concurrency against λ·W, as a share: a closed loop must meet it.
    pub little_disagreement: Option<f64>,
}

/// One point of the fitted line.
#[derive(Copy, Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct FitPoint {
    /// Load, requests/s.
    pub rate_per_s: f64,
    /// Fitted percentile, s.
    pub fitted_s: f64,
    /// 95 % band of the bootstrap.
    pub lower_s: f64,
    /// 95 % band of the bootstrap.
    pub upper_s: f64,
}

/// The three lines of one kind of traffic (SPEC L10).
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct CapacityLines {
    /// Kind of traffic.
    pub traffic: String,
    /// Load at which the tail of `ttft` reaches the factor times its zero-contention value.
    pub onset: CapacityLine,
    /// The percentile that the onset was read from: 0.99 by definition, a lower one where the time did not support it, and then the
    /// onset by p99 as a rule lies lower. `None` = findings that were written before it was kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub onset_percentile: Option<f64>,
    /// Bracket [last stable, first unstable], with the estimate between.
    pub stability: CapacityLine,
    /// Largest load at which the budget holds; `None` where no budget is set.
    pub budget: Option<CapacityLine>,
    /// The budget that line is for.
    pub budget_spec: Option<BudgetSpec>,
    /// The lengths that the lines hold for.
    pub mix: Lengths,
    /// Think time used for the users figure, s.
    pub think_time_s: f64,
    /// The held line, where a hold was asked for.
    pub hold: Option<Hold>,
}

/// One line, or what can be said of it.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "is", rename_all = "snake_case")]
pub enum CapacityLine {
    /// Found.
    Found {
        /// Requests per second, with its interval (for the stability limit: the bracket).
        rate: Estimate,
        /// The same load in other words.
        load: LoadWords,
        /// How it was read, as a sentence; names the percentile if it is not p99.
        how: String,
    },
    /// Not reached: it lies above this load.
    Above {
        /// The highest load that is known to lie below it, requests/s.
        rate_per_s: f64,
        /// That load in other words.
        load: LoadWords,
        /// Why it could not be pushed further.
        why: String,
    },
    /// Already crossed at the lowest load measured.
    Below {
        /// That load, requests/s.
        rate_per_s: f64,
        /// Why it could not be followed lower.
        why: String,
    },
    /// The data do not say.
    CannotTell {
        /// Why, and what would help.
        why: String,
    },
}

impl CapacityLine {
    /// The load at which the line is found, requests/s.
    pub fn rate(&self) -> Option<&Estimate> {
        match self {
            CapacityLine::Found { rate, .. } => Some(rate),
            _ => None,
        }
    }
}

/// One load in several words.
#[derive(Copy, Clone, PartialEq, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct LoadWords {
    /// Prompt tokens per second.
    pub input_tokens_per_s: Option<f64>,
    /// Generated tokens per second.
    pub output_tokens_per_s: Option<f64>,
    /// Items (rows of the batches) per second.
    #[serde(default)]
    pub items_per_s: Option<f64>,
    /// Requests in flight there (interpolated between levels).
    pub in_flight: Option<f64>,
    /// People who send, wait, read for the think time and send again: rate × (e2e + think time).
    pub users: Option<f64>,
}

/// A line that was held for a named time.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Hold {
    /// Which line: `onset`, `budget` or `stability`.
    pub line: String,
    /// The level that held it.
    pub level: u32,
    /// At which load, requests/s.
    pub rate_per_s: f64,
    /// For how long, s.
    pub held_s: f64,
    /// Did it hold?
    pub verdict: Held,
    /// One sentence.
    pub why: String,
}
