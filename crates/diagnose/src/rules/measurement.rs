//! V: the measurement itself. Asked first: where the generator is late, every figure from the due time is the generator's.

use plimsoll_math::quantile;

use super::{Fired, beyond, share};
use crate::bench::Bench;
use crate::seen::Seen;
use crate::verdict::Evidence;
use crate::{Cause, Counter};
use plimsoll_measure::say::{chance, ms, number, percent};

/// Lag below which nobody would call it slow, s.
const LAG_S: f64 = 0.1;
/// Share of the latency's p99 from which lag is part of it.
const OF_LATENCY: f64 = 0.1;
/// A request that was sent this late was held back, s; and the lag from which a cap that is told to have been reached counts.
const HELD_S: f64 = 0.02;

/// p of a trend from which it makes what is large, and may be chance, no chance.
const SURE: f64 = 0.002;

/// V1: requests were sent late, with room in flight.
pub fn generator_lag(bench: &Bench<'_>) -> Option<Fired> {
    let (lag, limit) = late(bench, LAG_S)?;
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
    let seen = bench.now();
    let told = seen.level.generator.closed_since.is_some();
    let (lag, limit) = late(bench, if told { HELD_S } else { LAG_S })?;
    // A generator that is late has fewer in flight than it should; one that is capped always has as many as it may.
    let (cap, full, held) = plateau(seen)?;
    if held.lower < 0.6 || (full < 0.2 && !told) {
        return None;
    }
    let confidence = beyond(lag.value, limit) * if told { 1.2 } else { beyond(held.lower, 0.75) * 1.15 };
    // The product's own ceiling is told. A plateau that is not, of a client that counts its connections, is its pool.
    let pool = !told && seen.level.generator.connects > 0;
    let cause = if pool { Cause::ConnectionLimit } else { Cause::ClientCap };
    let says = format!(
        "{} of the late requests were due while the client had its {} requests in flight; lag p99 {}",
        percent(held.value),
        number(cap),
        ms(lag.value)
    );
    let waiting = bench.candidate.gauges.mean(plimsoll_measure::server_side::Signal::Waiting);
    let idle = waiting.map(|mean| {
        Evidence::said(
            "server_waiting",
            format!("the server had {} requests waiting on average", number(mean)),
        )
    });
    Some(
        Fired::new(cause, confidence.min(0.98), says.clone())
            .with(Evidence::figure("late_at_cap", says, held, Some(0.75)))
            .with(Evidence::figure("lag_p99", format!("lag p99 {}", ms(lag.value)), lag, Some(limit)))
            .maybe(idle)
            .counted(Counter::Moved { name: "share of time at the client's cap".into(), by: full }),
    )
}

/// The p99 of lag with its interval, and its limit, where it is beyond it: a tenth of the latency's p99, and `least` at the least, s.
fn late(bench: &Bench<'_>, least: f64) -> Option<(plimsoll_measure::findings::Estimate, f64)> {
    let seen = bench.now();
    // A wait for a connection of a pool is no lag of the generator, which says how late it was itself.
    if crate::rules::front::pool_wait(seen).is_some() {
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
    let worth = quantile::n_eff_of_flags(&over, crate::ratio::STRETCHES);
    let interval = quantile::undecided(&sorted, worth, 0.99, 0.9);
    let lag = plimsoll_measure::findings::Estimate {
        value,
        lower: interval.lower.max(0.0),
        upper: interval.upper,
        n: lag.len() as u64,
        n_eff: worth.n_eff,
    };
    (value > limit).then_some((lag, limit))
}

/// The most requests in flight, the share of time at it, and the share of held-back requests that were due at it.
fn plateau(seen: &Seen<'_>) -> Option<(f64, f64, plimsoll_measure::findings::Estimate)> {
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
        .filter(|row| row.lag > HELD_S)
        .map(|row| in_flight(row.due) >= most - (most / 20))
        .collect();
    let k = held.iter().filter(|at| **at).count() as f64;
    (held.len() >= 10).then(|| (f64::from(most), at_cap / seen.length, share(k, held.len() as f64, 1.0)))
}

/// V3: records are missing, or the counter of requests in flight and the records tell different stories.
pub fn lost_rows(bench: &Bench<'_>) -> Option<Fired> {
    let seen = bench.now();
    let due = seen.level.arrivals as f64;
    let kept = seen.rows.len() as f64;
    if seen.level.ended_by == plimsoll_model::EndedBy::Cut || due < 1.0 {
        return None;
    }
    let lost = share((due - kept).max(0.0), due, 1.0);
    let ended: Vec<f64> =
        seen.rows.iter().filter(|row| row.end.is_finite()).map(|row| row.end - row.due).collect();
    let area = ended.iter().sum::<f64>();
    let span = (seen.level.drained - seen.level.start).as_secs_f64().max(seen.length);
    let little = seen.level.generator.in_flight_mean.filter(|_| seen.level.generator.in_flight_samples >= 30);
    let residual = little.map(|counted| (counted - area / span) / counted.max(1e-9));
    if lost.lower < 0.01 {
        return None;
    }
    let closes = residual.map_or(String::new(), |residual| {
        format!("; the counter of requests in flight is off the records by {}", percent(residual))
    });
    let says = format!("{} of {} requests left no record{closes}", number(due - kept), number(due));
    Some(
        Fired::new(Cause::ClocksDisagree, beyond(lost.lower, 0.01) * 1.1, says.clone())
            .with(Evidence::figure("lost_share", says, lost, Some(0.01)))
            .counted(Counter::Moved { name: "requests without a record".into(), by: due - kept }),
    )
}

/// V4: the figures move through the run, and nothing that was asked before explains it.
pub fn no_steady_state(bench: &Bench<'_>) -> Option<Fired> {
    drifting(bench, &[("tpot", |row| row.tpot), ("ttft", |row| row.ttft)], 0.1)
}

/// The same of the time per token alone: a queue that grows does not move it for long, a leak or a clock that falls does.
pub fn drift(bench: &Bench<'_>) -> Option<Fired> {
    drifting(bench, &[("tpot", |row| row.tpot)], 0.12)
}

/// A metric of a request.
type Of = fn(&crate::seen::RequestRow) -> f64;

fn drifting(bench: &Bench<'_>, metrics: &[(&'static str, Of)], least: f64) -> Option<Fired> {
    let seen = bench.now();
    let base = bench.before();
    let mut best: Option<(f64, &'static str, f64)> = None;
    for &(name, of) in metrics {
        let Some((change, p)) = trend(seen, of) else { continue };
        let before = base.and_then(|base| trend(base, of)).map_or(0.0, |(change, _)| change);
        if p < 0.005 && change > least && change > 2.0 * before.abs() && best.is_none_or(|b| change > b.0) {
            best = Some((change, name, p));
        }
    }
    let (change, name, p) = best?;
    // A trend over the whole run is evidence of its own; where what was noticed may be chance, it must be the surer.
    let felt = ["ttft", "tpot", "e2e"].iter().any(|metric| bench.suspects(metric)) && p < SURE;
    if base.is_some() && !bench.material.is() && !felt {
        return None;
    }
    let says = format!("{name} rises by {} from beginning to end ({})", percent(change), chance(p));
    Some(
        Fired::new(Cause::NoSteadyState, beyond(change, 0.1), says.clone())
            .with(Evidence::said("drift", says))
            .counted(Counter::Moved { name: "drift of the median, share".into(), by: change }),
    )
}

/// Sen's slope of the medians of forty stretches, end to end, as a share of their median; with the p of Mann, Kendall, Hamed and Rao.
fn trend(seen: &Seen<'_>, of: fn(&crate::seen::RequestRow) -> f64) -> Option<(f64, f64)> {
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
