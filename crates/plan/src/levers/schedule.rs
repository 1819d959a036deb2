//! The run's arrivals, and similar ones.
//!
//! A prediction from one schedule applies to that schedule only, because the next hour has another. Levers are therefore
//! simulated on the run's arrivals and on several similar schedules. Those are drawn from the scenario with another seed.
//! If that is impossible (sessions, traces, traffic without a scenario), blocks of the run's arrivals are drawn with
//! replacement. The finding names the method ([`Redrawn`]).

use std::collections::HashMap;

use plimsoll_math::rng::{Stream, mix};
use plimsoll_model::{At, Attempt, RateCourse};
use plimsoll_workload::{BlockNames, Scenario, Schedule};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::LeverCase;
use crate::recorded;
use crate::replay::ReplayRequest;

/// A scenario that draws schedules like the run's.
#[derive(Copy, Clone, Debug)]
pub struct Redraw<'a> {
    pub scenario: &'a Scenario,
}

/// Number of blocks of a run's arrivals.
pub const BLOCKS: usize = 12;
/// Largest distance of a block from its place if the load varies: one block to either side.
const NEAR: usize = 1;

/// The origin of the schedules other than the run's.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Redrawn {
    /// Drawn from the scenario with other seeds.
    Scenario,
    /// Twelfths of the run's arrivals, drawn with replacement, because sessions, traces and closed loops can't be drawn
    /// otherwise.
    Blocks,
    /// Twelfths of the run's arrivals, each from next to its place, so that the load varies as in the run.
    NearBlocks,
}

/// Returns the rows of requests that finished in the window, in due order.
pub(super) fn finished<'a>(case: &LeverCase<'a>) -> Vec<&'a Attempt> {
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

/// Returns the run's arrivals, including its warm-up. Lengths are the reported ones if known. Rows without block names get
/// the scenario's names, if it draws equal arrivals.
pub(super) fn of_rows(case: &LeverCase<'_>) -> Vec<ReplayRequest> {
    let mut asked = recorded::requests(case.level, case.attempts.iter().copied());
    if asked.iter().all(|one| one.blocks.is_empty()) {
        let mut firsts: Vec<&&Attempt> = case.attempts.iter().filter(|a| a.attempt == 0).collect();
        firsts.sort_by_key(|a| (a.due, a.request));
        if let Some(names) = case.redraw.and_then(|redraw| redraw.names(case, &firsts)) {
            for (one, row) in asked.iter_mut().zip(firsts) {
                one.blocks.clone_from(&names[row.request as usize]);
            }
        }
    }
    asked
}

impl Redraw<'_> {
    /// Returns the block names of these rows; `None` if the scenario draws other arrivals.
    fn names(&self, case: &LeverCase<'_>, rows: &[&&Attempt]) -> Option<Vec<Vec<u64>>> {
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

    /// Returns the arrivals of this level with another seed.
    fn draw(&self, case: &LeverCase<'_>, seed: u64) -> Option<Vec<ReplayRequest>> {
        let plimsoll_model::Load::Open { rate_per_s } = case.level.load else { return None };
        let window = case.level.stop - case.level.start;
        recorded::drawn(self.scenario, rate_per_s, window, case.level.id, seed)
    }
}

/// Returns the schedules of a run for levers, and their origin.
pub(super) fn of_case(
    case: &LeverCase<'_>,
    own: &[ReplayRequest],
    count: u32,
    seed: u64,
) -> (Vec<Vec<ReplayRequest>>, Redrawn) {
    let reach = match case.level.rate_course {
        RateCourse::Even => BLOCKS,
        _ => NEAR,
    };
    let draw = |stream: &mut Stream| case.redraw?.draw(case, stream.next_u64());
    let stream = |index| Stream::new(seed, "lever schedules", index);
    like(own, ((case.level.stop - case.level.start).0, reach), count, draw, stream)
}

/// Returns the run's schedule, then `count` − 1 similar ones, and their origin. A schedule that can't be drawn has blocks of
/// the run's arrivals, each from at most `reach` places away.
pub(crate) fn like(
    own: &[ReplayRequest],
    (length_ns, reach): (i64, usize),
    count: u32,
    draw: impl Fn(&mut Stream) -> Option<Vec<ReplayRequest>>,
    stream: impl Fn(u64) -> Stream,
) -> (Vec<Vec<ReplayRequest>>, Redrawn) {
    let mut redrawn = Redrawn::Scenario;
    let mut another = |index: u32| {
        let mut stream = stream(u64::from(index));
        draw(&mut stream).unwrap_or_else(|| {
            redrawn = if reach < BLOCKS { Redrawn::NearBlocks } else { Redrawn::Blocks };
            in_blocks(own, length_ns, reach, &mut stream)
        })
    };
    let mut schedules = vec![own.to_vec()];
    schedules.extend((1..count).map(&mut another));
    (schedules, redrawn)
}

/// Draws twelfths of the time with replacement and joins them. Each place gets a block from at most `reach` places away, so
/// a small reach preserves a varying load. A further copy of a block gets new names for its prompts and sessions. A prompt
/// repeated only by the draw would otherwise be a hit for every cache.
pub fn in_blocks(
    own: &[ReplayRequest],
    length_ns: i64,
    reach: usize,
    stream: &mut Stream,
) -> Vec<ReplayRequest> {
    let width = (length_ns / BLOCKS as i64).max(1);
    // A session is drawn whole, by its beginning, because a turn without its predecessors would not wait.
    let mut begins: HashMap<u64, i64> = HashMap::new();
    for (session, asked) in
        own.iter().filter_map(|one| Some((one.session.filter(|_| one.turn.is_some())?, one)))
    {
        begins.entry(session).or_insert(asked.due_ns);
    }
    let begin = |asked: &ReplayRequest| -> i64 {
        asked.session.and_then(|session| begins.get(&session).copied()).unwrap_or(asked.due_ns)
    };
    let block_of = |asked: &ReplayRequest| ((begin(asked) / width).max(0) as usize).min(BLOCKS - 1);
    let mut blocks: [Vec<&ReplayRequest>; BLOCKS] = Default::default();
    let (mut names, mut sessions) = (Homes::default(), Homes::default());
    for asked in own {
        let block = block_of(asked);
        blocks[block].push(asked);
        asked.blocks.iter().for_each(|name| names.note(*name, block));
        asked.session.iter().for_each(|session| sessions.note(*session, block));
    }
    let mut copies = [0u64; BLOCKS];
    let mut out = Vec::with_capacity(own.len());
    for place in 0..BLOCKS {
        let first = place.saturating_sub(reach);
        let from = first + stream.below(((place + reach).min(BLOCKS - 1) - first + 1) as u64) as usize;
        let (copy, shift) = (copies[from], (place as i64 - from as i64) * width);
        copies[from] += 1;
        out.extend(blocks[from].iter().map(|asked| ReplayRequest {
            due_ns: asked.due_ns + shift,
            blocks: asked.blocks.iter().map(|name| names.copied(*name, copy)).collect(),
            session: asked.session.map(|session| sessions.copied(session, copy)),
            ..(*asked).clone()
        }));
    }
    if !begins.is_empty() {
        out.sort_by_key(|one| one.due_ns);
    }
    recorded::in_loop_of(own, &mut out);
    out
}

/// The block of each name; `None` if several blocks contain it.
#[derive(Default)]
struct Homes(HashMap<u64, Option<usize>>);

impl Homes {
    fn note(&mut self, name: u64, block: usize) {
        self.0
            .entry(name)
            .and_modify(|home| *home = home.filter(|home| *home == block))
            .or_insert(Some(block));
    }

    /// Returns the name in this copy of its block. Names that several blocks share are unchanged, because they also repeat
    /// in the run.
    fn copied(&self, name: u64, copy: u64) -> u64 {
        match self.0.get(&name) {
            Some(Some(_)) if copy > 0 => mix(name ^ mix(copy)),
            _ => name,
        }
    }
}

/// Returns the arrivals with times divided by `factor`.
pub(super) fn faster(asked: &[ReplayRequest], factor: f64) -> Vec<ReplayRequest> {
    let at = |ns: i64| At((ns as f64 / factor) as i64).0;
    asked.iter().map(|one| ReplayRequest { due_ns: at(one.due_ns), ..one.clone() }).collect()
}
