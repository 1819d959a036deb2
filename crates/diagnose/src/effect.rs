//! Comparison of two levels by time intervals: ratios and differences whose intervals account for queues.
//!
//! Each level is cut into an equal number of intervals. Interval k of one level and interval k of the other are one
//! unit of a sign-flip test ([`plimsoll_math::two_sample`]). The two runs did not alternate, so a slow drift of the
//! machine between them counts as a difference. That is intended.

use plimsoll_math::special::normal_inv;
use plimsoll_math::two_sample::{ArmSample, Flips, Ratio, percentile_ratio};

use super::seen::{DiagnosedLevel, RequestView};
use plimsoll_measure::findings::Estimate;

/// Intervals per level: enough for a two-sided p of 0.0005, and few enough that each interval contains its own queue.
pub const STRETCHES: usize = 16;
/// Minimum number of values per side.
const FEWEST: usize = 32;

#[derive(Copy, Clone, PartialEq, Debug)]
pub struct StatisticChange {
    /// Ratio of second to first, with interval and counts.
    pub ratio: Estimate,
    /// Two-sided p-value of equality.
    pub p: f64,
    pub base: f64,
    pub candidate: f64,
}

impl StatisticChange {
    /// Returns the change as a difference in the unit of the first side's value. The interval is derived from the
    /// interval of the ratio.
    pub fn added(&self, value: f64) -> Estimate {
        let (lower, upper) = (self.base * (self.ratio.lower - 1.0), self.base * (self.ratio.upper - 1.0));
        Estimate { value, lower, upper, ..self.ratio }
    }
}

/// Cuts the rows into intervals of due time and returns the values of a metric in each; NaN is left out.
pub fn stretches(seen: &DiagnosedLevel<'_>, of: impl Fn(&RequestView) -> f64) -> Vec<Vec<f64>> {
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

/// Returns the ratio of a percentile, candidate over baseline. Returns `None` if a side has too few values.
pub(crate) fn of_percentile(
    base: &DiagnosedLevel<'_>,
    candidate: &DiagnosedLevel<'_>,
    of: impl Fn(&RequestView) -> f64,
    p: f64,
    level: f64,
) -> Option<StatisticChange> {
    of_units(stretches(base, &of), stretches(candidate, &of), p, level)
}

/// Returns the ratio for values that are already cut into units. Units without values on either side are left out.
pub(crate) fn of_units(
    base: Vec<Vec<f64>>,
    candidate: Vec<Vec<f64>>,
    p: f64,
    level: f64,
) -> Option<StatisticChange> {
    let (base, candidate): (Vec<Vec<f64>>, Vec<Vec<f64>>) =
        base.into_iter().zip(candidate).filter(|(a, b)| !a.is_empty() && !b.is_empty()).unzip();
    if base.len() < 6 {
        return None;
    }
    let flips = Flips::new(base.len());
    let (first, second) = (ArmSample::new(&base), ArmSample::new(&candidate));
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
    Some(StatisticChange { ratio, p: chance, base: at, candidate: than })
}

/// Returns Spearman's rank correlation with a two-sided p (t with n − 2 degrees of freedom). Returns `None` below
/// eight pairs or for a constant.
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

/// Returns ranks from 1; ties share their mean rank.
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

/// Returns the one-sided p of "the second sample is not the greater" by ranks (Wilcoxon 1945; normal approximation,
/// ties halved). The samples are assumed to be independent, so use the test only for few, distant requests.
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

/// Minimum number of isolated requests for any of their figures.
pub(crate) const ALONE_NEEDED: usize = 20;

/// Returns a share with its interval; n is divided by `design`.
pub fn share(k: f64, n: f64, design: f64) -> Estimate {
    let n_eff = (n / design.max(1.0)).max(1.0);
    let interval = plimsoll_math::proportion::clopper_pearson(k / n.max(1.0) * n_eff, n_eff, 0.95);
    Estimate { value: k / n.max(1.0), lower: interval.lower, upper: interval.upper, n: n as u64, n_eff }
}

/// Returns the ratio of two medians of independent values, by the order statistics of each. A normal interval of the
/// logarithms was rejected, because isolated requests are few and their values have atoms. Returns `None` below
/// twenty values per side.
pub fn medians(base: &[f64], candidate: &[f64], level: f64) -> Option<Estimate> {
    let (mut a, mut b) = (base.to_vec(), candidate.to_vec());
    if a.len() < ALONE_NEEDED || b.len() < ALONE_NEEDED {
        return None;
    }
    plimsoll_math::quantile::sort(&mut a);
    plimsoll_math::quantile::sort(&mut b);
    // Confidence level per side that gives the requested level for both together.
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
