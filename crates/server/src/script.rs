//! Provides a clock that a test moves, so that the live server (sockets, front, engine) runs at scripted times.
//!
//! Its output can then be compared byte for byte with virtual time. Only the world's time is scripted. Limits of clients
//! (slow bodies, idle connections) stay on the machine's clock, because they protect the process. A paused runtime clock
//! was rejected, because sockets do not use it.

use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};

use plimsoll_model::At;

/// A clock that only [`ManualClock::advance`] moves. Clones share one clock.
#[derive(Clone, Debug, Default)]
pub struct ManualClock(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    now: At,
    asleep: Option<Waker>,
}

impl ManualClock {
    pub fn new() -> ManualClock {
        ManualClock::default()
    }

    pub fn now(&self) -> At {
        self.state(|state| state.now)
    }

    /// Moves the clock to `at` and wakes the tasks that slept until then. The clock never goes back.
    pub fn advance(&self, at: At) {
        let waker = self.state(|state| {
            state.now = state.now.max(at);
            state.asleep.take()
        });
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Ready once the clock shows `at` or later; otherwise registers the task for its next move.
    pub(crate) fn poll_reached(&self, at: At, cx: &Context<'_>) -> Poll<()> {
        self.state(|state| {
            if state.now >= at {
                return Poll::Ready(());
            }
            state.asleep = Some(cx.waker().clone());
            Poll::Pending
        })
    }

    fn state<T>(&self, f: impl FnOnce(&mut State) -> T) -> T {
        // A poisoned lock is usable, because both fields are valid after every statement.
        f(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
