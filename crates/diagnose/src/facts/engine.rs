//! What the engine's own page (and a profiler's timeline) says: its queue, its batch, its cache, its device. A page that was never read makes
//! these facts ones that can't be observed.

use plimsoll_math::quantile::{order_statistic, sort};
use plimsoll_measure::say::{ms, number, percent};
use plimsoll_measure::server_side::Signal;

use super::ceiling::{Ceiling, ceiling};
use super::pauses::long_from;
use super::{Finding, Is, Observed, yes_if};
use crate::device::{Device, DeviceFinding};
use crate::effect::STRETCHES;
use crate::effect::share;
use crate::frame::{Frame, Frames};
use crate::seen::{RequestRow, Seen};

/// Looks at the engine below which nothing is said of who stands in front of it: a wave that begins at a look finds it empty.
const FEWEST_LOOKS: usize = 4;
/// Share of the time with requests waiting for which the cache is full, from which it is.
const FULL: f64 = 0.3;
/// Mean share of the cache in use, with requests waiting and room in the batch, from which it may be what they wait for; and the same where
/// as many as ever ran would not fit at what each holds now (an engine that keeps room for whole answers shows half of that room).
const HELD: (f64, f64) = (0.7, 0.5);
/// Share of the most sequences ever seen running under which a queue is not the batch's.
const ROOM: f64 = 0.85;
/// Share of the prompt tokens that came from the cache and no longer do, and how many times as many are computed.
const LESS_CACHED: (f64, f64) = (0.08, 1.15);
/// Looks that brought no page from which on they are no accident, and as many that brought one before.
const PAGES_LOST: u64 = 3;
/// Share of a profiled step from which a part of it is large by itself.
const LARGE: f64 = 0.3;
/// Share of cycles from which memory moves about all that it can (NVIDIA, DCGM's profiling metrics: about 0.8 is reached in practice).
const MEMORY_FULL: f64 = 0.7;

pub fn find(frames: &Frames<'_>, found: &mut Vec<Finding>) {
    found.extend(queue(frames));
    found.push(backlog(frames.now()));
    found.extend(at_ceiling(frames));
    found.extend(in_front_of_engine(frames));
    found.extend(front_while_full(frames));
    found.extend(engine_knows(frames));
    found.extend(kv_full(frames));
    found.extend(preemptions(frames));
    found.extend(less_cached(frames));
    found.extend(deferred(frames));
    found.extend(gpu_idle(frames));
    found.extend(memory_busy(frames));
    found.extend(page_lost(frames));
    // A timeline says what a step is made of, and not what became of it: beside a baseline it decides nothing.
    found.extend(frames.case.device.filter(|_| frames.base.is_none()).into_iter().flat_map(device));
}

fn mean(values: &[f64]) -> Option<f64> {
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
}

fn mean_ttft(seen: &Seen<'_>) -> Option<f64> {
    mean(&seen.finite(|row| row.ttft))
}

/// The engine's queue is a fifth of the first token, and what that grew by.
fn queue(frames: &Frames<'_>) -> Option<Finding> {
    let (wait, from) = queue_wait(&frames.candidate)?;
    let before = frames.base.as_ref().and_then(queue_wait).map_or(0.0, |(wait, _)| wait);
    let ttft = mean_ttft(frames.now())?;
    let share = (wait / ttft).clamp(0.0, 1.0);
    let grown = frames.before().and_then(mean_ttft).map(|was| ttft - was);
    let is_it = grown.is_none_or(|grown| wait - before >= 0.4 * grown);
    let is = match () {
        () if share >= 0.2 && wait > 1.3 * before + 0.01 && is_it => Is::Yes,
        () if share < 0.1 || wait < 1.1 * before + 0.002 || !is_it => Is::No,
        () => Is::Unclear,
    };
    let says = format!(
        "{} of the mean first token ({} of {}) is the engine's queue, by {from}; in the baseline it took {}",
        percent(share),
        ms(wait),
        ms(ttft),
        ms(before)
    );
    Some(Finding::new(Observed::EngineQueue, is, says))
}

/// Growth of the number in flight, over a fiftieth of the rate for sure.
fn backlog(seen: &Seen<'_>) -> Finding {
    const LOOKS: usize = 64;
    let mut in_flight = vec![0.0; LOOKS];
    let place = |at: f64| at / seen.length * LOOKS as f64;
    for row in &seen.rows {
        let (first, last) = (
            place(row.due).ceil().max(0.0) as usize,
            place(row.end.min(seen.length)).floor().max(0.0) as usize,
        );
        (first..=last).filter(|k| *k < LOOKS).for_each(|k| in_flight[k] += 1.0);
    }
    let per_s = LOOKS as f64 / seen.length;
    let slope = plimsoll_math::series::slope(&in_flight, STRETCHES, 0.9);
    let is = match &slope {
        Some(slope) if slope.interval.lower * per_s > 0.02 * seen.rate() => Is::Yes,
        Some(slope) if slope.value * per_s < 0.01 * seen.rate() => Is::No,
        _ => Is::Unclear,
    };
    let value = slope.map_or(0.0, |slope| slope.value * per_s);
    Finding::new(
        Observed::BacklogGrows,
        is,
        format!("the number in flight grows by {} a second through the run", number(value)),
    )
}

fn at_ceiling(frames: &Frames<'_>) -> Option<Finding> {
    let base = frames.before()?;
    (base.gap_p50.is_finite() && frames.now().gap_p50.is_finite()).then_some(())?;
    let no = || {
        Finding::new(Observed::Ceiling, Is::No, "as many answers are under way at once as before".to_owned())
    };
    Some(ceiling(frames).map_or_else(no, |Ceiling { most, was, passed, waited }| {
        let says = format!(
            "never more than {most} answers are under way at once and requests wait there (in {waited} of 16 stretches), where {was} were before (past {most} in {passed} of 16)"
        );
        Finding::new(Observed::Ceiling, Is::Yes, says).figure(share(waited as f64, STRETCHES as f64, 1.0), 5.0 / 16.0)
    }))
}

/// In flight by their records, and neither running nor waiting in the engine: more than before, and a fifth of the first token.
fn in_front_of_engine(frames: &Frames<'_>) -> Option<Finding> {
    let now = &frames.candidate;
    let (outside, error) = in_front(now)?;
    let (before, error_before) = frames.base.as_ref().and_then(in_front).unwrap_or((0.0, 0.0));
    let held = outside - before.max(0.0);
    let seconds = held / now.seen.rate().max(1e-9);
    let share = seconds / mean_ttft(&now.seen)?.max(1e-9);
    let sure = held >= 2.0 * libm::hypot(error, error_before);
    let is = match () {
        () if sure && held >= 0.3 && share >= 0.2 => Is::Yes,
        () if held < 0.15 || share < 0.1 => Is::No,
        () => Is::Unclear,
    };
    let says = format!(
        "{} requests in flight are neither running nor waiting in the engine (before {}), {} of the mean first token",
        number(outside),
        number(before),
        percent(share)
    );
    Some(Finding::new(Observed::InFrontOfEngine, is, says))
}

/// A limit lets somebody in as soon as there is room; who is late for another reason is so however few are inside.
fn front_while_full(frames: &Frames<'_>) -> Option<Finding> {
    let (held, _) = in_front(&frames.candidate)?;
    if held < 0.3 {
        return None;
    }
    let full = standing_at_most(&frames.candidate)?;
    let is = match full {
        full if full >= 0.4 => Is::Yes,
        full if full < 0.2 => Is::No,
        _ => Is::Unclear,
    };
    let says = format!(
        "{} of those in front of the engine stand there while it holds as many as it ever does",
        percent(full)
    );
    Some(Finding::new(Observed::FrontWhileFull, is, says))
}

/// How much of what first tokens take more the engine's own histogram knows.
fn engine_knows(frames: &Frames<'_>) -> Option<Finding> {
    let base = frames.base.as_ref()?;
    let of = |seen: &Seen<'_>| mean(&seen.finite(|row| row.ttft_sent));
    let (was, now) = (of(&base.seen)?, of(frames.now())?);
    let known = frames.candidate.gauges.ttft_mean()? - base.gauges.ttft_mean()?;
    let grown = now - was;
    if grown < 0.05 * was {
        return None;
    }
    let share = known / grown;
    let is = match share {
        share if share >= 0.7 => Is::Yes,
        share if share <= 0.3 => Is::No,
        _ => Is::Unclear,
    };
    let says = format!(
        "the engine's own page knows of {} of what first tokens take more ({})",
        percent(share.clamp(0.0, 1.0)),
        ms(grown)
    );
    Some(Finding::new(Observed::EngineKnows, is, says))
}

fn kv_full(frames: &Frames<'_>) -> Option<Finding> {
    let gauges = &frames.candidate.gauges;
    let most = gauges.max(Signal::KvUsage)?;
    let is_full = gauges.full().unwrap_or(0.0);
    let was_full = frames.base.as_ref().and_then(|base| base.gauges.full()).unwrap_or(0.0);
    let (full, looks) = gauges.full_while_waiting().unwrap_or((0.0, 0));
    let room = gauges
        .running_while_waiting()
        .is_none_or(|(running, _)| running < 0.95 * gauges.max_seqs.unwrap_or(f64::INFINITY));
    let plainly = full >= FULL && looks >= 2 && is_full >= was_full + 0.03;
    let is = match () {
        () if room && (plainly || short_of_cache(frames)) => Is::Yes,
        () if most < 0.7 || full < 0.1 && !short_of_cache(frames) => Is::No,
        () => Is::Unclear,
    };
    let says = format!(
        "the KV cache is full in {} of the time in which requests wait ({} of all time, before {})",
        percent(full),
        percent(is_full),
        percent(was_full)
    );
    Some(Finding::new(Observed::KvFull, is, says))
}

/// Requests wait beside room in the batch while most of the cache is held, which was not so before. A cache that only lost what prompts
/// share is held no more than before, and its queue is the batch's.
fn short_of_cache(frames: &Frames<'_>) -> bool {
    let most = |arm: &Frame<'_>| arm.gauges.max(Signal::Running);
    let Some((running, _)) = frames.candidate.gauges.running_while_waiting() else { return false };
    let Some(held) = frames.candidate.gauges.kv_while_waiting() else { return false };
    let ever = most(&frames.candidate).unwrap_or(0.0).max(frames.base.as_ref().and_then(most).unwrap_or(0.0));
    let was = frames.base.as_ref().and_then(|base| base.gauges.mean(Signal::KvUsage)).unwrap_or(0.0);
    let needed = held / running.max(1.0) * ever;
    let enough = held >= HELD.0 || held >= HELD.1 && needed >= 1.0 && frames.base.is_some();
    running < ROOM * ever && enough && held >= was + 0.15
}

/// The engine took running requests' places away, more often than before.
fn preemptions(frames: &Frames<'_>) -> Option<Finding> {
    let per_request = |arm: &Frame<'_>| {
        let gained = arm.gauges.gained(Signal::Preempted)?;
        Some((gained, gained / arm.seen.rows.len().max(1) as f64))
    };
    let (times, now) = per_request(&frames.candidate)?;
    let was = frames.base.as_ref().and_then(per_request).map_or(0.0, |(_, was)| was);
    let is = match () {
        () if times >= 3.0 && now >= 2.0 * was && now >= 0.003 => Is::Yes,
        () if times < 1.0 || now < 1.2 * was => Is::No,
        () => Is::Unclear,
    };
    let says = format!(
        "{} times the engine took the place of a running request away ({} of the requests, before {})",
        number(times),
        percent(now),
        percent(was)
    );
    Some(Finding::new(Observed::Preemptions, is, says))
}

fn less_cached(frames: &Frames<'_>) -> Option<Finding> {
    let ((before, _), (now, from)) = (cached(frames.base.as_ref()?)?, cached(&frames.candidate)?);
    let lost = before - now;
    let times = (1.0 - now) / (1.0 - before).max(1e-9);
    let is = match () {
        () if lost >= LESS_CACHED.0 && times >= LESS_CACHED.1 => Is::Yes,
        () if lost < 0.5 * LESS_CACHED.0 || times < 1.05 => Is::No,
        () => Is::Unclear,
    };
    let says = format!(
        "{} of the prompt tokens came from the cache before, {} now ({from}): {} times as many are computed",
        percent(before),
        percent(now),
        number(times)
    );
    Some(Finding::new(Observed::LessCached, is, says))
}

fn deferred(frames: &Frames<'_>) -> Option<Finding> {
    let now = frames.candidate.gauges.deferred()?;
    let before = frames.base.as_ref().and_then(|base| base.gauges.deferred()).unwrap_or(0.0);
    let says = format!(
        "requests wait for KV cache of another engine in {} of the scrapes with a queue",
        percent(now)
    );
    Some(Finding::new(Observed::DeferredKv, yes_if(now >= 0.3 && now >= before + 0.15), says))
}

/// The GPU idles more while requests run, by what steps take longer. Alone: larger batches make steps longer too, in which it computes.
fn gpu_idle(frames: &Frames<'_>) -> Option<Finding> {
    let busy = frames.candidate.gauges.gpu_busy()?;
    let before = frames.base.as_ref().and_then(|base| base.gauges.gpu_busy());
    let says = format!(
        "the GPU computes in {} of the time with requests running{}",
        percent(busy),
        before.map_or(String::new(), |before| format!(" (before {})", percent(before)))
    );
    let is = match before {
        None if busy <= 1.0 - LARGE => Is::Yes,
        None => Is::No,
        Some(before) if before - busy >= 0.08 => Is::Yes,
        Some(before) if before - busy < 0.04 => Is::No,
        Some(_) => Is::Unclear,
    };
    Some(Finding::new(Observed::GpuIdle, is, says))
}

fn memory_busy(frames: &Frames<'_>) -> Option<Finding> {
    let active = frames.candidate.gauges.dram_active()?;
    let says = format!(
        "the GPU's memory moves data in {} of its cycles while requests run, of some 80 % that are reached in practice",
        percent(active)
    );
    Some(Finding::new(Observed::MemoryBusy, yes_if(active >= MEMORY_FULL), says))
}

/// The page takes the way of the answers and nothing of the engine: where it came before and does not now, the way is crowded.
fn page_lost(frames: &Frames<'_>) -> Option<Finding> {
    let (came, lost) = frames.candidate.gauges.pages();
    let (came_before, lost_before) = frames.base.as_ref()?.gauges.pages();
    (came_before >= PAGES_LOST).then_some(())?;
    let says = format!(
        "{lost} of {} scrapes of the server's page timed out, in the baseline {lost_before} of {}",
        came + lost,
        came_before + lost_before
    );
    let is = lost >= PAGES_LOST && lost >= came && 4 * lost_before <= came_before;
    Some(Finding::new(Observed::PageLost, yes_if(is), says))
}

/// The parts of a profiled step.
fn device(device: &DeviceFinding) -> Vec<Finding> {
    let of = |fact: Observed, what: &str, share: fn(&Device) -> Option<f64>| {
        let shares: Vec<f64> = device.devices.iter().map(share).collect::<Option<_>>()?;
        let share = mean(&shares)?;
        let most = 1.0 / (1.0 - share).max(1e-3);
        let says = format!(
            "in {} of the profiled time {what}; without that a step would be {} times as fast at most",
            percent(share),
            number(most)
        );
        Some(Finding::new(fact, yes_if(share >= LARGE), says))
    };
    let mut found = Vec::new();
    found.extend(of(Observed::DeviceExchange, "the devices only exchange with each other", |device| {
        Some(device.collective_alone)
    }));
    found.extend(of(Observed::DeviceWaits, "the device waits for the host to launch something", |device| {
        device.host_idle
    }));
    found.extend(locked(device).map(|share| {
        let says =
            format!("in {} of that time the thread that launches stands before a lock", percent(share));
        Finding::new(Observed::DeviceLocked, yes_if(share >= 0.5), says)
    }));
    found
}

/// Calls that wait for a lock: the system's, and CPython's interpreter lock.
const LOCKS: [&str; 5] = [
    "pthread_mutex_lock",
    "pthread_mutex_timedlock",
    "pthread_rwlock_",
    "pthread_spin_lock",
    "waiting for gil",
];
/// Share of the time in which a device waited for its host that the launching thread spent before a lock. Waiting for a condition or a semaphore is
/// left out: a thread with nothing to do does that.
fn locked(device: &DeviceFinding) -> Option<f64> {
    let shares = device.host_meanwhile.iter();
    let locks = shares.filter(|host| {
        let name = host.name.to_ascii_lowercase();
        LOCKS.iter().any(|lock| name.contains(lock))
    });
    (!device.host_meanwhile.is_empty()).then(|| locks.map(|host| host.share).sum())
}

/// Mean wait in the engine's queue, s, by the best that is known: its stages, its histogram, Little's law on its gauge.
pub fn queue_wait(arm: &Frame<'_>) -> Option<(f64, &'static str)> {
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

/// Share of the prompt tokens that came from a cache: as the answers say, else as the server's counters do. A few prompts much longer than
/// the others, which nobody asked for before, are no loss of what the others share.
fn cached(arm: &Frame<'_>) -> Option<(f64, &'static str)> {
    let long = long_from(&arm.seen);
    let usual = arm.seen.rows.iter().filter(|row| row.prompt < long);
    let told: Vec<(f64, f64)> = usual.filter_map(|row| Some((row.cached?, row.prompt))).collect();
    let (hits, all) = told.iter().fold((0.0, 0.0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
    if told.len() >= 30 && all > 0.0 {
        return Some((hits / all, "the answers' own counts"));
    }
    arm.gauges.hit_rate().map(|rate| (rate, "the server's counters"))
}

/// Requests in flight by their records that neither run nor wait in the engine, on average over the looks at it, with its standard error.
///
/// Both are counted at the instants of the looks. The mean in flight over all time beside the mean of the looks lost: every look that
/// happens on a quiet instant puts requests in front of the engine that never stood there, and few looks do so in one clean run of twelve.
fn in_front(arm: &Frame<'_>) -> Option<(f64, f64)> {
    let held = looks(arm)?;
    if held.len() < FEWEST_LOOKS {
        return None;
    }
    let time: f64 = held.iter().map(|look| look.holds).sum();
    let mean = held.iter().map(|look| look.outside * look.holds).sum::<f64>() / time;
    let spread =
        held.iter().map(|look| (look.outside - mean) * (look.outside - mean) * look.holds).sum::<f64>();
    (time > 0.0).then(|| (mean, libm::sqrt(spread / time / held.len() as f64)))
}

/// One look at the engine's page: requests in flight that are not on it, requests that are, and for how long it holds, s.
struct Look {
    outside: f64,
    inside: f64,
    holds: f64,
}

fn looks(arm: &Frame<'_>) -> Option<Vec<Look>> {
    let looks = arm.gauges.inside_at_looks()?;
    let sorted = |of: fn(&RequestRow) -> f64| {
        let mut v: Vec<f64> = arm.seen.rows.iter().filter(|row| row.sent.is_finite()).map(of).collect();
        sort(&mut v);
        v
    };
    let (sent, ended) = (sorted(|row| row.sent), sorted(|row| row.end.max(row.sent)));
    let until = |v: &[f64], at: f64| v.partition_point(|x| *x <= at) as f64;
    let look = |(at, inside, holds): &(f64, f64, f64)| Look {
        outside: until(&sent, *at) - until(&ended, *at) - inside,
        inside: *inside,
        holds: *holds,
    };
    Some(looks.iter().map(look).collect())
}

/// Of the requests that stand in front of the engine: the share that stands there while the engine holds as many as it ever does (the highest
/// of fifty looks is left out). A limit lets somebody in as soon as there is room; who is late for another reason is so however few are inside.
fn standing_at_most(arm: &Frame<'_>) -> Option<f64> {
    let looks = looks(arm)?;
    let ceiling = order_statistic(&mut looks.iter().map(|look| look.inside).collect::<Vec<_>>(), 0.98)?;
    let standing = |look: &&Look| look.outside >= 1.0;
    let all: f64 = looks.iter().filter(standing).map(|look| look.outside * look.holds).sum();
    let full = looks.iter().filter(standing).filter(|look| look.inside >= ceiling - 0.5);
    let full: f64 = full.map(|look| look.outside * look.holds).sum();
    (all > 0.0).then(|| full / all)
}
