//! One request inside the server: what the engine has produced for it and not yet sent, and its truth record.
//!
//! The engine pushes step ends, which are sixteen bytes; the text is made when the frame is let out, into a buffer
//! that is used again. Queues of finished frames lost: under load they are the same bytes, held longer.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::task::{Context, Waker};

use plimsoll_sim::Failure;
use plimsoll_wire::server::ReportedTimings;

use crate::io::Conn;
use crate::metrics::Metrics;
use crate::truth::{Ending, Truth, TruthRecord};

/// Tokens that a step produced for one request.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct StepTokens {
    /// Step end, CLOCK_MONOTONIC ns (virtual end, mapped).
    pub step_end_ns: i64,
    pub tokens: u32,
}

#[derive(Default)]
struct State {
    due: VecDeque<StepTokens>,
    ended: bool,
    failure: Option<Failure>,
    told: ReportedTimings,
    waker: Option<Waker>,
    record: TruthRecord,
}

/// One request that the engine works on.
pub struct Stream {
    /// The engine's number for it.
    pub id: u64,
    conn: Rc<Conn>,
    metrics: Rc<RefCell<Metrics>>,
    truth: Option<Rc<Truth>>,
    state: RefCell<State>,
}

impl Stream {
    /// A request that was just submitted.
    pub fn new(
        id: u64,
        conn: Rc<Conn>,
        metrics: Rc<RefCell<Metrics>>,
        truth: Option<Rc<Truth>>,
        mut record: TruthRecord,
    ) -> Rc<Stream> {
        if truth.is_some() {
            // An absurd length that was asked for is not paid for in advance.
            let room = record.output_tokens.min(1024) as usize;
            record.steps_ns.reserve(room);
            record.writes_ns.reserve(room);
        }
        Rc::new(Stream {
            id,
            conn,
            metrics,
            truth,
            state: RefCell::new(State { record, ..State::default() }),
        })
    }

    /// The connection it is answered on.
    pub fn conn(&self) -> &Rc<Conn> {
        &self.conn
    }

    /// Reads or changes the truth record.
    pub fn record<T>(&self, with: impl FnOnce(&mut TruthRecord) -> T) -> T {
        with(&mut self.state.borrow_mut().record)
    }

    /// A step produced tokens.
    pub fn push(&self, due: StepTokens) {
        let mut state = self.state.borrow_mut();
        if self.truth.is_some() {
            state.record.step(due.step_end_ns, due.tokens);
        }
        if !state.record.stream {
            // A whole answer waits for the end; nobody asks for its parts.
            return;
        }
        state.due.push_back(due);
        if let Some(waker) = &state.waker {
            waker.wake_by_ref();
        }
    }

    /// A router gave it to this replica.
    pub fn placed(&self, replica: u32) {
        let mut state = self.state.borrow_mut();
        state.record.replica = Some(replica);
        if let Some(waker) = &state.waker {
            waker.wake_by_ref();
        }
    }

    /// The replica it was given to, once it was.
    pub fn replica(&self) -> Option<u32> {
        self.state.borrow().record.replica
    }

    /// The engine answered it, and tells this beside.
    pub fn tell(&self, told: ReportedTimings) {
        self.state.borrow_mut().told = told;
    }

    /// What the engine tells of it, once it is answered.
    pub fn told(&self) -> ReportedTimings {
        self.state.borrow().told
    }

    /// The engine is done with it.
    pub fn end(&self, monotonic_ns: i64) {
        let mut state = self.state.borrow_mut();
        state.ended = true;
        state.record.end_ns = Some(monotonic_ns);
        if let Some(waker) = &state.waker {
            waker.wake_by_ref();
        }
    }

    /// It ends without its answer.
    pub fn fail(&self, failure: Failure) {
        let mut state = self.state.borrow_mut();
        state.failure = Some(failure);
        state.record.failure = Some(
            match failure {
                Failure::Status { why, .. } => why,
                Failure::Reset => "reset",
                Failure::Cut => "cut",
            }
            .to_owned(),
        );
        state.record.ending = Ending::Failed;
        if let Failure::Status { status, .. } = failure
            && state.record.steps_ns.is_empty()
        {
            state.record.status = status;
        }
    }

    /// How it failed, if it did.
    pub fn failure(&self) -> Option<Failure> {
        self.state.borrow().failure
    }

    /// Is there something to send?
    pub(crate) fn has_due(&self) -> bool {
        !self.state.borrow().due.is_empty()
    }

    /// Is the engine done with it?
    pub fn is_ended(&self) -> bool {
        self.state.borrow().ended
    }

    /// What is to be sent next, or `None`, in which case this task is woken when there is something.
    pub fn pop(&self, cx: &Context<'_>) -> Option<StepTokens> {
        let mut state = self.state.borrow_mut();
        let due = state.due.pop_front();
        if due.is_none() {
            Self::remember(&mut state, cx);
        }
        due
    }

    /// Wakes this task when something happens.
    pub fn watch(&self, cx: &Context<'_>) {
        Self::remember(&mut self.state.borrow_mut(), cx);
    }

    /// Wakes the task when there is something to send already.
    pub(crate) fn wake_if_ready(&self) {
        let state = self.state.borrow();
        if (!state.due.is_empty() || state.ended)
            && let Some(waker) = &state.waker
        {
            waker.wake_by_ref();
        }
    }

    /// Tokens whose step ended at `due_ns` are being written; the clock said `before_ns` just before the call.
    pub(crate) fn wrote_tokens(&self, before_ns: i64, due_ns: i64) {
        self.metrics.borrow_mut().write_late.observe_ns(before_ns - due_ns);
        if self.truth.is_some() {
            self.state.borrow_mut().record.writes_ns.push(before_ns);
        }
    }

    /// The end of the answer is being written (all of it, where it does not stream).
    pub(crate) fn wrote_tail(&self, before_ns: i64) {
        let mut state = self.state.borrow_mut();
        let record = &mut state.record;
        if record.failure.is_none() {
            record.ending = Ending::Finished;
        }
        if !record.stream {
            let late = record.end_ns.map(|end| before_ns - end);
            record.writes_ns.push(before_ns);
            if let Some(late) = late {
                self.metrics.borrow_mut().write_late.observe_ns(late);
            }
        }
    }

    fn remember(state: &mut State, cx: &Context<'_>) {
        if state.waker.as_ref().is_none_or(|known| !known.will_wake(cx.waker())) {
            state.waker = Some(cx.waker().clone());
        }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if let Some(truth) = &self.truth {
            truth.push(std::mem::take(&mut self.state.get_mut().record));
        }
    }
}
