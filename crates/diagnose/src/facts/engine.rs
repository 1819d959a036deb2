//! Facts from the engine's metrics and from a profiler's timeline: queue, batch, cache, device. Without scrapes these
//! facts can't be observed.

use plimsoll_math::quantile::{order_statistic, sort};
use plimsoll_measure::say::{ms, number, percent};
use plimsoll_measure::server_side::Signal;

use super::ceiling::{ConcurrencyCeiling, ceiling};
use super::pauses::long_from;
use super::{FactState, Finding, Observed, page, yes_if};
use crate::device::{Device, DeviceFinding};
use crate::effect::STRETCHES;
use crate::effect::share;
use crate::frame::{Frame, Frames};
use crate::seen::{DiagnosedLevel, RequestView};

/// Minimum number of scrapes for statements on requests in front of the engine, because a wave that starts at a
/// scrape finds the engine empty.
const FEWEST_LOOKS: usize = 4;
/// Share of a profiled step from which one of its parts is large.
const LARGE: f64 = 0.3;

pub fn find(frames: &Frames<'_>, found: &mut Vec<Finding>) {
    found.extend(queue(frames));
    found.push(backlog(frames.now()));
    found.extend(at_ceiling(frames));
    found.extend(in_front_of_engine(frames));
    found.extend(front_while_full(frames));
    found.extend(engine_knows(frames));
    let (page_now, page_before) = (&frames.candidate.gauges, frames.base.as_ref().map(|base| &base.gauges));
    found.extend(page::find(page_now, page_before));
    found.extend(preemptions(frames));
    found.extend(less_cached(frames));
    // A timeline shows the parts of a step but not their change, so it decides nothing if there is a baseline.
    found.extend(frames.case.device.filter(|_| frames.base.is_none()).into_iter().flat_map(device));
}

fn mean(values: &[f64]) -> Option<f64> {
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
}

fn mean_ttft(seen: &DiagnosedLevel<'_>) -> Option<f64> {
    mean(&seen.finite(|row| row.ttft))
}

fn queue(frames: &Frames<'_>) -> Option<Finding> {
    let (wait, from) = queue_wait(&frames.candidate)?;
    let before = frames.base.as_ref().and_then(queue_wait).map_or(0.0, |(wait, _)| wait);
    let ttft = mean_ttft(frames.now())?;
    let grown = frames.before().and_then(mean_ttft).map(|was| ttft - was);
    let source = format!(", by {from}");
    Some(page::engine_queue((wait, before), ttft, grown, [&source, "in the baseline"]))
}

/// Checks whether the number in flight grows by more than a fiftieth of the rate with confidence.
fn backlog(seen: &DiagnosedLevel<'_>) -> Finding {
    const SCRAPES: usize = 64;
    let mut in_flight = vec![0.0; SCRAPES];
    let place = |at: f64| at / seen.length * SCRAPES as f64;
    for row in &seen.rows {
        let (first, last) = (
            place(row.due).ceil().max(0.0) as usize,
            place(row.end.min(seen.length)).floor().max(0.0) as usize,
        );
        (first..=last).filter(|k| *k < SCRAPES).for_each(|k| in_flight[k] += 1.0);
    }
    let per_s = SCRAPES as f64 / seen.length;
    let slope = plimsoll_math::series::slope(&in_flight, STRETCHES, 0.9);
    let is = match &slope {
        Some(slope) if slope.interval.lower * per_s > 0.02 * seen.rate() => FactState::Yes,
        Some(slope) if slope.value * per_s < 0.01 * seen.rate() => FactState::No,
        _ => FactState::Unclear,
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
        Finding::new(Observed::Ceiling, FactState::No, "as many answers are in flight as before".to_owned())
    };
    Some(ceiling(frames).map_or_else(no, |ConcurrencyCeiling { most, was, passed, waited }| {
        let says = format!(
            "at most {most} answers are in flight and requests wait there (in {waited} of 16 intervals); before it was {was} (over {most} in {passed} of 16)"
        );
        Finding::new(Observed::Ceiling, FactState::Yes, says).figure(share(waited as f64, STRETCHES as f64, 1.0), 5.0 / 16.0)
    }))
}

/// Checks for requests in flight that neither run nor wait in the engine. They must be more than before, and a fifth
/// of the time to first token. Growth that the engine's own histogram shows is no wait in front of the engine. Its
/// gauges follow its steps, so a request in its first step, or waiting for a step to end, is in no gauge.
fn in_front_of_engine(frames: &Frames<'_>) -> Option<Finding> {
    let now = &frames.candidate;
    let (outside, error) = in_front(now)?;
    let (before, error_before) = frames.base.as_ref().and_then(in_front).unwrap_or((0.0, 0.0));
    let held = outside - before.max(0.0);
    let unknown = grown_first_token(frames).map_or(f64::INFINITY, |grown| (grown.all - grown.known).max(0.0));
    let seconds = (held / now.seen.rate().max(1e-9)).min(unknown);
    let share = seconds / mean_ttft(&now.seen)?.max(1e-9);
    let sure = held >= 2.0 * libm::hypot(error, error_before);
    let is = FactState::of(sure && held >= 0.3 && share >= 0.2, held < 0.15 || share < 0.1);
    let says = format!(
        "{} requests in flight are neither running nor waiting in the engine (before {}), {} of the mean first token",
        number(outside),
        number(before),
        percent(share)
    );
    Some(Finding::new(Observed::InFrontOfEngine, is, says))
}

/// Checks whether requests wait while the engine is full. A limit admits a request as soon as there is capacity;
/// other delays do not depend on the engine's load.
fn front_while_full(frames: &Frames<'_>) -> Option<Finding> {
    let (held, _) = in_front(&frames.candidate)?;
    if held < 0.3 {
        return None;
    }
    let full = standing_at_most(&frames.candidate)?;
    let is = match full {
        full if full >= 0.4 => FactState::Yes,
        full if full < 0.2 => FactState::No,
        _ => FactState::Unclear,
    };
    let says = format!(
        "{} of the requests in front of the engine wait while it runs as many as it ever does",
        percent(full)
    );
    Some(Finding::new(Observed::FrontWhileFull, is, says))
}

/// Growth of the mean time to first token, s.
struct GrownFirstToken {
    all: f64,
    /// Growth in the engine's own histogram.
    known: f64,
}

/// Returns `None` if the engine has no histogram or the time to first token has barely grown.
fn grown_first_token(frames: &Frames<'_>) -> Option<GrownFirstToken> {
    let base = frames.base.as_ref()?;
    let of = |seen: &DiagnosedLevel<'_>| mean(&seen.finite(|row| row.ttft_sent));
    let (was, now) = (of(&base.seen)?, of(frames.now())?);
    let known = frames.candidate.gauges.ttft_mean()? - base.gauges.ttft_mean()?;
    let all = now - was;
    (all >= 0.05 * was).then_some(GrownFirstToken { all, known })
}

/// Checks how much of the growth of the time to first token the engine's own histogram shows.
fn engine_knows(frames: &Frames<'_>) -> Option<Finding> {
    let grown = grown_first_token(frames)?;
    let share = grown.known / grown.all;
    let is = match share {
        share if share >= 0.7 => FactState::Yes,
        share if share <= 0.3 => FactState::No,
        _ => FactState::Unclear,
    };
    let says = format!(
        "the engine's metrics show {} of the added time to first token ({})",
        percent(share.clamp(0.0, 1.0)),
        ms(grown.all)
    );
    Some(Finding::new(Observed::EngineKnows, is, says))
}

/// Checks whether the engine preempted running requests more often than before.
fn preemptions(frames: &Frames<'_>) -> Option<Finding> {
    let per_request = |arm: &Frame<'_>| {
        let gained = arm.gauges.gained(Signal::Preempted)?;
        Some((gained, gained / arm.seen.rows.len().max(1) as f64))
    };
    let (times, now) = per_request(&frames.candidate)?;
    let was = frames.base.as_ref().and_then(per_request).map_or(0.0, |(_, was)| was);
    Some(page::preempted(times, now, was))
}

fn less_cached(frames: &Frames<'_>) -> Option<Finding> {
    Some(page::less_cached(cached(frames.base.as_ref()?)?.0, cached(&frames.candidate)?))
}

/// Returns the facts on the parts of a profiled step.
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
    found.extend(of(Observed::DeviceWaits, "the device waits for the host to launch work", |device| {
        device.host_idle
    }));
    found.extend(locked(device).map(|share| {
        let says = format!("in {} of that time the launching thread waits for a lock", percent(share));
        Finding::new(Observed::DeviceLocked, yes_if(share >= 0.5), says)
    }));
    found
}

/// Calls that wait for a lock: system locks and CPython's interpreter lock.
const LOCKS: [&str; 5] = [
    "pthread_mutex_lock",
    "pthread_mutex_timedlock",
    "pthread_rwlock_",
    "pthread_spin_lock",
    "waiting for gil",
];
/// Returns the share of the device's waiting time that the launching thread spent waiting for a lock. Waits for a
/// condition or a semaphore are left out, because idle threads wait there.
fn locked(device: &DeviceFinding) -> Option<f64> {
    let shares = device.host_meanwhile.iter();
    let locks = shares.filter(|host| {
        let name = host.name.to_ascii_lowercase();
        LOCKS.iter().any(|lock| name.contains(lock))
    });
    (!device.host_meanwhile.is_empty()).then(|| locks.map(|host| host.share).sum())
}

/// Returns the mean wait in the engine's queue in s from the best known source: stages, histogram, or the gauge by
/// Little's law.
pub(crate) fn queue_wait(arm: &Frame<'_>) -> Option<(f64, &'static str)> {
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

/// Returns the share of the prompt tokens that came from a cache: as reported in responses, else from the server's
/// counters. A few new prompts that are much longer than the others are no loss of the shared cache.
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

/// Returns the mean number of requests in flight that neither run nor wait in the engine, with its standard error.
///
/// Both sides are counted at the instants of the scrapes. The mean in flight over all time was rejected. Each scrape
/// at a quiet instant then adds requests that were never in front of the engine. Few scrapes do so in one of twelve
/// clean runs.
fn in_front(arm: &Frame<'_>) -> Option<(f64, f64)> {
    let held = scrapes(arm)?;
    if held.len() < FEWEST_LOOKS {
        return None;
    }
    let time: f64 = held.iter().map(|look| look.holds).sum();
    let mean = held.iter().map(|look| look.outside * look.holds).sum::<f64>() / time;
    let spread =
        held.iter().map(|look| (look.outside - mean) * (look.outside - mean) * look.holds).sum::<f64>();
    (time > 0.0).then(|| (mean, libm::sqrt(spread / time / held.len() as f64)))
}

/// One scrape of the engine: requests in flight outside the engine, requests inside, and the duration of the sample
/// in s.
struct Look {
    outside: f64,
    inside: f64,
    holds: f64,
}

fn scrapes(arm: &Frame<'_>) -> Option<Vec<Look>> {
    let scrapes = arm.gauges.inside_at_scrapes()?;
    let sorted = |of: fn(&RequestView) -> f64| {
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
    Some(scrapes.iter().map(look).collect())
}

/// Returns the share of the requests in front of the engine that wait while the engine is at its maximum. The highest
/// of fifty scrapes is left out. A limit admits a request as soon as there is capacity; other delays do not depend on
/// the engine's load.
fn standing_at_most(arm: &Frame<'_>) -> Option<f64> {
    let scrapes = scrapes(arm)?;
    let ceiling = order_statistic(&mut scrapes.iter().map(|look| look.inside).collect::<Vec<_>>(), 0.98)?;
    let standing = |look: &&Look| look.outside >= 1.0;
    let all: f64 = scrapes.iter().filter(standing).map(|look| look.outside * look.holds).sum();
    let full = scrapes.iter().filter(standing).filter(|look| look.inside >= ceiling - 0.5);
    let full: f64 = full.map(|look| look.outside * look.holds).sum();
    (all > 0.0).then(|| full / all)
}
