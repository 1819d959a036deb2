//! Sessions: what their turns come to. Everything that is a session's own figure is computed here.
//!
//! `session_e2e` counts from the first due time of a session to the end of its last turn. It stands at the session's first request and nowhere
//! else, so that windows, slices and budgets treat it as they do every other latency.
//!
//! One failed turn makes it +∞, as a failed request is; a planned cancellation makes it absent, for how long a reader stays says nothing of the
//! server. A session that the end of the level (or of the load) cut short has no end that is known: to leave it out would keep the short ones and lose the long ones. So sessions
//! count up to the beginning of the first that was cut short, and none after it.

use std::collections::{HashMap, HashSet};

use plimsoll_model::How;

use crate::columns::{ABSENT, Columns, Fate, INFINITE};
use crate::findings::SessionCounts;

/// A request's place in its session.
#[derive(Copy, Clone, PartialEq, Eq, Default, Debug)]
pub struct SessionTurn {
    /// Whose.
    pub session: u64,
    /// Which.
    pub turn: u16,
    /// Of how many; 0 = it is of none, or nobody says of how many.
    pub turns: u16,
}

/// One session of a level, as far as it is known.
#[derive(Debug)]
struct Session {
    /// The row of its first request: rows are in order of due times.
    first: usize,
    turns: u16,
    rows: u16,
    end: i64,
    failed: bool,
    cancelled: bool,
    never_sent: bool,
}

impl Session {
    /// Was it not played to its end, though nothing failed and nobody left?
    fn is_cut(&self) -> bool {
        !self.failed && !self.cancelled && (self.never_sent || self.rows < self.turns)
    }
}

/// Takes the rows in order of due times; gives the sessions in the order in which they begin.
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
            });
        }
        let session = &mut sessions[at];
        session.rows = session.rows.saturating_add(1);
        session.end = session.end.max(columns.end[row]);
        match (columns.how[row], columns.fate[row]) {
            (How::NeverSent, _) => session.never_sent = true,
            (_, Fate::Cancelled) => session.cancelled = true,
            _ => session.failed |= columns.e2e[row] == INFINITE,
        }
    }
    sessions
}

/// `session_e2e` of each request, ns: that of its session at the first one, absent at all others. Nothing at all where there are no sessions.
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

/// How the sessions that begin among these requests ended; `None` where none does.
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
    let broken: HashSet<u64> = sessions
        .iter()
        .filter(|session| session.failed || session.cancelled)
        .map(|session| columns.sessions[session.first].session)
        .collect();
    let unsent = (from..to).filter(|row| columns.how[*row] == How::NeverSent);
    let of = |row: usize| columns.sessions.get(row).filter(|of| of.turns > 0);
    counts.broken_off =
        unsent.filter(|row| of(*row).is_some_and(|of| broken.contains(&of.session))).count() as u64;
    (counts.begun + counts.broken_off > 0).then_some(counts)
}
