//! Converts a measured level to requests for a new simulation, with equal due times and lengths.
//!
//! A turn of a session was due after the previous response and the user's think time. Under a change, that response has
//! another time, and so does the turn; the interval between the two is kept. Turns at their recorded times were rejected. A
//! slower engine would receive the next turn before its response to the last one, and a faster engine would idle.
//!
//! A closed loop works alike: the end of a request (of a session's last turn) frees a place for the next one. The next
//! request is due after the recorded interval. Requests keep their order, and each end frees a place for the next request
//! in line.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};

use plimsoll_model::{At, Attempt, Level, Load, Span};
use plimsoll_workload::{BlockNames, Scenario, Schedule};

use crate::replay::{DueRequest, ReplayRequest, ReplaySource};

/// The position of a request in its session.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct ReplayTurn {
    pub turn: u16,
    /// The turn that it waits for, and the interval from that turn's end to its due time, ns. `None` if it has a fixed due
    /// time.
    pub after: Option<(u16, i64)>,
}

/// Returns the level's requests in due order. Retries are omitted, because the simulation is about the engine that
/// responds.
pub fn requests<'a>(level: &Level, attempts: impl Iterator<Item = &'a Attempt>) -> Vec<ReplayRequest> {
    let mut rows: Vec<&Attempt> = attempts.filter(|a| a.level == level.id).collect();
    rows.sort_by_key(|a| (a.due, a.request, a.attempt));
    let ends = ends(&rows);
    let firsts = rows.iter().filter(|row| row.attempt == 0);
    let mut asked: Vec<ReplayRequest> = firsts
        .map(|row| ReplayRequest {
            due_ns: (row.due - level.start).0.max(0),
            prompt: row.answer.tokens.prompt.unwrap_or(row.asked_prompt).max(1),
            output: row.answer.tokens.output.unwrap_or(row.asked_output).max(1),
            blocks: row.prompt_blocks.clone(),
            session: row.session,
            turn: row.session.map(|session| ReplayTurn { turn: row.turn, after: after(&ends, session, row) }),
            think_ns: None,
        })
        .collect();
    if let Load::Closed { concurrency } | Load::Saturating { concurrency } = level.load {
        let ended: Vec<i64> = room(&rows).into_iter().map(|at| (at - level.start).0).collect();
        let began = asked.iter_mut().filter(|one| begins(one));
        for (one, ended_ns) in began.skip(concurrency as usize).zip(ended) {
            one.think_ns = Some((one.due_ns - ended_ns).max(0));
        }
    }
    asked
}

/// Returns whether a request needs a free place; later turns of a session have one.
fn begins(one: &ReplayRequest) -> bool {
    one.turn.is_none_or(|turn| turn.turn == 0)
}

/// Returns the times at which places became free, ascending: the end of each request and of each whole session.
fn room(rows: &[&Attempt]) -> Vec<At> {
    let mut all: HashMap<(Option<u64>, u64), Vec<&Attempt>> = HashMap::new();
    for row in rows {
        let request = if row.session.is_some() { 0 } else { row.request };
        all.entry((row.session, request)).or_default().push(*row);
    }
    let mut ends: Vec<At> = all.values().filter_map(|own| over(own)).collect();
    ends.sort_unstable();
    ends
}

/// Returns the end of a request or a session: the end of its last attempt. `None` if the level's end cut it off, with an
/// attempt in flight or a turn outstanding, because then no place became free. With the previous turn's end instead, each
/// later beginning would be paired with an earlier end.
fn over(own: &[&Attempt]) -> Option<At> {
    let came = own.iter().filter(|row| row.attempt == 0).count();
    let is_whole = own.iter().all(|row| usize::from(row.turns) <= came);
    // After a turn without a response, the other turns are never sent.
    if !is_whole && !own.iter().any(|row| is_given_up(row, own)) {
        return None;
    }
    let ends: Option<Vec<At>> = own.iter().map(|row| row.end).collect();
    ends?.into_iter().max()
}

/// Returns whether an attempt failed without a retry.
fn is_given_up(row: &Attempt, own: &[&Attempt]) -> bool {
    let is_last = own.iter().all(|other| other.request != row.request || other.attempt <= row.attempt);
    is_last && !row.outcome.is_finished()
}

/// Returns whether the requests are from a closed loop.
pub(crate) fn is_closed(asked: &[ReplayRequest]) -> bool {
    asked.iter().any(|one| one.think_ns.is_some())
}

/// Applies the closed loop of `own` to other requests: an equal number begins immediately, and the others have equal think
/// times. Open-loop requests are unchanged.
pub(crate) fn in_loop_of(own: &[ReplayRequest], others: &mut [ReplayRequest]) {
    if !is_closed(own) {
        return;
    }
    let (first, after): (Vec<_>, Vec<_>) =
        own.iter().filter(|one| begins(one)).partition(|one| one.think_ns.is_none());
    let places = first.iter().chain(after.iter().cycle());
    for (one, place) in others.iter_mut().filter(|one| begins(one)).zip(places) {
        one.think_ns = place.think_ns;
        if place.think_ns.is_none() {
            one.due_ns = place.due_ns;
        }
    }
}

/// Returns the end of the last attempt at each turn of each session.
fn ends(rows: &[&Attempt]) -> HashMap<u64, Vec<(u16, At)>> {
    let mut ends: HashMap<u64, HashMap<u16, At>> = HashMap::new();
    for row in rows {
        if let (Some(session), Some(end)) = (row.session, row.end) {
            let of = ends.entry(session).or_default().entry(row.turn).or_insert(end);
            *of = end.max(*of);
        }
    }
    ends.into_iter().map(|(session, of)| (session, of.into_iter().collect())).collect()
}

/// Returns the turn that ended last before this one was due, and the interval.
fn after(ends: &HashMap<u64, Vec<(u16, At)>>, session: u64, row: &Attempt) -> Option<(u16, i64)> {
    let before = ends.get(&session)?.iter().filter(|(turn, end)| *turn < row.turn && *end <= row.due);
    let (turn, end) = before.max_by_key(|(turn, end)| (*end, *turn))?;
    Some((*turn, (row.due - *end).0))
}

/// Requests that depend on responses: later turns of sessions, and requests of a closed loop.
pub(crate) struct Turns<'a> {
    asked: &'a [ReplayRequest],
    /// Requests with a known due time, by time and index.
    due: BinaryHeap<Reverse<(i64, usize)>>,
    /// Requests that wait for a turn of a session.
    waiting: HashMap<(u64, u16), Vec<usize>>,
    /// Requests that wait for a free place in a closed loop.
    line: VecDeque<usize>,
    /// Unfinished requests of each session.
    left: HashMap<u64, usize>,
    /// Index of each request that was issued or will never be sent, in order.
    pub order: Vec<usize>,
}

impl<'a> Turns<'a> {
    pub fn new(asked: &'a [ReplayRequest]) -> Turns<'a> {
        let here: HashMap<(u64, u16), usize> =
            asked.iter().enumerate().filter_map(|(i, one)| Some((key(one)?, i))).collect();
        let mut turns = Turns {
            asked,
            due: BinaryHeap::with_capacity(asked.len()),
            waiting: HashMap::new(),
            line: VecDeque::new(),
            left: HashMap::new(),
            order: Vec::with_capacity(asked.len()),
        };
        for (i, one) in asked.iter().enumerate() {
            if let Some((session, _)) = key(one) {
                *turns.left.entry(session).or_default() += 1;
            }
            if one.think_ns.is_some() {
                turns.line.push_back(i);
                continue;
            }
            let after = one.session.zip(one.turn.and_then(|turn| turn.after));
            let after = after.map(|(session, (turn, _))| (session, turn));
            // A turn that this list does not contain has no response to wait for.
            match after.filter(|key| here.get(key).is_some_and(|at| *at != i)) {
                Some(key) => turns.waiting.entry(key).or_default().push(i),
                None => turns.due.push(Reverse((one.due_ns, i))),
            }
        }
        turns
    }

    /// Removes all requests that depend on this one, directly or indirectly, and returns them.
    fn broken_off(&mut self, first: usize) -> Vec<(i64, u32)> {
        let (mut lost, mut next) = (Vec::new(), vec![first]);
        while let Some(at) = next.pop() {
            let Some(waiting) = key(&self.asked[at]).and_then(|key| self.waiting.remove(&key)) else {
                continue;
            };
            for one in waiting {
                lost.push((self.asked[one].due_ns, self.asked[one].output));
                self.order.push(one);
                next.push(one);
            }
        }
        lost
    }

    /// Counts finished requests of this one's session, and frees a place if the session has ended.
    fn make_room(&mut self, of: usize, over: usize, now: At) {
        if let Some((session, _)) = key(&self.asked[of]) {
            let left = self.left.entry(session).or_default();
            *left = left.saturating_sub(over);
            if *left > 0 {
                return;
            }
        }
        if let Some(next) = self.line.pop_front() {
            let think = self.asked[next].think_ns.unwrap_or(0);
            self.due.push(Reverse((now.0.saturating_add(think), next)));
        }
    }
}

fn key(one: &ReplayRequest) -> Option<(u64, u16)> {
    Some((one.session?, one.turn?.turn))
}

impl ReplaySource for &mut Turns<'_> {
    fn next_at(&mut self) -> Option<At> {
        self.due.peek().map(|Reverse((due, _))| At(*due))
    }

    fn pop(&mut self, now: At) -> Option<DueRequest> {
        let &Reverse((at_ns, one)) = self.due.peek().filter(|Reverse((due, _))| At(*due) <= now)?;
        self.due.pop();
        self.order.push(one);
        Some(DueRequest { at_ns, request: self.asked[one].submit(0) })
    }

    fn over(&mut self, index: u64, now: At, answered: bool) -> Vec<(i64, u32)> {
        let Some(one) = self.order.get(index as usize).copied() else { return Vec::new() };
        if !answered {
            let lost = self.broken_off(one);
            self.make_room(one, 1 + lost.len(), now);
            return lost;
        }
        self.make_room(one, 1, now);
        let waiting = key(&self.asked[one]).and_then(|key| self.waiting.remove(&key));
        for next in waiting.into_iter().flatten() {
            let think = self.asked[next].turn.and_then(|turn| turn.after).map_or(0, |(_, think)| think);
            self.due.push(Reverse((now.0.saturating_add(think), next)));
        }
        Vec::new()
    }

    fn stop(&mut self, _now: At) -> Vec<(i64, u32)> {
        let waiting: Vec<usize> = std::mem::take(&mut self.waiting).into_values().flatten().collect();
        let due = std::mem::take(&mut self.due).into_iter().map(|Reverse((_, one))| one);
        let left: Vec<usize> = due.chain(waiting).chain(std::mem::take(&mut self.line)).collect();
        self.order.extend(&left);
        left.into_iter().map(|one| (self.asked[one].due_ns, self.asked[one].output)).collect()
    }
}

/// Returns the requests that a scenario draws at this rate with this seed; `None` if it can't draw.
pub(crate) fn drawn(
    scenario: &Scenario,
    rate_per_s: f64,
    window: Span,
    level: u32,
    seed: u64,
) -> Option<Vec<ReplayRequest>> {
    let scenario = Scenario { seed, ..scenario.clone() };
    let schedule = Schedule::generate(&scenario, rate_per_s, window, level).ok()?;
    let mut names = BlockNames::new(&scenario).ok()?;
    let asked = schedule.arrivals.iter().map(|arrival| ReplayRequest {
        due_ns: arrival.due.0,
        prompt: arrival.prompt_tokens.max(1),
        output: arrival.output_tokens.max(1),
        blocks: names.of(arrival),
        session: arrival.session,
        turn: None,
        think_ns: None,
    });
    Some(asked.collect())
}
