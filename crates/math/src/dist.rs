//! Draws from the laws a workload is described by, each a function of a [`Stream`] and its parameters.
//!
//! Inverse distribution functions where there is a closed one: one uniform per draw, so that the n-th draw
//! does not depend on the values before it. Only the gamma law rejects (Marsaglia and Tsang 2000). The
//! ziggurat of the usual crates is faster and ties the numbers to that crate's tables; 40 ns a draw is
//! nothing beside a request.
//!
//! Parameters are not checked: a scale is positive and a shape is positive because the spec that holds
//! them says so.

use crate::rng::Stream;
use crate::special::{self, normal_inv};

pub fn exponential(stream: &mut Stream, mean: f64) -> f64 {
    -mean * libm::log(stream.uniform())
}

/// Uniform between two ends.
pub fn uniform(stream: &mut Stream, low: f64, high: f64) -> f64 {
    low + (high - low) * stream.uniform()
}

/// Normal with this mean and standard deviation.
pub fn normal(stream: &mut Stream, mean: f64, deviation: f64) -> f64 {
    mean + deviation * normal_inv(stream.uniform())
}

/// Lognormal by its median and the standard deviation of its logarithm.
pub fn lognormal(stream: &mut Stream, median: f64, sigma: f64) -> f64 {
    median * libm::exp(sigma * normal_inv(stream.uniform()))
}

/// Weibull: P(X > x) = exp(−(x/scale)^shape).
pub fn weibull(stream: &mut Stream, shape: f64, scale: f64) -> f64 {
    scale * libm::pow(-libm::log(stream.uniform()), 1.0 / shape)
}

/// Gamma with mean `shape · scale`; NaN for a shape that is none, for rejection would never end.
pub fn gamma(stream: &mut Stream, shape: f64, scale: f64) -> f64 {
    if !(shape > 0.0 && shape.is_finite()) {
        return f64::NAN;
    }
    if shape < 1.0 {
        // G(a) = G(a + 1) · U^(1/a), their section 6; in logarithms, for U^(1/a) underflows early.
        let raised = gamma(stream, shape + 1.0, 1.0);
        return scale * libm::exp(libm::log(raised) + libm::log(stream.uniform()) / shape);
    }
    let d = shape - 1.0 / 3.0;
    let c = 1.0 / libm::sqrt(9.0 * d);
    loop {
        let z = normal_inv(stream.uniform());
        let root = 1.0 + c * z;
        if root <= 0.0 {
            continue;
        }
        let v = root * root * root;
        if libm::log(stream.uniform()) < 0.5 * z * z + d * (1.0 - v + libm::log(v)) {
            return scale * d * v;
        }
    }
}

/// One of the observed values, each equally likely; `None` where there are none.
pub fn empirical(stream: &mut Stream, values: &[f64]) -> Option<f64> {
    values.get(stream.below(values.len() as u64) as usize).copied()
}

/// The shape and scale of the gamma law with this mean and coefficient of variation.
pub fn gamma_from_mean_cv(mean: f64, cv: f64) -> (f64, f64) {
    (1.0 / (cv * cv), mean * cv * cv)
}

/// The shape and scale of the Weibull law with this mean and coefficient of variation.
///
/// 1 + cv² = Γ(1 + 2/k) / Γ(1 + 1/k)² falls in k, so bisection on ln k finds it; shapes are held within
/// 0.05 … 1000, that is coefficients of variation from 0.0013 to about 3·10⁵.
pub fn weibull_from_mean_cv(mean: f64, cv: f64) -> (f64, f64) {
    let wanted = libm::log1p(cv * cv);
    let (mut low, mut high) = (libm::log(0.05), libm::log(1000.0));
    for _ in 0..80 {
        let middle = 0.5 * (low + high);
        let inverse = libm::exp(-middle);
        let spread = special::ln_gamma(1.0 + 2.0 * inverse) - 2.0 * special::ln_gamma(1.0 + inverse);
        if spread > wanted { low = middle } else { high = middle }
    }
    let shape = libm::exp(0.5 * (low + high));
    (shape, mean / libm::exp(special::ln_gamma(1.0 + 1.0 / shape)))
}
