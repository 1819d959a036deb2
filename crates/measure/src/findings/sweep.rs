//! The curve of one kind of traffic and its capacity limits.
//!
//! A limit that was not found still reports on which side of the levels it is. An absent figure would lose that fact.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::budget::{BudgetSpec, Held};
use super::figure::{Estimate, Reading};
use super::level::{Lengths, LoadKeptUp};
use super::trust::Trust;

/// The latency curve of one kind of traffic.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Curve {
    /// Kind of traffic, such as `steady` or `burst`.
    pub traffic: String,
    /// Open-loop levels in ascending order of offered load.
    pub points: Vec<CurvePoint>,
    /// Closed-loop levels in ascending order of concurrency; they bracket the capacity.
    pub ladder: Vec<LadderRung>,
    /// Latency that the knee is based on: `ttft`, or `e2e` for responses that do not stream.
    pub metric: String,
    /// Percentile of the metric: 0.99, or a lower one if the run was too short for 0.99.
    pub percentile: f64,
    /// Multiple of the zero-contention value that marks the onset.
    pub knee_factor: f64,
    /// The percentile of the metric with zero contention, in seconds.
    pub zero_contention: Reading,
    /// Source of the zero-contention value, as a sentence.
    pub zero_contention_from: String,
    /// Monotone fit; empty if there is none.
    pub fit: Vec<FitPoint>,
}

/// One open-loop level on the curve.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct CurvePoint {
    /// Number of the level in the run, from 0.
    pub level: u32,
    /// Purpose of the level in the run.
    pub purpose: String,
    /// Offered load as drawn, in requests per second.
    pub offered_per_s: f64,
    /// Requests finished per second; `null` if not measured.
    pub achieved_per_s: Option<f64>,
    /// Requests per second that met the budget; `null` without a budget.
    pub good_per_s: Option<f64>,
    /// Mean number of requests in flight.
    pub in_flight: f64,
    /// 50th percentile of the curve's metric, in seconds.
    pub p50: Reading,
    /// 90th percentile of the curve's metric, in seconds.
    pub p90: Reading,
    /// 95th percentile of the curve's metric, in seconds.
    pub p95: Reading,
    /// 99th percentile of the curve's metric, in seconds.
    pub p99: Reading,
    /// Share of requests that failed, 0 to 1.
    pub error_rate: f64,
    /// Verdict on the growth of requests in flight.
    pub stability: LoadKeptUp,
    /// Verdict of the budget on this level; `null` without a budget.
    pub budget: Option<Held>,
    /// Trust in the level: valid, short, suspect or invalid.
    pub trust: Trust,
}

/// One closed-loop level on the curve.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct LadderRung {
    /// Number of the level in the run, from 0.
    pub level: u32,
    /// Number of requests kept in flight.
    pub concurrency: u32,
    /// Finished requests per second of the level.
    pub achieved_per_s: f64,
    /// Deviation of the concurrency from λ·W, as a share; a correct closed loop has almost none. `null` if not measured.
    pub little_disagreement: Option<f64>,
}

/// One point of the fitted curve.
#[derive(Copy, Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct FitPoint {
    /// Load of this point in requests per second.
    pub rate_per_s: f64,
    /// Fitted percentile of the latency in seconds.
    pub fitted_s: f64,
    /// Lower end of the 95 % bootstrap band, in seconds.
    pub lower_s: f64,
    /// Upper end of the 95 % bootstrap band, in seconds.
    pub upper_s: f64,
}

/// The three capacity limits of one kind of traffic (SPEC L10).
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct CapacityLines {
    /// Kind of traffic, such as `steady` or `burst`.
    pub traffic: String,
    /// Load at which the tail of `ttft` reaches the knee factor times its zero-contention value.
    pub onset: CapacityLine,
    /// Percentile that the onset is based on: 0.99, or a lower one if the run was too short for 0.99.
    /// With a lower percentile the onset by p99 is usually lower. Absent in findings of older versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub onset_percentile: Option<f64>,
    /// Stability limit: the bracket [last stable, first unstable] with the estimate between.
    pub stability: CapacityLine,
    /// Largest load that meets the budget; `null` if no budget is set.
    pub budget: Option<CapacityLine>,
    /// Budget of that limit; `null` if no budget is set.
    pub budget_spec: Option<BudgetSpec>,
    /// Lengths that the limits apply to.
    pub mix: Lengths,
    /// Think time that the number of users assumes, in seconds.
    pub think_time_s: f64,
    /// Result of a longer level at a limit; `null` if none was requested.
    pub hold: Option<SustainedLine>,
}

/// One capacity limit, or its side of the measured levels.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "is", rename_all = "snake_case")]
pub enum CapacityLine {
    /// The limit was found, at this load.
    Found {
        /// Requests per second with an interval; for the stability limit the bracket.
        rate: Estimate,
        /// This load in other units, such as tokens per second.
        load: LoadWords,
        /// Method, as a sentence; it contains the percentile if that is not p99.
        how: String,
    },
    /// The limit was not reached and is above this load.
    Above {
        /// Highest load that is proven to be below the limit, in requests per second.
        rate_per_s: f64,
        /// This load in other units, such as tokens per second.
        load: LoadWords,
        /// Reason why the sweep stopped there.
        why: String,
    },
    /// The limit was already exceeded at the lowest load measured.
    Below {
        /// Lowest measured load in requests per second.
        rate_per_s: f64,
        /// Reason why the sweep did not go lower.
        why: String,
    },
    /// The data are inconclusive about the limit.
    CannotTell {
        /// Reason without a limit, with the next step.
        why: String,
    },
}

impl CapacityLine {
    /// Returns the load of the limit in requests per second, or `None` if the limit was not found.
    pub fn rate(&self) -> Option<&Estimate> {
        match self {
            CapacityLine::Found { rate, .. } => Some(rate),
            _ => None,
        }
    }
}

/// One load, expressed in several units.
#[derive(Copy, Clone, PartialEq, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct LoadWords {
    /// Prompt tokens per second; `null` if unknown.
    pub input_tokens_per_s: Option<f64>,
    /// Generated tokens per second; `null` if unknown.
    pub output_tokens_per_s: Option<f64>,
    /// Items (rows of the batches) per second; `null` if sizes are tokens.
    #[serde(default)]
    pub items_per_s: Option<f64>,
    /// Requests in flight at this load, interpolated between levels; `null` if unknown.
    pub in_flight: Option<f64>,
    /// Users that send, wait, read for the think time and send again: rate × (e2e + think time). `null` if unknown.
    pub users: Option<f64>,
}

/// The result of a level that ran at a capacity limit for a given time.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Hold")]
pub struct SustainedLine {
    /// Kind of the limit: `onset`, `budget` or `stability`.
    pub line: String,
    /// Number of the level in the run, from 0.
    pub level: u32,
    /// Load of this point in requests per second.
    pub rate_per_s: f64,
    /// Time at the limit in seconds.
    pub held_s: f64,
    /// Verdict on the load over that time.
    pub verdict: Held,
    /// Reason of the verdict, as a sentence.
    pub why: String,
}
