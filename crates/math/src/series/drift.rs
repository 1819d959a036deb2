//! The drift of a level: the least-squares slope of a series, with an interval that remains valid for autocorrelated
//! series.
//!
//! The purpose is to detect a growing queue. Ordinary least squares on samples of the in-flight count treats every sample
//! as independent. At a lag-one correlation of 0.9, its interval at 95 % contains the true value in 35 %.
//!
//! This module cuts the series into batches and fits the line through their means. It estimates the remaining lag-one
//! correlation of the residuals and corrects its downward bias in thirty points. The standard error and the degrees of
//! freedom account for it.
//!
//! The test data are the in-flight counts of M/M/8 at load 0.95, 400 levels of 5 000 (20 000) arrivals. The interval at 95
//! % contained zero in 98 % (96 %). No level was reported as growing by more than 2 % of the offered rate, and 77 % (100 %)
//! were shown to grow by less. At load 1.05, the true growth is 4.8 %: 1.5 % (none) were shown to grow by less than 2 %,
//! and 41 % (80 %) by more. There the count is a random walk, no batch is long enough, and coverage is 0.78 to 0.80.

use crate::proportion::Interval;
use crate::special::student_t_inv;

use super::batch_means;

/// Batches for a slope: more than for a mean, because their correlation is also estimated.
pub const DRIFT_BATCHES: usize = 30;

/// Largest correlation between batches that is used. A level with more correlated batches is shorter than the memory of its
/// queue, which no arithmetic corrects.
const MOST_CORRELATED: f64 = 0.9;

#[derive(Copy, Clone, PartialEq, Debug)]
pub struct Slope {
    /// Change of value per step of the series.
    pub value: f64,
    pub interval: Interval,
    /// Lag-one correlation between batches that the interval accounts for.
    pub correlation: f64,
}

/// Returns the slope of an evenly spaced series, per step, cut into `batches`. `None` below five batches.
pub fn slope(values: &[f64], batches: usize, level: f64) -> Option<Slope> {
    let batches = batches.min(values.len());
    let steps = values.len() as f64 / batches.max(1) as f64;
    let fit = slope_of_batches(&batch_means(values, batches), level)?;
    Some(Slope {
        value: fit.value / steps,
        interval: Interval { lower: fit.interval.lower / steps, upper: fit.interval.upper / steps },
        correlation: fit.correlation,
    })
}

/// Returns the slope of evenly spaced batch means, per batch. `None` below five.
pub fn slope_of_batches(means: &[f64], level: f64) -> Option<Slope> {
    let n = means.len();
    if n < 5 {
        return None;
    }
    let b = n as f64;
    let middle = 0.5 * (b - 1.0);
    let level_mean = means.iter().sum::<f64>() / b;
    let spread = b * (b * b - 1.0) / 12.0;
    let value =
        means.iter().enumerate().map(|(i, m)| (i as f64 - middle) * (m - level_mean)).sum::<f64>() / spread;
    let left: Vec<f64> =
        means.iter().enumerate().map(|(i, m)| m - level_mean - value * (i as f64 - middle)).collect();
    let squares: f64 = left.iter().map(|r| r * r).sum();
    let correlation = residual_correlation(&left, squares);
    let inflation = slope_inflation(n, correlation);
    let error = libm::sqrt(squares / (b - 2.0) / spread * inflation);
    // Correlated residuals have fewer degrees of freedom: (1 − rho²)/(1 + rho²) of them for a variance (Bartlett 1946).
    let square = correlation * correlation;
    let df = (b - 2.0) * (1.0 - square) / (1.0 + square);
    let half = student_t_inv(0.5 + 0.5 * level, df) * error;
    Some(Slope { value, interval: Interval { lower: value - half, upper: value + half }, correlation })
}

/// Returns the lag-one correlation of the errors behind the residuals of a line, at least 0.
fn residual_correlation(left: &[f64], squares: f64) -> f64 {
    if squares == 0.0 {
        return 0.0;
    }
    let r = left.windows(2).map(|w| w[0] * w[1]).sum::<f64>() / squares;
    let b = left.len() as f64;
    // Residuals of a line through b points show rho less about (2 + 4 rho)/b (Kendall 1954, for a trend).
    ((b * r + 2.0) / (b - 4.0)).clamp(0.0, MOST_CORRELATED)
}

/// Returns the ratio of the slope's variance to s²/Σ(x − x̄)² if the errors have this correlation. It contains the
/// correlation's effect on the slope and on s², exactly, for errors of the first order.
fn slope_inflation(n: usize, rho: f64) -> f64 {
    let b = n as f64;
    let x = |i: usize| i as f64 - 0.5 * (b - 1.0);
    let spread = b * (b * b - 1.0) / 12.0;
    let (mut tilted, mut level) = (0.0, 0.0);
    for i in 0..n {
        for j in 0..n {
            let power = libm::pow(rho, i.abs_diff(j) as f64);
            tilted += x(i) * x(j) * power / spread;
            level += power / b;
        }
    }
    tilted / ((b - tilted - level) / (b - 2.0))
}
