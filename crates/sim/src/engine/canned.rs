//! Answers with drawn times and nothing shared: whatever the load, each stream follows its own law.
//!
//! Useless as a picture of a server, and for that reason the best truth for a client's stamps: what it reports must
//! be the law, at any number of streams.

use plimsoll_math::rng::Stream;
use plimsoll_model::{At, Span};

use crate::engine::calendar::{Calendar, Ticket};
use crate::engine::slots::Slots;
use crate::spec::CannedSpec;
use crate::traffic::{Emission, FinishReason, Rejected, RequestEvent, Submit, Totals};

/// See the module.
#[derive(Clone, Debug)]
pub(crate) struct Canned {
    spec: CannedSpec,
    seed: u64,
    answers: Slots<Answer>,
    running: u32,
    calendar: Calendar,
}

#[derive(Clone, Debug)]
struct Answer {
    id: u64,
    prompt_tokens: u32,
    tokens: u32,
    made: u32,
    chance: Stream,
    ticket: Ticket,
}

impl Canned {
    pub fn new(spec: &CannedSpec, seed: u64) -> Canned {
        let spec = spec.clone();
        Canned { spec, seed, answers: Slots::new(), running: 0, calendar: Calendar::default() }
    }

    pub fn submit(&mut self, now: At, request: &Submit, out: &mut Vec<Emission>) -> Result<(), Rejected> {
        let id = request.id;
        if self.answers.find(id).is_some() {
            return Err(Rejected::DuplicateId { id });
        }
        let mut chance = Stream::new(self.seed, "sim.canned", id);
        // At least a nanosecond, or a closed loop would turn for ever at one instant.
        let first = now + self.spec.ttft.draw(&mut chance).max(Span(1));
        let (prompt_tokens, tokens) = (request.prompt_tokens.max(1), request.output_tokens);
        let slot = self
            .answers
            .insert(id, Answer { id, prompt_tokens, tokens, made: 0, chance, ticket: Ticket::default() });
        self.answers.at_mut(slot).ticket = self.calendar.push(first, slot);
        self.running += 1;
        out.push(Emission { at: now, id, what: RequestEvent::Admitted { cached: 0 } });
        Ok(())
    }

    pub fn next_at(&self) -> Option<At> {
        self.calendar.next_at()
    }

    pub fn fire(&mut self, out: &mut Vec<Emission>, totals: &mut Totals) {
        let Some((at, slot)) = self.calendar.pop() else { return };
        let answer = self.answers.at_mut(slot);
        let id = answer.id;
        if answer.made == 0 {
            out.push(Emission { at, id, what: RequestEvent::PrefillDone });
            totals.prompt_tokens += u64::from(answer.prompt_tokens);
        }
        if answer.tokens > 0 {
            answer.made += 1;
            totals.output_tokens += 1;
            let last = answer.made == answer.tokens;
            out.push(Emission { at, id, what: RequestEvent::Token { n: 1, last } });
            if !last {
                let gap = self.spec.gap.draw(&mut answer.chance);
                answer.ticket = self.calendar.push(at + gap, slot);
                return;
            }
        }
        let reason = if answer.tokens > 0 { FinishReason::Length } else { FinishReason::Stop };
        out.push(Emission { at, id, what: RequestEvent::Finished { reason } });
        totals.finished += 1;
        self.leave(id, slot);
    }

    pub fn cancel(&mut self, id: u64) -> bool {
        let Some(slot) = self.answers.find(id) else { return false };
        self.calendar.cancel(self.answers.at(slot).ticket);
        self.leave(id, slot);
        true
    }

    /// Drops everything in flight and returns the ids.
    pub fn reset(&mut self) -> Vec<u64> {
        let ids = self.answers.ids();
        self.answers = Slots::new();
        self.calendar = Calendar::default();
        self.running = 0;
        ids
    }

    pub fn running(&self) -> u32 {
        self.running
    }

    fn leave(&mut self, id: u64, slot: u32) {
        self.answers.forget(id);
        self.answers.release(slot);
        self.running -= 1;
    }
}
