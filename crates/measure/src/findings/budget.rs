//! The budget types and their verdict: pass, fail or inconclusive.
//!
//! A verdict with two values was rejected: where the bounds allow both, a pass or a fail would be a guess.
//! One field per metric was rejected too, because a recommendation service has limits for the median, the p95 and the p99
//! of one latency.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::figure::{Estimate, Reading};

plimsoll_model::named! {
    /// A latency metric of a budget.
    #[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize, JsonSchema)]
    #[serde(rename_all = "snake_case")]
    pub enum Metric {
        /// Time to first generated token.
        Ttft => "ttft",
        /// Time per output token after the first.
        Tpot => "tpot",
        /// Time to the end of the response.
        E2e => "e2e",
    }
}

/// The upper limit of a latency percentile.
#[derive(Copy, Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Ceiling {
    /// Latency metric, such as `ttft`, `tpot` or `e2e`.
    pub metric: Metric,
    /// Percentile as a fraction, 0 to 1.
    pub percentile: f64,
    /// Upper limit of the percentile in seconds.
    pub limit_s: f64,
}

impl Ceiling {
    /// Returns a ceiling for a percentile of a metric.
    pub const fn new(metric: Metric, percentile: f64, limit_s: f64) -> Ceiling {
        Ceiling { metric, percentile, limit_s }
    }
}

/// A simple budget: ceilings on latency percentiles and on the error rate. An absent ceiling does not apply.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct BudgetSpec {
    /// Name of the budget in output.
    pub name: String,
    /// Latency ceilings; a metric may have several, at different percentiles.
    pub latency: Vec<Ceiling>,
    /// Maximum share of requests that may fail or be broken, 0 to 1; `null` sets no limit.
    pub error_rate: Option<f64>,
}

impl Default for BudgetSpec {
    /// An example for an interactive user: a first token within 0.5 s, twenty tokens per second, one failure in a hundred.
    /// The values are a convention and not a measurement.
    fn default() -> BudgetSpec {
        BudgetSpec {
            name: "example: interactive".into(),
            latency: vec![Ceiling::new(Metric::Ttft, 0.99, 0.5), Ceiling::new(Metric::Tpot, 0.99, 0.05)],
            error_rate: Some(0.01),
        }
    }
}

impl BudgetSpec {
    /// Returns an example for a page that needs the complete response, such as a recommendation.
    ///
    /// 50 % finish within 60 ms, 95 % within 150 ms, 99 % within 350 ms, and one request in a hundred fails.
    /// The values are a convention and not a measurement.
    pub fn recommendation() -> BudgetSpec {
        BudgetSpec {
            name: "example: recommendation".into(),
            latency: vec![
                Ceiling::new(Metric::E2e, 0.5, 0.06),
                Ceiling::new(Metric::E2e, 0.95, 0.15),
                Ceiling::new(Metric::E2e, 0.99, 0.35),
            ],
            error_rate: Some(0.01),
        }
    }

    /// Returns the ceilings that a good request must meet: for each metric the ceiling of its highest percentile.
    ///
    /// A share of the requests may exceed the ceiling of a lower percentile, so a request above that ceiling breaks nothing.
    pub fn per_request(&self) -> impl Iterator<Item = &Ceiling> {
        self.latency.iter().filter(|ceiling| {
            let higher =
                |other: &&Ceiling| other.metric == ceiling.metric && other.percentile > ceiling.percentile;
            !self.latency.iter().any(|other| higher(&other))
        })
    }
}

/// The verdict of a budget: pass, fail or inconclusive.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Held {
    /// The upper bound of the share over the ceiling is within the allowed share.
    Pass,
    /// The bounds allow both a pass and a fail.
    Inconclusive,
    /// The lower bound of the share over the ceiling is above the allowed share.
    Fail,
}

plimsoll_model::named! {
    /// The rule that a verdict is based on.
    #[derive(Copy, Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
    #[serde(rename_all = "snake_case")]
    pub enum VerdictBasis {
        /// The number of requests over the ceiling decides.
        Counted => "counted",
        /// The slowest request is far below the ceiling.
        Far => "far",
    }
}

/// The verdict of a budget on one level.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct BudgetFinding {
    /// Name of the budget in its file.
    pub name: String,
    /// The worst verdict of the rows.
    pub verdict: Held,
    /// Results of the ceilings, one row per ceiling.
    pub rows: Vec<BudgetRow>,
}

/// The result of one ceiling of a budget.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct BudgetRow {
    /// Metric: `ttft`, `tpot`, `e2e` or `error_rate`.
    pub metric: String,
    /// Percentile that the ceiling applies to, 0 to 1; for `error_rate` 1 − the ceiling.
    pub percentile: f64,
    /// The ceiling in seconds; for `error_rate` a share, 0 to 1.
    pub ceiling: f64,
    /// Measured percentile in seconds, or the measured error rate.
    pub measured: Reading,
    /// Share of the requests over the ceiling, with one-sided 95 % Beta bounds.
    pub share_over: Estimate,
    /// Share of the requests that may exceed the ceiling, 0 to 1.
    pub allowed: f64,
    /// Verdict of this row: pass, inconclusive or fail.
    pub verdict: Held,
    /// Rule that the verdict is based on; absent if no rule decided.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<VerdictBasis>,
    /// Approximate number of requests for a verdict, if the share over the ceiling stays constant; `null` unless inconclusive.
    pub needed: Option<u64>,
    /// The assumption of a pass, or a remark on a provisional verdict; empty if there is no remark.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub note: String,
    /// Counts that this level adds to the pool of a sweep's proving levels.
    #[serde(skip)]
    pub pool: Pool,
}

/// Counts of several levels against one limit, in independent observations.
///
/// The n_eff of each level uses its widest design effect (`EffectiveN::of_slowest`). In runs of any length this method
/// wrongly passes batching engines in 8 to 13 % of cases. It applies only to levels that a sweep made long enough for proof.
#[derive(Copy, Clone, PartialEq, Debug, Default)]
pub struct Pool {
    /// Observations over the limit, in independent observations.
    pub over: f64,
    /// Number of independent observations (n_eff).
    pub n_eff: f64,
    /// Limit divided by the slowest value; 0 if a value exceeds the limit or the slowest value is unknown.
    pub times: f64,
}
