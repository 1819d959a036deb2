//! Requests as a log of production tells them: when each came, how long it was, whose turn it was. Never what it said.
//!
//! One type for access logs, gateways' logs, engines' logs, spans and runs, so that what makes a workload of them does not know
//! where they came from. What a log does not say is `None`, which is never zero.

use crate::How;

/// One request.
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
    /// Output tokens.
    pub output: Option<u32>,
    /// The conversation it belongs to.
    pub session: Option<u64>,
    /// The model that was asked for.
    pub model: Option<String>,
    /// How it ended.
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
    /// What its stamps are of.
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
}
