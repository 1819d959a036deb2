//! The engine as its caller steps it: requests in, stamped emissions out, no clock.
//!
//! The caller owns time. It asks [`World::next_event`] how long nothing will happen, moves its own clock there (by
//! sleeping or by just saying so) and calls [`World::step`]. One type serves the live server and the virtual client;
//! an async engine was the alternative, and would have made two of it.
//!
//! Order at one instant: what the engine was to do *at* `now` waits for the caller's `step(now)`, so that requests
//! submitted at one instant are seen together; what it was to do *before* `now` has always happened.

use plimsoll_model::At;

use crate::batching::Batching;
use crate::canned::Canned;
use crate::queue::Queue;
use crate::spec::{EngineSpec, ModeSpec, SpecError};

/// A request, as far as an engine cares.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Submit {
    /// The caller's name for it, unique among those in flight. What is drawn for the request depends on the seed and
    /// this alone, not on when or after whom it comes.
    pub id: u64,
    /// Tokens of its prompt; 0 counts as 1.
    pub prompt_tokens: u32,
    /// Tokens of its answer. An answer of 0 tokens ends when the prompt is computed (embeddings).
    pub output_tokens: u32,
    /// Names of the prompt's blocks, for prefix reuse.
    pub blocks: Vec<u64>,
}

/// Why a request was not taken.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Rejected {
    /// The queue is at its bound; try later (HTTP 429).
    #[error("the queue is full: {limit} requests wait")]
    QueueFull {
        /// The bound.
        limit: u32,
    },
    /// Prompt and answer are longer than the engine can ever hold (HTTP 400).
    #[error("prompt and answer need {tokens} tokens, the limit is {limit}")]
    TooLong {
        /// Tokens of prompt and answer.
        tokens: u64,
        /// The most there may be.
        limit: u64,
    },
    /// A request of this id is in flight: a mistake of the caller (HTTP 400).
    #[error("a request with id {id} is in flight")]
    DuplicateId {
        /// The id.
        id: u64,
    },
}

impl Rejected {
    /// The HTTP status that says it.
    pub fn status(&self) -> u16 {
        match self {
            Rejected::QueueFull { .. } => 429,
            Rejected::TooLong { .. } | Rejected::DuplicateId { .. } => 400,
        }
    }
}

/// Why an answer ended.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
pub enum FinishReason {
    /// It has the length that was asked for.
    Length,
    /// There was nothing to generate.
    Stop,
}

impl FinishReason {
    /// The name that OpenAI's protocol uses.
    pub fn name(self) -> &'static str {
        match self {
            FinishReason::Length => "length",
            FinishReason::Stop => "stop",
        }
    }
}

/// What happens to a request.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
pub enum What {
    /// It left the queue for the first time.
    Admitted,
    /// The whole prompt is computed.
    PrefillDone,
    /// Tokens were generated.
    Token {
        /// How many.
        n: u32,
        /// Are they the last?
        last: bool,
    },
    /// It is over. Each request ends in exactly one of this and a [`World::cancel`].
    Finished {
        /// Why.
        reason: FinishReason,
    },
}

/// Something that happened, with its exact virtual time.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
pub struct Emission {
    /// When.
    pub at: At,
    /// To which request.
    pub id: u64,
    /// What.
    pub what: What,
}

/// The engine's state in numbers, as of the last step.
#[derive(Copy, Clone, PartialEq, Default, Debug)]
pub struct Gauges {
    /// Requests being served.
    pub running: u32,
    /// Requests that wait, preempted ones and those in the front end included.
    pub waiting: u32,
    /// KV blocks in use. Zero where there is no KV cache.
    pub kv_blocks_used: u32,
    /// KV blocks there are.
    pub kv_blocks: u32,
    /// Counts since the beginning.
    pub totals: Totals,
}

impl Gauges {
    /// Share of the KV cache in use, 0 to 1.
    pub fn kv_usage(&self) -> f64 {
        if self.kv_blocks == 0 { 0.0 } else { f64::from(self.kv_blocks_used) / f64::from(self.kv_blocks) }
    }
}

/// Counts since the beginning.
#[derive(Copy, Clone, PartialEq, Eq, Default, Debug)]
pub struct Totals {
    /// Requests taken.
    pub submitted: u64,
    /// Requests not taken.
    pub rejected: u64,
    /// Requests answered.
    pub finished: u64,
    /// Requests cancelled by the caller.
    pub cancelled: u64,
    /// Times that a running request lost its blocks and had to be computed again.
    pub preempted: u64,
    /// Prompt tokens of the requests whose prompt is computed.
    pub prompt_tokens: u64,
    /// Tokens generated.
    pub output_tokens: u64,
    /// Steps ended. Zero where there are no steps.
    pub steps: u64,
}

/// An engine in virtual time.
#[derive(Clone, Debug)]
pub struct World {
    now: At,
    outbox: Vec<Emission>,
    totals: Totals,
    mode: Mode,
}

#[derive(Clone, Debug)]
enum Mode {
    Canned(Canned),
    Queue(Queue),
    Batching(Box<Batching>),
}

impl World {
    /// An idle engine. Everything drawn comes from `seed`.
    ///
    /// # Errors
    /// The specification describes nothing that could be built: see [`EngineSpec::validate`].
    pub fn new(spec: &EngineSpec, seed: u64) -> Result<World, SpecError> {
        spec.validate()?;
        let mode = match &spec.mode {
            ModeSpec::Canned(canned) => Mode::Canned(Canned::new(canned, seed)),
            ModeSpec::Queue(queue) => Mode::Queue(Queue::new(queue, seed)),
            ModeSpec::Batching(batching) => Mode::Batching(Box::new(Batching::new(batching)?)),
        };
        Ok(World { now: At(i64::MIN), outbox: Vec::new(), totals: Totals::default(), mode })
    }

    /// Hands a request in. A `now` before the last one counts as the last one.
    ///
    /// # Errors
    /// The request is not taken, and nothing will be emitted for it.
    pub fn submit(&mut self, now: At, request: Submit) -> Result<(), Rejected> {
        let now = self.catch_up(now);
        let taken = match &mut self.mode {
            Mode::Canned(canned) => canned.submit(now, &request, &mut self.outbox),
            Mode::Queue(queue) => queue.submit(now, &request, &mut self.outbox),
            Mode::Batching(batching) => batching.submit(now, &request),
        };
        match taken {
            Ok(()) => self.totals.submitted += 1,
            Err(_) => self.totals.rejected += 1,
        }
        taken
    }

    /// When something will happen next, if nothing is submitted or cancelled before. `None` = never.
    pub fn next_event(&self) -> Option<At> {
        match self.outbox.first() {
            Some(emission) => Some(emission.at),
            None => self.mode.next_at(),
        }
    }

    /// Does everything that is due by `now`, and appends what happened to `out`, in order.
    pub fn step(&mut self, now: At, out: &mut Vec<Emission>) {
        self.now = self.now.max(now);
        while self.mode.next_at().is_some_and(|at| at <= self.now) {
            self.mode.fire(&mut self.outbox, &mut self.totals);
        }
        out.append(&mut self.outbox);
    }

    /// Takes a request back: nothing will be emitted for it after this. False where there is none of this id.
    pub fn cancel(&mut self, now: At, id: u64) -> bool {
        let now = self.catch_up(now);
        let known = match &mut self.mode {
            Mode::Canned(canned) => canned.cancel(id),
            Mode::Queue(queue) => queue.cancel(now, id, &mut self.outbox),
            Mode::Batching(batching) => batching.cancel(id),
        };
        if known {
            self.outbox.retain(|emission| emission.id != id);
            self.totals.cancelled += 1;
        }
        known
    }

    /// The state in numbers.
    pub fn gauges(&self) -> Gauges {
        let mut gauges = Gauges { totals: self.totals, ..Gauges::default() };
        match &self.mode {
            Mode::Canned(canned) => gauges.running = canned.running(),
            Mode::Queue(queue) => (gauges.running, gauges.waiting) = (queue.running(), queue.waiting()),
            Mode::Batching(batching) => batching.fill(&mut gauges),
        }
        gauges
    }

    /// Lets everything happen that was to happen before `now`; it is handed over by the next step.
    fn catch_up(&mut self, now: At) -> At {
        self.now = self.now.max(now);
        while self.mode.next_at().is_some_and(|at| at < self.now) {
            self.mode.fire(&mut self.outbox, &mut self.totals);
        }
        self.now
    }
}

impl Mode {
    fn next_at(&self) -> Option<At> {
        match self {
            Mode::Canned(canned) => canned.next_at(),
            Mode::Queue(queue) => queue.next_at(),
            Mode::Batching(batching) => batching.next_at(),
        }
    }

    /// Lets the next thing happen.
    fn fire(&mut self, out: &mut Vec<Emission>, totals: &mut Totals) {
        match self {
            Mode::Canned(canned) => canned.fire(out, totals),
            Mode::Queue(queue) => queue.fire(out, totals),
            Mode::Batching(batching) => batching.fire(out, totals),
        }
    }
}
