//! A gateway in front of the replicas: the very machine that serves (`policy::Front`), told what happens in virtual time.
//!
//! What it decides is all there: routes, queue, time limits, fairness, retries of what is refused, ejections. What it is told differs from a live one in two things:
//! a replica that is down is known to be so when the fault's notice says (there are no health pages here), and what a crash takes in the middle
//! is not tried again. Bytes of bodies are taken as four a token, as the gateway takes tokens as four bytes.

use std::collections::HashMap;

use plimsoll_math::rng::Stream;
use plimsoll_model::{Arm, At, Span};
use plimsoll_policy::{
    BlockEnds, Facts, Front, FrontSpec, Given, Offer, QueuedAsk, Refusal, ReplicaOutcome, SentRequest, Terms,
    Ticket,
};

use crate::fleet::agenda::AgendaItem;
use crate::fleet::hedge::Race;
use crate::fleet::{Chosen, Fleet, NOWHERE, facts};
use crate::spec::error::BLOCK_TOKENS;
use crate::traffic::{Failure, Rejected, Submit};

/// Between two looks at what waits, where nothing happens: an ejection's end comes by itself. As often as a live gateway.
const LOOK: Span = Span::from_millis(250);
const BYTES_PER_TOKEN: u64 = 4;

#[derive(Clone, Debug)]
pub(crate) struct Gate {
    spec: FrontSpec,
    pub(crate) front: Front<QueuedRequest>,
    pub(crate) chance: Stream,
    /// Requests that were sent twice, until one of the two has ended.
    pub(crate) races: HashMap<u64, Race>,
    waiting: HashMap<Ticket, u64>,
    given: Vec<(Ticket, Given)>,
    pumping: bool,
    looks: bool,
}

/// What the queue keeps of a request.
#[derive(Clone, Debug)]
pub(crate) struct QueuedRequest {
    session: Option<u64>,
    blocks: Vec<u64>,
    prompt_tokens: u32,
}

impl QueuedAsk for QueuedRequest {
    fn facts(&self) -> Facts<'_> {
        Facts {
            session: self.session,
            blocks: &self.blocks,
            ends: BlockEnds::Every(BLOCK_TOKENS),
            prompt_tokens: self.prompt_tokens,
            most_tokens: None,
            streams: true,
            arm: Arm::Base,
            model: None,
            tier: 0,
            among: None,
        }
    }
}

impl Gate {
    pub fn new(spec: &FrontSpec, replicas: usize, seed: u64) -> Gate {
        Gate {
            spec: spec.clone(),
            front: Front::new(spec, replicas, At::ZERO),
            chance: Stream::new(seed, "fleet.gateway", 0),
            races: HashMap::new(),
            waiting: HashMap::new(),
            given: Vec::new(),
            pumping: false,
            looks: false,
        }
    }

    /// Requests that wait here.
    pub fn held(&self) -> u32 {
        self.waiting.len() as u32
    }

    fn terms(&self, request: &Submit, now: At) -> Terms {
        // Priority 1 is the highest, and none is the first class.
        let last = self.spec.admission.classes.len() - 1;
        let class = (request.priority.saturating_sub(1) as usize).min(last);
        let bytes = u64::from(request.prompt_tokens) * BYTES_PER_TOKEN;
        Terms { class, tenant: 0, came: now, slo: self.spec.admission.slo(class), bytes }
    }
}

impl Fleet {
    /// A request comes to the gateway.
    pub(crate) fn pass_gate(&mut self, now: At, request: Submit) -> Result<(), Rejected> {
        self.see_replicas();
        let id = request.id;
        let Some(gate) = &mut self.gate else { return Ok(()) };
        gate.front.came(now);
        let terms = gate.terms(&request, now);
        let keep = || QueuedRequest {
            session: request.session,
            blocks: request.blocks.clone(),
            prompt_tokens: request.prompt_tokens.max(1),
        };
        match gate.front.offer(&facts(&request), &terms, now, &mut gate.chance, keep) {
            Offer::Sent(sent) => self.deliver(now, sent, request, Vec::new()),
            Offer::Refused(refusal) => Err(rejected(refusal)),
            Offer::Queued { ticket, until } => {
                gate.waiting.insert(ticket, id);
                if !std::mem::replace(&mut gate.looks, true) {
                    self.agenda.note(now + LOOK, AgendaItem::Look);
                }
                self.agenda.note(until, AgendaItem::Expire { ticket });
                self.hold(NOWHERE, request);
                if let Some(slot) = self.flights.find(id) {
                    self.flights.at_mut(slot).ticket = Some(ticket);
                }
                self.pump(now);
                Ok(())
            }
        }
    }

    /// Brings a request to its replica; where that refuses it, to another one, as far as the budget goes.
    fn deliver(
        &mut self,
        now: At,
        mut sent: SentRequest,
        request: Submit,
        mut tried: Vec<u32>,
    ) -> Result<(), Rejected> {
        let mut tries = 0;
        loop {
            tries += 1;
            let chosen = chosen(&sent);
            let Err(why) = self.place(now, chosen, request.clone()) else {
                if let Some(slot) = self.flights.find(request.id) {
                    self.flights.at_mut(slot).sent = Some(sent);
                }
                let id = request.id;
                self.note_lateness(now, id, || Box::new(request));
                return Ok(());
            };
            let Some(gate) = &mut self.gate else { return Err(why) };
            let verdict = verdict(why.status(), why.retry_after());
            gate.front.ended(sent, Some(verdict), 0, now, &mut gate.chance);
            tried.push(chosen.replica);
            let again =
                matches!(why.status(), None | Some(429 | 502 | 503)) && gate.front.may_retry(tries, now);
            let other = again.then(|| gate.front.again(&facts(&request), &tried, now, &mut gate.chance));
            match other.flatten() {
                Some(other) => sent = other,
                None => {
                    self.pump(now);
                    return Err(why);
                }
            }
        }
    }

    /// Sends those that may go now, and tells those that may not.
    pub(crate) fn pump(&mut self, now: At) {
        self.see_replicas();
        loop {
            let Some(gate) = self.gate.as_mut().filter(|gate| !gate.pumping && gate.front.has_waiting())
            else {
                return;
            };
            gate.front.pump(now, &mut gate.chance, &mut gate.given);
            if gate.given.is_empty() {
                return;
            }
            gate.pumping = true;
            let mut given = std::mem::take(&mut gate.given);
            for (ticket, given) in given.drain(..) {
                let Some(id) = self.gate.as_mut().and_then(|gate| gate.waiting.remove(&ticket)) else {
                    continue;
                };
                match given {
                    Given::Sent(sent) => self.go(now, id, sent),
                    Given::Refused(refusal) => self.turn_away(now, id, refusal),
                }
            }
            // What one of them did may have made room for another.
            if let Some(gate) = &mut self.gate {
                gate.given = given;
                gate.pumping = false;
            }
        }
    }

    fn go(&mut self, now: At, id: u64, sent: SentRequest) {
        let Some(slot) = self.flights.find(id) else { return };
        let flight = self.flights.at_mut(slot);
        (flight.ticket, flight.sent) = (None, Some(sent));
        let request = flight.held.clone();
        flight.cut = self.faults.cut(sent.booking.replica, id, flight.answer);
        self.placed(now, id, chosen(&sent));
        self.let_in(now, id);
        if let Some(request) = request {
            self.note_lateness(now, id, || request);
        }
    }

    fn turn_away(&mut self, now: At, id: u64, refusal: Refusal) {
        if let Some(slot) = self.flights.find(id) {
            self.flights.at_mut(slot).ticket = None;
        }
        let (status, why, _) = words(refusal);
        self.fail(now, id, Failure::Status { status, why }, false);
    }

    /// A request has waited for as long as it may, if it still does.
    pub(crate) fn expire(&mut self, now: At, ticket: Ticket) {
        self.see_replicas();
        let Some(gate) = &mut self.gate else { return };
        let Some(refusal) = gate.front.expire(ticket, now) else { return };
        if let Some(id) = gate.waiting.remove(&ticket) {
            self.turn_away(now, id, refusal);
        }
    }

    /// What waits is looked at again.
    pub(crate) fn look_at_queue(&mut self, now: At) {
        self.pump(now);
        let Some(gate) = &mut self.gate else { return };
        gate.looks = gate.front.has_waiting();
        if gate.looks {
            self.agenda.note(now + LOOK, AgendaItem::Look);
        }
    }

    /// The first token of a request that the gateway sent came.
    pub(crate) fn gate_first(&mut self, at: At, id: u64) {
        let (Some(gate), Some(slot)) = (&mut self.gate, self.flights.find(id)) else { return };
        if let Some(sent) = &mut self.flights.at_mut(slot).sent {
            gate.front.first(sent, at);
        }
        self.decide_race(at, id);
        self.pump(at);
    }

    /// A request has left its replica, or the queue.
    pub(crate) fn gate_ended(&mut self, at: At, flight: &crate::fleet::TakenRequest) {
        let Some(gate) = &mut self.gate else { return };
        if let Some(ticket) = flight.ticket {
            gate.front.leave(ticket);
            gate.waiting.remove(&ticket);
        }
        if let Some(sent) = flight.sent {
            let worked = flight.verdict == Some(ReplicaOutcome::Worked);
            let tokens = if worked { flight.answer } else { 0 };
            if worked {
                gate.front.cached(&sent, f64::from(flight.cached) / f64::from(flight.prompt));
            }
            gate.front.ended(sent, flight.verdict, tokens, at, &mut gate.chance);
        }
        self.pump(at);
    }

    /// Tells the gateway which replicas it knows to be there.
    pub(crate) fn see_replicas(&mut self) {
        let Some(gate) = &mut self.gate else { return };
        for (number, replica) in (0u32..).zip(&self.replicas) {
            if gate.front.health().is_up(number) != replica.is_routable() {
                gate.front.set_up(number, replica.is_routable());
            }
        }
    }
}

pub(crate) fn chosen(sent: &SentRequest) -> Chosen {
    let booking = &sent.booking;
    Chosen { replica: booking.replica, uncached: booking.load.backlog as u32, expected: booking.expected }
}

/// What a failure says of its replica.
pub(crate) fn verdict(status: Option<u16>, retry_after: Option<Span>) -> ReplicaOutcome {
    match status {
        Some(429) => ReplicaOutcome::Shed(retry_after),
        Some(503) if retry_after.is_some() => ReplicaOutcome::Shed(retry_after),
        Some(400..=499) => ReplicaOutcome::Worked,
        _ => ReplicaOutcome::Failed,
    }
}

fn words(refusal: Refusal) -> (u16, &'static str, Option<Span>) {
    match refusal {
        Refusal::Late(after) => (429, "it would be late", Some(after)),
        Refusal::Full(after) => (429, "the gateway's queue is full", Some(after)),
        Refusal::HeldBack(after) => (429, "the budget is broken and its class gives way", Some(after)),
        Refusal::Expired => (504, "its time ran out in the gateway's queue", None),
        Refusal::NoReplica => (503, "no replica answers", Some(Span::from_secs(1))),
    }
}

fn rejected(refusal: Refusal) -> Rejected {
    let (status, why, retry_after) = words(refusal);
    Rejected::Unavailable { status, why, retry_after }
}
