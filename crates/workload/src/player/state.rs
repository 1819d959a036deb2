//! Defines the state of a player: the source of requests, live requests, and timers.

use std::collections::VecDeque;
use std::hash::Hasher;
use std::sync::Arc;

use plimsoll_model::At;

use super::Deadline;
use crate::draw::Arrival;
use crate::schedule::{ArrivalFeed, Sequence};

/// A hasher for request numbers. The schedule assigns them, so no peer can force collisions.
#[derive(Debug, Default)]
pub struct NumberHasher(u64);

impl Hasher for NumberHasher {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64(u64::from(*byte)));
    }

    fn write_u64(&mut self, n: u64) {
        self.0 = (self.0.rotate_left(5) ^ n).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    fn finish(&self) -> u64 {
        self.0 ^ (self.0 >> 32)
    }
}

#[derive(Debug)]
pub(crate) enum RequestSource {
    /// Open loop over stored arrivals.
    Open(VecDeque<Arc<Arrival>>),
    /// Open loop over arrivals that are drawn when due.
    Fed(Box<ArrivalFeed>),
    /// Closed loop: the end of one request makes room for the next.
    Closed {
        sequence: Box<Sequence>,
        /// Times at which the free slots became or become free, ascending.
        slots: VecDeque<At>,
    },
}

/// A request that has not ended.
#[derive(Debug)]
pub(crate) struct LiveRequest {
    pub arrival: Arc<Arrival>,
    pub due: At,
    pub attempt: u16,
    pub phase: Phase,
}

/// The phase of a live request.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Phase {
    /// In flight. `first` is set after the first token, `told` after the caller was instructed to abandon it.
    Flying { first: bool, told: bool },
    /// Waiting for the next attempt.
    Retry,
    /// Waiting for the due time of a session's next turn.
    Think,
}

/// A timer, ordered by its time.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct PlayerTimer {
    pub at: At,
    pub request: u64,
    pub attempt: u16,
    pub what: TimerKind,
}

#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum TimerKind {
    /// Start of a retry or of a session's next turn.
    Wake,
    Cancel,
    TimeOut(Deadline),
}
