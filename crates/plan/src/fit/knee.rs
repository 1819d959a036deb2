//! Where an engine's knee lies for a run's mix of requests: the load at which queueing begins, and the load at which it ends in a
//! queue that grows.
//!
//! The same definitions as a sweep's lines: the onset is the load at which p99 of the first token is 1.5 times what a request
//! takes alone; the stability limit is what a full engine finishes per second. Arrivals are Poisson, lengths the run's own, drawn with
//! replacement, the same for every load (common random numbers).

use plimsoll_math::quantile::order_statistic;
use plimsoll_math::rng::Stream;
use plimsoll_sim::spec::BLOCK_TOKENS;
use plimsoll_sim::{ModeSpec, WorldSpec};

use crate::replay::{ReplayRequest, play};

/// What is asked of a knee.
#[derive(Copy, Clone, PartialEq, Debug)]
pub struct KneeSpec {
    /// Requests simulated at each load.
    pub requests: usize,
    /// Times the zero-contention value that marks the onset.
    pub factor: f64,
    /// The percentile it is read from.
    pub percentile: f64,
    /// Seed of everything drawn.
    pub seed: u64,
}

impl Default for KneeSpec {
    fn default() -> KneeSpec {
        KneeSpec { requests: 10_000, factor: 1.5, percentile: 0.99, seed: 1 }
    }
}

/// The two lines, requests per second over all replicas.
#[derive(Copy, Clone, PartialEq, Debug)]
pub struct Knee {
    /// The percentile of the first token (the end, without tokens) with nobody else there, s.
    pub alone_s: f64,
    /// Queueing onset; `None` = not reached below the limit.
    pub onset_per_s: Option<f64>,
    pub limit_per_s: f64,
}

/// Between requests that are to meet nobody, ns: an hour, because nothing is simulated while nothing happens.
const APART_NS: i64 = 3_600_000_000_000;
/// Halvings of the search for the onset: to about a percent.
const HALVINGS: u32 = 8;

/// Finds both lines for requests of this mix.
///
/// # Errors
/// The world can't be built, or finishes nothing.
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

/// The stability limit alone, requests per second over all replicas.
///
/// # Errors
/// The world can't be built, or finishes nothing.
pub(crate) fn limit_of(world: &WorldSpec, mix: &[ReplayRequest], spec: &KneeSpec) -> Result<f64, String> {
    if mix.is_empty() {
        return Err("no request to draw from".to_owned());
    }
    limit(world, mix, spec)
}

/// Requests with gaps of mean one second.
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

/// The leading latency's percentile behind the first tenth, s.
fn percentile(world: &WorldSpec, asked: &[ReplayRequest], spec: &KneeSpec) -> Result<f64, String> {
    let times = play(world, asked, spec.seed)?;
    let lead = |ns: Option<i64>| ns.map_or(f64::INFINITY, |ns| ns as f64 / 1e9);
    let mut values: Vec<f64> = times[times.len() / 10..].iter().map(|t| lead(t.first.or(t.end))).collect();
    order_statistic(&mut values, spec.percentile).ok_or_else(|| "nothing was answered".to_owned())
}

/// The same of the same requests where each meets nobody. Of other requests of the mix it would be another percentile of their
/// lengths: where the curve is flat, three percent there move the onset by a third.
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

/// Times the requests that all replicas hold at once that are played for the limit: a full engine forgets how it was filled within two
/// of them, and is full until the last is let in.
const FILLINGS: f64 = 8.0;
const MOST: usize = 40_000;

/// What is finished per second while more than enough is there: between a fifth and four fifths of the ends. Of fewer requests than a few
/// times what fits at once, these would be the short ones, and the limit half as high again as it is.
fn limit(world: &WorldSpec, mix: &[ReplayRequest], spec: &KneeSpec) -> Result<f64, String> {
    let enough = ((FILLINGS * held(world, mix)) as usize).min(MOST);
    let mut asked = draw(mix, &KneeSpec { requests: spec.requests.max(enough), ..*spec });
    // All at once: what is refused by a bounded queue leaves as many as it holds, and those keep the engine full.
    asked.iter_mut().for_each(|one| one.due_ns = 0);
    let times = play(world, &asked, spec.seed)?;
    let mut ends: Vec<i64> = times.iter().filter_map(|t| t.end).collect();
    ends.sort_unstable();
    let (low, high) = (ends.len() / 5, ends.len() * 4 / 5);
    if high <= low + 10 {
        return Err("a full engine finishes next to nothing".to_owned());
    }
    let took_s = (ends[high] - ends[low]) as f64 / 1e9;
    if took_s <= 0.0 {
        return Err("a full engine takes no time".to_owned());
    }
    Ok((high - low) as f64 / took_s)
}

/// Requests that all replicas hold at once, of mean lengths.
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
