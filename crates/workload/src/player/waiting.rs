//! The turns of a session that wait for others, and what becomes due or is dropped when one ends.
//!
//! Where a turn ends without a whole answer, all that come after it, directly or not, are never sent: an agent that got no answer has nothing
//! to call its tools with. To send them all the same lost: the prompts of the rest would hold an answer that nobody gave, and a target that
//! refuses one call in a hundred would look as if it had served the sessions that it broke off.

use std::sync::Arc;

use plimsoll_model::At;

use crate::draw::Arrival;

/// A session that is under way or has not begun: which of its turns wait, and for how many others.
#[derive(Debug, Default)]
pub struct Waiting {
    turns: Vec<Wait>,
    /// Turns that have not ended yet.
    pub unended: usize,
}

#[derive(Debug)]
struct Wait {
    arrival: Arc<Arrival>,
    left: usize,
    /// The latest end of those that have ended.
    ended: At,
}

impl Waiting {
    /// Takes a turn in; gives it back where it waits for nothing.
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

    /// A turn has ended with an answer: what is due now that it has, and when.
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

    /// A turn has ended without one: what will therefore never be sent.
    pub fn failed(&mut self, turn: u16) -> Vec<Arc<Arrival>> {
        self.unended -= 1;
        self.follow(turn)
    }

    /// A turn that was due will not be sent, nor what comes after it.
    pub(crate) fn drop_from(&mut self, arrival: Arc<Arrival>) -> Vec<Arc<Arrival>> {
        self.unended -= 1;
        let mut gone = self.follow(arrival.turn);
        gone.insert(0, arrival);
        gone
    }

    /// Takes out all that come after a turn, directly or not.
    fn follow(&mut self, turn: u16) -> Vec<Arc<Arrival>> {
        let mut broken = vec![turn];
        let mut gone: Vec<Arc<Arrival>> = Vec::new();
        // A turn's number is above those of all that it comes after, and they are kept in its order: one pass finds all.
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

    /// All that wait.
    pub fn all(self) -> impl Iterator<Item = Arc<Arrival>> {
        self.turns.into_iter().map(|wait| wait.arrival)
    }
}
