//! A budget and what it is judged to be: pass, fail, or not enough data to say.
//!
//! Two verdicts lost: where the bounds allow both, a pass or a fail would be a guess. One field per metric lost too: a
//! recommendation service is held to a median, a p95 and a p99 of the same latency.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::figure::{Estimate, Reading};

plimsoll_model::named! {
    /// A latency that a budget may hold down.
    #[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize, JsonSchema)]
    #[serde(rename_all = "snake_case")]
    pub enum Metric {
        /// First generated token.
        Ttft => "ttft",
        /// Time per output token after the first.
        Tpot => "tpot",
        /// The whole answer.
        E2e => "e2e",
    }
}

/// The most that a percentile of a latency may be.
#[derive(Copy, Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Ceiling {
    /// Of which latency.
    pub metric: Metric,
    /// Of which percentile, 0 to 1.
    pub percentile: f64,
    /// The ceiling, s.
    pub limit_s: f64,
}

impl Ceiling {
    /// A ceiling on this percentile.
    pub const fn new(metric: Metric, percentile: f64, limit_s: f64) -> Ceiling {
        Ceiling { metric, percentile, limit_s }
    }
}

/// A simple budget: ceilings on percentiles and on errors. An absent ceiling does not apply.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct BudgetSpec {
    /// What it is called in output.
    pub name: String,
    /// Ceilings of latencies; a metric may have several, at different percentiles.
    pub latency: Vec<Ceiling>,
    /// Largest share of requests that may fail or come back broken.
    pub error_rate: Option<f64>,
}

impl Default for BudgetSpec {
    /// An example for a person who waits and reads: a first token within half a second, twenty tokens a second, one
    /// failure in a hundred. A convention, not a truth.
    fn default() -> BudgetSpec {
        BudgetSpec {
            name: "example: interactive".into(),
            latency: vec![Ceiling::new(Metric::Ttft, 0.99, 0.5), Ceiling::new(Metric::Tpot, 0.99, 0.05)],
            error_rate: Some(0.01),
        }
    }
}

impl BudgetSpec {
    /// An example for a page that waits for a whole answer, as a recommendation does: half within 60 ms, 95 % within
    /// 150 ms, 99 % within 350 ms, one failure in a hundred. A convention, not a truth.
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

    /// What one request must meet to be good: of each metric the ceiling of its highest percentile. A lower percentile's
    /// is meant to be passed by its share of the requests, so that a request over it breaks nothing.
    pub fn per_request(&self) -> impl Iterator<Item = &Ceiling> {
        self.latency.iter().filter(|ceiling| {
            let higher =
                |other: &&Ceiling| other.metric == ceiling.metric && other.percentile > ceiling.percentile;
            !self.latency.iter().any(|other| higher(&other))
        })
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

plimsoll_model::named! {
    /// By which rule a verdict stands.
    #[derive(Copy, Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
    #[serde(rename_all = "snake_case")]
    pub enum VerdictBasis {
        /// By the number of requests over the ceiling.
        Counted => "counted",
        /// None is over the ceiling, and the slowest is far below it.
        Far => "far",
    }
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
    /// By which rule it stands.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<VerdictBasis>,
    /// Inconclusive: about how many requests in all would settle it, if the share stays as it is.
    pub needed: Option<u64>,
    /// The assumption of a pass, or a provisional answer; empty = nothing to add.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub note: String,
    /// Part of this level in the pool of a sweep's proving levels.
    #[serde(skip)]
    pub pool: Pool,
}

/// Counts of several levels against one limit. Each level is worth as many observations as its widest design effect leaves
/// (`EffectiveN::of_slowest`).
///
/// In runs of any length this reading passes batching engines wrongly in 8 to 13 %. It counts in levels that a sweep made long enough to
/// prove something.
#[derive(Copy, Clone, PartialEq, Debug, Default)]
pub struct Pool {
    /// Observations over the limit, in independent ones.
    pub over: f64,
    /// Observations, in independent ones.
    pub n_eff: f64,
    /// Limit divided by the slowest value; 0 if a value exceeds it, or if the slowest is unknown.
    pub times: f64,
}
