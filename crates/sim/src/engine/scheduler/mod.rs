//! Which tokens are computed in the next step: one small state machine per policy over one pool of KV blocks.
//!
//! `admit`, `plan`, `commit`, `cancel`. No clock (the one policy with a timer is told the time, and says when it wants to
//! be asked again), no sockets, no chance. `running_first` is vLLM v1 and TensorRT-LLM's no-evict, `sglang` is
//! SGLang, `fixed` is static batching; `desk` does what they decide, `policy` is what the user writes.
//!
//! A stretch of steps in which the same sequences decode and nobody can join can be jumped over: `ahead` says how many
//! steps like the planned one can follow it, `decode_on` books them. Everything that ends such a stretch (a finish, an
//! admission, missing blocks) is left to an ordinary step, so that no rule is written twice.

mod desk;
mod fixed;
pub mod policy;
mod running_first;
mod sglang;

use desk::Desk;
use fixed::Fixed;
use policy::PolicySpec;
use running_first::RunningFirst;
use sglang::Sglang;

use crate::engine::kv::Eviction;
use crate::engine::step_time::StepLoad;
use crate::spec::error::BLOCK_TOKENS;
use crate::traffic::Drafts;

/// The bounds a scheduler works within.
#[derive(Copy, Clone, PartialEq, Debug)]
pub struct Limits {
    /// Most sequences running at once.
    pub max_seqs: u32,
    /// Most tokens in a step.
    pub token_budget: u32,
    /// May a prompt be split over steps?
    pub chunked_prefill: bool,
    /// Most tokens of one prompt in a step; 0 = no limit.
    pub long_prefill_threshold: u32,
    /// KV blocks of [`BLOCK_TOKENS`] tokens.
    pub blocks: u32,
    /// Blocks that an admission beside running sequences must leave free.
    pub watermark_blocks: u32,
    /// Are blocks found again by their names?
    pub prefix_cache: bool,
    /// Tokens drafted for each sequence that decodes; 0 = no speculative decoding.
    pub draft_tokens: u32,
    /// Mean tokens that a step brings to a sequence that decodes with drafts, in 2⁻³².
    pub accepted: u64,
}

/// A request, as the scheduler knows it.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct ScheduledRequest {
    /// Its name, new among those in flight.
    pub id: u64,
    /// When it came, picoseconds.
    pub at_ps: i128,
    /// Its priority, 1 first; 0 = none.
    pub priority: u32,
    /// At least 1.
    pub prompt_tokens: u32,
    pub output_tokens: u32,
    /// Names of the prompt's full blocks.
    pub blocks: Vec<u64>,
    /// Were its prompt and the first token computed elsewhere, and is its KV cache here? Only where the running go first.
    pub handed_over: bool,
}

/// What the sequences of a step get. Reused from step to step.
#[derive(Clone, Default, Debug)]
pub struct StepPlan {
    /// Sequence and its tokens, in the order in which they were scheduled.
    pub(crate) items: Vec<(u32, u32)>,
    /// Ids of those that leave the queue for the first time, and the prompt tokens that the cache held.
    pub admitted: Vec<(u64, u32)>,
    /// Ids of those that lost their place.
    pub preempted: Vec<u64>,
    /// Prompt tokens that were looked up in the cache, of those admitted.
    pub prefix_queries: u64,
    /// Of them those that it held.
    pub prefix_hits: u64,
    /// What the step's duration depends on.
    pub load: StepLoad,
}

impl StepPlan {
    /// True when nothing is to be computed.
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

/// What a step brought to one sequence.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct SequenceProgress {
    pub id: u64,
    /// The prompt's tokens, when the whole prompt was computed for the first time.
    pub prefilled: Option<u32>,
    /// Tokens that came out.
    pub tokens: u32,
    pub first: bool,
    /// Tokens that have come out, these included.
    pub generated: u32,
    /// Were they the last, or was there none to generate?
    pub finished: bool,
}

/// The scheduler: `admit`, `plan`, `commit`, `cancel`. It knows no time and no chance.
#[derive(Clone, Debug)]
pub struct Scheduler {
    desk: Desk,
    policy: Policy,
    spec: PolicySpec,
}

#[derive(Clone, Debug)]
enum Policy {
    RunningFirst(RunningFirst),
    Sglang(Sglang),
    Fixed(Fixed),
}

impl Scheduler {
    /// A scheduler without sequences.
    pub fn new(mut limits: Limits, spec: &PolicySpec) -> Scheduler {
        let (policy, eviction) = match spec {
            PolicySpec::Vllm(vllm) => (Policy::RunningFirst(RunningFirst::vllm(vllm)), Eviction::Oldest),
            PolicySpec::NoEvict(_) => (Policy::RunningFirst(RunningFirst::no_evict()), Eviction::Oldest),
            PolicySpec::Sglang(sglang) => (Policy::Sglang(Sglang::new(sglang)), Eviction::BlankFirst),
            PolicySpec::Static(fixed) => (Policy::Fixed(Fixed::new(fixed)), Eviction::Oldest),
        };
        // Where all that run decode in one step, they must fit into it.
        if !matches!(policy, Policy::RunningFirst(_)) {
            limits.max_seqs = limits.max_seqs.min(limits.token_budget);
        }
        if matches!(policy, Policy::Fixed(_)) {
            (limits.prefix_cache, limits.draft_tokens) = (false, 0);
        }
        Scheduler { desk: Desk::new(limits, eviction), policy, spec: spec.clone() }
    }

    /// Most tokens (prompt and answer, less the last one, which is never computed) of a sequence it can finish.
    pub fn longest(&self) -> u64 {
        let limits = &self.desk.limits;
        let held = u64::from(limits.blocks) * u64::from(BLOCK_TOKENS);
        match &self.policy {
            Policy::Fixed(_) => held,
            Policy::RunningFirst(_) if limits.chunked_prefill || limits.long_prefill_threshold > 0 => held,
            Policy::RunningFirst(_) => held.min(u64::from(limits.token_budget)),
            // Its admission wants a block more than the whole, and a token to spare.
            Policy::Sglang(_) => {
                let held = held.saturating_sub(u64::from(BLOCK_TOKENS) + 2);
                if limits.chunked_prefill { held } else { held.min(u64::from(limits.token_budget)) }
            }
        }
    }

    /// Is a sequence of this id here?
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

    /// Decides the next step. Must be followed by [`commit`](Scheduler::commit) before the next plan.
    pub fn plan(&mut self, now_ps: i128, plan: &mut StepPlan) {
        plan.clear();
        match &mut self.policy {
            Policy::RunningFirst(policy) => policy.plan(&mut self.desk, plan),
            Policy::Sglang(policy) => policy.plan(&mut self.desk, plan),
            Policy::Fixed(policy) => policy.plan(&mut self.desk, now_ps, plan),
        }
    }

    /// When to plan again although nothing happens, after a plan that was empty.
    pub fn next_wake(&self) -> Option<i128> {
        match &self.policy {
            Policy::RunningFirst(_) | Policy::Sglang(_) => None,
            Policy::Fixed(policy) => policy.next_wake(&self.desk),
        }
    }

    /// The step has run: books what was computed and says what came of it.
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

    /// What came of drafts since this was last asked.
    pub(crate) fn take_drafts(&mut self) -> Drafts {
        std::mem::take(&mut self.desk.drafts)
    }

    /// Forgets a sequence and frees its blocks. False where there is none of this id.
    pub fn cancel(&mut self, id: u64) -> bool {
        let Some(slot) = self.desk.cancel(id) else { return false };
        match &mut self.policy {
            Policy::RunningFirst(_) => {}
            Policy::Sglang(policy) => policy.cancelled(slot),
            Policy::Fixed(policy) => policy.cancelled(&mut self.desk),
        }
        true
    }

    /// Drops all sequences, the step under way included, and the cache with them. Returns their ids, ascending.
    pub fn reset(&mut self) -> Vec<u64> {
        let ids = self.desk.sequences.ids();
        let blocks = self.desk.pool.blocks();
        *self = Scheduler::new(self.desk.limits, &self.spec);
        self.desk.pool.resize(blocks);
        ids
    }

    /// Forgets what the cache holds.
    pub fn flush_cache(&mut self) {
        self.desk.pool.flush();
    }

    /// From now on there are this many blocks; the next plan sees to it.
    pub fn set_blocks(&mut self, blocks: u32) {
        self.desk.pool.resize(blocks);
    }

    /// Leading blocks of a chain that the cache holds.
    pub(crate) fn cached_blocks(&self, names: &[u64]) -> u32 {
        self.desk.pool.find(names, u64::MAX, u32::MAX).blocks
    }

    /// How many steps like the planned one can follow it, whoever comes, as long as [`is_open`](Scheduler::is_open) says
    /// no; else as long as nobody comes.
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

    /// Could somebody who comes now change the next plan?
    pub fn is_open(&self) -> bool {
        match &self.policy {
            Policy::RunningFirst(policy) => policy.is_open(&self.desk),
            Policy::Sglang(policy) => policy.is_open(),
            Policy::Fixed(policy) => policy.is_open(),
        }
    }

    /// The planned step and `steps - 1` like it have run, and one more is planned. At most as many as are
    /// [`ahead`](Scheduler::ahead).
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

    /// Does a token leave as soon as it is there? If not, all leave at the end.
    pub fn streams(&self) -> bool {
        !matches!(self.policy, Policy::Fixed(_))
    }

    /// Who is in a planned step, in the order of scheduling.
    pub(crate) fn ids<'a>(&'a self, plan: &'a StepPlan) -> impl Iterator<Item = u64> + 'a {
        plan.items.iter().map(|&(slot, _)| self.desk.at(slot).id)
    }

    /// Who gets how many tokens in a plan that is not committed yet, in the order of scheduling.
    pub fn shares<'a>(&'a self, plan: &'a StepPlan) -> impl Iterator<Item = (u64, u32)> + 'a {
        plan.items.iter().map(|&(slot, tokens)| (self.desk.at(slot).id, tokens))
    }

    pub fn running(&self) -> u32 {
        self.desk.running.len() as u32
    }

    /// Sequences waiting, preempted ones included.
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
