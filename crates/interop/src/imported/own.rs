//! Conversion of a run to the rows of a result file for readers of other tools' formats: the inverse of [`super::records`].
//!
//! A retried request is one row, because no such format has attempts. Its due time is the request's; its other timestamps come
//! from the last attempt, so that latency from due is the request's. Events with tokens are kept, and no text.

use std::ops::Range;

use plimsoll_model::{
    At, Attempt, Foreign, ForeignClock, ForeignDue, ForeignPart, ForeignProcess, ForeignRow, Level, Load,
    Manifest, RateCourse, RunState, TimeBase,
};

use plimsoll_measure::columns::Columns;
use plimsoll_measure::findings::Findings;

/// Start of the axis if the run has no wall clock (virtual time), because formats read an instant of 0 as "never".
const EPOCH: i64 = 1_000_000_000;

/// Returns the levels of a run that its figures use as parts; levels of warm-up or isolated requests are left out.
///
/// Requests of a level that do not count are marked.
pub fn of_run(manifest: &Manifest, mut attempts: Vec<Attempt>, findings: &Findings) -> Foreign {
    let base = match manifest.clock.realtime_ns {
        0 => EPOCH,
        wall => wall,
    };
    let model = manifest.scenario.pointer("/target/model").and_then(|model| model.as_str());
    let process = match manifest.scenario.pointer("/arrivals/process").and_then(|process| process.as_str()) {
        Some("poisson") => Some(ForeignProcess::Poisson),
        Some("constant") => Some(ForeignProcess::Constant),
        _ => None,
    };
    let mut part = |level: &Level| {
        let found = findings.levels.iter().find(|found| found.summary.level == level.id)?;
        let counted = found.summary.window.start..found.summary.window.stop;
        let is_even = matches!(level.load, Load::Open { .. }) && level.rate_course == RateCourse::Even;
        Some(ForeignPart {
            process: process.filter(|_| is_even),
            ..part(level, &mut attempts, base, &counted)
        })
    };
    Foreign {
        tool: "Plimsoll",
        version: Some(manifest.tool.trim_start_matches("plimsoll ").to_owned()),
        format: "a run",
        clock: match (manifest.time, manifest.clock.realtime_ns) {
            (TimeBase::Virtual, _) | (_, 0) => ForeignClock::Monotonic,
            (TimeBase::Real, _) => ForeignClock::Wall,
        },
        model: model.map(str::to_owned),
        url: manifest.target.url.split(['?', '#']).next().map(str::to_owned),
        parts: manifest.levels.iter().filter_map(&mut part).collect(),
        partial: match &manifest.progress {
            RunState::Partial { why } => Some(why.clone()),
            RunState::Running => Some("it is still being written".into()),
            RunState::Complete => None,
        },
        doubts: Vec::new(),
    }
}

fn part(level: &Level, attempts: &mut [Attempt], base: i64, counted: &Range<At>) -> ForeignPart {
    let index: Vec<usize> = (0..attempts.len()).filter(|i| attempts[*i].level == level.id).collect();
    let own: Vec<&Attempt> = index.iter().map(|i| &attempts[*i]).collect();
    let last = Columns::read(&own).last;
    let mut part = ForeignPart::new(format!("level {}", level.id));
    part.load = Some(level.load);
    if let Load::Closed { concurrency } = level.load {
        part.cap = Some(concurrency);
    }
    part.due = ForeignDue::Scheduled;
    part.rows = last.iter().map(|i| row(&mut attempts[index[*i as usize]], base, counted)).collect();
    part
}

/// Returns the row of an attempt and takes its events, because memory has no room for two copies of a long run's events.
fn row(attempt: &mut Attempt, base: i64, counted: &Range<At>) -> ForeignRow {
    let on = |at: Option<At>| at.map(|at| at.0.saturating_add(base));
    let events = std::mem::take(&mut attempt.events);
    let tokens = &attempt.answer.tokens;
    ForeignRow {
        due: on(Some(attempt.due)),
        sent: on(attempt.sent),
        first_event: on(attempt.first_byte),
        first_token: on(attempt.first_token),
        first_visible: on(attempt.first_visible),
        last_token: on(attempt.last_token),
        end: on(attempt.end),
        events: events.iter().filter(|e| e.kind.is_token()).map(|e| e.offset.0).collect(),
        prompt_tokens: tokens.prompt,
        cached_tokens: tokens.cached,
        output_tokens: tokens.output,
        outcome: attempt.outcome,
        status: attempt.answer.status,
        finish_reason: attempt.answer.finish_reason.clone(),
        prompt: None,
        counted: counted.contains(&attempt.due),
    }
}
