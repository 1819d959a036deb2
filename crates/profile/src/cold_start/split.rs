//! The parts of the first request's wait after idling, to the extent that the client can see them.
//!
//! Connections were refused or lost, or requests were rejected, or the request was accepted and took longer than a
//! steady one. The parts add up to the whole by construction. The border of two parts is between the last attempt of
//! one kind and the first of the other. That is each part's interval, as wide as the distance of the attempts.
//! Probing a health endpoint was rejected: it is an additional request to the autoscaler, and servers report *alive*
//! and *ready* under different names. The request itself is the decisive test.

use plimsoll_measure::findings::BoundedValue;
use plimsoll_measure::findings::cold_start::{ColdPart, ColdPhase};
use plimsoll_model::{At, Attempt, How};

/// A series of attempts with one outcome.
struct Stretch {
    phase: ColdPhase,
    attempts: u64,
    /// Times of the first and the last observation.
    first: At,
    last: At,
}

/// Returns the parts of the first request's time in order of phases, without empty ones. Returns none if it never
/// succeeded. `median` is the time of a steady request in s.
pub(super) fn parts(own: &[&Attempt], median: Option<f64>) -> Vec<ColdPart> {
    let Some((answered, failed)) = own.split_last().filter(|(last, _)| last.outcome.is_finished()) else {
        return Vec::new();
    };
    let (Some(median), Some(token)) = (median, answered.first_token.or(answered.end)) else {
        return Vec::new();
    };
    let due = own[0].due;
    let stretches = stretches(failed);
    let taken = sign(answered, stretches.last().map_or(due, |last| last.last));
    let mut all = Vec::new();
    // Start of the present series: latest possible (its first observation) and earliest possible (the last
    // observation of the one before).
    let (mut from, mut earliest) = (due, due);
    for (n, stretch) in stretches.iter().enumerate() {
        let until = stretches.get(n + 1).map_or(taken, |next| next.first);
        let seconds = bounded(until - from, stretch.last - from, until - earliest);
        add(&mut all, stretch.phase, seconds, stretch.attempts);
        (from, earliest) = (until, stretch.last);
    }
    let whole = (token - from).as_secs_f64();
    let steady = median.min(whole);
    // Time before the first sign of acceptance may belong to this part too.
    let unsure = (from - earliest).as_secs_f64();
    let slower =
        BoundedValue { value: whole - steady, lower: whole - steady, upper: whole - steady + unsure };
    add(&mut all, ColdPhase::Slower, slower, 1);
    add(&mut all, ColdPhase::Steady, BoundedValue { value: steady, lower: steady, upper: steady }, 0);
    all.sort_by_key(|part: &ColdPart| part.phase);
    all.retain(|part| part.seconds.value > 0.0);
    all
}

fn stretches(failed: &[&Attempt]) -> Vec<Stretch> {
    let mut all: Vec<Stretch> = Vec::new();
    for attempt in failed {
        let Some(end) = attempt.end.or(attempt.sent) else { continue };
        let phase = phase(attempt);
        let before = all.last().map_or(attempt.due, |last| last.last);
        let first = if phase == ColdPhase::NoListener { end } else { sign(attempt, before).min(end) };
        match all.last_mut() {
            Some(last) if last.phase == phase => (last.attempts, last.last) = (last.attempts + 1, end),
            _ => all.push(Stretch { phase, attempts: 1, first, last: end }),
        }
    }
    all
}

/// Returns the phase of a failed attempt.
fn phase(attempt: &Attempt) -> ColdPhase {
    let stood = attempt.connected.is_some();
    match attempt.outcome.how {
        How::Refused | How::Reset | How::NeverSent => ColdPhase::NoListener,
        How::Timeout | How::Cancelled | How::Unfinished if !stood => ColdPhase::NoListener,
        _ => ColdPhase::NotReady,
    }
}

/// Returns the first sign of a listening server, not before `since`: the attempt's connection, else its send time.
fn sign(attempt: &Attempt, since: At) -> At {
    let connected = attempt.connected.filter(|_| !attempt.reused);
    let seen = connected.into_iter().chain(attempt.sent).find(|at| *at >= since);
    seen.or(attempt.first_byte).or(attempt.end).unwrap_or(since).max(since)
}

fn bounded(
    value: plimsoll_model::Span,
    lower: plimsoll_model::Span,
    upper: plimsoll_model::Span,
) -> BoundedValue {
    let seconds = |span: plimsoll_model::Span| span.as_secs_f64().max(0.0);
    BoundedValue { value: seconds(value), lower: seconds(lower), upper: seconds(upper) }
}

/// Adds a part; a phase that occurs twice (an endpoint that started, failed and started again) is one part.
fn add(all: &mut Vec<ColdPart>, phase: ColdPhase, seconds: BoundedValue, attempts: u64) {
    match all.iter_mut().find(|part| part.phase == phase) {
        Some(part) => {
            part.attempts += attempts;
            part.seconds = BoundedValue {
                value: part.seconds.value + seconds.value,
                lower: part.seconds.lower + seconds.lower,
                upper: part.seconds.upper + seconds.upper,
            };
        }
        None => all.push(ColdPart { phase, seconds, attempts }),
    }
}
