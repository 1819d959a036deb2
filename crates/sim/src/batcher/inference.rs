//! A batching model server over time: the front's pipe, the batcher, instances and responses.
//!
//! All events of an instant are processed before the batcher runs, so that simultaneous requests are batched
//! together. The times of a batch are drawn and fixed at its start, because later events can't change them.

use std::collections::VecDeque;

use plimsoll_math::dist;
use plimsoll_math::rng::Stream;
use plimsoll_model::{At, Span};

use crate::batcher::batch_queue::WaitingSlot;
use crate::batcher::{Batch, Batcher, BatcherOutput};
use crate::engine::calendar::Calendar;
use crate::engine::slots::Slots;
use crate::spec::dynamic::{DynamicSpec, Overlap};
use crate::traffic::{
    Emission, EngineGauges, EngineRejection, Failure, FinishReason, RequestEvent, Submit, Totals,
};

const QUEUE_FULL: &str = "Exceeds maximum queue size";
const EXPIRED: &str = "Request timeout expired";
/// Triton's HTTP status for both: UNAVAILABLE.
const UNAVAILABLE: u16 = 503;

/// The state of a batching model server.
#[derive(Clone, Debug)]
pub(crate) struct Inference {
    spec: DynamicSpec,
    seed: u64,
    requests: Slots<Request>,
    /// Requests on their way to the queue, in order of arrival there.
    front: VecDeque<(At, u32)>,
    /// Time at which the front's pipe is free.
    pipe_free: At,
    batcher: Batcher,
    /// Time since which the batcher must run; `None` if it need not.
    due: Option<At>,
    /// Time at which each idle instance will have finished computing.
    idle: Vec<At>,
    batches: Slots<RunningBatch>,
    started: u64,
    calendar: Calendar,
    /// Requests in order of leaving the queue, if responses must keep it.
    order: VecDeque<u32>,
    /// Responses on their way, with their times.
    responses: VecDeque<(At, u32)>,
    running: u32,
    /// Factor on the compute time.
    slowdown: f64,
    /// Additional compute time after the factor.
    extra: Span,
    /// Time before which no batch starts or ends.
    stalled_until: At,
}

#[derive(Clone, Debug)]
struct Request {
    id: u64,
    prompt_tokens: u32,
    output_tokens: u32,
    items: u32,
    priority: u32,
    timeout: Option<Span>,
    queued: At,
    stage: Stage,
}

#[derive(Copy, Clone, PartialEq, Eq, Debug)]
enum Stage {
    Front,
    Queue,
    Batch,
    /// Computed; the response waits or is on its way.
    Done,
    /// Cancelled in a batch, which continues unchanged.
    Gone,
    /// Cancelled, and the batch is complete.
    Over,
}

#[derive(Clone, Debug)]
struct RunningBatch {
    slots: Vec<u32>,
    items: u32,
    start: At,
    input: Span,
    compute: Span,
    output: Span,
    /// Time at which the instance will have finished computing.
    computed: At,
}

/// Event kinds of calendar entries, encoded next to the batch number.
const ENDS: u32 = 0;
const FREES: u32 = 1;

impl Inference {
    pub fn new(spec: &DynamicSpec, seed: u64) -> Inference {
        Inference {
            spec: spec.clone(),
            seed,
            requests: Slots::new(),
            front: VecDeque::new(),
            pipe_free: At(i64::MIN),
            batcher: Batcher::new(spec),
            due: None,
            idle: vec![At(i64::MIN); spec.instances as usize],
            batches: Slots::new(),
            started: 0,
            calendar: Calendar::default(),
            order: VecDeque::new(),
            responses: VecDeque::new(),
            running: 0,
            slowdown: 1.0,
            extra: Span::ZERO,
            stalled_until: At(i64::MIN),
        }
    }

    pub fn submit(&mut self, now: At, request: &Submit) -> Result<(), EngineRejection> {
        let id = request.id;
        if self.requests.find(id).is_some() {
            return Err(EngineRejection::DuplicateId { id });
        }
        let items = request.items.max(1);
        if items > self.spec.max_batch_size {
            return Err(EngineRejection::TooManyItems { items, limit: self.spec.max_batch_size });
        }
        let entering = Request {
            id,
            prompt_tokens: request.prompt_tokens.max(1),
            output_tokens: request.output_tokens,
            items,
            priority: request.priority,
            timeout: request.queue_timeout,
            queued: now,
            stage: Stage::Front,
        };
        let slot = self.requests.insert(id, entering);
        let pipe = span(self.spec.front.item_ms * f64::from(items));
        let fixed = span(self.spec.front.request_ms);
        self.pipe_free = self.pipe_free.max(now) + pipe;
        let at = self.pipe_free + fixed;
        if at > now {
            self.front.push_back((at, slot));
            return Ok(());
        }
        if self.enter(now, slot) {
            return Ok(());
        }
        self.leave(slot);
        Err(EngineRejection::Unavailable { status: UNAVAILABLE, why: QUEUE_FULL, retry_after: None })
    }

    pub fn next_at(&self) -> Option<At> {
        let front = self.front.front().map(|(at, _)| *at);
        let response = self.responses.front().map(|(at, _)| *at);
        let instances = [self.calendar.next_at(), self.due, self.batcher.wake()].into_iter().flatten().min();
        let instances = instances.map(|at| at.max(self.stalled_until));
        [front, response, instances].into_iter().flatten().min()
    }

    /// Processes the events of an instant; the batcher runs last.
    pub fn fire(&mut self, out: &mut Vec<Emission>, totals: &mut Totals) {
        let Some(now) = self.next_at() else { return };
        if let Some(&(at, slot)) = self.front.front()
            && at == now
        {
            self.front.pop_front();
            if !self.enter(now, slot) {
                self.fail(slot, now, QUEUE_FULL, out, totals);
            }
        } else if let Some(&(at, slot)) = self.responses.front()
            && at == now
        {
            self.responses.pop_front();
            self.answer(slot, now, out, totals);
        } else if self.calendar.next_at().is_some_and(|at| at <= now) {
            let Some((_, entry)) = self.calendar.pop() else { return };
            match entry % 2 {
                FREES => self.free(now, entry / 2),
                _ => self.end(now, entry / 2, out, totals),
            }
        } else {
            self.batch(now, out, totals);
        }
    }

    pub fn cancel(&mut self, id: u64) -> bool {
        let Some(slot) = self.requests.find(id) else { return false };
        match self.requests.at(slot).stage {
            Stage::Front => self.front.retain(|(_, other)| *other != slot),
            Stage::Queue if self.batcher.cancel(slot) => {}
            Stage::Queue | Stage::Batch => {
                self.requests.forget(id);
                self.requests.at_mut(slot).stage = Stage::Gone;
                return true;
            }
            Stage::Done => {
                self.responses.retain(|(_, other)| *other != slot);
                self.order.retain(|other| *other != slot);
            }
            Stage::Gone | Stage::Over => return false,
        }
        self.leave(slot);
        true
    }

    /// Drops everything in flight. Returns the ids in ascending order.
    pub fn reset(&mut self) -> Vec<u64> {
        let lost = self.requests.ids();
        let fresh = Inference::new(&self.spec, self.seed);
        let (started, slowdown, extra) = (self.started, self.slowdown, self.extra);
        *self = Inference { started, slowdown, extra, stalled_until: self.stalled_until, ..fresh };
        lost
    }

    pub fn set_speed(&mut self, factor: f64) {
        self.slowdown = factor;
    }

    pub fn extra_step_us(&mut self, extra_us: f64) {
        self.extra = span(extra_us / 1e3);
    }

    pub fn stall(&mut self, until: At) {
        self.stalled_until = self.stalled_until.max(until);
    }

    pub fn fill(&self, gauges: &mut EngineGauges) {
        gauges.batches = true;
        gauges.running = self.running;
        gauges.waiting = (self.front.len() + self.batcher.waiting()) as u32;
    }

    /// Enqueues the request. Returns `false` without enqueuing it if the queue is full.
    fn enter(&mut self, now: At, slot: u32) -> bool {
        let request = self.requests.at_mut(slot);
        (request.queued, request.stage) = (now, Stage::Queue);
        let level = self.spec.dynamic_batching.as_ref().map_or(0, |batcher| batcher.level(request.priority));
        let waiting = WaitingSlot { slot, items: request.items, since: now, expires: None };
        let taken = self.batcher.enqueue(level, waiting, request.timeout).is_ok();
        if taken {
            self.due = Some(now);
        }
        taken
    }

    fn batch(&mut self, now: At, out: &mut Vec<Emission>, totals: &mut Totals) {
        self.due = None;
        let mut moves = BatcherOutput::default();
        self.batcher.run(now, self.idle.len(), &mut moves);
        for slot in moves.expired {
            self.fail(slot, now, EXPIRED, out, totals);
        }
        for batch in moves.started {
            self.start(now, batch, out);
        }
    }

    /// Starts a batch on an idle instance.
    fn start(&mut self, now: At, batch: Batch, out: &mut Vec<Emission>) {
        let cost = &self.spec.batch;
        let (input, output) = (span(cost.input.ms(batch.items)), span(cost.output.ms(batch.items)));
        let compute = self.compute(batch.items);
        let computed_before = self.take_idle();
        let begins = (now + input).max(computed_before);
        let computed = begins + compute;
        for &slot in &batch.slots {
            let request = self.requests.at_mut(slot);
            if request.stage != Stage::Gone {
                request.stage = Stage::Batch;
                out.push(Emission { at: now, id: request.id, what: RequestEvent::Admitted { cached: 0 } });
            }
        }
        if self.keeps_order() {
            self.order.extend(&batch.slots);
        }
        self.running += batch.slots.len() as u32;
        let running = RunningBatch {
            slots: batch.slots,
            items: batch.items,
            start: now,
            input,
            compute,
            output,
            computed,
        };
        let number = self.batches.insert(self.started, running);
        // Batches have no external ids.
        self.batches.forget(self.started);
        self.started += 1;
        let free = match self.spec.batch.overlap {
            Overlap::Serial => computed + output,
            Overlap::Pipelined => begins,
        };
        self.calendar.push(computed + output, 2 * number + ENDS);
        self.calendar.push(free, 2 * number + FREES);
    }

    /// Returns the idle instance that will have finished computing first.
    fn take_idle(&mut self) -> At {
        let first = (0..self.idle.len()).min_by_key(|&place| self.idle[place]);
        self.idle.swap_remove(first.expect("the number of idle instances is passed to the batcher"))
    }

    fn compute(&self, items: u32) -> Span {
        let cost = &self.spec.batch;
        let factor = if cost.jitter_cv > 0.0 {
            let (shape, scale) = dist::gamma_from_mean_cv(1.0, cost.jitter_cv);
            dist::gamma(&mut Stream::new(self.seed, "sim.batch", self.started), shape, scale)
        } else {
            1.0
        };
        // At least a nanosecond, because a closed loop would otherwise never leave one instant.
        span(cost.compute.ms(items) * factor * self.slowdown).max(Span(1)) + self.extra
    }

    /// Lets an instance take its next batch.
    fn free(&mut self, now: At, number: u32) {
        self.idle.push(self.batches.at(number).computed);
        self.due = Some(now);
        if self.spec.batch.overlap == Overlap::Serial {
            self.batches.release(number);
        }
    }

    /// Completes a batch, including its outputs.
    fn end(&mut self, now: At, number: u32, out: &mut Vec<Emission>, totals: &mut Totals) {
        let batch = self.batches.at_mut(number);
        let slots = std::mem::take(&mut batch.slots);
        let batch = batch.clone();
        if self.spec.batch.overlap == Overlap::Pipelined {
            self.batches.release(number);
        }
        self.running -= slots.len() as u32;
        totals.steps += 1;
        totals.items += u64::from(batch.items);
        for &slot in &slots {
            let request = self.requests.at_mut(slot);
            if request.stage == Stage::Gone {
                request.stage = Stage::Over;
                continue;
            }
            request.stage = Stage::Done;
            totals.queue_ns += (batch.start - request.queued).0 as u64;
            totals.input_ns += batch.input.0 as u64;
            totals.compute_ns += batch.compute.0 as u64;
            totals.output_ns += batch.output.0 as u64;
        }
        if self.keeps_order() {
            while let Some(&slot) = self.order.front()
                && matches!(self.requests.at(slot).stage, Stage::Done | Stage::Over)
            {
                self.order.pop_front();
                self.respond(slot, now, out, totals);
            }
        } else {
            for slot in slots {
                self.respond(slot, now, out, totals);
            }
        }
    }

    fn keeps_order(&self) -> bool {
        self.spec.dynamic_batching.as_ref().is_some_and(|batcher| batcher.preserve_ordering)
    }

    /// Starts a response on its way.
    fn respond(&mut self, slot: u32, now: At, out: &mut Vec<Emission>, totals: &mut Totals) {
        let delay = span(self.spec.response_ms);
        if self.requests.at(slot).stage == Stage::Over {
            self.requests.release(slot);
        } else if delay > Span::ZERO {
            self.responses.push_back((now + delay, slot));
        } else {
            self.answer(slot, now, out, totals);
        }
    }

    fn answer(&mut self, slot: u32, at: At, out: &mut Vec<Emission>, totals: &mut Totals) {
        let request = self.requests.at(slot);
        let (id, n) = (request.id, request.output_tokens);
        totals.prompt_tokens += u64::from(request.prompt_tokens);
        totals.output_tokens += u64::from(n);
        totals.finished += 1;
        out.push(Emission { at, id, what: RequestEvent::PrefillDone });
        if n > 0 {
            out.push(Emission { at, id, what: RequestEvent::Token { n, last: true } });
        }
        let reason = if n > 0 { FinishReason::Length } else { FinishReason::Stop };
        out.push(Emission { at, id, what: RequestEvent::Finished { reason } });
        self.leave(slot);
    }

    fn fail(&mut self, slot: u32, at: At, why: &'static str, out: &mut Vec<Emission>, totals: &mut Totals) {
        let id = self.requests.at(slot).id;
        out.push(Emission {
            at,
            id,
            what: RequestEvent::Failed(Failure::Status { status: UNAVAILABLE, why }),
        });
        totals.failed += 1;
        self.leave(slot);
    }

    fn leave(&mut self, slot: u32) {
        self.requests.forget(self.requests.at(slot).id);
        self.requests.release(slot);
    }
}

fn span(ms: f64) -> Span {
    Span((ms * 1e6).round() as i64)
}
