//! The effect of a difference between two loads: both are simulated on one engine, at two shares of its limit.
//!
//! A known difference may not matter, and an unknown property may matter most, so the module compares the wait that a load
//! causes. The limit is the engine's throughput with a queue that is never empty: all requests of the source arrive
//! simultaneously. The throughput is read from the tenth to the ninetieth percentile of the ends, because filling and
//! draining are no steady state.
//!
//! At each share of the limit, both loads keep their rhythm and are stretched by one factor. If their p99 of `ttft` differ,
//! each property is corrected separately. The finding names the property whose correction brings the loads closest.

use plimsoll_measure::findings::Metric;
use plimsoll_sim::WorldSpec;
use serde::Serialize;

use crate::replay::{ReplayRequest, play};

const SHARES: [f64; 2] = [0.6, 0.85];
/// Largest relative difference of two equal loads.
const SAME: f64 = 0.05;
/// Maximum number of simulated requests: an hour of a busy fleet.
const MOST: usize = 20_000;
/// Minimum number of requests that determine the limit.
const LIMIT_OF: usize = 4_000;
/// Minimum number of requests for a p99.
const LEAST: usize = 100;

/// Two loads to compare, request by request in order of time.
#[derive(Clone, Debug)]
pub struct EffectCase<'a> {
    pub world: &'a WorldSpec,
    pub seed: u64,
    /// The original requests, to the extent that they are known.
    pub source: &'a [ReplayRequest],
    pub workload: &'a [ReplayRequest],
    /// Alternatives for an unknown property of the source: its name and the load with that property.
    pub others: Vec<(String, Vec<ReplayRequest>)>,
}

/// The comparison at one share of the limit.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct EffectAt {
    pub share: f64,
    /// Rate of the source at this share, 1/s.
    pub rate_per_s: f64,
    /// p99 of `ttft` of the source, s.
    pub source_p99_s: f64,
    pub workload_p99_s: f64,
    pub agrees: bool,
}

/// The possible effect of an unknown property, at the higher share.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Otherwise {
    /// The property and its assumed alternative.
    pub name: String,
    /// p99 of `ttft` of the alternative / p99 of the workload.
    pub ratio: f64,
}

#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct EffectFinding {
    pub engine: String,
    pub requests: u64,
    /// Throughput of the engine for this mix with a queue that is never empty, 1/s.
    pub limit_per_s: f64,
    pub at: Vec<EffectAt>,
    /// The property that causes the difference; `None` if the loads agree.
    pub breaks: Option<String>,
    /// Unknown properties and their possible effects.
    pub otherwise: Vec<Otherwise>,
}

/// Simulates both loads and compares them.
///
/// # Errors
/// Fails with one line if there are too few requests or the engine does not accept them.
pub fn effect(case: &EffectCase<'_>) -> Result<EffectFinding, String> {
    let n = case.source.len().min(case.workload.len()).min(MOST);
    if n < LEAST {
        return Err(format!("{n} requests are too few for a p99: {LEAST} at least"));
    }
    let (source, workload) = (&case.source[..n], &case.workload[..n]);
    let limit_per_s = limit(case, source)?;
    let span_s = (source[n - 1].due_ns - source[0].due_ns) as f64 / 1e9;
    if span_s <= 0.0 {
        return Err("all requests arrived at one instant, so their rate cannot be scaled".into());
    }
    let own_rate = (n - 1) as f64 / span_s;
    let p99 =
        |load: &[ReplayRequest], share: f64| p99_s(case, &stretched(load, own_rate / (share * limit_per_s)));
    let (mut at, mut breaks) = (Vec::new(), None);
    for share in SHARES {
        let (a, b) = (p99(source, share)?, p99(workload, share)?);
        let agrees = same(a, b);
        if !agrees {
            breaks = Some(culprit(source, workload, a, |load| p99(load, share))?);
        }
        let rate_per_s = share * limit_per_s;
        at.push(EffectAt { share, rate_per_s, source_p99_s: a, workload_p99_s: b, agrees });
    }
    let highest = SHARES[SHARES.len() - 1];
    let base = at.last().map_or(f64::NAN, |last| last.workload_p99_s);
    let mut otherwise = Vec::new();
    for (name, load) in &case.others {
        let other = p99(&load[..load.len().min(n)], highest)?;
        otherwise.push(Otherwise { name: name.clone(), ratio: other / base });
    }
    let engine = case.world.engine.name.clone();
    Ok(EffectFinding { engine, requests: n as u64, limit_per_s, at, breaks, otherwise })
}

fn same(a: f64, b: f64) -> bool {
    a == b || (b / a - 1.0).abs() <= SAME
}

/// Returns the engine's throughput with a queue that is never empty, 1/s.
fn limit(case: &EffectCase<'_>, source: &[ReplayRequest]) -> Result<f64, String> {
    // A batch whose requests all end together has no rate, so the batch is several times what an engine runs concurrently.
    // Each lap shares prefixes only within itself.
    let laps = LIMIT_OF.div_ceil(source.len()) as u64;
    let lap = |lap: u64, one: &ReplayRequest| {
        let blocks = one.blocks.iter().map(|block| block ^ lap.wrapping_mul(0x9e37_79b9_7f4a_7c15)).collect();
        ReplayRequest { due_ns: 0, blocks, ..one.clone() }
    };
    let at_once: Vec<ReplayRequest> =
        (0..laps).flat_map(|n| source.iter().map(move |one| lap(n, one))).collect();
    let times = play(case.world, &at_once, case.seed)?;
    let mut ends: Vec<i64> = times.iter().filter_map(|times| times.end).collect();
    let unserved = times.len() - ends.len();
    if unserved * 100 > times.len() {
        return Err(format!(
            "{} does not take {unserved} of {} requests (too long, or its queue is bounded); take an engine with more room",
            case.world.engine.name,
            times.len()
        ));
    }
    ends.sort_unstable();
    let (from, to) = (ends.len() / 10, ends.len() * 9 / 10);
    let took_s = (ends[to] - ends[from]) as f64 / 1e9;
    match took_s > 0.0 {
        true => Ok((to - from) as f64 / took_s),
        false => Err("its limit on this mix is unknown: the requests end at one instant".into()),
    }
}

/// Returns the load with its times multiplied by `factor`.
fn stretched(load: &[ReplayRequest], factor: f64) -> Vec<ReplayRequest> {
    let first = load.first().map_or(0, |one| one.due_ns);
    let due_ns = |one: &ReplayRequest| ((one.due_ns - first) as f64 * factor) as i64;
    load.iter().map(|one| ReplayRequest { due_ns: due_ns(one), ..one.clone() }).collect()
}

fn p99_s(case: &EffectCase<'_>, load: &[ReplayRequest]) -> Result<f64, String> {
    let times = play(case.world, load, case.seed)?;
    let ttft = times.iter().zip(load).filter_map(|(times, one)| times.metric(Metric::Ttft, one.output));
    let mut ttft: Vec<f64> = ttft.collect();
    plimsoll_math::quantile::order_statistic(&mut ttft, 0.99)
        .ok_or_else(|| "no request has a first token".to_owned())
}

/// Returns the property whose separate correction brings the workload nearest to its source.
fn culprit(
    source: &[ReplayRequest],
    workload: &[ReplayRequest],
    truth: f64,
    p99: impl Fn(&[ReplayRequest]) -> Result<f64, String>,
) -> Result<String, String> {
    type Right = fn(&mut ReplayRequest, &ReplayRequest);
    let rights: [(&str, Right); 3] = [
        ("arrivals", |one, truth| one.due_ns = truth.due_ns),
        ("lengths", |one, truth| (one.prompt, one.output) = (truth.prompt, truth.output)),
        ("reuse", |one, truth| one.blocks.clone_from(&truth.blocks)),
    ];
    let mut best: Option<(f64, &str)> = None;
    for (name, right) in rights {
        let put_right = |(one, truth): (&ReplayRequest, &ReplayRequest)| {
            let mut one = one.clone();
            right(&mut one, truth);
            one
        };
        let put_right: Vec<ReplayRequest> = workload.iter().zip(source).map(put_right).collect();
        let apart = (p99(&put_right)? / truth).ln().abs();
        if best.is_none_or(|(least, _)| apart < least) {
            best = Some((apart, name));
        }
    }
    Ok(best.map_or("no single part", |(_, name)| name).to_owned())
}
