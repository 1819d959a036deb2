//! vLLM v1, and guaranteed no evict: running sequences first, then waiting ones.
//!
//! There is no prefill phase and no decode phase. Each sequence has *wanted* tokens (prompt and output so far) and
//! *computed* tokens, and every step distributes a token budget:
//!
//! 1. **Running sequences first, in order.** Each gets its missing tokens, within the budget. If blocks are missing,
//!    the *last* running sequence (by priority: the largest of priority and arrival) is preempted. It loses its
//!    blocks and computed tokens and goes to the *front* of the queue (by priority: to its position). Preemption
//!    repeats until there is room or the sequence has preempted itself.
//! 2. **Then waiting sequences, in order, only if no sequence was preempted in this step**, within budget and limits.
//!    Tokens in the prefix cache are not computed again, except for the last token. The first sequence without enough
//!    blocks stops the queue.
//!
//! A preempted sequence computes prompt and output again, without the blocks that are still cached. Preemption can't
//! deadlock: sequences longer than the whole cache are rejected, so the first running sequence always completes.
//!
//! Guaranteed no evict uses the same code with another gate. A request starts when its maximum length fits next to
//! the reservations of the running ones, so step 1 never lacks blocks. It delays long requests and hides the effects
//! of a KV cache that is too small.
//!
//! (vllm-project/vllm: vllm/v1/core/sched/scheduler.py, `Scheduler.schedule`; NVIDIA/TensorRT-LLM:
//! cpp/tensorrt_llm/batch_manager/capacityScheduler.cpp, `GuaranteedNoEvictScheduler`.)

use super::desk::{SchedulerState, Sequence};
use super::policy::{VllmOrder, VllmSpec};
use super::{ScheduledRequest, StepPlan};
use crate::engine::kv::KvLookup;
use crate::spec::error::BLOCK_TOKENS;

/// The tokens that must fit before a request starts.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
enum Gate {
    /// Tokens of the first step.
    Chunk,
    /// All pending tokens.
    Sequence,
    /// All pending and future tokens, next to the reservations of the running sequences.
    Answer,
}

/// The state of a policy with running sequences first.
#[derive(Clone, Debug)]
pub(crate) struct RunningFirst {
    order: VllmOrder,
    gate: Gate,
}

impl RunningFirst {
    pub fn vllm(spec: &VllmSpec) -> RunningFirst {
        let gate = if spec.reserve_full { Gate::Sequence } else { Gate::Chunk };
        RunningFirst { order: spec.order, gate }
    }

    pub fn no_evict() -> RunningFirst {
        RunningFirst { order: VllmOrder::Fcfs, gate: Gate::Answer }
    }

    pub fn admit(&self, desk: &mut SchedulerState, ask: ScheduledRequest) {
        let slot = desk.insert(ask);
        self.queue(desk, slot, false);
    }

    pub fn plan(&self, desk: &mut SchedulerState, plan: &mut StepPlan) {
        let mut budget = desk.limits.token_budget;
        self.plan_running(desk, plan, &mut budget);
        if plan.preempted.is_empty() {
            self.plan_waiting(desk, plan, &mut budget);
        }
        desk.weigh(plan);
    }

    /// Returns whether a new request can be in the next step. If not, a period of decodes continues despite arrivals.
    pub fn is_open(&self, desk: &SchedulerState) -> bool {
        let ranked = self.order == VllmOrder::Priority;
        let places = desk.running.len() < desk.limits.max_seqs as usize;
        places && (ranked || desk.waiting.is_empty())
    }

    fn plan_running(&self, desk: &mut SchedulerState, plan: &mut StepPlan, budget: &mut u32) {
        let mut place = 0;
        while desk.pool.owed() > 0 && !desk.running.is_empty() && self.gate != Gate::Answer {
            self.preempt(desk, plan);
        }
        while place < desk.running.len() && *budget > 0 {
            let slot = desk.running[place];
            let tokens = bounded(desk, desk.wish(slot)).min(*budget);
            while !desk.grow(slot, tokens) {
                let (victim, its_place) = self.preempt(desk, plan);
                if its_place < place {
                    // The victim was in the step already, so its tokens return to the budget.
                    place -= 1;
                    if let Some(item) = plan.items.iter().position(|&(planned, _)| planned == victim) {
                        *budget += plan.items.remove(item).1;
                    }
                }
                if victim == slot {
                    return;
                }
            }
            desk.name(slot, tokens);
            desk.schedule(plan, slot, tokens);
            *budget -= tokens;
            place += 1;
        }
    }

    fn plan_waiting(&self, desk: &mut SchedulerState, plan: &mut StepPlan, budget: &mut u32) {
        while *budget > 0 && desk.running.len() < desk.limits.max_seqs as usize {
            let Some(&slot) = desk.waiting.front() else { return };
            let found = desk.find(slot);
            let cached = (found.blocks * BLOCK_TOKENS).max(desk.at(slot).received);
            let mut tokens = bounded(desk, desk.at(slot).wanted() - cached);
            if tokens > *budget {
                if !desk.limits.chunked_prefill {
                    return;
                }
                tokens = *budget;
            }
            if !self.may_start(desk, slot, found, cached + tokens) {
                return;
            }
            desk.waiting.pop_front();
            desk.start(plan, slot, found, tokens);
            desk.name(slot, tokens);
            desk.schedule(plan, slot, tokens);
            *budget -= tokens;
        }
    }

    fn may_start(&self, desk: &SchedulerState, slot: u32, found: KvLookup, tokens: u32) -> bool {
        let spare = if desk.running.is_empty() { 0 } else { desk.limits.watermark_blocks };
        match self.gate {
            Gate::Chunk => desk.fits(found, tokens, spare),
            Gate::Sequence => desk.fits(found, desk.at(slot).tokens(), spare),
            Gate::Answer => {
                let promised = desk.running.iter().map(|&running| {
                    desk.missing(running, whole(desk.at(running)) - desk.at(running).computed)
                });
                desk.fits(found, whole(desk.at(slot)), spare.saturating_add(promised.sum()))
            }
        }
    }

    /// Preempts the last sequence in the order of preemption. Returns the sequence and its former position.
    fn preempt(&self, desk: &mut SchedulerState, plan: &mut StepPlan) -> (u32, usize) {
        let place = match self.order {
            VllmOrder::Fcfs => desk.running.len() - 1,
            VllmOrder::Priority => {
                let ranks = desk.running.iter().map(|&slot| rank(desk.at(slot)));
                ranks.enumerate().max_by_key(|(_, rank)| *rank).map_or(0, |(place, _)| place)
            }
        };
        let victim = desk.running.remove(place);
        desk.strip(plan, victim, u32::MAX);
        self.queue(desk, victim, true);
        (victim, place)
    }

    fn queue(&self, desk: &mut SchedulerState, slot: u32, preempted: bool) {
        match self.order {
            VllmOrder::Fcfs if preempted => desk.waiting.push_front(slot),
            VllmOrder::Fcfs => desk.waiting.push_back(slot),
            VllmOrder::Priority => {
                let own = rank(desk.at(slot));
                let sequences = &desk.sequences;
                let place = desk.waiting.partition_point(|&other| rank(sequences.at(other)) < own);
                desk.waiting.insert(place, slot);
            }
        }
    }
}

/// Returns the rank of a sequence; the smallest is first. Requests without a priority come after those with one.
fn rank(sequence: &Sequence) -> (u32, u64) {
    (sequence.priority.wrapping_sub(1), sequence.number)
}

/// Returns all tokens that a sequence will ever have computed, which excludes the last output token.
fn whole(sequence: &Sequence) -> u32 {
    (sequence.prompt + sequence.output).saturating_sub(1).max(sequence.prompt)
}

/// Returns `tokens`, limited to the maximum of one prompt per step.
fn bounded(desk: &SchedulerState, tokens: u32) -> u32 {
    match desk.limits.long_prefill_threshold {
        0 => tokens,
        threshold => tokens.min(threshold),
    }
}
