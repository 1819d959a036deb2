//! SGLang: separate prefill steps first, admission by an estimate of the blocks that responses will need.
//!
//! 1. **Prefill, if any prompt can start.** The chunked prompt goes first, then waiting requests. They are in order
//!    of arrival, or (`lpm`) by longest cached prefix if at most 128 wait. In `lpm`, requests whose first 32 tokens
//!    another waiting one is about to compute come last. A request starts if its prompt, its output (at most 4096 of
//!    it) and a block fit into the available blocks. These are the free blocks *minus the expected output of the
//!    running ones*: Σ min(left, 4096) × ratio. The step has at most a chunk of tokens and no decodes.
//! 2. **Otherwise all running sequences decode.** Each such step lowers the ratio, by a 600th of the way to its
//!    floor. If blocks are missing, the sequences with the shortest outputs (then the longest prompts) are
//!    *retracted* until there is room. They lose all blocks and go to the end of the queue. The ratio jumps to the
//!    share of the remaining sequences' total output that is generated, plus 20 steps.
//!
//! After a failed start for lack of memory, no start is tried until a sequence leaves. The real engine tries one
//! decode later than this one. Prefixes are shared in blocks of 16 tokens (`--page-size 16`), from the end of the
//! step that computed them. The ratio is stored in whole 10⁻⁹, so that a jump over many steps lowers it exactly as
//! the steps would.
//!
//! (sgl-project/sglang: python/sglang/srt/managers/schedule_policy.py, `SchedulePolicy`, `PrefillAdder`;
//! schedule_batch.py, `retract_decode`; scheduler.py, `get_new_batch_prefill`, `update_running_batch`.)

use std::collections::HashSet;

use super::desk::SchedulerState;
use super::policy::{SglangOrder, SglangSpec};
use super::{ScheduledRequest, StepPlan};
use crate::engine::kv::KvLookup;
use crate::spec::error::BLOCK_TOKENS;

/// Maximum expected length of a response.
const CLIP: u32 = 4096;
/// Maximum queue length for `lpm`; a longer queue is in order of arrival.
const FALLBACK: usize = 128;
/// Maximum cached tokens of a request that may wait for sharing, and minimum shared tokens for that wait.
const SHARED: u32 = 32;
/// Steps that the remaining sequences must be able to run after a retraction.
const STEPS_AHEAD: u64 = 20;
const ONE: u64 = 1_000_000_000;

#[derive(Clone, Debug)]
pub(crate) struct Sglang {
    order: SglangOrder,
    max_prefill: u32,
    /// Expected share of the remaining output, in 10⁻⁹.
    ratio: u64,
    highest: u64,
    floor: u64,
    decay: u64,
    /// Set after a failed start for lack of memory or of a slot.
    full: bool,
    /// Chunked prompt; `None` if there is none.
    cut: Option<u32>,
}

/// The remaining limits of a prefill step.
struct Adder {
    /// Free tokens, negative if more output is expected than there is memory.
    room: i64,
    input: i64,
    chunk: i64,
}

impl Sglang {
    pub fn new(spec: &SglangSpec) -> Sglang {
        let highest = ((0.7 * spec.conservativeness).min(1.0) * ONE as f64).round() as u64;
        let floor = (highest as f64 * 0.14).round() as u64;
        Sglang {
            order: spec.order,
            max_prefill: spec.max_prefill_tokens,
            ratio: highest,
            highest,
            floor,
            decay: (highest - floor) / 600,
            full: false,
            cut: None,
        }
    }

    pub fn admit(&self, desk: &mut SchedulerState, ask: ScheduledRequest) {
        let slot = desk.insert(ask);
        desk.waiting.push_back(slot);
    }

    pub fn plan(&mut self, desk: &mut SchedulerState, plan: &mut StepPlan) {
        if desk.running.is_empty() {
            (self.ratio, self.full) = (self.highest, false);
        }
        self.plan_prompts(desk, plan);
        if plan.items.is_empty() {
            self.plan_decodes(desk, plan);
            if desk.running.is_empty() && !desk.waiting.is_empty() && !plan.preempted.is_empty() {
                self.full = false;
            }
        }
        desk.weigh(plan);
    }

    /// Permits starts again because a sequence left.
    pub fn left(&mut self) {
        self.full = false;
    }

    pub fn cancelled(&mut self, slot: u32) {
        self.full = false;
        if self.cut == Some(slot) {
            self.cut = None;
        }
    }

    pub fn is_open(&self) -> bool {
        !self.full
    }

    /// Records that many skipped decode steps.
    pub(crate) fn decode_on(&mut self, steps: u32) {
        self.ratio = self.ratio.saturating_sub(self.decay * u64::from(steps)).max(self.floor);
    }

    fn plan_prompts(&mut self, desk: &mut SchedulerState, plan: &mut StepPlan) {
        if (self.full || desk.waiting.is_empty()) && self.cut.is_none() {
            return;
        }
        let budget = i64::from(desk.limits.token_budget);
        let most = i64::from(self.max_prefill);
        let (input, chunk) =
            if desk.limits.chunked_prefill { (most, budget) } else { (most.min(budget), i64::MAX) };
        let mut adder = Adder { room: self.room(desk), input, chunk };
        if let Some(slot) = self.cut {
            self.go_on(desk, plan, slot, &mut adder);
        }
        if !self.full {
            self.sort(desk);
            while let Some(&slot) = desk.waiting.front() {
                if desk.running.len() >= desk.limits.max_seqs as usize {
                    self.full = true;
                    break;
                }
                if !self.start(desk, plan, slot, &mut adder) {
                    break;
                }
            }
        }
    }

    /// Returns the free tokens minus the expected output of the running sequences.
    fn room(&self, desk: &SchedulerState) -> i64 {
        let expected = |slot: &u32| {
            let sequence = desk.at(*slot);
            u64::from((sequence.output - sequence.generated).min(CLIP)) * self.ratio
        };
        let cut = self.cut;
        let decoding = desk.running.iter().filter(|slot| cut != Some(**slot));
        let expected = decoding.map(expected).sum::<u64>() / ONE;
        i64::from(desk.pool.free()) * i64::from(BLOCK_TOKENS) - expected as i64
    }

    /// Adds the next chunk of the chunked prompt.
    fn go_on(&mut self, desk: &mut SchedulerState, plan: &mut StepPlan, slot: u32, adder: &mut Adder) {
        let wanted = desk.at(slot).wanted();
        let tokens = wanted.min(u32::try_from(adder.chunk).unwrap_or(u32::MAX));
        if !desk.grow(slot, tokens) {
            return;
        }
        desk.schedule(plan, slot, tokens);
        let ends = tokens == wanted;
        if ends {
            self.cut = None;
        }
        adder.spend(tokens, if ends { desk.at(slot).output.min(CLIP) } else { 0 });
    }

    /// Tries the head of the queue. Returns `false` if the step is complete.
    fn start(
        &mut self,
        desk: &mut SchedulerState,
        plan: &mut StepPlan,
        slot: u32,
        adder: &mut Adder,
    ) -> bool {
        let found = desk.find(slot);
        let sequence = desk.at(slot);
        let extend = sequence.wanted() - found.blocks * BLOCK_TOKENS;
        let answer = (sequence.output - sequence.generated).min(CLIP);
        let room = adder.room - i64::from(found.idle * BLOCK_TOKENS);
        if i64::from(extend) + i64::from(answer) + i64::from(BLOCK_TOKENS) >= room {
            self.full = !desk.running.is_empty();
            return false;
        }
        if i64::from(extend) >= adder.input && !plan.items.is_empty() {
            return false;
        }
        if i64::from(extend) <= adder.chunk {
            self.begin(desk, plan, slot, found, extend);
            adder.spend(extend, answer);
        } else {
            // A chunk ends at a block boundary.
            let piece = adder.chunk as u32 / BLOCK_TOKENS * BLOCK_TOKENS;
            let piece = if desk.limits.token_budget < BLOCK_TOKENS { adder.chunk as u32 } else { piece };
            if piece == 0 {
                return false;
            }
            self.begin(desk, plan, slot, found, piece);
            self.cut = Some(slot);
            adder.spend(piece, 0);
            return false;
        }
        adder.room -= i64::from(found.idle * BLOCK_TOKENS);
        if adder.room <= 0 {
            self.full = true;
        }
        adder.room > 0 && adder.input > 0 && adder.chunk > 0
    }

    fn begin(&self, desk: &mut SchedulerState, plan: &mut StepPlan, slot: u32, found: KvLookup, tokens: u32) {
        desk.waiting.pop_front();
        desk.start(plan, slot, found, tokens);
        desk.schedule(plan, slot, tokens);
    }

    fn sort(&self, desk: &mut SchedulerState) {
        if self.order == SglangOrder::Fcfs || desk.waiting.len() > FALLBACK || desk.waiting.len() < 2 {
            return;
        }
        let mut about_to_be_computed: HashSet<u64> = HashSet::new();
        let mut ranked: Vec<(u32, u32)> = Vec::with_capacity(desk.waiting.len());
        for &slot in &desk.waiting {
            let cached = desk.find(slot).blocks;
            let mut rank = u32::MAX - 1 - cached;
            if cached * BLOCK_TOKENS <= SHARED
                && let Some(&name) = desk.at(slot).names().get((SHARED / BLOCK_TOKENS) as usize - 1)
                && !about_to_be_computed.insert(name)
            {
                rank = u32::MAX;
            }
            ranked.push((rank, slot));
        }
        ranked.sort_by_key(|&(rank, _)| rank);
        desk.waiting.clear();
        desk.waiting.extend(ranked.into_iter().map(|(_, slot)| slot));
    }

    fn plan_decodes(&mut self, desk: &mut SchedulerState, plan: &mut StepPlan) {
        let mut decoding: Vec<u32> =
            desk.running.iter().copied().filter(|slot| self.cut != Some(*slot)).collect();
        let short = |desk: &SchedulerState, decoding: &[u32]| {
            let missing: u32 = decoding.iter().map(|&slot| desk.missing(slot, desk.wish(slot))).sum();
            desk.pool.owed() > 0 || missing > desk.pool.free()
        };
        if short(desk, &decoding) {
            let mut leaving = decoding.clone();
            leaving.sort_by_key(|&slot| (std::cmp::Reverse(desk.at(slot).generated), desk.at(slot).prompt));
            while short(desk, &leaving) && (leaving.len() > 1 || desk.pool.owed() > 0 || self.cut.is_some()) {
                let Some(slot) = leaving.pop() else { break };
                self.retract(desk, plan, slot);
            }
            if leaving.is_empty()
                && short(desk, &leaving)
                && let Some(slot) = self.cut.take()
            {
                self.retract(desk, plan, slot);
            }
            decoding.retain(|slot| leaving.contains(slot));
            self.jump(desk, &decoding);
        } else if !decoding.is_empty() {
            self.decode_on(1);
        }
        for slot in decoding {
            let tokens = desk.wish(slot);
            if desk.grow(slot, tokens) {
                desk.schedule(plan, slot, tokens);
            }
        }
    }

    fn retract(&mut self, desk: &mut SchedulerState, plan: &mut StepPlan, slot: u32) {
        desk.running.retain(|&running| running != slot);
        let prompt = desk.at(slot).prompt;
        desk.strip(plan, slot, prompt);
        desk.waiting.push_back(slot);
        self.full = false;
    }

    /// Sets the ratio after a retraction.
    fn jump(&mut self, desk: &SchedulerState, left: &[u32]) {
        let generated: u64 = left.iter().map(|&slot| u64::from(desk.at(slot).generated)).sum();
        let output: u64 = left.iter().map(|&slot| u64::from(desk.at(slot).output)).sum();
        let ahead = generated + STEPS_AHEAD * left.len() as u64;
        self.ratio = (ahead * ONE / output.max(1)).min(ONE);
    }
}

impl Adder {
    fn spend(&mut self, tokens: u32, answer: u32) {
        self.room -= i64::from(tokens) + i64::from(answer);
        self.input -= i64::from(tokens);
        self.chunk -= i64::from(tokens);
    }
}
