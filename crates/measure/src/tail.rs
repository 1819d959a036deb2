//! Upper order statistics of a level by batch, which the fits use, so that a bootstrap needs no sort.
//!
//! A bootstrap replicate of whole batches changes only the number of times that each batch counts. The values are sorted once,
//! each with the number of its batch. A replicate's percentile is found by descending from the largest value until (1 − p) of
//! the weight is used. A p99 takes some hundreds of steps. Sorting every replicate was rejected because it is slower by two
//! orders of magnitude, and a sweep fits again after every level.

use plimsoll_math::bootstrap::resample;
use plimsoll_math::isotonic::{Crossing, CrossingInterval, crossing, crossing_interval, rising_fit};
use plimsoll_math::quantile::sort;
use plimsoll_math::rng::Stream;
use plimsoll_math::special::{normal_inv, student_t_inv};

use crate::columns::ABSENT;
use crate::findings::FitPoint;
use crate::order::{LEVEL, NORMAL_975, seconds};

/// Number of batches in the bootstrap. Each batch is long compared with a queue's correlation; the t quantile accounts for their small number.
const BATCHES: usize = 20;

/// Share of the values kept of a level of up to [`LARGE`] values: enough for the median and its replicates.
const KEPT: f64 = 0.65;
/// Number of values above which only the tail is kept.
const LARGE: usize = 200_000;
/// Share of the values kept of a large level.
const KEPT_OF_LARGE: f64 = 0.2;

/// Minimum expected number of values beyond a percentile in a fit. It equals the limit for display, but in plain counts,
/// because the bootstrap over batches accounts for correlation.
pub const BEYOND: f64 = 10.0;

/// The upper values of a level in descending order, each with its batch.
#[derive(Clone, Default, Debug)]
pub struct UpperTail {
    n: usize,
    sizes: [u32; BATCHES],
    falling: Vec<(i64, u8)>,
}

impl UpperTail {
    /// Keeps the upper part of values in the order of due times; absent values are left out.
    pub fn keep(in_due_order: &[i64]) -> UpperTail {
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
        UpperTail { n, sizes, falling }
    }

    /// Keeps no values, for a level that no limit uses.
    pub fn nothing(_: &[i64]) -> UpperTail {
        UpperTail::default()
    }

    /// Returns the number of values of the level.
    pub fn len(&self) -> usize {
        self.n
    }

    /// Returns whether enough values are beyond this percentile and were kept.
    pub fn supports(&self, p: f64) -> bool {
        self.n as f64 * (1.0 - p) >= BEYOND && (self.falling.len() as f64) > 1.1 * (1.0 - p) * self.n as f64
    }

    /// Returns the p-quantile in seconds; `+∞` among failures.
    pub fn quantile_s(&self, p: f64) -> f64 {
        self.redrawn_s(p, &[1; BATCHES])
    }

    /// Returns the p-quantile in seconds of a replicate in which batch b counts `times[b]` times.
    fn redrawn_s(&self, p: f64, times: &[u32; BATCHES]) -> f64 {
        let total: u64 = self.sizes.iter().zip(times).map(|(size, times)| u64::from(size * times)).sum();
        let rank = plimsoll_math::quantile::rank(total as usize, p) as u64;
        // x₍rank₎ is the first value from above with at least total − rank + 1 values at or above it.
        let mut left = (total - rank + 1) as i64;
        for (ns, batch) in &self.falling {
            left -= i64::from(times[usize::from(*batch)]);
            if left <= 0 {
                return seconds(*ns);
            }
        }
        self.falling.last().map_or(f64::INFINITY, |(ns, _)| seconds(*ns))
    }

    /// Returns (values over the p-quantile, values) of every batch.
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

    /// Returns n divided by the design effect of exceeding the p-quantile.
    pub fn n_eff(&self, p: f64) -> f64 {
        self.n as f64 / self.effect(p)
    }

    /// Returns the design effect of exceeding the p-quantile.
    fn effect(&self, p: f64) -> f64 {
        design_effect(&self.over(p))
    }

    /// Returns the variance of the ln p-quantile times the number of values, by bootstrap over batches.
    ///
    /// A bootstrap of B batches ignores B (hence B/(B − 1)), and assumes independent batches. Near saturation a queue is correlated
    /// for longer than a batch. The remaining correlation of neighbouring batches is corrected as in a first-order autoregression,
    /// (1 + r) / (1 − r). The minimum for this share of the limit ([`memory`]) counts if it is larger, because a level without a
    /// burst shows no correlation.
    fn unit_variance(&self, p: f64, of_limit: f64, stream: &mut Stream) -> f64 {
        let whole = log_s(self.quantile_s(p));
        let squares =
            (0..SPREAD_REDRAWS).map(|_| (log_s(self.redrawn_s(p, &redraw(stream))) - whole).powi(2));
        let variance = squares.sum::<f64>() / SPREAD_REDRAWS as f64;
        variance * self.n as f64 * self.unseen(p, of_limit)
    }

    /// Returns the factor by which the bootstrap underestimates the variance of the p-quantile at this share of the limit.
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
        // In this few points the estimate has a bias of about −(1 + 3r)/B.
        let r = if squares > 0.0 { products / squares } else { 0.0 };
        let r = ((b * r + 1.0) / (b - 3.0)).clamp(0.0, 0.7);
        let seen = design_effect(&over);
        let effect = (seen * (1.0 + r) / (1.0 - r)).max(memory(of_limit));
        b / (b - 1.0) * effect / seen
    }

    /// Returns the mean difference of the ln p-quantile between the halves of the level and the whole.
    fn half_less_whole(&self, p: f64) -> f64 {
        let half = |first: bool| {
            let mut times = [0; BATCHES];
            let part = if first { &mut times[..BATCHES / 2] } else { &mut times[BATCHES / 2..] };
            part.fill(1);
            log_s(self.redrawn_s(p, &times))
        };
        0.5 * (half(true) + half(false)) - log_s(self.quantile_s(p))
    }

    /// Returns the bootstrap interval of the p-quantile in seconds.
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

/// The monotone fit of the ln percentile on load, and its crossing of the factor times the zero-contention value.
pub struct TailFit {
    /// Crossing in requests per second, with its bootstrap interval.
    pub crossing: CrossingInterval,
    /// Fitted curve with its band, in ascending order of load.
    pub line: Vec<FitPoint>,
}

/// Fits levels (load, values; any order) at percentile `p` and finds the load where they reach `factor` × `zero`.
///
/// Separate bootstraps of each level would have three errors, all seen on queues with a known formula:
/// - *A level without a burst underestimates the variance of its tail.* At the onset of M/M/16, 20 000 requests contain so few
///   bursts that the median level shows 2 % of its true variance. Variances are therefore shared between levels of similar load
///   and tail ([`shared`]), for weights and for spread. Weights by the n_eff of each level would favour levels without bursts.
/// - *A percentile of few bursts is biased low*: a mean of −3 % (c = 8) to −8 % (c = 16) there. The empty queue at the start is
///   not the cause, because cutting 5 or 10 % of the window changes nothing. A bias proportional to 1/n is twice as large in
///   half a level. The difference of the whole and the mean of its halves, shared like the variance, is added (the jackknife).
/// - *The zero-contention value is uncertain too*, and shifts every crossing equally. It is redrawn from its batches and not
///   from a normal distribution. Next to a step of the latency (one more prompt chunk) its error has one sign and a full step.
pub fn fit(
    levels: &[(f64, &UpperTail)],
    zero: &UpperTail,
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

/// Number of bootstrap replicates for the variance of one level.
const SPREAD_REDRAWS: usize = 100;
/// Factor for the uncertainty that the bootstrap misses: earlier levels determine the next loads and the end of the search.
///
/// It is calibrated on seeds 1 to 20 of `examples/accuracy.rs` (1.0: 112 of 120 intervals cover, M/D/4 only 16 of 20). On seeds
/// 41 to 60, 117 of 120 cover, and no kind of queue under 19 of 20. The median width is 5.5 to 8.9 % of the onset.
const WIDER: f64 = 1.4;
/// Minimum design effect of a queue at a share ρ of its limit, times (1 − ρ)².
///
/// In heavy traffic a queue is correlated over about 4 / (1 − ρ)² arrivals, and regular service halves that. M/M/c at its onset
/// shows 1 to 2.
const MEMORY: f64 = 0.5;
/// Share of the limit above which the correlation is not extrapolated.
const CLOSE: f64 = 0.98;
/// Maximum correction of the low bias of a percentile, as a logarithm.
const LOW_AT_MOST: f64 = 0.25;
/// Difference of loads, as a logarithm, up to which levels count as similar.
const ALIKE_LOAD: f64 = 0.05;
/// Difference of percentiles, as a logarithm, up to which levels count as similar.
const ALIKE_TAIL: f64 = 0.4;

/// Returns for each level the mean of a figure over similar levels, weighted by their size and similarity.
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

/// Returns the factor that widens the spread within levels near a crossing.
///
/// It includes the scatter of the levels about a straight line, and Student's t for the uncertainty of both. The degrees of
/// freedom are the bursts beyond the percentile, and the levels minus two for the line.
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

/// Minimum degrees of freedom of a spread.
const FEWEST_DEGREES: f64 = 2.0;

/// Returns the minimum design effect of a queue at this share of its limit.
fn memory(of_limit: f64) -> f64 {
    (MEMORY / (1.0 - of_limit.min(CLOSE)).powi(2)).max(1.0)
}

fn normal(stream: &mut Stream) -> f64 {
    normal_inv(stream.uniform())
}

/// Returns the logarithm of seconds. An infinite time counts as a year, because pooling in a fit needs finite values.
fn log_s(s: f64) -> f64 {
    s.clamp(1e-9, 3e7).ln()
}

/// Returns the load of a crossing, or `None` if it is outside the levels.
pub(crate) fn crossing_rate(crossing: Crossing) -> Option<f64> {
    match crossing {
        Crossing::At(rate) => Some(rate),
        Crossing::Before | Crossing::Beyond => None,
    }
}

/// Returns the design effect of a share from (count over, size) per contiguous batch, as a weight among levels.
///
/// Figures and gates use the design effect of `math`.
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

    /// Returns `n` values of about `ms`, of which `far` at regular distances are `far_ms`.
    fn values(n: usize, ms: f64, (far, far_ms): (usize, f64), seed: u64) -> UpperTail {
        let mut stream = Stream::new(seed, "values", 0);
        let one = |i: usize| match far > 0 && i % (n / far) == 7 && i / (n / far) < far {
            true => far_ms,
            false => ms * (0.9 + 0.1 * stream.uniform()),
        };
        UpperTail::keep(&(0..n).map(one).map(|ms| (1e6 * ms) as i64).collect::<Vec<_>>())
    }

    /// The flat curve of a batching engine: 1.21, 1.33, 1.44 and 1.6 times 85 ms, which is the p99 without contention.
    ///
    /// 1200 requests measured 70, because a step of the latency is there and 11 of them, not 12, are beyond it.
    #[test]
    fn an_onset_is_as_uncertain_as_its_zero_contention_value() {
        let levels: Vec<(f64, UpperTail)> = [(4.2, 1.21), (6.2, 1.33), (8.3, 1.44), (10.3, 1.6)]
            .map(|(load, times)| (load, values(4_000, 70.0, (80, times * 85.0), 3)))
            .into();
        let levels: Vec<(f64, &UpperTail)> = levels.iter().map(|(load, upper)| (*load, upper)).collect();
        let zero = values(1_200, 70.0, (11, 85.0), 5);
        let found = fit(&levels, &zero, 0.99, 1.5, None, (&mut Stream::new(1, "onset", 0), 400)).crossing;
        assert!(found.interval.lower > 0.0, "{found:?}");
        assert!(found.interval.contains(9.1), "{found:?}");
        // Next to a curve far over the factor at all loads, no replicate reaches the lightest level.
        let steep: Vec<(f64, &UpperTail)> = levels.iter().map(|(load, _)| (*load, levels[3].1)).collect();
        let low = values(1_200, 40.0, (24, 50.0), 5);
        let found = fit(&steep, &low, 0.99, 1.5, None, (&mut Stream::new(1, "onset", 0), 400)).crossing;
        assert!(found.interval.lower > 0.0 && found.interval.upper < 4.2, "{found:?}");
    }
}
