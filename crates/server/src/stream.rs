//! Represents one request inside the server: the tokens that are produced but not sent, and its truth record.
//!
//! The engine pushes step ends of sixteen bytes. The text is made when the frame is released, into a reused buffer. Queues
//! of finished frames were rejected: under load they store equal bytes for longer.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::task::{Context, Waker};

use plimsoll_sim::Failure;
use plimsoll_wire::server::ReportedTimings;

use crate::io::Conn;
use crate::metrics::Metrics;
use crate::truth::{TrueOutcome, Truth, TruthRecord};

/// The tokens that a step produced for one request.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct StepTokens {
    /// End of the step in ns of CLOCK_MONOTONIC, converted from the exact virtual time.
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

pub struct EngineStream {
    pub id: u64,
    conn: Rc<Conn>,
    metrics: Rc<RefCell<Metrics>>,
    truth: Option<Rc<Truth>>,
    state: RefCell<State>,
}

impl EngineStream {
    /// Returns the stream of a newly submitted request.
    pub fn new(
        id: u64,
        conn: Rc<Conn>,
        metrics: Rc<RefCell<Metrics>>,
        truth: Option<Rc<Truth>>,
        mut record: TruthRecord,
    ) -> Rc<EngineStream> {
        if truth.is_some() {
            // Bounded, because a client may request an absurd length.
            let room = record.output_tokens.min(1024) as usize;
            record.steps_ns.reserve(room);
            record.writes_ns.reserve(room);
        }
        Rc::new(EngineStream {
            id,
            conn,
            metrics,
            truth,
            state: RefCell::new(State { record, ..State::default() }),
        })
    }

    pub fn conn(&self) -> &Rc<Conn> {
        &self.conn
    }

    /// Reads or changes the truth record.
    pub fn record<T>(&self, with: impl FnOnce(&mut TruthRecord) -> T) -> T {
        with(&mut self.state.borrow_mut().record)
    }

    /// Records the tokens of a step.
    pub fn push(&self, due: StepTokens) {
        let mut state = self.state.borrow_mut();
        if self.truth.is_some() {
            state.record.step(due.step_end_ns, due.tokens);
        }
        if !state.record.stream {
            // A response without streaming waits for the end, so its parts are not needed.
            return;
        }
        state.due.push_back(due);
        if let Some(waker) = &state.waker {
            waker.wake_by_ref();
        }
    }

    /// Records the replica that a router chose.
    pub fn placed(&self, replica: u32) {
        let mut state = self.state.borrow_mut();
        state.record.replica = Some(replica);
        if let Some(waker) = &state.waker {
            waker.wake_by_ref();
        }
    }

    /// Returns the replica of the request; `None` before a router placed it.
    pub fn replica(&self) -> Option<u32> {
        self.state.borrow().record.replica
    }

    /// Records the timings that the engine reports with its answer.
    pub fn tell(&self, told: ReportedTimings) {
        self.state.borrow_mut().told = told;
    }

    /// Returns the timings that the engine reported with its answer.
    pub fn told(&self) -> ReportedTimings {
        self.state.borrow().told
    }

    /// Records that the engine has finished the request.
    pub fn end(&self, monotonic_ns: i64) {
        let mut state = self.state.borrow_mut();
        state.ended = true;
        state.record.end_ns = Some(monotonic_ns);
        if let Some(waker) = &state.waker {
            waker.wake_by_ref();
        }
    }

    /// Records that the request ends without its answer.
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
        state.record.ending = TrueOutcome::Failed;
        if let Failure::Status { status, .. } = failure
            && state.record.steps_ns.is_empty()
        {
            state.record.status = status;
        }
    }

    /// Returns the failure of the request, if any.
    pub fn failure(&self) -> Option<Failure> {
        self.state.borrow().failure
    }

    /// Returns whether tokens are ready to send.
    pub(crate) fn has_due(&self) -> bool {
        !self.state.borrow().due.is_empty()
    }

    /// Returns whether the engine has finished the request.
    pub fn is_ended(&self) -> bool {
        self.state.borrow().ended
    }

    /// Returns the next tokens to send. With `None`, the task is woken when there are some.
    pub fn pop(&self, cx: &Context<'_>) -> Option<StepTokens> {
        let mut state = self.state.borrow_mut();
        let due = state.due.pop_front();
        if due.is_none() {
            Self::remember(&mut state, cx);
        }
        due
    }

    /// Registers the task for the next event of the stream.
    pub fn watch(&self, cx: &Context<'_>) {
        Self::remember(&mut self.state.borrow_mut(), cx);
    }

    /// Wakes the task if tokens are ready to send.
    pub(crate) fn wake_if_ready(&self) {
        let state = self.state.borrow();
        if (!state.due.is_empty() || state.ended)
            && let Some(waker) = &state.waker
        {
            waker.wake_by_ref();
        }
    }

    /// Records the write of tokens whose step ended at `due_ns`; `before_ns` is the time just before the call.
    pub(crate) fn wrote_tokens(&self, before_ns: i64, due_ns: i64) {
        self.metrics.borrow_mut().write_late.observe_ns(before_ns - due_ns);
        if self.truth.is_some() {
            self.state.borrow_mut().record.writes_ns.push(before_ns);
        }
    }

    /// Records the write of the end of the response, or of the whole response without streaming.
    pub(crate) fn wrote_tail(&self, before_ns: i64) {
        let mut state = self.state.borrow_mut();
        let record = &mut state.record;
        if record.failure.is_none() {
            record.ending = TrueOutcome::Finished;
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

impl Drop for EngineStream {
    fn drop(&mut self) {
        if let Some(truth) = &self.truth {
            truth.push(std::mem::take(&mut self.state.get_mut().record));
        }
    }
}
