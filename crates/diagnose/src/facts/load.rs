//! Facts on the load: amount, lengths, mix, burstiness.

use std::collections::BTreeMap;

use plimsoll_math::special::beta_inc;
use plimsoll_math::two_sample::{Flips, mean_ratio};
use plimsoll_measure::findings::Estimate;
use plimsoll_measure::say::{number, percent, ratio_ends};

use super::{FactState, Finding, Observed, over, yes_if};
use crate::effect::{STRETCHES, StatisticChange};
use crate::frame::Frames;
use crate::seen::{DiagnosedLevel, RequestView};

/// Ratio of a rate or a length from which it is larger. At three quarters of the capacity, a tenth more load makes
/// the queue half as long again.
const MORE: f64 = 1.08;
/// Maximum p-value of a change; two percentiles of each length are tested.
const SURE: f64 = 0.005;

pub fn find(frames: &Frames<'_>, found: &mut Vec<Finding>) {
    let Some(base) = frames.before() else { return };
    let now = frames.now();
    found.extend(more_requests(base, now));
    found.extend(longer(frames, Observed::LongerPrompts, "prompt tokens", |row| row.prompt));
    found.extend(longer(frames, Observed::LongerAnswers, "output tokens", |row| {
        if row.ok { row.output } else { f64::NAN }
    }));
    if let Some(share) = same_prompts(frames) {
        let says = format!("{} of the prompts are the baseline's, one by one", percent(share));
        found.push(Finding::new(Observed::SamePrompts, yes_if(share >= 0.9), says));
    }
    found.extend(other_mix(base, now));
    found.extend(bursts(base, now));
    found.extend(shares_less(base, now));
}

/// Checks for more requests. A closed loop sets its concurrency, and its rate is a result. Against an open loop only
/// the rates are comparable.
fn more_requests(base: &DiagnosedLevel<'_>, now: &DiagnosedLevel<'_>) -> Option<Finding> {
    let RateComparison { ratio, p, what, from, to } = match (in_flight(base), in_flight(now)) {
        (Some(from), Some(to)) => {
            let value = to / from;
            let ratio = Estimate { value, lower: value, upper: value, n: 1, n_eff: 1.0 };
            RateComparison { ratio, p: 0.0, what: "requests in flight", from, to }
        }
        _ => rates(base, now)?,
    };
    let is = over(&ratio, p < 0.01, MORE);
    // A closed loop that gets less than an open loop shows nothing about the load.
    let is = if base.is_closed() != now.is_closed() && is == FactState::No { FactState::Unclear } else { is };
    let says = format!("{} {what} before, {} now: {}", number(from), number(to), times(&ratio));
    Some(Finding::new(Observed::MoreRequests, is, says).figure(ratio, MORE))
}

/// Compares the medians, or the p95 if it has grown with confidence and the median has not.
fn longer(
    frames: &Frames<'_>,
    fact: Observed,
    what: &str,
    of: impl Fn(&RequestView) -> f64 + Copy,
) -> Option<Finding> {
    let at = |p: f64| {
        let effect: StatisticChange = frames.ratio(of, p)?;
        Some((over(&effect.ratio, effect.p < SURE, MORE), p, effect))
    };
    let (middle, tail) = (at(0.5), at(0.95).filter(|(is, ..)| *is == FactState::Yes));
    let more = |found: &(FactState, f64, StatisticChange)| (found.0 == FactState::Yes, found.2.ratio.value);
    let (is, p, effect) =
        [middle, tail].into_iter().flatten().reduce(|a, b| if more(&b) > more(&a) { b } else { a })?;
    let says = format!(
        "{what} p{} {} -> {} ({})",
        number(100.0 * p),
        number(effect.base),
        number(effect.candidate),
        times(&effect.ratio)
    );
    Some(Finding::new(fact, is, says).figure(effect.ratio, MORE))
}

/// Returns `× 1.5 [1.4, 1.6]`; a configured value has no interval.
pub fn times(of: &Estimate) -> String {
    if of.lower == of.value && of.upper == of.value {
        return format!("× {}", number(of.value));
    }
    format!("× {} {}", number(of.value), ratio_ends(of.lower, of.upper))
}

/// Returns the ratio of arrival rates over time intervals with its p-value, from all arrivals.
pub(crate) fn of_rates(base: &DiagnosedLevel<'_>, now: &DiagnosedLevel<'_>) -> Option<(Estimate, f64)> {
    let rates = |seen: &DiagnosedLevel<'_>| -> Vec<f64> {
        let mut counts = [0.0; STRETCHES];
        for due in &seen.due {
            counts[((due / seen.length * STRETCHES as f64).max(0.0) as usize).min(STRETCHES - 1)] += 1.0;
        }
        counts.iter().map(|count| count * STRETCHES as f64 / seen.length).collect()
    };
    let (a, b) = (rates(base), rates(now));
    if base.due.is_empty() || now.due.is_empty() {
        return None;
    }
    let found = mean_ratio(&a, &b, &Flips::new(STRETCHES), 0.95);
    let n = base.due.len().min(now.due.len()) as u64;
    let estimate = Estimate {
        value: found.value,
        lower: found.interval.lower,
        upper: found.interval.upper,
        n,
        n_eff: n as f64,
    };
    Some((estimate, found.p))
}

/// Maximum distance in standard deviations between the configured and the counted number of independent arrivals.
const AS_ASKED: f64 = 4.0;

/// Returns the ratio of the configured rates of two open loops if both were reached. The ratio is exact: counts of
/// two Poisson schedules of a hundred requests differ by a fifth by accident, their configured rates do not. Returns
/// `None` if the rate was read from the arrivals (a recorded schedule, a run of another tool), because that rate is a
/// count.
fn of_asked(base: &DiagnosedLevel<'_>, now: &DiagnosedLevel<'_>) -> Option<RateComparison> {
    let asked = |seen: &DiagnosedLevel<'_>| match seen.level.load {
        plimsoll_model::Load::Open { rate_per_s } => {
            let (due, came) = (rate_per_s * seen.length, seen.due.len() as f64);
            let counted = (due - seen.level.arrivals as f64).abs() < 0.5;
            let as_asked = (due - came).abs() <= AS_ASKED * libm::sqrt(due);
            (rate_per_s > 0.0 && as_asked && !counted).then_some(rate_per_s)
        }
        _ => None,
    };
    let (from, to) = (asked(base)?, asked(now)?);
    let (value, n) = (to / from, base.due.len().min(now.due.len()) as u64);
    let ratio = Estimate { value, lower: value, upper: value, n, n_eff: n as f64 };
    Some(RateComparison { ratio, p: 0.0, what: "requests a second configured", from, to })
}

pub struct RateComparison {
    pub ratio: Estimate,
    /// Two-sided p-value of equality; 0 for configured rates.
    pub p: f64,
    pub what: &'static str,
    pub from: f64,
    pub to: f64,
}

/// Returns the configured rates if they are known, else the counted rates.
pub fn rates(base: &DiagnosedLevel<'_>, now: &DiagnosedLevel<'_>) -> Option<RateComparison> {
    of_asked(base, now).or_else(|| {
        let (ratio, p) = of_rates(base, now)?;
        Some(RateComparison { ratio, p, what: "requests a second", from: base.rate(), to: now.rate() })
    })
}

fn in_flight(seen: &DiagnosedLevel<'_>) -> Option<f64> {
    match seen.level.load {
        plimsoll_model::Load::Closed { concurrency } | plimsoll_model::Load::Saturating { concurrency } => {
            Some(f64::from(concurrency.max(1)))
        }
        _ => None,
    }
}

/// Returns the share of the requests whose prompt equals the baseline's prompt of the same number. Returns `None` if
/// prompts are unknown.
pub fn same_prompts(frames: &Frames<'_>) -> Option<f64> {
    // Without block hashes the lengths decide, because hundreds of lengths do not agree by accident.
    let key = |row: &RequestView| (row.beginning, row.prompt as u64);
    let base: BTreeMap<u64, (Option<u64>, u64)> =
        frames.before()?.rows.iter().map(|row| (row.request, key(row))).collect();
    let mut lengths: Vec<u64> = base.values().map(|key| key.1).collect();
    lengths.sort_unstable();
    lengths.dedup();
    if lengths.len() < 10 && base.values().any(|key| key.0.is_none()) {
        return None;
    }
    let pairs: Vec<bool> =
        frames.now().rows.iter().filter_map(|row| Some(*base.get(&row.request)? == key(row))).collect();
    let same = pairs.iter().filter(|same| **same).count();
    (pairs.len() >= 30).then(|| same as f64 / pairs.len() as f64)
}

/// Checks for other shares of the request kinds while each kind is unchanged (Simpson's paradox).
fn other_mix(base: &DiagnosedLevel<'_>, now: &DiagnosedLevel<'_>) -> Option<Finding> {
    let shares = |seen: &DiagnosedLevel<'_>| -> BTreeMap<u16, f64> {
        let mut of = BTreeMap::new();
        seen.rows.iter().for_each(|row| *of.entry(row.class).or_insert(0.0) += 1.0 / seen.rows.len() as f64);
        of
    };
    let (before, after) = (shares(base), shares(now));
    let mut classes: Vec<u16> = before.keys().chain(after.keys()).copied().collect();
    classes.sort_unstable();
    classes.dedup();
    if classes.len() < 2 {
        return None;
    }
    let (n0, n1) = (base.rows.len() as f64, now.rows.len() as f64);
    let of =
        |class: &u16| (before.get(class).copied().unwrap_or(0.0), after.get(class).copied().unwrap_or(0.0));
    let moved = classes.iter().any(|class| {
        let (a, b) = of(class);
        let between = plimsoll_math::proportion::newcombe((a * n0, n0), (b * n1, n1), 0.99);
        (between.lower > 0.0 || between.upper < 0.0) && (b - a).abs() > 0.02
    });
    // A few new, very long prompts are not another mix; another fact covers their effect.
    let known = classes.iter().all(|class| before.contains_key(class));
    let (steady, apart) = kinds(base, now, &classes)?;
    let one = |class: &u16| {
        let (a, b) = of(class);
        format!("class {class} {} -> {}", percent(a), percent(b))
    };
    let shares: Vec<String> = classes.iter().map(one).collect();
    let says = format!("{}; within each class lengths are as before", shares.join(", "));
    Some(Finding::new(Observed::OtherMix, yes_if(moved && known && steady && apart >= 1.3), says))
}

/// Returns whether the lengths within each kind are unchanged, and the distance between the kinds. Uses medians of
/// prompts and responses.
fn kinds(base: &DiagnosedLevel<'_>, now: &DiagnosedLevel<'_>, classes: &[u16]) -> Option<(bool, f64)> {
    let middle = |seen: &DiagnosedLevel<'_>, class: u16, of: fn(&RequestView) -> f64| {
        let mut values: Vec<f64> =
            seen.rows.iter().filter(|row| row.class == class && row.ok).map(of).collect();
        (values.len() >= 15).then(|| plimsoll_math::quantile::order_statistic(&mut values, 0.5)).flatten()
    };
    let (mut steady, mut apart) = (true, 1.0f64);
    for of in [(|row: &RequestView| row.prompt) as fn(&RequestView) -> f64, |row| row.output] {
        let mut here: Vec<f64> = Vec::new();
        for class in classes {
            let (Some(a), Some(b)) = (middle(base, *class, of), middle(now, *class, of)) else { continue };
            // A median of a few lognormal lengths is off by a fifth.
            steady &= (0.75..=1.33).contains(&(b / a.max(1.0)));
            here.push(b);
        }
        let low = here.iter().copied().fold(f64::INFINITY, f64::min);
        let high = here.iter().copied().fold(0.0, f64::max);
        if here.len() > 1 {
            apart = apart.max(high / low.max(1.0));
        }
    }
    (apart > 1.0).then_some((steady, apart))
}

/// Maximum probability of such a ratio between two similar runs; over all widths together it is one in 500 (by
/// simulation).
const SURE_BURSTS: f64 = 0.005;
/// Ratio of the mean rate to the baseline's within which bursts are the change.
const RATES: std::ops::RangeInclusive<f64> = 0.3..=2.0;

/// Checks for bursts by the variance of arrival counts over their mean (the index of dispersion: Cox and Lewis 1966).
/// The index is one for independent arrivals in windows of any width. The duration of a burst is unknown, so windows
/// of several widths are tested. The ratio of both sides' indices has approximately the F distribution for similar
/// runs, with as many degrees of freedom as windows.
fn bursts(base: &DiagnosedLevel<'_>, now: &DiagnosedLevel<'_>) -> Option<Finding> {
    if base.is_closed() || now.is_closed() || !RATES.contains(&(now.rate() / base.rate())) {
        return None;
    }
    let sure =
        |one: &WindowArrivals| one.grown >= GATHERED && one.now.value >= GATHERED && one.p < SURE_BURSTS;
    let all: Vec<WindowArrivals> =
        WIDTHS.into_iter().filter_map(|width| gathered(base, now, width)).collect();
    let is = FactState::of(all.iter().any(sure), all.iter().all(|one| one.p > 0.05 || one.grown < GATHERED));
    let WindowArrivals { width, before, now: after, .. } =
        all.into_iter().min_by(|a, b| a.p.total_cmp(&b.p))?;
    let says = format!(
        "the index of dispersion of arrivals in {} s is {} (before {})",
        number(width),
        number(after.value),
        number(before)
    );
    Some(Finding::new(Observed::Bursts, is, says).figure(after, GATHERED * before.max(1.0)))
}

fn shares_less(base: &DiagnosedLevel<'_>, now: &DiagnosedLevel<'_>) -> Option<Finding> {
    let (before, after) = (shared(base)?, shared(now)?);
    let is = match before - after {
        lost if lost >= 0.1 => FactState::Yes,
        lost if lost < 0.05 => FactState::No,
        _ => FactState::Unclear,
    };
    let says = format!(
        "{} of the prompt blocks began an earlier prompt before, {} now",
        percent(before),
        percent(after)
    );
    Some(Finding::new(Observed::SharesLess, is, says))
}

/// Widths of the windows in s.
const WIDTHS: [f64; 4] = [1.0, 2.0, 5.0, 10.0];
const FEWEST: usize = 10;
/// Index of dispersion from which arrivals are bursts, absolute and relative to the baseline. A growth by half is
/// significant because queues grow about in proportion to the index (Kingman's bound).
const GATHERED: f64 = 1.5;
/// The arrivals at one window width.
struct WindowArrivals {
    width: f64,
    before: f64,
    now: Estimate,
    grown: f64,
    p: f64,
}

/// Returns the share of the blocks that began an earlier prompt; `None` if prompts are unknown.
pub fn shared(seen: &DiagnosedLevel<'_>) -> Option<f64> {
    let blocks: f64 = seen.rows.iter().map(|row| f64::from(row.blocks)).sum();
    let shared: f64 = seen.rows.iter().map(|row| f64::from(row.shared_blocks)).sum();
    (blocks >= 100.0).then(|| shared / blocks)
}

fn gathered(base: &DiagnosedLevel<'_>, now: &DiagnosedLevel<'_>, width: f64) -> Option<WindowArrivals> {
    let ((before, n0), (after, n1)) = (dispersion(base, width)?, dispersion(now, width)?);
    // Independent arrivals have an index of one; an index far below is an accident and no valid base.
    let grown = after / before.max(0.8);
    let (d0, d1) = (n0 as f64 - 1.0, n1 as f64 - 1.0);
    // Quantiles of the index from the distribution of its logarithm, whose variance is about 2 / (windows - 1).
    let half = libm::exp(1.96 * libm::sqrt(2.0 / d1));
    let now = Estimate { value: after, lower: after / half, upper: after * half, n: n1 as u64, n_eff: d1 };
    Some(WindowArrivals { width, before, now, grown, p: beyond_f(grown, d1, d0) })
}

/// Returns the upper tail of the F distribution (Abramowitz and Stegun 26.6.2).
fn beyond_f(f: f64, d1: f64, d2: f64) -> f64 {
    beta_inc(0.5 * d2, 0.5 * d1, d2 / (d2 + d1 * f))
}

/// Returns the variance over the mean of the arrivals in windows of this width, and the number of windows.
fn dispersion(seen: &DiagnosedLevel<'_>, width: f64) -> Option<(f64, usize)> {
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

    /// F tables (Fisher and Yates). The upper 5 % of F with 10 and 10 degrees of freedom is 2.978; the upper 1 % with
    /// 24 and 24 is 2.659.
    #[test]
    fn the_tail_is_that_of_the_tables() {
        assert!((beyond_f(2.978, 10.0, 10.0) - 0.05).abs() < 2e-4);
        assert!((beyond_f(2.659, 24.0, 24.0) - 0.01).abs() < 1e-4);
    }
}
