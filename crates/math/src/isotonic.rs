//! The rising fit of a curve, and its crossing of a target.
//!
//! Latency can't fall as load rises, so a fit that may wiggle between noisy levels finds false crossings.
//! Pool-adjacent-violators (Ayer et al. 1955) is the least-squares rising fit and has no parameter. Segmented regression
//! was rejected, because its knee moves with the last level measured.

use crate::proportion::Interval;
use crate::quantile::{of_sorted, sort};
use crate::rng::Stream;

/// Returns the weighted least-squares fit to `y` that never falls. Weights are positive; missing weights are 1.
pub fn rising_fit(y: &[f64], weights: &[f64]) -> Vec<f64> {
    struct Block {
        mean: f64,
        weight: f64,
        points: usize,
    }
    let mut blocks: Vec<Block> = Vec::with_capacity(y.len());
    for (i, value) in y.iter().enumerate() {
        let mut last = Block { mean: *value, weight: weights.get(i).copied().unwrap_or(1.0), points: 1 };
        while let Some(before) = blocks.pop_if(|b| b.mean >= last.mean) {
            let weight = before.weight + last.weight;
            let mean = (before.mean * before.weight + last.mean * last.weight) / weight;
            last = Block { mean, weight, points: before.points + last.points };
        }
        blocks.push(last);
    }
    blocks.iter().flat_map(|b| std::iter::repeat_n(b.mean, b.points)).collect()
}

/// The crossing of a rising curve with a target.
#[derive(Copy, Clone, PartialEq, Debug)]
pub enum Crossing {
    /// Before the first point, which is already over the target.
    Before,
    /// At this x, linear between neighbouring points.
    At(f64),
    /// Beyond the last point, which is still under the target.
    Beyond,
}

/// Returns the first x at which the rising curve through (x, fit) reaches `target`; x rises.
pub fn crossing(x: &[f64], fit: &[f64], target: f64) -> Crossing {
    match fit.iter().position(|f| *f >= target) {
        None => Crossing::Beyond,
        Some(0) if fit[0] > target => Crossing::Before,
        Some(0) => Crossing::At(x[0]),
        Some(i) => {
            let part = (target - fit[i - 1]) / (fit[i] - fit[i - 1]);
            // A level with an infinite value only bounds the crossing from above.
            let part = if part.is_finite() && fit[i].is_finite() { part } else { 1.0 };
            Crossing::At(x[i - 1] + part * (x[i] - x[i - 1]))
        }
    }
}

#[derive(Copy, Clone, PartialEq, Debug)]
pub struct CrossingInterval {
    /// The crossing of the measured curve; `None` if it is not reached at the last point.
    pub value: Option<f64>,
    /// Percentile interval; an end beyond the measured levels is +∞.
    pub interval: Interval,
}

/// Returns the crossing of a curve of logarithms with a known value at x = 0: `rise` below the target. A first point over
/// the target crossed it between 0 and that point. Latency is convex in load, so the straight line of latencies between the
/// two is above the curve. Its crossing is at most the true one. This bound is informative, unlike zero.
pub fn crossing_from_rest(x: &[f64], fit: &[f64], target: f64, rise: f64) -> Option<f64> {
    match crossing(x, fit, target) {
        Crossing::At(at) => Some(at),
        Crossing::Before => Some(x[0] * rise.exp_m1() / (fit[0] - target + rise).exp_m1()),
        Crossing::Beyond => None,
    }
}

/// Returns the crossing of the rising fit through (x, y) with `target`, with an interval from `replicates` resamples. Each
/// call of `redraw` returns the y and the target of one bootstrap sample (see [`crate::bootstrap::resample`]). Weights as
/// in [`rising_fit`], `rise` as in [`crossing_from_rest`].
pub fn crossing_interval(
    x: &[f64],
    weights: &[f64],
    (y, target, rise): (&[f64], f64, f64),
    stream: &mut Stream,
    (replicates, level): (usize, f64),
    mut redraw: impl FnMut(&mut Stream) -> (Vec<f64>, f64),
) -> CrossingInterval {
    let mut found: Vec<f64> = (0..replicates)
        .map(|_| {
            let (y, target) = redraw(stream);
            crossing_from_rest(x, &rising_fit(&y, weights), target, rise).unwrap_or(f64::INFINITY)
        })
        .collect();
    sort(&mut found);
    let end = |p: f64| of_sorted(&found, p).unwrap_or(f64::INFINITY);
    let interval = Interval { lower: end(0.5 - 0.5 * level), upper: end(0.5 + 0.5 * level) };
    CrossingInterval { value: crossing_from_rest(x, &rising_fit(y, weights), target, rise), interval }
}
