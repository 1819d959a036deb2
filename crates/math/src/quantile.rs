//! Percentiles of what was measured, and the interval that goes with them.
//!
//! A percentile is an order statistic, x₍⌈np⌉₎: never interpolated, so that it is a latency somebody had, and
//! defined where some values are +∞ (requests that failed). Its interval is the inversion of the gate's own
//! test: the ceilings that the bounds of [`crate::proportion`] can neither pass nor fail at this n. One
//! method for the shown interval and for the verdict, or the page contradicts the gate; Woodruff's normal
//! approximation did, and read ∞ where the gate had passed.
//!
//! Requests queue behind one another, so n of them are worth fewer independent ones: n_eff = n/D, where the
//! design effect D is read from the means of batches in send order. The batches overlap (Meketon and Schmeiser
//! 1984), for D decides who is refused and must itself be steady: on an M/M/1 queue at load 0.7, twenty disjoint
//! batches refuse the p99 of 50 000 requests twice as often as forty overlapping ones, which cover as well.
//! Batches as long as a multiple of the D found so far lost: service noise hides a weak, long correlation,
//! and the median of a queue of sixteen servers was covered 0.86 of the time.
//!
//! What it reaches at a nominal 0.95 and load 0.7, refusals and infinite bounds counted as misses
//! (`examples/coverage.rs`, 2000 replications; M/M/1, M/M/4, M/M/16, batches of eight): p50 of 10 000 requests
//! 0.95, 0.93, 0.95, 0.95; p95 of 10 000 0.92, 0.91, 0.96, 0.95; p99 of 50 000 0.88, 0.92, 0.95, 0.94. The one
//! under 0.90 is refused in 6.5 % of levels; [`undecided`] covers 0.94 there. Where most levels of a kind are
//! refused, the few that are shown are those that looked calm, and hold the truth far less often.

use crate::proportion::{Interval, proves_at_most, proves_over};
use crate::special::student_t_inv;

/// The length of a level over the length of its batches, unless its requests last too long for that.
/// Fewer make D itself uncertain; more make batches shorter than the memory of a queue at load 0.85.
pub const BATCHES: usize = 40;

/// Expected exceedances, n_eff · (1 − p), below which a percentile is refused.
pub const EXCEEDANCES_NEEDED: f64 = 10.0;

/// A percentile that the measurement is too short for.
#[derive(Copy, Clone, PartialEq, Debug)]
pub struct Refused {
    /// The independent observations there are.
    pub n_eff: f64,
    /// The independent observations it takes.
    pub needed: f64,
}

/// A percentile with everything that must be printed beside it.
#[derive(Copy, Clone, PartialEq, Debug)]
pub struct Percentile {
    /// The order statistic.
    pub value: f64,
    /// Observations.
    pub n: usize,
    /// The observations' worth in independent ones: n over the design effect.
    pub n_eff: f64,
    /// The interval, or why there is none.
    pub interval: Result<Interval, Refused>,
}

/// The rank ⌈np⌉ of the p-quantile, from 1 to n; 0 for n = 0.
pub fn rank(n: usize, p: f64) -> usize {
    let exact = n as f64 * p;
    // 0.07 · 100 is 7.000000000000001 in binary; a rank meant as a whole number stays it.
    let nearest = exact.round();
    let up = if (exact - nearest).abs() <= 1e-9 { nearest } else { exact.ceil() };
    (up as usize).clamp(1, n.max(1)).min(n)
}

/// The order statistic x₍⌈np⌉₎ of values in any order, which are reordered. `None` where there are none.
pub fn order_statistic(values: &mut [f64], p: f64) -> Option<f64> {
    let k = rank(values.len(), p).checked_sub(1)?;
    Some(*values.select_nth_unstable_by(k, f64::total_cmp).1)
}

/// The order statistic x₍⌈np⌉₎ of values in rising order. `None` where there are none.
pub fn of_sorted(sorted: &[f64], p: f64) -> Option<f64> {
    sorted.get(rank(sorted.len(), p).checked_sub(1)?).copied()
}

/// Sort values for [`of_sorted`] and [`interval`]; +∞ is allowed, NaN is not.
pub fn sort(values: &mut [f64]) {
    values.sort_unstable_by(f64::total_cmp);
}

/// Batches for a level this long whose longest requests (p99) take `longest`, in the same unit: as many as
/// leave each batch five such requests long, at most [`BATCHES`]. `None` below 8: too short a level for its
/// requests, nothing can be said about its correlation.
pub fn batch_count(length: f64, longest: f64) -> Option<usize> {
    let most = if longest > 0.0 { length / (5.0 * longest) } else { f64::INFINITY };
    (most >= 8.0).then(|| (most as usize).min(BATCHES))
}

/// The interval of the p-quantile from values in rising order that are worth `n_eff` independent ones, or
/// refused below ten expected exceedances, n_eff · min(p, 1 − p) < 10.
pub fn interval(sorted: &[f64], n_eff: f64, p: f64, level: f64) -> Result<Interval, Refused> {
    let needed = EXCEEDANCES_NEEDED / p.min(1.0 - p);
    if sorted.is_empty() || n_eff.is_nan() || n_eff < needed * (1.0 - 1e-12) {
        return Err(Refused { n_eff, needed });
    }
    Ok(undecided(sorted, n_eff, p, level))
}

/// The values, in rising order and worth `n_eff` independent ones, that a ceiling on the p-quantile can
/// neither pass nor fail at: [`interval`] without its refusal.
///
/// The upper end is the smallest order statistic at which the gate would pass, +∞ where none would; the
/// lower end is the largest below which the gate would fail, −∞ where none is; each at (1 − level)/2.
pub fn undecided(sorted: &[f64], n_eff: f64, p: f64, level: f64) -> Interval {
    let n = sorted.len();
    let alpha = 0.5 * (1.0 - level);
    let worth = n_eff / n as f64;
    // Of x₍j₎, j from 1 to n, n − j values are over it, and n − j + 1 over anything just below it.
    let passes = |j: usize| proves_at_most((n - j) as f64 * worth, n_eff, 1.0 - p, alpha);
    let fails = |j: usize| proves_over((n - j + 1) as f64 * worth, n_eff, 1.0 - p, alpha);
    let upper = partition_point(1, n + 1, |j| !passes(j));
    let lower = partition_point(1, n + 1, fails);
    Interval {
        lower: if lower > 1 { sorted[lower - 2] } else { f64::NEG_INFINITY },
        upper: sorted.get(upper - 1).copied().unwrap_or(f64::INFINITY),
    }
}

/// The design effect of a share: by how much the variance of its mean exceeds that of independent draws,
/// at least 1. `exceeds` is in send order; its batches are n/`batches` long.
///
/// The variance of the mean from all overlapping batches of length m, m/((n−m+1)(n−m)) Σ (Ȳᵢ − Ȳ)²
/// (Meketon and Schmeiser 1984), stands against p(1 − p)/n. It has 1.5 (n/m − 1) degrees of freedom, of
/// which the Beta bounds know nothing, so it is scaled by (t/z)² at 97.5 % (Korn and Graubard 1998). 1 where
/// every value exceeds or none does.
pub fn design_effect(exceeds: &[bool], batches: usize) -> f64 {
    let n = exceeds.len();
    let batches = batches.min(n / 2);
    let over = exceeds.iter().filter(|e| **e).count();
    if batches < 2 || over == 0 || over == n {
        return 1.0;
    }
    let length = n / batches;
    let expected = over as f64 * length as f64 / n as f64;
    let mut inside = exceeds[..length].iter().filter(|e| **e).count();
    let mut squares = 0.0;
    for last in length..=n {
        let excess = inside as f64 - expected;
        squares += excess * excess;
        if last < n {
            inside = inside + usize::from(exceeds[last]) - usize::from(exceeds[last - length]);
        }
    }
    let (n, m) = (n as f64, length as f64);
    let variance_of_mean = squares / (m * (n - m + 1.0) * (n - m));
    let share = over as f64 / n;
    (variance_of_mean * n / (share * (1.0 - share)) * few_batches(n / m)).max(1.0)
}

/// The p-quantile of values in send order with its interval at this level, all by the rules above.
/// `None` where there are no values.
pub fn percentile(in_send_order: &[f64], p: f64, level: f64, batches: usize) -> Option<Percentile> {
    let mut sorted = in_send_order.to_vec();
    sort(&mut sorted);
    let value = of_sorted(&sorted, p)?;
    let n_eff = effective_n(in_send_order, value, batches);
    Some(Percentile { value, n: sorted.len(), n_eff, interval: interval(&sorted, n_eff, p, level) })
}

/// n over the design effect of exceeding `threshold`, for values in send order.
pub fn effective_n(in_send_order: &[f64], threshold: f64, batches: usize) -> f64 {
    let exceeds: Vec<bool> = in_send_order.iter().map(|v| *v > threshold).collect();
    in_send_order.len() as f64 / design_effect(&exceeds, batches)
}

/// How much further a t quantile reaches than the normal one, squared, when a variance was estimated from
/// this many overlapping batches.
fn few_batches(batches: f64) -> f64 {
    let ratio = student_t_inv(0.975, 1.5 * (batches - 1.0)) / 1.959_963_984_540_054;
    ratio * ratio
}

/// The first j in low..high for which `before` no longer holds, given that it holds first and then not.
fn partition_point(low: usize, high: usize, before: impl Fn(usize) -> bool) -> usize {
    let (mut low, mut high) = (low, high);
    while low < high {
        let middle = low + (high - low) / 2;
        if before(middle) { low = middle + 1 } else { high = middle }
    }
    low
}
