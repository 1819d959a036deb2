//! Tracks the turns of a session that wait for others, and releases or drops them when a turn ends.
//!
//! If a turn ends without a complete answer, its direct and indirect successors are never sent, because an agent can't act
//! without an answer. Sending them anyway was rejected: their prompts would contain an answer that no server gave. A target
//! that rejects one call in a hundred would also appear to have served the sessions that it broke.

use std::sync::Arc;

use plimsoll_model::At;

use crate::draw::Arrival;

/// The waiting turns of a session in progress or not yet begun, each with its number of open predecessors.
#[derive(Debug, Default)]
pub struct SessionQueue {
    turns: Vec<Wait>,
    /// Turns that have not ended yet.
    pub unended: usize,
}

#[derive(Debug)]
struct Wait {
    arrival: Arc<Arrival>,
    left: usize,
    /// Latest end of the predecessors that have ended.
    ended: At,
}

impl SessionQueue {
    /// Stores a turn, or returns it if it has no predecessors.
    pub fn take(&mut self, arrival: Arc<Arrival>) -> Option<Arc<Arrival>> {
        self.unended += 1;
        match arrival.after.len() {
            0 => Some(arrival),
            left => {
                self.turns.push(Wait { arrival, left, ended: At(i64::MIN) });
                None
            }
        }
    }

    /// Records a turn that ended with an answer; returns the turns that become due, with their due times.
    pub fn answered(&mut self, turn: u16, at: At) -> Vec<(Arc<Arrival>, At)> {
        self.unended -= 1;
        let mut due = Vec::new();
        self.turns.retain_mut(|wait| {
            if !wait.arrival.after.contains(&turn) {
                return true;
            }
            wait.left -= 1;
            wait.ended = wait.ended.max(at);
            if wait.left == 0 {
                due.push((wait.arrival.clone(), wait.ended + wait.arrival.think));
            }
            wait.left > 0
        });
        due
    }

    /// Records a turn that ended without an answer; returns its successors, which are never sent.
    pub fn failed(&mut self, turn: u16) -> Vec<Arc<Arrival>> {
        self.unended -= 1;
        self.follow(turn)
    }

    /// Drops a due turn and its successors, and returns all of them.
    pub(crate) fn drop_from(&mut self, arrival: Arc<Arrival>) -> Vec<Arc<Arrival>> {
        self.unended -= 1;
        let mut gone = self.follow(arrival.turn);
        gone.insert(0, arrival);
        gone
    }

    /// Removes and returns the direct and indirect successors of a turn.
    fn follow(&mut self, turn: u16) -> Vec<Arc<Arrival>> {
        let mut broken = vec![turn];
        let mut gone: Vec<Arc<Arrival>> = Vec::new();
        // A turn's number is above the numbers of its predecessors, and turns are stored in this order, so one pass finds all
        // successors.
        self.turns.retain(|wait| {
            let hit = wait.arrival.after.iter().any(|of| broken.contains(of));
            if hit {
                broken.push(wait.arrival.turn);
                gone.push(wait.arrival.clone());
            }
            !hit
        });
        self.unended -= gone.len();
        gone
    }

    pub fn all(self) -> impl Iterator<Item = Arc<Arrival>> {
        self.turns.into_iter().map(|wait| wait.arrival)
    }
}
