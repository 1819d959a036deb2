//! One attempt in flight: its row in the making, and how to stop it.

use std::cell::{Cell, RefCell};
use std::hash::Hasher;
use std::rc::Rc;

use plimsoll_model::{At, Outcome, Span};
use plimsoll_wire::Head;

use crate::exchange_watch::{Connected, ExchangeWatch, Outgoing};
use crate::level_driver::LevelDriver;
use crate::recording::{Ending, Recording};
use crate::request::AttemptKey;
use crate::task_pool::Hand;

/// Bytes of an error's body after which the rest is not waited for.
const ERROR_BODY_MAX: u64 = 1 << 20;

/// Hashes a [`AttemptKey`]. Its numbers are the schedule's own, so nobody can choose them to collide.
#[derive(Debug, Default)]
pub struct KeyHasher(u64);

impl Hasher for KeyHasher {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64(u64::from(*byte)));
    }

    fn write_u16(&mut self, n: u16) {
        self.write_u64(u64::from(n));
    }

    fn write_u64(&mut self, n: u64) {
        self.0 = (self.0.rotate_left(5) ^ n).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    fn finish(&self) -> u64 {
        self.0 ^ (self.0 >> 32)
    }
}

/// See the module's head.
pub struct Flight {
    /// Request and attempt number.
    pub key: AttemptKey,
    /// Number of the endpoint that it goes to.
    pub endpoint: usize,
    pub begun: At,
    /// Gives up when an answer that has begun pauses for so long.
    pub idle: Option<Span>,
    /// Leaves after so many tokens.
    pub cancel_after_tokens: Option<u64>,
    pub request: Outgoing,
    /// The row; taken when it is handed over, which happens exactly once.
    pub recording: RefCell<Option<Recording>>,
    /// The task that carries it.
    pub hand: RefCell<Option<Rc<Hand>>>,
    /// When the connection was in hand.
    pub ready: Cell<At>,
    /// Had it to be made, or a place in a bounded pool to be waited for?
    pub waited: Cell<bool>,
    /// User-space time of the newest read of an answer that has begun.
    pub last_read: Cell<Option<At>>,
    tokens: Cell<u64>,
}

impl std::fmt::Debug for Flight {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Flight({}, attempt {})", self.key.0, self.key.1)
    }
}

impl Flight {
    /// Begun at `begun`.
    pub fn new(key: AttemptKey, endpoint: usize, begun: At, recording: Recording) -> Flight {
        Flight {
            key,
            endpoint,
            begun,
            idle: None,
            cancel_after_tokens: None,
            request: Outgoing::new(None),
            recording: RefCell::new(Some(recording)),
            hand: RefCell::new(None),
            ready: Cell::new(begun),
            waited: Cell::new(false),
            last_read: Cell::new(None),
            tokens: Cell::new(0),
        }
    }
}

/// Follows an exchange into its row. When it is dropped with the row still open — the task was aborted or panicked —
/// the row is closed as unfinished: no arrival is lost.
pub struct Following {
    /// The level on this worker.
    pub stage: Rc<LevelDriver>,
    pub flight: Rc<Flight>,
}

impl Drop for Following {
    fn drop(&mut self) {
        self.stage.end(&self.flight, LevelDriver::unfinished());
    }
}

impl ExchangeWatch for Following {
    fn connected(&self, held: &Connected<'_>) {
        self.flight.ready.set(self.stage.now());
        self.flight.waited.set(held.waited || !held.kept);
        if let Some(recording) = &mut *self.flight.recording.borrow_mut() {
            recording.connected(held.number, held.reused, held.at, held.stamps);
        }
    }

    fn sent(&self) {
        self.stage.sent();
    }

    fn head(&self, head: Head) {
        if let Some(recording) = &mut *self.flight.recording.borrow_mut() {
            recording.head(head);
        }
        self.read();
        self.stage.watch_idle(&self.flight);
    }

    fn trailers(&self, trailers: Head) {
        self.read();
        if let Some(recording) = &mut *self.flight.recording.borrow_mut() {
            recording.trailers(trailers);
        }
    }

    fn data(&self, bytes: &[u8]) -> bool {
        self.read();
        let (progress, go_on, due) = {
            let mut slot = self.flight.recording.borrow_mut();
            let Some(recording) = &mut *slot else { return false };
            let progress = self.stage.with_scratch(|scratch| recording.data(bytes, scratch));
            let stopped = recording.is_stopped() || recording.is_refusal_past(ERROR_BODY_MAX);
            (progress, !stopped, recording.attempt().due)
        };
        if progress.token_events > 0 {
            self.stage.tokens(&self.flight, due, &progress);
            self.flight.tokens.set(self.flight.tokens.get() + progress.tokens);
            if self.flight.cancel_after_tokens.is_some_and(|most| self.flight.tokens.get() >= most) {
                self.stage.end(&self.flight, Ending::Told { outcome: CANCELLED, error: None });
                return false;
            }
        }
        go_on
    }
}

/// A reader who left, as the scenario planned.
pub const CANCELLED: Outcome =
    Outcome::new(plimsoll_model::How::Cancelled, plimsoll_model::By::Client, false);

impl Following {
    fn read(&self) {
        if let Some(recording) = &*self.flight.recording.borrow() {
            self.flight.last_read.set(recording.newest_user_stamp());
        }
    }
}
