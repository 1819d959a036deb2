//! Change points of a series of results: weighted E-divisive with a permutation test.
//!
//! E-divisive (Matteson and James 2014) cuts a series at the largest energy distance between both sides. A permutation test
//! checks whether the cut may be random, and the search continues on both sides. It needs no distribution of the noise between
//! runs, which is unknown.
//!
//! Each result has the weight 1 / (se² + τ²): its standard error, and the noise between runs, estimated from neighbours. A
//! short run has less weight, and a long one does not dominate. CUSUM and a comparison with the last result were rejected
//! because one outlier raises an alarm. Here a cut must also be found without the largest outlier.

use plimsoll_math::rng::Stream;
use serde::Serialize;

/// Maximum number of results in the analysis; older changes are no longer relevant.
pub const MOST: usize = 200;

/// A result of the series as a logarithm.
#[derive(Copy, Clone, PartialEq, Debug)]
pub struct Observation {
    /// Natural logarithm of the value.
    pub ln: f64,
    /// Standard error of `ln`; 0 if unknown.
    pub se: f64,
}

#[derive(Copy, Clone, PartialEq, Debug)]
pub struct ChangeSpec {
    /// Largest p-value of a cut.
    pub alpha: f64,
    /// Maximum number of permutations per test. A test stops early if its p-value is clearly too large.
    pub permutations: u32,
    /// Minimum number of results on either side of a cut.
    pub min_segment: usize,
    /// Smallest change, as a share.
    pub margin: f64,
    /// Seed of the permutations, so that equal histories give equal results.
    pub seed: u64,
}

impl Default for ChangeSpec {
    /// Returns the default criteria: one alarm in a thousand series without change, and at least three results per side.
    fn default() -> ChangeSpec {
        ChangeSpec { alpha: 0.001, permutations: 9999, min_segment: 3, margin: 0.05, seed: 1 }
    }
}

/// A position at which the series changed.
#[derive(Copy, Clone, PartialEq, Debug, Serialize)]
pub struct ChangePoint {
    /// Index of the first result after the change.
    pub at: usize,
    /// Earliest index: 95 % of bootstrap series have their change between `earliest` and `latest`.
    pub earliest: usize,
    pub latest: usize,
    /// Share of permutations with an equal or better cut.
    pub p: f64,
    /// Ratio of new to old (Hodges and Lehmann's shift of the logarithms).
    pub ratio: f64,
    /// Lower end of the 95 % interval.
    pub lower: f64,
    /// Upper end of the 95 % interval.
    pub upper: f64,
}

/// Number of bootstrap replicates for the position of a change.
const REPLICATES: usize = 200;

/// Returns the minimum number of results for a proven change of `min_segment` results at this alpha.
///
/// Both orders of the sides are equally good cuts, so p is at least 2 divided by the number of ways to choose them. One result
/// is left out in addition. `None` if `min_segment` is 0.
pub fn fewest(alpha: f64, min_segment: usize) -> Option<usize> {
    let provable =
        |n: usize, k: usize| (plimsoll_math::proportion::ln_choose(n as u64, k as u64)).exp() * alpha >= 2.0;
    (min_segment > 0).then(|| (2 * min_segment..MOST).find(|n| provable(*n, n / 2)).map(|n| n + 1))?
}

/// Returns every change of the last [`MOST`] results, in order of time.
pub fn changes(series: &[Observation], spec: &ChangeSpec) -> Vec<ChangePoint> {
    let skipped = series.len().saturating_sub(MOST);
    let series = Series::new(&series[skipped..]);
    let mut cuts = Vec::new();
    series.cut(0, series.x.len(), spec, &mut cuts);
    cuts.sort_by_key(|cut| cut.0);
    series.drop_small(&mut cuts, spec.margin.ln_1p());
    let bounds = series.bounds(&cuts);
    let found =
        cuts.iter().enumerate().map(|(i, (at, p))| series.change((bounds[i], *at, bounds[i + 2]), *p, spec));
    found
        .map(|change| ChangePoint {
            at: change.at + skipped,
            earliest: change.earliest + skipped,
            latest: change.latest + skipped,
            ..change
        })
        .collect()
}

/// The values, weights and weighted distances of a series.
struct Series {
    x: Vec<f64>,
    w: Vec<f64>,
    /// Matrix by row: w w |x − x|.
    distances: Vec<f64>,
}

impl Series {
    fn new(series: &[Observation]) -> Series {
        let x: Vec<f64> = series.iter().map(|o| o.ln).collect();
        let between = between_runs(&x).powi(2);
        let w = series.iter().map(|o| {
            let variance = o.se.powi(2) + between;
            if variance > 0.0 && variance.is_finite() { 1.0 / variance } else { 1.0 }
        });
        let w: Vec<f64> = w.collect();
        let n = x.len();
        let mut distances = vec![0.0; n * n];
        for i in 0..n {
            for j in 0..n {
                distances[i * n + j] = w[i] * w[j] * (x[i] - x[j]).abs();
            }
        }
        Series { x, w, distances }
    }

    /// Cuts `from..to` if the cut is significant, and continues on both sides.
    ///
    /// The cut must be significant without the largest outlier too, and that cut is used. Otherwise two results next to an outlier
    /// would be moved by it.
    fn cut(&self, from: usize, to: usize, spec: &ChangeSpec, cuts: &mut Vec<(usize, f64)>) {
        let whole: Vec<usize> = (from..to).collect();
        let Some(p) = self.test(&whole, spec).map(|(_, p)| p) else { return };
        let mut rest = whole;
        rest.remove(self.oddest(&rest));
        let Some((at, p_rest)) = self.test(&rest, spec) else { return };
        cuts.push((at, p.max(p_rest)));
        self.cut(from, at, spec, cuts);
        self.cut(at, to, spec, cuts);
    }

    /// Returns the position in `order` of the value farthest from the median.
    fn oddest(&self, order: &[usize]) -> usize {
        let mut values: Vec<f64> = order.iter().map(|&i| self.x[i]).collect();
        values.sort_by(f64::total_cmp);
        let middle = values[values.len() / 2];
        let far = |place: &usize| (self.x[order[*place]] - middle).abs();
        (0..order.len()).max_by(|a, b| far(a).total_cmp(&far(b))).unwrap_or(0)
    }

    /// Returns the first result after the best cut and its p-value, if that is at most alpha.
    fn test(&self, order: &[usize], spec: &ChangeSpec) -> Option<(usize, f64)> {
        let rows = self.row_sums(order);
        let (at, found) = self.best(order, &rows, spec.min_segment)?;
        let mut shuffled = order.to_vec();
        let name = order[0] * MOST + order.len();
        let mut chance = Stream::new(spec.seed, "history", name as u64);
        let allowed = (spec.alpha * f64::from(spec.permutations + 1)) as u32;
        let mut as_good = 0;
        for _ in 0..spec.permutations {
            shuffle(&mut shuffled, &mut chance);
            let best = self.best(&shuffled, &rows, spec.min_segment).map_or(0.0, |(_, energy)| energy);
            as_good += u32::from(best >= found * (1.0 - 1e-9));
            if as_good >= allowed {
                return None; // p is over alpha whatever comes (Besag and Clifford 1991).
            }
        }
        Some((order[at], f64::from(as_good + 1) / f64::from(spec.permutations + 1)))
    }

    /// Returns for each member the sum of its distances to all of `order`, by its index in the series.
    fn row_sums(&self, order: &[usize]) -> Vec<f64> {
        let n = self.x.len();
        let mut sums = vec![0.0; n];
        for &i in order {
            sums[i] = order.iter().map(|&j| self.distances[i * n + j]).sum();
        }
        sums
    }

    /// Returns the best cut of the series in this order: the number of results before it, and its energy.
    fn best(&self, order: &[usize], rows: &[f64], least: usize) -> Option<(usize, f64)> {
        let n = self.x.len();
        let total: f64 = order.iter().map(|&i| rows[i]).sum();
        let weight: f64 = order.iter().map(|&i| self.w[i]).sum();
        // Sums over ordered pairs: pairs before the cut, and pairs from before the cut to any result.
        let (mut inside, mut from_before, mut before) = (0.0, 0.0, 0.0);
        let mut best: Option<(usize, f64)> = None;
        for k in 1..order.len() {
            let new = order[k - 1];
            inside += 2.0 * order[..k - 1].iter().map(|&i| self.distances[i * n + new]).sum::<f64>();
            from_before += rows[new];
            before += self.w[new];
            if k < least || order.len() - k < least {
                continue;
            }
            let (across, after) = (from_before - inside, weight - before);
            let beyond = total - inside - 2.0 * across;
            let energy = 2.0 * across / (before * after) - inside / before.powi(2) - beyond / after.powi(2);
            let scaled = energy * before * after / weight;
            if best.is_none_or(|(_, most)| scaled > most) {
                best = Some((k, scaled));
            }
        }
        best
    }

    fn bounds(&self, cuts: &[(usize, f64)]) -> Vec<usize> {
        let inner = cuts.iter().map(|cut| cut.0);
        std::iter::once(0).chain(inner).chain([self.x.len()]).collect()
    }

    /// Removes the smallest change repeatedly while it is below the margin.
    fn drop_small(&self, cuts: &mut Vec<(usize, f64)>, margin_ln: f64) {
        loop {
            let bounds = self.bounds(cuts);
            let size = |i: usize| self.shift((bounds[i], bounds[i + 1], bounds[i + 2])).0.abs();
            let smallest = (0..cuts.len()).map(|i| (size(i), i)).min_by(|a, b| a.0.total_cmp(&b.0));
            match smallest {
                Some((size, i)) if size < margin_ln => drop(cuts.remove(i)),
                _ => return,
            }
        }
    }

    /// Returns the shift between both sides (Hodges and Lehmann 1963) with its interval.
    ///
    /// The shift is the median of all differences. The interval contains the differences that the rank-sum test does not reject at
    /// 5 % (normal approximation; Lehmann 1975, chapter 2).
    fn shift(&self, (from, at, to): (usize, usize, usize)) -> (f64, f64, f64) {
        let mut differences: Vec<f64> = Vec::with_capacity((at - from) * (to - at));
        for old in &self.x[from..at] {
            differences.extend(self.x[at..to].iter().map(|new| new - old));
        }
        differences.sort_by(f64::total_cmp);
        let count = differences.len();
        let (m, n) = ((at - from) as f64, (to - at) as f64);
        let half = 0.5 * m * n - 1.959_964 * (m * n * (m + n + 1.0) / 12.0).sqrt();
        let rank = (half.max(0.0) as usize).min(count - 1);
        let middle = 0.5 * (differences[(count - 1) / 2] + differences[count / 2]);
        (middle, differences[rank.saturating_sub(1)], differences[count - rank.max(1)])
    }

    fn change(&self, (from, at, to): (usize, usize, usize), p: f64, spec: &ChangeSpec) -> ChangePoint {
        let (shift, lower, upper) = self.shift((from, at, to));
        let mut chance = Stream::new(spec.seed, "history place", (from * MOST + at) as u64);
        let mut places: Vec<usize> =
            (0..REPLICATES).map(|_| self.place_again((from, at, to), spec, &mut chance)).collect();
        places.sort_unstable();
        ChangePoint {
            at,
            earliest: from + places[REPLICATES / 40],
            latest: from + places[REPLICATES - 1 - REPLICATES / 40],
            p,
            ratio: shift.exp(),
            lower: lower.exp(),
            upper: upper.exp(),
        }
    }

    /// Returns the best cut of a bootstrap series with these two regimes, each redrawn from its results.
    fn place_again(
        &self,
        (from, at, to): (usize, usize, usize),
        spec: &ChangeSpec,
        chance: &mut Stream,
    ) -> usize {
        let mut draw = |low: usize, high: usize| low + chance.below((high - low) as u64) as usize;
        let order: Vec<usize> =
            (from..to).map(|i| if i < at { draw(from, at) } else { draw(at, to) }).collect();
        let rows = self.row_sums(&order);
        self.best(&order, &rows, spec.min_segment).map_or(at - from, |(k, _)| k)
    }
}

/// Returns the noise between neighbouring results, robust against changes and outliers.
///
/// It is 1.4826 × the median of the absolute differences of neighbours, divided by √2.
fn between_runs(x: &[f64]) -> f64 {
    let mut steps: Vec<f64> = x.windows(2).map(|pair| (pair[1] - pair[0]).abs()).collect();
    steps.sort_by(f64::total_cmp);
    steps.get(steps.len() / 2).map_or(0.0, |median| 1.4826 * median / std::f64::consts::SQRT_2)
}

fn shuffle(order: &mut [usize], chance: &mut Stream) {
    for i in (1..order.len()).rev() {
        order.swap(i, chance.below(i as u64 + 1) as usize);
    }
}
