//! One replica of a fleet: its engine, its life, what it did that nobody has seen yet, and its load as its router sees it.

use std::collections::VecDeque;

use plimsoll_model::{At, Span};
use plimsoll_policy::{Load, ReplicaView};

use crate::engine::Engine;
use crate::fleet::adapters::Shelf;
use crate::traffic::{Detail, Emission};

#[derive(Clone, Debug)]
pub(crate) struct Replica {
    pub engine: Engine,
    pub phase: Phase,
    /// Which replica of this number it is: numbers are given out again.
    pub life: u32,
    pub down: Option<Down>,
    /// When its engine does something that somebody will want to see; [`At::MAX`] = never.
    pub next: At,
    /// What it did, until it is handed out.
    pub pending: Vec<Emission>,
    /// Requests in the engine.
    pub entered: u32,
    /// Requests that a connection limit holds back.
    pub backlog: VecDeque<u64>,
    /// Its adapters, where it has slots for some.
    pub shelf: Option<Shelf>,
    /// Requests placed and not ended.
    pub load: Load,
    /// The load as of a while ago, and what has changed since.
    seen: Load,
    changes: VecDeque<(At, Load, Sign)>,
}

/// Where a replica is in its life.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum Phase {
    /// Asked for and not ready.
    Coming,
    Ready,
    /// Ends what it has.
    Draining,
    /// Costs nothing; its number is free.
    Gone,
}

/// A replica that does not answer.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) struct Down {
    pub fault: u32,
    /// Are connections reset? Otherwise there is a 500.
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
            load: Load::default(),
            seen: Load::default(),
            changes: VecDeque::new(),
        }
    }

    /// Does the router send requests here?
    pub(crate) fn is_routable(&self) -> bool {
        self.phase == Phase::Ready && self.down.is_none_or(|down| !down.known)
    }

    /// Is it asked for?
    pub fn is_wanted(&self) -> bool {
        matches!(self.phase, Phase::Coming | Phase::Ready)
    }

    /// Looks again at when the engine does something.
    pub fn look(&mut self, detail: Detail) {
        let next = match detail {
            Detail::Tokens => self.engine.next_event(),
            Detail::Ends => self.engine.next_turn(),
        };
        self.next = next.unwrap_or(At::MAX);
    }

    /// Books a request that came.
    pub fn more(&mut self, at: At, load: Load, delay: Span) {
        self.load.add(load);
        self.note(at, load, Sign::More, delay);
    }

    /// Books a request that went.
    pub fn less(&mut self, at: At, load: Load, delay: Span) {
        self.load.take(load);
        self.note(at, load, Sign::Less, delay);
    }

    /// The load as a router sees it whose information is `delay` old.
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

    fn note(&mut self, at: At, load: Load, sign: Sign, delay: Span) {
        if delay > Span::ZERO {
            self.changes.push_back((at, load, sign));
        }
    }
}
