//! Facts on output tokens under concurrency: gaps at equal concurrency, their times, and tokens per event.

use plimsoll_math::quantile::{self, of_sorted, order_statistic, sort};
use plimsoll_measure::findings::Estimate;
use plimsoll_measure::say::{chance, ms, number, percent};

use super::alone::{PromptLaw, computed};
use super::load::times;
use super::{FactState, Finding, Observed, over};
use crate::concurrency;
use crate::effect::share;
use crate::frame::{Frame, Frames};
use crate::seen::{DiagnosedLevel, RequestView};

pub fn find(frames: &Frames<'_>, found: &mut Vec<Finding>) {
    found.extend(slower_beside(frames));
    found.extend(slow_seconds(frames));
    found.extend(drift(frames, Observed::TokensDrift, "tpot", |row| row.tpot));
    found.extend(drift(frames, Observed::FirstTokenDrifts, "ttft", |row| row.ttft));
    found.extend(coalesced(frames));
}

/// Compares token gaps at equal concurrency with the baseline.
fn slower_beside(frames: &Frames<'_>) -> Option<Finding> {
    let concurrency::Slower { middle, quarter, over_twice_as_many } = concurrency::slower(frames)?;
    // If the number of replicas is unknown, a router that sends all requests to one of two replicas has the same
    // effect.
    let of_one = |arm: &Frame<'_>| !arm.seen.replicas.is_empty() || arm.gauges.on_pages().len() == 1;
    let one_by_one = of_one(&frames.candidate) && frames.base.as_ref().is_some_and(of_one);
    let sure = middle.ratio.lower > 1.03 && quarter >= 1.04 && (one_by_one || over_twice_as_many >= 1.04);
    let is = over(&middle.ratio, sure, 1.08);
    let says = format!(
        "at equal concurrency, the gaps between tokens are {} ({} for the faster quarter)",
        times(&middle.ratio),
        number(quarter)
    );
    Some(Finding::new(Observed::SlowerBeside, is, says).figure(middle.ratio, 1.08))
}

/// Checks for seconds in which a replica's tokens are slower than at equal concurrency, in runs of two, and normal in
/// between. Needs a baseline, because seconds that differ by a factor of 2.5 are usual on real engines.
fn slow_seconds(frames: &Frames<'_>) -> Option<Finding> {
    let base = frames.before()?;
    let (beside, alone) = (concurrency::StepLaw::of(base), PromptLaw::of(&frames.candidate.alone));
    let of = |seen: &DiagnosedLevel<'_>| slow_stretches(seen, beside.as_ref(), alone.as_ref());
    let (now, slow) = of(frames.now())?;
    let before = of(base).map_or(0.0, |(share, _)| share.value);
    let is = FactState::of(
        now.value >= 0.06 && now.value <= 0.75 && now.value >= 2.5 * before + 0.03,
        now.value < 0.04 || now.value < 1.5 * before + 0.02,
    );
    let says = format!(
        "in {} of the seconds a replica's tokens come {} times slower than its usual ({} in the baseline)",
        percent(now.value),
        number(slow),
        percent(before)
    );
    Some(Finding::new(Observed::SlowSeconds, is, says).figure(now, 0.06))
}

/// Checks for a trend in the run that the baseline lacks.
fn drift(frames: &Frames<'_>, fact: Observed, name: &str, of: fn(&RequestView) -> f64) -> Option<Finding> {
    let (change, p) = trend(frames.now(), of)?;
    let before = frames.before().and_then(|base| trend(base, of)).map_or(0.0, |(change, _)| change);
    let is =
        FactState::of(p < 0.005 && change > 0.1 && change > 2.0 * before.abs(), p > 0.05 || change < 0.05);
    let says = format!("{name} rises by {} from beginning to end ({})", percent(change), chance(p));
    Some(Finding::new(fact, is, says))
}

/// Checks for tokens that arrive together: more tokens per event, or more gaps of zero.
fn coalesced(frames: &Frames<'_>) -> Option<Finding> {
    let middle = |seen: &DiagnosedLevel<'_>, of: fn(&RequestView) -> f64| {
        let mut values = seen.finite(of);
        (values.len() >= 20).then(|| order_statistic(&mut values, 0.5)).flatten()
    };
    let of = |seen: &DiagnosedLevel<'_>| {
        Some((middle(seen, RequestView::chunk)?, middle(seen, |row| row.coalesced).unwrap_or(0.0)))
    };
    let (now, coalesced) = of(frames.now())?;
    let pause = middle(frames.now(), |row| row.gap_max).unwrap_or(0.0);
    let says = |was: f64, coalesced_were: f64| {
        format!(
            "{} tokens come together (before {}), {} of the gaps between tokens are zero (before {}), the longest gap of an answer is {} (median)",
            number(now),
            number(was),
            percent(coalesced),
            percent(coalesced_were),
            ms(pause)
        )
    };
    let Some((was, coalesced_were)) = frames.before().and_then(of) else {
        // Without a baseline, a server may be meant to send several tokens per event.
        let is = FactState::of(now >= 3.0 && pause >= 0.2, now < 1.5 && coalesced < 0.2);
        return Some(Finding::new(Observed::Coalesced, is, says(1.0, 0.0)));
    };
    let is = FactState::of(
        now >= 2.0 * was.max(1.0) || coalesced >= coalesced_were + 0.4,
        now < 1.3 * was.max(1.0) && coalesced < coalesced_were + 0.15,
    );
    Some(Finding::new(Observed::Coalesced, is, says(was, coalesced_were)))
}

/// Returns Sen's slope of the medians of forty intervals, from end to end, as a share of their median. Returns also
/// the p-value of Mann, Kendall, Hamed and Rao.
fn trend(seen: &DiagnosedLevel<'_>, of: fn(&RequestView) -> f64) -> Option<(f64, f64)> {
    const PARTS: usize = 40;
    let mut parts = vec![Vec::new(); PARTS];
    for row in seen.rows.iter().filter(|row| row.ok) {
        let value = of(row);
        if value.is_finite() {
            parts[((row.due / seen.length * PARTS as f64) as usize).min(PARTS - 1)].push(value);
        }
    }
    let medians: Vec<f64> =
        parts.iter_mut().filter_map(|part| quantile::order_statistic(part, 0.5)).collect();
    if medians.len() < 20 {
        return None;
    }
    let trend = plimsoll_math::series::mann_kendall_hamed_rao(&medians)?;
    let mut sorted = medians.clone();
    let middle = quantile::order_statistic(&mut sorted, 0.5)?;
    Some((trend.slope_sen * medians.len() as f64 / middle.max(1e-9), trend.p))
}

/// Share of a second in prefills, at the speed of isolated requests, from which prefills explain slow tokens.
const READING: f64 = 0.4;

/// Returns the prefill time per prompt token in s: of isolated requests, else of the fastest tenth among the longer
/// half of the prompts. The second includes other waits, so more time counts as prefill than was.
fn per_token(seen: &DiagnosedLevel<'_>, alone: Option<&PromptLaw>) -> f64 {
    if let Some(law) = alone {
        return law.per_token;
    }
    let read = |row: &&RequestView| row.ok && row.ttft_sent.is_finite();
    let mut prompts: Vec<f64> = seen.rows.iter().filter(read).map(computed).collect();
    sort(&mut prompts);
    let Some(middle) = of_sorted(&prompts, 0.5) else { return 0.0 };
    let longer = seen.rows.iter().filter(read).filter(|row| computed(row) >= middle);
    let mut each: Vec<f64> = longer.map(|row| row.ttft_sent / computed(row)).collect();
    sort(&mut each);
    of_sorted(&each, 0.1).unwrap_or(0.0)
}

/// Returns the share of each second in prefills at `per_token` seconds, up to the first tokens; by replica.
fn reading_by_second(
    seen: &DiagnosedLevel<'_>,
    per_token: f64,
    several: usize,
    seconds: usize,
) -> Vec<Vec<f64>> {
    let mut reading = vec![vec![0.0; seconds + 1]; several];
    for row in seen.rows.iter().filter(|row| row.ttft_sent.is_finite()) {
        let replica = usize::from(row.replica.unwrap_or(0)).min(several - 1);
        let until = row.sent_last + row.ttft_sent;
        let from = (until - per_token * computed(row)).max(row.sent_last);
        let first = (from.max(0.0) as usize).min(seconds);
        for (second, read) in (first..).zip(&mut reading[replica][first..]) {
            let (begin, end) = (second as f64, second as f64 + 1.0);
            if until <= begin {
                break;
            }
            *read += (until.min(end) - from.max(begin)).max(0.0);
        }
    }
    reading
}

/// Returns the share of (replica, second) cells whose median gap is 1.4 times the replica's usual gap, and the
/// factor. Cells count both raw and at equal concurrency, in runs of two or more. Seconds that consist mostly of
/// prefills do not count.
fn slow_stretches(
    seen: &DiagnosedLevel<'_>,
    law: Option<&concurrency::StepLaw>,
    alone: Option<&PromptLaw>,
) -> Option<(Estimate, f64)> {
    let seconds = seen.length.ceil() as usize;
    let several = seen.replicas.len().max(1);
    let reading = reading_by_second(seen, per_token(seen, alone), several, seconds);
    let (mut cells, mut slow, mut ratios) = (0.0, 0.0, Vec::new());
    for (replica, reading) in reading.iter().enumerate() {
        let mut by_second: Vec<Vec<(f64, f64)>> = vec![Vec::new(); seconds + 1];
        for pace in seen.paces.iter() {
            let row = &seen.rows[pace.row as usize];
            if seen.replicas.is_empty() || row.replica == Some(replica as u16) {
                let alike = law.map_or(1.0, |law| law.at(pace.concurrency));
                by_second[(pace.at.max(0.0) as usize).min(seconds)].push((pace.gap, pace.gap / alike));
            }
        }
        let middle = |of: &[f64]| if of.len() >= 3 { order_statistic(&mut of.to_vec(), 0.5) } else { None };
        let middles = |of: fn(&(f64, f64)) -> f64| -> Vec<Option<f64>> {
            by_second.iter().map(|paces| middle(&paces.iter().map(of).collect::<Vec<_>>())).collect()
        };
        // The lower half defines the usual gap, because a neighbour that is active half of the time must not define
        // it.
        let usual = |middles: &[Option<f64>]| {
            let mut known: Vec<f64> = middles.iter().flatten().copied().collect();
            sort(&mut known);
            of_sorted(&known, 0.35)
        };
        let (middles, alike) = (middles(|pace| pace.0), middles(|pace| pace.1));
        let (Some(usual), Some(usual_alike)) = (usual(&middles), usual(&alike)) else { continue };
        let over = |middle: &Option<f64>, usual: f64| middle.is_some_and(|m| m >= 1.4 * usual);
        let is_slow: Vec<bool> = middles
            .iter()
            .zip(&alike)
            .zip(reading)
            .map(|((middle, alike), reading)| {
                *reading < READING && over(middle, usual) && over(alike, usual_alike)
            })
            .collect();
        for (k, middle) in middles.iter().enumerate() {
            let Some(middle) = middle else { continue };
            cells += 1.0;
            let neighbour = (k > 0 && is_slow[k - 1]) || is_slow.get(k + 1).copied().unwrap_or(false);
            if is_slow[k] && neighbour {
                slow += 1.0;
                ratios.push(middle / usual);
            }
        }
    }
    if cells < 15.0 {
        return None;
    }
    let share = share(slow, cells, 4.0);
    Some((share, order_statistic(&mut ratios, 0.5).unwrap_or(1.0)))
}
