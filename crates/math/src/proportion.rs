//! Shares of a whole: Clopper–Pearson bounds at real-valued counts, and derived functions.
//!
//! The counts are real because correlated observations are first divided by their design effect. If k of n requests are
//! over a ceiling, they are equivalent to k/D of n/D independent ones. Wilson's score interval was rejected, because a gate
//! must not pass randomly at small counts. The exact Beta bounds keep their level for every true share, and at real-valued
//! counts they are still the inverse of one distribution function.

use crate::special::{beta_inc_pair, beta_inv_pair, normal_inv};

/// A closed interval; either end may be infinite.
#[derive(Copy, Clone, PartialEq, Debug)]
pub struct Interval {
    pub lower: f64,
    pub upper: f64,
}

impl Interval {
    /// Returns whether the value is inside, ends included.
    pub fn contains(&self, value: f64) -> bool {
        self.lower <= value && value <= self.upper
    }
}

/// Returns one-sided bounds, each at confidence 1 − alpha, for the share behind `k` of `n_eff` (Clopper and Pearson 1934).
/// They are the alpha-quantile of Beta(k, n − k + 1) and the (1 − alpha)-quantile of Beta(k + 1, n − k). Both numbers may
/// be real; `k` is limited to 0 … n.
///
/// A ceiling on the share *passes* if the upper bound is under it, and *fails* if the lower bound is over it.
pub fn exceedance_bounds(k: f64, n_eff: f64, alpha: f64) -> (f64, f64) {
    if n_eff.is_nan() || n_eff <= 0.0 {
        return (0.0, 1.0);
    }
    let k = k.clamp(0.0, n_eff);
    let lower = if k > 0.0 { beta_inv_pair(k, n_eff - k + 1.0, alpha, 1.0 - alpha).0 } else { 0.0 };
    let upper = if k < n_eff { beta_inv_pair(k + 1.0, n_eff - k, 1.0 - alpha, alpha).0 } else { 1.0 };
    (lower, upper)
}

/// Returns whether `k` of `n_eff` prove, at confidence 1 − alpha, a share of at most `limit`. This is equivalent to an
/// upper bound of [`exceedance_bounds`] of at most `limit`, without computing the bound.
pub fn proves_at_most(k: f64, n_eff: f64, limit: f64, alpha: f64) -> bool {
    k < n_eff && beta_inc_pair(k.max(0.0) + 1.0, n_eff - k.max(0.0), limit, 1.0 - limit).1 <= alpha
}

/// Returns whether `k` of `n_eff` prove, at confidence 1 − alpha, a share over `limit`: the lower bound of
/// [`exceedance_bounds`] is over `limit`.
pub fn proves_over(k: f64, n_eff: f64, limit: f64, alpha: f64) -> bool {
    let k = k.min(n_eff);
    k > 0.0 && beta_inc_pair(k, n_eff - k + 1.0, limit, 1.0 - limit).0 < alpha
}

/// Returns the two-sided interval for a share at this level, (1 − level)/2 on either side.
pub fn clopper_pearson(k: f64, n_eff: f64, level: f64) -> Interval {
    let (lower, upper) = exceedance_bounds(k, n_eff, 0.5 * (1.0 - level));
    Interval { lower, upper }
}

/// Returns the smallest n at which an observed `share`, if observed again, would decide against `limit`. A share under it
/// passes, a share over it fails. `None` if the two are equal or a number is out of (0, 1).
pub fn n_to_decide(share: f64, limit: f64, alpha: f64) -> Option<f64> {
    if !((0.0..=1.0).contains(&share) && limit > 0.0 && limit < 1.0) || share == limit {
        return None;
    }
    let decided = |n: f64| {
        if share < limit {
            proves_at_most(share * n, n, limit, alpha)
        } else {
            proves_over(share * n, n, limit, alpha)
        }
    };
    let mut high = 1.0;
    while !decided(high) {
        high *= 2.0;
        // Shares closer than this need more requests than any run sends.
        if high > 1e9 {
            return None;
        }
    }
    let mut low = 0.5 * high;
    while high - low > 0.5 {
        let middle = 0.5 * (low + high);
        if decided(middle) { high = middle } else { low = middle }
    }
    Some(high.ceil())
}

/// Returns the difference of two independent shares, second less first: Newcombe's hybrid score interval (1998, method 10).
/// It keeps its level near 0 and 1, unlike the normal interval.
pub fn newcombe(first: (f64, f64), second: (f64, f64), level: f64) -> Interval {
    scaled_difference(first, second, 1.0, level)
}

/// Returns the second share less `times` the first, from (k, n) each: Newcombe's interval with one side scaled
/// (square-and-add; Zou and Donner 2008).
pub fn scaled_difference(first: (f64, f64), second: (f64, f64), times: f64, level: f64) -> Interval {
    let z = normal_inv(0.5 + 0.5 * level);
    let (p1, w1) = (first.0 / first.1, wilson(first, z));
    let (p2, w2) = (second.0 / second.1, wilson(second, z));
    let gap = p2 - times * p1;
    Interval {
        lower: gap - libm::hypot(p2 - w2.lower, times * (w1.upper - p1)),
        upper: gap + libm::hypot(w2.upper - p2, times * (p1 - w1.lower)),
    }
}

/// Returns ln of the number of ways to choose k of n.
pub fn ln_choose(n: u64, k: u64) -> f64 {
    if k > n {
        return f64::NEG_INFINITY;
    }
    let ln_factorial = |m: u64| libm::lgamma(m as f64 + 1.0);
    ln_factorial(n) - ln_factorial(k) - ln_factorial(n - k)
}

/// Returns P(X ≤ k) for X binomial.
pub fn binomial_cdf(k: u64, n: u64, p: f64) -> f64 {
    if k >= n {
        return 1.0;
    }
    beta_inc_pair(k as f64 + 1.0, (n - k) as f64, p, 1.0 - p).1
}

/// Returns Wilson's score interval for k of n.
fn wilson((k, n): (f64, f64), z: f64) -> Interval {
    let p = k / n;
    let square = z * z / n;
    let centre = p + 0.5 * square;
    let half = z * libm::sqrt(p * (1.0 - p) / n + 0.25 * square / n);
    Interval { lower: (centre - half) / (1.0 + square), upper: (centre + half) / (1.0 + square) }
}
