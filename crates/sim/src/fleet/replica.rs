//! One replica of a fleet: its engine, its phase, its pending emissions, and its load as the router sees it.

use std::collections::VecDeque;

use plimsoll_model::{At, Span};
use plimsoll_policy::{ReplicaLoad, ReplicaView};

use crate::engine::Engine;
use crate::fleet::adapters::AdapterCache;
use crate::traffic::{Detail, Emission};

#[derive(Clone, Debug)]
pub(crate) struct Replica {
    pub engine: Engine,
    pub phase: Phase,
    /// Generation of the replica, because numbers are reused.
    pub life: u32,
    pub down: Option<Down>,
    /// Time of the engine's next relevant event; [`At::MAX`] for none.
    pub next: At,
    pub pending: Vec<Emission>,
    /// Number of requests in the engine.
    pub entered: u32,
    /// Requests that wait at the connection limit.
    pub backlog: VecDeque<u64>,
    /// Adapters; `None` without adapter slots.
    pub shelf: Option<AdapterCache>,
    /// Load of placed requests that have not ended.
    pub load: ReplicaLoad,
    /// Delayed load, and the changes since.
    seen: ReplicaLoad,
    changes: VecDeque<(At, ReplicaLoad, Sign)>,
}

#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum Phase {
    /// Requested and not ready.
    Coming,
    Ready,
    /// Finishes its requests and accepts no new ones.
    Draining,
    /// Removed; its number is free.
    Gone,
}

/// The state of a replica that does not respond.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) struct Down {
    pub fault: u32,
    /// Set if connections are reset; otherwise the response is a 500.
    pub reset: bool,
    pub known: bool,
}

#[derive(Copy, Clone, PartialEq, Eq, Debug)]
enum Sign {
    More,
    Less,
}

impl Replica {
    pub fn new(engine: Engine, phase: Phase, life: u32) -> Replica {
        Replica {
            engine,
            phase,
            life,
            down: None,
            next: At::MAX,
            pending: Vec::new(),
            entered: 0,
            backlog: VecDeque::new(),
            shelf: None,
            load: ReplicaLoad::default(),
            seen: ReplicaLoad::default(),
            changes: VecDeque::new(),
        }
    }

    /// Returns whether the router sends requests to the replica.
    pub(crate) fn is_routable(&self) -> bool {
        self.phase == Phase::Ready && self.down.is_none_or(|down| !down.known)
    }

    /// Returns whether the replica is requested.
    pub fn is_wanted(&self) -> bool {
        matches!(self.phase, Phase::Coming | Phase::Ready)
    }

    /// Updates the time of the engine's next event.
    pub fn look(&mut self, detail: Detail) {
        let next = match detail {
            Detail::Tokens => self.engine.next_event(),
            Detail::Ends => self.engine.next_turn(),
        };
        self.next = next.unwrap_or(At::MAX);
    }

    /// Adds a request to the load.
    pub fn more(&mut self, at: At, load: ReplicaLoad, delay: Span) {
        self.load.add(load);
        self.note(at, load, Sign::More, delay);
    }

    /// Removes a request from the load.
    pub fn less(&mut self, at: At, load: ReplicaLoad, delay: Span) {
        self.load.take(load);
        self.note(at, load, Sign::Less, delay);
    }

    /// Returns the load as seen by a router whose information is `delay` old.
    pub fn view(&mut self, replica: u32, now: At, delay: Span) -> ReplicaView {
        if delay == Span::ZERO {
            return ReplicaView { replica, load: self.load, penalty: Span::ZERO };
        }
        let as_of = now - delay;
        while let Some((_, load, sign)) = self.changes.pop_front_if(|(at, _, _)| *at <= as_of) {
            match sign {
                Sign::More => self.seen.add(load),
                Sign::Less => self.seen.take(load),
            }
        }
        ReplicaView { replica, load: self.seen, penalty: Span::ZERO }
    }

    fn note(&mut self, at: At, load: ReplicaLoad, sign: Sign, delay: Span) {
        if delay > Span::ZERO {
            self.changes.push_back((at, load, sign));
        }
    }
}
