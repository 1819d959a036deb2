//! What the fits keep of a level: its upper order statistics by batch, so that a bootstrap costs a walk, not a sort.
//!
//! A redraw of whole batches changes only how often each batch counts. With the values sorted once and each carrying
//! its batch's number, a percentile of the redraw is found by walking down from the largest until (1 − p) of the
//! redraw's weight is used up: some hundreds of steps for a p99. Gathering and sorting every redraw lost by two
//! orders of magnitude, and a sweep refits after every level.

use plimsoll_math::bootstrap::resample;
use plimsoll_math::isotonic::{Crossing, CrossingInterval, crossing, crossing_interval, rising_fit};
use plimsoll_math::quantile::sort;
use plimsoll_math::rng::Stream;
use plimsoll_math::special::{normal_inv, student_t_inv};

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
#[derive(Clone, Default, Debug)]
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

    /// Nothing, where no line is drawn through the level.
    pub fn nothing(_: &[i64]) -> Upper {
        Upper::default()
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
        self.n as f64 / self.effect(p)
    }

    /// The design effect of exceeding the p-quantile.
    fn effect(&self, p: f64) -> f64 {
        design_effect(&self.over(p))
    }

    /// Variance of ln p-quantile × values of the level, by redraws of batches.
    ///
    /// Redraws of B batches know nothing of B (hence B/(B − 1)), and take batches for independent. Close to saturation a
    /// queue remembers for longer than a batch; what correlation neighbouring batches still show is paid for as in a
    /// first-order autoregression, (1 + r) / (1 − r), and what it must have at this share of the limit ([`memory`]) counts
    /// where it is more: a level that met no burst shows none.
    fn unit_variance(&self, p: f64, of_limit: f64, stream: &mut Stream) -> f64 {
        let whole = log_s(self.quantile_s(p));
        let squares =
            (0..SPREAD_REDRAWS).map(|_| (log_s(self.redrawn_s(p, &redraw(stream))) - whole).powi(2));
        let variance = squares.sum::<f64>() / SPREAD_REDRAWS as f64;
        variance * self.n as f64 * self.unseen(p, of_limit)
    }

    /// By what factor redraws of batches understate the variance of the p-quantile at this share of the limit.
    fn unseen(&self, p: f64, of_limit: f64) -> f64 {
        let over = self.over(p);
        let b = over.len() as f64;
        if over.len() < 5 {
            return 2.0;
        }
        let shares: Vec<f64> = over.iter().map(|(k, m)| k / m).collect();
        let mean = shares.iter().sum::<f64>() / b;
        let squares: f64 = shares.iter().map(|s| (s - mean) * (s - mean)).sum();
        let products: f64 = shares.windows(2).map(|w| (w[0] - mean) * (w[1] - mean)).sum();
        // The estimate has a bias of about −(1 + 3r)/B in so few points.
        let r = if squares > 0.0 { products / squares } else { 0.0 };
        let r = ((b * r + 1.0) / (b - 3.0)).clamp(0.0, 0.7);
        let seen = design_effect(&over);
        let effect = (seen * (1.0 + r) / (1.0 - r)).max(memory(of_limit));
        b / (b - 1.0) * effect / seen
    }

    /// By how much ln p-quantile of half the level lies beside that of the whole, on average over its two halves.
    fn half_less_whole(&self, p: f64) -> f64 {
        let half = |first: bool| {
            let mut times = [0; BATCHES];
            let part = if first { &mut times[..BATCHES / 2] } else { &mut times[BATCHES / 2..] };
            part.fill(1);
            log_s(self.redrawn_s(p, &times))
        };
        0.5 * (half(true) + half(false)) - log_s(self.quantile_s(p))
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
pub struct TailFit {
    /// The crossing, requests/s, with its bootstrap interval.
    pub crossing: CrossingInterval,
    /// The fitted line with its band, lowest load first.
    pub line: Vec<FitPoint>,
}

/// Fits levels (load, what was kept; any order) at percentile `p` and finds where they reach `factor` × `zero`.
///
/// Three things that redraws of each level for itself would get wrong (all seen on queues whose formula is known):
/// - *A level that met no burst believes that it knows its tail.* At the onset of M/M/16, 20 000 requests hold so few
///   bursts that the median level sees 2 % of its true variance. What neighbours in load and tail saw is shared
///   ([`shared`]), for weights and for spread; weights by each level's own n_eff would favour the lucky ones.
/// - *A percentile of few bursts reads low*: a mean of −3 % (c = 8) to −8 % (c = 16) there. Starting from an empty queue
///   is not the cause (cutting 5 or 10 % of the window changes nothing). Of a bias that goes as 1/n, half a level has
///   twice as much: whole less the mean of its halves, shared like the variance, is added (the jackknife).
/// - *The zero-contention value is uncertain too*, and moves every crossing alike. It is redrawn from its own batches, not from a
///   normal law about it: beside a step of the latency (a chunk of a prompt more) it errs to one side, by the whole step.
pub fn fit(
    levels: &[(f64, &Upper)],
    zero: &Upper,
    p: f64,
    factor: f64,
    limit: Option<f64>,
    (stream, replicates): (&mut Stream, usize),
) -> TailFit {
    let mut levels = levels.to_vec();
    levels.sort_by(|a, b| a.0.total_cmp(&b.0));
    let x: Vec<f64> = levels.iter().map(|level| level.0).collect();
    let plain: Vec<f64> = levels.iter().map(|level| log_s(level.1.quantile_s(p))).collect();
    let sizes: Vec<f64> = levels.iter().map(|level| level.1.n as f64).collect();
    let alike = |of: Vec<f64>| shared(&x, &plain, &sizes, &of);
    let of_limit = |rate: f64| limit.map_or(0.0, |limit| rate / limit);
    let unit = alike(levels.iter().map(|(x, level)| level.unit_variance(p, of_limit(*x), stream)).collect());
    let low = alike(levels.iter().map(|level| level.1.half_less_whole(p)).collect());
    let sd: Vec<f64> = unit.iter().zip(&sizes).map(|(unit, n)| (unit / n).sqrt()).collect();
    let weights: Vec<f64> = sd.iter().map(|sd| 1.0 / (sd * sd).max(1e-8)).collect();
    let y: Vec<f64> = plain.iter().zip(&low).map(|(y, low)| y - low.clamp(-LOW_AT_MOST, 0.0)).collect();
    let target = log_s(zero.quantile_s(p)) + factor.ln();
    let effect = alike(levels.iter().map(|(x, level)| level.effect(p).max(memory(of_limit(*x)))).collect());
    let bursts: Vec<f64> = effect.iter().zip(&sizes).map(|(effect, n)| n * (1.0 - p) / effect).collect();
    let by = spread(&x, &y, &sd, &bursts, crossing(&x, &rising_fit(&y, &weights), target));
    let (zero_s, zero_wider) = (log_s(zero.quantile_s(p)), zero.unseen(p, 0.0).sqrt());
    let mut drawn: Vec<Vec<f64>> = Vec::with_capacity(replicates);
    let found =
        crossing_interval(&x, &weights, (&y, target, factor.ln()), stream, (replicates, LEVEL), |stream| {
            let y: Vec<f64> = y.iter().zip(&sd).map(|(y, sd)| y + WIDER * by * sd * normal(stream)).collect();
            drawn.push(rising_fit(&y, &weights));
            (y, target + zero_wider * (log_s(zero.redrawn_s(p, &redraw(stream))) - zero_s))
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
    TailFit { crossing: found, line }
}

/// Redraws for the variance of one level.
const SPREAD_REDRAWS: usize = 100;
/// What redraws do not know: that levels were placed, and the search ended, by what the levels before had said.
/// Calibrated on seeds 1 to 20 of `examples/accuracy.rs` (1.0: 112 of 120 intervals cover, M/D/4 only 16 of 20), judged on
/// seeds 41 to 60: 117 of 120, no kind of queue under 19 of 20, median width 5.5 to 8.9 % of the onset.
const WIDER: f64 = 1.4;
/// Design effect that a queue at a share ρ of its limit has at least, times (1 − ρ)². In heavy traffic a queue remembers
/// about 4 / (1 − ρ)² arrivals, and regular service halves that; M/M/c at its onset shows 1 to 2.
const MEMORY: f64 = 0.5;
/// Share of the limit beyond which memory is not extrapolated.
const CLOSE: f64 = 0.98;
/// Most that a percentile is taken to read low, as a logarithm.
const LOW_AT_MOST: f64 = 0.25;
/// Levels whose loads differ by less than about this, as a logarithm, are alike.
const ALIKE_LOAD: f64 = 0.05;
/// And whose percentiles differ by less than about this.
const ALIKE_TAIL: f64 = 0.4;

/// What each level is given of a figure that alike levels share: the mean over all, by how much was measured and how
/// alike they are.
fn shared(x: &[f64], y: &[f64], sizes: &[f64], of: &[f64]) -> Vec<f64> {
    let near = |a: f64, b: f64, width: f64| ((a - b) / width).powi(2);
    (0..x.len())
        .map(|i| {
            let (mut sum, mut total) = (0.0, 0.0);
            for j in 0..x.len() {
                let apart = near(x[i].ln(), x[j].ln(), ALIKE_LOAD) + near(y[i], y[j], ALIKE_TAIL);
                let weight = sizes[j] * (-0.5 * apart).exp();
                sum += weight * of[j];
                total += weight;
            }
            sum / total
        })
        .collect()
}

/// By how much the spread within levels is to be widened near a crossing: by what levels there scatter about a straight
/// line beyond it, and by how little both are known (Student's t; as many degrees of freedom as there are bursts beyond
/// the percentile, and levels beyond the line's two).
fn spread(x: &[f64], y: &[f64], sd: &[f64], bursts: &[f64], at: Crossing) -> f64 {
    let at = match at {
        Crossing::At(rate) => rate,
        Crossing::Before => x.first().copied().unwrap_or(1.0),
        Crossing::Beyond => x.last().copied().unwrap_or(1.0),
    };
    let near: Vec<usize> = (0..x.len()).filter(|i| (x[*i] / at).ln().abs() <= ALIKE_LOAD).collect();
    let within: f64 = near.iter().map(|i| bursts[*i]).sum();
    let sum =
        |of: &dyn Fn(usize) -> f64| near.iter().map(|i| of(*i) / (sd[*i] * sd[*i]).max(1e-8)).sum::<f64>();
    let (total, u) = (sum(&|_| 1.0), |i: usize| (x[i] / at).ln());
    let (mean_u, mean_y) = (sum(&u) / total, sum(&|i| y[i]) / total);
    let squares = sum(&|i| (u(i) - mean_u).powi(2));
    let slope = sum(&|i| (u(i) - mean_u) * (y[i] - mean_y)) / squares;
    let between = (near.len() as f64 - 2.0).max(0.0);
    let scatter = sum(&|i| (y[i] - mean_y - slope * (u(i) - mean_u)).powi(2));
    let scatter = if between > 0.0 && squares > 0.0 { scatter } else { 0.0 };
    let degrees = (within + between).max(FEWEST_DEGREES);
    let beyond = ((within + scatter) / (within + between).max(1e-9)).max(1.0);
    student_t_inv(0.975, degrees) / NORMAL_975 * beyond.sqrt()
}

/// Fewest degrees of freedom that a spread is taken to have.
const FEWEST_DEGREES: f64 = 2.0;

/// The design effect that a queue has at least at this share of its limit.
fn memory(of_limit: f64) -> f64 {
    (MEMORY / (1.0 - of_limit.min(CLOSE)).powi(2)).max(1.0)
}

fn normal(stream: &mut Stream) -> f64 {
    normal_inv(stream.uniform())
}

/// ln of seconds, where what never ended counts as a year: a fit must stay finite to be pooled.
fn log_s(s: f64) -> f64 {
    s.clamp(1e-9, 3e7).ln()
}

/// The load of a crossing, if it lies among the levels.
pub(crate) fn crossing_rate(crossing: Crossing) -> Option<f64> {
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

#[cfg(test)]
mod tests {
    use super::*;

    /// So many values of some `ms`, and `far` of them, evenly strewn, at `far_ms`.
    fn values(n: usize, ms: f64, (far, far_ms): (usize, f64), seed: u64) -> Upper {
        let mut stream = Stream::new(seed, "values", 0);
        let one = |i: usize| match far > 0 && i % (n / far) == 7 && i / (n / far) < far {
            true => far_ms,
            false => ms * (0.9 + 0.1 * stream.uniform()),
        };
        Upper::keep(&(0..n).map(one).map(|ms| (1e6 * ms) as i64).collect::<Vec<_>>())
    }

    /// The flat curve of a batching engine: 1.21, 1.33, 1.44 and 1.6 times 85 ms, which is what the p99 without contention is; 1200
    /// requests read 70, because a step of the latency lies there and 11 of them, not 12, are beyond it.
    #[test]
    fn an_onset_is_as_uncertain_as_its_zero_contention_value() {
        let levels: Vec<(f64, Upper)> = [(4.2, 1.21), (6.2, 1.33), (8.3, 1.44), (10.3, 1.6)]
            .map(|(load, times)| (load, values(4_000, 70.0, (80, times * 85.0), 3)))
            .into();
        let levels: Vec<(f64, &Upper)> = levels.iter().map(|(load, upper)| (*load, upper)).collect();
        let zero = values(1_200, 70.0, (11, 85.0), 5);
        let found = fit(&levels, &zero, 0.99, 1.5, None, (&mut Stream::new(1, "onset", 0), 400)).crossing;
        assert!(found.interval.lower > 0.0, "{found:?}");
        assert!(found.interval.contains(9.1), "{found:?}");
        // Beside a curve that is far over the factor everywhere, no redraw reaches the lightest level.
        let steep: Vec<(f64, &Upper)> = levels.iter().map(|(load, _)| (*load, levels[3].1)).collect();
        let low = values(1_200, 40.0, (24, 50.0), 5);
        let found = fit(&steep, &low, 0.99, 1.5, None, (&mut Stream::new(1, "onset", 0), 400)).crossing;
        assert!(found.interval.lower > 0.0 && found.interval.upper < 4.2, "{found:?}");
    }
}
