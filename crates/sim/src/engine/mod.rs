//! One replica of an engine, stepped by its caller: requests in, timestamped emissions out, without a clock.
//!
//! Order at one instant: work due *at* `now` waits for the caller's `step(now)`, so that requests submitted at one
//! instant are processed together. Work due *before* `now` is always complete.

mod batching;
pub(crate) mod calendar;
pub mod kv;
pub mod meter;
mod outlet;
mod pace;
pub mod peaks;
mod queue;
pub mod roofline;
pub mod scheduler;
pub(crate) mod slots;
pub mod speculation;
pub mod step_time;
mod terms;

use plimsoll_model::At;

use crate::batcher::inference::Inference;
use crate::engine::batching::Batching;
use crate::engine::meter::BucketHistogram;
use crate::engine::queue::Queue;
use crate::spec::error::SimSpecError;
use crate::spec::{EngineSpec, ModeSpec};
use crate::traffic::{Detail, Emission, EngineGauges, EngineRejection, Submit, Totals};

#[derive(Clone, Debug)]
pub struct Engine {
    now: At,
    outbox: Vec<Emission>,
    totals: Totals,
    mode: Mode,
}

#[derive(Clone, Debug)]
enum Mode {
    Queue(Box<Queue>),
    Batching(Box<Batching>),
    Dynamic(Box<Inference>),
}

impl Engine {
    /// Returns an idle engine. All random draws come from `seed`.
    ///
    /// # Errors
    /// Fails if the specification is invalid: see [`EngineSpec::validate`].
    pub fn new(spec: &EngineSpec, seed: u64) -> Result<Engine, SimSpecError> {
        spec.validate()?;
        let mode = match &spec.mode {
            ModeSpec::Canned(canned) => Mode::Queue(Box::new(Queue::canned(canned, seed))),
            ModeSpec::Queue(queue) => Mode::Queue(Box::new(Queue::new(queue, seed))),
            ModeSpec::Batching(batching) => Mode::Batching(Box::new(Batching::new(batching)?)),
            ModeSpec::Dynamic(dynamic) => Mode::Dynamic(Box::new(Inference::new(dynamic, seed))),
        };
        Ok(Engine { now: At(i64::MIN), outbox: Vec::new(), totals: Totals::default(), mode })
    }

    /// Submits a request. A `now` before the last one counts as the last one.
    ///
    /// # Errors
    /// Fails if the request is rejected; no event is emitted for it then.
    pub fn submit(&mut self, now: At, request: Submit) -> Result<(), EngineRejection> {
        let now = self.catch_up(now);
        let taken = match &mut self.mode {
            Mode::Queue(queue) => queue.submit(now, &request, &mut self.outbox),
            Mode::Batching(batching) => batching.submit(now, request),
            Mode::Dynamic(inference) => inference.submit(now, &request),
        };
        match taken {
            Ok(()) => self.totals.submitted += 1,
            Err(_) => self.totals.rejected += 1,
        }
        taken
    }

    /// Returns the time of the next event without further input; `None` if there is none.
    pub fn next_event(&self) -> Option<At> {
        match self.outbox.first() {
            Some(emission) => Some(emission.at),
            None => self.mode.next_at(),
        }
    }

    /// Processes everything that is due by `now`, and appends the events to `out` in order.
    pub fn step(&mut self, now: At, out: &mut Vec<Emission>) {
        self.now = self.now.max(now);
        if !self.outbox.is_empty() {
            out.append(&mut self.outbox);
        }
        self.mode.run(self.now, out, &mut self.totals);
    }

    /// Cancels a request: no event is emitted for it afterwards. Returns `false` if the id is unknown.
    pub fn cancel(&mut self, now: At, id: u64) -> bool {
        let now = self.catch_up(now);
        let known = match &mut self.mode {
            Mode::Queue(queue) => queue.cancel(now, id, &mut self.outbox),
            Mode::Batching(batching) => batching.cancel(id),
            Mode::Dynamic(inference) => inference.cancel(id),
        };
        if known {
            self.outbox.retain(|emission| emission.id != id);
            self.totals.cancelled += 1;
        }
        known
    }

    /// Sets the detail of emissions from now on.
    pub fn set_detail(&mut self, detail: Detail) {
        if let Mode::Batching(batching) = &mut self.mode {
            batching.set_detail(detail);
        }
    }

    /// Returns the time of the next event other than a token between the first and the last of a response.
    pub fn next_turn(&self) -> Option<At> {
        match self.outbox.first() {
            Some(emission) => Some(emission.at),
            None => self.mode.next_turn(),
        }
    }

    /// Advances to the next instant at which an event other than a token between the first and the last can happen,
    /// at most to `limit`. Appends the events to `out` and returns the instant.
    pub fn advance(&mut self, limit: At, out: &mut Vec<Emission>) -> At {
        let to = self.next_turn().map_or(limit, |turn| turn.min(limit));
        self.step(to, out);
        to
    }

    /// Simulates a crash: everything in flight and the cache are lost. Returns the lost ids in ascending order; no
    /// events are emitted for them.
    pub fn reset(&mut self, now: At) -> Vec<u64> {
        self.catch_up(now);
        let ids = match &mut self.mode {
            Mode::Queue(queue) => queue.reset(),
            Mode::Batching(batching) => batching.reset(),
            Mode::Dynamic(inference) => inference.reset(),
        };
        // The counters restart together with the process.
        self.totals = Totals::default();
        ids
    }

    /// Drops all prefixes from the KV cache; running requests keep their blocks.
    pub fn flush_cache(&mut self) {
        if let Mode::Batching(batching) = &mut self.mode {
            batching.flush_cache();
        }
    }

    /// Sets the number of KV blocks. If it falls, free blocks are removed first. When the next step is planned, the
    /// engine's policy preempts running requests. Policies without preemption release blocks when requests end.
    pub fn set_kv_blocks(&mut self, blocks: u32) {
        if let Mode::Batching(batching) = &mut self.mode {
            batching.set_kv_blocks(self.now, blocks);
        }
    }

    /// Sets a factor on the duration of future steps (or batches).
    pub fn set_speed(&mut self, factor: f64) {
        match &mut self.mode {
            Mode::Batching(batching) => batching.set_speed(factor),
            Mode::Dynamic(inference) => inference.set_speed(factor),
            Mode::Queue(_) => {}
        }
    }

    /// Sets an extra duration of future steps, added after the factor, for a host that is busy with other work.
    pub fn extra_step_us(&mut self, extra_us: f64) {
        match &mut self.mode {
            Mode::Batching(batching) => batching.extra_step_us(extra_us),
            Mode::Dynamic(inference) => inference.extra_step_us(extra_us),
            Mode::Queue(_) => {}
        }
    }

    /// Stalls the engine: no step is planned or ends before `until`.
    pub fn stall(&mut self, until: At) {
        match &mut self.mode {
            Mode::Batching(batching) => batching.stall(until),
            Mode::Dynamic(inference) => inference.stall(until),
            Mode::Queue(_) => {}
        }
    }

    /// Returns the tokens of a prompt with these blocks that are in the prefix cache.
    pub fn cached_prefix(&self, blocks: &[u64]) -> u32 {
        match &self.mode {
            Mode::Batching(batching) => batching.cached_prefix(blocks),
            Mode::Queue(_) | Mode::Dynamic(_) => 0,
        }
    }

    /// Processes all events before `at`; the next step returns them.
    pub fn settle(&mut self, at: At) {
        self.catch_up(at);
    }

    pub fn gauges(&self) -> EngineGauges {
        let mut gauges = EngineGauges { totals: self.totals, ready: 1, ..EngineGauges::default() };
        match &self.mode {
            Mode::Queue(queue) => (gauges.running, gauges.waiting) = (queue.running(), queue.waiting()),
            Mode::Batching(batching) => batching.fill(&mut gauges),
            Mode::Dynamic(inference) => inference.fill(&mut gauges),
        }
        gauges
    }

    /// Returns the tokens per step; `None` for engines without steps.
    pub fn iterations(&self) -> Option<&BucketHistogram> {
        match &self.mode {
            Mode::Batching(batching) => Some(batching.iterations()),
            Mode::Queue(_) | Mode::Dynamic(_) => None,
        }
    }

    /// Processes all events before `now`; the next step returns them.
    fn catch_up(&mut self, now: At) -> At {
        self.now = self.now.max(now);
        if self.now.0 > i64::MIN {
            self.mode.run(At(self.now.0 - 1), &mut self.outbox, &mut self.totals);
        }
        self.now
    }
}

impl Mode {
    fn next_at(&self) -> Option<At> {
        match self {
            Mode::Queue(queue) => queue.next_at(),
            Mode::Batching(batching) => batching.next_at(),
            Mode::Dynamic(inference) => inference.next_at(),
        }
    }

    fn next_turn(&self) -> Option<At> {
        match self {
            Mode::Batching(batching) => batching.next_turn(),
            Mode::Queue(_) | Mode::Dynamic(_) => self.next_at(),
        }
    }

    /// Processes all events up to `limit`.
    fn run(&mut self, limit: At, out: &mut Vec<Emission>, totals: &mut Totals) {
        match self {
            Mode::Queue(queue) => {
                while queue.next_at().is_some_and(|at| at <= limit) {
                    queue.fire(out, totals);
                }
            }
            Mode::Dynamic(inference) => {
                while inference.next_at().is_some_and(|at| at <= limit) {
                    inference.fire(out, totals);
                }
            }
            Mode::Batching(batching) => batching.run(limit, out, totals),
        }
    }
}
