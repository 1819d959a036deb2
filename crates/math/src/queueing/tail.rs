//! Many calls of one page, and two copies of one call: how tails add up, and what a second try buys.
//!
//! Everything here takes calls for independent. They are not where the slowness has a shared cause (a slow replica, a full queue, a long
//! prompt that both copies carry); the caller says so beside each figure.

/// The chance that at least one of `calls` is slower than the percentile `p` of one: 1 − pⁿ.
pub fn any_slower(calls: f64, p: f64) -> f64 {
    -libm::expm1(calls * libm::log(p))
}

/// The percentile that each of `calls` must meet so that all do with chance `page`: page^(1/n).
pub fn per_call(calls: f64, page: f64) -> f64 {
    libm::exp(libm::log(page) / calls)
}

/// The mean of the slowest of `calls` exponential ones: m H_n = m (1 + 1/2 + … + 1/n).
pub fn exponential_slowest(mean: f64, calls: u32) -> f64 {
    // From the smallest term up, so that no digit is lost at many calls.
    mean * (1..=calls).rev().map(|k| 1.0 / f64::from(k)).sum::<f64>()
}

/// The mean of the slowest of `calls` drawn from these latencies, in ascending order: Σ x₍ᵢ₎ ((i/N)ⁿ − ((i−1)/N)ⁿ). NaN without any.
pub fn sampled_slowest(sorted: &[f64], calls: f64) -> f64 {
    if sorted.is_empty() {
        return f64::NAN;
    }
    let n = sorted.len() as f64;
    let below = |i: usize| libm::pow(i as f64 / n, calls);
    sorted.iter().enumerate().map(|(i, x)| x * (below(i + 1) - below(i))).sum()
}
