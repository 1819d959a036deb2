//! Whether one stretch of a series lies above the rest of it: something came and, perhaps, went again.
//!
//! A scan of the means of blocks: every contiguous stretch of them against all the others, by the others' variance and
//! lag-one correlation, and of the stretches the one that stands out most. A test of a trend lost, for what came and went is none; so did
//! one for a single change point, which sees half of it. The variance is that of the others alone, because the stretch
//! itself may be anything.

/// Fewest blocks beside a stretch: a variance of fewer is no variance.
const FEWEST_OUTSIDE: usize = 10;
/// Correlation that is believed at most: beyond it blocks are too short to say anything.
const CORRELATED_AT_MOST: f64 = 0.9;
/// Sum of squares that stands in for none: where nothing varies, every difference is one.
const NOTHING_VARIES: f64 = 1e-12;

/// A stretch of blocks that lies above the others.
#[derive(Copy, Clone, PartialEq, Debug)]
pub struct Stretch {
    /// First block of it.
    pub from: usize,
    /// The block behind it.
    pub to: usize,
    /// Its mean less that of the others.
    pub above: f64,
    /// The largest difference of any stretch in standard errors: of several hundred, so what chance makes of it is well beyond 3.
    pub errors: f64,
}

/// The stretch of at most three quarters of these block means that lies the furthest above the others. A block
/// varies by `least_variance` at least (0 where only the values tell). `None` where there are fewer than eleven.
///
/// Whether something stands out is asked of the largest difference in standard errors, *where* it lies of the largest share
/// of the sum of squares that it explains: the first favours whatever leaves the calmest rest, and names a stretch far too long.
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

/// By how much the stretch lies above the others, and the standard error of that.
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
    // A stretch shorter than the memory has not the whole of it to pay for, but its own variance once at least.
    let error = libm::sqrt(per_block * memory * (1.0 / inside + 1.0 / outside));
    (within - centre, error)
}
