//! The scheduler of the next step: one small state machine per policy over one pool of KV blocks.
//!
//! The interface is `admit`, `plan`, `commit`, `cancel`. There is no clock, socket or randomness; the only policy
//! with a timer takes the time as an argument and returns its next wake-up. `running_first` is vLLM v1 and
//! TensorRT-LLM's no-evict, `sglang` is SGLang, `fixed` is static batching. `desk` executes their decisions, `policy`
//! is the configuration.
//!
//! A period in which the running set only decodes and no request can join is computed in closed form. `ahead` returns
//! the number of equal steps that can follow the planned one, `decode_on` records them. Every event that ends such a
//! period (a finish, an admission, missing blocks) is left to an ordinary step. Each rule is therefore written once.

mod desk;
mod fixed;
pub mod policy;
mod running_first;
mod sglang;

use desk::SchedulerState;
use fixed::FixedScheduler;
use policy::PolicySpec;
use running_first::RunningFirst;
use sglang::Sglang;

use crate::engine::kv::Eviction;
use crate::engine::step_time::StepLoad;
use crate::spec::error::BLOCK_TOKENS;
use crate::traffic::Drafts;

#[derive(Copy, Clone, PartialEq, Debug)]
pub struct SchedulerLimits {
    pub max_seqs: u32,
    pub token_budget: u32,
    /// Whether prompts may be split over steps.
    pub chunked_prefill: bool,
    /// Maximum tokens of one prompt per step; 0 for no limit.
    pub long_prefill_threshold: u32,
    /// KV blocks of [`BLOCK_TOKENS`] tokens.
    pub blocks: u32,
    /// Blocks that stay free when a request is admitted next to running ones.
    pub watermark_blocks: u32,
    /// Whether blocks are found by their names.
    pub prefix_cache: bool,
    /// Draft tokens per decoding sequence; 0 without speculative decoding.
    pub draft_tokens: u32,
    /// Mean tokens per step of a sequence that decodes with drafts, in 2⁻³².
    pub accepted: u64,
}

#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct ScheduledRequest {
    /// Id, unique among requests in flight.
    pub id: u64,
    pub at_ps: i128,
    /// Priority, 1 is the highest; 0 for none.
    pub priority: u32,
    /// Prompt tokens, at least 1.
    pub prompt_tokens: u32,
    pub output_tokens: u32,
    /// Names of the prompt's full blocks.
    pub blocks: Vec<u64>,
    /// Set if another replica computed the prompt and the first token, and the KV cache was transferred. Supported
    /// only by policies that schedule running sequences first.
    pub handed_over: bool,
}

/// The sequences of a step and their tokens. Reused from step to step.
#[derive(Clone, Default, Debug)]
pub struct StepPlan {
    /// Sequences and their tokens, in order of scheduling.
    pub(crate) items: Vec<(u32, u32)>,
    /// Ids of first admissions, with their cached prompt tokens.
    pub admitted: Vec<(u64, u32)>,
    pub preempted: Vec<u64>,
    /// Prompt tokens of the admitted sequences that were queried in the cache.
    pub prefix_queries: u64,
    /// Prompt tokens of the admitted sequences that were found in the cache.
    pub prefix_hits: u64,
    /// Load of the step, which determines its duration.
    pub load: StepLoad,
}

impl StepPlan {
    /// Returns whether the step has no tokens.
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    fn clear(&mut self) {
        self.items.clear();
        self.admitted.clear();
        self.preempted.clear();
        (self.prefix_queries, self.prefix_hits) = (0, 0);
        self.load = StepLoad::default();
    }
}

/// The result of a step for one sequence.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct SequenceProgress {
    pub id: u64,
    /// Prompt tokens, at the first complete prefill; else `None`.
    pub prefilled: Option<u32>,
    pub tokens: u32,
    /// Set if the tokens are the first.
    pub first: bool,
    /// Number of tokens so far, including the new ones.
    pub generated: u32,
    /// Set if the sequence is complete.
    pub finished: bool,
}

/// The scheduler of one engine, without clock and randomness.
#[derive(Clone, Debug)]
pub struct Scheduler {
    desk: SchedulerState,
    policy: Policy,
    spec: PolicySpec,
}

#[derive(Clone, Debug)]
enum Policy {
    RunningFirst(RunningFirst),
    Sglang(Sglang),
    Fixed(FixedScheduler),
}

impl Scheduler {
    pub fn new(mut limits: SchedulerLimits, spec: &PolicySpec) -> Scheduler {
        let (policy, eviction) = match spec {
            PolicySpec::Vllm(vllm) => (Policy::RunningFirst(RunningFirst::vllm(vllm)), Eviction::Oldest),
            PolicySpec::NoEvict(_) => (Policy::RunningFirst(RunningFirst::no_evict()), Eviction::Oldest),
            PolicySpec::Sglang(sglang) => (Policy::Sglang(Sglang::new(sglang)), Eviction::BlankFirst),
            PolicySpec::Static(fixed) => (Policy::Fixed(FixedScheduler::new(fixed)), Eviction::Oldest),
        };
        // These policies decode all running sequences in one step, so all must fit into the budget.
        if !matches!(policy, Policy::RunningFirst(_)) {
            limits.max_seqs = limits.max_seqs.min(limits.token_budget);
        }
        if matches!(policy, Policy::Fixed(_)) {
            (limits.prefix_cache, limits.draft_tokens) = (false, 0);
        }
        Scheduler { desk: SchedulerState::new(limits, eviction), policy, spec: spec.clone() }
    }

    /// Returns the maximum tokens of a sequence that can finish (prompt and output, without the last token, which is
    /// never computed).
    pub fn longest(&self) -> u64 {
        let limits = &self.desk.limits;
        let held = u64::from(limits.blocks) * u64::from(BLOCK_TOKENS);
        match &self.policy {
            Policy::Fixed(_) => held,
            Policy::RunningFirst(_) if limits.chunked_prefill || limits.long_prefill_threshold > 0 => held,
            Policy::RunningFirst(_) => held.min(u64::from(limits.token_budget)),
            // The admission of SGLang needs one more block and one more token.
            Policy::Sglang(_) => {
                let held = held.saturating_sub(u64::from(BLOCK_TOKENS) + 2);
                if limits.chunked_prefill { held } else { held.min(u64::from(limits.token_budget)) }
            }
        }
    }

    /// Returns whether the id is in the scheduler.
    pub fn knows(&self, id: u64) -> bool {
        self.desk.sequences.find(id).is_some()
    }

    /// Queues a sequence. Its id must be new, and its length within [`longest`](Scheduler::longest).
    pub fn admit(&mut self, ask: ScheduledRequest) {
        match &self.policy {
            Policy::RunningFirst(policy) => policy.admit(&mut self.desk, ask),
            Policy::Sglang(policy) => policy.admit(&mut self.desk, ask),
            Policy::Fixed(policy) => policy.admit(&mut self.desk, ask),
        }
    }

    /// Decides the next step. [`commit`](Scheduler::commit) must follow before the next plan.
    pub fn plan(&mut self, now_ps: i128, plan: &mut StepPlan) {
        plan.clear();
        match &mut self.policy {
            Policy::RunningFirst(policy) => policy.plan(&mut self.desk, plan),
            Policy::Sglang(policy) => policy.plan(&mut self.desk, plan),
            Policy::Fixed(policy) => policy.plan(&mut self.desk, now_ps, plan),
        }
    }

    /// Returns the time of the next plan without an event, after an empty plan.
    pub fn next_wake(&self) -> Option<i128> {
        match &self.policy {
            Policy::RunningFirst(_) | Policy::Sglang(_) => None,
            Policy::Fixed(policy) => policy.next_wake(&self.desk),
        }
    }

    /// Records the results of a completed step and reports them.
    pub fn commit(&mut self, plan: &StepPlan, progress: impl FnMut(SequenceProgress)) {
        match &mut self.policy {
            Policy::RunningFirst(_) => {
                self.desk.commit(plan, false, progress);
            }
            Policy::Sglang(policy) => {
                if self.desk.commit(plan, true, progress) > 0 {
                    policy.left();
                }
            }
            Policy::Fixed(policy) => policy.commit(&mut self.desk, plan, progress),
        }
    }

    /// Returns the counters of drafts since the last call.
    pub(crate) fn take_drafts(&mut self) -> Drafts {
        std::mem::take(&mut self.desk.drafts)
    }

    /// Removes a sequence and frees its blocks. Returns `false` if the id is unknown.
    pub fn cancel(&mut self, id: u64) -> bool {
        let Some(slot) = self.desk.cancel(id) else { return false };
        match &mut self.policy {
            Policy::RunningFirst(_) => {}
            Policy::Sglang(policy) => policy.cancelled(slot),
            Policy::Fixed(policy) => policy.cancelled(&mut self.desk),
        }
        true
    }

    /// Drops all sequences, including the present step, and the cache. Returns their ids in ascending order.
    pub fn reset(&mut self) -> Vec<u64> {
        let ids = self.desk.sequences.ids();
        let blocks = self.desk.pool.blocks();
        *self = Scheduler::new(self.desk.limits, &self.spec);
        self.desk.pool.resize(blocks);
        ids
    }

    /// Removes all prefixes from the cache.
    pub fn flush_cache(&mut self) {
        self.desk.pool.flush();
    }

    /// Sets the number of blocks; the next plan applies it.
    pub fn set_blocks(&mut self, blocks: u32) {
        self.desk.pool.resize(blocks);
    }

    /// Returns the number of leading blocks of a chain that are cached.
    pub(crate) fn cached_blocks(&self, names: &[u64]) -> u32 {
        self.desk.pool.find(names, u64::MAX, u32::MAX).blocks
    }

    /// Returns the number of equal steps that can follow the planned one. If [`is_open`](Scheduler::is_open) returns
    /// `false`, the number is valid despite arrivals; otherwise only until the next arrival.
    pub fn ahead(&self, plan: &StepPlan) -> u32 {
        let all_decode = plan.load.chunks == 0 && plan.load.decodes > 0;
        if !all_decode || self.desk.limits.draft_tokens > 0 || !plan.preempted.is_empty() {
            return 0;
        }
        match &self.policy {
            Policy::Fixed(policy) => policy.decodes_ahead(),
            _ if plan.items.len() != self.desk.running.len() => 0,
            Policy::Sglang(policy) if policy.is_open() && !self.desk.waiting.is_empty() => 0,
            Policy::RunningFirst(_) | Policy::Sglang(_) => self.desk.decodes_ahead(plan),
        }
    }

    /// Returns whether a new request could change the next plan.
    pub fn is_open(&self) -> bool {
        match &self.policy {
            Policy::RunningFirst(policy) => policy.is_open(&self.desk),
            Policy::Sglang(policy) => policy.is_open(),
            Policy::Fixed(policy) => policy.is_open(),
        }
    }

    /// Records the planned step and `steps - 1` equal ones, with one more planned. At most
    /// [`ahead`](Scheduler::ahead) steps are permitted.
    pub(crate) fn decode_on(&mut self, plan: &mut StepPlan, steps: u32) {
        plan.load.context += u64::from(plan.load.decodes) * u64::from(steps);
        plan.admitted.clear();
        match &mut self.policy {
            Policy::RunningFirst(_) => self.desk.decode_on(plan, steps),
            Policy::Sglang(policy) => {
                self.desk.decode_on(plan, steps);
                policy.decode_on(steps);
            }
            Policy::Fixed(policy) => policy.decode_on(steps),
        }
    }

    /// Returns whether tokens leave immediately. Otherwise all leave at the end.
    pub fn streams(&self) -> bool {
        !matches!(self.policy, Policy::Fixed(_))
    }

    /// Returns the ids of a planned step, in order of scheduling.
    pub(crate) fn ids<'a>(&'a self, plan: &'a StepPlan) -> impl Iterator<Item = u64> + 'a {
        plan.items.iter().map(|&(slot, _)| self.desk.at(slot).id)
    }

    /// Returns the ids and tokens of a plan that is not committed yet, in order of scheduling.
    pub fn shares<'a>(&'a self, plan: &'a StepPlan) -> impl Iterator<Item = (u64, u32)> + 'a {
        plan.items.iter().map(|&(slot, tokens)| (self.desk.at(slot).id, tokens))
    }

    pub fn running(&self) -> u32 {
        self.desk.running.len() as u32
    }

    /// Returns the number of waiting sequences, including preempted ones.
    pub fn waiting(&self) -> u32 {
        self.desk.waiting.len() as u32
    }

    pub fn blocks(&self) -> u32 {
        self.desk.pool.blocks()
    }

    pub fn blocks_used(&self) -> u32 {
        self.desk.pool.used()
    }
}
