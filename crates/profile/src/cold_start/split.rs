//! What the first request after idling waited for, as far as the client itself can see it.
//!
//! Nobody listened (connections refused or lost), somebody listened and turned it away, it was taken and took longer than a steady
//! one. The parts add up to the whole by construction. Where one ends and the next begins is known to lie between the last
//! try that met the one and the first that met the other: that is each part's interval, and it is as wide as the tries lie
//! apart. Asking a health page beside them lost: it is a request more to whoever decides to scale, pages say *alive* and
//! *ready* under names that differ between servers, and the request itself is the question that matters.

use plimsoll_measure::findings::Bounded;
use plimsoll_measure::findings::cold_start::{ColdPart, ColdPhase};
use plimsoll_model::{At, Attempt, How};

/// A stretch of attempts that met the same.
struct Stretch {
    phase: ColdPhase,
    attempts: u64,
    /// First and last sign of it.
    first: At,
    last: At,
}

/// Parts of the first request's time, in the order of their phases, zero ones left out; none where it was never answered. `median` is what a
/// steady request takes, s.
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
    // Where the stretch under way began: at the latest (the first sign of it), and at the earliest (the last sign of what was before).
    let (mut from, mut earliest) = (due, due);
    for (n, stretch) in stretches.iter().enumerate() {
        let until = stretches.get(n + 1).map_or(taken, |next| next.first);
        let seconds = bounded(until - from, stretch.last - from, until - earliest);
        add(&mut all, stretch.phase, seconds, stretch.attempts);
        (from, earliest) = (until, stretch.last);
    }
    let whole = (token - from).as_secs_f64();
    let steady = median.min(whole);
    // What lies before the first sign of being taken may be this part's, too.
    let unsure = (from - earliest).as_secs_f64();
    let slower = Bounded { value: whole - steady, lower: whole - steady, upper: whole - steady + unsure };
    add(&mut all, ColdPhase::Slower, slower, 1);
    add(&mut all, ColdPhase::Steady, Bounded { value: steady, lower: steady, upper: steady }, 0);
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

/// What an attempt that was not answered met.
fn phase(attempt: &Attempt) -> ColdPhase {
    let stood = attempt.connected.is_some();
    match attempt.outcome.how {
        How::Refused | How::Reset | How::NeverSent => ColdPhase::NoListener,
        How::Timeout | How::Cancelled | How::Unfinished if !stood => ColdPhase::NoListener,
        _ => ColdPhase::NotReady,
    }
}

/// The first sign that somebody listened, not before `since`: its own connection, else its sending.
fn sign(attempt: &Attempt, since: At) -> At {
    let connected = attempt.connected.filter(|_| !attempt.reused);
    let seen = connected.into_iter().chain(attempt.sent).find(|at| *at >= since);
    seen.or(attempt.first_byte).or(attempt.end).unwrap_or(since).max(since)
}

fn bounded(value: plimsoll_model::Span, lower: plimsoll_model::Span, upper: plimsoll_model::Span) -> Bounded {
    let seconds = |span: plimsoll_model::Span| span.as_secs_f64().max(0.0);
    Bounded { value: seconds(value), lower: seconds(lower), upper: seconds(upper) }
}

/// One phase that came twice (an endpoint that started, fell and started again) is one part.
fn add(all: &mut Vec<ColdPart>, phase: ColdPhase, seconds: Bounded, attempts: u64) {
    match all.iter_mut().find(|part| part.phase == phase) {
        Some(part) => {
            part.attempts += attempts;
            part.seconds = Bounded {
                value: part.seconds.value + seconds.value,
                lower: part.seconds.lower + seconds.lower,
                upper: part.seconds.upper + seconds.upper,
            };
        }
        None => all.push(ColdPart { phase, seconds, attempts }),
    }
}
