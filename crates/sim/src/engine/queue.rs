//! A first-come-first-served queue in front of c equal servers: the system with textbook formulas.
//!
//! The service time of a request is drawn from its id at its start, so it is equal under any arrival process. The
//! output tokens are spread evenly over the service. Time `service` × k / n is computed in integers for each k, so
//! rounding errors never accumulate and the last token is the end.
//!
//! A canned engine is such a queue without waiting, in which each stream follows its own distribution. It is no model
//! of a server, but the best reference for a client's timestamps. The reported times must follow the distribution at
//! any number of streams.

use std::collections::VecDeque;

use plimsoll_math::rng::Stream;
use plimsoll_model::{At, Span};

use crate::engine::calendar::{Calendar, Ticket};
use crate::engine::slots::{Slots, take_out};
use crate::spec::law::LawSpec;
use crate::spec::{CannedSpec, QueueSpec};
use crate::traffic::{Emission, EngineRejection, FinishReason, RequestEvent, Submit, Totals};

/// An engine with c servers, or with drawn times.
#[derive(Clone, Debug)]
pub(crate) struct Queue {
    servers: u32,
    limit: Option<u32>,
    pace: Pace,
    seed: u64,
    customers: Slots<Customer>,
    waiting: VecDeque<u32>,
    running: u32,
    calendar: Calendar,
}

/// The times at which output tokens leave.
#[derive(Clone, Debug)]
enum Pace {
    /// Evenly over the service time.
    Service(LawSpec),
    /// A drawn time to the first token, and one between each pair.
    Apart(CannedSpec),
}

#[derive(Clone, Debug)]
struct Customer {
    id: u64,
    prompt_tokens: u32,
    tokens: u32,
    made: u32,
    start: At,
    /// Service time, or time to the first token.
    service: Span,
    chance: Stream,
    /// Calendar entry; `None` if the request is not in service.
    ticket: Option<Ticket>,
}

impl Queue {
    pub fn new(spec: &QueueSpec, seed: u64) -> Queue {
        Queue::of(spec.servers, spec.queue_limit, Pace::Service(spec.service), seed)
    }

    pub fn canned(spec: &CannedSpec, seed: u64) -> Queue {
        Queue::of(u32::MAX, None, Pace::Apart(spec.clone()), seed)
    }

    fn of(servers: u32, limit: Option<u32>, pace: Pace, seed: u64) -> Queue {
        let (customers, waiting) = (Slots::new(), VecDeque::new());
        Queue { servers, limit, pace, seed, customers, waiting, running: 0, calendar: Calendar::default() }
    }

    pub fn submit(
        &mut self,
        now: At,
        request: &Submit,
        out: &mut Vec<Emission>,
    ) -> Result<(), EngineRejection> {
        let id = request.id;
        if self.customers.find(id).is_some() {
            return Err(EngineRejection::DuplicateId { id });
        }
        let all_busy = self.running == self.servers;
        if let Some(limit) = self.limit
            && all_busy
            && self.waiting.len() >= limit as usize
        {
            return Err(EngineRejection::QueueFull { limit });
        }
        let slot = self.customers.insert(
            id,
            Customer {
                id,
                prompt_tokens: request.prompt_tokens.max(1),
                tokens: request.output_tokens,
                made: 0,
                start: now,
                service: Span::ZERO,
                chance: self.pace.chance(self.seed, id),
                ticket: None,
            },
        );
        self.waiting.push_back(slot);
        self.start_next(now, out);
        Ok(())
    }

    pub fn next_at(&self) -> Option<At> {
        self.calendar.next_at()
    }

    pub fn fire(&mut self, out: &mut Vec<Emission>, totals: &mut Totals) {
        let Some((at, slot)) = self.calendar.pop() else { return };
        let customer = self.customers.at_mut(slot);
        let id = customer.id;
        if customer.made == 0 {
            out.push(Emission { at, id, what: RequestEvent::PrefillDone });
            totals.prompt_tokens += u64::from(customer.prompt_tokens);
        }
        if customer.tokens > 0 {
            customer.made += 1;
            totals.output_tokens += 1;
            let last = customer.made == customer.tokens;
            out.push(Emission { at, id, what: RequestEvent::Token { n: 1, last } });
            if !last {
                customer.ticket = Some(self.calendar.push(customer.next_token(at, &self.pace), slot));
                return;
            }
        }
        let reason = if customer.tokens > 0 { FinishReason::Length } else { FinishReason::Stop };
        out.push(Emission { at, id, what: RequestEvent::Finished { reason } });
        totals.finished += 1;
        self.running -= 1;
        self.leave(id, slot);
        self.start_next(at, out);
    }

    pub fn cancel(&mut self, now: At, id: u64, out: &mut Vec<Emission>) -> bool {
        let Some(slot) = self.customers.find(id) else { return false };
        match self.customers.at(slot).ticket {
            Some(ticket) => {
                self.calendar.cancel(ticket);
                self.running -= 1;
            }
            None => take_out(&mut self.waiting, slot),
        }
        self.leave(id, slot);
        self.start_next(now, out);
        true
    }

    /// Drops everything in flight and returns the ids.
    pub fn reset(&mut self) -> Vec<u64> {
        let ids = self.customers.ids();
        self.customers = Slots::new();
        self.calendar = Calendar::default();
        self.waiting.clear();
        self.running = 0;
        ids
    }

    pub fn running(&self) -> u32 {
        self.running
    }

    pub fn waiting(&self) -> u32 {
        self.waiting.len() as u32
    }

    fn start_next(&mut self, at: At, out: &mut Vec<Emission>) {
        while self.running < self.servers {
            let Some(slot) = self.waiting.pop_front() else { return };
            let customer = self.customers.at_mut(slot);
            let (Pace::Service(law) | Pace::Apart(CannedSpec { ttft: law, .. })) = &self.pace;
            customer.start = at;
            // At least a nanosecond, because a closed loop would otherwise never leave one instant.
            customer.service = law.draw(&mut customer.chance).max(Span(1));
            customer.ticket = Some(self.calendar.push(customer.next_token(at, &self.pace), slot));
            self.running += 1;
            out.push(Emission { at, id: customer.id, what: RequestEvent::Admitted { cached: 0 } });
        }
    }

    fn leave(&mut self, id: u64, slot: u32) {
        self.customers.forget(id);
        self.customers.release(slot);
    }
}

impl Pace {
    fn chance(&self, seed: u64, id: u64) -> Stream {
        match self {
            Pace::Service(_) => Stream::new(seed, "sim.service", id),
            Pace::Apart(_) => Stream::new(seed, "sim.canned", id),
        }
    }
}

impl Customer {
    /// Returns the time of the next token.
    fn next_token(&mut self, now: At, pace: &Pace) -> At {
        match pace {
            Pace::Apart(_) if self.made == 0 => self.start + self.service,
            Pace::Apart(canned) => now + canned.gap.draw(&mut self.chance),
            Pace::Service(_) => {
                let tokens = i128::from(self.tokens.max(1));
                let share = i128::from(self.service.0) * i128::from(self.made + 1) / tokens;
                self.start + Span(share as i64)
            }
        }
    }
}
