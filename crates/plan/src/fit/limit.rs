//! Finds the stability limit of an engine for a run's mix of requests.
//!
//! The definition equals a sweep's: the throughput of a full engine, per second. Requests are drawn from the run with
//! replacement, so that a short run fills the engine.

use plimsoll_math::rng::Stream;
use plimsoll_sim::spec::BLOCK_TOKENS;
use plimsoll_sim::{ModeSpec, WorldSpec};

use crate::replay::{ReplayRequest, play};

/// Simulated requests for the limit, as a multiple of the concurrent requests of all replicas. A full engine forgets its
/// initial state within two fillings, and stays full until the last request is admitted.
const FILLINGS: f64 = 8.0;
const MOST: usize = 40_000;

/// Returns the throughput under a permanent backlog, requests per second over all replicas. It is read between a fifth and
/// four fifths of the ends. With fewer than `requests`, these could be the short ones, and the limit half as high again.
///
/// # Errors
/// Fails if the world can't be built or finishes no requests.
pub fn limit(world: &WorldSpec, mix: &[ReplayRequest], requests: usize, seed: u64) -> Result<f64, String> {
    if mix.is_empty() {
        return Err("no request to draw from".to_owned());
    }
    let enough = ((FILLINGS * held(world, mix)) as usize).min(MOST);
    let mut stream = Stream::new(seed, "knee", 0);
    // All requests arrive simultaneously. A bounded queue rejects the rest, and the queued requests keep the engine full.
    let one = |_| {
        // The gap is unused. It is drawn because a seed must give the limit of earlier versions.
        let _ = plimsoll_math::dist::exponential(&mut stream, 1.0);
        let one = &mix[stream.below(mix.len() as u64) as usize];
        ReplayRequest { due_ns: 0, turn: None, think_ns: None, ..one.clone() }
    };
    let asked: Vec<ReplayRequest> = (0..requests.max(enough)).map(one).collect();
    let times = play(world, &asked, seed)?;
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
