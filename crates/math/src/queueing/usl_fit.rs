//! The Universal Scalability Law fitted to measured points: parameters, intervals, and a test of whether the law fits at all.
//!
//! Residuals are ln X − ln X(N): throughput at large N is no less sure for being large, and what is measured twice differs by a share of
//! itself. Ordinary residuals of X lost: the largest N would decide alone. The start comes from the law's linear form, N/X =
//! (1 + σ(N − 1) + κN(N − 1))/γ, and the walk from there keeps to σ within 0 and 1 and κ from 0 on.
//!
//! Intervals redraw the residuals, not the points: which N were measured is chosen by whoever measured, and a redraw without the large ones
//! says nothing of the peak. Residuals are widened for the parameters that were fitted and for their few degrees of freedom (Student t over
//! normal at the level's ends); `the intervals hold what they say` in the tests measures what that comes to.

use super::scale::Usl;
use crate::bootstrap::resample;
use crate::least_squares::{Parameter, minimise, solve};
use crate::proportion::Interval;
use crate::quantile::{of_sorted, sort};
use crate::rng::Stream;
use crate::special::{beta_inc_pair, normal_inv, student_t_inv};

/// Parameters of the law.
const PARAMETERS: usize = 3;
/// Redraws of the residuals.
const REDRAWS: usize = 1000;
/// Redraws of the test of residuals.
const TESTS: usize = 999;
/// Without two points at one N, fewer than this show no pattern that could be told from chance.
const LEAST_FOR_A_PATTERN: usize = 6;

/// A fitted law.
#[derive(Clone, PartialEq, Debug)]
pub struct UslFit {
    /// The law.
    pub law: Usl,
    /// Interval of γ.
    pub one: Interval,
    /// Interval of σ.
    pub contention: Interval,
    /// Interval of κ.
    pub crosstalk: Interval,
    /// Interval of N*; its upper end is infinite where no crosstalk can be told from some.
    pub peak: Interval,
    /// Standard deviation of the residuals, as a share of X.
    pub spread: f64,
    /// Does the law fit?
    pub fit: LackOfFit,
}

/// What the residuals say of the law.
#[derive(Copy, Clone, PartialEq, Debug)]
pub enum LackOfFit {
    /// By the scatter of points measured more than once at one N: the F test of lack of fit against pure error (Draper and Smith 1998, 2.1).
    Replicates {
        /// Chance of a misfit this large where the law holds.
        p: f64,
    },
    /// By the order of the residuals: neighbours on one side of the law. Their lag-one correlation against that of the same fit to pure noise.
    Pattern {
        /// Chance of so much order where the law holds.
        p: f64,
    },
    /// Too few points to tell.
    Unknown,
}

impl LackOfFit {
    /// The chance of such residuals where the law holds; `None` = it can't be told.
    pub fn p(&self) -> Option<f64> {
        match self {
            LackOfFit::Replicates { p } | LackOfFit::Pattern { p } => Some(*p),
            LackOfFit::Unknown => None,
        }
    }
}

/// Fits the law to points (N, X). `None` under four points, at fewer than three different N, or where a figure is not positive and finite.
/// Intervals are of this level.
pub fn fit_usl(points: &[(f64, f64)], level: f64, stream: &mut Stream) -> Option<UslFit> {
    let mut points = points.to_vec();
    points.sort_by(|a, b| a.0.total_cmp(&b.0));
    let sound = points.iter().all(|(n, x)| n.is_finite() && x.is_finite() && *n > 0.0 && *x > 0.0);
    if !sound || points.len() <= PARAMETERS || distinct(&points) < PARAMETERS {
        return None;
    }
    let law = best(&points);
    let residuals = residuals(&law, &points);
    let free = (points.len() - PARAMETERS) as f64;
    let squares: f64 = residuals.iter().map(|r| r * r).sum();
    let spread = libm::sqrt(squares / free);
    let [one, contention, crosstalk, peak] = intervals(&law, &points, &residuals, level, stream);
    let fit = lack_of_fit(&points, &residuals, squares, stream);
    Some(UslFit { law, one, contention, crosstalk, peak, spread, fit })
}

fn distinct(points: &[(f64, f64)]) -> usize {
    1 + points.windows(2).filter(|pair| pair[0].0 != pair[1].0).count()
}

fn residuals(law: &Usl, points: &[(f64, f64)]) -> Vec<f64> {
    points.iter().map(|(n, x)| libm::log(*x) - libm::log(law.throughput(*n))).collect()
}

/// The law with the least squares of residuals.
fn best(points: &[(f64, f64)]) -> Usl {
    let start = linear(points);
    // κ and γ live on any scale, so the walk goes by their own size.
    let crosstalk_size = start.crosstalk.max(1e-3 / points.last().map_or(1.0, |(n, _)| n * n));
    let of = |at: &[f64]| Usl {
        one: start.one * libm::exp(at[0]),
        contention: at[1],
        crosstalk: crosstalk_size * at[2],
    };
    let parameters = [
        Parameter { start: 0.0, low: -20.0, high: 20.0, step: 1e-7 },
        Parameter { start: start.contention, low: 0.0, high: 1.0, step: 1e-7 },
        Parameter { start: start.crosstalk / crosstalk_size, low: 0.0, high: 1e9, step: 1e-6 },
    ];
    of(&minimise(&parameters, 60, |at| residuals(&of(at), points)).at)
}

/// The law's linear form by relative least squares, with the parts that would be negative left out.
fn linear(points: &[(f64, f64)]) -> Usl {
    let columns = |n: f64| [1.0, n - 1.0, n * (n - 1.0)];
    let mut found: Option<(f64, [f64; 3])> = None;
    for kept in [&[0, 1, 2][..], &[0, 1], &[0, 2], &[0]] {
        let row = |(n, x): &(f64, f64)| kept.iter().map(|c| columns(*n)[*c] * x / n).collect::<Vec<f64>>();
        let rows: Vec<Vec<f64>> = points.iter().map(row).collect();
        let cell = |i: usize, j: usize| rows.iter().map(|r| r[i] * r[j]).sum::<f64>();
        let matrix = (0..kept.len()).map(|i| (0..kept.len()).map(|j| cell(i, j)).collect()).collect();
        let right = (0..kept.len()).map(|i| rows.iter().map(|r| r[i]).sum()).collect();
        let Some(solved) = solve(matrix, right) else { continue };
        let mut at = [0.0; 3];
        kept.iter().zip(&solved).for_each(|(c, value)| at[*c] = *value);
        let misfit = |r: &Vec<f64>| {
            let gap = r.iter().zip(&solved).map(|(a, b)| a * b).sum::<f64>() - 1.0;
            gap * gap
        };
        let cost: f64 = rows.iter().map(misfit).sum();
        let allowed = at[0] > 0.0 && at[1] >= 0.0 && at[2] >= 0.0;
        if allowed && found.is_none_or(|(least, _)| cost < least) {
            found = Some((cost, at));
        }
    }
    let [one, contention, crosstalk] = found.map_or([1.0, 0.0, 0.0], |(_, at)| at);
    Usl { one: 1.0 / one, contention: (contention / one).clamp(0.0, 1.0), crosstalk: crosstalk / one }
}

/// Intervals of γ, σ, κ and N*.
fn intervals(
    law: &Usl,
    points: &[(f64, f64)],
    residuals: &[f64],
    level: f64,
    stream: &mut Stream,
) -> [Interval; 4] {
    let n = points.len();
    let free = (n - PARAMETERS) as f64;
    let end = 0.5 + 0.5 * level;
    let wider = libm::sqrt(n as f64 / free) * student_t_inv(end, free) / normal_inv(end);
    let mut found: [Vec<f64>; 4] = Default::default();
    for _ in 0..REDRAWS {
        let redrawn: Vec<(f64, f64)> = points
            .iter()
            .zip(resample(stream, n))
            .map(|((at, _), i)| (*at, law.throughput(*at) * libm::exp(wider * residuals[i])))
            .collect();
        let again = best(&redrawn);
        let figures = [again.one, again.contention, again.crosstalk, again.peak()];
        found.iter_mut().zip(figures).for_each(|(column, figure)| column.push(figure));
    }
    found.map(|mut column| {
        sort(&mut column);
        Interval {
            lower: of_sorted(&column, 1.0 - end).unwrap_or(f64::NEG_INFINITY),
            upper: of_sorted(&column, end).unwrap_or(f64::INFINITY),
        }
    })
}

fn lack_of_fit(points: &[(f64, f64)], residuals: &[f64], squares: f64, stream: &mut Stream) -> LackOfFit {
    let (n, places) = (points.len(), distinct(points));
    if n > places && places > PARAMETERS {
        return LackOfFit::Replicates { p: replicates(points, residuals, squares) };
    }
    if n > places || n < LEAST_FOR_A_PATTERN {
        return LackOfFit::Unknown;
    }
    let order = correlation(residuals);
    let spread = libm::sqrt(squares / (n - PARAMETERS) as f64);
    if spread < 1e-9 {
        return LackOfFit::Pattern { p: 1.0 };
    }
    let law = best(points);
    let noise = |stream: &mut Stream| -> Vec<(f64, f64)> {
        let draw = |stream: &mut Stream| spread * normal_inv(stream.uniform());
        points.iter().map(|(at, _)| (*at, law.throughput(*at) * libm::exp(draw(stream)))).collect()
    };
    let as_ordered = (0..TESTS)
        .filter(|_| {
            let drawn = noise(stream);
            correlation(&self::residuals(&best(&drawn), &drawn)) >= order
        })
        .count();
    LackOfFit::Pattern { p: (as_ordered + 1) as f64 / (TESTS + 1) as f64 }
}

/// The chance of an F at least this large where the law holds: misfit of the means at each N over the scatter about them.
fn replicates(points: &[(f64, f64)], residuals: &[f64], squares: f64) -> f64 {
    let (mut pure, mut start) = (0.0, 0);
    while start < points.len() {
        let same = points[start..].iter().take_while(|(n, _)| *n == points[start].0).count();
        let group = &residuals[start..start + same];
        let mean = group.iter().sum::<f64>() / same as f64;
        pure += group.iter().map(|r| (r - mean) * (r - mean)).sum::<f64>();
        start += same;
    }
    let places = distinct(points);
    let (misfit_free, pure_free) = ((places - PARAMETERS) as f64, (points.len() - places) as f64);
    let misfit = (squares - pure).max(0.0) / misfit_free;
    if pure <= 1e-18 * points.len() as f64 {
        return if misfit <= 1e-12 { 1.0 } else { 0.0 };
    }
    let f = misfit / (pure / pure_free);
    let whole = pure_free + misfit_free * f;
    beta_inc_pair(0.5 * pure_free, 0.5 * misfit_free, pure_free / whole, misfit_free * f / whole).0
}

/// Lag-one correlation of residuals in the order of N.
fn correlation(residuals: &[f64]) -> f64 {
    let squares: f64 = residuals.iter().map(|r| r * r).sum();
    residuals.windows(2).map(|pair| pair[0] * pair[1]).sum::<f64>() / squares
}
