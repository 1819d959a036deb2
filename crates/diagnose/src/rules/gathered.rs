//! L5: the same rate in bursts.
//!
//! Arrivals that gather are told by the variance of their counts over its mean (the index of dispersion: Cox and Lewis 1966), one for
//! independent arrivals in windows of any width. How long a burst lasts nobody knows beforehand, so windows of several widths are asked;
//! each by the ratio of the two sides' indices, which of two alike runs has about the law of F with as many degrees of freedom as there
//! are windows. A bootstrap over stretches lost: with a dozen bursts in a run its lower bound is under one where the ratio is four.

use plimsoll_math::special::beta_inc;

use super::load::{alone_evidence, unmoved};
use super::{Fired, beyond};
use crate::bench::Bench;
use crate::seen::Seen;
use crate::verdict::Evidence;
use crate::{Cause, Counter};
use plimsoll_measure::findings::Estimate;
use plimsoll_measure::say::number;

/// Widths of the windows, s.
const WIDTHS: [f64; 4] = [1.0, 2.0, 5.0, 10.0];
/// Fewest windows.
const FEWEST: usize = 10;
/// Index of dispersion, of the candidate and over the baseline's, from which arrivals come in bursts. Half as much again is material: what
/// waits grows about in proportion to the index (Kingman's bound).
const GATHERED: f64 = 1.5;
/// Chance of such a ratio between two alike runs from which it is no chance; over all widths together one in 500 (by simulation).
const SURE: f64 = 0.005;

/// Mean rate over the baseline's within which bursts are what changed.
const RATES: std::ops::RangeInclusive<f64> = 0.3..=2.0;

/// Arrivals of one width of window.
struct Gathered {
    width: f64,
    before: f64,
    now: Estimate,
    grown: f64,
    p: f64,
}

/// L5.
pub fn bursts(bench: &Bench<'_>) -> Option<Fired> {
    in_bursts(bench, SURE)
}

/// L5 at this chance of each width.
pub fn in_bursts(bench: &Bench<'_>, chance: f64) -> Option<Fired> {
    let (base, now) = (bench.before()?, bench.now());
    if base.is_closed()
        || now.is_closed()
        || !(bench.suspects("ttft") || bench.suspects("e2e") || bench.suspects("tpot"))
    {
        return None;
    }
    // Bursts are rare enough to miss the mean rate by a good deal, and a rate that is higher for sure was asked about before.
    if !RATES.contains(&(now.rate() / base.rate())) {
        return None;
    }
    let sure = |one: &Gathered| one.grown >= GATHERED && one.now.value >= GATHERED && one.p < chance;
    let found = WIDTHS.into_iter().filter_map(|width| gathered(base, now, width)).filter(sure);
    let Gathered { width, before, now: after, grown, .. } = found.min_by(|a, b| a.p.total_cmp(&b.p))?;
    let confidence = beyond(grown, GATHERED) / 0.72 * unmoved(bench);
    let says = format!(
        "the index of dispersion of arrivals in {} s is {} (before {})",
        number(width),
        number(after.value),
        number(before)
    );
    Some(
        Fired::new(Cause::Bursts, confidence.min(0.97), says.clone())
            .with(Evidence::figure("dispersion", says, after, Some(GATHERED * before.max(1.0))))
            .maybe(alone_evidence(bench))
            .counted(Counter::Moved { name: "index of dispersion of arrivals".into(), by: grown }),
    )
}

fn gathered(base: &Seen<'_>, now: &Seen<'_>, width: f64) -> Option<Gathered> {
    let ((before, n0), (after, n1)) = (dispersion(base, width)?, dispersion(now, width)?);
    // Independent arrivals have an index of one; what is far under it was chance, and no base to grow from.
    let grown = after / before.max(0.8);
    let (d0, d1) = (n0 as f64 - 1.0, n1 as f64 - 1.0);
    // Quantiles of the index itself, by the law of its logarithm: its variance is about 2 / (windows - 1).
    let half = libm::exp(1.96 * libm::sqrt(2.0 / d1));
    let now = Estimate { value: after, lower: after / half, upper: after * half, n: n1 as u64, n_eff: d1 };
    Some(Gathered { width, before, now, grown, p: beyond_f(grown, d1, d0) })
}

/// Upper tail of the law of F (Abramowitz and Stegun 26.6.2).
fn beyond_f(f: f64, d1: f64, d2: f64) -> f64 {
    beta_inc(0.5 * d2, 0.5 * d1, d2 / (d2 + d1 * f))
}

/// Variance over mean of the arrivals in windows of this width, and the number of windows.
fn dispersion(seen: &Seen<'_>, width: f64) -> Option<(f64, usize)> {
    let windows = (seen.length / width) as usize;
    if windows < FEWEST {
        return None;
    }
    let mut counts = vec![0.0; windows];
    for due in &seen.due {
        if let Some(count) = counts.get_mut((due.max(0.0) / width) as usize) {
            *count += 1.0;
        }
    }
    let n = windows as f64;
    let mean = counts.iter().sum::<f64>() / n;
    let index = counts.iter().map(|x| (x - mean) * (x - mean)).sum::<f64>() / (n - 1.0) / mean.max(1e-9);
    Some((index, windows))
}

#[cfg(test)]
mod tests {
    use super::beyond_f;

    /// F tables (Fisher and Yates): the upper 5 % of F with 10 and 10 degrees of freedom is 2.978, the upper 1 % with 24 and 24 is 2.659.
    #[test]
    fn the_tail_is_that_of_the_tables() {
        assert!((beyond_f(2.978, 10.0, 10.0) - 0.05).abs() < 2e-4);
        assert!((beyond_f(2.659, 24.0, 24.0) - 0.01).abs() < 1e-4);
    }
}
