//! Draws from the distributions of a workload, each a function of a [`Stream`] and its parameters.
//!
//! Distributions with a closed inverse use one uniform per draw, so that the n-th draw does not depend on earlier values.
//! Only the gamma distribution uses rejection (Marsaglia and Tsang 2000). The ziggurat of the usual crates was rejected,
//! because it ties the numbers to a crate's tables. It is faster, but 40 ns per draw is negligible next to a request.
//!
//! Parameters are not checked, because the specification guarantees a positive scale and a positive shape.

use crate::rng::Stream;
use crate::special::{self, normal_inv};

pub fn exponential(stream: &mut Stream, mean: f64) -> f64 {
    -mean * libm::log(stream.uniform())
}

pub fn uniform(stream: &mut Stream, low: f64, high: f64) -> f64 {
    low + (high - low) * stream.uniform()
}

/// Draws from a normal distribution with this mean and standard deviation.
pub fn normal(stream: &mut Stream, mean: f64, deviation: f64) -> f64 {
    mean + deviation * normal_inv(stream.uniform())
}

/// Draws from a lognormal distribution with this median and standard deviation of the logarithm.
pub fn lognormal(stream: &mut Stream, median: f64, sigma: f64) -> f64 {
    median * libm::exp(sigma * normal_inv(stream.uniform()))
}

/// Draws from a Weibull distribution: P(X > x) = exp(−(x/scale)^shape).
pub fn weibull(stream: &mut Stream, shape: f64, scale: f64) -> f64 {
    scale * libm::pow(-libm::log(stream.uniform()), 1.0 / shape)
}

/// Draws from a gamma distribution with mean `shape · scale`; NaN for an invalid shape, because rejection would never end.
pub fn gamma(stream: &mut Stream, shape: f64, scale: f64) -> f64 {
    if !(shape > 0.0 && shape.is_finite()) {
        return f64::NAN;
    }
    if shape < 1.0 {
        // G(a) = G(a + 1) · U^(1/a), their section 6; in logarithms, because U^(1/a) underflows early.
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

/// Draws one of the observed values with equal probability; `None` without values.
pub fn empirical(stream: &mut Stream, values: &[f64]) -> Option<f64> {
    values.get(stream.below(values.len() as u64) as usize).copied()
}

/// Returns shape and scale of the gamma distribution with this mean and coefficient of variation.
pub fn gamma_from_mean_cv(mean: f64, cv: f64) -> (f64, f64) {
    (1.0 / (cv * cv), mean * cv * cv)
}

/// Returns shape and scale of the Weibull distribution with this mean and coefficient of variation.
///
/// 1 + cv² = Γ(1 + 2/k) / Γ(1 + 1/k)² falls in k, so bisection on ln k finds it. Shapes are limited to 0.05 … 1000, that is
/// coefficients of variation from 0.0013 to about 3·10⁵.
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
