//! Which tokens are computed in the next step: vLLM v1's policy as a state machine.
//!
//! There is no prefill phase and no decode phase. Each sequence has tokens that are *wanted* (prompt and answer so
//! far) and tokens that are *computed*, and every step hands out a budget of tokens:
//!
//! 1. **Running first, in order.** Each gets what it lacks, within the budget. If blocks are missing, the *last* of
//!    the running is preempted: it loses its blocks, forgets what was computed and goes to the *front* of the queue;
//!    this repeats until there is room or the sequence has preempted itself.
//! 2. **Then the waiting, in order, and only if nobody was preempted in this step**, while budget and places last. The
//!    first that can't have blocks stops the queue.
//!
//! A preempted sequence computes prompt and answer again. Preemption can't deadlock, because a sequence that could
//! not hold its whole length alone is never taken, so that the first of the running always gets through. Reserving
//! the whole length at admission would avoid preemption, and is another engine's policy: it answers long requests later
//! and hides what a KV cache that is too small looks like.
//!
//! (vllm-project/vllm: vllm/v1/core/sched/scheduler.py, `Scheduler.schedule`.)

use std::collections::VecDeque;

use crate::slots::{Slots, take_out};
use crate::spec::BLOCK_TOKENS;
use crate::step_time::StepLoad;

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
}

/// What the sequences of a step get. Reused from step to step.
#[derive(Clone, Default, Debug)]
pub struct StepPlan {
    /// Sequence and its tokens, in the order in which they were scheduled.
    pub(crate) items: Vec<(u32, u32)>,
    /// Ids of those that leave the queue for the first time.
    pub admitted: Vec<u64>,
    /// Sequences that lost their blocks.
    pub preempted: u32,
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
        self.preempted = 0;
        self.load = StepLoad::default();
    }
}

/// What a step brought to one sequence.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Progress {
    /// Which.
    pub id: u64,
    /// The prompt's tokens, when the whole prompt was computed for the first time.
    pub prefilled: Option<u32>,
    /// Was a token generated?
    pub token: bool,
    /// Was it the last, or was there none to generate?
    pub finished: bool,
}

/// The scheduler: `admit`, `plan`, `commit`, `cancel`. It knows no time and no chance.
#[derive(Clone, Debug)]
pub struct Scheduler {
    limits: Limits,
    sequences: Slots<Sequence>,
    waiting: VecDeque<u32>,
    running: Vec<u32>,
    blocks_free: u32,
}

#[derive(Clone, Debug)]
struct Sequence {
    id: u64,
    prompt: u32,
    output: u32,
    generated: u32,
    computed: u32,
    blocks: u32,
    /// Has left the queue before.
    admitted: bool,
    /// Its prompt was computed before.
    prefilled: bool,
    /// Is part of the step under way.
    planned: bool,
    /// Was cancelled during the step under way.
    gone: bool,
}

impl Sequence {
    /// Tokens that it lacks.
    fn wanted(&self) -> u32 {
        self.prompt + self.generated - self.computed
    }

    /// Only its last token lacks, and that one was generated.
    fn decodes(&self) -> bool {
        self.generated > 0 && self.wanted() == 1
    }
}

impl Scheduler {
    /// A scheduler without sequences.
    pub fn new(limits: Limits) -> Scheduler {
        let blocks_free = limits.blocks;
        Scheduler {
            limits,
            sequences: Slots::new(),
            waiting: VecDeque::new(),
            running: Vec::new(),
            blocks_free,
        }
    }

    /// Most tokens (prompt and answer, less the last one, which is never computed) of a sequence it can finish.
    pub fn longest(&self) -> u64 {
        let held = u64::from(self.limits.blocks) * u64::from(BLOCK_TOKENS);
        let split = self.limits.chunked_prefill || self.limits.long_prefill_threshold > 0;
        if split { held } else { held.min(u64::from(self.limits.token_budget)) }
    }

    /// Is a sequence of this id here?
    pub fn knows(&self, id: u64) -> bool {
        self.sequences.find(id).is_some()
    }

    /// Puts a sequence at the end of the queue. Its id must be new, its prompt at least 1 token, and its length within
    /// [`longest`](Scheduler::longest).
    pub fn admit(&mut self, id: u64, prompt_tokens: u32, output_tokens: u32) {
        let slot = self.sequences.insert(
            id,
            Sequence {
                id,
                prompt: prompt_tokens,
                output: output_tokens,
                generated: 0,
                computed: 0,
                blocks: 0,
                admitted: false,
                prefilled: false,
                planned: false,
                gone: false,
            },
        );
        self.waiting.push_back(slot);
    }

    /// Decides the next step. Must be followed by [`commit`](Scheduler::commit) before the next plan.
    pub fn plan(&mut self, plan: &mut StepPlan) {
        plan.clear();
        let mut budget = self.limits.token_budget;
        self.plan_running(plan, &mut budget);
        if plan.preempted == 0 {
            self.plan_waiting(plan, &mut budget);
        }
    }

    /// The step has run: books what was computed and says what came of it.
    pub fn commit(&mut self, plan: &StepPlan, mut progress: impl FnMut(Progress)) {
        let mut any_finished = false;
        for &(slot, tokens) in &plan.items {
            let sequence = self.sequences.at_mut(slot);
            sequence.planned = false;
            if sequence.gone {
                self.sequences.release(slot);
                continue;
            }
            sequence.computed += tokens;
            if sequence.wanted() > 0 {
                continue;
            }
            let prefilled = (!sequence.prefilled).then_some(sequence.prompt);
            let token = sequence.generated < sequence.output;
            sequence.prefilled = true;
            sequence.generated += u32::from(token);
            let finished = sequence.generated == sequence.output;
            progress(Progress { id: sequence.id, prefilled, token, finished });
            if finished {
                self.blocks_free += sequence.blocks;
                sequence.gone = true;
                any_finished = true;
            }
        }
        if any_finished {
            self.drop_finished();
        }
    }

    /// Forgets a sequence and frees its blocks. False where there is none of this id.
    pub fn cancel(&mut self, id: u64) -> bool {
        let Some(slot) = self.sequences.find(id) else { return false };
        let sequence = self.sequences.at_mut(slot);
        self.blocks_free += std::mem::take(&mut sequence.blocks);
        sequence.gone = true;
        let planned = sequence.planned;
        match self.running.iter().position(|&running| running == slot) {
            Some(place) => drop(self.running.remove(place)),
            None => take_out(&mut self.waiting, slot),
        }
        self.sequences.forget(id);
        if !planned {
            self.sequences.release(slot);
        }
        true
    }

    /// Who gets how many tokens in a plan that is not committed yet, in the order of scheduling.
    pub fn shares<'a>(&'a self, plan: &'a StepPlan) -> impl Iterator<Item = (u64, u32)> + 'a {
        plan.items.iter().map(|&(slot, tokens)| (self.sequences.at(slot).id, tokens))
    }

    /// Sequences running.
    pub fn running(&self) -> u32 {
        self.running.len() as u32
    }

    /// Sequences waiting, preempted ones included.
    pub fn waiting(&self) -> u32 {
        self.waiting.len() as u32
    }

    /// Blocks in use.
    pub fn blocks_used(&self) -> u32 {
        self.limits.blocks - self.blocks_free
    }

    fn plan_running(&mut self, plan: &mut StepPlan, budget: &mut u32) {
        let mut place = 0;
        while place < self.running.len() && *budget > 0 {
            let slot = self.running[place];
            let tokens = self.share(slot).min(*budget);
            while !self.grow(slot, tokens, 0) {
                let Some(victim) = self.running.pop() else { return };
                self.preempt(victim);
                plan.preempted += 1;
                if victim == slot {
                    return;
                }
            }
            self.schedule(plan, slot, tokens);
            *budget -= tokens;
            place += 1;
        }
    }

    fn plan_waiting(&mut self, plan: &mut StepPlan, budget: &mut u32) {
        while *budget > 0 && self.running.len() < self.limits.max_seqs as usize {
            let Some(&slot) = self.waiting.front() else { return };
            let mut tokens = self.share(slot);
            if tokens > *budget {
                if !self.limits.chunked_prefill {
                    return;
                }
                tokens = *budget;
            }
            let spare = if self.running.is_empty() { 0 } else { self.limits.watermark_blocks };
            if !self.grow(slot, tokens, spare) {
                return;
            }
            self.waiting.pop_front();
            self.running.push(slot);
            let sequence = self.sequences.at_mut(slot);
            if !std::mem::replace(&mut sequence.admitted, true) {
                plan.admitted.push(sequence.id);
            }
            self.schedule(plan, slot, tokens);
            *budget -= tokens;
        }
    }

    /// Tokens that a sequence would take if the budget were endless.
    fn share(&self, slot: u32) -> u32 {
        let wanted = self.sequences.at(slot).wanted();
        match self.limits.long_prefill_threshold {
            0 => wanted,
            threshold => wanted.min(threshold),
        }
    }

    /// Gets the blocks for `tokens` more, leaving `spare` free. False, and nothing changed, if there are too few.
    fn grow(&mut self, slot: u32, tokens: u32, spare: u32) -> bool {
        let sequence = self.sequences.at_mut(slot);
        let needed = (sequence.computed + tokens).div_ceil(BLOCK_TOKENS);
        let more = needed.saturating_sub(sequence.blocks);
        if more > 0 && u64::from(more) + u64::from(spare) > u64::from(self.blocks_free) {
            return false;
        }
        sequence.blocks += more;
        self.blocks_free -= more;
        true
    }

    /// Takes everything from a sequence that has just left the running, and queues it in front.
    fn preempt(&mut self, slot: u32) {
        let sequence = self.sequences.at_mut(slot);
        self.blocks_free += std::mem::take(&mut sequence.blocks);
        sequence.computed = 0;
        self.waiting.push_front(slot);
    }

    fn schedule(&mut self, plan: &mut StepPlan, slot: u32, tokens: u32) {
        let sequence = self.sequences.at_mut(slot);
        sequence.planned = true;
        plan.items.push((slot, tokens));
        let load = &mut plan.load;
        load.tokens += tokens;
        load.rows += u32::from(tokens == sequence.wanted());
        if sequence.decodes() {
            load.decodes += 1;
            load.context += u64::from(sequence.computed) + 1;
        } else {
            load.chunks += 1;
            load.prefill_pairs += u64::from(tokens) * (2 * u64::from(sequence.computed) + u64::from(tokens));
        }
    }

    fn drop_finished(&mut self) {
        let sequences = &mut self.sequences;
        self.running.retain(|&slot| {
            let sequence = sequences.at(slot);
            if !sequence.gone {
                return true;
            }
            let id = sequence.id;
            sequences.forget(id);
            sequences.release(slot);
            false
        });
    }
}
