//! Facts on the measurement: late sends, delays by the client, missing records, tracing.

use plimsoll_math::quantile::{self, order_statistic};
use plimsoll_measure::findings::Estimate;
use plimsoll_measure::say::{ms, number, percent};
use plimsoll_model::run::{NOT_TRACED, TRACED, TRACING};

use super::{FactState, Finding, Observed, yes_if};
use crate::effect::share;
use crate::frame::Frames;
use crate::seen::DiagnosedLevel;
use crate::{RunData, changed};

/// Minimum lag in s that counts as late.
const LAG_S: f64 = 0.1;
/// Share of the latency's p99 from which lag matters.
const OF_LATENCY: f64 = 0.1;
/// Minimum send delay in s of a request that the client delayed, and minimum lag for a limit that was reached.
const HELD_S: f64 = 0.02;

pub fn find(frames: &Frames<'_>, found: &mut Vec<Finding>) {
    found.push(sent_late(frames));
    found.push(at_cap(frames));
    found.push(waits_for_connection(frames));
    found.extend(lost_records(frames));
    found.extend(traced_now(frames));
}

fn sent_late(frames: &Frames<'_>) -> Finding {
    let no = || Finding::new(Observed::SentLate, FactState::No, "the generator sent on time".to_owned());
    late(frames, LAG_S).map_or_else(no, |(lag, limit)| {
        let says = format!("requests were sent {} late at p99, of {} allowed", ms(lag.value), ms(limit));
        Finding::new(Observed::SentLate, FactState::Yes, says).figure(lag, limit)
    })
}

/// Checks whether the client was at its limit of requests in flight. A late generator has fewer requests in flight
/// than scheduled; a limited one always has the maximum.
fn at_cap(frames: &Frames<'_>) -> Finding {
    let seen = frames.now();
    let told = seen.level.generator.closed_since.is_some();
    let no = || {
        Finding::new(
            Observed::AtClientCap,
            FactState::No,
            "no limit of the client delayed requests".to_owned(),
        )
    };
    let Some((lag, _)) = late(frames, if told { HELD_S } else { LAG_S }) else { return no() };
    let Some((cap, full, held)) = plateau(seen) else { return no() };
    let is = match () {
        () if held.lower < 0.4 || (full < 0.2 && !told) => FactState::No,
        () if held.lower >= 0.6 => FactState::Yes,
        () => FactState::Unclear,
    };
    let says = format!(
        "{} of the late requests were due while the client had its {} requests in flight; lag p99 {}",
        percent(held.value),
        number(cap),
        ms(lag.value)
    );
    Finding::new(Observed::AtClientCap, is, says).figure(held, 0.6)
}

/// Checks the client's connection pool: the generator was on time, and the requests were sent late.
fn waits_for_connection(frames: &Frames<'_>) -> Finding {
    let seen = frames.now();
    let Some((held, p99)) = pool_wait(seen) else {
        return Finding::new(
            Observed::WaitsForConnection,
            FactState::No,
            "no request waited for a connection".to_owned(),
        );
    };
    let before = frames.before().and_then(pool_wait).map_or(0.0, |(share, _)| share.value);
    let is = held.value >= 0.03 && held.value >= 2.0 * before && p99 >= 0.05;
    let says = format!(
        "{} of the requests waited for a connection of the client's pool (p99 {}), the generator itself being {} late",
        percent(held.value),
        ms(p99),
        ms(seen.level.generator.lag.p99_ns as f64 / 1e9)
    );
    Finding::new(Observed::WaitsForConnection, yes_if(is), says).figure(held, 0.03)
}

fn lost_records(frames: &Frames<'_>) -> Option<Finding> {
    let seen = frames.now();
    let (due, kept) = (seen.level.arrivals as f64, seen.rows.len() as f64);
    if seen.level.ended_by == plimsoll_model::EndedBy::Cut || due < 1.0 {
        return None;
    }
    let lost = share((due - kept).max(0.0), due, 1.0);
    let says = format!("{} of {} requests left no record", number((due - kept).max(0.0)), number(due));
    Some(Finding::new(Observed::LostRecords, yes_if(lost.lower >= 0.01), says).figure(lost, 0.01))
}

/// Checks whether the requests are traced now and were not before. Known only if both runs record the sampled flag of
/// `traceparent` per request.
fn traced_now(frames: &Frames<'_>) -> Option<Finding> {
    let said = |side: &RunData<'_>| side.facts.facts.get(TRACING).cloned().flatten();
    let (before, now) = (said(frames.case.baseline.as_ref()?)?, said(&frames.case.candidate)?);
    let differ = changed::facts(frames.case).differ;
    let more = super::load::rates(frames.before()?, frames.now())
        .is_some_and(|rates| rates.ratio.value >= 1.08 && rates.p < 0.01);
    let is = before == NOT_TRACED && now == TRACED && differ.len() == 1 && !more;
    Some(Finding::new(
        Observed::TracedNow,
        yes_if(is),
        format!("requests are traced now: {}", differ.join(", ")),
    ))
}

/// Returns the p99 of lag with its interval, and its limit, if the lag exceeds the limit. The limit is a tenth of the
/// latency's p99, and `least` seconds at minimum.
fn late(frames: &Frames<'_>, least: f64) -> Option<(Estimate, f64)> {
    let seen = frames.now();
    // A wait for a pooled connection is not lag of the generator, because the generator reports its own lag.
    if pool_wait(seen).is_some() {
        return None;
    }
    let lag: Vec<f64> = seen.rows.iter().map(|row| row.lag.max(0.0)).filter(|x| x.is_finite()).collect();
    let mut ttft = seen.finite(|row| row.ttft);
    if ttft.is_empty() {
        ttft = seen.finite(|row| row.e2e);
    }
    let p99 = quantile::order_statistic(&mut ttft, 0.99).unwrap_or(0.0);
    let limit = least.max(OF_LATENCY * p99);
    let mut sorted = lag.clone();
    quantile::sort(&mut sorted);
    let value = quantile::of_sorted(&sorted, 0.99)?;
    let over: Vec<bool> = lag.iter().map(|x| *x > value).collect();
    let worth = quantile::n_eff_of_flags(&over, crate::effect::STRETCHES);
    let interval = quantile::undecided(&sorted, worth, 0.99, 0.9);
    let lag = Estimate {
        value,
        lower: interval.lower.max(0.0),
        upper: interval.upper,
        n: lag.len() as u64,
        n_eff: worth.n_eff,
    };
    (value > limit).then_some((lag, limit))
}

/// Returns the maximum number of requests in flight, the share of time at it, and the share of delayed requests that
/// were due at it.
fn plateau(seen: &DiagnosedLevel<'_>) -> Option<(f64, f64, plimsoll_measure::findings::Estimate)> {
    let mut edges: Vec<(f64, i32)> = Vec::new();
    for row in seen.rows.iter().filter(|row| row.sent.is_finite()) {
        edges.push((row.sent, 1));
        edges.push((row.end.min(1e12).max(row.sent), -1));
    }
    edges.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
    let mut n = 0;
    let course: Vec<(f64, i32)> = edges
        .into_iter()
        .map(|(at, step)| {
            n += step;
            (at, n)
        })
        .collect();
    let most = course.iter().map(|point| point.1).max()?;
    let at_cap: f64 = course
        .windows(2)
        .filter(|w| w[0].1 >= most)
        .map(|w| w[1].0.min(seen.length) - w[0].0)
        .filter(|d| *d > 0.0)
        .sum();
    // At the due instant, a slot may have been freed and not yet taken again.
    let in_flight = |t: f64| match course.partition_point(|(at, _)| *at <= t) {
        0 => 0,
        k => course[k - 1].1,
    };
    let held: Vec<bool> = seen
        .rows
        .iter()
        .filter(|row| row.lag > HELD_S)
        .map(|row| in_flight(row.due) >= most - (most / 20))
        .collect();
    let k = held.iter().filter(|at| **at).count() as f64;
    (held.len() >= 10).then(|| (f64::from(most), at_cap / seen.length, share(k, held.len() as f64, 1.0)))
}

/// Returns the share of requests that were sent more than 20 ms after the generator's own lag, and the p99 of that
/// wait.
pub(crate) fn pool_wait(seen: &DiagnosedLevel<'_>) -> Option<(Estimate, f64)> {
    let own = seen.level.generator.lag;
    // The generator counts delays by a limit on requests in flight as its own lag, but not delays by a full pool. A
    // closed loop has no schedule, so the time between due and sent is only the wait for a connection.
    if own.count == 0 && !seen.is_closed() {
        return None;
    }
    let allowed = 0.02 + 1.5 * own.p99_ns as f64 / 1e9;
    let mut waits = seen.finite(|row| row.lag);
    let held: Vec<bool> = waits.iter().map(|wait| *wait > allowed).collect();
    let k = held.iter().filter(|held| **held).count() as f64;
    let p99 = order_statistic(&mut waits, 0.99)?;
    let design = plimsoll_math::quantile::design_effect(&held, crate::effect::STRETCHES);
    (k >= 5.0).then(|| (share(k, held.len() as f64, design), p99))
}
