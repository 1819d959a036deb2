//! Requests as a log of production tells them: when each came, how long it was, whose turn it was. Never what it said.
//!
//! One type for access logs, gateways' logs, engines' logs, spans and runs, so that what makes a workload of them does not know
//! where they came from. What a log does not say is `None`, which is never zero.

use std::collections::{HashMap, HashSet};

use crate::How;

/// A request's place in a session whose turns wait for each other.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LoggedTurn {
    /// Its number; no other request of the session has it.
    pub id: u64,
    /// The turns that had ended before it began and led to it, by their numbers.
    pub after: Vec<u64>,
    /// The agent whose call it is, where the log says so: each call of an agent goes on from the one before it.
    pub agent: Option<u64>,
    /// How long it took, ns.
    pub took_ns: i64,
}

#[derive(Clone, PartialEq, Debug)]
pub struct LoggedRequest {
    /// Its line in the file, from 1; 0 = it has none.
    pub line: u64,
    /// When it came, ns: of the Unix epoch, or from any start where the log has no wall clock.
    pub at_ns: i64,
    /// Prompt tokens, cached ones included.
    pub prompt: Option<u32>,
    /// Prompt tokens that the server took from a cache.
    pub cached: Option<u32>,
    pub output: Option<u32>,
    /// The conversation it belongs to.
    pub session: Option<u64>,
    /// Which turns of it this one comes after, where the log tells.
    pub turn: Option<LoggedTurn>,
    /// The model that was asked for.
    pub model: Option<String>,
    pub how: How,
    /// Times that it was sent on: above 1 where a gateway tried again.
    pub tries: u32,
    /// Names of its prompt's blocks: equal name = equal block after an equal beginning.
    pub blocks: Vec<u64>,
}

impl LoggedRequest {
    /// A request of which nothing is known but when it came.
    pub fn new(line: u64, at_ns: i64) -> LoggedRequest {
        LoggedRequest {
            line,
            at_ns,
            prompt: None,
            cached: None,
            output: None,
            session: None,
            turn: None,
            model: None,
            how: How::Finished,
            tries: 1,
            blocks: Vec::new(),
        }
    }
}

/// What a log holds.
#[derive(Clone, PartialEq, Debug)]
pub struct Logged {
    /// Whose log it is, as people call it.
    pub source: &'static str,
    pub stamp: &'static str,
    /// The grid that its stamps were rounded to, ns.
    pub tick_ns: i64,
    /// Tokens of a block of [`LoggedRequest::blocks`]; 0 = nobody named blocks.
    pub block_tokens: u32,
    /// Its requests, in the order of the file.
    pub requests: Vec<LoggedRequest>,
    /// What was not taken, and why, as sentences' parts: "3 lines: an MCP call".
    pub left_out: Vec<String>,
    /// What the log can't tell, in words.
    pub blind: Vec<&'static str>,
    /// Share of the requests that the log kept, where it says so: 1 = all.
    pub kept_share: f64,
    /// Does each session's time count from its own beginning, so that nobody knows when it began?
    pub is_relative: bool,
    /// Its source only counts: instants were drawn within ticks and lengths between edges, and so far may the laws of prompts and outputs be from the
    /// true ones (Kolmogorov-Smirnov).
    pub counts_only: Option<[f64; 2]>,
}

impl Logged {
    /// Leaves out the others. What came after one of them comes after those that it had come after.
    pub fn retain(&mut self, keep: impl Fn(&LoggedRequest) -> bool) {
        let mut gone: HashMap<(Option<u64>, u64), Vec<u64>> = HashMap::new();
        self.requests.retain(|one| {
            let kept = keep(one);
            if let (false, Some(turn)) = (kept, &one.turn) {
                gone.insert((one.session, turn.id), turn.after.clone());
            }
            kept
        });
        for one in &mut self.requests {
            let Some(turn) = one.turn.as_mut().filter(|_| !gone.is_empty()) else { continue };
            let (mut open, mut seen) = (std::mem::take(&mut turn.after), HashSet::new());
            while let Some(id) = open.pop() {
                match gone.get(&(one.session, id)) {
                    _ if !seen.insert(id) => {}
                    Some(before) => open.extend(before),
                    None => turn.after.push(id),
                }
            }
            turn.after.sort_unstable();
        }
    }
}
