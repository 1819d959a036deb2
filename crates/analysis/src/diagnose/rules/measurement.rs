//! V: the measurement itself. Asked first: where the generator is late, every figure from the due time is the generator's.

use plimsoll_math::quantile;

use super::{Fired, beyond, share};
use crate::diagnose::bench::Bench;
use crate::diagnose::seen::Seen;
use crate::diagnose::verdict::Evidence;
use crate::diagnose::{Cause, Counter};
use crate::say::{ms, number, percent};

/// Lag below which nobody would call it slow, s.
const LAG_S: f64 = 0.1;
/// Share of the latency's p99 from which lag is part of it.
const OF_LATENCY: f64 = 0.1;
/// A request that was sent this late was held back, s.
const HELD_S: f64 = 0.02;

/// V1: requests were sent late, with room in flight.
pub fn generator_lag(bench: &Bench<'_>) -> Option<Fired> {
    let (lag, limit) = late(bench)?;
    let says = format!("requests were sent {} late at p99, of {} allowed", ms(lag.value), ms(limit));
    let confidence = beyond(lag.lower.max(0.0), limit).max(beyond(lag.value, limit) * 0.9);
    Some(
        Fired::new(Cause::GeneratorLag, confidence, says.clone())
            .with(Evidence::figure("lag_p99", says, lag, Some(limit)))
            .counted(Counter::Moved { name: "client lag (sent − due) p99, s".into(), by: lag.value }),
    )
}

/// V2: requests wait in the client because its own cap on requests in flight is reached.
pub fn client_cap(bench: &Bench<'_>) -> Option<Fired> {
    let (lag, limit) = late(bench)?;
    let seen = bench.now();
    let (cap, full, held) = plateau(seen)?;
    // A generator that is late has fewer in flight than it should; one that is capped always has as many as it may.
    let told = seen.level.generator.closed_since.is_some();
    if held.lower < 0.6 || (full < 0.2 && !told) {
        return None;
    }
    let confidence = beyond(lag.value, limit) * if told { 1.0 } else { beyond(held.lower, 0.75).min(1.0) };
    let says = format!(
        "{} of the late requests were due while the client had its {} requests in flight; lag p99 {}",
        percent(held.value),
        number(cap),
        ms(lag.value)
    );
    let waiting = crate::diagnose::gauges::mean(&bench.candidate.gauges.waiting);
    let idle = waiting.map(|mean| {
        Evidence::said(
            "server_waiting",
            format!("the server had {} requests waiting on average", number(mean)),
        )
    });
    Some(
        Fired::new(Cause::ClientCap, confidence, says.clone())
            .with(Evidence::figure("late_at_cap", says, held, Some(0.75)))
            .with(Evidence::figure("lag_p99", format!("lag p99 {}", ms(lag.value)), lag, Some(limit)))
            .maybe(idle)
            .counted(Counter::Moved { name: "share of time at the client's cap".into(), by: full }),
    )
}

/// The p99 of lag with its interval, and its limit, where it is beyond it. The wait for a connection to be made is the target's.
fn late(bench: &Bench<'_>) -> Option<(crate::findings::Estimate, f64)> {
    let seen = bench.now();
    let lag: Vec<f64> =
        seen.rows.iter().map(|row| (row.lag - row.connect).max(0.0)).filter(|x| x.is_finite()).collect();
    let mut ttft = seen.finite(|row| row.ttft);
    if ttft.is_empty() {
        ttft = seen.finite(|row| row.e2e);
    }
    let p99 = quantile::order_statistic(&mut ttft, 0.99).unwrap_or(0.0);
    let limit = LAG_S.max(OF_LATENCY * p99);
    let mut sorted = lag.clone();
    quantile::sort(&mut sorted);
    let value = quantile::of_sorted(&sorted, 0.99)?;
    let over: Vec<bool> = lag.iter().map(|x| *x > value).collect();
    let n_eff = lag.len() as f64 / quantile::design_effect(&over, crate::diagnose::ratio::STRETCHES).max(1.0);
    let interval = quantile::undecided(&sorted, n_eff, 0.99, 0.9);
    let lag = crate::findings::Estimate {
        value,
        lower: interval.lower.max(0.0),
        upper: interval.upper,
        n: lag.len() as u64,
        n_eff,
    };
    (value > limit).then_some((lag, limit))
}

/// The most requests in flight, the share of time at it, and the share of held-back requests that were due at it.
fn plateau(seen: &Seen<'_>) -> Option<(f64, f64, crate::findings::Estimate)> {
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
    // At the instant it falls due, one of the cap's places may just have been freed and not yet be taken again.
    let in_flight = |t: f64| match course.partition_point(|(at, _)| *at <= t) {
        0 => 0,
        k => course[k - 1].1,
    };
    let held: Vec<bool> = seen
        .rows
        .iter()
        .filter(|row| row.lag - row.connect > HELD_S)
        .map(|row| in_flight(row.due) >= most - (most / 20))
        .collect();
    let k = held.iter().filter(|at| **at).count() as f64;
    (held.len() >= 10).then(|| (f64::from(most), at_cap / seen.length, share(k, held.len() as f64, 1.0)))
}
