//! The whole distribution, resampled by units: the shift function with a simultaneous band.
//!
//! The band is a description and no verdict. Percentile bootstraps of some twenty units are a little too narrow, so
//! verdicts come from flips. Resampling is by unit (Künsch 1989), never by request.

use super::ArmSample;
use crate::bootstrap::resample;
use crate::proportion::Interval;
use crate::quantile::{of_sorted, sort};
use crate::rng::Stream;

/// One point of a shift function.
#[derive(Copy, Clone, PartialEq, Debug)]
pub struct ShiftBand {
    /// Percentile as a fraction: 0.99 is p99.
    pub p: f64,
    /// Second arm over first.
    pub ratio: f64,
    pub band: Interval,
}

/// Returns the ratio of the arms' quantiles at each of `ps`, with a simultaneous band at this level (max-t over the
/// logarithms). If units are `paired`, both arms resample common units.
pub fn shift(
    (first, second): (&ArmSample, &ArmSample),
    ps: &[f64],
    paired: bool,
    (stream, replicates): (&mut Stream, usize),
    level: f64,
) -> Vec<ShiftBand> {
    let (a, b) = (RankedArm::of(first), RankedArm::of(second));
    let found = |ln: f64| if ln.is_finite() { Some(ln) } else { None };
    let ln: Vec<f64> = ps.iter().map(|p| libm::log(second.quantile(*p) / first.quantile(*p))).collect();
    let mut drawn: Vec<Vec<f64>> = vec![Vec::new(); ps.len()];
    for _ in 0..replicates {
        let of_first = resample(stream, first.units());
        let of_second = if paired { of_first.clone() } else { resample(stream, second.units()) };
        let (low, high) = (a.quantiles(ps, &of_first), b.quantiles(ps, &of_second));
        for (i, draws) in drawn.iter_mut().enumerate() {
            draws.push(libm::log(high[i] / low[i]));
        }
    }
    let scales: Vec<f64> = drawn.iter().map(|draws| deviation(draws)).collect();
    let mut farthest: Vec<f64> = (0..replicates)
        .map(|r| {
            let away = |i: usize| found((drawn[i][r] - ln[i]).abs() / scales[i]);
            (0..ps.len()).filter_map(away).fold(0.0, f64::max)
        })
        .collect();
    sort(&mut farthest);
    let reach = of_sorted(&farthest, level).unwrap_or(f64::INFINITY);
    let point = |i: usize| {
        let (ratio, half) = (libm::exp(ln[i]), reach * scales[i]);
        let band = match found(half) {
            Some(half) => Interval { lower: libm::exp(ln[i] - half), upper: libm::exp(ln[i] + half) },
            None => Interval { lower: 0.0, upper: f64::INFINITY },
        };
        ShiftBand { p: ps[i], ratio, band }
    };
    (0..ps.len()).map(point).collect()
}

/// Returns the standard deviation of the resamples; infinite if a resample has no logarithm.
fn deviation(draws: &[f64]) -> f64 {
    let n = draws.len() as f64;
    let mean = draws.iter().sum::<f64>() / n;
    let square = draws.iter().map(|d| (d - mean) * (d - mean)).sum::<f64>() / (n - 1.0);
    if square.is_nan() { f64::INFINITY } else { libm::sqrt(square) }
}

/// An arm's values in rising order, each with its unit and weight, so that a resample is one pass over them.
struct RankedArm {
    rows: Vec<(f64, f32, u32)>,
    units: usize,
}

impl RankedArm {
    fn of(arm: &ArmSample) -> RankedArm {
        let mut rows = Vec::with_capacity(arm.len());
        for unit in 0..arm.units() {
            for (k, value) in arm.unit(unit).iter().enumerate() {
                rows.push((*value, arm.weight(unit, k) as f32, unit as u32));
            }
        }
        rows.sort_unstable_by(|a, b| a.0.total_cmp(&b.0));
        RankedArm { rows, units: arm.units() }
    }

    /// Returns the quantiles of the drawn units; `ps` rises.
    fn quantiles(&self, ps: &[f64], drawn: &[usize]) -> Vec<f64> {
        let mut times = vec![0.0; self.units];
        for unit in drawn {
            times[*unit] += 1.0;
        }
        let weight = |(_, weight, unit): &(f64, f32, u32)| f64::from(*weight) * times[*unit as usize];
        let whole: f64 = self.rows.iter().map(weight).sum();
        let (mut sum, mut found) = (0.0, Vec::with_capacity(ps.len()));
        for row in &self.rows {
            sum += weight(row);
            while found.len() < ps.len() && sum >= ps[found.len()] * whole * (1.0 - 1e-9) && sum > 0.0 {
                found.push(row.0);
            }
            if found.len() == ps.len() {
                break;
            }
        }
        found.resize(ps.len(), f64::NAN);
        found
    }
}
