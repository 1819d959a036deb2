//! Bootstrap resampling of measurements by batch, from a seeded stream.
//!
//! The unit is a contiguous batch, because neighbouring requests share a queue. Resampling single requests gives intervals
//! several times too narrow.

use crate::proportion::Interval;
use crate::quantile::{of_sorted, sort};
use crate::rng::Stream;

/// Returns the indices of `batches` batches drawn with replacement.
pub fn resample(stream: &mut Stream, batches: usize) -> Vec<usize> {
    (0..batches).map(|_| stream.below(batches as u64) as usize).collect()
}

/// Returns the percentile interval of a statistic of batches at this level. `statistic` gets the indices of one resample
/// per call. The interval is infinite without replicates.
pub fn interval(
    stream: &mut Stream,
    batches: usize,
    replicates: usize,
    level: f64,
    mut statistic: impl FnMut(&[usize]) -> f64,
) -> Interval {
    let mut found: Vec<f64> = (0..replicates).map(|_| statistic(&resample(stream, batches))).collect();
    sort(&mut found);
    Interval {
        lower: of_sorted(&found, 0.5 - 0.5 * level).unwrap_or(f64::NEG_INFINITY),
        upper: of_sorted(&found, 0.5 + 0.5 * level).unwrap_or(f64::INFINITY),
    }
}

/// Returns the concatenated values of the drawn batches, the input of an order statistic.
pub fn gather(batches: &[&[f64]], drawn: &[usize]) -> Vec<f64> {
    drawn.iter().filter_map(|b| batches.get(*b)).flat_map(|b| b.iter().copied()).collect()
}
