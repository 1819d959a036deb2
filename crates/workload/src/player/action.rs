//! What a player tells its caller, and what it is told: the words of the step machine.

use std::sync::Arc;

use plimsoll_model::{At, Span};

use crate::draw::Arrival;

/// Something the caller must do now.
#[derive(Clone, PartialEq, Debug)]
pub enum Action {
    Send(Attempted),
    /// Give the attempt up and report it `ended` with a time-out.
    TimeOut {
        /// The arrival's number.
        request: u64,
        /// Which attempt.
        attempt: u16,
        /// Which deadline passed.
        deadline: Deadline,
    },
    /// A planned cancellation: break the attempt off and report it `ended` as cancelled.
    Cancel {
        /// The arrival's number.
        request: u64,
        /// Which attempt.
        attempt: u16,
    },
}

/// A deadline that the player keeps.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Deadline {
    /// No generated token in time.
    FirstToken,
    Total,
}

/// One attempt at an arrival: what is sent, and what the caller must watch.
#[derive(Clone, PartialEq, Debug)]
pub struct Attempted {
    /// The arrival; its `due` is the schedule's, [`Attempted::due`] the true one.
    pub arrival: Arc<Arrival>,
    /// 0 for the first try.
    pub attempt: u16,
    /// When it was due: the arrival's, kept by its retries; closed loop: the moment of the first sending.
    pub due: At,
    /// The caller's to keep: no connection by then.
    pub connect_deadline: At,
    /// Kept here: no generated token by then.
    pub first_token_deadline: Option<At>,
    /// Kept here: not ended by then.
    pub total_deadline: At,
    /// The caller's to keep: longest pause between two reads of the answer.
    pub idle: Option<Span>,
    /// Kept here: a planned cancellation at this time.
    pub cancel_at: Option<At>,
    /// The caller's to keep: a planned cancellation after so many output tokens.
    pub cancel_after_tokens: Option<u32>,
    /// Of one that is never sent: a turn that it comes after had no answer.
    pub broke_off: bool,
}

impl Attempted {
    /// What the row of one says that was never sent, where it is not the end of the load that kept it back.
    pub fn why_never_sent(&self) -> Option<&'static str> {
        self.broke_off.then_some("an earlier turn of its session had no answer")
    }
}

/// What the end of an attempt means.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum AttemptEnd {
    /// The request has ended with it.
    Final,
    WillRetry {
        /// When.
        at: At,
    },
    /// Nothing was in flight under this number: it had ended before. Nothing is to be recorded.
    Stale,
}
