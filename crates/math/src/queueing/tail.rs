//! Tail latency of a page that needs many calls.
//!
//! All formulas assume independent calls. Calls are not independent if the slowness has a shared cause (a slow replica, a
//! full queue). The caller states this next to each figure.

/// Returns the probability that at least one of `calls` is slower than the percentile `p` of one: 1 − pⁿ.
pub fn any_slower(calls: f64, p: f64) -> f64 {
    -libm::expm1(calls * libm::log(p))
}

/// Returns the percentile that each of `calls` must meet so that all do with probability `page`: page^(1/n).
pub fn per_call(calls: f64, page: f64) -> f64 {
    libm::exp(libm::log(page) / calls)
}

/// Returns the mean of the slowest of `calls` exponential ones: m H_n = m (1 + 1/2 + … + 1/n).
pub fn exponential_slowest(mean: f64, calls: u32) -> f64 {
    // The sum starts at the smallest term, so that no digit is lost at many calls.
    mean * (1..=calls).rev().map(|k| 1.0 / f64::from(k)).sum::<f64>()
}

/// Returns the mean of the slowest of `calls` drawn from these latencies, in ascending order: Σ x₍ᵢ₎ ((i/N)ⁿ − ((i−1)/N)ⁿ).
/// NaN without any.
pub fn sampled_slowest(sorted: &[f64], calls: f64) -> f64 {
    if sorted.is_empty() {
        return f64::NAN;
    }
    let n = sorted.len() as f64;
    let below = |i: usize| libm::pow(i as f64 / n, calls);
    sorted.iter().enumerate().map(|(i, x)| x * (below(i + 1) - below(i))).sum()
}
