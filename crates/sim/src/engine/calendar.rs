//! Future events with drawn times, in order of time and then of entry.
//!
//! The calendar is a binary heap with lazy deletion: cancelled tickets are remembered and skipped. A heap with
//! deletion (indexed, pairing) was rejected, because cancellations are rare and every event would pay for them.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashSet};

use plimsoll_model::At;

/// The identifier of an entry in a [`Calendar`].
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
pub(crate) struct Ticket(u64);

/// Future events; each is the number of a request.
#[derive(Clone, Default, Debug)]
pub(crate) struct Calendar {
    heap: BinaryHeap<Reverse<(At, Ticket, u32)>>,
    cancelled: HashSet<Ticket>,
    issued: u64,
}

impl Calendar {
    pub fn push(&mut self, at: At, slot: u32) -> Ticket {
        let ticket = Ticket(self.issued);
        self.issued += 1;
        self.heap.push(Reverse((at, ticket, slot)));
        ticket
    }

    /// Cancels an entry that has not been popped.
    pub fn cancel(&mut self, ticket: Ticket) {
        self.cancelled.insert(ticket);
        self.settle();
    }

    pub fn next_at(&self) -> Option<At> {
        self.heap.peek().map(|Reverse((at, _, _))| *at)
    }

    pub fn pop(&mut self) -> Option<(At, u32)> {
        let Reverse((at, _, slot)) = self.heap.pop()?;
        self.settle();
        Some((at, slot))
    }

    /// Removes cancelled entries from the top.
    fn settle(&mut self) {
        while !self.cancelled.is_empty() {
            let Some(Reverse((_, ticket, _))) = self.heap.peek() else { break };
            if !self.cancelled.remove(ticket) {
                break;
            }
            self.heap.pop();
        }
    }
}
