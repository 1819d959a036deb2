//! Finds the queueing onset and the stability limit of an engine for a run's mix of requests.
//!
//! The definitions equal a sweep's. The onset is the load at which p99 of the first token is 1.5 times the value of
//! isolated requests. The stability limit is the throughput of a full engine, per second. Arrivals are Poisson. Lengths are
//! drawn from the run with replacement, equally for every load (common random numbers).

use plimsoll_math::quantile::order_statistic;
use plimsoll_math::rng::Stream;
use plimsoll_sim::spec::BLOCK_TOKENS;
use plimsoll_sim::{ModeSpec, WorldSpec};

use crate::replay::{ReplayRequest, play};

#[derive(Copy, Clone, PartialEq, Debug)]
pub struct KneeSpec {
    /// Requests simulated at each load.
    pub requests: usize,
    /// Ratio to the zero-contention value that marks the onset.
    pub factor: f64,
    /// Percentile that determines the onset, 0 to 1.
    pub percentile: f64,
    pub seed: u64,
}

impl Default for KneeSpec {
    fn default() -> KneeSpec {
        KneeSpec { requests: 10_000, factor: 1.5, percentile: 0.99, seed: 1 }
    }
}

/// The queueing onset and the stability limit, requests per second over all replicas.
#[derive(Copy, Clone, PartialEq, Debug)]
pub struct Knee {
    /// Percentile of the first token (of the end, without tokens) of isolated requests, s.
    pub alone_s: f64,
    /// Queueing onset; `None` if it is not reached below the limit.
    pub onset_per_s: Option<f64>,
    pub limit_per_s: f64,
}

/// Gap between isolated requests, ns. An hour is cheap, because idle time costs no simulation.
const APART_NS: i64 = 3_600_000_000_000;
/// Halvings of the search for the onset; they reach about 1 %.
const HALVINGS: u32 = 8;

/// Finds onset and limit for requests of this mix.
///
/// # Errors
/// Fails if the world can't be built or finishes no requests.
pub fn knee(world: &WorldSpec, mix: &[ReplayRequest], spec: &KneeSpec) -> Result<Knee, String> {
    if mix.is_empty() {
        return Err("no request to draw from".to_owned());
    }
    let drawn = draw(mix, spec);
    let alone_s = alone(world, &drawn, spec)?;
    let limit_per_s = limit(world, mix, spec)?;
    let over = |rate: f64| -> Result<bool, String> {
        let asked = at_rate(&drawn, rate);
        Ok(percentile(world, &asked, spec)? > spec.factor * alone_s)
    };
    let (mut low, mut high) = (0.02 * limit_per_s, limit_per_s);
    if !over(high)? {
        return Ok(Knee { alone_s, onset_per_s: None, limit_per_s });
    }
    for _ in 0..HALVINGS {
        let middle = 0.5 * (low + high);
        *(if over(middle)? { &mut high } else { &mut low }) = middle;
    }
    Ok(Knee { alone_s, onset_per_s: Some(0.5 * (low + high)), limit_per_s })
}

/// Returns the stability limit, requests per second over all replicas.
///
/// # Errors
/// Fails if the world can't be built or finishes no requests.
pub(crate) fn limit_of(world: &WorldSpec, mix: &[ReplayRequest], spec: &KneeSpec) -> Result<f64, String> {
    if mix.is_empty() {
        return Err("no request to draw from".to_owned());
    }
    limit(world, mix, spec)
}

/// Draws requests with a mean gap of one second.
fn draw(mix: &[ReplayRequest], spec: &KneeSpec) -> Vec<ReplayRequest> {
    let mut stream = Stream::new(spec.seed, "knee", 0);
    let mut at_s = 0.0;
    (0..spec.requests)
        .map(|_| {
            at_s += plimsoll_math::dist::exponential(&mut stream, 1.0);
            let one = &mix[stream.below(mix.len() as u64) as usize];
            ReplayRequest { due_ns: (at_s * 1e9) as i64, turn: None, think_ns: None, ..one.clone() }
        })
        .collect()
}

fn at_rate(drawn: &[ReplayRequest], rate_per_s: f64) -> Vec<ReplayRequest> {
    drawn
        .iter()
        .map(|one| ReplayRequest { due_ns: (one.due_ns as f64 / rate_per_s) as i64, ..one.clone() })
        .collect()
}

/// Returns the percentile of the first latency after the first tenth, s.
fn percentile(world: &WorldSpec, asked: &[ReplayRequest], spec: &KneeSpec) -> Result<f64, String> {
    let times = play(world, asked, spec.seed)?;
    let lead = |ns: Option<i64>| ns.map_or(f64::INFINITY, |ns| ns as f64 / 1e9);
    let mut values: Vec<f64> = times[times.len() / 10..].iter().map(|t| lead(t.first.or(t.end))).collect();
    order_statistic(&mut values, spec.percentile).ok_or_else(|| "nothing was answered".to_owned())
}

/// Returns that percentile if each request is isolated, for identical requests. Other requests of the mix would have
/// another percentile of lengths. Where the curve is flat, a difference of 3 % moves the onset by a third.
fn alone(world: &WorldSpec, drawn: &[ReplayRequest], spec: &KneeSpec) -> Result<f64, String> {
    let apart: Vec<ReplayRequest> = drawn[drawn.len() / 10..]
        .iter()
        .enumerate()
        .map(|(i, one)| ReplayRequest { due_ns: APART_NS.saturating_mul(i as i64), ..one.clone() })
        .collect();
    let times = play(world, &apart, spec.seed)?;
    let mut values: Vec<f64> =
        times.iter().filter_map(|t| t.first.or(t.end)).map(|ns| ns as f64 / 1e9).collect();
    order_statistic(&mut values, spec.percentile)
        .ok_or_else(|| "no request is answered, even an isolated one".to_owned())
}

/// Simulated requests for the limit, as a multiple of the concurrent requests of all replicas. A full engine forgets its
/// initial state within two fillings, and stays full until the last request is admitted.
const FILLINGS: f64 = 8.0;
const MOST: usize = 40_000;

/// Returns the throughput under a permanent backlog: between a fifth and four fifths of the ends. With too few requests,
/// these would be the short ones, and the limit would come out half as high again.
fn limit(world: &WorldSpec, mix: &[ReplayRequest], spec: &KneeSpec) -> Result<f64, String> {
    let enough = ((FILLINGS * held(world, mix)) as usize).min(MOST);
    let mut asked = draw(mix, &KneeSpec { requests: spec.requests.max(enough), ..*spec });
    // All requests arrive simultaneously. A bounded queue rejects the rest, and the queued requests keep the engine full.
    asked.iter_mut().for_each(|one| one.due_ns = 0);
    let times = play(world, &asked, spec.seed)?;
    let mut ends: Vec<i64> = times.iter().filter_map(|t| t.end).collect();
    ends.sort_unstable();
    let (low, high) = (ends.len() / 5, ends.len() * 4 / 5);
    if high <= low + 10 {
        return Err("a full engine finishes almost no request".to_owned());
    }
    let took_s = (ends[high] - ends[low]) as f64 / 1e9;
    if took_s <= 0.0 {
        return Err("a full engine takes no time".to_owned());
    }
    Ok((high - low) as f64 / took_s)
}

/// Returns the concurrent requests of all replicas, at mean lengths.
fn held(world: &WorldSpec, mix: &[ReplayRequest]) -> f64 {
    let n = mix.len().max(1) as f64;
    let context = mix.iter().map(|one| f64::from(one.prompt) + 0.5 * f64::from(one.output)).sum::<f64>() / n;
    let each = match &world.engine.mode {
        ModeSpec::Batching(batching) => {
            let blocks = batching.blocks().map_or(f64::INFINITY, f64::from);
            f64::from(batching.max_seqs).min(blocks * f64::from(BLOCK_TOKENS) / context.max(1.0))
        }
        ModeSpec::Queue(queue) => f64::from(queue.servers),
        ModeSpec::Dynamic(dynamic) => f64::from(dynamic.instances) * f64::from(dynamic.max_batch_size),
        ModeSpec::Canned(_) => 0.0,
    };
    each * f64::from(world.fleet.replicas.max(1))
}
