//! Time series: batch means, steady state, drift, burstiness.
//!
//! A server's outputs are autocorrelated, and an interval that ignores this is several times too narrow. Contiguous batches
//! that are long against the correlation have nearly independent means. They need neither a model nor a bandwidth. If
//! batches are still correlated (drift of a queue near saturation), the remaining correlation is estimated and accounted
//! for.

mod drift;
mod line;
mod stretch;
mod trend;

pub use drift::{DRIFT_BATCHES, Slope, slope, slope_of_batches};
pub use line::line_at;
pub use stretch::{Stretch, stretch};
pub use trend::{Trend, mann_kendall_hamed_rao, sen_slope};

use crate::proportion::Interval;
use crate::special::student_t_inv;

#[derive(Copy, Clone, PartialEq, Debug)]
pub struct Mean {
    pub value: f64,
    pub interval: Interval,
}

/// Disjoint batches of a level for its means: enough degrees of freedom for t, each batch as long as possible.
pub const BATCHES: usize = 20;

/// Returns the means of `batches` contiguous runs of `values`, whose lengths differ by at most one. Fewer values give fewer
/// batches.
pub fn batch_means(values: &[f64], batches: usize) -> Vec<f64> {
    batch_means_of(values.iter().copied(), values.len(), batches)
}

/// Returns the batch means of `n` values from an iterator.
pub fn batch_means_of(mut values: impl Iterator<Item = f64>, n: usize, batches: usize) -> Vec<f64> {
    let batches = batches.min(n);
    (0..batches)
        .map(|b| {
            let size = (b + 1) * n / batches - b * n / batches;
            values.by_ref().take(size).sum::<f64>() / size as f64
        })
        .collect()
}

/// Returns the mean of values in time order, with an interval by batch means at this level. It uses Student's t with one
/// degree of freedom less than there are batches. `None` below two batches.
pub fn mean(values: &[f64], batches: usize, level: f64) -> Option<Mean> {
    mean_of_batches(&batch_means(values, batches), level)
}

/// Returns the mean of batch means with its interval.
pub fn mean_of_batches(means: &[f64], level: f64) -> Option<Mean> {
    if means.len() < 2 {
        return None;
    }
    let b = means.len() as f64;
    let value = means.iter().sum::<f64>() / b;
    let s2 = means.iter().map(|m| (m - value) * (m - value)).sum::<f64>() / (b - 1.0);
    let half = student_t_inv(0.5 + 0.5 * level, b - 1.0) * libm::sqrt(s2 / b);
    Some(Mean { value, interval: Interval { lower: value - half, upper: value + half } })
}

/// Returns the ratio of two totals (cost per request, tokens per second) from their sums over common batches, by the delta
/// method. `None` below two batches or if the denominator's total is not positive.
pub fn ratio(above: &[f64], below: &[f64], level: f64) -> Option<Mean> {
    let total = below.iter().sum::<f64>();
    if above.len() != below.len() || above.len() < 2 || total.is_nan() || total <= 0.0 {
        return None;
    }
    let value = above.iter().sum::<f64>() / total;
    let b = above.len() as f64;
    let square = |(a, d): (&f64, &f64)| (a - value * d) * (a - value * d);
    let s2 = above.iter().zip(below).map(square).sum::<f64>() / (b - 1.0);
    let half = student_t_inv(0.5 + 0.5 * level, b - 1.0) * libm::sqrt(s2 * b) / total;
    Some(Mean { value, interval: Interval { lower: value - half, upper: value + half } })
}

/// Returns the number of values to cut from the start so that the rest is steady: MSER-5 (White, Cobb, Spratt 2000). The
/// cut, in batches of five, minimises s²/(N − d) over d ≤ N/2. It is a multiple of five, and 0 below four batches. Values
/// are finite.
pub fn mser5(values: &[f64]) -> usize {
    mser5_within(values, values.len() / 2)
}

/// Returns the MSER-5 cut among cuts of at most `most` values.
pub fn mser5_within(values: &[f64], most: usize) -> usize {
    let batches: Vec<f64> = values.chunks_exact(5).map(|c| c.iter().sum::<f64>() / 5.0).collect();
    let n = batches.len();
    if n < 4 {
        return 0;
    }
    let most = most.div_ceil(5);
    // Sums start at the end about a fixed centre, so that a long flat tail does not cancel.
    let centre = batches[n - 1];
    let (mut sum, mut squares) = (0.0, 0.0);
    let (mut best, mut cut) = (f64::INFINITY, 0);
    for d in (0..n).rev() {
        let v = batches[d] - centre;
        sum += v;
        squares += v * v;
        let left = (n - d) as f64;
        let score = (squares - sum * sum / left).max(0.0) / (left * left);
        if d <= n / 2 && d <= most && score <= best {
            (best, cut) = (score, d);
        }
    }
    5 * cut
}

/// Returns whether the mean of the first `cut` values differs from the rest, at this two-sided confidence. The difference
/// must exceed the random variation of a correlated series.
///
/// The variance comes only from the rest, because the front may have any. It is the variance of the rest's mean from all
/// overlapping batches of a quarter of it. That length is as long against the memory as possible; t accounts for its 4.5 to
/// 9 degrees of freedom. A front selected for its difference needs a confidence well over the usual. False below four
/// values on either side.
pub fn front_differs(values: &[f64], cut: usize, confidence: f64) -> bool {
    let (front, rest) = values.split_at(cut.min(values.len()));
    if front.len() < 4 || rest.len() < 4 {
        return false;
    }
    let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64;
    let centre = mean(rest);
    let (n, length) = (rest.len(), rest.len() / 4);
    let mut inside: f64 = rest[..length].iter().map(|v| v - centre).sum();
    let mut squares = 0.0;
    for last in length..=n {
        squares += inside * inside;
        if last < n {
            inside += rest[last] - rest[last - length];
        }
    }
    let (n, m) = (n as f64, length as f64);
    let per_value = squares * n / (m * (n - m + 1.0) * (n - m));
    let error = libm::sqrt(per_value * (1.0 / front.len() as f64 + 1.0 / n));
    (mean(front) - centre).abs() > student_t_inv(0.5 + 0.5 * confidence, 1.5 * (n / m - 1.0)) * error
}

/// Returns the relative difference of the in-flight count from rate × time in system: Little's law, from per-batch means of
/// the count and per-batch products. The two must come from different counters, because otherwise the law is an identity.
/// `None` as for [`ratio`].
pub fn little_closure(in_flight: &[f64], rate_times_latency: &[f64], level: f64) -> Option<Mean> {
    let r = ratio(in_flight, rate_times_latency, level)?;
    let shift = Interval { lower: r.interval.lower - 1.0, upper: r.interval.upper - 1.0 };
    Some(Mean { value: r.value - 1.0, interval: shift })
}

/// Returns the events per window: `times` in rising order, counted in contiguous windows of `width` from `start`. A window
/// that `end` cuts off is omitted. All arguments have one unit.
pub fn counts(times: &[i64], start: i64, end: i64, width: i64) -> Vec<u64> {
    let Some(length) = end.checked_sub(start).filter(|length| *length > 0 && width > 0) else {
        return Vec::new();
    };
    let mut counts = vec![0; (length / width) as usize];
    for t in times {
        let window = t.checked_sub(start).map(|since| since.div_euclid(width));
        if let Some(count) = window.and_then(|w| usize::try_from(w).ok()).and_then(|w| counts.get_mut(w)) {
            *count += 1;
        }
    }
    counts
}

/// Returns the index of dispersion of counts, variance over mean: 1 for a Poisson process, 0 for constant counts, above 1
/// for bursts. `None` below two windows or without any event.
pub fn dispersion_index(counts: &[u64]) -> Option<f64> {
    let n = counts.len() as f64;
    let mean = counts.iter().map(|c| *c as f64).sum::<f64>() / n;
    if counts.len() < 2 || mean == 0.0 {
        return None;
    }
    let s2 = counts.iter().map(|c| (*c as f64 - mean) * (*c as f64 - mean)).sum::<f64>() / (n - 1.0);
    Some(s2 / mean)
}

/// Returns the coefficient of variation, standard deviation over mean; `None` below two values or at mean zero.
pub fn coefficient_of_variation(values: &[f64]) -> Option<f64> {
    let n = values.len() as f64;
    let mean = values.iter().sum::<f64>() / n;
    if values.len() < 2 || mean == 0.0 {
        return None;
    }
    let s2 = values.iter().map(|v| (v - mean) * (v - mean)).sum::<f64>() / (n - 1.0);
    Some(libm::sqrt(s2) / mean)
}
