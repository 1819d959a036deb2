//! Replicas behind a router, in virtual time.
//!
//! Replicas are independent, so each is advanced only when its state is needed. A policy without loads advances only
//! the chosen replica, and a step advances the replicas with emissions. Emissions are returned in order of time; at
//! one instant the fleet's events come first, then by replica. One calendar for all replicas' steps was rejected,
//! because every step would pay for what only rare reads need.
//!
//! If a response has effects elsewhere, the fleet *watches*: engines then advance in order of time. Examples are a
//! cut stream that frees its slot, or a closed connection that admits the next request.
//!
//! At one instant the agenda (faults, replicas that become ready) runs before submissions, and both before engines.

pub mod adapters;
mod agenda;
mod entry;
pub mod fault;
mod faults;
mod gate;
mod hedge;
mod replica;
mod scale;
mod split;
mod watch;
pub mod world;

use std::collections::VecDeque;

use plimsoll_math::rng::Stream;
use plimsoll_model::{Arm, At, Sample, Span};
use plimsoll_policy::keda::Keda;
use plimsoll_policy::{
    BlockEnds, Booking, ExpectedHit, ReplicaLoad, ReplicaOutcome, ReplicaView, RequestFacts, Router,
    SentRequest, Ticket,
};

use crate::engine::Engine;
use crate::engine::meter::BucketHistogram;
use crate::engine::slots::Slots;
use crate::fleet::adapters::{AdapterCache, set_apart};
use crate::fleet::agenda::Agenda;
use crate::fleet::fault::{FaultTruth, Faults};
use crate::fleet::gate::Gate;
use crate::fleet::replica::{Phase, Replica};
use crate::fleet::split::Split;
use crate::spec::error::{BLOCK_TOKENS, SimSpecError};
use crate::spec::fleet::WorldSpec;
use crate::traffic::{
    Detail, Emission, EngineGauges, EngineRejection, Failure, RequestEvent, Submit, Totals,
};

/// The replicas of a world with their router.
#[derive(Clone, Debug)]
pub(crate) struct Fleet {
    pub(crate) spec: WorldSpec,
    pub(crate) seed: u64,
    pub(crate) now: At,
    pub(crate) detail: Detail,
    pub(crate) watching: bool,
    watching_tokens: bool,
    /// Separate replicas for prefill and decode; `None` if there are none.
    pub(crate) split: Option<Split>,
    pub(crate) agenda: Agenda,
    pub(crate) faults: Faults,
    pub(crate) replicas: Vec<Replica>,
    pub(crate) router: Router,
    /// Gateway that replaces the router; `None` if there is none.
    pub(crate) gate: Option<Box<Gate>>,
    pub(crate) autoscaler: Option<Keda>,
    pub(crate) load_delay: Span,
    pub(crate) flights: Slots<TakenRequest>,
    pub(crate) serial: u64,
    /// Requests without a replica, in order.
    pub(crate) unplaced: VecDeque<u64>,
    /// Time of the last arrival or end of a request.
    pub(crate) active: At,
    /// Pending emissions of the fleet itself.
    pub(crate) own: Vec<Emission>,
    pub(crate) samples: Vec<Sample>,
    /// Last sampled numbers of ready, provisioning and billed replicas; only a change is sampled.
    pub(crate) counted: [Option<f64>; 3],
    pub(crate) totals: Totals,
    pub(crate) views: Vec<ReplicaView>,
    scratch: Vec<Emission>,
    /// Replicas whose process was lost or replaced since the last read.
    pub(crate) crashed: Vec<u32>,
}

/// An accepted request that has not ended.
#[derive(Clone, Debug)]
pub(crate) struct TakenRequest {
    /// Replica number; [`NOWHERE`] until it is placed.
    pub replica: u32,
    pub load: ReplicaLoad,
    /// Record for the router's latency feedback; `None` if the router does not learn.
    pub booking: Option<Booking>,
    /// Record for the gateway's feedback, the ticket in its queue, and the outcome on the replica.
    pub sent: Option<SentRequest>,
    pub ticket: Option<Ticket>,
    pub verdict: Option<ReplicaOutcome>,
    /// Prompt tokens, and cached ones among them.
    pub prompt: u32,
    pub cached: u32,
    /// Serial number, which distinguishes requests with equal ids.
    pub serial: u64,
    /// The request until it is in an engine.
    pub held: Option<Box<Submit>>,
    pub began: bool,
    /// Total output tokens.
    pub answer: u32,
    /// Output tokens so far, and the fault and position of a cut.
    pub tokens: u32,
    pub cut: Option<(u32, u32)>,
    /// Number of tokens in a proxy's buffer.
    pub buffered: u32,
    /// Adapter of the request; `None` for the base model.
    pub adapter: Option<u32>,
    /// Copy of the request if it may be hedged.
    pub twice: Option<Box<Submit>>,
    /// The whole request while a prefill replica computes its prompt.
    pub onward: Option<Box<Submit>>,
}

/// A replica, and the expected number of uncached prompt tokens.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Chosen {
    pub replica: u32,
    pub uncached: u32,
    pub expected: ExpectedHit,
}

/// Returns the properties of a request that a router may use.
pub(crate) fn facts(request: &Submit) -> RequestFacts<'_> {
    RequestFacts {
        session: request.session,
        blocks: &request.blocks,
        ends: BlockEnds::Every(BLOCK_TOKENS),
        prompt_tokens: request.prompt_tokens.max(1),
        most_tokens: None,
        streams: true,
        arm: Arm::Base,
        model: None,
        tier: 0,
        among: None,
    }
}

pub(crate) const NOWHERE: u32 = u32::MAX;

impl Fleet {
    pub fn new(spec: &WorldSpec, seed: u64) -> Result<Fleet, SimSpecError> {
        let shelf = spec.fleet.adapters.as_ref().map(AdapterCache::new);
        let replica = || {
            let mut replica = Replica::new(Engine::new(&spec.engine, seed)?, Phase::Ready, 0);
            replica.shelf = shelf.clone();
            Ok(replica)
        };
        let split = Split::of(spec)?;
        let count = split.as_ref().map_or(spec.fleet.replicas, Split::replicas);
        let replicas = (0..count).map(|_| replica()).collect::<Result<Vec<_>, SimSpecError>>()?;
        let faults = Faults::new(&spec.faults, seed);
        let (tokens, ends) = faults.watching();
        let router = Router::new(&spec.fleet.route);
        let gate = spec.fleet.gateway.as_ref().map(|gate| Box::new(Gate::new(gate, count as usize, seed)));
        let mut fleet = Fleet {
            spec: spec.clone(),
            seed,
            now: At(i64::MIN),
            detail: Detail::default(),
            // A router transfers knowledge between replicas, so it must receive events in order of time.
            watching: tokens
                || ends
                || split.is_some()
                || spec.fleet.adapters.is_some()
                || gate.is_some()
                || router.learns(),
            watching_tokens: tokens,
            split,
            agenda: Agenda::default(),
            faults,
            replicas,
            router,
            gate,
            autoscaler: spec.fleet.autoscale.as_ref().map(|autoscale| autoscale.start(At::ZERO)),
            load_delay: spec.fleet.load_information_delay,
            flights: Slots::new(),
            serial: 0,
            unplaced: VecDeque::new(),
            active: At::ZERO,
            own: Vec::new(),
            samples: Vec::new(),
            counted: [None; 3],
            totals: Totals::default(),
            views: Vec::new(),
            scratch: Vec::new(),
            crashed: Vec::new(),
        };
        fleet.schedule();
        Ok(fleet)
    }

    pub fn submit(&mut self, now: At, request: Submit) -> Result<(), EngineRejection> {
        self.now = self.now.max(now);
        self.live(self.now, self.now - Span(1));
        let taken = self.admit(request);
        match taken {
            Ok(()) => self.totals.submitted += 1,
            Err(_) => self.totals.rejected += 1,
        }
        taken
    }

    fn admit(&mut self, mut request: Submit) -> Result<(), EngineRejection> {
        let (id, now) = (request.id, self.now);
        if self.flights.find(id).is_some() {
            return Err(EngineRejection::DuplicateId { id });
        }
        self.active = self.active.max(now);
        if let Some(adapter) = request.adapter.filter(|_| self.spec.fleet.adapters.is_some()) {
            // Before routing, because an adapter's prefixes are separate in the router too.
            set_apart(&mut request.blocks, adapter);
        }
        self.faults.refuse(None, id, now)?;
        let onward = self.part(&mut request);
        let taken = self.find_place(now, request);
        if let Some(slot) = self.flights.find(id).filter(|_| taken.is_ok()) {
            self.flights.at_mut(slot).onward = onward;
        }
        taken
    }

    fn find_place(&mut self, now: At, request: Submit) -> Result<(), EngineRejection> {
        let id = request.id;
        if self.gate.is_some() {
            return self.pass_gate(now, request);
        }
        match self.choose(now, &request) {
            Some(chosen) => self.place(now, chosen, request),
            None if self.may_come() => {
                self.hold(NOWHERE, request);
                self.unplaced.push_back(id);
                self.wake(now);
                Ok(())
            }
            None => Err(NO_REPLICA),
        }
    }

    /// Returns the replica that the router chooses.
    pub(crate) fn choose(&mut self, now: At, request: &Submit) -> Option<Chosen> {
        if self.router.needs_load() {
            // Events at this very instant wait for the step.
            self.run_all(now - Span(1));
        }
        self.views.clear();
        let prompts = self.split.as_ref().map_or(u32::MAX, |split| split.prefill);
        let routable = (0..prompts).zip(&mut self.replicas).filter(|(_, replica)| replica.is_routable());
        self.views.extend(routable.map(|(number, replica)| replica.view(number, now, self.load_delay)));
        let mut chance = Stream::new(self.seed, "fleet.route", request.id);
        let pick = self.router.pick(&self.views, &facts(request), &mut chance)?;
        Some(Chosen {
            replica: self.views[pick.place].replica,
            uncached: pick.uncached,
            expected: pick.expected,
        })
    }

    pub fn next_event(&self) -> Option<At> {
        let own = self.own.first().map_or(At::MAX, |emission| emission.at);
        let replicas = self.replicas.iter().map(|replica| match replica.pending.first() {
            Some(emission) => emission.at.min(replica.next),
            None => replica.next,
        });
        let next = replicas.fold(own.min(self.agenda.next_at()), At::min);
        (next < At::MAX).then_some(next)
    }

    pub fn step(&mut self, now: At, out: &mut Vec<Emission>) {
        self.now = self.now.max(now);
        self.live(self.now, self.now);
        self.run_all(self.now);
        self.hand_out(out);
    }

    pub fn advance(&mut self, limit: At, out: &mut Vec<Emission>) -> At {
        // A replica returns its next event or its next turn; only turns count here.
        let turns = self.replicas.iter().map(|replica| match replica.pending.first() {
            Some(emission) => emission.at,
            None => replica.engine.next_turn().unwrap_or(At::MAX),
        });
        let own = self.own.first().map_or(At::MAX, |emission| emission.at);
        let to = turns.fold(own.min(self.agenda.next_at()), At::min).min(limit);
        self.step(to, out);
        to
    }

    /// Processes all events before `at`, also in replicas without a turn by then.
    pub fn settle(&mut self, at: At) {
        self.now = self.now.max(At(at.0.saturating_sub(1)));
        self.live(self.now, self.now);
        for place in 0..self.replicas.len() {
            self.bring(place, self.now);
        }
    }

    pub fn set_detail(&mut self, detail: Detail) {
        self.detail = if self.watching_tokens { Detail::Tokens } else { detail };
        for replica in &mut self.replicas {
            replica.engine.set_detail(self.detail);
            replica.look(self.detail);
        }
    }

    /// Updates the time of a replica's next event.
    pub(crate) fn look(&mut self, replica: u32) {
        self.replicas[replica as usize].look(self.detail);
    }

    pub(crate) fn detail(&self) -> Detail {
        self.detail
    }

    pub fn cancel(&mut self, now: At, id: u64) -> bool {
        self.now = self.now.max(now);
        self.live(self.now, self.now - Span(1));
        let raced = self.cancel_second(self.now, id);
        let Some(slot) = self.flights.find(id) else {
            self.totals.cancelled += u64::from(raced);
            return raced;
        };
        let number = self.flights.at(slot).replica;
        if number != NOWHERE {
            // The request may have ended before now without being processed.
            self.run(number as usize, self.now - Span(1));
        }
        if self.flights.find(id).is_none() {
            return false;
        }
        self.leave(self.now, id);
        // With separate prefill and decode replicas, several replicas may have emissions of the request.
        for (place, replica) in (0u32..).zip(&mut self.replicas) {
            if place == number || self.split.is_some() {
                replica.pending.retain(|emission| emission.id != id);
            }
        }
        self.own.retain(|emission| emission.id != id);
        self.totals.cancelled += 1;
        true
    }

    pub fn gauges(&self) -> EngineGauges {
        let mut all = EngineGauges { totals: self.totals, ..EngineGauges::default() };
        for replica in &self.replicas {
            let one = replica.engine.gauges();
            all.totals.add_work(&one.totals);
            if replica.phase == Phase::Gone {
                continue;
            }
            all.running += one.running;
            all.waiting += one.waiting;
            all.kv_blocks += one.kv_blocks;
            all.kv_blocks_used += one.kv_blocks_used;
            all.ready += u32::from(replica.phase == Phase::Ready && replica.down.is_none());
        }
        // Unplaced requests wait too. Requests in front of an engine (connection limit, dependency) do not, because
        // an engine counts only submitted ones.
        let moving = self.split.as_ref().map_or(0, |split| split.moving);
        all.waiting += self.unplaced.len() as u32 + moving + self.gate.as_ref().map_or(0, |gate| gate.held());
        all
    }

    pub fn replica_gauges(&self) -> Vec<EngineGauges> {
        let gauges = |replica: &Replica| {
            let mut one = replica.engine.gauges();
            one.ready = u32::from(replica.phase == Phase::Ready && replica.down.is_none());
            one
        };
        self.replicas.iter().map(gauges).collect()
    }

    /// Returns whether each replica responds to scrapes.
    pub fn answering(&self) -> Vec<bool> {
        let answers = |replica: &Replica| {
            matches!(replica.phase, Phase::Ready | Phase::Draining) && replica.down.is_none()
        };
        self.replicas.iter().map(answers).collect()
    }

    pub fn iterations(&self) -> Vec<Option<BucketHistogram>> {
        self.replicas.iter().map(|replica| replica.engine.iterations().cloned()).collect()
    }

    pub fn truths(&self) -> &[FaultTruth] {
        self.faults.truths()
    }

    pub fn take_samples(&mut self) -> Vec<Sample> {
        let mut samples = std::mem::take(&mut self.samples);
        samples.sort_by(|a, b| (&a.name, a.at).cmp(&(&b.name, b.at)));
        // Of several changes at one instant, the last is kept.
        samples.reverse();
        samples.dedup_by(|earlier, later| earlier.name == later.name && earlier.at == later.at);
        samples.reverse();
        samples.sort_by_key(|sample| sample.at);
        samples
    }

    /// Runs the agenda up to `agenda`, and, if the fleet watches, the engines up to `engines`.
    fn live(&mut self, agenda: At, engines: At) {
        loop {
            if self.watching
                && let Some((at, place)) = self.earliest()
                && at <= engines
                && at < self.agenda.next_at()
            {
                self.run(place, at);
                continue;
            }
            let Some((at, due)) = self.agenda.pop(agenda) else { return };
            self.happen(at, due);
        }
    }

    /// Returns the engine with the earliest event.
    fn earliest(&self) -> Option<(At, usize)> {
        let next = (0..).zip(&self.replicas).map(|(place, replica)| (replica.next, place)).min()?;
        (next.0 < At::MAX).then_some(next)
    }

    /// Advances every replica with an event by `to`.
    pub(crate) fn run_all(&mut self, to: At) {
        for place in 0..self.replicas.len() {
            self.run(place, to);
        }
    }

    /// Advances one replica if it has an event by `to`.
    fn run(&mut self, place: usize, to: At) {
        if self.replicas[place].next <= to {
            self.bring(place, to);
        }
    }

    /// Advances one replica to `to` and records its emissions.
    pub(crate) fn bring(&mut self, place: usize, to: At) {
        let mut fresh = std::mem::take(&mut self.scratch);
        self.replicas[place].engine.step(to, &mut fresh);
        if self.watching_tokens || self.split.is_some() {
            for emission in fresh.drain(..) {
                self.watch(place, emission);
            }
        } else {
            for emission in &fresh {
                self.book(emission);
            }
            self.replicas[place].pending.append(&mut fresh);
        }
        self.scratch = fresh;
        self.replicas[place].look(self.detail);
    }

    /// Records the effect of an emission on the fleet.
    pub(crate) fn book(&mut self, emission: &Emission) {
        match emission.what {
            RequestEvent::Finished { .. } => {
                self.totals.finished += 1;
                self.learn_end(emission.at, emission.id);
            }
            RequestEvent::Failed(failure) => {
                self.totals.failed += 1;
                self.ends_as(emission.id, failure);
            }
            RequestEvent::PrefillDone => {
                if let Some(slot) = self.flights.find(emission.id) {
                    self.flights.at_mut(slot).began = true;
                }
                return self.learn_first(emission.at, emission.id);
            }
            RequestEvent::Admitted { cached } => {
                if let Some(slot) = self.flights.find(emission.id) {
                    self.flights.at_mut(slot).cached = cached;
                }
                return;
            }
            _ => return,
        }
        self.ended(emission.at, emission.id);
    }

    /// Reports a first token to the router, if it counts tokens.
    fn learn_first(&mut self, at: At, id: u64) {
        if self.gate.is_some() {
            return self.gate_first(at, id);
        }
        let Some(slot) = self.flights.find(id) else { return };
        let flight = self.flights.at_mut(slot);
        let Some(booking) = &mut flight.booking else { return };
        let replica = &mut self.replicas[flight.replica as usize];
        replica.less(at, flight.load, self.load_delay);
        flight.load = flight.load.begun();
        replica.more(at, flight.load, self.load_delay);
        self.router.first(booking, at);
        booking.first = Some((at, replica.load.decoding));
    }

    /// Reports the end of a response to the router, if it counts tokens.
    fn learn_end(&mut self, at: At, id: u64) {
        let Some(slot) = self.flights.find(id) else { return };
        let flight = self.flights.at_mut(slot);
        flight.verdict = Some(ReplicaOutcome::Worked);
        let Some(booking) = &flight.booking else { return };
        let beside = self.replicas[flight.replica as usize].load.decoding;
        self.router.ended(booking, beside, flight.answer, at);
        if booking.first.is_none() {
            self.router.whole(booking, at);
        }
        self.router.cached(booking, f64::from(flight.cached) / f64::from(flight.prompt));
    }

    /// Records the meaning of a failure for the replica.
    fn ends_as(&mut self, id: u64, failure: Failure) {
        if let Some(slot) = self.flights.find(id) {
            let status = if let Failure::Status { status, .. } = failure { Some(status) } else { None };
            self.flights.at_mut(slot).verdict = Some(gate::verdict(status, None));
        }
    }

    /// Fails a request. `in_engine` is set if it is still in its engine.
    pub(crate) fn fail(&mut self, at: At, id: u64, failure: Failure, in_engine: bool) {
        let Some(slot) = self.flights.find(id) else { return };
        let number = self.flights.at(slot).replica;
        self.ends_as(id, failure);
        if in_engine {
            self.leave(at, id);
        } else {
            self.ended_outside(at, id);
        }
        let emission = Emission { at, id, what: RequestEvent::Failed(failure) };
        match self.replicas.get_mut(number as usize) {
            Some(replica) => replica.pending.push(emission),
            None => self.own.push(emission),
        }
        self.totals.failed += 1;
    }

    /// Fails a request that its engine has lost.
    pub(crate) fn lose(&mut self, at: At, id: u64, failure: Failure) {
        let Some(slot) = self.flights.find(id) else { return };
        let number = self.flights.at(slot).replica;
        self.ends_as(id, failure);
        self.replicas[number as usize].pending.push(Emission { at, id, what: RequestEvent::Failed(failure) });
        self.totals.failed += 1;
        self.ended(at, id);
    }

    /// Records the end of a request in its engine.
    pub(crate) fn ended(&mut self, at: At, id: u64) {
        let Some(flight) = self.flights.take(id) else { return };
        self.active = self.active.max(at);
        let replica = &mut self.replicas[flight.replica as usize];
        replica.less(at, flight.load, self.load_delay);
        replica.entered -= 1;
        self.return_adapter(at, flight.replica, flight.adapter);
        self.after_end(at, flight.replica);
        self.gate_ended(at, &flight);
    }

    /// Records the end of a request that is in no engine.
    fn ended_outside(&mut self, at: At, id: u64) {
        let Some(flight) = self.flights.take(id) else { return };
        self.active = self.active.max(at);
        self.gate_ended(at, &flight);
        match self.replicas.get_mut(flight.replica as usize) {
            Some(replica) => {
                replica.less(at, flight.load, self.load_delay);
                replica.backlog.retain(|&waiting| waiting != id);
                if let Some(shelf) = &mut replica.shelf {
                    shelf.waiting.retain(|&waiting| waiting != id);
                }
                self.return_adapter(at, flight.replica, flight.adapter);
                self.after_end(at, flight.replica);
            }
            None => {
                self.unplaced.retain(|&waiting| waiting != id);
                if let Some(split) = self.split.as_mut().filter(|_| flight.tokens > 0) {
                    split.moving -= 1;
                }
            }
        }
    }

    /// Removes a request before its end, at any stage.
    pub(crate) fn leave(&mut self, at: At, id: u64) {
        let Some(slot) = self.flights.find(id) else { return };
        let flight = self.flights.at(slot);
        let (number, in_engine) = (flight.replica, flight.held.is_none());
        if !in_engine {
            return self.ended_outside(at, id);
        }
        let replica = &mut self.replicas[number as usize];
        replica.engine.cancel(at, id);
        replica.look(self.detail);
        self.ended(at, id);
    }

    pub(crate) fn after_end(&mut self, at: At, number: u32) {
        if !self.replicas[number as usize].backlog.is_empty() {
            self.drain_backlog(at, number);
        }
        self.retire_if_drained(at, number);
    }

    /// Returns the pending emissions in order.
    fn hand_out(&mut self, out: &mut Vec<Emission>) {
        let begin = out.len();
        out.append(&mut self.own);
        for replica in &mut self.replicas {
            out.append(&mut replica.pending);
        }
        // The sort is stable, and fast on sorted runs of each replica.
        out[begin..].sort_by_key(|emission| emission.at);
        if self.gate.as_ref().is_some_and(|gate| gate.front.hedges()) {
            let told = out.split_off(begin);
            self.tell_races(told, out);
        }
    }
}

/// Returns the failure of an accepted request that is rejected later.
pub(crate) fn failure_of(rejected: &EngineRejection) -> Failure {
    match rejected {
        EngineRejection::QueueFull { .. } => Failure::Status { status: 429, why: "the queue is full" },
        EngineRejection::TooLong { .. } => {
            Failure::Status { status: 400, why: "prompt and answer are too long" }
        }
        EngineRejection::DuplicateId { .. } => Failure::Status { status: 400, why: "this id is in flight" },
        EngineRejection::Unavailable { status, why, .. } => Failure::Status { status: *status, why },
        _ => Failure::Reset,
    }
}

const NO_REPLICA: EngineRejection =
    EngineRejection::Unavailable { status: 503, why: "no replica is ready", retry_after: None };
