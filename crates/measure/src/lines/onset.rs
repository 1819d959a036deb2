//! The queueing onset: the tail without contention, and the load at which it has risen by the knee factor.

use plimsoll_math::rng::Stream;

use super::words::Words;
use super::{LADDER_OF_PERCENTILES, LEAST_LEVELS, LineLevel, LineSpec};
use crate::findings::{CapacityLine, Estimate};
use crate::purpose::IDLE;
use crate::say::{count, number};
use crate::tail::{TailFit, UpperTail};

/// Largest relative gap between a percentile of a lightly loaded level and of concurrency 1 for a replacement.
///
/// It is a fifth of the rise that marks the onset.
pub(super) const STANDS_IN: f64 = 0.1;

/// Largest gap that may be attributed to uncertainty: half of the rise that marks the onset.
pub(super) const UNSURE: f64 = 0.25;

/// The percentile that defines the onset (within rounding), and the remark on an onset of a lower percentile.
///
/// A queue affects the tail first. Compared with the formula of regular servers, onsets by p95 were up to 56 % too high.
const BY_DEFINITION: f64 = 0.989;
const LATER_THAN_P99: &str = "; p99 as a rule gets there at a lower load, by up to a third";

/// Bootstrap replicates for that uncertainty.
pub(super) const AGREEMENT_REDRAWS: usize = 200;

/// Largest share of the capacity at which a level is lightly loaded.
pub(super) const LIGHT: f64 = 0.35;

/// The zero-contention level that the onset is compared with.
pub struct ZeroContention<'a> {
    pub observed: &'a LineLevel,
    /// Percentile that this level and enough others support.
    pub percentile: f64,
    /// Source of the level, as a sentence.
    pub from: String,
}

/// Returns the zero-contention level and the best percentile that it supports.
///
/// Concurrency 1 is the definition. If it is too slow for enough requests, the lightest open-loop level replaces it, provided
/// that the visible percentiles of both agree.
pub(super) fn zero_contention<'a>(
    good: &[&'a LineLevel],
    zero: &[&'a LineLevel],
    capacity: Option<f64>,
    asked: f64,
    seed: u64,
) -> Option<ZeroContention<'a>> {
    let (largest, pauses) = reference(zero, seed);
    let lightest = good
        .iter()
        .copied()
        .filter(|o| capacity.is_some_and(|capacity| o.rate() <= LIGHT * capacity))
        .max_by_key(|o| o.upper.len());
    for p in LADDER_OF_PERCENTILES.into_iter().filter(|p| *p <= asked + 1e-9) {
        let levels = good.iter().filter(|o| o.upper.supports(p)).count();
        if levels < LEAST_LEVELS {
            continue;
        }
        // A percentile that may be among failed requests has no multiple that a queue could reach.
        let sound = |o: &LineLevel| o.upper.supports(p) && is_finite(&o.upper, p, seed);
        if let Some(one) = largest.filter(|o| sound(o)) {
            let from = format!("concurrency 1{pauses}, {}", count(one.upper.len() as u64, "request"));
            return Some(ZeroContention { observed: one, percentile: p, from });
        }
        if let Some(light) = lightest.filter(|o| sound(o))
            && let Some(q) = largest.and_then(|one| agreement(&light.upper, &one.upper, seed))
        {
            let from = format!(
                "{} requests/s in open loop, which agrees with concurrency 1{pauses} at the median and at p{}",
                number(light.rate()),
                number(100.0 * q)
            );
            return Some(ZeroContention { observed: light, percentile: p, from });
        }
    }
    None
}

/// Returns the level at concurrency 1 without contention, and a remark on its pauses.
///
/// The requests are back to back, unless the target becomes idle in pauses and is then slower. Light traffic finds the target
/// idle, and a queue adds to that latency.
fn reference<'a>(zero: &[&'a LineLevel], seed: u64) -> (Option<&'a LineLevel>, String) {
    let (paused, back_to_back) = kinds(zero);
    match idle_cost(paused, back_to_back, seed) {
        Some(factor) => (paused, format!(" with pauses ({} × its median without)", number(factor))),
        None => (back_to_back.or(paused), String::new()),
    }
}

/// Returns whether the target is slower after a pause than back to back.
pub(crate) fn idle_costs(zero: &[&LineLevel], seed: u64) -> bool {
    let (paused, back_to_back) = kinds(zero);
    idle_cost(paused, back_to_back, seed).is_some()
}

/// Returns the levels at concurrency 1 with the most requests: with pauses, and back to back.
fn kinds<'a>(zero: &[&'a LineLevel]) -> (Option<&'a LineLevel>, Option<&'a LineLevel>) {
    let (paused, back_to_back): (Vec<&LineLevel>, Vec<&LineLevel>) =
        zero.iter().partition(|o| o.level.purpose == IDLE);
    (largest(&paused), largest(&back_to_back))
}

/// Returns the factor between the median with pauses and the median without.
///
/// `None` if their intervals overlap or the excess is at most [`STANDS_IN`].
fn idle_cost(paused: Option<&LineLevel>, back_to_back: Option<&LineLevel>, seed: u64) -> Option<f64> {
    let (paused, back_to_back) = (&paused?.upper, &back_to_back?.upper);
    if !paused.supports(0.5) || !back_to_back.supports(0.5) {
        return None;
    }
    let mut stream = Stream::new(seed, "idle", 0);
    let (lower, _) = paused.interval_s(0.5, &mut stream, AGREEMENT_REDRAWS);
    let (_, upper) = back_to_back.interval_s(0.5, &mut stream, AGREEMENT_REDRAWS);
    let factor = paused.quantile_s(0.5) / back_to_back.quantile_s(0.5);
    (lower > upper && factor > 1.0 + STANDS_IN && factor.is_finite()).then_some(factor)
}

/// Returns the level with the most requests.
fn largest<'a>(levels: &[&'a LineLevel]) -> Option<&'a LineLevel> {
    levels.iter().copied().filter(|o| o.counts()).max_by_key(|o| o.upper.len())
}

/// Returns whether the percentile's interval stays below the failed requests, which rank above every latency.
fn is_finite(upper: &UpperTail, p: f64, seed: u64) -> bool {
    upper.interval_s(p, &mut Stream::new(seed, "finite", 0), AGREEMENT_REDRAWS).1.is_finite()
}

/// Returns the reason of a missing zero-contention level.
fn no_reference(good: &[&LineLevel], zero: &[&LineLevel]) -> String {
    let metric = good.first().or(zero.first()).map_or("ttft", |o| o.metric);
    let asked: u64 = zero.iter().map(|o| o.finding.summary.counts.requests).sum();
    let one = largest(zero);
    if one.is_none() && asked > 0 {
        return format!("none of {} without contention was answered", count(asked, "request"));
    }
    let median = LADDER_OF_PERCENTILES[LADDER_OF_PERCENTILES.len() - 1];
    if let Some(one) = one.filter(|o| o.upper.supports(median) && !o.upper.quantile_s(median).is_finite()) {
        let failed = one.finding.summary.counts.error_rate.map_or(0.0, |e| 100.0 * e.value);
        return format!(
            "{} % of the requests without contention failed, so their {metric} is unknown",
            number(failed)
        );
    }
    if good.is_empty() {
        return super::limits::NO_OPEN_LOOP.into();
    }
    let most = good.iter().map(|o| o.upper.len()).max().unwrap_or(0);
    format!(
        "no percentile of {metric} has {} values beyond it both without contention and on {LEAST_LEVELS} levels \
         (the largest level has {}); give it more time",
        number(crate::tail::BEYOND),
        count(most as u64, "request")
    )
}

/// Returns the largest percentile that both levels support, if the light level agrees with concurrency 1.
///
/// That percentile and the median of the light level may exceed concurrency 1 by at most [`STANDS_IN`]. They may exceed it
/// by the uncertainty of both levels too (up to [`UNSURE`]).
pub(super) fn agreement(light: &UpperTail, one: &UpperTail, seed: u64) -> Option<f64> {
    let q = LADDER_OF_PERCENTILES.into_iter().find(|q| light.supports(*q) && one.supports(*q))?;
    let mut stream = Stream::new(seed, "agreement", 0);
    let mut agrees = |q: f64| {
        let (_, one_high) = one.interval_s(q, &mut stream, AGREEMENT_REDRAWS);
        let (light_low, _) = light.interval_s(q, &mut stream, AGREEMENT_REDRAWS);
        let (one, light) = (one.quantile_s(q), light.quantile_s(q));
        let unsure = (one_high / one - 1.0).hypot(light / light_low - 1.0);
        light / one - 1.0 <= STANDS_IN.max(unsure.min(UNSURE))
    };
    (agrees(q) && agrees(0.5)).then_some(q)
}

pub(super) fn onset(
    good: &[&LineLevel],
    zero: Option<&ZeroContention<'_>>,
    at_one: &[&LineLevel],
    fit: Option<&TailFit>,
    spec: &LineSpec,
    words: &Words<'_>,
) -> CapacityLine {
    let (Some(zero), Some(fit)) = (zero, fit) else {
        return CapacityLine::CannotTell { why: no_reference(good, at_one) };
    };
    let p = number(100.0 * zero.percentile);
    let how = format!(
        "p{p} of {} reaches {} × its zero-contention value ({}){}",
        zero.observed.metric,
        number(spec.knee_factor),
        zero.from,
        if zero.percentile < BY_DEFINITION { LATER_THAN_P99 } else { "" }
    );
    let interval = fit.crossing.interval;
    let lightest = fit.line.first().map_or(0.0, |point| point.rate_per_s);
    match fit.crossing.value {
        // Every replicate exceeds the factor at the lightest level, so the distance of the onset below that level was not measured.
        Some(_) if interval.upper < lightest => {
            CapacityLine::Below { rate_per_s: lightest, why: format!("at the lightest level already, {how}") }
        }
        Some(rate) => {
            let (lower, upper) = both_sides(rate, (interval.lower, interval.upper), lightest);
            if lower < lightest && !upper.is_finite() {
                return CapacityLine::CannotTell {
                    why: format!(
                        "the levels put it near {} requests/s and bound it on neither side; give it more time",
                        number(rate)
                    ),
                };
            }
            let n = good.iter().map(|o| o.upper.len() as u64).sum();
            let rate = Estimate { value: rate, lower, upper, n, n_eff: fit.line.len() as f64 };
            CapacityLine::Found { rate, load: words.at(rate.value), how }
        }
        None => {
            let rate_per_s = fit.line.last().map_or(0.0, |point| point.rate_per_s);
            CapacityLine::Above {
                rate_per_s,
                load: words.at(rate_per_s),
                why: format!("the heaviest level is still below the load at which {how}"),
            }
        }
    }
}

/// Lowers an onset or a budget limit to the stability limit, because work that a target cannot finish queues.
///
/// A line above that limit was drawn through levels that were too short for their queues to grow. Its interval then extends
/// downwards from the limit.
pub(super) fn under_the_limit(
    onset: CapacityLine,
    stability: &CapacityLine,
    words: &Words<'_>,
) -> CapacityLine {
    match (onset, stability.rate()) {
        (CapacityLine::Found { rate, how, .. }, Some(limit)) if rate.value > limit.value => {
            let lower = rate.lower.min(limit.lower);
            let rate = Estimate { value: limit.value, lower, upper: rate.upper, ..rate };
            CapacityLine::Found {
                rate,
                load: words.at(rate.value),
                how: format!("{how}; set to the stability limit, which it cannot exceed"),
            }
        }
        (onset, _) => onset,
    }
}

/// Returns the interval of a crossing with its wider side on both sides.
///
/// The replicates lean to one side, depending on the two levels around the crossing, and that is random. Intervals that lean
/// miss the true value on the short side in a quarter of the sweeps (`examples/accuracy.rs`). An end outside the levels is
/// kept. Below the lightest level it is a bound by convexity; above the heaviest it is unknown and infinite.
pub(super) fn both_sides(value: f64, (lower, upper): (f64, f64), lightest: f64) -> (f64, f64) {
    if lower < lightest || !upper.is_finite() {
        return (lower.min(value), upper.max(value));
    }
    let ratio = (value / lower).max(upper / value).max(1.0);
    (value / ratio, value * ratio)
}
