//! Sessions whose turns wait for each other, simulated by recursion on first-come-first-served servers. Times in ns.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

pub struct Turn {
    /// Indices of the turns that this turn follows.
    pub after: Vec<usize>,
    /// Time from the end of the last preceding turn to the due time; without preceding turns, from the start of the session.
    pub wait: i64,
}

pub struct Session {
    pub begins: i64,
    pub turns: Vec<Turn>,
}

/// Returns the due time and the end of each turn of each session, if every turn takes a server for `service`.
///
/// This is Lindley's recursion with feedback. The earliest due turn gets the first free server, and its end makes other turns due.
/// A turn is never due before its predecessors end, so the earliest known due time is the earliest due time.
pub fn step(sessions: &[Session], servers: usize, service: i64) -> Vec<Vec<(i64, i64)>> {
    let mut times: Vec<Vec<Option<(i64, i64)>>> =
        sessions.iter().map(|one| vec![None; one.turns.len()]).collect();
    let mut free = vec![i64::MIN; servers];
    let mut due: BinaryHeap<Reverse<(i64, usize, usize)>> = BinaryHeap::new();
    for (s, session) in sessions.iter().enumerate() {
        let first = session.turns.iter().enumerate().filter(|(_, turn)| turn.after.is_empty());
        due.extend(first.map(|(t, turn)| Reverse((session.begins + turn.wait, s, t))));
    }
    while let Some(Reverse((at, s, t))) = due.pop() {
        let server = (0..servers).min_by_key(|server| free[*server]).unwrap_or(0);
        let end = at.max(free[server]) + service;
        free[server] = end;
        times[s][t] = Some((at, end));
        for (next, turn) in sessions[s].turns.iter().enumerate().filter(|(_, turn)| turn.after.contains(&t)) {
            let ends: Option<Vec<i64>> = turn.after.iter().map(|of| Some(times[s][*of]?.1)).collect();
            if let Some(last) = ends.and_then(|ends| ends.into_iter().max()) {
                due.push(Reverse((last + turn.wait, s, next)));
            }
        }
    }
    times.into_iter().map(|turns| turns.into_iter().flatten().collect()).collect()
}
