//! Gives a run that was cut off back the requests that were in flight.
//!
//! A row is written when a request ends, so a generator that is killed takes the requests in flight with it: the slow
//! ones, of all. The schedule is a function of the scenario, the level says its hash; so what was due and left no row is
//! drawn again and enters the run as *unfinished*, up to the last instant the log knows of. Closed loops have no due times
//! to draw, and a scenario whose files are gone none either: there the run only says that rows are missing.

use std::collections::HashSet;

use plimsoll_model::{Answer, At, Attempt, By, EndedBy, How, Level, Load, Manifest, Outcome};
use plimsoll_workload::{Arrival, ArrivalSpec, Scenario, Schedule};

/// Adds the rows of what was in flight on levels that were cut off; gives how many.
pub fn unfinished(manifest: &Manifest, attempts: &mut Vec<Attempt>) -> usize {
    let cut = manifest.levels.iter().filter(|level| level.ended_by == EndedBy::Cut);
    let before = attempts.len();
    for level in cut {
        let Some(schedule) = redrawn(manifest, level) else { continue };
        let own = attempts.iter().filter(|attempt| attempt.level == level.id);
        let Some(last) = own.clone().filter_map(|attempt| attempt.end).max() else { continue };
        let known: HashSet<u64> = own.map(|attempt| attempt.request).collect();
        let due = schedule.arrivals.iter().take_while(|arrival| on_axis(level, arrival) <= last);
        let missing: Vec<Attempt> = due
            .filter(|arrival| !known.contains(&arrival.id))
            .map(|arrival| row(level, arrival, last))
            .collect();
        attempts.extend(missing);
    }
    attempts.len() - before
}

/// The level's schedule, if what is drawn again has the hash that the level says.
fn redrawn(manifest: &Manifest, level: &Level) -> Option<Schedule> {
    let Load::Open { rate_per_s } = level.load else { return None };
    let mut value = manifest.scenario.clone();
    let object = value.as_object_mut()?;
    object.remove("sweep");
    let traffic = object.remove("traffic");
    let mut scenario = Scenario::from_json(&value).ok()?;
    if let Some(arrivals) = traffic.as_ref().and_then(|kinds| kinds.get(&level.traffic)) {
        scenario.arrivals = serde_json::from_value(arrivals.clone()).ok()?;
    }
    scenario.attach(|name| std::fs::read(name).map_err(|e| e.to_string())).ok()?;
    let rate = match scenario.arrivals {
        ArrivalSpec::Trace { .. } => scenario.rate().ok()?,
        _ => rate_per_s,
    };
    let mut schedule = Schedule::generate(&scenario, rate, level.window(), level.id).ok()?;
    schedule.arrivals.truncate(usize::try_from(level.arrivals).ok()?);
    (schedule.hash() == level.schedule_hash).then_some(schedule)
}

fn on_axis(level: &Level, arrival: &Arrival) -> At {
    level.start + (arrival.due - At::ZERO)
}

fn row(level: &Level, arrival: &Arrival, last: At) -> Attempt {
    Attempt {
        session: arrival.session,
        turn: arrival.turn,
        class: arrival.class,
        end: Some(last),
        asked_prompt: arrival.prompt_tokens,
        asked_output: arrival.output_tokens,
        outcome: Outcome::new(How::Unfinished, By::Client, false),
        answer: Answer {
            error: Some("in flight when the generator was cut off".into()),
            ..Answer::default()
        },
        ..Attempt::new(arrival.id, 0, level.id, on_axis(level, arrival))
    }
}
