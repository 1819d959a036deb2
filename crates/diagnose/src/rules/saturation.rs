//! S1: the queue is most of the wait because less can be served than before, or more comes than can be served.
//!
//! That a queue is longer than the baseline's is no evidence of it: at the same load and the same service a queue differs from run to run by
//! chance alone. So there must be one of three things beside it: fewer replicas, a ceiling on what is under way that the baseline went
//! beyond, or a backlog that grows all through the run. A longer queue with none of them is a candidate and no verdict.

use super::ceiling::{Ceiling, PASSED, ceiling};
use super::engine::queue_wait;
use super::{Fired, beyond};
use crate::bench::{Bench, BenchArm};
use crate::seen::{RequestRow, Seen};
use crate::verdict::Evidence;
use crate::{Cause, Counter, Side};
use plimsoll_measure::findings::Estimate;
use plimsoll_measure::say::{ms, number, percent};
use plimsoll_measure::server_side::Signal;

/// Confidence of a longer queue with nothing beside it: under what is named.
const QUEUE_ALONE: f64 = 0.4;

/// How the engine's queue compares with the baseline's.
struct Queue {
    /// In words.
    says: String,
    /// Share of the mean first token.
    share: f64,
}

/// S1.
pub fn saturation(bench: &Bench<'_>) -> Option<Fired> {
    if !["ttft", "tpot", "e2e"].iter().any(|metric| bench.suspects(metric)) {
        return None;
    }
    let ttft = mean_ttft(bench.now())?;
    let wait = queue_wait(&bench.candidate);
    let before = bench.base.as_ref().and_then(queue_wait).map_or(0.0, |(wait, _)| wait);
    let queue = longer_queue(bench, ttft, before);
    let grows = backlog(bench.now());
    let (says, confidence) = match &bench.base {
        None if bench.material.broken.is_empty() => {
            // Without anything to compare with, a queue is only news where it grows.
            let (slope, _) = grows?;
            (grows_words(slope), 0.85)
        }
        None => match &queue {
            Some(queue) => (queue.says.clone(), beyond(queue.share, 0.2) * 0.85),
            None => (grows_words(grows?.0), 0.75),
        },
        Some(_) => compared(bench, queue.as_ref(), grows)?,
    };
    let counter = match wait {
        Some((wait, _)) => {
            Counter::Moved { name: "mean wait in the engine's queue, s".into(), by: wait - before }
        }
        None => Counter::NotRead { name: "requests waiting in the engine".into() },
    };
    let mut fired = Fired::new(Cause::Saturation, confidence.min(0.95), says.clone())
        .with(Evidence::said("queue_share", says))
        .maybe(ceiling_evidence(bench))
        .counted(counter);
    fired.explains = wait.map(|(wait, _)| (wait / ttft).clamp(0.0, 1.0));
    Some(fired)
}

/// Against a baseline: what shows that less can be served, or that more comes than can be.
fn compared(bench: &Bench<'_>, queue: Option<&Queue>, grows: Option<(f64, f64)>) -> Option<(String, f64)> {
    let tail = queue.map_or(String::new(), |queue| format!("; {}", queue.says));
    if let Some((a, b)) = fewer_replicas(bench) {
        let sure = if queue.is_some() { 0.93 } else { 0.88 };
        return Some((format!("{} where {a} did, and each has more to do{tail}", answer(b)), sure));
    }
    if let Some(found) = ceiling(bench).filter(|_| waits_inside(bench)) {
        let Ceiling { passed, waited, .. } = found;
        let sure = beyond(passed as f64, PASSED as f64) * beyond(waited as f64, PASSED as f64) / 0.72;
        // Where the engine is not read, the ceiling may as well be a limit in front of it.
        let read = bench.candidate.gauges.mean(Signal::Waiting).is_some();
        return Some((format!("{}{tail}", ceiling_words(&found)), sure * if read { 1.0 } else { 0.8 }));
    }
    if !bench.material.is() {
        return None;
    }
    let unread = queue_wait(&bench.candidate).is_none();
    match (queue, grows) {
        // Where the engine's queue is read, it would show there.
        (found, Some((slope, _))) if found.is_some() || unread => {
            Some((format!("{}{tail}", grows_words(slope)), 0.75))
        }
        (Some(queue), _) => Some((
            format!(
                "{}; nothing shows that less can be served than before or that the queue grows",
                queue.says
            ),
            QUEUE_ALONE,
        )),
        _ => None,
    }
}

/// `one replica answers`, `3 replicas answer`.
fn answer(replicas: usize) -> String {
    if replicas == 1 { "one replica answers".to_owned() } else { format!("{replicas} replicas answer") }
}

/// The queue, where it is a fifth of the first token and what first tokens grew by.
fn longer_queue(bench: &Bench<'_>, ttft: f64, before: f64) -> Option<Queue> {
    let (wait, from) = queue_wait(&bench.candidate)?;
    let share = (wait / ttft).clamp(0.0, 1.0);
    let grown = bench.before().and_then(mean_ttft).map(|was| ttft - was);
    let is_it = grown.is_none_or(|grown| wait - before >= 0.4 * grown);
    (share >= 0.2 && wait > 1.3 * before + 0.01 && is_it).then(|| Queue {
        says: format!(
            "{} of the mean first token ({} of {}) is the queue, by {from}; in the baseline it took {}",
            percent(share),
            ms(wait),
            ms(ttft),
            ms(before)
        ),
        share,
    })
}

/// Share of what requests wait more, by Little's law on the mean first token, that the engine's gauge must show for them to wait there.
const INSIDE: f64 = 0.3;

/// Is it in the engine that requests wait? Where its gauge is read and shows few of those that wait more than before, they stand in front of
/// it. `None` = it is not read.
fn inside(bench: &Bench<'_>) -> Option<bool> {
    let waiting = |arm: &BenchArm<'_>| arm.gauges.mean(Signal::Waiting);
    let more = waiting(&bench.candidate)? - waiting(bench.base.as_ref()?)?;
    let later = mean_ttft(bench.now())? - mean_ttft(bench.before()?)?;
    let wait = |arm: &BenchArm<'_>| queue_wait(arm).map_or(0.0, |(wait, _)| wait);
    let longer = wait(&bench.candidate) - wait(bench.base.as_ref()?);
    Some(more > 0.01 && (more >= INSIDE * later * bench.now().rate() || longer >= INSIDE * later))
}

/// Looks at the engine's queue from which it counts as empty.
const LOOKS: usize = 30;

fn waits_inside(bench: &Bench<'_>) -> bool {
    inside(bench).unwrap_or(true)
}

/// S6 by its ceiling: never more than so many answers are under way, requests wait there, and the engine's own queue does not hold them.
pub fn limit_in_front(bench: &Bench<'_>) -> Option<Fired> {
    let found = ceiling(bench).filter(|_| inside(bench) == Some(false))?;
    // A few looks at a gauge miss a queue that comes and goes.
    if bench.candidate.gauges.inside_at_looks()?.len() < LOOKS {
        return None;
    }
    let Ceiling { passed, waited, .. } = found;
    let sure = beyond(passed as f64, PASSED as f64) * beyond(waited as f64, PASSED as f64) / 0.72;
    let waiting = bench.candidate.gauges.mean(Signal::Waiting).unwrap_or(0.0);
    let says = format!("{}; in the engine {} wait on average", ceiling_words(&found), number(waiting));
    Some(
        Fired::new(Cause::ConnectionLimit, sure.min(0.9), says.clone())
            .with(Evidence::said("ceiling_in_front", says))
            .maybe(ceiling_evidence(bench))
            .counted(Counter::Moved { name: "requests waiting in the engine, mean".into(), by: waiting }),
    )
}

fn mean_ttft(seen: &Seen<'_>) -> Option<f64> {
    let values = seen.finite(|row| row.ttft);
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
}

fn grows_words(slope: f64) -> String {
    format!(
        "the number in flight grows by {} a second all through the run: more comes than can be served",
        number(slope)
    )
}

fn ceiling_words(found: &Ceiling) -> String {
    format!(
        "never more than {} answers are under way at once and requests wait there (in {} of 16 stretches), where {} were before (past {} in {} of 16)",
        found.most, found.waited, found.was, found.most, found.passed
    )
}

fn ceiling_evidence(bench: &Bench<'_>) -> Option<Evidence> {
    let found = ceiling(bench)?;
    let n = crate::ratio::STRETCHES as f64;
    let share: Estimate = super::share(found.waited as f64, n, 1.0);
    let limit = PASSED as f64 / n;
    Some(Evidence::figure("waits_at_ceiling", ceiling_words(&found), share, Some(limit)).inferred())
}

/// Replicas that answer now and before, where fewer do and those that do not are not on the servers' pages either: one that is there and
/// idle was passed over by the router. Where answers do not say who gave them, the pages do.
/// Replicas that answered before and now, where they are fewer: by what is known of the target, by who answered, by the servers' pages.
pub fn fewer_replicas(bench: &Bench<'_>) -> Option<(usize, usize)> {
    let told = |side: &Side<'_>| side.facts.facts.get("replicas").cloned().flatten()?.parse::<usize>().ok();
    if let (Some(a), Some(b)) = (bench.case.baseline.as_ref().and_then(told), told(&bench.case.candidate))
        && a > b
        && b > 0
    {
        return Some((a, b));
    }
    let count = |seen: &Seen<'_>| {
        (0..seen.replicas.len() as u16)
            .filter(|r| seen.rows.iter().filter(|row| row.replica == Some(*r)).count() >= 5)
            .count()
    };
    let base = bench.base.as_ref()?;
    let (a, b) = (count(&base.seen), count(bench.now()));
    if a > b && b > 0 {
        return (bench.candidate.gauges.replicas(&bench.now().replicas) < a).then_some((a, b));
    }
    let on_pages = |arm: &BenchArm<'_>| arm.gauges.replicas(&base.seen.replicas);
    let (pages, pages_now) = (on_pages(base), on_pages(&bench.candidate));
    (b == 0 && pages > pages_now && pages_now > 0).then_some((pages, pages_now))
}

/// Growth of the number in flight per second, where it is over a fiftieth of the rate for sure.
fn backlog(seen: &Seen<'_>) -> Option<(f64, f64)> {
    let rows: &[RequestRow] = &seen.rows;
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
