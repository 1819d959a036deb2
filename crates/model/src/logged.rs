//! Represents requests of a production log: times, lengths and session turns, without content.
//!
//! One type serves access logs, gateway logs, engine logs, spans and runs, so that the workload builder is independent of
//! their source. A value that a log lacks is `None`, which is never zero.

use std::collections::{HashMap, HashSet};

use crate::How;

/// The position of a request in a session with dependent turns.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LoggedTurn {
    /// Turn number, unique within the session.
    pub id: u64,
    /// Numbers of the turns that ended before this one and led to it.
    pub after: Vec<u64>,
    /// Agent that made the call; `None` if unknown. Each call of an agent continues its previous one.
    pub agent: Option<u64>,
    /// Duration of the turn in ns.
    pub took_ns: i64,
}

#[derive(Clone, PartialEq, Debug)]
pub struct LoggedRequest {
    /// Line number in the file, from 1; 0 = no line.
    pub line: u64,
    /// Arrival in ns of the Unix epoch, or from an arbitrary start for a log without wall clock.
    pub at_ns: i64,
    /// Prompt tokens, including cached ones.
    pub prompt: Option<u32>,
    /// Prompt tokens that the server read from a cache.
    pub cached: Option<u32>,
    pub output: Option<u32>,
    pub session: Option<u64>,
    /// Position in the session; `None` if the log lacks it.
    pub turn: Option<LoggedTurn>,
    pub model: Option<String>,
    pub how: How,
    /// Number of attempts; above 1 if a gateway retried.
    pub tries: u32,
    /// Names of the prompt's blocks: equal names are equal blocks after an equal prefix.
    pub blocks: Vec<u64>,
}

impl LoggedRequest {
    /// Returns a request with only a line and an arrival.
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

#[derive(Clone, PartialEq, Debug)]
pub struct RequestLog {
    /// Name of the log's source for display.
    pub source: &'static str,
    pub stamp: &'static str,
    /// Rounding interval of the timestamps in ns.
    pub tick_ns: i64,
    /// Tokens per block of [`LoggedRequest::blocks`]; 0 = no block names.
    pub block_tokens: u32,
    /// Requests in the order of the file.
    pub requests: Vec<LoggedRequest>,
    /// Skipped parts with their reason, as phrases: "3 lines: an MCP call".
    pub left_out: Vec<String>,
    /// Facts that the log lacks, as text.
    pub blind: Vec<&'static str>,
    /// Share of the requests that the log contains; 1 = all.
    pub kept_share: f64,
    /// Set if each session's times are relative to its start, so that its start is unknown.
    pub is_relative: bool,
    /// Bounds on the error of the distributions of prompt and output lengths (Kolmogorov-Smirnov distance).
    ///
    /// Present if the source only has counts, so that times were drawn within ticks and lengths between bucket edges.
    pub counts_only: Option<[f64; 2]>,
}

impl RequestLog {
    /// Keeps the matching requests. Successors of a removed request follow its predecessors instead.
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
