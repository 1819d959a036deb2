//! Represents one attempt in flight: its unfinished row, and the handle to stop it.

use std::cell::{Cell, RefCell};
use std::hash::Hasher;
use std::rc::Rc;

use plimsoll_model::{At, Outcome, Span};
use plimsoll_wire::Head;

use crate::driver::exchange_watch::{ConnectionInfo, ExchangeWatch, OutgoingRequest};
use crate::driver::level_driver::LevelDriver;
use crate::driver::recording::{AttemptEnding, Recording};
use crate::driver::task_pool::PooledTask;
use crate::http1::request::AttemptKey;

/// Most bytes of an error body that are read.
const ERROR_BODY_MAX: u64 = 1 << 20;

/// The hasher of an [`AttemptKey`]. The schedule assigns the numbers, so no peer can force collisions.
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

pub struct Flight {
    pub key: AttemptKey,
    /// Index into the endpoints of the level.
    pub endpoint: usize,
    pub begun: At,
    /// Longest pause within a response; the attempt fails after it. `None` = no limit.
    pub idle: Option<Span>,
    /// Tokens after which the client cancels; `None` = never.
    pub cancel_after_tokens: Option<u64>,
    pub request: OutgoingRequest,
    /// The row; `None` after its only delivery.
    pub recording: RefCell<Option<Recording>>,
    /// Task that runs the attempt; `None` before its start.
    pub hand: RefCell<Option<Rc<PooledTask>>>,
    /// Time at which the connection was ready.
    pub ready: Cell<At>,
    /// Set if the connection was opened for this attempt, or the attempt waited for a place in a bounded pool.
    pub waited: Cell<bool>,
    /// User-space time of the last read of a response that has begun.
    pub last_read: Cell<Option<At>>,
    tokens: Cell<u64>,
}

impl std::fmt::Debug for Flight {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Flight({}, attempt {})", self.key.0, self.key.1)
    }
}

impl Flight {
    pub fn new(key: AttemptKey, endpoint: usize, begun: At, recording: Recording) -> Flight {
        Flight {
            key,
            endpoint,
            begun,
            idle: None,
            cancel_after_tokens: None,
            request: OutgoingRequest::new(None),
            recording: RefCell::new(Some(recording)),
            hand: RefCell::new(None),
            ready: Cell::new(begun),
            waited: Cell::new(false),
            last_read: Cell::new(None),
            tokens: Cell::new(0),
        }
    }
}

/// The recorder of an exchange. If it is dropped with the row open (abort or panic), it closes the row as unfinished,
/// because every arrival needs a row.
pub struct ExchangeRecorder {
    pub stage: Rc<LevelDriver>,
    pub flight: Rc<Flight>,
}

impl Drop for ExchangeRecorder {
    fn drop(&mut self) {
        self.stage.end(&self.flight, LevelDriver::unfinished());
    }
}

impl ExchangeWatch for ExchangeRecorder {
    fn connected(&self, held: &ConnectionInfo<'_>) {
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
                self.stage.end(&self.flight, AttemptEnding::Told { outcome: CANCELLED, error: None });
                return false;
            }
        }
        go_on
    }
}

/// The outcome of a planned client cancellation.
pub const CANCELLED: Outcome =
    Outcome::new(plimsoll_model::How::Cancelled, plimsoll_model::By::Client, false);

impl ExchangeRecorder {
    fn read(&self) {
        if let Some(recording) = &*self.flight.recording.borrow() {
            self.flight.last_read.set(recording.newest_user_stamp());
        }
    }
}
