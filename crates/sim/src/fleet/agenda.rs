//! The timed actions of a fleet: starts and ends of faults, replicas that become ready, delayed requests.
//!
//! Actions of one instant run in order of entry, and before the engines.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use plimsoll_model::{At, Span};

#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum AgendaItem {
    /// A fault begins or repeats.
    Begin {
        fault: u32,
    },
    /// A fault, or one occurrence of it, ends.
    End {
        fault: u32,
    },
    /// The router learns that a replica is down.
    Notice {
        fault: u32,
        replica: u32,
    },
    /// A noisy neighbour becomes active or idle.
    Switch {
        fault: u32,
        replica: u32,
    },
    /// Replicas may have been idle for the configured time.
    Idle {
        fault: u32,
    },
    /// A replica is ready, if it still has this `life`.
    Ready {
        replica: u32,
        life: u32,
    },
    Scale,
    /// A request enters its engine, if it is still in flight.
    Enter {
        id: u64,
        serial: u64,
    },
    /// The KV cache of a request has arrived at its decode replica.
    Handover {
        id: u64,
        serial: u64,
    },
    /// The queue of a gateway is checked.
    Look,
    /// A request in a gateway's queue expires, if it still waits.
    Expire {
        ticket: u64,
    },
    /// A request is late if it still waits for its first token; `after` is the time since it was sent.
    Hedge {
        id: u64,
        serial: u64,
        after: Span,
    },
    /// A proxy sends its buffered tokens, if there still are any.
    Release {
        id: u64,
        serial: u64,
    },
}

#[derive(Clone, Default, Debug)]
pub(crate) struct Agenda {
    heap: BinaryHeap<Reverse<(At, u64, AgendaItem)>>,
    noted: u64,
}

impl Agenda {
    pub fn note(&mut self, at: At, due: AgendaItem) {
        self.noted += 1;
        self.heap.push(Reverse((at, self.noted, due)));
    }

    pub fn next_at(&self) -> At {
        self.heap.peek().map_or(At::MAX, |Reverse((at, ..))| *at)
    }

    /// Returns the next action, if it is due by `to`.
    pub fn pop(&mut self, to: At) -> Option<(At, AgendaItem)> {
        if self.next_at() > to {
            return None;
        }
        self.heap.pop().map(|Reverse((at, _, due))| (at, due))
    }
}
