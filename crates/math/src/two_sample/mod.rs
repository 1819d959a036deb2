//! Compares two arms measured by units of time: the difference of a percentile, mean or rate, with its interval.
//!
//! Requests queue behind one another. Tests that treat them as independent report a difference of two equal systems a third
//! of the time (`judge/examples/compare.rs` shows it). Here the unit is an interval of a run, or one alternation of two
//! alternating runs; the two measurements in a unit give one difference. Under equal arms each difference is equally likely
//! to have the other sign. Its significance is therefore a share of sign flips ([`Flips`]; Fisher 1935), exact for
//! independent units of any distribution.
//!
//! A percentile is compared by the shares beyond **one** threshold, the common percentile of both arms ([`ArmSample`]). The
//! ratio's interval contains the factors by which the second arm may be divided before the flips distinguish the arms. Test
//! and interval are therefore one, failures remain at +∞, and requests may carry weights.
//!
//! The mean of the units' log percentiles was rejected. It has no value if more than a unit's tail failed, and it needs a
//! hundred requests per unit beyond a p99. Its test also contradicts the exceedances next to it.

mod arm;
mod flips;
mod holm;
mod joint;
mod shift;

pub use arm::ArmSample;
pub use flips::{Flips, neighbours};
pub use holm::holm;
pub use joint::step_down;
pub use shift::{ShiftBand, shift};

use crate::proportion::Interval;

/// A ratio of the second arm to the first.
#[derive(Copy, Clone, PartialEq, Debug)]
pub struct Ratio {
    /// Second over first; NaN if both are infinite.
    pub value: f64,
    /// Two-sided interval: the factors that the flips do not reject.
    pub interval: Interval,
    /// Two-sided p of "the two are equal".
    pub p: f64,
}

/// Largest and smallest ratio searched, in logarithms; a bound beyond it is infinite or zero.
const FARTHEST: f64 = 12.0;
/// Halvings of the search for a bound; they reach a millionth of the ratio.
const HALVINGS: usize = 25;

/// Returns the ratio of two p-quantiles at this level of confidence.
pub fn percentile_ratio(first: &ArmSample, second: &ArmSample, p: f64, flips: &Flips, level: f64) -> Ratio {
    let value = second.quantile(p) / first.quantile(p);
    invert(value, flips, level, |ratio| exceedance_differences(first, second, p, ratio))
}

/// Returns, per unit, the share of the second arm beyond a threshold less the first's. The second arm is divided by
/// `ratio`, and the threshold is the p-quantile of both together. A value at the threshold counts as half beyond it.
pub fn exceedance_differences(first: &ArmSample, second: &ArmSample, p: f64, ratio: f64) -> Vec<f64> {
    let (threshold, of_second) = ArmSample::common_quantile(first, second, p, ratio);
    let units = first.units().min(second.units());
    (0..units)
        .map(|unit| second.share_beyond(unit, of_second) - first.share_beyond(unit, threshold))
        .collect()
}

/// Returns the ratio of two means or rates from their values per unit, which are finite.
pub fn mean_ratio(first: &[f64], second: &[f64], flips: &Flips, level: f64) -> Ratio {
    let value = second.iter().sum::<f64>() / first.iter().sum::<f64>();
    invert(value, flips, level, |ratio| first.iter().zip(second).map(|(a, b)| b / ratio - a).collect())
}

/// Returns the shift of a mean: second less first, with the interval and p of the flips.
pub fn mean_shift(first: &[f64], second: &[f64], flips: &Flips, level: f64) -> Ratio {
    let differences: Vec<f64> = second.iter().zip(first).map(|(b, a)| b - a).collect();
    let value = differences.iter().sum::<f64>() / differences.len().max(1) as f64;
    let p = (2.0 * flips.greater(&differences).min(flips.less(&differences))).min(1.0);
    Ratio { value, interval: flips.mean_interval(&differences, level), p }
}

/// Returns the median of one arm's values as the median of pair differences, with the values that the flips do not reject.
/// A percentile bootstrap of the units was rejected, because at twenty units it is too narrow.
pub fn median_shift(differences: &ArmSample, flips: &Flips, level: f64) -> Ratio {
    let alpha = 0.5 * (1.0 - level);
    let beyond = |at: f64| -> Vec<f64> {
        (0..differences.units()).map(|unit| differences.share_beyond(unit, at) - 0.5).collect()
    };
    let (greater, less) = (|at: f64| flips.greater(&beyond(at)), |at: f64| flips.less(&beyond(at)));
    let p = (2.0 * greater(0.0).min(less(0.0))).min(1.0);
    let value = differences.quantile(0.5);
    let middle = value.clamp(-FARTHEST, FARTHEST);
    let lower = match greater(-FARTHEST) <= alpha {
        false => f64::NEG_INFINITY,
        true if greater(middle) <= alpha => value,
        true => halve(-FARTHEST, middle, |at| greater(at) <= alpha),
    };
    let upper = match less(FARTHEST) <= alpha {
        false => f64::INFINITY,
        true if less(middle) <= alpha => value,
        true => halve(FARTHEST, middle, |at| less(at) <= alpha),
    };
    Ratio { value, interval: Interval { lower, upper }, p }
}

/// Returns the factors that the flips do not reject; the differences fall with the factor.
fn invert(value: f64, flips: &Flips, level: f64, differences: impl Fn(f64) -> Vec<f64>) -> Ratio {
    let alpha = 0.5 * (1.0 - level);
    let greater = |ln: f64| flips.greater(&differences(libm::exp(ln)));
    let less = |ln: f64| flips.less(&differences(libm::exp(ln)));
    let p = (2.0 * greater(0.0).min(less(0.0))).min(1.0);
    let middle = match libm::log(value) {
        ln if ln.is_finite() => ln.clamp(-FARTHEST, FARTHEST),
        ln if ln > 0.0 => FARTHEST,
        ln if ln < 0.0 => -FARTHEST,
        _ => 0.0,
    };
    // "Greater" becomes insignificant as the factor grows; the lower bound is at that point.
    let lower = match (greater(-FARTHEST) <= alpha, greater(middle) <= alpha) {
        (false, _) => 0.0,
        (true, true) if middle >= FARTHEST => f64::INFINITY,
        (true, true) => libm::exp(middle),
        (true, false) => libm::exp(halve(-FARTHEST, middle, |ln| greater(ln) <= alpha)),
    };
    let upper = match (less(FARTHEST) <= alpha, less(middle) <= alpha) {
        (false, _) => f64::INFINITY,
        (true, true) if middle <= -FARTHEST => 0.0,
        (true, true) => libm::exp(middle),
        (true, false) => libm::exp(halve(FARTHEST, middle, |ln| less(ln) <= alpha)),
    };
    Ratio { value, interval: Interval { lower, upper }, p }
}

/// Returns the end of the range in which a test is true, by halving between `holds` and `fails`.
fn halve(mut holds: f64, mut fails: f64, test: impl Fn(f64) -> bool) -> f64 {
    for _ in 0..HALVINGS {
        let middle = 0.5 * (holds + fails);
        if test(middle) { holds = middle } else { fails = middle }
    }
    holds
}
