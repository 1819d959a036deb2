//! What a player keeps: where requests come from, those that have not ended, and timers.

use std::collections::VecDeque;
use std::hash::Hasher;
use std::sync::Arc;

use plimsoll_model::At;

use super::Deadline;
use crate::draw::Arrival;
use crate::schedule::{ArrivalFeed, Sequence};

/// Hashes the number of a request: the schedule's own, so nobody can choose it to collide.
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

/// Where requests come from.
#[derive(Debug)]
pub(crate) enum RequestSource {
    /// An open loop: due when they are due.
    Open(VecDeque<Arc<Arrival>>),
    /// Open too; arrivals are drawn when they are due.
    Fed(Box<ArrivalFeed>),
    /// The end of one makes room for the next.
    Closed {
        /// What comes next.
        sequence: Box<Sequence>,
        /// When each free slot became free, or will be: ascending.
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

/// Where a request is.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Phase {
    /// Sent. `first`: its first token has come. `told`: the caller was told to give it up.
    Flying { first: bool, told: bool },
    /// Waits for its next attempt.
    Retry,
    /// A session's next turn that is not due yet.
    Think,
}

/// Something to be done at a time; ordered by it.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct PlayerTimer {
    pub at: At,
    pub request: u64,
    pub attempt: u16,
    pub what: TimerKind,
}

#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum TimerKind {
    /// A retry, or a session's next turn.
    Wake,
    Cancel,
    TimeOut(Deadline),
}
