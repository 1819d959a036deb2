//! Distributions of times, with the two moments that queueing formulas need.
//!
//! Times are in milliseconds, the usual unit for endpoints. A distribution is a small enum and not a trait, because
//! it is part of a file, and a file can't contain a trait object.

use plimsoll_math::dist;
use plimsoll_math::rng::Stream;
use plimsoll_model::Span;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::spec::error::{SimSpecError, not_negative, positive, range};

/// A distribution of times in milliseconds.
#[derive(Copy, Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "law", rename_all = "snake_case", deny_unknown_fields)]
pub enum LawSpec {
    /// Constant time (the D of M/D/c).
    Deterministic {
        /// Time in milliseconds, equal for every draw.
        ms: f64,
    },
    /// Exponential distribution, memoryless (the second M of M/M/c).
    Exponential {
        /// Mean of the distribution in ms.
        mean_ms: f64,
    },
    /// Uniform distribution between two limits.
    Uniform {
        /// Minimum of the distribution in ms.
        low_ms: f64,
        /// Maximum of the distribution in ms.
        high_ms: f64,
    },
    /// Lognormal distribution with a median and sigma.
    Lognormal {
        /// Median of the distribution in ms.
        median_ms: f64,
        /// Standard deviation of the natural logarithm.
        sigma: f64,
    },
    /// Gamma distribution, from nearly constant (small cv) over exponential (1) to bursty.
    Gamma {
        /// Mean of the distribution in ms.
        mean_ms: f64,
        /// Coefficient of variation: standard deviation / mean.
        cv: f64,
    },
    /// Mixture of two exponentials that each carry half of the mean: many short times, few long ones.
    Hyperexponential {
        /// Mean of the distribution in ms.
        mean_ms: f64,
        /// Coefficient of variation, at least 1.
        cv: f64,
    },
}

impl LawSpec {
    /// Returns a draw, rounded to nanoseconds and never negative.
    pub fn draw(&self, stream: &mut Stream) -> Span {
        let ms = match *self {
            LawSpec::Deterministic { ms } => ms,
            LawSpec::Exponential { mean_ms } => dist::exponential(stream, mean_ms),
            LawSpec::Uniform { low_ms, high_ms } => dist::uniform(stream, low_ms, high_ms),
            LawSpec::Lognormal { median_ms, sigma } => dist::lognormal(stream, median_ms, sigma),
            LawSpec::Gamma { mean_ms, cv } => {
                let (shape, scale) = dist::gamma_from_mean_cv(mean_ms, cv);
                dist::gamma(stream, shape, scale)
            }
            LawSpec::Hyperexponential { mean_ms, cv } => {
                let short = short_share(cv);
                let share = if stream.uniform() < short { short } else { 1.0 - short };
                dist::exponential(stream, mean_ms / (2.0 * share))
            }
        };
        Span((ms * 1e6).round().clamp(0.0, LONGEST_NS) as i64)
    }

    pub fn mean_ms(&self) -> f64 {
        match *self {
            LawSpec::Deterministic { ms } => ms,
            LawSpec::Exponential { mean_ms }
            | LawSpec::Gamma { mean_ms, .. }
            | LawSpec::Hyperexponential { mean_ms, .. } => mean_ms,
            LawSpec::Uniform { low_ms, high_ms } => 0.5 * (low_ms + high_ms),
            LawSpec::Lognormal { median_ms, sigma } => median_ms * libm::exp(0.5 * sigma * sigma),
        }
    }

    /// Returns the squared coefficient of variation: variance / mean².
    pub fn cv_squared(&self) -> f64 {
        match *self {
            LawSpec::Deterministic { .. } => 0.0,
            LawSpec::Exponential { .. } => 1.0,
            LawSpec::Gamma { cv, .. } | LawSpec::Hyperexponential { cv, .. } => cv * cv,
            LawSpec::Uniform { low_ms, high_ms } => {
                let (width, sum) = (high_ms - low_ms, high_ms + low_ms);
                if sum > 0.0 { width * width / (3.0 * sum * sum) } else { 0.0 }
            }
            LawSpec::Lognormal { sigma, .. } => libm::expm1(sigma * sigma),
        }
    }

    pub(crate) fn validate(&self, field: &'static str) -> Result<(), SimSpecError> {
        match *self {
            LawSpec::Deterministic { ms } => not_negative(field, ms),
            LawSpec::Exponential { mean_ms } => positive(field, mean_ms),
            LawSpec::Uniform { low_ms, high_ms } => {
                not_negative(field, low_ms)?;
                not_negative(field, high_ms)?;
                let ordered = low_ms <= high_ms;
                if ordered { Ok(()) } else { Err(range(field, low_ms, "at most high_ms")) }
            }
            LawSpec::Lognormal { median_ms, sigma } => {
                positive(field, median_ms)?;
                not_negative(field, sigma)
            }
            LawSpec::Gamma { mean_ms, cv } => {
                positive(field, mean_ms)?;
                positive(field, cv)
            }
            LawSpec::Hyperexponential { mean_ms, cv } => {
                positive(field, mean_ms)?;
                let wide = cv.is_finite() && cv >= 1.0;
                if wide { Ok(()) } else { Err(range(field, cv, "a coefficient of variation from 1")) }
            }
        }
    }
}

/// Maximum draw, a century: longer draws would overflow the time type.
const LONGEST_NS: f64 = 3.2e18;

/// Returns the share of the short branch of the two-branch mixture with balanced means (Whitt 1982).
fn short_share(cv: f64) -> f64 {
    let excess = (cv * cv - 1.0) / (cv * cv + 1.0);
    0.5 * (1.0 + libm::sqrt(excess))
}
