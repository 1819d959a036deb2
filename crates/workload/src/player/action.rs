//! Defines the messages between a player and its caller.

use std::sync::Arc;

use plimsoll_model::{At, Span};

use crate::draw::Arrival;

/// An action that the caller must take now.
#[derive(Clone, PartialEq, Debug)]
pub enum Action {
    Send(AttemptPlan),
    /// Abandon the attempt and report it `ended` with a time-out.
    TimeOut {
        request: u64,
        /// Attempt number, from 0.
        attempt: u16,
        deadline: Deadline,
    },
    /// Cancel the attempt as planned and report it `ended` as cancelled.
    Cancel {
        request: u64,
        /// Attempt number, from 0.
        attempt: u16,
    },
}

/// A deadline that the player enforces.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Deadline {
    /// Deadline for the first generated token.
    FirstToken,
    Total,
}

/// One attempt of an arrival, with the limits that the caller must enforce.
#[derive(Clone, PartialEq, Debug)]
pub struct AttemptPlan {
    /// Arrival. Its `due` is the scheduled time; [`AttemptPlan::due`] is the actual one.
    pub arrival: Arc<Arrival>,
    /// Attempt number; 0 for the first attempt.
    pub attempt: u16,
    /// Actual due time, which retries keep. In a closed loop it is the time of the first attempt.
    pub due: At,
    /// Deadline for the connection; enforced by the caller.
    pub connect_deadline: At,
    /// Deadline for the first generated token; enforced by the player.
    pub first_token_deadline: Option<At>,
    /// Deadline for the end; enforced by the player.
    pub total_deadline: At,
    /// Longest pause between two reads of the response; enforced by the caller.
    pub idle: Option<Span>,
    /// Time of a planned cancellation; enforced by the player.
    pub cancel_at: Option<At>,
    /// Output tokens after which to cancel; enforced by the caller.
    pub cancel_after_tokens: Option<u32>,
    /// Set if the request is never sent because a predecessor in its session had no answer.
    pub broke_off: bool,
}

impl AttemptPlan {
    /// Returns the reason of a request that was never sent; `None` if the load ended before it.
    pub fn why_never_sent(&self) -> Option<&'static str> {
        self.broke_off.then_some("an earlier turn of its session had no answer")
    }
}

/// The consequence of an attempt's end.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum AttemptEnd {
    Final,
    WillRetry {
        at: At,
    },
    /// The attempt had already ended, so no row must be recorded.
    Stale,
}
