//! Where a series of results moved: weighted E-divisive, tested by permutation.
//!
//! E-divisive (Matteson and James 2014) cuts a series where the energy distance between both sides is largest, asks by permutation
//! whether such a cut could be chance, and goes on inside both sides. It needs no law of the noise between runs, of which
//! nobody knows one. Each result weighs 1 / (se² + τ²): its own standard error, and the noise between runs read off
//! neighbouring results, so that a short run weighs less and a long one does not outweigh all others. CUSUM and a
//! comparison with the last result lost: one bad night alarms them. Here it can't: a cut counts only where it is found without
//! the oddest result as well.

use plimsoll_math::rng::Stream;
use serde::Serialize;

/// Results that are looked at, the latest: what moved before them is no news.
pub const MOST: usize = 200;

/// One result of the series: the logarithm of a figure and its standard error (0 where it is not known).
#[derive(Copy, Clone, PartialEq, Debug)]
pub struct Observation {
    /// Natural logarithm of the value.
    pub ln: f64,
    /// Standard error of that.
    pub se: f64,
}

/// What counts as a change.
#[derive(Copy, Clone, PartialEq, Debug)]
pub struct ChangeSpec {
    /// Largest p of a cut.
    pub alpha: f64,
    /// Permutations of a test; fewer where it is plain earlier that chance does as well.
    pub permutations: u32,
    /// Fewest results on either side of a cut.
    pub min_segment: usize,
    /// Smallest change, as a share.
    pub margin: f64,
    /// Seed of the permutations: the same history always says the same.
    pub seed: u64,
}

impl Default for ChangeSpec {
    /// One alarm in a thousand quiet series, and never from fewer than three results.
    fn default() -> ChangeSpec {
        ChangeSpec { alpha: 0.001, permutations: 9999, min_segment: 3, margin: 0.05, seed: 1 }
    }
}

/// A place at which the series moved.
#[derive(Copy, Clone, PartialEq, Debug, Serialize)]
pub struct ChangePoint {
    /// The first result of the new regime.
    pub at: usize,
    /// 95 % of bootstrap series have theirs at or after this one …
    pub earliest: usize,
    /// … and at or before this one.
    pub latest: usize,
    /// Share of permutations with a cut as good.
    pub p: f64,
    /// New over old (Hodges and Lehmann's shift of the logarithms), with its 95 % interval.
    pub ratio: f64,
    /// Lower end.
    pub lower: f64,
    /// Upper end.
    pub upper: f64,
}

/// Redraws for the place of a change.
const REPLICATES: usize = 200;

/// Fewest results from which a change of `min_segment` results can be proven at this alpha: both orders of the two sides are
/// as good a cut, so that p is 2 in the ways of choosing them, at the least; and one result is left out. `None` where
/// `min_segment` is 0.
pub fn fewest(alpha: f64, min_segment: usize) -> Option<usize> {
    let provable =
        |n: usize, k: usize| (plimsoll_math::proportion::ln_choose(n as u64, k as u64)).exp() * alpha >= 2.0;
    (min_segment > 0).then(|| (2 * min_segment..MOST).find(|n| provable(*n, n / 2)).map(|n| n + 1))?
}

/// Every place at which the last [`MOST`] results moved, first to last.
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

/// Values, weights and weighted distances.
struct Series {
    x: Vec<f64>,
    w: Vec<f64>,
    /// Row by row: w w |x − x|.
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

    /// Cuts `from..to` where chance does not cut it as well, and goes on inside. It has to be so without the oddest result too,
    /// and the cut is the one that is then found: two results that happen to lie beside a spike would else be moved by it.
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

    /// The place in `order` of what lies farthest from their median.
    fn oddest(&self, order: &[usize]) -> usize {
        let mut values: Vec<f64> = order.iter().map(|&i| self.x[i]).collect();
        values.sort_by(f64::total_cmp);
        let middle = values[values.len() / 2];
        let far = |place: &usize| (self.x[order[*place]] - middle).abs();
        (0..order.len()).max_by(|a, b| far(a).total_cmp(&far(b))).unwrap_or(0)
    }

    /// The first result after the best cut of these, and its p, where that is at most alpha.
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

    /// Of each member the sum of its distances to all of `order`, by its index in the series.
    fn row_sums(&self, order: &[usize]) -> Vec<f64> {
        let n = self.x.len();
        let mut sums = vec![0.0; n];
        for &i in order {
            sums[i] = order.iter().map(|&j| self.distances[i * n + j]).sum();
        }
        sums
    }

    /// The best cut of the series in this order: how many lie before it, and its energy.
    fn best(&self, order: &[usize], rows: &[f64], least: usize) -> Option<(usize, f64)> {
        let n = self.x.len();
        let total: f64 = order.iter().map(|&i| rows[i]).sum();
        let weight: f64 = order.iter().map(|&i| self.w[i]).sum();
        // Sums over ordered pairs: both before the cut, and from before it to anywhere.
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

    /// Takes out the smallest change again and again while it is under the margin.
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

    /// The shift from one side to the other (Hodges and Lehmann 1963): the median of all differences, and the interval of
    /// those differences that the rank-sum test does not refuse at 5 % (normal approximation; Lehmann 1975, chapter 2).
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

    /// The best cut of a series with the same two regimes, each drawn anew from its own results.
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

/// The noise between neighbouring results, robust against changes and odd ones: 1.4826 × the median of the absolute
/// differences of neighbours, over √2.
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
