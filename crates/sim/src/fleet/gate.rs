//! A gateway in front of the replicas: the decision code of the live gateway (`policy::AdmissionController`) in virtual time.
//!
//! All its decisions are simulated: routes, queue, time limits, fairness, retries of rejections, ejections. Its
//! inputs differ from a live gateway's in two ways. A replica counts as down once the fault's notice arrives (there
//! are no health endpoints here). A request that a crash interrupts is not retried. Body sizes are four bytes per
//! token, the gateway's own ratio.

use std::collections::HashMap;

use plimsoll_math::rng::Stream;
use plimsoll_model::{Arm, At, Span};
use plimsoll_policy::{
    AdmissionControlSpec, AdmissionController, AdmissionDecision, AdmissionParams, BlockEnds,
    DequeueDecision, QueuedRequestFacts, Refusal, ReplicaOutcome, RequestFacts, SentRequest, Ticket,
};

use crate::fleet::agenda::AgendaItem;
use crate::fleet::hedge::HedgeState;
use crate::fleet::{Chosen, Fleet, NOWHERE, facts};
use crate::spec::error::BLOCK_TOKENS;
use crate::traffic::{EngineRejection, Failure, Submit};

/// Interval of queue checks without events, as in a live gateway, because ejections end without an event.
const LOOK: Span = Span::from_millis(250);
const BYTES_PER_TOKEN: u64 = 4;

#[derive(Clone, Debug)]
pub(crate) struct Gate {
    spec: AdmissionControlSpec,
    pub(crate) front: AdmissionController<QueuedRequest>,
    pub(crate) chance: Stream,
    /// Hedged requests until one of the two attempts has ended.
    pub(crate) races: HashMap<u64, HedgeState>,
    waiting: HashMap<Ticket, u64>,
    given: Vec<(Ticket, DequeueDecision)>,
    pumping: bool,
    looks: bool,
}

#[derive(Clone, Debug)]
pub(crate) struct QueuedRequest {
    session: Option<u64>,
    blocks: Vec<u64>,
    prompt_tokens: u32,
}

impl QueuedRequestFacts for QueuedRequest {
    fn facts(&self) -> RequestFacts<'_> {
        RequestFacts {
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
    pub fn new(spec: &AdmissionControlSpec, replicas: usize, seed: u64) -> Gate {
        Gate {
            spec: spec.clone(),
            front: AdmissionController::new(spec, replicas, At::ZERO),
            chance: Stream::new(seed, "fleet.gateway", 0),
            races: HashMap::new(),
            waiting: HashMap::new(),
            given: Vec::new(),
            pumping: false,
            looks: false,
        }
    }

    /// Returns the number of requests that wait in the gateway.
    pub fn held(&self) -> u32 {
        self.waiting.len() as u32
    }

    fn terms(&self, request: &Submit, now: At) -> AdmissionParams {
        // Priority 1 is the highest; requests without a priority are in the first class.
        let last = self.spec.admission.classes.len() - 1;
        let class = (request.priority.saturating_sub(1) as usize).min(last);
        let bytes = u64::from(request.prompt_tokens) * BYTES_PER_TOKEN;
        AdmissionParams { class, tenant: 0, came: now, slo: self.spec.admission.slo(class), bytes }
    }
}

impl Fleet {
    pub(crate) fn pass_gate(&mut self, now: At, request: Submit) -> Result<(), EngineRejection> {
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
            AdmissionDecision::Sent(sent) => self.deliver(now, sent, request, Vec::new()),
            AdmissionDecision::Refused(refusal) => Err(rejected(refusal)),
            AdmissionDecision::Queued { ticket, until } => {
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

    /// Sends a request to its replica; after a rejection, to another one within the retry budget.
    fn deliver(
        &mut self,
        now: At,
        mut sent: SentRequest,
        request: Submit,
        mut tried: Vec<u32>,
    ) -> Result<(), EngineRejection> {
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

    /// Sends the requests that may start, and fails the others.
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
                    DequeueDecision::Sent(sent) => self.go(now, id, sent),
                    DequeueDecision::Refused(refusal) => self.turn_away(now, id, refusal),
                }
            }
            // These actions may have freed capacity for other requests.
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

    /// Expires a queued request, if it still waits.
    pub(crate) fn expire(&mut self, now: At, ticket: Ticket) {
        self.see_replicas();
        let Some(gate) = &mut self.gate else { return };
        let Some(refusal) = gate.front.expire(ticket, now) else { return };
        if let Some(id) = gate.waiting.remove(&ticket) {
            self.turn_away(now, id, refusal);
        }
    }

    pub(crate) fn look_at_queue(&mut self, now: At) {
        self.pump(now);
        let Some(gate) = &mut self.gate else { return };
        gate.looks = gate.front.has_waiting();
        if gate.looks {
            self.agenda.note(now + LOOK, AgendaItem::Look);
        }
    }

    /// Records the first token of a request.
    pub(crate) fn gate_first(&mut self, at: At, id: u64) {
        let (Some(gate), Some(slot)) = (&mut self.gate, self.flights.find(id)) else { return };
        if let Some(sent) = &mut self.flights.at_mut(slot).sent {
            gate.front.first(sent, at);
        }
        self.decide_race(at, id);
        self.pump(at);
    }

    /// Records that a request left its replica or the queue.
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

    /// Updates the gateway's list of available replicas.
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

/// Returns the meaning of a failure for its replica.
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
        Refusal::HeldBack(after) => (429, "the budget is broken and its class is shed first", Some(after)),
        Refusal::Expired => (504, "its time ran out in the gateway's queue", None),
        Refusal::NoReplica => (503, "no replica answers", Some(Span::from_secs(1))),
    }
}

fn rejected(refusal: Refusal) -> EngineRejection {
    let (status, why, retry_after) = words(refusal);
    EngineRejection::Unavailable { status, why, retry_after }
}
