//! A clock that is moved by hand: under it the whole live server (sockets, front, engine) runs at instants that a script
//! says, so that what it does can be compared with virtual time byte for byte.
//!
//! Only what the world lives by is scripted. Limits on clients (slow bodies, idle connections) stay on the machine's clock:
//! they guard the process, and are no part of any story. A paused runtime clock lost: sockets know nothing of it.

use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};

use plimsoll_model::At;

/// A clock that stands still until it is told otherwise. Clones are one clock.
#[derive(Clone, Debug, Default)]
pub struct Script(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    now: At,
    asleep: Option<Waker>,
}

impl Script {
    /// A clock at zero.
    pub fn new() -> Script {
        Script::default()
    }

    /// The time it shows.
    pub fn now(&self) -> At {
        self.state(|state| state.now)
    }

    /// Moves it to `at`, and wakes whoever slept until then. It never goes back.
    pub fn advance(&self, at: At) {
        let waker = self.state(|state| {
            state.now = state.now.max(at);
            state.asleep.take()
        });
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Ready once it shows `at` or later; else whoever asks is woken when it moves.
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
        // Its two fields are whole after every statement.
        f(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
