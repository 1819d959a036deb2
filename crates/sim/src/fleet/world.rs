//! The world of a client: one replica, or a fleet of them behind a router, with their faults.
//!
//! The caller owns time. It calls [`World::next_event`], moves its clock to that time (by sleeping or by assignment)
//! and calls [`World::step`]. One type serves the live server and the virtual client; an async engine was rejected
//! because it would need two. A world of one replica is only that engine, so it has no fleet overhead.

use plimsoll_model::{At, Sample};

use crate::engine::Engine;
use crate::engine::meter::{BucketHistogram, ReplicaMeter};
use crate::fleet::Fleet;
use crate::fleet::fault::FaultTruth;
use crate::spec::EngineSpec;
use crate::spec::error::SimSpecError;
use crate::spec::fleet::WorldSpec;
use crate::traffic::{Detail, Emission, EngineGauges, EngineRejection, Submit};

#[derive(Clone, Debug)]
pub struct World {
    inner: Inner,
    adapters: Vec<String>,
    /// Counters of each replica's requests, for the requests whose client records them.
    meters: Vec<ReplicaMeter>,
    /// Detail of emissions, every token by default.
    detail: Detail,
}

#[derive(Clone, Debug)]
enum Inner {
    One(Box<Engine>),
    Many(Box<Fleet>),
}

impl World {
    /// Returns a world of one idle replica. All random draws come from `seed`.
    ///
    /// # Errors
    /// Fails if the specification is invalid: see [`EngineSpec::validate`].
    pub fn new(spec: &EngineSpec, seed: u64) -> Result<World, SimSpecError> {
        Ok(World::around(Inner::One(Box::new(Engine::new(spec, seed)?)), Vec::new()))
    }

    /// Returns a world as specified, at its start. All random draws come from `seed`.
    ///
    /// # Errors
    /// Fails if the specification is invalid: see [`WorldSpec::validate`].
    pub fn of(spec: &WorldSpec, seed: u64) -> Result<World, SimSpecError> {
        spec.validate()?;
        if spec.is_one() {
            return World::new(&spec.engine, seed);
        }
        let adapters = spec.adapter_names().to_vec();
        Ok(World::around(Inner::Many(Box::new(Fleet::new(spec, seed)?)), adapters))
    }

    fn around(inner: Inner, adapters: Vec<String>) -> World {
        World { inner, adapters, meters: Vec::new(), detail: Detail::default() }
    }

    /// Returns the names of the adapters, indexed by the number in requests.
    pub fn adapters(&self) -> &[String] {
        &self.adapters
    }

    /// Submits a request. A `now` before the last one counts as the last one.
    ///
    /// # Errors
    /// Fails if the request is rejected; no event is emitted for it then.
    pub fn submit(&mut self, now: At, request: Submit) -> Result<(), EngineRejection> {
        match &mut self.inner {
            Inner::One(engine) => engine.submit(now, request),
            Inner::Many(fleet) => fleet.submit(now, request),
        }
    }

    /// Returns the time of the next event without further input; `None` if there is none.
    pub fn next_event(&self) -> Option<At> {
        match &self.inner {
            Inner::One(engine) => engine.next_event(),
            Inner::Many(fleet) => fleet.next_event(),
        }
    }

    /// Processes everything that is due by `now`, and appends the events to `out` in order.
    pub fn step(&mut self, now: At, out: &mut Vec<Emission>) {
        match &mut self.inner {
            Inner::One(engine) => engine.step(now, out),
            Inner::Many(fleet) => fleet.step(now, out),
        }
        self.forget_crashed();
    }

    /// Advances to the next instant at which an event other than a token between the first and the last can happen,
    /// at most to `limit`. Appends the events to `out` and returns the instant.
    pub fn advance(&mut self, limit: At, out: &mut Vec<Emission>) -> At {
        let reached = match &mut self.inner {
            Inner::One(engine) => engine.advance(limit, out),
            Inner::Many(fleet) => fleet.advance(limit, out),
        };
        self.forget_crashed();
        reached
    }

    /// Processes all events before `at`, so that [`gauges`](World::gauges) are valid for that instant; the next step
    /// returns the events.
    pub fn settle(&mut self, at: At) {
        match &mut self.inner {
            Inner::One(engine) => engine.settle(at),
            Inner::Many(fleet) => fleet.settle(at),
        }
    }

    /// Sets the detail of emissions from now on.
    pub fn set_detail(&mut self, detail: Detail) {
        self.detail = detail;
        match &mut self.inner {
            Inner::One(engine) => engine.set_detail(detail),
            Inner::Many(fleet) => fleet.set_detail(detail),
        }
    }

    /// Cancels a request: no event is emitted for it afterwards. Returns `false` if the id is unknown.
    pub fn cancel(&mut self, now: At, id: u64) -> bool {
        match &mut self.inner {
            Inner::One(engine) => engine.cancel(now, id),
            Inner::Many(fleet) => fleet.cancel(now, id),
        }
    }

    /// Returns the gauges of all replicas together.
    pub fn gauges(&self) -> EngineGauges {
        match &self.inner {
            Inner::One(engine) => engine.gauges(),
            Inner::Many(fleet) => fleet.gauges(),
        }
    }

    /// Returns the gauges of each replica by its number.
    pub fn replica_gauges(&self) -> Vec<EngineGauges> {
        match &self.inner {
            Inner::One(engine) => vec![engine.gauges()],
            Inner::Many(fleet) => fleet.replica_gauges(),
        }
    }

    /// Returns whether each replica responds to scrapes.
    pub(crate) fn answering(&self) -> Vec<bool> {
        match &self.inner {
            Inner::One(_) => vec![true],
            Inner::Many(fleet) => fleet.answering(),
        }
    }

    /// Returns the tokens per step of each replica; `None` for engines without steps.
    pub fn iterations(&self) -> Vec<Option<BucketHistogram>> {
        match &self.inner {
            Inner::One(engine) => vec![engine.iterations().cloned()],
            Inner::Many(fleet) => fleet.iterations(),
        }
    }

    /// Returns the counters of a replica's requests.
    pub(crate) fn meter(&mut self, replica: u32) -> &mut ReplicaMeter {
        let place = replica as usize;
        if self.meters.len() <= place {
            self.meters.resize_with(place + 1, ReplicaMeter::default);
        }
        &mut self.meters[place]
    }

    /// Returns whether single tokens are emitted. Otherwise the gaps between them are unknown.
    pub(crate) fn tells_tokens(&self) -> bool {
        match &self.inner {
            Inner::One(_) => self.detail == Detail::Tokens,
            Inner::Many(fleet) => fleet.detail() == Detail::Tokens,
        }
    }

    /// Resets the counters of restarted processes.
    fn forget_crashed(&mut self) {
        let Inner::Many(fleet) = &mut self.inner else { return };
        for replica in std::mem::take(&mut fleet.crashed) {
            *self.meter(replica) = ReplicaMeter::default();
        }
    }

    /// Returns the effects of the faults so far, in order of their starts.
    pub fn fault_truths(&self) -> &[FaultTruth] {
        match &self.inner {
            Inner::One(_) => &[],
            Inner::Many(fleet) => fleet.truths(),
        }
    }

    /// Returns the numbers of replicas at each change since the last call: `replicas_ready`, `replicas_provisioning`,
    /// `replicas_billed` (requested and not removed).
    pub fn take_samples(&mut self) -> Vec<Sample> {
        match &mut self.inner {
            Inner::One(_) => Vec::new(),
            Inner::Many(fleet) => fleet.take_samples(),
        }
    }
}
