//! Replicas behind a router, in virtual time.
//!
//! Replicas know nothing of each other, so each is let run only as far as somebody looks: a policy that needs no loads touches the
//! one replica that it chose, and a step touches those that have something to show. What they did is handed out in the
//! order of time, at one instant the fleet's own words first, then by replica. One calendar for all replicas' steps was the
//! alternative; it would have paid for every step of every replica what only the rarer looks need.
//!
//! Where an answer has consequences elsewhere (a cut stream frees its place, a connection that closes lets the next one in)
//! the fleet *watches*: then engines do move one after another, in the order of time.
//!
//! At one instant the agenda (faults, replicas that become ready) goes before submissions, and both before engines.

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
    BlockEnds, Booking, Expected, Facts, Load, ReplicaOutcome, ReplicaView, Router, SentRequest, Ticket,
};

use crate::engine::Engine;
use crate::engine::meter::BucketHistogram;
use crate::engine::slots::Slots;
use crate::fleet::adapters::{Shelf, set_apart};
use crate::fleet::agenda::Agenda;
use crate::fleet::fault::{FaultTruth, Faults};
use crate::fleet::gate::Gate;
use crate::fleet::replica::{Phase, Replica};
use crate::fleet::split::Split;
use crate::spec::error::{BLOCK_TOKENS, SpecError};
use crate::spec::fleet::WorldSpec;
use crate::traffic::{Detail, Emission, EngineGauges, Failure, Rejected, RequestEvent, Submit, Totals};

#[derive(Clone, Debug)]
pub(crate) struct Fleet {
    pub(crate) spec: WorldSpec,
    pub(crate) seed: u64,
    pub(crate) now: At,
    pub(crate) detail: Detail,
    pub(crate) watching: bool,
    watching_tokens: bool,
    /// Prompts on some replicas, answers on others.
    pub(crate) split: Option<Split>,
    pub(crate) agenda: Agenda,
    pub(crate) faults: Faults,
    pub(crate) replicas: Vec<Replica>,
    pub(crate) router: Router,
    /// A gateway, which then decides in the router's place.
    pub(crate) gate: Option<Box<Gate>>,
    pub(crate) autoscaler: Option<Keda>,
    pub(crate) load_delay: Span,
    pub(crate) flights: Slots<TakenRequest>,
    pub(crate) serial: u64,
    /// Requests for which there is no replica yet, in order.
    pub(crate) unplaced: VecDeque<u64>,
    /// When a request came or ended last.
    pub(crate) active: At,
    /// What the fleet itself has to say, until it is handed out.
    pub(crate) own: Vec<Emission>,
    pub(crate) samples: Vec<Sample>,
    /// The figures sampled last.
    pub(crate) counted: [Option<f64>; 3],
    pub(crate) totals: Totals,
    pub(crate) views: Vec<ReplicaView>,
    scratch: Vec<Emission>,
    /// Replicas whose process was lost, or is a new one of that number, since somebody asked.
    pub(crate) crashed: Vec<u32>,
}

/// A request that was taken and has not ended.
#[derive(Clone, Debug)]
pub(crate) struct TakenRequest {
    /// [`NOWHERE`] until it is placed.
    pub replica: u32,
    pub load: Load,
    /// What its router holds its times against, where it does.
    pub booking: Option<Booking>,
    /// What a gateway holds them against, its ticket while it waits there, and how it ended on its replica.
    pub sent: Option<SentRequest>,
    pub ticket: Option<Ticket>,
    pub verdict: Option<ReplicaOutcome>,
    /// Tokens of its prompt, and those that were found cached.
    pub prompt: u32,
    pub cached: u32,
    /// Tells it from another request of the same id.
    pub serial: u64,
    /// The request itself, until it is in an engine.
    pub held: Option<Box<Submit>>,
    pub began: bool,
    /// Tokens that its answer will have.
    pub answer: u32,
    /// Tokens of its answer so far, and the fault that cuts it after how many.
    pub tokens: u32,
    pub cut: Option<(u32, u32)>,
    /// Tokens that a proxy holds.
    pub buffered: u32,
    pub adapter: Option<u32>,
    /// The request once more, where a second replica may be asked.
    pub twice: Option<Box<Submit>>,
    /// The whole request, while its prompt is computed apart from its answer.
    pub onward: Option<Box<Submit>>,
}

/// A replica, and how many tokens of a prompt it is taken to have to compute.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Chosen {
    pub replica: u32,
    pub uncached: u32,
    pub expected: Expected,
}

/// What a router may know of a request.
pub(crate) fn facts(request: &Submit) -> Facts<'_> {
    Facts {
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
    pub fn new(spec: &WorldSpec, seed: u64) -> Result<Fleet, SpecError> {
        let shelf = spec.fleet.adapters.as_ref().map(Shelf::new);
        let replica = || {
            let mut replica = Replica::new(Engine::new(&spec.engine, seed)?, Phase::Ready, 0);
            replica.shelf = shelf.clone();
            Ok(replica)
        };
        let split = Split::of(spec)?;
        let count = split.as_ref().map_or(spec.fleet.replicas, Split::replicas);
        let replicas = (0..count).map(|_| replica()).collect::<Result<Vec<_>, SpecError>>()?;
        let faults = Faults::new(&spec.faults, seed);
        let (tokens, ends) = faults.watching();
        let router = Router::new(&spec.fleet.route);
        let gate = spec.fleet.gateway.as_ref().map(|gate| Box::new(Gate::new(gate, count as usize, seed)));
        let mut fleet = Fleet {
            spec: spec.clone(),
            seed,
            now: At(i64::MIN),
            detail: Detail::default(),
            // What a router learns of one replica tells on another, so it must hear of them in the order of time.
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

    pub fn submit(&mut self, now: At, request: Submit) -> Result<(), Rejected> {
        self.now = self.now.max(now);
        self.live(self.now, self.now - Span(1));
        let taken = self.admit(request);
        match taken {
            Ok(()) => self.totals.submitted += 1,
            Err(_) => self.totals.rejected += 1,
        }
        taken
    }

    fn admit(&mut self, mut request: Submit) -> Result<(), Rejected> {
        let (id, now) = (request.id, self.now);
        if self.flights.find(id).is_some() {
            return Err(Rejected::DuplicateId { id });
        }
        self.active = self.active.max(now);
        if let Some(adapter) = request.adapter.filter(|_| self.spec.fleet.adapters.is_some()) {
            // Before a router sees them: an adapter's prefixes are its own there too.
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

    fn find_place(&mut self, now: At, request: Submit) -> Result<(), Rejected> {
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

    /// The replica that the router chooses.
    pub(crate) fn choose(&mut self, now: At, request: &Submit) -> Option<Chosen> {
        if self.router.needs_load() {
            // What happens at this very instant waits for the step.
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
        // A replica looks ahead by events or by turns, as it tells them; here it is always turns that count.
        let turns = self.replicas.iter().map(|replica| match replica.pending.first() {
            Some(emission) => emission.at,
            None => replica.engine.next_turn().unwrap_or(At::MAX),
        });
        let own = self.own.first().map_or(At::MAX, |emission| emission.at);
        let to = turns.fold(own.min(self.agenda.next_at()), At::min).min(limit);
        self.step(to, out);
        to
    }

    /// Lets everything happen that was to happen before `at`, in replicas too that have no turn by then.
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

    /// Looks again at when a replica does something.
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
            // It may have ended before now without anybody having looked.
            self.run(number as usize, self.now - Span(1));
        }
        if self.flights.find(id).is_none() {
            return false;
        }
        self.leave(self.now, id);
        // Where prompts and answers are apart, more than one replica may have something to say of it.
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
        // What has no replica yet waits too. What is held in front of an engine (a connection limit, a dependency) does not: an
        // engine counts what it was handed.
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

    /// Which replicas answer when their page is asked for.
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
        // Of several changes at one instant the last is what there is.
        samples.reverse();
        samples.dedup_by(|earlier, later| earlier.name == later.name && earlier.at == later.at);
        samples.reverse();
        samples.sort_by_key(|sample| sample.at);
        samples
    }

    /// Does what is due: the agenda to `agenda`, and where somebody watches, engines to `engines`.
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

    /// The engine that moves first.
    fn earliest(&self) -> Option<(At, usize)> {
        let next = (0..).zip(&self.replicas).map(|(place, replica)| (replica.next, place)).min()?;
        (next.0 < At::MAX).then_some(next)
    }

    /// Lets every replica run that has something to do by `to`.
    pub(crate) fn run_all(&mut self, to: At) {
        for place in 0..self.replicas.len() {
            self.run(place, to);
        }
    }

    /// Lets one replica run if it has something to do by `to`.
    fn run(&mut self, place: usize, to: At) {
        if self.replicas[place].next <= to {
            self.bring(place, to);
        }
    }

    /// Brings one replica to `to`, and books what ended there.
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

    /// Books what an emission means for the fleet.
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

    /// Tells the router of a first token, where it counts tokens.
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

    /// Tells the router of an answer's end, where it counts tokens.
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

    /// Notes what a failure says of the replica.
    fn ends_as(&mut self, id: u64, failure: Failure) {
        if let Some(slot) = self.flights.find(id) {
            let status = if let Failure::Status { status, .. } = failure { Some(status) } else { None };
            self.flights.at_mut(slot).verdict = Some(gate::verdict(status, None));
        }
    }

    /// Ends a request without an answer. `in_engine`: is it still in there?
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

    /// Ends a request that its engine has lost.
    pub(crate) fn lose(&mut self, at: At, id: u64, failure: Failure) {
        let Some(slot) = self.flights.find(id) else { return };
        let number = self.flights.at(slot).replica;
        self.ends_as(id, failure);
        self.replicas[number as usize].pending.push(Emission { at, id, what: RequestEvent::Failed(failure) });
        self.totals.failed += 1;
        self.ended(at, id);
    }

    /// A request ended in its engine.
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

    /// A request ended that is in no engine (any more).
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

    /// A request leaves before its end, wherever it is.
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

    /// Hands out what is pending, in order.
    fn hand_out(&mut self, out: &mut Vec<Emission>) {
        let begin = out.len();
        out.append(&mut self.own);
        for replica in &mut self.replicas {
            out.append(&mut replica.pending);
        }
        // Runs that are in order already, one per replica, are what this sort merges fastest; equals keep their order.
        out[begin..].sort_by_key(|emission| emission.at);
        if self.gate.as_ref().is_some_and(|gate| gate.front.hedges()) {
            let told = out.split_off(begin);
            self.tell_races(told, out);
        }
    }
}

/// The failure of a request that was taken and is refused after that.
pub(crate) fn failure_of(rejected: &Rejected) -> Failure {
    match rejected {
        Rejected::QueueFull { .. } => Failure::Status { status: 429, why: "the queue is full" },
        Rejected::TooLong { .. } => Failure::Status { status: 400, why: "prompt and answer are too long" },
        Rejected::DuplicateId { .. } => Failure::Status { status: 400, why: "this id is in flight" },
        Rejected::Unavailable { status, why, .. } => Failure::Status { status: *status, why },
        _ => Failure::Reset,
    }
}

const NO_REPLICA: Rejected =
    Rejected::Unavailable { status: 503, why: "no replica is ready", retry_after: None };
