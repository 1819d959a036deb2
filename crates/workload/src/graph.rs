//! Represents sessions as dependency graphs of turns, checked when a trace is read. The player executes them
//! ([`crate::player`]).
//!
//! A turn is due when all its predecessors have ended, plus the time of a tool call. A turn without predecessors is due at
//! its recorded time, and the first of these starts the session. Two branches with one predecessor are concurrent
//! sub-agents. A conversation is the simplest graph: each turn follows the previous one.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::hash::Hasher;

use plimsoll_model::Span;
use siphasher::sip::SipHasher24;

use crate::error::{TraceFileError, nearest};
use crate::trace::TraceRow;

/// Most turns of a session, because the ancestors of a turn take one bit per turn.
const MAX_TURNS: usize = 20_000;

/// The position of a trace line in its session, as written.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GraphStep {
    /// Id that other lines of the session refer to.
    pub id: Option<String>,
    /// Ids of the predecessors.
    pub after: Vec<String>,
    /// Time from the end of the last predecessor to the due time.
    pub wait: Span,
    pub extends: Context,
}

/// The part of its session that a prompt begins with.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub enum Context {
    /// Unspecified: the longest prompt and answer of an ancestor that fit.
    #[default]
    Longest,
    /// A new text, as for a sub-agent or a compacted context.
    Own,
    /// The prompt and answer of this turn.
    Of(String),
}

/// The sessions of a trace, in order of their starts.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Graph {
    pub sessions: Vec<GraphSession>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GraphSession {
    /// Due time of the first turn, from the first row of the trace.
    pub begins: Span,
    /// Turns in an order in which every turn follows its predecessors.
    pub turns: Vec<GraphTurn>,
}

/// One turn of a session. Its number is its index in the list.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GraphTurn {
    pub row: usize,
    /// Numbers of the predecessors.
    pub after: Vec<u16>,
    /// Time from the end of the last predecessor to the due time.
    pub wait: Span,
    /// Earliest due time from the start of the session, as if all turns took no time.
    pub earliest: Span,
    /// Turn whose prompt and answer this prompt begins with: the named turn, or else the longest ancestor that fits.
    pub extends: Option<u16>,
    /// Prompt tokens that an ancestor has already sent.
    pub resent: u32,
}

impl Graph {
    /// Checks the references between rows and sorts the rows by time. Rows with predecessors are sorted as if all turns
    /// took no time.
    ///
    /// # Errors
    /// Fails for a turn without a session, a duplicate or unknown id, or a cycle.
    pub(crate) fn of(rows: &mut Vec<TraceRow>, name: &str) -> Result<Graph, TraceFileError> {
        let mut members: Vec<Vec<usize>> = Vec::new();
        let mut known: HashMap<u64, usize> = HashMap::new();
        for (i, row) in rows.iter().enumerate() {
            if row.session.is_none() && row.step.is_some() {
                return Err(wrong(name, row, "id and after need session_id: turns wait within a session"));
            }
            match row.session.map(|session| *known.entry(session).or_insert(members.len())) {
                Some(at) if at < members.len() => members[at].push(i),
                _ => members.push(vec![i]),
            }
        }
        let mut sessions = members
            .iter()
            .map(|own| session(rows, own, name))
            .collect::<Result<Vec<GraphSession>, TraceFileError>>()?;
        let first = sessions.iter().map(|session| session.begins).min().unwrap_or(Span::ZERO);
        for session in &mut sessions {
            session.begins += -first;
            for turn in &session.turns {
                rows[turn.row].at = session.begins + turn.earliest;
            }
        }
        sessions.sort_by_key(|session| session.begins);
        let mut order: Vec<usize> = (0..rows.len()).collect();
        order.sort_by_key(|i| rows[*i].at);
        let mut place = vec![0; rows.len()];
        order.iter().enumerate().for_each(|(to, from)| place[*from] = to);
        sessions
            .iter_mut()
            .flat_map(|session| &mut session.turns)
            .for_each(|turn| turn.row = place[turn.row]);
        *rows = order.into_iter().map(|from| rows[from].clone()).collect();
        Ok(Graph { sessions })
    }

    /// Counts the prompt tokens that ancestors have already sent, by block ids of `block_tokens` tokens or by the extended
    /// turn.
    pub(crate) fn count_resent(&mut self, rows: &[TraceRow], block_tokens: u32) {
        for session in &mut self.sessions {
            let before = ancestors(&session.turns);
            // For each prompt prefix, the first turns with it: those without an ancestor that has it.
            let mut having: HashMap<u64, Vec<u16>> = HashMap::new();
            for i in 0..session.turns.len() {
                let row = &rows[session.turns[i].row];
                if row.blocks.is_empty() {
                    let before = session.turns[i].extends.map(|of| session.turns[usize::from(of)].row);
                    session.turns[i].resent = before.map_or(0, |row| rows[row].prompt_tokens);
                    continue;
                }
                let (mut chain, mut shared, mut goes_on) = (0u64, 0u64, true);
                for block in &row.blocks {
                    chain = chained(chain, *block);
                    let turns = having.entry(chain).or_default();
                    let had = turns.iter().any(|of| before.holds(i, usize::from(*of)));
                    if !had {
                        turns.push(i as u16);
                    }
                    goes_on &= had;
                    shared += u64::from(goes_on);
                }
                let tokens = shared.saturating_mul(u64::from(block_tokens));
                session.turns[i].resent = tokens.min(u64::from(row.prompt_tokens)) as u32;
            }
        }
    }

    /// Returns the start of the last session.
    pub(crate) fn last_begin(&self) -> Span {
        self.sessions.last().map_or(Span::ZERO, |session| session.begins)
    }

    /// Returns the earliest due time of the last turn, as if all turns took no time.
    pub(crate) fn extent(&self, rows: &[TraceRow]) -> Span {
        rows.last().map_or(Span::ZERO, |row| row.at)
    }
}

fn wrong(name: &str, row: &TraceRow, what: impl Into<String>) -> TraceFileError {
    TraceFileError { file: name.to_owned(), line: row.line as usize, what: what.into() }
}

fn session(rows: &[TraceRow], own: &[usize], name: &str) -> Result<GraphSession, TraceFileError> {
    if own.len() > MAX_TURNS {
        let what = format!("the {}th turn of its session; at most {MAX_TURNS} are replayed", MAX_TURNS + 1);
        return Err(wrong(name, &rows[own[MAX_TURNS]], what));
    }
    let (after, named) = predecessors(rows, own, name)?;
    let order = in_order(rows, own, &after, name)?;
    let mut number = vec![0u16; own.len()];
    order.iter().enumerate().for_each(|(to, from)| number[*from] = to as u16);
    let begins = order.iter().filter(|i| after[**i].is_empty()).map(|i| rows[own[*i]].at).min();
    let begins = begins.unwrap_or(Span::ZERO);
    let mut turns: Vec<GraphTurn> = Vec::with_capacity(own.len());
    for i in order.iter().copied() {
        let row = &rows[own[i]];
        let mut after: Vec<u16> = after[i].iter().map(|of| number[*of]).collect();
        after.sort_unstable();
        let wait = row.step.as_ref().map_or(Span::ZERO, |step| step.wait);
        let last = after.iter().map(|of| turns[usize::from(*of)].earliest).max();
        let earliest = last.map_or_else(|| row.at + -begins, |last| last + wait);
        turns.push(GraphTurn { row: own[i], after, wait, earliest, extends: None, resent: 0 });
    }
    let context = |i: usize| match rows[own[i]].step.as_ref().map(|step| &step.extends) {
        Some(Context::Own) => ContextChoice::Own,
        Some(Context::Of(_)) => named[i].map_or(ContextChoice::Own, |of| ContextChoice::Of(number[of])),
        _ => ContextChoice::Longest,
    };
    let wanted: Vec<ContextChoice> = order.iter().map(|i| context(*i)).collect();
    extend(&mut turns, rows, &wanted, name)?;
    Ok(GraphSession { begins, turns })
}

/// The predecessors of each row, and the row whose prompt it extends.
type PredecessorLists = (Vec<Vec<usize>>, Vec<Option<usize>>);

fn predecessors(rows: &[TraceRow], own: &[usize], name: &str) -> Result<PredecessorLists, TraceFileError> {
    let mut names: HashMap<&str, usize> = HashMap::new();
    for (i, row) in own.iter().map(|row| &rows[*row]).enumerate() {
        let Some(id) = row.step.as_ref().and_then(|step| step.id.as_deref()) else { continue };
        if let Some(first) = names.insert(id, i) {
            let line = rows[own[first]].line;
            let what = format!("the id `{id}` is line {line}'s already; give each turn of a session its own");
            return Err(wrong(name, row, what));
        }
    }
    let known = |row: &TraceRow, field: &str, id: &str| {
        names.get(id).copied().ok_or_else(|| {
            let hint = nearest(id, names.keys().copied());
            let hint = hint.map_or(String::new(), |near| format!(", did you mean `{near}`?"));
            let what = format!(
                "{field} names `{id}`, which is no id of its session{hint}; add that turn or take it out"
            );
            wrong(name, row, what)
        })
    };
    let (mut all, mut extended) = (Vec::with_capacity(own.len()), Vec::with_capacity(own.len()));
    for row in own.iter().map(|row| &rows[*row]) {
        let mut after = Vec::new();
        for id in row.step.iter().flat_map(|step| &step.after) {
            let of = known(row, "after", id)?;
            if !after.contains(&of) {
                after.push(of);
            }
        }
        all.push(after);
        extended.push(match row.step.as_ref().map(|step| &step.extends) {
            Some(Context::Of(id)) => Some(known(row, "extends", id)?),
            _ => None,
        });
    }
    Ok((all, extended))
}

/// Returns the rows in an order in which each follows its predecessors; of several candidates the first in the file comes
/// next.
fn in_order(
    rows: &[TraceRow],
    own: &[usize],
    after: &[Vec<usize>],
    name: &str,
) -> Result<Vec<usize>, TraceFileError> {
    let mut left: Vec<usize> = after.iter().map(Vec::len).collect();
    let mut then: Vec<Vec<usize>> = vec![Vec::new(); own.len()];
    for (i, after) in after.iter().enumerate() {
        after.iter().for_each(|of| then[*of].push(i));
    }
    let mut free: BinaryHeap<Reverse<usize>> =
        (0..own.len()).filter(|i| left[*i] == 0).map(Reverse).collect();
    let mut order = Vec::with_capacity(own.len());
    while let Some(Reverse(i)) = free.pop() {
        order.push(i);
        for next in &then[i] {
            left[*next] -= 1;
            if left[*next] == 0 {
                free.push(Reverse(*next));
            }
        }
    }
    if order.len() == own.len() {
        return Ok(order);
    }
    // Every remaining row waits for another remaining row, so going back from any of them leads into a cycle.
    let back = |i: usize| after[i].iter().copied().find(|of| left[*of] > 0).unwrap_or(i);
    let mut at = (0..own.len()).find(|i| left[*i] > 0).unwrap_or(0);
    for _ in 0..own.len() {
        at = back(at);
    }
    let called = |i: usize| rows[own[i]].step.as_ref().and_then(|step| step.id.clone()).unwrap_or_default();
    let mut circle = vec![at];
    while back(circle[circle.len() - 1]) != at {
        circle.push(back(circle[circle.len() - 1]));
    }
    let first = circle.iter().copied().min().unwrap_or(at);
    let from = circle.iter().position(|i| *i == first).unwrap_or(0);
    circle.rotate_left(from);
    let names: Vec<String> = circle.iter().chain([&first]).map(|i| format!("`{}`", called(*i))).collect();
    let what = format!(
        "its turns wait for each other in a circle: {}; take one of them out of an after",
        names.join(" after ")
    );
    Err(wrong(name, &rows[own[first]], what))
}

/// The ancestors of each turn, as bit sets.
struct Ancestors {
    words: usize,
    bits: Vec<u64>,
}

impl Ancestors {
    fn holds(&self, turn: usize, of: usize) -> bool {
        of < turn && self.bits[turn * self.words + of / 64] >> (of % 64) & 1 == 1
    }
}

fn ancestors(turns: &[GraphTurn]) -> Ancestors {
    let words = turns.len().div_ceil(64);
    let mut bits: Vec<u64> = vec![0; words * turns.len()];
    for (i, turn) in turns.iter().enumerate() {
        let (earlier, own) = bits.split_at_mut(i * words);
        for of in turn.after.iter().map(|of| usize::from(*of)) {
            let theirs = &earlier[of * words..(of + 1) * words];
            own.iter_mut().zip(theirs).for_each(|(own, theirs)| *own |= theirs);
            own[of / 64] |= 1 << (of % 64);
        }
    }
    Ancestors { words, bits }
}

/// Returns the name of a prefix from the shorter prefix's name and the last block.
fn chained(before: u64, block: u64) -> u64 {
    let mut hasher = SipHasher24::new_with_keys(before, 0);
    hasher.write_u64(block);
    hasher.finish()
}

/// The requested context of a turn, by turn number.
#[derive(Copy, Clone, PartialEq, Eq)]
enum ContextChoice {
    Longest,
    Own,
    Of(u16),
}

/// Determines the turn that each prompt extends. If unspecified, a prompt shorter than all candidates is a new text, as for
/// a sub-agent or a compacted context.
fn extend(
    turns: &mut [GraphTurn],
    rows: &[TraceRow],
    wanted: &[ContextChoice],
    name: &str,
) -> Result<(), TraceFileError> {
    let before = ancestors(turns);
    let whole = |turn: &GraphTurn| {
        u64::from(rows[turn.row].prompt_tokens) + u64::from(rows[turn.row].output_tokens.max(1))
    };
    for i in 0..turns.len() {
        let row = &rows[turns[i].row];
        let fits = |of: usize| whole(&turns[of]) <= u64::from(row.prompt_tokens);
        let is_before = |of: usize| before.holds(i, of);
        turns[i].extends = match wanted[i] {
            ContextChoice::Own => None,
            ContextChoice::Of(of) if !is_before(usize::from(of)) => {
                return Err(wrong(name, row, "extends names a turn that it does not come after"));
            }
            ContextChoice::Of(of) if !fits(usize::from(of)) => {
                let what = format!(
                    "{} prompt tokens are fewer than the prompt and answer that it extends ({})",
                    row.prompt_tokens,
                    whole(&turns[usize::from(of)])
                );
                return Err(wrong(name, row, what));
            }
            ContextChoice::Of(of) => Some(of),
            ContextChoice::Longest => {
                let fit = (0..i).filter(|of| is_before(*of) && fits(*of));
                // Of equal candidates the latest, because it is the most recent context.
                fit.max_by_key(|of| (whole(&turns[*of]), *of)).map(|of| of as u16)
            }
        };
    }
    Ok(())
}
