//! Continuous batching in time: the front end's delay, the queue's bound, and steps that take what the model says.
//!
//! The clock inside counts picoseconds, outside nanoseconds; an event is stamped with the first whole nanosecond that
//! is not before it. So nothing is ever seen before it happened, and a request that comes at the stamp of a step's end
//! comes after it.

use std::collections::{HashSet, VecDeque};
use std::hash::BuildHasherDefault;

use plimsoll_model::{At, Span};

use crate::scheduler::{Limits, Progress, Scheduler, StepPlan};
use crate::slots::IdHasher;
use crate::spec::{BatchingSpec, SpecError};
use crate::step_time::StepModel;
use crate::world::{Emission, FinishReason, Gauges, Rejected, Submit, Totals, What};

/// See the module.
#[derive(Clone, Debug)]
pub(crate) struct Batching {
    scheduler: Scheduler,
    model: StepModel,
    plan: StepPlan,
    /// Requests on their way to the scheduler, in order of arrival there.
    front: VecDeque<Entering>,
    front_ids: HashSet<u64, BuildHasherDefault<IdHasher>>,
    front_delay: Span,
    blocks: u32,
    max_context: u64,
    queue_limit: Option<u32>,
    state: State,
}

#[derive(Copy, Clone, Debug)]
enum State {
    /// Nothing to do.
    Idle,
    /// A step is to be planned at this picosecond.
    Due(i128),
    /// A step is under way and ends at this picosecond.
    Busy(i128),
}

#[derive(Copy, Clone, Debug)]
struct Entering {
    at: At,
    id: u64,
    prompt_tokens: u32,
    output_tokens: u32,
}

impl Batching {
    pub fn new(spec: &BatchingSpec) -> Result<Batching, SpecError> {
        let blocks = spec.blocks()?;
        let limits = Limits {
            max_seqs: spec.max_seqs,
            token_budget: spec.token_budget,
            chunked_prefill: spec.chunked_prefill,
            long_prefill_threshold: spec.long_prefill_threshold,
            blocks,
            watermark_blocks: (spec.kv_watermark * f64::from(blocks)) as u32,
        };
        Ok(Batching {
            scheduler: Scheduler::new(limits),
            model: StepModel::new(spec),
            plan: StepPlan::default(),
            front: VecDeque::new(),
            front_ids: HashSet::default(),
            front_delay: Span((spec.front_ms * 1e6).round() as i64),
            blocks,
            max_context: spec.max_context.map_or(u64::from(u32::MAX), u64::from),
            queue_limit: spec.queue_limit,
            state: State::Idle,
        })
    }

    pub fn submit(&mut self, now: At, request: &Submit) -> Result<(), Rejected> {
        let id = request.id;
        if self.scheduler.knows(id) || self.front_ids.contains(&id) {
            return Err(Rejected::DuplicateId { id });
        }
        let prompt_tokens = request.prompt_tokens.max(1);
        let tokens = u64::from(prompt_tokens) + u64::from(request.output_tokens);
        // The last token of an answer is never computed, so it needs no place.
        let longest = (self.scheduler.longest() + u64::from(request.output_tokens > 0)).min(self.max_context);
        if tokens > longest {
            return Err(Rejected::TooLong { tokens, limit: longest });
        }
        if let Some(limit) = self.queue_limit
            && self.waiting() >= limit
        {
            return Err(Rejected::QueueFull { limit });
        }
        let at = now + self.front_delay;
        self.front_ids.insert(id);
        self.front.push_back(Entering { at, id, prompt_tokens, output_tokens: request.output_tokens });
        Ok(())
    }

    pub fn next_at(&self) -> Option<At> {
        let entry = self.front.front().map(|entering| entering.at);
        let step = match self.state {
            State::Idle => None,
            State::Due(ps) | State::Busy(ps) => Some(stamp(ps)),
        };
        match (entry, step) {
            (Some(entry), Some(step)) => Some(entry.min(step)),
            (entry, step) => entry.or(step),
        }
    }

    /// Entries to the queue go before steps of the same picosecond.
    pub fn fire(&mut self, out: &mut Vec<Emission>, totals: &mut Totals) {
        let step = match self.state {
            State::Idle => i128::MAX,
            State::Due(ps) | State::Busy(ps) => ps,
        };
        if let Some(&entering) = self.front.front()
            && picoseconds(entering.at) <= step
        {
            self.front.pop_front();
            self.front_ids.remove(&entering.id);
            self.scheduler.admit(entering.id, entering.prompt_tokens, entering.output_tokens);
            if matches!(self.state, State::Idle) {
                self.state = State::Due(picoseconds(entering.at));
            }
            return;
        }
        match self.state {
            State::Idle => {}
            State::Due(ps) => self.begin(ps, out, totals),
            State::Busy(ps) => {
                self.end(ps, out, totals);
                self.begin(ps, out, totals);
            }
        }
    }

    pub fn cancel(&mut self, id: u64) -> bool {
        if self.front_ids.remove(&id) {
            self.front.retain(|entering| entering.id != id);
            return true;
        }
        self.scheduler.cancel(id)
    }

    pub fn fill(&self, gauges: &mut Gauges) {
        gauges.running = self.scheduler.running();
        gauges.waiting = self.waiting();
        gauges.kv_blocks = self.blocks;
        gauges.kv_blocks_used = self.scheduler.blocks_used();
    }

    fn waiting(&self) -> u32 {
        self.scheduler.waiting() + self.front.len() as u32
    }

    fn begin(&mut self, ps: i128, out: &mut Vec<Emission>, totals: &mut Totals) {
        self.scheduler.plan(&mut self.plan);
        totals.preempted += u64::from(self.plan.preempted);
        let at = stamp(ps);
        out.extend(self.plan.admitted.iter().map(|&id| Emission { at, id, what: What::Admitted }));
        self.state = if self.plan.is_empty() {
            State::Idle
        } else {
            State::Busy(ps + i128::from(self.model.picoseconds(&self.plan.load)))
        };
    }

    fn end(&mut self, ps: i128, out: &mut Vec<Emission>, totals: &mut Totals) {
        let at = stamp(ps);
        totals.steps += 1;
        self.scheduler.commit(&self.plan, |progress| report(progress, at, out, totals));
    }
}

fn report(progress: Progress, at: At, out: &mut Vec<Emission>, totals: &mut Totals) {
    let id = progress.id;
    if let Some(prompt_tokens) = progress.prefilled {
        totals.prompt_tokens += u64::from(prompt_tokens);
        out.push(Emission { at, id, what: What::PrefillDone });
    }
    if progress.token {
        totals.output_tokens += 1;
        out.push(Emission { at, id, what: What::Token { n: 1, last: progress.finished } });
    }
    if progress.finished {
        totals.finished += 1;
        let reason = if progress.token { FinishReason::Length } else { FinishReason::Stop };
        out.push(Emission { at, id, what: What::Finished { reason } });
    }
}

fn picoseconds(at: At) -> i128 {
    i128::from(at.0) * 1_000
}

/// The first whole nanosecond that is not before.
fn stamp(ps: i128) -> At {
    At(i64::try_from(ps.div_euclid(1_000) + i128::from(ps.rem_euclid(1_000) > 0)).unwrap_or(i64::MAX))
}
