//! A figure: a value with its interval and counts, or the reason for a missing value.
//!
//! A bare `Option<f64>` was rejected: it has no reason for a missing value, and "not measured" must differ from "none".

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::unbounded;

/// A measured value with its interval and sample size.
#[derive(Copy, Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Estimate {
    /// Point estimate; `"inf"` if a quantile falls among failed requests.
    #[serde(with = "unbounded")]
    #[schemars(with = "unbounded::Number")]
    pub value: f64,
    /// Lower end of the two-sided 95 % interval.
    #[serde(with = "unbounded")]
    #[schemars(with = "unbounded::Number")]
    pub lower: f64,
    /// Upper end of the two-sided 95 % interval; `"inf"` if the data set no upper bound.
    #[serde(with = "unbounded")]
    #[schemars(with = "unbounded::Number")]
    pub upper: f64,
    /// Number of observations behind the estimate.
    pub n: u64,
    /// Effective sample size after the correction for correlation: n / D.
    pub n_eff: f64,
}

/// A measured value, or the reason why there is none.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "is", rename_all = "snake_case")]
pub enum Reading {
    /// A value that is accurate enough for a verdict.
    Estimate(Estimate),
    /// A value that is not accurate enough for a verdict, or no value.
    Refused {
        /// Reason for the refusal, as a phrase: `needs 1000 effective samples, has 240`.
        why: String,
        /// Number of observations that were available.
        n: u64,
        /// Observed value, for display only; absent if there is none. Its ends are infinite if the observations set no bound.
        /// Its `n_eff` is 0 if the effective sample size is unknown.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        seen: Option<Estimate>,
    },
}

impl Reading {
    /// Returns the estimate, or `None` if it does not support a verdict.
    pub fn estimate(&self) -> Option<&Estimate> {
        match self {
            Reading::Estimate(estimate) => Some(estimate),
            Reading::Refused { .. } => None,
        }
    }

    /// Returns the estimate, or the observed value of a refusal.
    pub fn seen(&self) -> Option<&Estimate> {
        match self {
            Reading::Estimate(estimate) => Some(estimate),
            Reading::Refused { seen, .. } => seen.as_ref(),
        }
    }

    /// Returns the point estimate, or `None` if it does not support a verdict.
    pub fn value(&self) -> Option<f64> {
        self.estimate().map(|estimate| estimate.value)
    }

    /// Returns a refusal without an observed value.
    pub fn refused(why: impl Into<String>, n: u64) -> Reading {
        Reading::Refused { why: why.into(), n, seen: None }
    }

    /// Returns a refusal with its observed value.
    pub fn few(why: impl Into<String>, seen: Estimate) -> Reading {
        Reading::Refused { why: why.into(), n: seen.n, seen: Some(seen) }
    }

    /// Applies `on` to the estimate or to the observed value, for example to change the unit.
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

/// The percentiles of one metric in seconds (SPEC M6).
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Percentiles {
    /// Name of the metric: `ttft`, `e2e_after_send`, …
    pub metric: String,
    /// Number of observations, including failed requests.
    pub n: u64,
    /// Number of failed or unfinished requests in `n`; they rank as infinite.
    pub infinite: u64,
    /// Finished requests without a value of this metric (a response with one token has no `tpot`); they are not in `n`.
    pub absent: u64,
    /// Mean of the finite observations in seconds; `null` without any.
    pub mean_finite_s: Option<f64>,
    /// Median, or the reason for its refusal.
    pub p50: Reading,
    /// 90th percentile, or the reason for its refusal.
    pub p90: Reading,
    /// 95th percentile, or the reason for its refusal.
    pub p95: Reading,
    /// 99th percentile, or the reason for its refusal.
    pub p99: Reading,
    /// 99.9th percentile, or the reason for its refusal.
    pub p999: Reading,
    /// Largest observation in seconds: `"inf"` if a request failed, `null` without observations.
    #[serde(with = "unbounded::option")]
    #[schemars(with = "Option<unbounded::Number>")]
    pub max_s: Option<f64>,
    /// Largest finite observation in seconds; `null` without any.
    pub max_finite_s: Option<f64>,
}

impl Percentiles {
    /// Returns the five percentiles with their probabilities, in ascending order.
    pub fn rows(&self) -> [(f64, &Reading); 5] {
        [(0.5, &self.p50), (0.9, &self.p90), (0.95, &self.p95), (0.99, &self.p99), (0.999, &self.p999)]
    }

    /// Returns the reading for one of the five probabilities, or `None` for another probability.
    pub fn at(&self, p: f64) -> Option<&Reading> {
        self.rows().into_iter().find(|(q, _)| (q - p).abs() < 1e-9).map(|(_, reading)| reading)
    }
}

/// A value with its lower and upper bound, in seconds.
#[derive(Copy, Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Bounded")]
pub struct BoundedValue {
    /// Value in seconds, inside its bounds.
    pub value: f64,
    /// Lower bound in seconds.
    pub lower: f64,
    /// Upper bound in seconds.
    pub upper: f64,
}
