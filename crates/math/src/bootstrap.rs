//! Redrawing what was measured, by batch, from a seeded stream.
//!
//! The unit redrawn is a contiguous batch, for requests near one another share a queue; redrawing single
//! requests gives intervals several times too narrow.

use crate::proportion::Interval;
use crate::quantile::{of_sorted, sort};
use crate::rng::Stream;

/// Indices of `batches` batches drawn with replacement.
pub fn resample(stream: &mut Stream, batches: usize) -> Vec<usize> {
    (0..batches).map(|_| stream.below(batches as u64) as usize).collect()
}

/// The percentile interval of a statistic of batches at this level: `statistic` is given the indices of one
/// redraw at a time. Infinite without replicates.
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

/// The values of the drawn batches, one after another: what an order statistic of a redraw is taken of.
pub fn gather(batches: &[&[f64]], drawn: &[usize]) -> Vec<f64> {
    drawn.iter().filter_map(|b| batches.get(*b)).flat_map(|b| b.iter().copied()).collect()
}
