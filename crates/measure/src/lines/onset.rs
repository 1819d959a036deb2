//! The queueing onset: what the tail is with no contention, and the load at which it has risen by the factor.

use plimsoll_math::rng::Stream;

use super::words::Words;
use super::{LADDER_OF_PERCENTILES, LEAST_LEVELS, LineSpec, Observed};
use crate::findings::{CapacityLine, Estimate};
use crate::purpose::IDLE;
use crate::say::{count, number};
use crate::tail::{TailFit, Upper};

/// Largest gap between the percentiles of a lightly loaded level and of concurrency 1 at which the first may stand in
/// for the second: a fifth of what marks the onset.
pub(super) const STANDS_IN: f64 = 0.1;

/// Most that may be put down to uncertainty: half of what marks the onset.
pub(super) const UNSURE: f64 = 0.25;

/// The percentile that the onset is defined by (within rounding), and what is said of one that was read from a lower one: the tail
/// feels a queue first. Against the formula of regular servers, onsets read from p95 lay up to 56 % too high.
const BY_DEFINITION: f64 = 0.989;
const LATER_THAN_P99: &str = "; p99 as a rule gets there at a lower load, by up to a third";

/// Redraws for that uncertainty.
pub(super) const AGREEMENT_REDRAWS: usize = 200;

/// Share of the capacity up to which a level is lightly loaded.
pub(super) const LIGHT: f64 = 0.35;

/// The zero-contention level that the onset is measured against.
pub struct Zero<'a> {
    /// The level.
    pub observed: &'a Observed,
    /// The percentile that it and enough levels support.
    pub percentile: f64,
    /// Where it comes from, as a sentence.
    pub from: String,
}

/// The level to measure against, and the best percentile it supports. Concurrency 1 is the definition; where it is too
/// slow to gather enough requests, the lightest open-loop level stands in, if its shape agrees with concurrency 1 as
/// far as that can be seen.
pub(super) fn zero_contention<'a>(
    good: &[&'a Observed],
    zero: &[&'a Observed],
    capacity: Option<f64>,
    asked: f64,
    seed: u64,
) -> Option<Zero<'a>> {
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
        // A percentile that may fall among failed requests has no multiple that a queue could reach.
        let sound = |o: &Observed| o.upper.supports(p) && is_finite(&o.upper, p, seed);
        if let Some(one) = largest.filter(|o| sound(o)) {
            let from = format!("concurrency 1{pauses}, {}", count(one.upper.len() as u64, "request"));
            return Some(Zero { observed: one, percentile: p, from });
        }
        if let Some(light) = lightest.filter(|o| sound(o))
            && let Some(q) = largest.and_then(|one| agreement(&light.upper, &one.upper, seed))
        {
            let from = format!(
                "{} requests/s in open loop, which agrees with concurrency 1{pauses} at the median and at p{}",
                number(light.rate()),
                number(100.0 * q)
            );
            return Some(Zero { observed: light, percentile: p, from });
        }
    }
    None
}

/// The level at concurrency 1 that stands for no contention, and what is said of its pauses: requests back to back, unless a target
/// that falls idle between them is slower. Light traffic finds it idle, and a queue is what comes on top of that.
fn reference<'a>(zero: &[&'a Observed], seed: u64) -> (Option<&'a Observed>, String) {
    let (paused, back_to_back) = kinds(zero);
    match idle_cost(paused, back_to_back, seed) {
        Some(factor) => (paused, format!(" with pauses ({} × its median without)", number(factor))),
        None => (back_to_back.or(paused), String::new()),
    }
}

/// Does the target take longer after a pause than back to back?
pub(crate) fn idle_costs(zero: &[&Observed], seed: u64) -> bool {
    let (paused, back_to_back) = kinds(zero);
    idle_cost(paused, back_to_back, seed).is_some()
}

/// The levels at concurrency 1 with the most requests: with pauses, and back to back.
fn kinds<'a>(zero: &[&'a Observed]) -> (Option<&'a Observed>, Option<&'a Observed>) {
    let (paused, back_to_back): (Vec<&Observed>, Vec<&Observed>) =
        zero.iter().partition(|o| o.level.purpose == IDLE);
    (largest(&paused), largest(&back_to_back))
}

/// By what factor the median with pauses lies above the one without, where the intervals of the two lie apart and it is more than
/// [`STANDS_IN`].
fn idle_cost(paused: Option<&Observed>, back_to_back: Option<&Observed>, seed: u64) -> Option<f64> {
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

/// The level with the most requests.
fn largest<'a>(levels: &[&'a Observed]) -> Option<&'a Observed> {
    levels.iter().copied().filter(|o| o.counts()).max_by_key(|o| o.upper.len())
}

/// Does the percentile's interval stay below the failed requests, which rank above every latency?
fn is_finite(upper: &Upper, p: f64, seed: u64) -> bool {
    upper.interval_s(p, &mut Stream::new(seed, "finite", 0), AGREEMENT_REDRAWS).1.is_finite()
}

/// Why there is no level to measure an onset against.
fn no_reference(good: &[&Observed], zero: &[&Observed]) -> String {
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
            "{} % of the requests without contention failed, and nothing is known of the {metric} they would have had",
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

/// The largest percentile that both support, if the light level agrees with concurrency 1 there and at the median: not
/// above it by more than [`STANDS_IN`], or than the two are uncertain (up to [`UNSURE`]).
pub(super) fn agreement(light: &Upper, one: &Upper, seed: u64) -> Option<f64> {
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
    good: &[&Observed],
    zero: Option<&Zero<'_>>,
    at_one: &[&Observed],
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
        // Every redraw is over the factor at the lightest level already: how far below it the onset lies was not measured.
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

/// What a target cannot finish queues: an onset or a budget line read above the stability limit was drawn through levels
/// too short for their queues to have grown. It is set to the limit, with its interval down from there.
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

/// The interval of a crossing with its wider side on both. Between which two levels the crossing falls decides how the
/// redraws lean, and that is chance: taken as they lean, the intervals miss the truth on the short side in a quarter of
/// the sweeps (`examples/accuracy.rs`). An end that lies outside the levels leans by itself: what is
/// under the lightest is a bound by convexity, and what is over the heaviest is unknown, infinite.
pub(super) fn both_sides(value: f64, (lower, upper): (f64, f64), lightest: f64) -> (f64, f64) {
    if lower < lightest || !upper.is_finite() {
        return (lower.min(value), upper.max(value));
    }
    let ratio = (value / lower).max(upper / value).max(1.0);
    (value / ratio, value * ratio)
}
