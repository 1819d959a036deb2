//! The laws that times are drawn from, with the two moments that queueing formulas ask for.
//!
//! Times are written in milliseconds, because that is what people know of an endpoint. A law is a small enum and
//! not a trait: it is part of a file, and a file can't hold a trait object.

use plimsoll_math::dist;
use plimsoll_math::rng::Stream;
use plimsoll_model::Span;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::spec::error::{SpecError, not_negative, positive, range};

/// A law of times.
#[derive(Copy, Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "law", rename_all = "snake_case", deny_unknown_fields)]
pub enum LawSpec {
    /// Always the same (the D of M/D/c).
    Deterministic {
        /// The time, ms.
        ms: f64,
    },
    /// Memoryless (the second M of M/M/c).
    Exponential {
        /// Mean, ms.
        mean_ms: f64,
    },
    /// Anything between two ends alike.
    Uniform {
        /// Shortest, ms.
        low_ms: f64,
        /// Longest, ms.
        high_ms: f64,
    },
    /// The exponential of a normal.
    Lognormal {
        /// Median, ms.
        median_ms: f64,
        /// Standard deviation of the logarithm.
        sigma: f64,
    },
    /// Gamma, from nearly constant (small cv) over exponential (1) to bursty.
    Gamma {
        /// Mean, ms.
        mean_ms: f64,
        /// Coefficient of variation.
        cv: f64,
    },
    /// Mixture of two exponentials that each carry half of the mean: many short, few long.
    Hyperexponential {
        /// Mean, ms.
        mean_ms: f64,
        /// Coefficient of variation; at least 1.
        cv: f64,
    },
}

impl LawSpec {
    /// A draw, rounded to nanoseconds, never negative.
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

    /// Mean, milliseconds.
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

    /// Squared coefficient of variation: variance / mean².
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

    pub(crate) fn validate(&self, field: &'static str) -> Result<(), SpecError> {
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

/// A century: draws beyond it would run off the end of time.
const LONGEST_NS: f64 = 3.2e18;

/// Share of the short branch of the two-branch mixture with balanced means (Whitt 1982).
fn short_share(cv: f64) -> f64 {
    let excess = (cv * cv - 1.0) / (cv * cv + 1.0);
    0.5 * (1.0 + libm::sqrt(excess))
}
