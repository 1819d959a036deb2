//! S1, S2, S2b, S11, S13: the engine's queue, its cache, its batch and its host.
//!
//! The preemption counter decides about preemption: where it is read and did not move, no sentence here speaks of it.

use super::load::{shared, times};
use super::{Fired, beyond};
use crate::diagnose::bench::{Arm, Bench};
use crate::diagnose::seen::{Row, Seen};
use crate::diagnose::verdict::Evidence;
use crate::diagnose::{Cause, Counter};
use crate::say::{ms, number, percent};
use crate::server_side::Signal;

/// Mean wait in the engine's queue, s, by the best that is known: its stages, its histogram, Little's law on its gauge.
pub fn queue_wait(arm: &Arm<'_>) -> Option<(f64, &'static str)> {
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

fn mean_ttft(seen: &Seen<'_>) -> Option<f64> {
    let values = seen.finite(|row| row.ttft);
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
}

/// S2: the cache is full before the batch is.
pub fn kv(bench: &Bench<'_>) -> Option<Fired> {
    if !["ttft", "tpot", "e2e", "pause"].iter().any(|metric| bench.suspects(metric)) {
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
    let evicts = per_request.is_some_and(|n| n >= 0.005);
    let short = short_of_cache(bench, running);
    let plainly_full = full >= 0.3 && looks >= 2 && is_full >= was_full + 0.03;
    if !(plainly_full || short.is_some())
        || running >= 0.95 * limit
        || !(evicts || ttft_tail || bench.base.is_none())
    {
        return None;
    }
    let says = format!(
        "the KV cache is full in {} of the time in which requests wait ({} of all time, before {}); {} sequences run then, of {} at most",
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
    let confidence = full_enough.max(short.unwrap_or(0.0)) * if evicts { 1.05 } else { 0.85 };
    let share = super::share(full * looks as f64, looks as f64, 1.0);
    Some(
        Fired::new(Cause::KvExhaustion, confidence.min(0.97), says.clone())
            .with(Evidence::figure("full_while_waiting", says, share, Some(0.3)))
            .counted(counter),
    )
}

/// Share of the most sequences ever seen running under which a queue is not the batch's.
const ROOM: f64 = 0.85;
/// Mean share of the cache in use, with requests waiting, from which it may be what they wait for. A fleet's replicas fill at
/// different times and one large prompt waits for many blocks: full to the last one it need not be.
const HELD: f64 = 0.7;

/// Requests wait beside room in the batch while most of the cache is held, which was not so before: how sure, 0 to 1.
fn short_of_cache(bench: &Bench<'_>, running: f64) -> Option<f64> {
    let most = |arm: &Arm<'_>| arm.gauges.max(Signal::Running);
    let ever = most(&bench.candidate)?.max(bench.base.as_ref().and_then(most).unwrap_or(0.0));
    let held = bench.candidate.gauges.kv_while_waiting()?;
    let was = bench.base.as_ref().and_then(|base| base.gauges.mean(Signal::KvUsage)).unwrap_or(0.0);
    if running >= ROOM * ever || held < HELD || held < was + 0.15 {
        return None;
    }
    Some(beyond(ROOM, running / ever.max(1.0)) * beyond(held, HELD) / 0.6)
}

/// S2b: admission waits for cache from another replica.
pub fn kv_transfer(bench: &Bench<'_>) -> Option<Fired> {
    let deferred = bench.candidate.gauges.deferred()?;
    let before = bench.base.as_ref().and_then(|base| base.gauges.deferred()).unwrap_or(0.0);
    if deferred < 0.3 || deferred < before + 0.15 || !(bench.suspects("ttft") || bench.suspects("e2e")) {
        return None;
    }
    let says = format!(
        "requests wait for KV cache of another engine in {} of the looks with a queue",
        percent(deferred)
    );
    Some(
        Fired::new(Cause::KvTransfer, beyond(deferred, 0.3) * 1.1, says.clone())
            .with(Evidence::said("deferred_share", says))
            .counted(Counter::Moved {
                name: "looks with requests deferred for KV transfer, share".into(),
                by: deferred,
            }),
    )
}

/// Share of the prompt tokens that came from a cache: as the answers say, else as the server's counters do.
fn cached(arm: &Arm<'_>) -> Option<(f64, &'static str)> {
    let told: Vec<(f64, f64)> =
        arm.seen.rows.iter().filter_map(|row| Some((row.cached?, row.prompt))).collect();
    let (hits, all) = told.iter().fold((0.0, 0.0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
    if told.len() >= 30 && all > 0.0 {
        return Some((hits / all, "the answers' own counts"));
    }
    arm.gauges.hit_rate().map(|rate| (rate, "the server's counters"))
}

/// S11: the same prompts find less in the cache.
pub fn prefix_loss(bench: &Bench<'_>) -> Option<Fired> {
    if !["ttft", "tpot", "e2e", "pause"].iter().any(|metric| bench.suspects(metric)) {
        return None;
    }
    let base = bench.base.as_ref()?;
    let ((before, _), (now, from)) = (cached(base)?, cached(&bench.candidate)?);
    let lost = before - now;
    let uncached = (1.0 - now) / (1.0 - before).max(1e-9);
    if lost < 0.08 || uncached < 1.15 {
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
    if before.is_none() && idle < 0.3 {
        return None;
    }
    // What the GPU does no longer is what the step takes longer: neither much less of it nor much more.
    if let (Some(before), Some(ratio)) = (before, step) {
        let explained = (before / busy.max(1e-3) - 1.0) / (ratio.value - 1.0).max(1e-3);
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

/// S1: the queue is most of the wait.
pub fn saturation(bench: &Bench<'_>) -> Option<Fired> {
    if !["ttft", "tpot", "e2e"].iter().any(|metric| bench.suspects(metric)) {
        return None;
    }
    let now = &bench.candidate;
    // A queue is always somewhat longer or shorter: it must be sure that the user noticed, or plain.
    let plain =
        |m: &crate::diagnose::material::Moved| m.large && m.effect.ratio.value >= 2.0 && m.effect.p < 0.05;
    if bench.base.is_some() && !bench.material.is() && !bench.material.moved.iter().any(plain) {
        return None;
    }
    let fewer = fewer_replicas(bench);
    let wait = queue_wait(now);
    let before = bench.base.as_ref().and_then(queue_wait).map_or(0.0, |(wait, _)| wait);
    let ttft = mean_ttft(&now.seen)?;
    let share = wait.map(|(wait, _)| (wait / ttft).clamp(0.0, 1.0));
    let grows = backlog(&now.seen);
    let at_limit = now.gauges.running_while_waiting();
    let full = at_limit.map(|(running, most)| running / most.max(1.0));
    // What the queue grew by must be what first tokens grew by: a queue is somewhat longer or shorter on any day.
    let grown = bench.before().and_then(mean_ttft).map(|was| ttft - was);
    let is_it = |wait: f64| grown.is_none_or(|grown| wait - before >= 0.4 * grown);
    let queue = match (wait, share) {
        (Some((wait, from)), Some(share)) if share >= 0.2 && wait > 1.3 * before + 0.01 && is_it(wait) => {
            Some((
                format!(
                    "{} of the mean first token ({} of {}) is the queue, by {from}; before {}",
                    percent(share),
                    ms(wait),
                    ms(ttft),
                    ms(before)
                ),
                share,
            ))
        }
        _ => None,
    };
    if bench.base.is_none() && bench.material.broken.is_empty() {
        // Without anything to compare with, a queue is only news where it grows.
        let (slope, _) = grows?;
        let says = format!(
            "the number in flight grows by {} a second all through the run: more comes than can be served",
            number(slope)
        );
        return Some(
            Fired::new(Cause::Saturation, 0.85, says.clone())
                .with(Evidence::said("backlog_growth", says))
                .counted(Counter::Moved {
                    name: "requests in flight per second of the run".into(),
                    by: slope,
                }),
        );
    }
    let (says, base_confidence) = match (&fewer, &queue, &grows) {
        (Some((a, b)), Some((queue, _)), _) => (format!("{b} replicas answer where {a} did; {queue}"), 0.93),
        (Some((a, b)), None, _) => {
            (format!("{b} replicas answer where {a} did, and each has more to do"), 0.88)
        }
        (None, Some((queue, share)), _) => {
            let held = full.map_or(String::new(), |full| {
                format!("; {} of the most sequences ever seen run while requests wait", percent(full))
            });
            (
                format!("{queue}{held}"),
                beyond(*share, 0.2) * full.map_or(0.85, |full| if full >= 0.85 { 1.1 } else { 0.8 }),
            )
        }
        // Where the engine's queue is read, it would show there.
        (None, None, Some((slope, _))) if wait.is_none() => {
            (format!("the number in flight grows by {} a second all through the run", number(*slope)), 0.75)
        }
        _ => return None,
    };
    let counter = match wait {
        Some((wait, _)) => {
            Counter::Moved { name: "mean wait in the engine's queue, s".into(), by: wait - before }
        }
        None => Counter::NotRead { name: "requests waiting in the engine".into() },
    };
    let mut fired = Fired::new(Cause::Saturation, base_confidence.min(0.95), says.clone())
        .with(Evidence::said("queue_share", says))
        .counted(counter);
    fired.explains = share;
    Some(fired)
}

/// Replicas that answer now and before, where fewer do and those that do not are not on the servers' pages either: one that is there and
/// idle was passed over by the router.
pub fn fewer_replicas(bench: &Bench<'_>) -> Option<(usize, usize)> {
    let count = |seen: &Seen<'_>| {
        (0..seen.replicas.len() as u16)
            .filter(|r| seen.rows.iter().filter(|row| row.replica == Some(*r)).count() >= 5)
            .count()
    };
    let (a, b) = (count(bench.before()?), count(bench.now()));
    (a > b && b > 0 && bench.candidate.gauges.replicas(&bench.now().replicas) < a).then_some((a, b))
}

/// Growth of the number in flight per second, where it is over a fiftieth of the rate for sure.
fn backlog(seen: &Seen<'_>) -> Option<(f64, f64)> {
    let rows: &[Row] = &seen.rows;
    let looks = 64usize;
    let mut in_flight = vec![0.0; looks];
    for row in rows {
        let first = ((row.due / seen.length * looks as f64).ceil().max(0.0)) as usize;
        let last = (row.end.min(seen.length) / seen.length * looks as f64).floor().max(0.0) as usize;
        (first..=last).filter(|k| *k < looks).for_each(|k| in_flight[k] += 1.0);
    }
    let slope = plimsoll_math::series::slope(&in_flight, 16, 0.9)?;
    let per_s = looks as f64 / seen.length;
    (slope.interval.lower * per_s > 0.02 * seen.rate())
        .then_some((slope.value * per_s, slope.interval.lower * per_s))
}
