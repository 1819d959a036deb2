//! Facts from the server's metrics without any known request: cache, device, scrapes. Runs and metrics endpoints
//! share these facts.

use plimsoll_measure::say::{ms, number, percent};
use plimsoll_measure::server_side::Signal;

use super::{FactState, Finding, Observed, yes_if};
use crate::gauges::LevelGauges;

/// Share of the waiting time with a full cache from which the cache counts as full.
const FULL: f64 = 0.3;
/// Mean share of the cache in use, with waiting requests and capacity in the batch, from which requests may wait for
/// cache. The second value applies if the maximum of running requests would not fit at their present sizes. (An
/// engine that reserves whole responses shows half of the reservation.)
const HELD: (f64, f64) = (0.7, 0.5);
/// Share of the maximum of running sequences below which the batch does not cause the queue.
const ROOM: f64 = 0.85;
/// Loss of the cached share of the prompt tokens, and growth of the computed tokens.
const LESS_CACHED: (f64, f64) = (0.08, 1.15);
/// Ratios of steps per response above which drafts are accepted less, and below which they are not. The time per
/// token grows in proportion, and a ratio of 1.1 is significant.
const FEWER_ACCEPTED: (f64, f64) = (1.05, 1.1);
/// Share of idle GPU time while requests run, from which it is large without a baseline.
const IDLE: f64 = 0.3;
/// Number of failed scrapes from which they are no accident, and the number of earlier successful ones.
const PAGES_LOST: u64 = 3;
/// Share of memory-active cycles from which the bandwidth is nearly saturated (NVIDIA, DCGM's profiling metrics:
/// about 0.8 is reached in practice).
const MEMORY_FULL: f64 = 0.7;

/// Returns all facts of the metrics, compared with earlier metrics.
pub fn find(now: &LevelGauges, before: Option<&LevelGauges>) -> Vec<Finding> {
    [
        kv_full(now, before),
        deferred(now, before),
        before.and_then(|before| drafts_rejected(now, before)),
        gpu_idle(now, before),
        memory_busy(now),
        page_lost(now, before),
    ]
    .into_iter()
    .flatten()
    .collect()
}

fn kv_full(gauges: &LevelGauges, before: Option<&LevelGauges>) -> Option<Finding> {
    let most = gauges.max(Signal::KvUsage)?;
    let is_full = gauges.full().unwrap_or(0.0);
    let was_full = before.and_then(LevelGauges::full).unwrap_or(0.0);
    let (full, scrapes) = gauges.full_while_waiting().unwrap_or((0.0, 0));
    let room = gauges
        .running_while_waiting()
        .is_none_or(|(running, _)| running < 0.95 * gauges.max_seqs.unwrap_or(f64::INFINITY));
    let plainly = full >= FULL && scrapes >= 2 && is_full >= was_full + 0.03;
    let is = FactState::of(
        room && (plainly || short_of_cache(gauges, before)),
        most < 0.7 || full < 0.1 && !short_of_cache(gauges, before),
    );
    let says = format!(
        "the KV cache is full in {} of the time in which requests wait ({} of all time, before {})",
        percent(full),
        percent(is_full),
        percent(was_full)
    );
    Some(Finding::new(Observed::KvFull, is, says))
}

/// Returns whether requests wait despite capacity in the batch while most of the cache is in use, unlike before. A
/// cache that lost only shared prefixes is no fuller than before, and its queue is caused by the batch.
fn short_of_cache(now: &LevelGauges, before: Option<&LevelGauges>) -> bool {
    let most = |of: &LevelGauges| of.max(Signal::Running);
    let Some((running, _)) = now.running_while_waiting() else { return false };
    let Some(held) = now.kv_while_waiting() else { return false };
    let ever = most(now).unwrap_or(0.0).max(before.and_then(most).unwrap_or(0.0));
    let was = before.and_then(|before| before.mean(Signal::KvUsage)).unwrap_or(0.0);
    let needed = held / running.max(1.0) * ever;
    let enough = held >= HELD.0 || held >= HELD.1 && needed >= 1.0 && before.is_some();
    running < ROOM * ever && enough && held >= was + 0.15
}

/// Returns whether a smaller share of the prompts comes from the cache. `from` names the source.
pub(crate) fn less_cached(before: f64, (now, from): (f64, &str)) -> Finding {
    let lost = before - now;
    let times = (1.0 - now) / (1.0 - before).max(1e-9);
    let is = FactState::of(
        lost >= LESS_CACHED.0 && times >= LESS_CACHED.1,
        lost < 0.5 * LESS_CACHED.0 || times < 1.05,
    );
    let says = format!(
        "{} of the prompt tokens came from the cache before, {} now ({from}): {} times as many are computed",
        percent(before),
        percent(now),
        number(times)
    );
    Finding::new(Observed::LessCached, is, says)
}

fn deferred(now: &LevelGauges, before: Option<&LevelGauges>) -> Option<Finding> {
    let now = now.deferred()?;
    let before = before.and_then(LevelGauges::deferred).unwrap_or(0.0);
    let says = format!(
        "requests wait for KV cache of another engine in {} of the scrapes with a queue",
        percent(now)
    );
    Some(Finding::new(Observed::DeferredKv, yes_if(now >= 0.3 && now >= before + 0.15), says))
}

/// Checks whether fewer draft tokens are accepted. A server without drafts has one token per step.
fn drafts_rejected(now: &LevelGauges, before: &LevelGauges) -> Option<Finding> {
    let was = before.accepted_length()?;
    let works = now.gained(Signal::OutputTokens).is_some_and(|tokens| tokens > 0.0);
    let is = now.accepted_length().or(works.then_some(1.0))?;
    let times = was / is;
    let says = format!(
        "a step of speculative decoding brought {} tokens before and {} now: {} times as many steps for an answer",
        number(was),
        number(is),
        number(times)
    );
    let state = FactState::of(times >= FEWER_ACCEPTED.1, times < FEWER_ACCEPTED.0);
    Some(Finding::new(Observed::DraftsRejected, state, says))
}

/// Checks whether the GPU idles longer by the time that steps take longer. Step times without more evidence prove nothing, because
/// larger batches lengthen the computing part.
fn gpu_idle(now: &LevelGauges, before: Option<&LevelGauges>) -> Option<Finding> {
    let busy = now.gpu_busy()?;
    let before = before.and_then(LevelGauges::gpu_busy);
    let says = format!(
        "the GPU computes in {} of the time with requests running{}",
        percent(busy),
        before.map_or(String::new(), |before| format!(" (before {})", percent(before)))
    );
    let is = match before {
        None if busy <= 1.0 - IDLE => FactState::Yes,
        None => FactState::No,
        Some(before) if before - busy >= 0.08 => FactState::Yes,
        Some(before) if before - busy < 0.04 => FactState::No,
        Some(_) => FactState::Unclear,
    };
    Some(Finding::new(Observed::GpuIdle, is, says))
}

fn memory_busy(now: &LevelGauges) -> Option<Finding> {
    let active = now.dram_active()?;
    let says = format!(
        "the GPU's memory moves data in {} of its cycles while requests run, of some 80 % that are reached in practice",
        percent(active)
    );
    Some(Finding::new(Observed::MemoryBusy, yes_if(active >= MEMORY_FULL), says))
}

/// Checks whether scrapes fail that succeeded before. They use the network path of the responses and not the engine,
/// so the path is congested.
fn page_lost(now: &LevelGauges, before: Option<&LevelGauges>) -> Option<Finding> {
    let (came, lost) = now.pages();
    let (came_before, lost_before) = before?.pages();
    (came_before >= PAGES_LOST).then_some(())?;
    let says = format!(
        "{lost} of {} scrapes of the server's metrics timed out, in the baseline {lost_before} of {}",
        came + lost,
        came_before + lost_before
    );
    let is = lost >= PAGES_LOST && lost >= came && 4 * lost_before <= came_before;
    Some(Finding::new(Observed::PageLost, yes_if(is), says))
}

/// Returns whether the engine's queue is a fifth of the mean time to first token and explains its growth. `waits` are the
/// mean waits now and before in s; `words` name the source and the earlier time.
pub(crate) fn engine_queue(
    waits: (f64, f64),
    first_token: f64,
    grown: Option<f64>,
    words: [&str; 2],
) -> Finding {
    let ((wait, was), [source, earlier]) = (waits, words);
    let share = (wait / first_token.max(1e-9)).clamp(0.0, 1.0);
    let is_it = grown.is_none_or(|grown| wait - was >= 0.4 * grown);
    let is = FactState::of(
        share >= 0.2 && wait > 1.3 * was + 0.01 && is_it,
        share < 0.1 || wait < 1.1 * was + 0.002 || !is_it,
    );
    let says = format!(
        "{} of the mean first token ({} of {}) is the engine's queue{source}; {earlier} it took {}",
        percent(share),
        ms(wait),
        ms(first_token),
        ms(was)
    );
    Finding::new(Observed::EngineQueue, is, says)
}

/// Returns whether the engine preempted running requests: the number, per request now, and per request before.
pub fn preempted(times: f64, now: f64, was: f64) -> Finding {
    let is = FactState::of(times >= 3.0 && now >= 2.0 * was && now >= 0.003, times < 1.0 || now < 1.2 * was);
    let says = format!(
        "{} preemptions of running requests ({} of the requests, before {})",
        number(times),
        percent(now),
        percent(was)
    );
    Finding::new(Observed::Preemptions, is, says)
}
