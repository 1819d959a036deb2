//! What a fleet has to do at given times: faults that begin and end, replicas that become ready, requests that are let in.
//!
//! At one instant what was noted first is done first, and all of it before the engines move.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use plimsoll_model::{At, Span};

/// Something to be done.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum AgendaItem {
    /// A fault begins, or comes again.
    Begin {
        fault: u32,
    },
    /// A fault ends, or this time of it.
    End {
        fault: u32,
    },
    /// The router learns that a replica is down.
    Notice {
        fault: u32,
        replica: u32,
    },
    /// A noisy neighbour comes or goes.
    Switch {
        fault: u32,
        replica: u32,
    },
    /// Replicas may have been idle for long enough.
    Idle {
        fault: u32,
    },
    /// A replica is ready, if it is still the same.
    Ready {
        replica: u32,
        life: u32,
    },
    Scale,
    /// A request is let in, if it is still there.
    Enter {
        id: u64,
        serial: u64,
    },
    /// A request's KV cache has come to where its answer is written.
    Handover {
        id: u64,
        serial: u64,
    },
    /// What waits in a gateway is looked at again.
    Look,
    /// A request has waited in a gateway for as long as it may, if it still does.
    Expire {
        ticket: u64,
    },
    /// A request is late, if it still waits for its first token; `after` it was sent.
    Hedge {
        id: u64,
        serial: u64,
        after: Span,
    },
    /// A proxy lets held tokens go, if they are still held.
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

    /// The next thing, if it is due by `to`.
    pub fn pop(&mut self, to: At) -> Option<(At, AgendaItem)> {
        if self.next_at() > to {
            return None;
        }
        self.heap.pop().map(|Reverse((at, _, due))| (at, due))
    }
}
