//! Yes-or-no outcomes of equal items on two arms: an exact test, and an interval that keeps its width if the arms agree.
//!
//! Only items on which the arms differ distinguish them; the others bound the size of a difference. A bootstrap by item was
//! rejected as the interval, because without differing items it has width 0. It would claim that a hundred items prove that
//! no item can ever differ.

use crate::proportion::{Interval, binomial_cdf};
use crate::special::normal_inv;

/// Returns the exact two-sided p-value of "the arms are right equally often" (McNemar 1947, by the binomial). `only_first`
/// items were right only on the first arm, `only_second` only on the second.
pub fn mcnemar(only_first: u64, only_second: u64) -> f64 {
    let differ = only_first + only_second;
    (2.0 * binomial_cdf(only_first.min(only_second), differ, 0.5)).min(1.0)
}

/// Returns the difference of two paired shares, second less first, of `n` items: Tango's score interval (1998).
///
/// Its ends are the differences Δ whose score statistic, with the discordant share at its maximum likelihood given Δ, is
/// ±z. `None` without items.
pub fn difference(only_first: u64, only_second: u64, n: u64, level: f64) -> Option<Interval> {
    if n == 0 || only_first + only_second > n {
        return None;
    }
    let z = normal_inv(0.5 + 0.5 * level);
    let (b, c, n) = (only_second as f64, only_first as f64, n as f64);
    let value = (b - c) / n;
    let within = |delta: f64| score(b, c, n, delta).abs() <= z;
    let end = |far: f64| {
        let (mut inside, mut outside) = (value, far);
        if within(far) {
            return far;
        }
        for _ in 0..80 {
            let middle = 0.5 * (inside + outside);
            if within(middle) { inside = middle } else { outside = middle }
        }
        inside
    };
    Some(Interval { lower: end(-1.0), upper: end(1.0) })
}

/// Returns (b − c − nΔ)/√(n (2q + Δ(1 − Δ))), with q the most likely share of the second kind of discordance given Δ.
fn score(b: f64, c: f64, n: f64, delta: f64) -> f64 {
    let gap = b - c - n * delta;
    let linear = -b - c + (2.0 * n - b + c) * delta;
    let constant = -c * delta * (1.0 - delta);
    let q = (libm::sqrt((linear * linear - 8.0 * n * constant).max(0.0)) - linear) / (4.0 * n);
    let variance = n * (2.0 * q + delta * (1.0 - delta));
    match (gap == 0.0, variance > 0.0) {
        (true, _) => 0.0,
        (false, true) => gap / libm::sqrt(variance),
        (false, false) => f64::INFINITY,
    }
}
