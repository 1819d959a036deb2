//! Gives a run that was cut off back the requests that were in flight.
//!
//! A row is written when a request ends, so a generator that is killed takes the requests in flight with it: the slow
//! ones, of all. The schedule is a function of the scenario, the level says its hash; so what was due and left no row is
//! drawn again and enters the run as *unfinished*, up to the last instant the log knows of. Closed loops have no due times
//! to draw; there the log notes each attempt as it begins, and the store gives back those that never ended. (Deriving them,
//! as many on each worker as its part of the loop, lost: it does not know who was waiting after a 429.) Of a scenario whose
//! files are gone it says that rows are missing.

use std::collections::{HashMap, HashSet};

use plimsoll_measure::traffic::Extent;
use plimsoll_model::{Answer, At, Attempt, By, EndedBy, How, Level, Manifest, Outcome, RunState, Span};
use plimsoll_workload::Arrival;

use crate::again::Recorded;
use crate::commands::gateway;

/// What is said of a request in flight.
const CUT: &str = "in flight when the generator was cut off";

/// Completes the rows of what was in flight on levels that were cut off; gives how many. A gateway's run gets its level here: nobody
/// scheduled it, it is what came.
pub fn unfinished(manifest: &mut Manifest, attempts: &mut Vec<Attempt>) -> usize {
    if manifest.kind == gateway::record::KIND {
        came(manifest, attempts);
        return 0;
    }
    let manifest = &*manifest;
    let cut = manifest.levels.iter().filter(|level| level.ended_by == EndedBy::Cut);
    let before = attempts.len();
    let recorded = cut.clone().next().and_then(|_| Recorded::of(manifest).ok());
    let mut noted = 0;
    for level in cut {
        noted += close(level, attempts);
        let Some(schedule) = recorded.as_ref().and_then(|recorded| recorded.schedule(level)) else {
            continue;
        };
        let own = attempts.iter().filter(|attempt| attempt.level == level.id);
        let Some(last) = own.clone().filter_map(|attempt| attempt.end).max() else { continue };
        let known: HashSet<u64> = own.clone().map(|attempt| attempt.request).collect();
        let ends: Ends =
            own.filter_map(|attempt| Some(((attempt.session?, attempt.turn), attempt.end?))).collect();
        let missing: Vec<Attempt> = schedule
            .arrivals
            .iter()
            .filter(|arrival| !known.contains(&arrival.id))
            .filter_map(|arrival| Some((arrival, due(level, arrival, &ends)?)))
            .filter(|(_, due)| *due <= last)
            .map(|(arrival, due)| row(level, arrival, due, last))
            .collect();
        attempts.extend(missing.into_iter().map(|row| match &recorded {
            Some(recorded) => recorded.scenario.target.placed(row),
            None => row,
        }));
    }
    noted + attempts.len() - before
}

/// What came through a gateway that was killed, or goes on. What a killed one had in flight is missing: the numbers of the others tell how many.
fn came(manifest: &mut Manifest, attempts: &[Attempt]) {
    if !manifest.levels.is_empty() || attempts.is_empty() {
        return;
    }
    let extent = Extent::of(attempts);
    manifest.levels = vec![match manifest.progress {
        RunState::Running => extent.level(Some(extent.requests()), EndedBy::Complete),
        _ => extent.level(None, EndedBy::Cut),
    }];
}

/// Ends what the log knows to have begun just after the last instant it knows of: a level is what was due before its end.
fn close(level: &Level, attempts: &mut [Attempt]) -> usize {
    let own = |attempt: &&mut Attempt| attempt.level == level.id;
    let last = attempts.iter_mut().filter(own).map(|attempt| attempt.end.unwrap_or(attempt.due)).max();
    let begun = |attempt: &&mut Attempt| attempt.outcome.how == How::Unfinished && attempt.end.is_none();
    let mut closed = 0;
    for attempt in attempts.iter_mut().filter(own).filter(begun) {
        attempt.end = last.map(|last| last + Span(1));
        attempt.answer.error.get_or_insert_with(|| CUT.into());
        closed += 1;
    }
    closed
}

/// When each turn of a session ended.
type Ends = HashMap<(u64, u16), At>;

/// When it was due: of a turn that comes after others by their ends, and not at all where one of these had not ended.
fn due(level: &Level, arrival: &Arrival, ends: &Ends) -> Option<At> {
    let Some(session) = arrival.session.filter(|_| !arrival.after.is_empty()) else {
        return Some(level.start + (arrival.due - At::ZERO));
    };
    let before = arrival.after.iter().map(|turn| ends.get(&(session, *turn)).copied());
    Some(before.collect::<Option<Vec<At>>>()?.into_iter().max()? + arrival.think)
}

fn row(level: &Level, arrival: &Arrival, due: At, last: At) -> Attempt {
    Attempt {
        end: Some(last),
        outcome: Outcome::new(How::Unfinished, By::Client, false),
        answer: Answer { error: Some(CUT.into()), ..Answer::default() },
        ..arrival.row(0, level.id, due)
    }
}
