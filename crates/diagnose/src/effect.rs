//! Two levels side by side by stretches of their time: ratios and differences with intervals that know of queues.
//!
//! Each level is cut into the same number of stretches; stretch k of one and stretch k of the other are one unit of a
//! comparison by sign flips ([`plimsoll_math::two_sample`]). The two runs did not take turns, so a slow drift of the machine
//! between them counts as a difference: that is what the question is.

use plimsoll_math::special::normal_inv;
use plimsoll_math::two_sample::{Arm, Flips, Ratio, percentile_ratio};

use super::seen::{RequestRow, SeenLevel};
use plimsoll_measure::findings::Estimate;

/// Stretches per level: enough for a two-sided p of 0.0005, few enough that each holds its own queue.
pub const STRETCHES: usize = 16;
/// Fewest values of a side.
const FEWEST: usize = 32;

/// A comparison of one statistic.
#[derive(Copy, Clone, PartialEq, Debug)]
pub struct Effect {
    /// Second over first, with its interval and counts.
    pub ratio: Estimate,
    /// Two-sided p of "equal".
    pub p: f64,
    /// The first side's value.
    pub base: f64,
    /// The second side's.
    pub candidate: f64,
}

impl Effect {
    /// The same as what is added to the first side's value, in its unit: so much, with the interval of the ratio.
    pub fn added(&self, value: f64) -> Estimate {
        let (lower, upper) = (self.base * (self.ratio.lower - 1.0), self.base * (self.ratio.upper - 1.0));
        Estimate { value, lower, upper, ..self.ratio }
    }
}

/// Cuts the rows into stretches of due time and takes a metric of each; NaN is left out.
pub fn stretches(seen: &SeenLevel<'_>, of: impl Fn(&RequestRow) -> f64) -> Vec<Vec<f64>> {
    let mut units = vec![Vec::new(); STRETCHES];
    for row in &seen.rows {
        let value = of(row);
        if !value.is_nan() {
            let at = (row.due / seen.length * STRETCHES as f64) as usize;
            units[at.min(STRETCHES - 1)].push(value);
        }
    }
    units
}

/// The ratio of a percentile of a metric, candidate over baseline. `None` where a side has too little of it.
pub(crate) fn of_percentile(
    base: &SeenLevel<'_>,
    candidate: &SeenLevel<'_>,
    of: impl Fn(&RequestRow) -> f64,
    p: f64,
    level: f64,
) -> Option<Effect> {
    of_units(stretches(base, &of), stretches(candidate, &of), p, level)
}

/// The same of values that are cut into units already; units that either side has nothing in are left out.
pub(crate) fn of_units(base: Vec<Vec<f64>>, candidate: Vec<Vec<f64>>, p: f64, level: f64) -> Option<Effect> {
    let (base, candidate): (Vec<Vec<f64>>, Vec<Vec<f64>>) =
        base.into_iter().zip(candidate).filter(|(a, b)| !a.is_empty() && !b.is_empty()).unzip();
    if base.len() < 6 {
        return None;
    }
    let flips = Flips::new(base.len());
    let (first, second) = (Arm::new(&base), Arm::new(&candidate));
    if first.len() < FEWEST || second.len() < FEWEST {
        return None;
    }
    let Ratio { value, interval, p: chance } = percentile_ratio(&first, &second, p, &flips, level);
    let (at, than) = (first.quantile(p), second.quantile(p));
    if value.is_nan() {
        return None;
    }
    let n_eff = second.n_eff_beyond(than).min(first.n_eff_beyond(at));
    let n = first.len().min(second.len()) as u64;
    let ratio = Estimate { value, lower: interval.lower, upper: interval.upper, n, n_eff };
    Some(Effect { ratio, p: chance, base: at, candidate: than })
}

/// Spearman's rank correlation with a two-sided p (t with n − 2 degrees of freedom); `None` below eight pairs or of a constant.
pub(crate) fn spearman(x: &[f64], y: &[f64]) -> Option<(f64, f64)> {
    let n = x.len().min(y.len());
    if n < 8 {
        return None;
    }
    let (a, b) = (ranks(&x[..n]), ranks(&y[..n]));
    let mean = (n as f64 + 1.0) / 2.0;
    let (mut sxy, mut sxx, mut syy) = (0.0, 0.0, 0.0);
    for (a, b) in a.iter().zip(&b) {
        sxy += (a - mean) * (b - mean);
        sxx += (a - mean) * (a - mean);
        syy += (b - mean) * (b - mean);
    }
    if sxx <= 0.0 || syy <= 0.0 {
        return None;
    }
    let rho = sxy / libm::sqrt(sxx * syy);
    let t = rho * libm::sqrt((n as f64 - 2.0) / (1.0 - rho * rho).max(1e-12));
    Some((rho, 2.0 * plimsoll_math::special::student_t_cdf(-t.abs(), n as f64 - 2.0)))
}

/// Ranks from 1, ties sharing theirs.
fn ranks(values: &[f64]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..values.len()).collect();
    order.sort_by(|a, b| values[*a].total_cmp(&values[*b]));
    let mut ranks = vec![0.0; values.len()];
    for tied in order.chunk_by(|a, b| values[*a] == values[*b]) {
        let first = order.iter().position(|i| *i == tied[0]).unwrap_or(0);
        let rank = first as f64 + (tied.len() as f64 + 1.0) / 2.0;
        tied.iter().for_each(|i| ranks[*i] = rank);
    }
    ranks
}

/// One-sided p of "the second sample is not the greater" by ranks (Wilcoxon 1945; normal approximation, ties halved). The samples are
/// taken to be independent: for few, far requests only.
pub(crate) fn rank_sum(first: &[f64], second: &[f64]) -> f64 {
    let (m, n) = (first.len() as f64, second.len() as f64);
    if first.is_empty() || second.is_empty() {
        return 1.0;
    }
    let all: Vec<f64> = first.iter().chain(second).copied().collect();
    let sum: f64 = ranks(&all)[first.len()..].iter().sum();
    let mean = n * (m + n + 1.0) / 2.0;
    let sd = libm::sqrt(m * n * (m + n + 1.0) / 12.0);
    plimsoll_math::special::normal_cdf(-(sum - mean - 0.5) / sd.max(1e-12))
}

/// Single requests below which none of their figures is used.
pub(crate) const ALONE_NEEDED: usize = 20;

/// A share with its interval, its n discounted by `design`.
pub fn share(k: f64, n: f64, design: f64) -> Estimate {
    let n_eff = (n / design.max(1.0)).max(1.0);
    let interval = plimsoll_math::proportion::clopper_pearson(k / n.max(1.0) * n_eff, n_eff, 0.95);
    Estimate { value: k / n.max(1.0), lower: interval.lower, upper: interval.upper, n: n as u64, n_eff }
}

/// The ratio of two medians of independent values, by the order statistics of each (a normal interval of the logarithms lost:
/// single requests are few and have atoms). `None` below twenty of a side.
pub fn medians(base: &[f64], candidate: &[f64], level: f64) -> Option<Estimate> {
    let (mut a, mut b) = (base.to_vec(), candidate.to_vec());
    if a.len() < ALONE_NEEDED || b.len() < ALONE_NEEDED {
        return None;
    }
    plimsoll_math::quantile::sort(&mut a);
    plimsoll_math::quantile::sort(&mut b);
    // Each side at the level whose two together have the asked one.
    let z = normal_inv(0.5 + 0.5 * level) / std::f64::consts::SQRT_2;
    let of = |sorted: &[f64]| {
        let n = sorted.len() as f64;
        let half = z * 0.5 * libm::sqrt(n);
        let at = |rank: f64| sorted[(rank.round().max(0.0) as usize).min(sorted.len() - 1)];
        (at(n / 2.0 - half - 0.5), at(n / 2.0 - 0.5), at(n / 2.0 + half - 0.5))
    };
    let ((a0, a1, a2), (b0, b1, b2)) = (of(&a), of(&b));
    (a0 > 0.0).then(|| {
        let n = a.len().min(b.len()) as u64;
        Estimate { value: b1 / a1, lower: b0 / a2, upper: b2 / a0, n, n_eff: n as f64 }
    })
}
