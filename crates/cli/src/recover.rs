//! Restores the requests in flight of a run that was cut off.
//!
//! A row is written when a request ends. A killed generator therefore loses the requests in flight, and these are mostly the
//! slow ones. The schedule is a function of the scenario, and the level has its hash. Requests that were due but have no row are
//! redrawn and marked *unfinished*, up to the last time in the log.
//!
//! Closed loops have no due times to draw. For them the log notes each attempt at its start, and the store returns the attempts
//! that never ended. Deriving them from each worker's share of the loop was rejected, because it does not know which users
//! waited after a 429. If files of the scenario are missing, the number of missing rows is reported.

use std::collections::{HashMap, HashSet};

use plimsoll_measure::traffic::Extent;
use plimsoll_model::{Answer, At, Attempt, By, EndedBy, How, Level, Manifest, Outcome, RunState, Span};
use plimsoll_workload::Arrival;

use crate::again::RecordedScenario;
use crate::commands::gateway;

/// Error text of a request in flight.
const CUT: &str = "in flight when the generator was cut off";

/// Completes the rows of requests in flight on levels that were cut off; returns their number.
/// A gateway's run gets its level here: it has no schedule, so the level is the received traffic.
pub fn unfinished(manifest: &mut Manifest, attempts: &mut Vec<Attempt>) -> usize {
    if manifest.kind == gateway::record::KIND {
        came(manifest, attempts);
        return 0;
    }
    let manifest = &*manifest;
    let cut = manifest.levels.iter().filter(|level| level.ended_by == EndedBy::Cut);
    let before = attempts.len();
    let recorded = cut.clone().next().and_then(|_| RecordedScenario::of(manifest).ok());
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
            Some(recorded) => recorded.scenario.placed(row),
            None => row,
        }));
    }
    noted + attempts.len() - before
}

/// Sets the level of a gateway's run that was killed or is in progress.
/// Requests in flight of a killed gateway are missing; gaps in the request numbers give their count.
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

/// Ends unfinished attempts just after the last time in the log, because a level covers the requests due before its end.
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

/// End time of each turn of a session.
type Ends = HashMap<(u64, u16), At>;

/// Returns the due time of a request. A later turn is due after its predecessors' ends; `None` if one of them had not ended.
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
