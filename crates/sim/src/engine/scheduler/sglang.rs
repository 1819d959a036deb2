//! SGLang: prompts first and alone, admission by an estimate of what answers will need.
//!
//! 1. **Prompts, if any can start.** The prompt that was cut short goes first, then the waiting in order: as they came,
//!    or (`lpm`) by longest cached prefix, where at most 128 wait, and those behind whose first 32 tokens another one of
//!    the waiting is about to compute. One starts if its prompt, its answer (at most 4096 of it) and a block fit into the free
//!    blocks *less what the running are expected to generate*: Σ min(left, 4096) × ratio. The step has at most a chunk of
//!    tokens, and nothing decodes in it.
//! 2. **Else all that run decode.** Each such step lowers the ratio, by a 600th of the way to its floor. If blocks are
//!    missing, those with the shortest answers (of equals, the longest prompts) are *retracted* until there is room: they
//!    lose all and go to the end of the queue, and the ratio jumps to what those left have generated, plus 20 steps, of
//!    all they will.
//!
//! Once one could not start for want of memory, none is tried until a sequence leaves. The engine looks one decode later
//! than this one does. Prefixes are shared in blocks of 16 tokens (`--page-size 16`), from the end of the step on that
//! computed them. The ratio is kept in whole 10⁻⁹, so that a jump over many steps lowers it exactly as the steps would.
//!
//! (sgl-project/sglang: python/sglang/srt/managers/schedule_policy.py, `SchedulePolicy`, `PrefillAdder`;
//! schedule_batch.py, `retract_decode`; scheduler.py, `get_new_batch_prefill`, `update_running_batch`.)

use std::collections::HashSet;

use super::desk::Desk;
use super::policy::{SglangOrder, SglangSpec};
use super::{ScheduledRequest, StepPlan};
use crate::engine::kv::KvLookup;
use crate::spec::error::BLOCK_TOKENS;

/// Answers are expected to be at most this long.
const CLIP: u32 = 4096;
/// More waiting than this are taken as they came.
const FALLBACK: usize = 128;
/// Tokens cached up to which a request is looked at for sharing, and tokens shared from which it waits.
const SHARED: u32 = 32;
/// Steps that those left are to run after a retraction.
const STEPS_AHEAD: u64 = 20;
const ONE: u64 = 1_000_000_000;

#[derive(Clone, Debug)]
pub(crate) struct Sglang {
    order: SglangOrder,
    max_prefill: u32,
    /// Share of what could still be generated that is expected to be, in 10⁻⁹.
    ratio: u64,
    highest: u64,
    floor: u64,
    decay: u64,
    /// Somebody could not start for want of memory or of a place.
    full: bool,
    /// The prompt that was cut short.
    cut: Option<u32>,
}

/// What a step of prompts has left to give.
struct Adder {
    /// Tokens, negative where more is expected than there is.
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

    pub fn admit(&self, desk: &mut Desk, ask: ScheduledRequest) {
        let slot = desk.insert(ask);
        desk.waiting.push_back(slot);
    }

    pub fn plan(&mut self, desk: &mut Desk, plan: &mut StepPlan) {
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

    /// Somebody left: there may be room again.
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

    /// That many steps of decodes were jumped over.
    pub(crate) fn decode_on(&mut self, steps: u32) {
        self.ratio = self.ratio.saturating_sub(self.decay * u64::from(steps)).max(self.floor);
    }

    fn plan_prompts(&mut self, desk: &mut Desk, plan: &mut StepPlan) {
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

    /// Free tokens less what the running are expected to generate.
    fn room(&self, desk: &Desk) -> i64 {
        let expected = |slot: &u32| {
            let sequence = desk.at(*slot);
            u64::from((sequence.output - sequence.generated).min(CLIP)) * self.ratio
        };
        let cut = self.cut;
        let decoding = desk.running.iter().filter(|slot| cut != Some(**slot));
        let expected = decoding.map(expected).sum::<u64>() / ONE;
        i64::from(desk.pool.free()) * i64::from(BLOCK_TOKENS) - expected as i64
    }

    /// The next piece of the prompt that was cut short.
    fn go_on(&mut self, desk: &mut Desk, plan: &mut StepPlan, slot: u32, adder: &mut Adder) {
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

    /// Tries the head of the queue. False where the step is complete.
    fn start(&mut self, desk: &mut Desk, plan: &mut StepPlan, slot: u32, adder: &mut Adder) -> bool {
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
            // A piece ends where a block does.
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

    fn begin(&self, desk: &mut Desk, plan: &mut StepPlan, slot: u32, found: KvLookup, tokens: u32) {
        desk.waiting.pop_front();
        desk.start(plan, slot, found, tokens);
        desk.schedule(plan, slot, tokens);
    }

    /// Brings the waiting into their order.
    fn sort(&self, desk: &mut Desk) {
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

    fn plan_decodes(&mut self, desk: &mut Desk, plan: &mut StepPlan) {
        let mut decoding: Vec<u32> =
            desk.running.iter().copied().filter(|slot| self.cut != Some(*slot)).collect();
        let short = |desk: &Desk, decoding: &[u32]| {
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

    fn retract(&mut self, desk: &mut Desk, plan: &mut StepPlan, slot: u32) {
        desk.running.retain(|&running| running != slot);
        let prompt = desk.at(slot).prompt;
        desk.strip(plan, slot, prompt);
        desk.waiting.push_back(slot);
        self.full = false;
    }

    /// The ratio after a retraction.
    fn jump(&mut self, desk: &Desk, left: &[u32]) {
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
