//! What every policy works on: the sequences, who waits, who runs, and the blocks.
//!
//! A policy decides; the desk does. It keeps one promise: what a sequence has computed always has its blocks.

use std::collections::VecDeque;
use std::sync::Arc;

use super::{Limits, ScheduledRequest, SequenceProgress, StepPlan};
use crate::engine::kv::{BlockPool, Eviction, KvLookup};
use crate::engine::slots::{Slots, take_out};
use crate::spec::error::BLOCK_TOKENS;
use crate::traffic::Drafts;

#[derive(Clone, Debug)]
pub(crate) struct Desk {
    pub limits: Limits,
    pub sequences: Slots<Sequence>,
    pub waiting: VecDeque<u32>,
    pub running: Vec<u32>,
    pub pool: BlockPool,
    arrivals: u64,
    /// What came of drafts since [`drafts`](Desk::drafts) was last emptied.
    pub drafts: Drafts,
}

/// A request from its arrival to its end.
#[derive(Clone, Debug)]
pub(crate) struct Sequence {
    pub id: u64,
    /// How many came before it, which is its name in the cache, too: ids may be used again.
    pub number: u64,
    pub at_ps: i128,
    pub priority: u32,
    pub prompt: u32,
    pub output: u32,
    pub generated: u32,
    pub computed: u32,
    /// Tokens whose KV cache came from elsewhere: what it starts with, unless it has lost that.
    pub received: u32,
    /// Names of the prompt's full blocks.
    pub names: Option<Arc<Vec<u64>>>,
    /// Fractions of drafted tokens that were accepted and not yet handed out, in 2⁻³².
    credit: u64,
    admitted: bool,
    pub prefilled: bool,
    /// Is part of the step under way.
    pub planned: bool,
    /// Was cancelled during the step under way, or is finished.
    pub gone: bool,
}

impl Sequence {
    /// Tokens of prompt and answer so far.
    pub fn tokens(&self) -> u32 {
        self.prompt + self.generated
    }

    /// Tokens that it lacks.
    pub fn wanted(&self) -> u32 {
        self.tokens() - self.computed
    }

    /// Only its last token lacks, and that one was generated.
    pub fn decodes(&self) -> bool {
        self.generated > 0 && self.wanted() == 1
    }

    pub fn names(&self) -> &[u64] {
        self.names.as_ref().map_or(&[], |names| names.as_slice())
    }
}

impl Desk {
    pub fn new(limits: Limits, eviction: Eviction) -> Desk {
        Desk {
            limits,
            sequences: Slots::new(),
            waiting: VecDeque::new(),
            running: Vec::new(),
            pool: BlockPool::new(limits.blocks, limits.prefix_cache, eviction),
            arrivals: 0,
            drafts: Drafts::default(),
        }
    }

    /// Takes a request up; its policy queues it.
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
                // Any fixed spread over the ids will do: it is what makes neighbours not accept in step.
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

    /// What the cache holds of a sequence that has nothing. Never all of it: to generate, a token must be computed.
    pub fn find(&self, slot: u32) -> KvLookup {
        let sequence = self.at(slot);
        let limit = (sequence.tokens() - 1) / BLOCK_TOKENS;
        self.pool.find(sequence.names(), sequence.number, limit)
    }

    /// Tokens that a sequence would like to have computed in a step, if nothing bounded it: all that it lacks, and the
    /// drafted ones where it decodes.
    pub fn wish(&self, slot: u32) -> u32 {
        let sequence = self.at(slot);
        match self.limits.draft_tokens {
            0 => sequence.wanted(),
            drafted if sequence.decodes() => (1 + drafted).min(sequence.output - sequence.generated),
            _ => sequence.wanted(),
        }
    }

    /// Blocks missing for `tokens` more.
    pub fn missing(&self, slot: u32, tokens: u32) -> u32 {
        let needed = (self.at(slot).computed + tokens).div_ceil(BLOCK_TOKENS);
        needed.saturating_sub(self.pool.held(slot))
    }

    /// Gets the blocks for `tokens` more. False, and nothing changed, if there are too few.
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

    /// Do `found` and fresh blocks for all of `tokens` leave `spare` ones free?
    pub fn fits(&self, found: KvLookup, tokens: u32, spare: u32) -> bool {
        let fresh = tokens.div_ceil(BLOCK_TOKENS).saturating_sub(found.blocks);
        u64::from(fresh) + u64::from(found.idle) + u64::from(spare) <= u64::from(self.pool.free())
    }

    /// Starts a sequence that has left the queue: what the cache holds, and blocks for `tokens` more.
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

    /// Puts a sequence into the step.
    pub fn schedule(&mut self, plan: &mut StepPlan, slot: u32, tokens: u32) {
        self.sequences.at_mut(slot).planned = true;
        plan.items.push((slot, tokens));
    }

    /// Names the full blocks of what will be computed by the end of the step.
    pub fn name(&mut self, slot: u32, tokens: u32) {
        let sequence = self.sequences.at(slot);
        if let Some(names) = &sequence.names {
            let full = ((sequence.computed + tokens) / BLOCK_TOKENS).min(names.len() as u32);
            if full > self.pool.named(slot) {
                self.pool.name(slot, names, full);
            }
        }
    }

    /// Takes everything from a sequence that has just left the running. Of its private blocks those within the first
    /// `kept_tokens` tokens may be found again.
    pub fn strip(&mut self, plan: &mut StepPlan, slot: u32, kept_tokens: u32) {
        let sequence = self.sequences.at_mut(slot);
        let full = sequence.computed.min(kept_tokens) / BLOCK_TOKENS;
        // Private blocks can be found only behind a whole chain of given names.
        let named = self.pool.named(slot);
        let chained = sequence.names.as_ref().map_or(0, |names| names.len()) == named as usize;
        let kept = if chained { full.saturating_sub(named) } else { 0 };
        sequence.computed = 0;
        sequence.planned = false;
        plan.preempted.push(sequence.id);
        self.pool.release(slot, sequence.number, kept);
    }

    /// What the step's duration depends on.
    pub fn weigh(&self, plan: &mut StepPlan) {
        let mut load = crate::engine::step_time::StepLoad::default();
        for &(slot, tokens) in &plan.items {
            let sequence = self.sequences.at(slot);
            if sequence.decodes() {
                // Drafted tokens are the model's business, not the load's.
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

    /// The step has run: books what was computed and says what came of it. Returns how many sequences left.
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

    /// Forgets a sequence and frees its blocks. False where there is none of this id.
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

    /// Steps like this one, of decodes alone, that can follow it before somebody finishes or the blocks run out.
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

    /// `steps` steps like the planned one have run, and one more is planned.
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

    /// Would `steps` more steps need more blocks than are free?
    fn outgrown(&self, plan: &StepPlan, steps: u32) -> bool {
        let free = u64::from(self.pool.free());
        if plan.items.len() as u64 * (u64::from(steps / BLOCK_TOKENS) + 1) <= free {
            return false;
        }
        let missing = plan.items.iter().map(|&(slot, _)| u64::from(self.missing(slot, steps + 1)));
        missing.sum::<u64>() > free
    }

    /// The most steps, less than `too_many`, that the free blocks are enough for.
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
    /// How many of the tokens that a decode computed hold: the mean is met exactly, each sequence from its own start.
    fn accept(&mut self, tokens: u32, accepted: u64) -> u32 {
        if tokens <= 1 || !self.decodes() {
            return tokens;
        }
        self.credit += accepted;
        let whole = (self.credit >> 32) as u32;
        self.credit &= 0xffff_ffff;
        whole.clamp(1, tokens)
    }

    /// Everything there was to compute is computed: up to `fresh` tokens come out.
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
