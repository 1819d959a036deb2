//! The state that every policy uses: the sequences, the queue, the running set, and the blocks.
//!
//! A policy decides and this state executes. Invariant: computed tokens of a sequence always have blocks.

use std::collections::VecDeque;
use std::sync::Arc;

use super::{ScheduledRequest, SchedulerLimits, SequenceProgress, StepPlan};
use crate::engine::kv::{BlockPool, Eviction, KvLookup};
use crate::engine::slots::{Slots, take_out};
use crate::spec::error::BLOCK_TOKENS;
use crate::traffic::Drafts;

/// The shared state of the scheduling policies.
#[derive(Clone, Debug)]
pub(crate) struct SchedulerState {
    pub limits: SchedulerLimits,
    pub sequences: Slots<Sequence>,
    pub waiting: VecDeque<u32>,
    pub running: Vec<u32>,
    pub pool: BlockPool,
    arrivals: u64,
    /// Counters of drafts since the scheduler last took them.
    pub drafts: Drafts,
}

/// A request from its arrival to its end.
#[derive(Clone, Debug)]
pub(crate) struct Sequence {
    pub id: u64,
    /// Number of earlier requests. It identifies the request in the cache, because ids may be reused.
    pub number: u64,
    pub at_ps: i128,
    pub priority: u32,
    pub prompt: u32,
    pub output: u32,
    pub generated: u32,
    pub computed: u32,
    /// Tokens whose KV cache was transferred from another replica, unless it was lost.
    pub received: u32,
    /// Names of the prompt's full blocks; `None` if it has none.
    pub names: Option<Arc<Vec<u64>>>,
    /// Fractions of accepted draft tokens that are not yet emitted, in 2⁻³².
    credit: u64,
    admitted: bool,
    pub prefilled: bool,
    /// Set while the sequence is in the present step.
    pub planned: bool,
    /// Set if the sequence was cancelled during the present step, or is finished.
    pub gone: bool,
}

impl Sequence {
    /// Returns the tokens of prompt and output so far.
    pub fn tokens(&self) -> u32 {
        self.prompt + self.generated
    }

    /// Returns the number of tokens that are not computed.
    pub fn wanted(&self) -> u32 {
        self.tokens() - self.computed
    }

    /// Returns whether only the last, generated token is not computed.
    pub fn decodes(&self) -> bool {
        self.generated > 0 && self.wanted() == 1
    }

    pub fn names(&self) -> &[u64] {
        self.names.as_ref().map_or(&[], |names| names.as_slice())
    }
}

impl SchedulerState {
    pub fn new(limits: SchedulerLimits, eviction: Eviction) -> SchedulerState {
        SchedulerState {
            limits,
            sequences: Slots::new(),
            waiting: VecDeque::new(),
            running: Vec::new(),
            pool: BlockPool::new(limits.blocks, limits.prefix_cache, eviction),
            arrivals: 0,
            drafts: Drafts::default(),
        }
    }

    /// Adds a request; the policy queues it.
    pub fn insert(&mut self, ask: ScheduledRequest) -> u32 {
        let number = self.arrivals;
        self.arrivals += 1;
        let ScheduledRequest { id, at_ps, priority, prompt_tokens, output_tokens, blocks, handed_over } = ask;
        let full = (prompt_tokens / BLOCK_TOKENS) as usize;
        let names = (self.limits.prefix_cache && !blocks.is_empty() && full > 0).then(|| {
            let mut blocks = blocks;
            blocks.truncate(full);
            Arc::new(blocks)
        });
        self.sequences.insert(
            id,
            Sequence {
                id,
                number,
                at_ps,
                priority,
                prompt: prompt_tokens,
                output: output_tokens,
                generated: u32::from(handed_over),
                computed: 0,
                received: if handed_over { prompt_tokens } else { 0 },
                names,
                // Any fixed hash of the id works, because neighbours only must not accept in lockstep.
                credit: id.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32,
                admitted: false,
                prefilled: handed_over,
                planned: false,
                gone: false,
            },
        )
    }

    pub fn at(&self, slot: u32) -> &Sequence {
        self.sequences.at(slot)
    }

    /// Finds the stored blocks of a sequence that owns none. The result is never the whole sequence, because generation
    /// needs a computed token.
    pub fn find(&self, slot: u32) -> KvLookup {
        let sequence = self.at(slot);
        let limit = (sequence.tokens() - 1) / BLOCK_TOKENS;
        self.pool.find(sequence.names(), sequence.number, limit)
    }

    /// Returns the tokens of a sequence for a step without limits: all that are not computed, plus draft tokens in
    /// decode.
    pub fn wish(&self, slot: u32) -> u32 {
        let sequence = self.at(slot);
        match self.limits.draft_tokens {
            0 => sequence.wanted(),
            drafted if sequence.decodes() => (1 + drafted).min(sequence.output - sequence.generated),
            _ => sequence.wanted(),
        }
    }

    /// Returns the number of missing blocks for `tokens` more.
    pub fn missing(&self, slot: u32, tokens: u32) -> u32 {
        let needed = (self.at(slot).computed + tokens).div_ceil(BLOCK_TOKENS);
        needed.saturating_sub(self.pool.held(slot))
    }

    /// Allocates the blocks for `tokens` more. Returns `false` without a change if there are too few.
    pub fn grow(&mut self, slot: u32, tokens: u32) -> bool {
        let more = self.missing(slot, tokens);
        if more > self.pool.free() {
            return false;
        }
        if more > 0 {
            self.pool.take(slot, more);
        }
        true
    }

    /// Returns whether `found` and new blocks for all of `tokens` leave `spare` blocks free.
    pub fn fits(&self, found: KvLookup, tokens: u32, spare: u32) -> bool {
        let fresh = tokens.div_ceil(BLOCK_TOKENS).saturating_sub(found.blocks);
        u64::from(fresh) + u64::from(found.idle) + u64::from(spare) <= u64::from(self.pool.free())
    }

    /// Starts a sequence from the queue with its cached blocks and blocks for `tokens` more.
    pub fn start(&mut self, plan: &mut StepPlan, slot: u32, found: KvLookup, tokens: u32) {
        let sequence = self.sequences.at_mut(slot);
        if found.blocks > 0 {
            let names = sequence.names.clone();
            let names = names.as_ref().map_or(&[][..], |names| names.as_slice());
            self.pool.hit(slot, names, sequence.number, found);
            sequence.computed = found.blocks * BLOCK_TOKENS;
        }
        let received = std::mem::take(&mut sequence.received);
        if !std::mem::replace(&mut sequence.admitted, true) {
            let cached = sequence.computed.min(sequence.prompt);
            plan.admitted.push((sequence.id, cached));
            if self.limits.prefix_cache && received == 0 {
                plan.prefix_queries += u64::from(sequence.prompt);
                plan.prefix_hits += u64::from(cached);
            }
        }
        let sequence = self.sequences.at_mut(slot);
        sequence.computed = sequence.computed.max(received);
        let more = self.missing(slot, tokens);
        self.pool.take(slot, more);
        self.running.push(slot);
    }

    /// Adds a sequence to the step.
    pub fn schedule(&mut self, plan: &mut StepPlan, slot: u32, tokens: u32) {
        self.sequences.at_mut(slot).planned = true;
        plan.items.push((slot, tokens));
    }

    /// Names the full blocks of the tokens that are computed by the end of the step.
    pub fn name(&mut self, slot: u32, tokens: u32) {
        let sequence = self.sequences.at(slot);
        if let Some(names) = &sequence.names {
            let full = ((sequence.computed + tokens) / BLOCK_TOKENS).min(names.len() as u32);
            if full > self.pool.named(slot) {
                self.pool.name(slot, names, full);
            }
        }
    }

    /// Frees all blocks of a sequence that left the running set. Private blocks within the first `kept_tokens` tokens
    /// stay findable.
    pub fn strip(&mut self, plan: &mut StepPlan, slot: u32, kept_tokens: u32) {
        let sequence = self.sequences.at_mut(slot);
        let full = sequence.computed.min(kept_tokens) / BLOCK_TOKENS;
        // Private blocks can be found only after a complete chain of given names.
        let named = self.pool.named(slot);
        let chained = sequence.names.as_ref().map_or(0, |names| names.len()) == named as usize;
        let kept = if chained { full.saturating_sub(named) } else { 0 };
        sequence.computed = 0;
        sequence.planned = false;
        plan.preempted.push(sequence.id);
        self.pool.release(slot, sequence.number, kept);
    }

    /// Computes the load of the step, which determines its duration.
    pub fn weigh(&self, plan: &mut StepPlan) {
        let mut load = crate::engine::step_time::StepLoad::default();
        for &(slot, tokens) in &plan.items {
            let sequence = self.sequences.at(slot);
            if sequence.decodes() {
                // Drafted tokens are added by the step model and not counted in the load.
                load.tokens += 1;
                load.rows += 1;
                load.decodes += 1;
                load.context += u64::from(sequence.computed) + 1;
            } else {
                load.tokens += tokens;
                load.rows += u32::from(tokens == sequence.wanted());
                load.chunks += 1;
                load.prefill_pairs +=
                    u64::from(tokens) * (2 * u64::from(sequence.computed) + u64::from(tokens));
            }
        }
        plan.load = load;
    }

    /// Records the results of a completed step and reports them. Returns the number of ended sequences.
    pub fn commit(
        &mut self,
        plan: &StepPlan,
        name_now: bool,
        mut progress: impl FnMut(SequenceProgress),
    ) -> u32 {
        let mut finished = 0;
        for &(slot, tokens) in &plan.items {
            let sequence = self.sequences.at_mut(slot);
            sequence.planned = false;
            if sequence.gone {
                self.sequences.release(slot);
                continue;
            }
            let accepted = sequence.accept(tokens, self.limits.accepted);
            let unchecked = sequence.wanted() < tokens;
            sequence.computed += if unchecked { accepted } else { tokens };
            let fresh = if unchecked { accepted } else { u32::from(sequence.wanted() == 0) };
            if name_now {
                self.name(slot, 0);
            }
            if unchecked {
                self.drafts.count(tokens - 1, accepted - 1);
            }
            if fresh > 0 {
                let sequence = self.sequences.at_mut(slot);
                let one = sequence.advance(fresh);
                if one.finished {
                    self.pool.release(slot, sequence.number, 0);
                    sequence.gone = true;
                    finished += 1;
                }
                progress(one);
            }
        }
        if finished > 0 {
            self.drop_gone();
        }
        finished
    }

    /// Removes a sequence and frees its blocks. Returns `None` if the id is unknown.
    pub fn cancel(&mut self, id: u64) -> Option<u32> {
        let slot = self.sequences.find(id)?;
        let sequence = self.sequences.at_mut(slot);
        sequence.gone = true;
        let planned = sequence.planned;
        self.pool.release(slot, sequence.number, 0);
        match self.running.iter().position(|&running| running == slot) {
            Some(place) => drop(self.running.remove(place)),
            None => take_out(&mut self.waiting, slot),
        }
        self.sequences.forget(id);
        if !planned {
            self.sequences.release(slot);
        }
        Some(slot)
    }

    /// Returns the number of further equal decode steps until a sequence ends or the blocks run out.
    pub(crate) fn decodes_ahead(&self, plan: &StepPlan) -> u32 {
        let mut least = u32::MAX;
        for &(slot, _) in &plan.items {
            let sequence = self.at(slot);
            least = least.min(sequence.output - sequence.generated);
        }
        let most = least.saturating_sub(1);
        if self.outgrown(plan, most) {
            return self.bisect(plan, most);
        }
        most
    }

    /// Records `steps` completed steps equal to the planned one, with one more planned.
    pub(crate) fn decode_on(&mut self, plan: &StepPlan, steps: u32) {
        for &(slot, _) in &plan.items {
            let sequence = self.sequences.at_mut(slot);
            sequence.computed += steps;
            sequence.generated += steps;
            let more = self.missing(slot, 1);
            if more > 0 {
                self.pool.take(slot, more);
            }
        }
    }

    /// Returns whether `steps` more steps need more blocks than are free.
    fn outgrown(&self, plan: &StepPlan, steps: u32) -> bool {
        let free = u64::from(self.pool.free());
        if plan.items.len() as u64 * (u64::from(steps / BLOCK_TOKENS) + 1) <= free {
            return false;
        }
        let missing = plan.items.iter().map(|&(slot, _)| u64::from(self.missing(slot, steps + 1)));
        missing.sum::<u64>() > free
    }

    /// Returns the maximum number of steps, below `too_many`, for which the free blocks suffice.
    fn bisect(&self, plan: &StepPlan, too_many: u32) -> u32 {
        let (mut fits, mut not) = (0, too_many);
        while not - fits > 1 {
            let middle = fits + (not - fits) / 2;
            if self.outgrown(plan, middle) {
                not = middle;
            } else {
                fits = middle;
            }
        }
        fits
    }

    pub(crate) fn drop_gone(&mut self) {
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

impl Sequence {
    /// Returns the number of accepted tokens of a decode. The mean is met exactly, with a separate start for each
    /// sequence.
    fn accept(&mut self, tokens: u32, accepted: u64) -> u32 {
        if tokens <= 1 || !self.decodes() {
            return tokens;
        }
        self.credit += accepted;
        let whole = (self.credit >> 32) as u32;
        self.credit &= 0xffff_ffff;
        whole.clamp(1, tokens)
    }

    /// Marks everything as computed and emits up to `fresh` tokens.
    fn advance(&mut self, fresh: u32) -> SequenceProgress {
        let prefilled = (!self.prefilled).then_some(self.prompt);
        let tokens = fresh.min(self.output - self.generated);
        let first = self.generated == 0;
        self.prefilled = true;
        self.generated += tokens;
        let finished = self.generated == self.output;
        SequenceProgress { id: self.id, prefilled, tokens, first, generated: self.generated, finished }
    }
}
