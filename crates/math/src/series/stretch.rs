//! Finds an interval of a series that is above the rest: a temporary change.
//!
//! The method scans the means of blocks. Every contiguous interval is compared with all other blocks, by their variance and
//! lag-one correlation, and the most prominent interval is returned. A test of a trend was rejected, because a temporary
//! change is no trend. A test for a single change point was rejected, because it detects only half of the change. The
//! variance comes only from the other blocks, because the interval may have any.

/// Minimum number of blocks outside the interval, because fewer determine no variance.
const FEWEST_OUTSIDE: usize = 10;
/// Largest correlation that is used; beyond it, the blocks are too short.
const CORRELATED_AT_MOST: f64 = 0.9;
/// Sum of squares in place of 0: in a constant series, every difference is significant.
const NOTHING_VARIES: f64 = 1e-12;

/// An interval of blocks that is above the others.
#[derive(Copy, Clone, PartialEq, Debug)]
pub struct Stretch {
    /// Index of the first block.
    pub from: usize,
    /// Index after the last block, so the range excludes it.
    pub to: usize,
    /// Mean of the interval less the mean of the others.
    pub above: f64,
    /// Largest difference of any interval in standard errors. It is the maximum of several hundred, so random variation
    /// reaches well beyond 3.
    pub errors: f64,
}

/// Returns the interval of at most three quarters of these block means that is the furthest above the others. A block's
/// variance is at least `least_variance` (0 to use only the values). `None` below eleven blocks.
///
/// The largest difference in standard errors decides significance; the largest explained share of the sum of squares
/// decides the *position*. The former favours the interval that leaves the calmest rest, which is far too long.
pub fn stretch(means: &[f64], least_variance: f64) -> Option<Stretch> {
    let n = means.len();
    let (mut best, mut most, mut largest) = (None, 0.0, f64::NEG_INFINITY);
    for from in 0..n {
        for to in from + 1..=n {
            let inside = to - from;
            if 4 * inside > 3 * n || n - inside < FEWEST_OUTSIDE {
                break;
            }
            let (above, error) = against_the_others(means, least_variance, (from, to));
            let explained = above * above * (inside * (n - inside)) as f64;
            if best.is_none() || (above > 0.0 && explained > most) {
                (best, most) = (Some((from, to, above)), if above > 0.0 { explained } else { 0.0 });
            }
            largest = largest.max(above / error);
        }
    }
    best.map(|(from, to, above)| Stretch { from, to, above, errors: largest })
}

/// Returns the difference of the interval from the others, and its standard error.
fn against_the_others(means: &[f64], least_variance: f64, (from, to): (usize, usize)) -> (f64, f64) {
    let (inside, outside) = ((to - from) as f64, (means.len() - (to - from)) as f64);
    let within = means[from..to].iter().sum::<f64>() / inside;
    let others = || means[..from].iter().chain(&means[to..]);
    let centre = others().sum::<f64>() / outside;
    let squares = others().map(|m| (m - centre) * (m - centre)).sum::<f64>().max(NOTHING_VARIES);
    let neighbours = |part: &[f64]| part.windows(2).map(|w| (w[0] - centre) * (w[1] - centre)).sum::<f64>();
    let correlation =
        ((neighbours(&means[..from]) + neighbours(&means[to..])) / squares).clamp(0.0, CORRELATED_AT_MOST);
    let memory = (1.0 + correlation) / (1.0 - correlation);
    let per_block = (squares / (outside - 1.0)).max(least_variance);
    // The full memory is conservative for an interval shorter than the memory, because its mean has less variance.
    let error = libm::sqrt(per_block * memory * (1.0 / inside + 1.0 / outside));
    (within - centre, error)
}
