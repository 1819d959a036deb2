//! What the client knows of each request by its own stamps: exact, and the frame into which everything inferred must fit.
//!
//! Only whole streamed answers take part: a request without a first token has no moment at which its prompt was done. How
//! many were left out is counted, never hidden.

use plimsoll_model::{Attempt, EventKind};

use plimsoll_measure::columns::Fate;

/// One request as the client saw it. Times are ns on the run's axis.
#[derive(Clone, Debug)]
pub struct ClientRow<'a> {
    pub attempt: &'a Attempt,
    /// When it was to be sent.
    pub due: i64,
    /// When its connection stood, where it was made for this request.
    pub connected: Option<i64>,
    pub sent: i64,
    pub first: i64,
    pub last: i64,
    pub end: i64,
    /// Prompt tokens that had to be computed, as far as anybody says.
    pub uncached: f64,
}

impl<'a> ClientRow<'a> {
    /// The row of a request that was answered whole and in a stream.
    pub fn of(attempt: &'a Attempt) -> Option<ClientRow<'a>> {
        if !Fate::of(attempt).ended_well() {
            return None;
        }
        let (sent, first, end) = (attempt.sent?, attempt.first_token?, attempt.end?);
        // A body that came whole has its "first token" at its end: nothing can be told apart before it.
        if attempt.events.iter().any(|event| event.kind == EventKind::Body) {
            return None;
        }
        let tokens = attempt.answer.tokens;
        let prompt = tokens.prompt.unwrap_or(attempt.asked_prompt).max(1);
        let uncached = prompt.saturating_sub(tokens.cached.unwrap_or(0)).max(1);
        let due = attempt.due.min(sent).0;
        let connected = attempt.connected.filter(|at| !attempt.reused && at.0 > due && *at <= sent);
        Some(ClientRow {
            attempt,
            due,
            connected: connected.map(|at| at.0),
            sent: sent.0,
            first: first.0.max(sent.0),
            last: attempt.last_token.unwrap_or(first).0.max(first.0),
            end: end.0.max(first.0),
            uncached: f64::from(uncached),
        })
    }

    /// From its bytes leaving to its first token, ns: what has to be split.
    pub fn wait(&self) -> i64 {
        self.first - self.sent
    }
}

/// The rows of the requests that can be split, in the order of their due times, and how many could not.
pub fn rows<'a>(attempts: &[&'a Attempt]) -> (Vec<ClientRow<'a>>, usize) {
    let mut rows: Vec<ClientRow<'a>> = attempts.iter().filter_map(|attempt| ClientRow::of(attempt)).collect();
    rows.sort_by_key(|row| (row.due, row.attempt.request));
    let left_out = attempts.len() - rows.len();
    (rows, left_out)
}
