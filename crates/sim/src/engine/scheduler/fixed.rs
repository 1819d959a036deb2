//! Static batching: wait for a batch or a timer, pad it, compute it to its end, and send all responses together.
//!
//! * A batch starts when enough requests wait, or when the first of them has waited for the timer. It takes waiting
//!   requests in order, as many as the blocks allow with padding; later requests wait for the next batch.
//! * Prompts and outputs are padded to the longest: each row costs as much as the longest in every step.
//! * No response leaves before the last row is done. A cancelled row stays as padding, unless all are cancelled.
//!
//! There is no prefix cache. A prefill over the token budget is split, unlike in real engines of this kind. The split
//! costs a few additional floors and permits steps that are too large for the memory.

use super::desk::SchedulerState;
use super::policy::StaticSpec;
use super::{ScheduledRequest, SequenceProgress, StepPlan};
use crate::engine::step_time::StepLoad;
use crate::spec::error::BLOCK_TOKENS;

#[derive(Clone, Debug)]
pub(crate) struct FixedScheduler {
    most: usize,
    wait_ps: i128,
    batch: Option<Batch>,
}

#[derive(Clone, Debug)]
struct Batch {
    rows: Vec<u32>,
    prompt: u32,
    output: u32,
    /// Computed prompt tokens of all rows, including padding.
    computed: u64,
    generated: u32,
}

impl FixedScheduler {
    pub fn new(spec: &StaticSpec) -> FixedScheduler {
        FixedScheduler {
            most: spec.batch as usize,
            wait_ps: (spec.wait_ms * 1e9).round() as i128,
            batch: None,
        }
    }

    pub fn admit(&self, desk: &mut SchedulerState, ask: ScheduledRequest) {
        let slot = desk.insert(ask);
        desk.waiting.push_back(slot);
    }

    pub fn plan(&mut self, desk: &mut SchedulerState, now_ps: i128, plan: &mut StepPlan) {
        if self.batch.is_none() && self.is_due(desk, now_ps) {
            self.form(desk, plan);
        }
        let Some(batch) = &self.batch else { return };
        let rows = batch.rows.len() as u32;
        let left = u64::from(batch.prompt) * u64::from(rows) - batch.computed;
        if left > 0 {
            let tokens = left.min(u64::from(desk.limits.token_budget)) as u32;
            batch.share_prompts(desk, plan, tokens);
            return;
        }
        for &slot in &batch.rows {
            desk.schedule(plan, slot, 1);
        }
        let context = u64::from(batch.prompt + batch.generated) * u64::from(rows);
        plan.load = StepLoad { tokens: rows, decodes: rows, rows, context, ..StepLoad::default() };
    }

    /// Returns the time of the next plan without an event; `None` if there is none.
    pub fn next_wake(&self, desk: &SchedulerState) -> Option<i128> {
        let first = desk.waiting.front().filter(|_| self.batch.is_none())?;
        Some(desk.at(*first).at_ps + self.wait_ps)
    }

    pub fn commit(
        &mut self,
        desk: &mut SchedulerState,
        plan: &StepPlan,
        mut progress: impl FnMut(SequenceProgress),
    ) {
        let Some(batch) = &mut self.batch else { return };
        let prompts = u64::from(batch.prompt) * batch.rows.len() as u64;
        if batch.computed < prompts {
            batch.computed += u64::from(plan.load.tokens);
            if batch.computed < prompts {
                return;
            }
            batch.tell_prefilled(desk, &mut progress);
        }
        batch.generated += 1;
        if batch.generated >= batch.output {
            self.end(desk, progress);
        }
    }

    /// Drops the batch if all its rows are cancelled.
    pub fn cancelled(&mut self, desk: &mut SchedulerState) {
        if let Some(batch) = self.batch.take_if(|batch| batch.rows.iter().all(|&slot| desk.at(slot).gone)) {
            for slot in batch.rows {
                desk.sequences.release(slot);
            }
        }
    }

    pub fn is_open(&self) -> bool {
        self.batch.is_none()
    }

    /// Returns the number of further equal steps before the batch ends.
    pub(crate) fn decodes_ahead(&self) -> u32 {
        self.batch.as_ref().map_or(0, |batch| (batch.output - batch.generated).saturating_sub(1))
    }

    pub(crate) fn decode_on(&mut self, steps: u32) {
        if let Some(batch) = &mut self.batch {
            batch.generated += steps;
        }
    }

    fn is_due(&self, desk: &SchedulerState, now_ps: i128) -> bool {
        desk.waiting.len() >= self.most || self.next_wake(desk).is_some_and(|at| at <= now_ps)
    }

    fn form(&mut self, desk: &mut SchedulerState, plan: &mut StepPlan) {
        let (mut prompt, mut output, mut rows) = (0, 0, 0);
        let most = self.most.min(desk.limits.max_seqs as usize);
        for &slot in desk.waiting.iter().take(most) {
            let sequence = desk.at(slot);
            let padded = (prompt.max(sequence.prompt), output.max(sequence.output));
            let blocks = u64::from(blocks(padded.0, padded.1)) * (rows + 1);
            if blocks > u64::from(desk.pool.free()) {
                break;
            }
            (prompt, output) = padded;
            rows += 1;
        }
        if rows == 0 {
            return;
        }
        let rows: Vec<u32> = desk.waiting.drain(..rows as usize).collect();
        for &slot in &rows {
            desk.start(plan, slot, crate::engine::kv::KvLookup::default(), 0);
            desk.pool.take(slot, blocks(prompt, output));
        }
        self.batch = Some(Batch { rows, prompt, output, computed: 0, generated: 0 });
    }

    fn end(&mut self, desk: &mut SchedulerState, mut progress: impl FnMut(SequenceProgress)) {
        let Some(batch) = self.batch.take() else { return };
        for &slot in &batch.rows {
            let sequence = desk.sequences.at_mut(slot);
            sequence.planned = false;
            if sequence.gone {
                desk.sequences.release(slot);
                continue;
            }
            sequence.gone = true;
            sequence.generated = sequence.output;
            let (id, tokens) = (sequence.id, sequence.output);
            desk.pool.release(slot, sequence.number, 0);
            progress(SequenceProgress {
                id,
                prefilled: None,
                tokens,
                first: true,
                generated: tokens,
                finished: true,
            });
        }
        desk.drop_gone();
    }
}

impl Batch {
    /// Assigns the next `tokens` of the padded prompts, row by row.
    fn share_prompts(&self, desk: &mut SchedulerState, plan: &mut StepPlan, mut tokens: u32) {
        let mut load = StepLoad { tokens, ..StepLoad::default() };
        let mut row = (self.computed / u64::from(self.prompt)) as usize;
        let mut before = (self.computed % u64::from(self.prompt)) as u32;
        while tokens > 0 {
            let piece = tokens.min(self.prompt - before);
            desk.schedule(plan, self.rows[row], piece);
            load.chunks += 1;
            load.prefill_pairs += u64::from(piece) * (2 * u64::from(before) + u64::from(piece));
            load.rows += u32::from(before + piece == self.prompt);
            tokens -= piece;
            (row, before) = (row + 1, 0);
        }
        // Rows without tokens in this step still belong to the batch.
        for &slot in &self.rows {
            desk.sequences.at_mut(slot).planned = true;
        }
        plan.load = load;
    }

    fn tell_prefilled(&self, desk: &mut SchedulerState, progress: &mut impl FnMut(SequenceProgress)) {
        for &slot in &self.rows {
            let sequence = desk.sequences.at_mut(slot);
            sequence.prefilled = true;
            if !sequence.gone {
                let (id, prefilled) = (sequence.id, Some(sequence.prompt));
                progress(SequenceProgress {
                    id,
                    prefilled,
                    tokens: 0,
                    first: false,
                    generated: 0,
                    finished: false,
                });
            }
        }
    }
}

/// Returns the blocks of a row of this shape.
fn blocks(prompt: u32, output: u32) -> u32 {
    (prompt + output).saturating_sub(1).max(prompt).div_ceil(BLOCK_TOKENS)
}
