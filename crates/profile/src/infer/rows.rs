//! The client's exact timestamps of each request, which bound every inferred time.
//!
//! Only complete streamed responses are used, because the end of the prefill is unknown without a first token. The
//! number of other requests is reported.

use plimsoll_model::{Attempt, EventKind};

use plimsoll_measure::columns::Fate;

/// One request as the client saw it. Times are ns on the run's clock.
#[derive(Clone, Debug)]
pub struct ClientRow<'a> {
    pub attempt: &'a Attempt,
    pub due: i64,
    /// Time of the connection; `None` for a reused one.
    pub connected: Option<i64>,
    pub sent: i64,
    pub first: i64,
    pub last: i64,
    pub end: i64,
    /// Computed prompt tokens: without known cached tokens.
    pub uncached: f64,
}

impl<'a> ClientRow<'a> {
    /// Returns the row of a request with a complete streamed response.
    pub fn of(attempt: &'a Attempt) -> Option<ClientRow<'a>> {
        if !Fate::of(attempt).ended_well() {
            return None;
        }
        let (sent, first, end) = (attempt.sent?, attempt.first_token?, attempt.end?);
        // An unstreamed body has its "first token" at its end, so the time before it can't be split.
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

    /// Returns the time from sent to the first token in ns, which the inference splits.
    pub fn wait(&self) -> i64 {
        self.first - self.sent
    }
}

/// Returns the rows that can be split in order of due times, and the number of other requests.
pub fn rows<'a>(attempts: &[&'a Attempt]) -> (Vec<ClientRow<'a>>, usize) {
    let mut rows: Vec<ClientRow<'a>> = attempts.iter().filter_map(|attempt| ClientRow::of(attempt)).collect();
    rows.sort_by_key(|row| (row.due, row.attempt.request));
    let left_out = attempts.len() - rows.len();
    (rows, left_out)
}
