//! Facts on stages in front of the engine, if the server or a tracer reports their times.

use plimsoll_math::quantile::{of_sorted, sort};
use plimsoll_measure::findings::Estimate;
use plimsoll_measure::say::{chance, ms, number, percent};

use super::load::times;
use super::{FactState, Finding, Observed};
use crate::effect::spearman;
use crate::effect::{medians, share};
use crate::frame::Frames;
use crate::seen::{DiagnosedLevel, RequestView};

/// Minimum number of rows with a known stage; a trace of 1 % of a thousand requests is enough for a median.
const FEWEST: usize = 8;
/// Ratio of a new stage's time to the growth of the time to first token. Below it, the stage existed before without
/// being reported.
const NEW: std::ops::RangeInclusive<f64> = 0.7..=1.3;
/// Minimum growth of a stage as a share of the baseline's mean time to first token.
const FELT: f64 = 0.05;
/// Rank correlation of a call's time with the number of concurrent calls, from which calls wait for each other.
const WAITS: f64 = 0.08;
/// Maximum p-value of that correlation.
const CERTAIN: f64 = 1e-4;

pub fn find(frames: &Frames<'_>, found: &mut Vec<Finding>) {
    let now = sorted(frames.now());
    if now.len() < FEWEST {
        return;
    }
    found.extend(new(frames, &now).or_else(|| longer(frames)));
    found.extend(tail(frames, &now));
    found.extend(waits(frames));
}

fn stage(row: &RequestView) -> f64 {
    row.before_engine().unwrap_or(f64::NAN)
}

fn sorted(seen: &DiagnosedLevel<'_>) -> Vec<f64> {
    let mut values = seen.finite(stage);
    sort(&mut values);
    values
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

fn names(seen: &DiagnosedLevel<'_>) -> String {
    seen.stages.join(", ")
}

/// Checks for a stage that did not exist before and explains the growth of the time to first token.
fn new(frames: &Frames<'_>, now: &[f64]) -> Option<Finding> {
    let base = frames.before().filter(|base| base.stages.is_empty())?;
    let first = |seen: &DiagnosedLevel<'_>| mean(&seen.finite(|row| row.ttft));
    let grown = first(frames.now()) - first(base);
    let share = mean(now) / grown;
    let is = FactState::of(grown > 0.0 && NEW.contains(&share), grown <= 0.0);
    let says = format!(
        "{} is reported now and was not before: it takes {} on average",
        names(frames.now()),
        ms(mean(now))
    );
    Some(Finding::new(Observed::StageLonger, is, says))
}

/// Compares stages of isolated requests, else of all reported requests; the latter have no interval.
fn longer(frames: &Frames<'_>) -> Option<Finding> {
    let of =
        |rows: &[RequestView]| -> Vec<f64> { rows.iter().map(stage).filter(|x| x.is_finite()).collect() };
    let alone = medians(&of(&frames.base.as_ref()?.alone), &of(&frames.candidate.alone), 0.95);
    let all = || {
        let (a, b) = (sorted(frames.before()?), sorted(frames.now()));
        let at = |values: &[f64], p: f64| of_sorted(values, p);
        let n = a.len().min(b.len()) as u64;
        (a.len() >= FEWEST).then_some(())?;
        Some(Estimate {
            value: at(&b, 0.5)? / at(&a, 0.5)?,
            lower: at(&b, 0.25)? / at(&a, 0.75)?,
            upper: at(&b, 0.75)? / at(&a, 0.25)?,
            n,
            n_eff: n as f64,
        })
    };
    let ratio = alone.or_else(all)?;
    let is = FactState::of(ratio.value >= 1.4 && ratio.lower > 1.1, ratio.value < 1.2 || ratio.upper < 1.4);
    let place = if alone.is_some() { "alone" } else { "in the requests that report it" };
    let says = format!("{} takes {} {place}", names(frames.now()), times(&ratio));
    Some(Finding::new(Observed::StageLonger, is, says).figure(ratio, 1.4))
}

/// Checks whether most calls are unchanged and a few are very slow.
fn tail(frames: &Frames<'_>, now: &[f64]) -> Option<Finding> {
    let before = sorted(frames.before()?);
    if before.len() < FEWEST || now.len() < 4 * FEWEST {
        return None;
    }
    let usual = of_sorted(&before, 0.99)?;
    let far = of_sorted(now, 0.995)?.max(of_sorted(now, 0.99)?) / of_sorted(&before, 0.995)?.max(usual);
    let over = now.iter().filter(|x| **x > 3.0 * usual).count() as f64;
    let slow = share(over, now.len() as f64, 1.0);
    let is = FactState::of(far >= 3.0 && over >= 4.0, over < 2.0);
    let says = format!(
        "{} of the calls of {} take over {} (three times the baseline's p99)",
        percent(slow.value),
        names(frames.now()),
        ms(3.0 * usual)
    );
    Some(Finding::new(Observed::StageTail, is, says).figure(slow, 0.0))
}

/// Checks whether calls take longer the more of them are in progress. With enough capacity, the time of a call is
/// independent of concurrent calls (the queue M/G/∞). Ranks therefore detect a queue of a tenth of the service time,
/// which a ratio of medians does not.
fn waits(frames: &Frames<'_>) -> Option<Finding> {
    let base = frames.before()?;
    let (before, now) = (sorted(base), sorted(frames.now()));
    if before.len() < 100 || now.len() < 100 {
        return None;
    }
    let ((rho, p), (was, _)) = (with_others(frames.now())?, with_others(base)?);
    let grown = mean(&now) - mean(&before);
    // If calls certainly wait for each other, the calls with few concurrent ones show the time without the wait.
    let waited = if p < CERTAIN && rho >= was + WAITS { waited(frames.now()) } else { 0.0 };
    let felt = grown.max(waited) / mean(&base.finite(|row| row.ttft)).max(1e-9);
    let is = FactState::of(
        felt >= FELT && rho >= WAITS && p < 1e-3 && rho >= was + 0.5 * WAITS,
        rho < 0.5 * WAITS || p > 0.05,
    );
    let says = format!(
        "{} takes longer with more calls before it (rank correlation {}, {}; in the baseline {}), and adds {} to the mean first token",
        names(frames.now()),
        number(rho),
        chance(p),
        number(was),
        percent(felt)
    );
    Some(Finding::new(Observed::StageWaits, is, says))
}

/// Returns the difference in s between the mean call and the mean of the third with the fewest concurrent calls.
fn waited(seen: &DiagnosedLevel<'_>) -> f64 {
    let (others, took) = met(seen);
    let mut calls: Vec<(f64, f64)> = others.into_iter().zip(took).collect();
    calls.sort_by(|a, b| a.0.total_cmp(&b.0));
    let mean = |of: &[(f64, f64)]| of.iter().map(|call| call.1).sum::<f64>() / of.len().max(1) as f64;
    mean(&calls) - mean(&calls[..calls.len() / 3])
}

/// Returns the rank correlation of call times with the number of calls in progress at their start, and its p-value.
fn with_others(seen: &DiagnosedLevel<'_>) -> Option<(f64, f64)> {
    let (others, took) = met(seen);
    spearman(&others, &took)
}

/// Returns for each call the number of others in progress at its start, and its time in s.
fn met(seen: &DiagnosedLevel<'_>) -> (Vec<f64>, Vec<f64>) {
    let mut calls: Vec<(f64, f64)> = seen
        .rows
        .iter()
        .map(|row| (row.sent_last, stage(row)))
        .filter(|(at, took)| at.is_finite() && took.is_finite())
        .collect();
    calls.sort_by(|a, b| a.0.total_cmp(&b.0));
    let mut ends: Vec<f64> = calls.iter().map(|(at, took)| at + took).collect();
    sort(&mut ends);
    let there =
        |(k, (at, _)): (usize, &(f64, f64))| (k - ends.partition_point(|end| end <= at).min(k)) as f64;
    let others: Vec<f64> = calls.iter().enumerate().map(there).collect();
    (others, calls.iter().map(|call| call.1).collect())
}
