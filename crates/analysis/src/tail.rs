//! What the fits keep of a level: its upper order statistics by batch, so that a bootstrap costs a walk, not a sort.
//!
//! A redraw of whole batches changes only how often each batch counts. With the values sorted once and each carrying
//! its batch's number, a percentile of the redraw is found by walking down from the largest until (1 − p) of the
//! redraw's weight is used up: some hundreds of steps for a p99. Gathering and sorting every redraw lost by two
//! orders of magnitude, and a sweep refits after every level.

use plimsoll_math::bootstrap::resample;
use plimsoll_math::isotonic::{Crossing, CrossingInterval, crossing_interval, rising_fit};
use plimsoll_math::quantile::sort;
use plimsoll_math::rng::Stream;
use plimsoll_math::special::student_t_inv;

use crate::columns::ABSENT;
use crate::findings::FitPoint;
use crate::order::{LEVEL, NORMAL_975, seconds};

/// Batches that are redrawn. Few enough that each is long against what a queue remembers; the t quantile pays.
const BATCHES: usize = 20;

/// Share of the values kept of a level of up to [`LARGE`] values: enough for the median and its redraws.
const KEPT: f64 = 0.65;
/// Above this many values the tail is what anyone asks for.
const LARGE: usize = 200_000;
/// Share kept of a large level.
const KEPT_OF_LARGE: f64 = 0.2;

/// Fewest values expected beyond a percentile for it to enter a fit. The same ten as for showing it, in plain counts:
/// correlation is paid for by the bootstrap over batches.
pub const BEYOND: f64 = 10.0;

/// The upper values of a level, falling, each with its batch.
#[derive(Clone, Debug)]
pub struct Upper {
    n: usize,
    sizes: [u32; BATCHES],
    falling: Vec<(i64, u8)>,
}

impl Upper {
    /// Keeps what is needed of values in the order of due times; absent ones are left out.
    pub fn keep(in_due_order: &[i64]) -> Upper {
        let values: Vec<i64> = in_due_order.iter().copied().filter(|ns| *ns != ABSENT).collect();
        let n = values.len();
        let mut sizes = [0u32; BATCHES];
        let mut falling: Vec<(i64, u8)> = Vec::with_capacity(n);
        for (batch, size) in sizes.iter_mut().enumerate() {
            let part = &values[batch * n / BATCHES..(batch + 1) * n / BATCHES];
            *size = part.len() as u32;
            falling.extend(part.iter().map(|ns| (*ns, batch as u8)));
        }
        let share = if n > LARGE { KEPT_OF_LARGE } else { KEPT };
        let keep = ((n as f64 * share).ceil() as usize).clamp(n.min(1), n);
        if keep < n {
            falling.select_nth_unstable_by(keep, |a, b| b.cmp(a));
            falling.truncate(keep);
        }
        falling.sort_unstable_by(|a, b| b.cmp(a));
        falling.shrink_to_fit();
        Upper { n, sizes, falling }
    }

    /// Values of the level.
    pub fn len(&self) -> usize {
        self.n
    }

    /// Are there enough values beyond this percentile, and are they kept?
    pub fn supports(&self, p: f64) -> bool {
        self.n as f64 * (1.0 - p) >= BEYOND && (self.falling.len() as f64) > 1.1 * (1.0 - p) * self.n as f64
    }

    /// The p-quantile, s; `+∞` among failures.
    pub fn quantile_s(&self, p: f64) -> f64 {
        self.redrawn_s(p, &[1; BATCHES])
    }

    /// The p-quantile of a redraw in which batch b counts `times[b]` times, s.
    fn redrawn_s(&self, p: f64, times: &[u32; BATCHES]) -> f64 {
        let total: u64 = self.sizes.iter().zip(times).map(|(size, times)| u64::from(size * times)).sum();
        let rank = plimsoll_math::quantile::rank(total as usize, p) as u64;
        // x₍rank₎ is the first value, from above, with at least total − rank + 1 at or above it.
        let mut left = (total - rank + 1) as i64;
        for (ns, batch) in &self.falling {
            left -= i64::from(times[usize::from(*batch)]);
            if left <= 0 {
                return seconds(*ns);
            }
        }
        self.falling.last().map_or(f64::INFINITY, |(ns, _)| seconds(*ns))
    }

    /// (values over the p-quantile, values) of every batch.
    fn over(&self, p: f64) -> Vec<(f64, f64)> {
        let limit_s = self.quantile_s(p);
        let mut over = [0.0; BATCHES];
        for (_, batch) in self.falling.iter().take_while(|(ns, _)| seconds(*ns) > limit_s) {
            over[usize::from(*batch)] += 1.0;
        }
        over.iter()
            .zip(&self.sizes)
            .filter(|(_, size)| **size > 0)
            .map(|(k, m)| (*k, f64::from(*m)))
            .collect()
    }

    /// n over the design effect of exceeding the p-quantile.
    pub fn n_eff(&self, p: f64) -> f64 {
        self.n as f64 / design_effect(&self.over(p))
    }

    /// By how much the spread of redraws is to be widened.
    ///
    /// Redraws of B batches know nothing of B (the t quantile and B/(B − 1)), and take batches for independent. Close
    /// to saturation a queue remembers for longer than a batch; what correlation neighbouring batches still show is
    /// paid for as in a first-order autoregression, (1 + r) / (1 − r) in variance.
    fn widening(&self, p: f64) -> f64 {
        let over = self.over(p);
        let b = over.len() as f64;
        if over.len() < 5 {
            return 1.5;
        }
        let shares: Vec<f64> = over.iter().map(|(k, m)| k / m).collect();
        let mean = shares.iter().sum::<f64>() / b;
        let squares: f64 = shares.iter().map(|s| (s - mean) * (s - mean)).sum();
        let products: f64 = shares.windows(2).map(|w| (w[0] - mean) * (w[1] - mean)).sum();
        // The estimate has a bias of about −(1 + 3r)/B in so few points.
        let r = if squares > 0.0 { products / squares } else { 0.0 };
        let r = ((b * r + 1.0) / (b - 3.0)).clamp(0.0, 0.7);
        // Nor is there more to redraw from than independent values beyond the percentile.
        let beyond = (self.n_eff(p) * (1.0 - p)).clamp(2.0, b - 1.0);
        let few = student_t_inv(0.975, beyond) / NORMAL_975;
        few * (b / (b - 1.0) * (1.0 + r) / (1.0 - r)).sqrt()
    }

    /// The interval of the p-quantile by redraws, s.
    pub fn interval_s(&self, p: f64, stream: &mut Stream, replicates: usize) -> (f64, f64) {
        let mut found: Vec<f64> = (0..replicates).map(|_| self.redrawn_s(p, &redraw(stream))).collect();
        sort(&mut found);
        let end = |q: f64| plimsoll_math::quantile::of_sorted(&found, q).unwrap_or(f64::NAN);
        (end(0.5 - 0.5 * LEVEL), end(0.5 + 0.5 * LEVEL))
    }
}

fn redraw(stream: &mut Stream) -> [u32; BATCHES] {
    let mut times = [0; BATCHES];
    for batch in resample(stream, BATCHES) {
        times[batch] += 1;
    }
    times
}

/// The monotone fit of ln percentile on load, and where it crosses the factor times the zero-contention value.
pub struct Fit {
    /// The crossing, requests/s, with its bootstrap interval.
    pub crossing: CrossingInterval,
    /// The fitted line with its band, lowest load first.
    pub line: Vec<FitPoint>,
}

/// Fits levels (load, what was kept; any order) at percentile `p` and finds where they reach `factor` × `zero`.
pub fn fit(
    levels: &[(f64, &Upper)],
    zero: &Upper,
    p: f64,
    factor: f64,
    stream: &mut Stream,
    replicates: usize,
) -> Fit {
    let mut levels = levels.to_vec();
    levels.sort_by(|a, b| a.0.total_cmp(&b.0));
    let x: Vec<f64> = levels.iter().map(|level| level.0).collect();
    let weights: Vec<f64> = levels.iter().map(|level| level.1.n_eff(p)).collect();
    let y: Vec<f64> = levels.iter().map(|level| log_s(level.1.quantile_s(p))).collect();
    let target = log_s(zero.quantile_s(p)) + factor.ln();
    let widening: Vec<f64> = levels.iter().map(|level| level.1.widening(p)).collect();
    let zero_widening = zero.widening(p);
    let mut drawn: Vec<Vec<f64>> = Vec::with_capacity(replicates);
    let plain = y.clone();
    let widened = |drawn: f64, plain: f64, by: f64| plain + by * (drawn - plain);
    let crossing = crossing_interval(&x, &weights, (&y, target), stream, (replicates, LEVEL), |stream| {
        let y: Vec<f64> = (0..levels.len())
            .map(|i| widened(log_s(levels[i].1.redrawn_s(p, &redraw(stream))), plain[i], widening[i]))
            .collect();
        let zero_s =
            widened(log_s(zero.redrawn_s(p, &redraw(stream))), log_s(zero.quantile_s(p)), zero_widening);
        let target = zero_s + factor.ln();
        drawn.push(rising_fit(&y, &weights));
        (y, target)
    });
    let fitted = rising_fit(&y, &weights);
    let line = (0..x.len())
        .map(|i| {
            let mut here: Vec<f64> = drawn.iter().map(|fit| fit[i]).collect();
            sort(&mut here);
            let end = |q: f64| plimsoll_math::quantile::of_sorted(&here, q).unwrap_or(fitted[i]).exp();
            FitPoint {
                rate_per_s: x[i],
                fitted_s: fitted[i].exp(),
                lower_s: end(0.5 - 0.5 * LEVEL),
                upper_s: end(0.5 + 0.5 * LEVEL),
            }
        })
        .collect();
    Fit { crossing, line }
}

/// ln of seconds, where what never ended counts as a year: a fit must stay finite to be pooled.
fn log_s(s: f64) -> f64 {
    s.clamp(1e-9, 3e7).ln()
}

/// The load of a crossing, if it lies among the levels.
pub fn crossing_rate(crossing: Crossing) -> Option<f64> {
    match crossing {
        Crossing::At(rate) => Some(rate),
        Crossing::Before | Crossing::Beyond => None,
    }
}

/// The design effect of a share from (count over, size) per batch, by contiguous batches: a weight among levels. What
/// is shown and gated goes by `math`'s.
fn design_effect(batches: &[(f64, f64)]) -> f64 {
    let n: f64 = batches.iter().map(|b| b.1).sum();
    let over: f64 = batches.iter().map(|b| b.0).sum();
    let count = batches.len() as f64;
    if batches.len() < 2 || over <= 0.0 || over >= n {
        return 1.0;
    }
    let share = over / n;
    let s2 = batches.iter().map(|(k, m)| (k / m - share) * (k / m - share)).sum::<f64>() / (count - 1.0);
    (s2 / (share * (1.0 - share) * count / n)).max(1.0)
}
