//! Numbers in the order of time: batch means, steady state, drift, burstiness.
//!
//! Everything a server emits is correlated with what it emitted before, and an interval that forgets it is
//! several times too narrow. Contiguous batches long against that correlation have means that are nearly
//! independent, which needs neither a model nor a bandwidth; where batches are still correlated (drift of a
//! queue near saturation) the correlation that remains is estimated and paid for.

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

/// Disjoint batches into which a level is cut for its means: enough degrees of freedom for t, each as long as
/// can be.
pub const BATCHES: usize = 20;

/// The means of `batches` contiguous runs of `values`, whose lengths differ by at most one. Fewer where
/// there are fewer values.
pub fn batch_means(values: &[f64], batches: usize) -> Vec<f64> {
    batch_means_of(values.iter().copied(), values.len(), batches)
}

/// The same of `n` values that are not held.
pub fn batch_means_of(mut values: impl Iterator<Item = f64>, n: usize, batches: usize) -> Vec<f64> {
    let batches = batches.min(n);
    (0..batches)
        .map(|b| {
            let size = (b + 1) * n / batches - b * n / batches;
            values.by_ref().take(size).sum::<f64>() / size as f64
        })
        .collect()
}

/// The mean of values in the order of time, with an interval by batch means at this level (Student t with
/// one degree of freedom less than there are batches). `None` below two batches.
pub fn mean(values: &[f64], batches: usize, level: f64) -> Option<Mean> {
    mean_of_batches(&batch_means(values, batches), level)
}

/// The mean of batch means with its interval.
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

/// A ratio of two totals (cost per request, tokens per second) from their sums over the same batches, by
/// the delta method. `None` below two batches or where the denominator's total is not positive.
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

/// How many values to cut from the start so that the rest looks steady: MSER-5 (White, Cobb, Spratt 2000),
/// the cut, in batches of five, that minimises s²/(N − d) over d ≤ N/2. Always a multiple of five; 0 below
/// four batches. Values are finite.
pub fn mser5(values: &[f64]) -> usize {
    mser5_within(values, values.len() / 2)
}

/// The same, searched only among cuts of at most `most` values.
pub fn mser5_within(values: &[f64], most: usize) -> usize {
    let batches: Vec<f64> = values.chunks_exact(5).map(|c| c.iter().sum::<f64>() / 5.0).collect();
    let n = batches.len();
    if n < 4 {
        return 0;
    }
    let most = most.div_ceil(5);
    // Sums are taken from the end about a fixed centre, so that a long flat tail does not cancel.
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

/// Whether the mean of the first `cut` values differs from that of the rest by more than a correlated series does by
/// chance, at this two-sided confidence.
///
/// The variance is the rest's alone, for the front may be anything: that of its mean from all overlapping batches of a
/// quarter of it (long against its memory if anything is; nine degrees of freedom to half of that are paid for by t). A front chosen
/// because it looked different needs a confidence well over the usual. False below four values on either side.
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

/// By how much the in-flight count differs from rate × time in system, relative to it: Little's law, from
/// per-batch means of the count and per-batch products. The two must come from different counters, or the
/// law is an identity. `None` as for [`ratio`].
pub fn little_closure(in_flight: &[f64], rate_times_latency: &[f64], level: f64) -> Option<Mean> {
    let r = ratio(in_flight, rate_times_latency, level)?;
    let shift = Interval { lower: r.interval.lower - 1.0, upper: r.interval.upper - 1.0 };
    Some(Mean { value: r.value - 1.0, interval: shift })
}

/// Events per window: `times` in rising order, counted in contiguous windows of `width` from `start`; a
/// window not full by `end` is left out. Same unit throughout.
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

/// The index of dispersion of counts, variance over mean: 1 for a Poisson process, 0 for a metronome,
/// above 1 for bursts. `None` below two windows or without any event.
pub fn dispersion_index(counts: &[u64]) -> Option<f64> {
    let n = counts.len() as f64;
    let mean = counts.iter().map(|c| *c as f64).sum::<f64>() / n;
    if counts.len() < 2 || mean == 0.0 {
        return None;
    }
    let s2 = counts.iter().map(|c| (*c as f64 - mean) * (*c as f64 - mean)).sum::<f64>() / (n - 1.0);
    Some(s2 / mean)
}

/// The coefficient of variation, standard deviation over mean; `None` below two values or at mean zero.
pub fn coefficient_of_variation(values: &[f64]) -> Option<f64> {
    let n = values.len() as f64;
    let mean = values.iter().sum::<f64>() / n;
    if values.len() < 2 || mean == 0.0 {
        return None;
    }
    let s2 = values.iter().map(|v| (v - mean) * (v - mean)).sum::<f64>() / (n - 1.0);
    Some(libm::sqrt(s2) / mean)
}
