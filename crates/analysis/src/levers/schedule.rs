//! The run's arrivals, and others like them.
//!
//! A prediction from one schedule holds for that schedule; the next hour brings another. So levers are simulated on the run's own
//! arrivals and on several drawn as these were: from the scenario with another seed, or, where that can't be (sessions, traces,
//! traffic without a scenario), from the run's own arrivals in blocks drawn with replacement.

use plimsoll_math::rng::Stream;
use plimsoll_model::{At, Attempt};
use plimsoll_workload::{BlockNames, Scenario, Schedule};

use super::Case;
use crate::replay::Asked;

/// A scenario that draws schedules like the run's.
#[derive(Copy, Clone, Debug)]
pub struct Redraw<'a> {
    /// The scenario, with the files it names.
    pub scenario: &'a Scenario,
}

/// Blocks of a run's own arrivals that are drawn.
const BLOCKS: usize = 12;

/// The rows of requests that finished in the window, in order of their due times.
pub(super) fn finished<'a>(case: &Case<'a>) -> Vec<&'a Attempt> {
    let window = &case.summary.window;
    let mut rows: Vec<&Attempt> = case
        .attempts
        .iter()
        .copied()
        .filter(|a| a.outcome.is_finished() && a.end.is_some())
        .filter(|a| a.due >= window.start && a.due < window.stop)
        .collect();
    rows.sort_by_key(|a| (a.due, a.request));
    rows
}

/// The run's own arrivals, its warm-up included. Lengths are those that were used where they are known; rows without the names of
/// their blocks get those of the scenario, where it draws these very arrivals.
pub(super) fn of_rows(case: &Case<'_>) -> Vec<Asked> {
    let mut firsts: Vec<&&Attempt> = case.attempts.iter().filter(|a| a.attempt == 0).collect();
    firsts.sort_by_key(|a| (a.due, a.request));
    let named = firsts.iter().any(|row| !row.prompt_blocks.is_empty());
    let names = if named { None } else { case.redraw.and_then(|redraw| redraw.names(case, &firsts)) };
    let asked = firsts.into_iter().map(|row| Asked {
        due_ns: (row.due - case.level.start).0,
        prompt: row.answer.tokens.prompt.unwrap_or(row.asked_prompt).max(1),
        output: row.answer.tokens.output.unwrap_or(row.asked_output).max(1),
        blocks: match &names {
            Some(names) => names[row.request as usize].clone(),
            None => row.prompt_blocks.clone(),
        },
        session: row.session,
    });
    asked.collect()
}

impl Redraw<'_> {
    /// Names of the blocks of these rows; none where the scenario draws other arrivals.
    fn names(&self, case: &Case<'_>, rows: &[&&Attempt]) -> Option<Vec<Vec<u64>>> {
        let plimsoll_model::Load::Open { rate_per_s } = case.level.load else { return None };
        let window = case.level.stop - case.level.start;
        let schedule = Schedule::generate(self.scenario, rate_per_s, window, case.level.id).ok()?;
        let arrivals = &schedule.arrivals;
        let same = rows.iter().all(|row| {
            let arrival = arrivals.get(row.request as usize);
            arrival
                .is_some_and(|a| a.prompt_tokens == row.asked_prompt && a.output_tokens == row.asked_output)
        });
        let mut names = BlockNames::new(self.scenario).ok()?;
        same.then(|| arrivals.iter().map(|arrival| names.of(arrival)).collect())
    }

    /// The arrivals of this level with another seed.
    fn draw(&self, case: &Case<'_>, seed: u64) -> Option<Vec<Asked>> {
        let plimsoll_model::Load::Open { rate_per_s } = case.level.load else { return None };
        let scenario = Scenario { seed, ..self.scenario.clone() };
        let window = case.level.stop - case.level.start;
        let schedule = Schedule::generate(&scenario, rate_per_s, window, case.level.id).ok()?;
        let mut names = BlockNames::new(&scenario).ok()?;
        let asked = schedule.arrivals.iter().map(|arrival| Asked {
            due_ns: arrival.due.0,
            prompt: arrival.prompt_tokens.max(1),
            output: arrival.output_tokens.max(1),
            blocks: names.of(arrival),
            session: arrival.session,
        });
        Some(asked.collect())
    }
}

/// The `index`-th schedule: the run's own, then others like it.
pub(super) fn like(case: &Case<'_>, own: &[Asked], index: u32, seed: u64) -> Vec<Asked> {
    if index == 0 {
        return own.to_vec();
    }
    let mut stream = Stream::new(seed, "lever schedules", u64::from(index));
    let drawn = case.redraw.and_then(|redraw| redraw.draw(case, stream.next_u64()));
    drawn.unwrap_or_else(|| in_blocks(own, (case.level.stop - case.level.start).0, &mut stream))
}

/// Blocks of equal time, drawn with replacement and laid end to end.
pub(crate) fn in_blocks(own: &[Asked], length_ns: i64, stream: &mut Stream) -> Vec<Asked> {
    let width = (length_ns / BLOCKS as i64).max(1);
    let mut out = Vec::with_capacity(own.len());
    for place in 0..BLOCKS as i64 {
        let from = stream.below(BLOCKS as u64) as i64;
        let block = own.iter().filter(|asked| asked.due_ns / width == from);
        out.extend(
            block.map(|asked| Asked { due_ns: asked.due_ns + (place - from) * width, ..asked.clone() }),
        );
    }
    out
}

/// The same arrivals, `factor` times as fast.
pub(super) fn faster(asked: &[Asked], factor: f64) -> Vec<Asked> {
    let at = |ns: i64| At((ns as f64 / factor) as i64).0;
    asked.iter().map(|one| Asked { due_ns: at(one.due_ns), ..one.clone() }).collect()
}
