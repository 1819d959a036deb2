//! Continuous batching over time: the front end's delay, the queue limit, and steps with modelled durations.
//!
//! The internal clock counts picoseconds, the external one nanoseconds. The timestamp of an event is the first whole
//! nanosecond not before it. Therefore no event is visible before it happened, and a request that arrives at the
//! timestamp of a step's end comes after that end.
//!
//! [`Batching::run`] processes all events up to an instant. If the same sequences decode in successive steps, it
//! processes all steps that end by then in closed form. Timestamps, totals and blocks equal the results of single steps.

use std::collections::{HashSet, VecDeque};
use std::hash::BuildHasherDefault;

use plimsoll_model::{At, Span};

use crate::engine::meter::{BucketHistogram, ITERATION};
use crate::engine::outlet::{PendingTokens, TokenEmitter};
use crate::engine::pace::{SHORTEST_PS, StepPace, StepRow};
use crate::engine::scheduler::{ScheduledRequest, Scheduler, SchedulerLimits, SequenceProgress, StepPlan};
use crate::spec::BatchingSpec;
use crate::spec::error::SimSpecError;
use crate::traffic::{
    Detail, Emission, EngineGauges, EngineRejection, FinishReason, RequestEvent, Submit, Totals,
};
use plimsoll_math::spread::FibonacciHasher;

#[derive(Clone, Debug)]
pub(crate) struct Batching {
    scheduler: Scheduler,
    pace: StepPace,
    plan: StepPlan,
    /// Requests on their way to the scheduler, in order of arrival there.
    front: VecDeque<EnteringRequest>,
    front_ids: HashSet<u64, BuildHasherDefault<FibonacciHasher>>,
    front_delay: Span,
    outlet: TokenEmitter,
    detail: Detail,
    max_context: u64,
    queue_limit: Option<u32>,
    state: State,
    /// Time in ps before which no step begins or ends.
    stalled_until: i128,
    /// Tokens per step; tokens of a prompt count at the step that ends the prompt, as in vLLM.
    iterations: BucketHistogram,
}

#[derive(Copy, Clone, Debug)]
enum State {
    Idle,
    /// The time in ps at which a step must be planned.
    Due(i128),
    /// A step in progress; equal steps may follow.
    Busy(StepRow),
}

#[derive(Clone, Debug)]
struct EnteringRequest {
    at: At,
    ask: ScheduledRequest,
}

/// The sink for events and counters.
struct EventReporter<'a> {
    out: &'a mut Vec<Emission>,
    totals: &'a mut Totals,
    outlet: &'a mut TokenEmitter,
    detail: Detail,
}

impl Batching {
    pub fn new(spec: &BatchingSpec) -> Result<Batching, SimSpecError> {
        let blocks = spec.blocks()?;
        let limits = SchedulerLimits {
            max_seqs: spec.max_seqs,
            token_budget: spec.token_budget,
            chunked_prefill: spec.chunked_prefill,
            long_prefill_threshold: spec.long_prefill_threshold,
            blocks,
            watermark_blocks: (spec.kv_watermark * f64::from(blocks)) as u32,
            prefix_cache: spec.prefix_cache,
            draft_tokens: spec.speculative.as_ref().map_or(0, |speculative| speculative.draft_tokens),
            accepted: spec
                .speculative
                .as_ref()
                .map_or(0, |speculative| (speculative.accepted_length * 4_294_967_296.0).round() as u64),
        };
        Ok(Batching {
            scheduler: Scheduler::new(limits, &spec.policy),
            pace: StepPace::new(spec),
            plan: StepPlan::default(),
            front: VecDeque::new(),
            front_ids: HashSet::default(),
            front_delay: Span((spec.front_ms * 1e6).round() as i64),
            outlet: TokenEmitter::new(spec.emit_us),
            detail: Detail::Tokens,
            max_context: spec.max_context.map_or(u64::from(u32::MAX), u64::from),
            queue_limit: spec.queue_limit,
            state: State::Idle,
            stalled_until: i128::MIN,
            iterations: BucketHistogram::new(ITERATION),
        })
    }

    pub fn submit(&mut self, now: At, request: Submit) -> Result<(), EngineRejection> {
        let id = request.id;
        let leaving = self.outlet.is_slow() && self.outlet.holds(id);
        if self.scheduler.knows(id) || self.front_ids.contains(&id) || leaving {
            return Err(EngineRejection::DuplicateId { id });
        }
        let prompt_tokens = request.prompt_tokens.max(1);
        let tokens = u64::from(prompt_tokens) + u64::from(request.output_tokens);
        // The last output token is never computed, so it needs no KV slot.
        let longest = (self.scheduler.longest() + u64::from(request.output_tokens > 0)).min(self.max_context);
        if tokens > longest {
            return Err(EngineRejection::TooLong { tokens, limit: longest });
        }
        if let Some(limit) = self.queue_limit
            && self.waiting() >= limit
        {
            return Err(EngineRejection::QueueFull { limit });
        }
        let at = now + self.front_delay;
        self.front_ids.insert(id);
        let ask = ScheduledRequest {
            id,
            at_ps: picoseconds(at),
            priority: request.priority,
            prompt_tokens,
            output_tokens: request.output_tokens,
            blocks: request.blocks,
            handed_over: request.handed_over && request.output_tokens > 1,
        };
        self.front.push_back(EnteringRequest { at, ask });
        Ok(())
    }

    /// Returns the time of the next emission. With [`Detail::Ends`], tokens between the first and the last are not
    /// emitted.
    pub fn next_at(&self) -> Option<At> {
        match self.detail {
            Detail::Ends => self.next_turn(),
            Detail::Tokens => {
                let step = match &self.state {
                    State::Idle => None,
                    State::Due(ps) => Some(*ps),
                    State::Busy(row) => Some(row.end),
                };
                self.first_of(step, self.outlet.next_ps())
            }
        }
    }

    /// Returns the earliest time of an event other than a token between the first and the last of a response.
    pub fn next_turn(&self) -> Option<At> {
        let step = match &self.state {
            State::Idle => None,
            State::Due(ps) => Some(*ps),
            State::Busy(row) => Some(row.end_after(row.ahead)),
        };
        self.first_of(step, self.outlet.next_turn_ps())
    }

    fn first_of(&self, step: Option<i128>, leaving: Option<i128>) -> Option<At> {
        let entry = self.front.front().map(|entering| entering.at);
        [step.map(stamp), leaving.map(stamp), entry].into_iter().flatten().min()
    }

    /// Processes all events up to `limit`.
    pub fn run(&mut self, limit: At, out: &mut Vec<Emission>, totals: &mut Totals) {
        let limit_ps = picoseconds(limit);
        loop {
            let step = match &self.state {
                State::Idle => i128::MAX,
                State::Due(ps) => *ps,
                State::Busy(row) => row.end,
            };
            let entry = self.front.front().map_or(i128::MAX, |entering| picoseconds(entering.at));
            let leaving = self.outlet.next_ps().unwrap_or(i128::MAX);
            // At one picosecond: requests enter, tokens leave, then steps end.
            let first = entry.min(leaving).min(step);
            if first > limit_ps || first == i128::MAX {
                return;
            }
            if entry == first {
                self.enter();
            } else if leaving == first {
                self.leave(out, totals);
            } else {
                let until =
                    if self.scheduler.is_open() { limit_ps.min(entry.saturating_sub(1)) } else { limit_ps };
                self.move_on(until, out, totals);
            }
        }
    }

    pub fn cancel(&mut self, id: u64) -> bool {
        if self.front_ids.remove(&id) {
            self.front.retain(|entering| entering.ask.id != id);
            return true;
        }
        let leaving = self.outlet.is_slow() && self.outlet.holds(id);
        if leaving {
            self.outlet.drop_all_of(id);
        }
        let known = self.scheduler.cancel(id);
        self.look_again();
        known || leaving
    }

    /// Drops everything in flight and returns the ids in ascending order.
    pub fn reset(&mut self) -> Vec<u64> {
        let mut ids = self.scheduler.reset();
        ids.extend(self.front.drain(..).map(|entering| entering.ask.id));
        ids.extend(self.outlet.clear());
        ids.sort_unstable();
        ids.dedup();
        self.front_ids.clear();
        self.state = State::Idle;
        self.iterations = BucketHistogram::new(ITERATION);
        ids
    }

    pub fn set_detail(&mut self, detail: Detail) {
        self.detail = detail;
    }

    pub fn flush_cache(&mut self) {
        self.scheduler.flush_cache();
        self.look_again();
    }

    pub fn set_kv_blocks(&mut self, now: At, blocks: u32) {
        self.scheduler.set_blocks(blocks);
        self.look_again();
        if matches!(self.state, State::Idle) && self.scheduler.waiting() > 0 {
            self.state = State::Due(picoseconds(now).max(self.stalled_until));
        }
    }

    pub fn set_speed(&mut self, factor: f64) {
        self.pace.set_factor(factor);
        self.look_again();
    }

    pub fn extra_step_us(&mut self, extra_us: f64) {
        self.pace.set_extra_us(extra_us);
        self.look_again();
    }

    pub fn stall(&mut self, until: At) {
        self.stalled_until = self.stalled_until.max(picoseconds(until));
        match &mut self.state {
            State::Idle => {}
            State::Due(ps) => *ps = self.stalled_until.max(*ps),
            State::Busy(row) => row.end = self.stalled_until.max(row.end),
        }
    }

    /// Returns the tokens of a prompt with these blocks that are in the prefix cache.
    pub fn cached_prefix(&self, blocks: &[u64]) -> u32 {
        self.scheduler.cached_blocks(blocks) * crate::spec::error::BLOCK_TOKENS
    }

    pub fn fill(&self, gauges: &mut EngineGauges) {
        gauges.running = self.scheduler.running();
        gauges.waiting = self.waiting();
        gauges.kv_blocks = self.scheduler.blocks();
        gauges.kv_blocks_used = self.scheduler.blocks_used();
    }

    pub fn iterations(&self) -> &BucketHistogram {
        &self.iterations
    }

    fn waiting(&self) -> u32 {
        self.scheduler.waiting() + self.front.len() as u32
    }

    /// Cancels the predicted steps after the present one, because the next plan may differ.
    fn look_again(&mut self) {
        if let State::Busy(row) = &mut self.state {
            row.ahead = 0;
        }
    }

    fn enter(&mut self) {
        let Some(entering) = self.front.pop_front() else { return };
        self.front_ids.remove(&entering.ask.id);
        if self.scheduler.is_open() {
            self.look_again();
        }
        self.scheduler.admit(entering.ask);
        let now = picoseconds(entering.at).max(self.stalled_until);
        match &mut self.state {
            State::Idle => self.state = State::Due(now),
            State::Due(ps) => *ps = now.min(*ps).max(self.stalled_until),
            State::Busy(_) => {}
        }
    }

    fn leave(&mut self, out: &mut Vec<Emission>, totals: &mut Totals) {
        if let Some(held) = self.outlet.pop() {
            totals.finished += u64::from(matches!(held.emission.what, RequestEvent::Finished { .. }));
            out.push(held.emission);
        }
    }

    /// Ends the present step and all equal ones that end by `until`, or plans the due step.
    fn move_on(&mut self, until: i128, out: &mut Vec<Emission>, totals: &mut Totals) {
        match self.state {
            State::Idle => {}
            State::Due(ps) => self.begin(ps, out, totals),
            State::Busy(row) => match row.ended_by(until) {
                0 => {
                    self.end(row.end, out, totals);
                    self.begin(row.end, out, totals);
                }
                steps => self.jump(row, steps, out, totals),
            },
        }
    }

    fn begin(&mut self, ps: i128, out: &mut Vec<Emission>, totals: &mut Totals) {
        let plan = &mut self.plan;
        self.scheduler.plan(ps, plan);
        totals.preempted += plan.preempted.len() as u64;
        totals.prefix_queries += plan.prefix_queries;
        totals.prefix_hits += plan.prefix_hits;
        let at = stamp(ps);
        out.extend(plan.preempted.iter().map(|&id| Emission { at, id, what: RequestEvent::Preempted }));
        out.extend(plan.admitted.iter().map(|&(id, cached)| Emission {
            at,
            id,
            what: RequestEvent::Admitted { cached },
        }));
        if plan.is_empty() {
            self.state = match self.scheduler.next_wake() {
                Some(wake) if wake > ps => State::Due(wake.max(self.stalled_until)),
                _ => State::Idle,
            };
            return;
        }
        let mut row = StepRow::single(ps + self.pace.picoseconds(&plan.load));
        row.ahead = self.scheduler.ahead(plan);
        if row.ahead > 0 {
            row.slope = self.pace.per_context(&plan.load) * i128::from(plan.load.decodes);
            let context = plan.load.context + u64::from(plan.load.decodes);
            row.next = self.pace.picoseconds(&crate::engine::step_time::StepLoad { context, ..plan.load });
            // At the minimum step duration, durations are not linear.
            row.ahead = if row.next > SHORTEST_PS { row.ahead } else { 0 };
        }
        self.state = State::Busy(row);
    }

    fn end(&mut self, ps: i128, out: &mut Vec<Emission>, totals: &mut Totals) {
        totals.steps += 1;
        let mut teller = EventReporter { out, totals, outlet: &mut self.outlet, detail: self.detail };
        let mut brought = 0;
        self.scheduler.commit(&self.plan, |progress| {
            brought += u64::from(progress.prefilled.unwrap_or(0)) + u64::from(progress.tokens);
            teller.tell(progress, ps);
        });
        teller.totals.drafts += self.scheduler.take_drafts();
        if brought > 0 {
            self.iterations.observe(brought);
        }
    }

    /// Records `steps` steps of a row together.
    fn jump(&mut self, mut row: StepRow, steps: u32, out: &mut Vec<Emission>, totals: &mut Totals) {
        let tokens = self.plan.items.len() as u32;
        totals.steps += u64::from(steps);
        if self.scheduler.streams() {
            totals.output_tokens += u64::from(tokens) * u64::from(steps);
            self.iterations.observe_many(u64::from(tokens), u64::from(steps));
            if self.detail == Detail::Tokens {
                self.tell_row(&row, steps, out);
            } else if self.outlet.is_slow() {
                for step in 0..steps {
                    self.outlet.serve(row.end_after(step), tokens);
                }
            }
        }
        row.go_on(steps);
        self.state = State::Busy(row);
        self.scheduler.decode_on(&mut self.plan, steps);
    }

    /// Emits one token for each sequence and step of a row.
    fn tell_row(&mut self, row: &StepRow, steps: u32, out: &mut Vec<Emission>) {
        let what = RequestEvent::Token { n: 1, last: false };
        for step in 0..steps {
            let ps = row.end_after(step);
            if self.outlet.is_slow() {
                for id in self.scheduler.ids(&self.plan) {
                    let ps = self.outlet.serve(ps, 1);
                    self.outlet.hold(PendingTokens {
                        ps,
                        emission: Emission { at: stamp(ps), id, what },
                        inner: true,
                    });
                }
            } else {
                let at = stamp(ps);
                out.extend(self.scheduler.ids(&self.plan).map(|id| Emission { at, id, what }));
            }
        }
    }
}

impl EventReporter<'_> {
    fn tell(&mut self, progress: SequenceProgress, ps: i128) {
        let SequenceProgress { id, prefilled, tokens, first, generated, finished } = progress;
        if let Some(prompt_tokens) = prefilled {
            self.totals.prompt_tokens += u64::from(prompt_tokens);
            self.out.push(Emission { at: stamp(ps), id, what: RequestEvent::PrefillDone });
        }
        // A response without tokens also ends after tokens that are still in the outlet.
        let slow = self.outlet.is_slow() && (tokens > 0 || finished);
        let ps = if slow { self.outlet.serve(ps, tokens) } else { ps };
        if tokens > 0 {
            self.totals.output_tokens += u64::from(tokens);
            let inner = !first && !finished;
            // The first event has one token, unless there is only one event.
            let n = if first || self.detail == Detail::Tokens { tokens } else { generated - 1 };
            if self.detail == Detail::Tokens || !inner {
                self.put(
                    ps,
                    Emission { at: stamp(ps), id, what: RequestEvent::Token { n, last: finished } },
                    inner,
                );
            }
        }
        if finished {
            let reason = if generated > 0 { FinishReason::Length } else { FinishReason::Stop };
            self.put(ps, Emission { at: stamp(ps), id, what: RequestEvent::Finished { reason } }, false);
        }
    }

    fn put(&mut self, ps: i128, emission: Emission, inner: bool) {
        if self.outlet.is_slow() {
            self.outlet.hold(PendingTokens { ps, emission, inner });
        } else {
            self.totals.finished += u64::from(matches!(emission.what, RequestEvent::Finished { .. }));
            self.out.push(emission);
        }
    }
}

fn picoseconds(at: At) -> i128 {
    i128::from(at.0) * 1_000
}

/// Returns the first whole nanosecond that is not before `ps`.
fn stamp(ps: i128) -> At {
    At(i64::try_from(ps.div_euclid(1_000) + i128::from(ps.rem_euclid(1_000) > 0)).unwrap_or(i64::MAX))
}
