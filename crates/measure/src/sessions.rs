//! Session metrics: the results of the turns of a session. This module computes all figures of sessions.
//!
//! `session_e2e` is the time from the first due time of a session to the end of its last turn. The value is at the session's
//! first request only, so that windows, slices and budgets treat it like every other latency.
//!
//! A failed turn makes it +∞, like a failed request. A planned cancellation makes it absent, because the reader's patience
//! does not describe the server. A session that the end of the level (or of the load) cut has an unknown end. Leaving out only
//! cut sessions would keep the short ones and lose the long ones. Sessions therefore count up to the first that was cut.
//!
//! A session's tokens are the sum over its turns: as the server counts them, otherwise as requested. The client that made the
//! prompt knows the part that repeats earlier turns ([`plimsoll_model::Attempt::resent`]). In the server's tokens this part is
//! counted by its share of the prompt. Resent tokens that the server did not read from its cache were computed again.

use std::collections::{HashMap, HashSet};

use plimsoll_model::How;

use crate::columns::{ABSENT, Columns, Fate, INFINITE, UNKNOWN};
use crate::findings::{SessionCounts, SessionTokens};

/// The position of a request in its session.
#[derive(Copy, Clone, PartialEq, Eq, Default, Debug)]
pub struct SessionTurn {
    pub session: u64,
    pub turn: u16,
    /// Number of turns; 0 if the request has no session or the number is unknown.
    pub turns: u16,
    /// Requested prompt tokens that an earlier turn already sent; [`UNKNOWN`] if not recorded.
    pub resent: u32,
}

/// The known part of one session of a level.
#[derive(Debug)]
struct Session {
    /// Row of its first request: rows are in order of due times.
    first: usize,
    turns: u16,
    rows: u16,
    end: i64,
    failed: bool,
    cancelled: bool,
    never_sent: bool,
    tokens: TokenSums,
}

/// Token sums over the turns of a session.
#[derive(Copy, Clone, Default, Debug)]
struct TokenSums {
    prompt: f64,
    output: f64,
    resent: f64,
    /// Prompt tokens from a cache.
    cached: f64,
    /// Resent prompt tokens that were not from a cache.
    again: f64,
    /// Turns with an unknown number of resent tokens, and of cached tokens.
    resent_unknown: u32,
    cached_unknown: u32,
}

impl TokenSums {
    fn add(&mut self, columns: &Columns, row: usize) {
        let said = |said: u32, asked: u32| f64::from(if said == UNKNOWN { asked } else { said });
        let (asked, resent) = (columns.asked_prompt[row], columns.sessions[row].resent);
        let prompt = said(columns.prompt[row], asked);
        self.prompt += prompt;
        self.output += said(columns.output[row], columns.asked_output[row]);
        let resent =
            (resent != UNKNOWN).then(|| prompt * (f64::from(resent) / f64::from(asked.max(1))).min(1.0));
        let cached = Some(columns.cached(row)).filter(|cached| *cached != UNKNOWN).map(f64::from);
        self.resent += resent.unwrap_or(0.0);
        self.cached += cached.unwrap_or(0.0);
        if let (Some(resent), Some(cached)) = (resent, cached) {
            self.again += (resent - cached).max(0.0);
        }
        self.resent_unknown += u32::from(resent.is_none());
        self.cached_unknown += u32::from(cached.is_none());
    }
}

impl Session {
    /// Returns whether the session did not reach its end, without failure or cancellation.
    fn is_cut(&self) -> bool {
        !self.failed && !self.cancelled && (self.never_sent || self.rows < self.turns)
    }
}

/// Returns the sessions in the order of their start. The rows are in order of due times.
fn gather(columns: &Columns) -> Vec<Session> {
    let mut sessions: Vec<Session> = Vec::new();
    let mut known: HashMap<u64, usize> = HashMap::new();
    for (row, of) in columns.sessions.iter().enumerate().filter(|(_, of)| of.turns > 0) {
        let at = *known.entry(of.session).or_insert(sessions.len());
        if at == sessions.len() {
            let (failed, cancelled, never_sent) = (false, false, false);
            sessions.push(Session {
                first: row,
                turns: of.turns,
                rows: 0,
                end: 0,
                failed,
                cancelled,
                never_sent,
                tokens: TokenSums::default(),
            });
        }
        let session = &mut sessions[at];
        session.rows = session.rows.saturating_add(1);
        session.end = session.end.max(columns.end[row]);
        session.tokens.add(columns, row);
        match (columns.how[row], columns.fate[row]) {
            (How::NeverSent, _) => session.never_sent = true,
            (_, Fate::Cancelled) => session.cancelled = true,
            _ => session.failed |= columns.e2e[row] == INFINITE,
        }
    }
    sessions
}

/// Returns `session_e2e` of each request in ns: the session's value at its first request, absent at all others.
///
/// The result is empty if there are no sessions.
pub(crate) fn e2e(columns: &Columns) -> Vec<i64> {
    let sessions = gather(columns);
    if sessions.is_empty() {
        return Vec::new();
    }
    let mut e2e = vec![ABSENT; columns.len()];
    for session in sessions.iter().take_while(|session| !session.is_cut()) {
        e2e[session.first] = match session {
            Session { failed: true, .. } => INFINITE,
            Session { cancelled: true, .. } => ABSENT,
            Session { first, end, .. } => end - columns.due[*first],
        };
    }
    e2e
}

/// Returns the outcomes of the sessions that begin among these requests; `None` if no session begins.
pub(crate) fn counts(columns: &Columns, (from, to): (usize, usize)) -> Option<SessionCounts> {
    let sessions = gather(columns);
    let counted = sessions.iter().take_while(|session| !session.is_cut()).count();
    let mut counts = SessionCounts::default();
    for (i, session) in sessions.iter().enumerate().filter(|(_, one)| (from..to).contains(&one.first)) {
        counts.begun += 1;
        counts.turns += u64::from(session.turns);
        counts.failed += u64::from(i < counted && session.failed);
        counts.cancelled += u64::from(i < counted && !session.failed && session.cancelled);
        counts.not_counted += u64::from(i >= counted);
    }
    let whole = sessions.iter().take(counted).filter(|one| (from..to).contains(&one.first));
    counts.tokens = tokens(whole.filter(|one| !one.failed && !one.cancelled));
    let due = from..to;
    counts.broken_off = unsent_after(columns, &sessions).filter(|row| due.contains(row)).count() as u64;
    (counts.begun + counts.broken_off > 0).then_some(counts)
}

/// Returns the requests that were never sent because a turn that they depend on got no response.
pub(crate) fn broken_off(columns: &Columns) -> Vec<usize> {
    unsent_after(columns, &gather(columns)).collect()
}

fn unsent_after<'a>(columns: &'a Columns, sessions: &[Session]) -> impl Iterator<Item = usize> + use<'a> {
    let broken: HashSet<u64> = sessions
        .iter()
        .filter(|session| session.failed || session.cancelled)
        .map(|session| columns.sessions[session.first].session)
        .collect();
    let of = |row: usize| columns.sessions.get(row).filter(|of| of.turns > 0);
    let unsent = (0..columns.len()).filter(|row| columns.how[*row] == How::NeverSent);
    unsent.filter(move |row| of(*row).is_some_and(|of| broken.contains(&of.session)))
}

/// Returns the ends of the successful sessions in ns, in no order.
pub(crate) fn ends(columns: &Columns) -> Vec<i64> {
    let sessions = gather(columns);
    let is_whole = |one: &&Session| !one.failed && !one.cancelled && !one.is_cut();
    sessions.iter().filter(is_whole).map(|one| one.end).collect()
}

/// Returns the mean tokens of these sessions; `None` if there are none.
fn tokens<'a>(sessions: impl Iterator<Item = &'a Session>) -> Option<SessionTokens> {
    let (mut n, mut sum) = (0u64, TokenSums::default());
    for one in sessions.map(|session| &session.tokens) {
        n += 1;
        sum.prompt += one.prompt;
        sum.output += one.output;
        sum.resent += one.resent;
        sum.cached += one.cached;
        sum.again += one.again;
        sum.resent_unknown += one.resent_unknown;
        sum.cached_unknown += one.cached_unknown;
    }
    let each = |sum: f64| sum / n as f64;
    let known = |sum: f64, unknown: u32| (unknown == 0).then_some(each(sum));
    (n > 0).then(|| SessionTokens {
        sessions: n,
        prompt: each(sum.prompt),
        output: each(sum.output),
        resent: known(sum.resent, sum.resent_unknown),
        cached: known(sum.cached, sum.cached_unknown),
        computed_again: known(sum.again, sum.resent_unknown + sum.cached_unknown),
    })
}
