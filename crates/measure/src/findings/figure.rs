//! A figure is never alone: the value with its interval and counts, or the reason why it is refused.
//!
//! A bare `Option<f64>` lost: it cannot say why there is nothing, and "not measured" must not look like "none".

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::unbounded;

/// A figure with its interval and the counts it rests on.
#[derive(Copy, Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Estimate {
    /// The point estimate; `+∞` where a quantile falls among failed requests.
    #[serde(with = "unbounded")]
    #[schemars(with = "unbounded::Number")]
    pub value: f64,
    /// Lower end of the two-sided 95 % interval.
    #[serde(with = "unbounded")]
    #[schemars(with = "unbounded::Number")]
    pub lower: f64,
    /// Upper end; `+∞` where the data set no bound.
    #[serde(with = "unbounded")]
    #[schemars(with = "unbounded::Number")]
    pub upper: f64,
    /// Observations.
    pub n: u64,
    /// Observations after discounting for correlation: n / D.
    pub n_eff: f64,
}

/// A figure, or the reason why there is none.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "is", rename_all = "snake_case")]
pub enum Reading {
    /// Measured well enough to be shown.
    Estimate(Estimate),
    /// Nothing that a verdict may rest on.
    Refused {
        /// Why, as a sentence part: `needs 1000 effective samples, has 240`.
        why: String,
        /// Observations there were.
        n: u64,
        /// What was seen all the same, for the eye alone: its ends are open (±∞) where so few observations set no bound, and its `n_eff` is
        /// 0 where their worth isn't known.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        seen: Option<Estimate>,
    },
}

impl Reading {
    /// The estimate, if a verdict may rest on it.
    pub fn estimate(&self) -> Option<&Estimate> {
        match self {
            Reading::Estimate(estimate) => Some(estimate),
            Reading::Refused { .. } => None,
        }
    }

    /// The estimate, or what was seen of it.
    pub fn seen(&self) -> Option<&Estimate> {
        match self {
            Reading::Estimate(estimate) => Some(estimate),
            Reading::Refused { seen, .. } => seen.as_ref(),
        }
    }

    /// The point estimate, if a verdict may rest on it.
    pub fn value(&self) -> Option<f64> {
        self.estimate().map(|estimate| estimate.value)
    }

    /// A refusal of which nothing was seen.
    pub fn refused(why: impl Into<String>, n: u64) -> Reading {
        Reading::Refused { why: why.into(), n, seen: None }
    }

    /// A refusal with what was seen.
    pub fn few(why: impl Into<String>, seen: Estimate) -> Reading {
        Reading::Refused { why: why.into(), n: seen.n, seen: Some(seen) }
    }

    /// The same figure on another scale.
    #[must_use]
    pub fn map(&self, on: impl Fn(&Estimate) -> Estimate) -> Reading {
        match self {
            Reading::Estimate(e) => Reading::Estimate(on(e)),
            Reading::Refused { why, n, seen } => {
                Reading::Refused { why: why.clone(), n: *n, seen: seen.as_ref().map(on) }
            }
        }
    }
}

/// The order statistics of one metric (SPEC M6). Seconds.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Percentiles {
    /// `ttft`, `e2e_after_send`, …
    pub metric: String,
    /// Observations, failures included.
    pub n: u64,
    /// Of those, failed or unfinished requests, which rank as `+∞`.
    pub infinite: u64,
    /// Finished requests for which the metric does not exist (one token has no `tpot`); they are not in `n`.
    pub absent: u64,
    /// Mean of the finite observations; `None` without any.
    pub mean_finite_s: Option<f64>,
    /// Median.
    pub p50: Reading,
    /// 90th percentile.
    pub p90: Reading,
    /// 95th percentile.
    pub p95: Reading,
    /// 99th percentile.
    pub p99: Reading,
    /// 99.9th percentile.
    pub p999: Reading,
    /// Largest observation; `+∞` as soon as one request failed, `None` without observations.
    #[serde(with = "unbounded::option")]
    #[schemars(with = "Option<unbounded::Number>")]
    pub max_s: Option<f64>,
    /// Largest finite observation.
    pub max_finite_s: Option<f64>,
}

impl Percentiles {
    /// The five shown percentiles with their probabilities, low to high.
    pub fn rows(&self) -> [(f64, &Reading); 5] {
        [(0.5, &self.p50), (0.9, &self.p90), (0.95, &self.p95), (0.99, &self.p99), (0.999, &self.p999)]
    }

    /// The reading for one of the five probabilities.
    pub fn at(&self, p: f64) -> Option<&Reading> {
        self.rows().into_iter().find(|(q, _)| (q - p).abs() < 1e-9).map(|(_, reading)| reading)
    }
}

/// A figure and how far it may be off. Seconds.
#[derive(Copy, Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Bounded {
    /// The figure.
    pub value: f64,
    /// It is not under this.
    pub lower: f64,
    /// It is not over this.
    pub upper: f64,
}
