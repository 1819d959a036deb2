//! S2, S2b, S11, S13: the engine's cache, its batch and its host, and what is known of its queue.
//!
//! The preemption counter decides about preemption: where it is read and did not move, no sentence here speaks of it.

use super::load::{shared, times};
use super::{Fired, beyond};
use crate::bench::{Bench, BenchArm};
use crate::verdict::Evidence;
use crate::{Cause, Counter};
use plimsoll_measure::say::{number, percent};
use plimsoll_measure::server_side::Signal;

/// Mean wait in the engine's queue, s, by the best that is known: its stages, its histogram, Little's law on its gauge.
pub fn queue_wait(arm: &BenchArm<'_>) -> Option<(f64, &'static str)> {
    let told: Vec<f64> = arm.seen.rows.iter().filter_map(|row| row.queue).collect();
    if told.len() >= 30 {
        return Some((told.iter().sum::<f64>() / told.len() as f64, "the server's stages"));
    }
    if let Some(mean) = arm.gauges.queue_mean() {
        return Some((mean, "the server's histogram"));
    }
    let waiting = arm.gauges.mean(Signal::Waiting)?;
    Some((waiting / arm.seen.rate().max(1e-9), "requests waiting over the rate"))
}

/// S2: the cache is full before the batch is.
pub fn kv(bench: &Bench<'_>) -> Option<Fired> {
    if !["ttft", "tpot", "e2e", "pause"].iter().any(|metric| bench.suspects(metric)) {
        return None;
    }
    // Where fewer replicas answer, each of their caches holds more: that follows.
    if super::saturation::fewer_replicas(bench).is_some() {
        return None;
    }
    let gauges = &bench.candidate.gauges;
    let (full, looks) = gauges.full_while_waiting()?;
    let preempted = gauges.gained(Signal::Preempted);
    let per_request = preempted.map(|n| n / bench.now().rows.len().max(1) as f64);
    let (running, most) = gauges.running_while_waiting()?;
    let was_full = bench.base.as_ref().and_then(|base| base.gauges.full()).unwrap_or(0.0);
    let is_full = gauges.full().unwrap_or(0.0);
    let limit = gauges.max_seqs.unwrap_or(f64::INFINITY);
    let ttft_tail = bench.material.of("ttft", 0.95).is_some_and(|m| m.effect.ratio.value >= 1.3);
    let short = short_of_cache(bench, running);
    let driven_out = driven_out(bench);
    let evicts = driven_out.is_some() || per_request.is_some_and(|n| n >= EVICTS);
    let plainly_full = full >= 0.3 && looks >= 2 && is_full >= was_full + 0.03;
    if !(plainly_full || short.is_some() || driven_out.is_some())
        || running >= 0.95 * limit
        || !(evicts || ttft_tail || bench.base.is_none())
    {
        return None;
    }
    let found = short.as_ref().filter(|_| !plainly_full).map_or(String::new(), |short| short.says.clone())
        + driven_out.as_ref().map_or("", |out| out.says.as_str());
    let says = format!(
        "the KV cache is full in {} of the time in which requests wait ({} of all time, before {}); {} sequences run then, of {} at most{found}",
        percent(full),
        percent(is_full),
        percent(was_full),
        number(running),
        number(most)
    );
    let counter = match preempted {
        Some(n) if n > 0.0 => Counter::Moved { name: "preemptions".into(), by: n },
        Some(_) => Counter::Moved {
            name: "share of waiting time with a full cache (no preemption)".into(),
            by: full,
        },
        None => Counter::NotRead { name: "preemptions".into() },
    };
    let full_enough = if plainly_full { beyond(full, 0.3) } else { 0.0 };
    let sure = |sign: Option<Sign>| sign.map_or(0.0, |sign| sign.sure);
    let sign = full_enough.max(sure(short)).max(sure(driven_out));
    let confidence = sign * if evicts { 1.05 } else { 0.85 };
    let share = super::share(full * looks as f64, looks as f64, 1.0);
    Some(
        Fired::new(Cause::KvExhaustion, confidence.min(0.97), says.clone())
            .with(Evidence::figure("full_while_waiting", says, share, Some(0.3)))
            .counted(counter),
    )
}

/// Preemptions per request from which they count by themselves.
const EVICTS: f64 = 0.005;
/// Fewest of them to speak of where the cache was seen to be smaller as well.
const EVICTIONS: f64 = 3.0;
/// Times as much of the cache that each sequence must hold for the cache, and not the number of them, to be what changed.
const LARGER_SHARE: f64 = 1.5;
/// Share of the most sequences ever seen running under which a queue is not the batch's.
const ROOM: f64 = 0.85;
/// Mean share of the cache in use, with requests waiting, from which it may be what they wait for. A fleet's replicas fill at
/// different times and one large prompt waits for many blocks: full to the last one it need not be.
const HELD: f64 = 0.7;
/// The same where as many as ran before would not fit at what each holds now. An engine that keeps room for each whole answer before it
/// lets it in, as those without preemption do, shows of that room what is written to: the prompt, and half of the answer on average. Of
/// what is full it then shows a half at least.
const KEPT: f64 = 0.5;

/// A sign of a cache that is too small: what it says, after a semicolon, and how sure it is, 0 to 1.
struct Sign {
    says: String,
    sure: f64,
}

/// Requests wait beside room in the batch while most of the cache is held, which was not so before. A cache that only lost what prompts
/// share is held no more than before, and its queue is the batch's.
fn short_of_cache(bench: &Bench<'_>, running: f64) -> Option<Sign> {
    let most = |arm: &BenchArm<'_>| arm.gauges.max(Signal::Running);
    let ever = most(&bench.candidate)?.max(bench.base.as_ref().and_then(most).unwrap_or(0.0));
    let held = bench.candidate.gauges.kv_while_waiting()?;
    let was = bench.base.as_ref().and_then(|base| base.gauges.mean(Signal::KvUsage)).unwrap_or(0.0);
    let needed = held / running.max(1.0) * ever;
    let enough = held >= HELD || held >= KEPT && needed >= 1.0 && bench.base.is_some();
    if running >= ROOM * ever || !enough || held < was + 0.15 {
        return None;
    }
    let limit = if held >= HELD { HELD } else { KEPT };
    let says = format!(
        "; they hold {} of it, so that {}, as ran at other times, would take {} times all of it",
        percent(held),
        number(ever),
        number(needed)
    );
    Some(Sign { says, sure: beyond(ROOM, running / ever.max(1.0)) * beyond(held, limit) / 0.6 })
}

/// The engine says that it took running requests' places away, which it does for want of cache alone, more often than before, and each
/// sequence holds more of the cache than before: however short the times are in which it is full, between two looks as a rule, it is.
fn driven_out(bench: &Bench<'_>) -> Option<Sign> {
    let base = bench.base.as_ref()?;
    let per_request = |arm: &BenchArm<'_>| {
        let gained = arm.gauges.gained(Signal::Preempted)?;
        Some((gained, gained / arm.seen.rows.len().max(1) as f64))
    };
    let each = |arm: &BenchArm<'_>| {
        Some(arm.gauges.mean(Signal::KvUsage)? / arm.gauges.mean(Signal::Running).filter(|n| *n > 0.0)?)
    };
    let ((_, was), (times, now)) = (per_request(base)?, per_request(&bench.candidate)?);
    let larger = each(&bench.candidate)? / each(base)?.max(1e-9);
    if times < EVICTIONS || now < 2.0 * was || larger < LARGER_SHARE {
        return None;
    }
    let says = format!(
        "; {} times it took the place of a running request away ({} of the requests, before {}), and each sequence holds {} times as much of it as before",
        number(times),
        percent(now),
        percent(was),
        number(larger)
    );
    Some(Sign { says, sure: beyond(times, EVICTIONS) * beyond(larger, LARGER_SHARE) / 0.6 })
}

/// S2b: admission waits for cache from another replica.
pub fn kv_transfer(bench: &Bench<'_>) -> Option<Fired> {
    let deferred = bench.candidate.gauges.deferred()?;
    let before = bench.base.as_ref().and_then(|base| base.gauges.deferred()).unwrap_or(0.0);
    if deferred < 0.3 || deferred < before + 0.15 || !(bench.suspects("ttft") || bench.suspects("e2e")) {
        return None;
    }
    let says = format!(
        "requests wait for KV cache of another engine in {} of the scrapes with a queue",
        percent(deferred)
    );
    Some(
        Fired::new(Cause::KvTransfer, beyond(deferred, 0.3) * 1.1, says.clone())
            .with(Evidence::said("deferred_share", says))
            .counted(Counter::Moved {
                name: "scrapes with requests deferred for KV transfer, share".into(),
                by: deferred,
            }),
    )
}

/// Share of the prompt tokens that came from a cache: as the answers say, else as the server's counters do. A few prompts much longer than
/// the others, which nobody asked for before, are no loss of what the others share.
fn cached(arm: &BenchArm<'_>) -> Option<(f64, &'static str)> {
    let long = super::stall::long_from(&arm.seen);
    let usual = arm.seen.rows.iter().filter(|row| row.prompt < long);
    let told: Vec<(f64, f64)> = usual.filter_map(|row| Some((row.cached?, row.prompt))).collect();
    let (hits, all) = told.iter().fold((0.0, 0.0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
    if told.len() >= 30 && all > 0.0 {
        return Some((hits / all, "the answers' own counts"));
    }
    arm.gauges.hit_rate().map(|rate| (rate, "the server's counters"))
}

/// How many times as many prompt tokens are computed for what the cache lost; 1 where it lost nothing.
pub fn read_again(bench: &Bench<'_>) -> f64 {
    let rates = || Some((cached(bench.base.as_ref()?)?.0, cached(&bench.candidate)?.0));
    let lost = |(before, now): (f64, f64)| {
        let times = (1.0 - now) / (1.0 - before).max(1e-9);
        if before - now >= LOST && times >= MORE { times } else { 1.0 }
    };
    rates().map_or(1.0, lost)
}

/// Share of the prompt tokens that came from the cache and no longer do, and how many times as many are computed, from which it lost some.
const LOST: f64 = 0.08;
const MORE: f64 = 1.15;

/// S11: the same prompts find less in the cache.
pub fn prefix_loss(bench: &Bench<'_>) -> Option<Fired> {
    if !["ttft", "tpot", "e2e", "pause"].iter().any(|metric| bench.suspects(metric)) {
        return None;
    }
    // A full cache evicts beginnings.
    if kv(bench).is_some_and(|kv| kv.confidence >= bench.case.spec.confident) {
        return None;
    }
    let base = bench.base.as_ref()?;
    let ((before, _), (now, from)) = (cached(base)?, cached(&bench.candidate)?);
    let lost = before - now;
    let uncached = (1.0 - now) / (1.0 - before).max(1e-9);
    if lost < LOST || uncached < MORE {
        return None;
    }
    // Do the prompts themselves share as much as before?
    let prompts = shared(&base.seen).zip(shared(&bench.candidate.seen));
    if prompts.is_some_and(|(a, b)| b < a - 0.1) {
        return None;
    }
    let same = match prompts {
        Some((a, b)) => format!("; the prompts share as much as before ({} and {})", percent(a), percent(b)),
        None => String::new(),
    };
    let says = format!(
        "{} of the prompt tokens came from the cache before, {} now ({from}): {} times as many are computed{same}",
        percent(before),
        percent(now),
        number(uncached)
    );
    let confidence = beyond(lost, 0.1) * 1.2 * if prompts.is_some() { 1.0 } else { 0.85 };
    Some(
        Fired::new(Cause::PrefixCacheLoss, confidence.min(0.97), says.clone())
            .with(Evidence::said("cached_share", says))
            .counted(Counter::Moved { name: "share of prompt tokens from the cache".into(), by: -lost }),
    )
}

/// S13: the GPU waits for the host while requests wait for the GPU.
pub fn host_bound(bench: &Bench<'_>) -> Option<Fired> {
    if !["tpot", "ttft", "e2e"].iter().any(|metric| bench.suspects(metric)) {
        return None;
    }
    let busy = bench.candidate.gauges.gpu_busy()?;
    let before = bench.base.as_ref().and_then(|base| base.gauges.gpu_busy());
    let idle = 1.0 - busy;
    let grown = before.map_or(idle, |before| before - busy);
    let step = bench.ratio(|row| row.tpot, 0.5).map(|effect| effect.ratio);
    // Slower steps make larger batches, and these make steps slower once more, in which the GPU computes: alone there is none of that.
    let alone = super::model::decode(bench).map_or(f64::INFINITY, |ratio| ratio.value);
    if before.is_none() && idle < 0.3 {
        return None;
    }
    // What the GPU does no longer is what the step takes longer: neither much less of it nor much more.
    if let (Some(before), Some(ratio)) = (before, step) {
        let explained = (before / busy.max(1e-3) - 1.0) / (ratio.value.min(alone) - 1.0).max(1e-3);
        if ratio.lower < 1.03 || ratio.value < 1.06 || !(0.4..=2.5).contains(&explained) {
            return None;
        }
    }
    if grown < 0.08 || (before.is_some() && step.is_none()) {
        return None;
    }
    let says = format!(
        "the GPU computes in {} of the time with requests running{}{}",
        percent(busy),
        before.map_or(String::new(), |before| format!(" (before {})", percent(before))),
        step.map_or(String::new(), |ratio| format!(", and the time per token is {}", times(&ratio)))
    );
    Some(
        Fired::new(Cause::HostBound, (beyond(grown, 0.08) * 1.1).min(0.95), says.clone())
            .with(Evidence::said("gpu_busy", says))
            .counted(Counter::Moved {
                name: "share of time in which the GPU waits, with requests running".into(),
                by: grown,
            }),
    )
}
