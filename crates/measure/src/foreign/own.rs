//! A run of ours as the rows of a result file, for those who read other tools' formats: the way of [`super::records`], backwards.
//!
//! A request that was tried again is one row, because no such format knows tries: due as it was due, sent and answered as its last try was,
//! so that latency from due is the request's. Of an answer the events with tokens are handed on, and no text.

use plimsoll_model::{
    Attempt, Foreign, ForeignClock, ForeignDue, ForeignPart, ForeignRow, Level, Load, Manifest,
};

use crate::columns::Columns;

/// Where the axis begins if the run knows no wall clock (virtual time): formats read an instant of 0 as "never".
const EPOCH: i64 = 1_000_000_000;

/// The run's levels as parts.
pub fn of_run(manifest: &Manifest, attempts: &[Attempt]) -> Foreign {
    let base = match manifest.clock.realtime_ns {
        0 => EPOCH,
        wall => wall,
    };
    let model = manifest.scenario.pointer("/target/model").and_then(|model| model.as_str());
    Foreign {
        tool: "Plimsoll",
        version: Some(manifest.tool.clone()),
        format: "a run",
        clock: ForeignClock::Wall,
        model: model.map(str::to_owned),
        url: None,
        parts: manifest.levels.iter().map(|level| part(level, attempts, base)).collect(),
        partial: None,
        doubts: Vec::new(),
    }
}

fn part(level: &Level, attempts: &[Attempt], base: i64) -> ForeignPart {
    let own: Vec<&Attempt> = attempts.iter().filter(|attempt| attempt.level == level.id).collect();
    let columns = Columns::read(&own);
    let mut part = ForeignPart::new(format!("level {}", level.id));
    part.load = Some(level.load);
    if let Load::Closed { concurrency } = level.load {
        part.cap = Some(concurrency);
    }
    part.due = ForeignDue::Scheduled;
    let last = (0..columns.len()).filter_map(|i| own.get(*columns.last.get(i)? as usize));
    part.rows = last.map(|attempt| row(attempt, base)).collect();
    part
}

fn row(attempt: &Attempt, base: i64) -> ForeignRow {
    let on = |at: Option<plimsoll_model::At>| at.map(|at| at.0.saturating_add(base));
    let tokens = &attempt.answer.tokens;
    ForeignRow {
        due: on(Some(attempt.due)),
        sent: on(attempt.sent),
        first_event: on(attempt.first_byte),
        first_token: on(attempt.first_token),
        last_token: on(attempt.last_token),
        end: on(attempt.end),
        events: attempt.events.iter().filter(|e| e.kind.is_token()).map(|e| e.offset.0).collect(),
        prompt_tokens: tokens.prompt,
        cached_tokens: tokens.cached,
        output_tokens: tokens.output,
        outcome: attempt.outcome,
        status: attempt.answer.status,
        finish_reason: attempt.answer.finish_reason.clone(),
        prompt: None,
    }
}
