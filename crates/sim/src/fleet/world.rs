//! What a client meets: one replica, or a fleet of them behind a router, with the faults that are due.
//!
//! The caller owns time. It asks [`World::next_event`] how long nothing will happen, moves its own clock there (by
//! sleeping or by just saying so) and calls [`World::step`]. One type serves the live server and the virtual client;
//! an async engine was the alternative, and would have made two of it. A world of one replica is that engine and nothing
//! else, so that a fleet costs nothing where there is none.

use plimsoll_model::{At, Sample};

use crate::engine::Engine;
use crate::engine::meter::{BucketHistogram, Meter};
use crate::fleet::Fleet;
use crate::fleet::fault::FaultTruth;
use crate::spec::EngineSpec;
use crate::spec::error::SpecError;
use crate::spec::fleet::WorldSpec;
use crate::traffic::{Detail, Emission, EngineGauges, Rejected, Submit};

/// A world in virtual time.
#[derive(Clone, Debug)]
pub struct World {
    inner: Inner,
    adapters: Vec<String>,
    /// What each replica counted of its requests, as far as a client here asked for it.
    meters: Vec<Meter>,
    /// How much of an answer is told, by default every token.
    detail: Detail,
}

#[derive(Clone, Debug)]
enum Inner {
    One(Box<Engine>),
    Many(Box<Fleet>),
}

impl World {
    /// A world of one idle replica. Everything drawn comes from `seed`.
    ///
    /// # Errors
    /// The specification describes nothing that could be built: see [`EngineSpec::validate`].
    pub fn new(spec: &EngineSpec, seed: u64) -> Result<World, SpecError> {
        Ok(World::around(Inner::One(Box::new(Engine::new(spec, seed)?)), Vec::new()))
    }

    /// A world as specified, in which nothing has happened yet. Everything drawn comes from `seed`.
    ///
    /// # Errors
    /// The specification describes nothing that could be built: see [`WorldSpec::validate`].
    pub fn of(spec: &WorldSpec, seed: u64) -> Result<World, SpecError> {
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

    /// What its adapters are called, by the number that a request names them with.
    pub fn adapters(&self) -> &[String] {
        &self.adapters
    }

    /// Hands a request in. A `now` before the last one counts as the last one.
    ///
    /// # Errors
    /// The request is not taken, and nothing will be emitted for it.
    pub fn submit(&mut self, now: At, request: Submit) -> Result<(), Rejected> {
        match &mut self.inner {
            Inner::One(engine) => engine.submit(now, request),
            Inner::Many(fleet) => fleet.submit(now, request),
        }
    }

    /// When something will happen next, if nothing is submitted or cancelled before. `None` = never.
    pub fn next_event(&self) -> Option<At> {
        match &self.inner {
            Inner::One(engine) => engine.next_event(),
            Inner::Many(fleet) => fleet.next_event(),
        }
    }

    /// Does everything that is due by `now`, and appends what happened to `out`, in order.
    pub fn step(&mut self, now: At, out: &mut Vec<Emission>) {
        match &mut self.inner {
            Inner::One(engine) => engine.step(now, out),
            Inner::Many(fleet) => fleet.step(now, out),
        }
        self.forget_crashed();
    }

    /// Goes on to the next instant at which something else than a token between the first and the last of an answer can
    /// happen, but not past `limit`; appends what happened to `out` and returns how far it came.
    pub fn advance(&mut self, limit: At, out: &mut Vec<Emission>) -> At {
        let reached = match &mut self.inner {
            Inner::One(engine) => engine.advance(limit, out),
            Inner::Many(fleet) => fleet.advance(limit, out),
        };
        self.forget_crashed();
        reached
    }

    /// Lets everything happen that was to happen before `at`, so that [`gauges`](World::gauges) are those of that instant;
    /// the next step hands it over.
    pub fn settle(&mut self, at: At) {
        match &mut self.inner {
            Inner::One(engine) => engine.settle(at),
            Inner::Many(fleet) => fleet.settle(at),
        }
    }

    /// How much of an answer is told from now on.
    pub fn set_detail(&mut self, detail: Detail) {
        self.detail = detail;
        match &mut self.inner {
            Inner::One(engine) => engine.set_detail(detail),
            Inner::Many(fleet) => fleet.set_detail(detail),
        }
    }

    /// Takes a request back: nothing will be emitted for it after this. False where there is none of this id.
    pub fn cancel(&mut self, now: At, id: u64) -> bool {
        match &mut self.inner {
            Inner::One(engine) => engine.cancel(now, id),
            Inner::Many(fleet) => fleet.cancel(now, id),
        }
    }

    /// The state of all replicas together in numbers.
    pub fn gauges(&self) -> EngineGauges {
        match &self.inner {
            Inner::One(engine) => engine.gauges(),
            Inner::Many(fleet) => fleet.gauges(),
        }
    }

    /// The state of each replica in numbers, by its number.
    pub fn replica_gauges(&self) -> Vec<EngineGauges> {
        match &self.inner {
            Inner::One(engine) => vec![engine.gauges()],
            Inner::Many(fleet) => fleet.replica_gauges(),
        }
    }

    /// Which replicas answer when their page is asked for.
    pub(crate) fn answering(&self) -> Vec<bool> {
        match &self.inner {
            Inner::One(_) => vec![true],
            Inner::Many(fleet) => fleet.answering(),
        }
    }

    /// Tokens per step of each replica, where it has steps.
    pub fn iterations(&self) -> Vec<Option<BucketHistogram>> {
        match &self.inner {
            Inner::One(engine) => vec![engine.iterations().cloned()],
            Inner::Many(fleet) => fleet.iterations(),
        }
    }

    /// What a replica counted of its requests.
    pub(crate) fn meter(&mut self, replica: u32) -> &mut Meter {
        let place = replica as usize;
        if self.meters.len() <= place {
            self.meters.resize_with(place + 1, Meter::default);
        }
        &mut self.meters[place]
    }

    /// Are single tokens told? Otherwise nobody knows the gaps between them.
    pub(crate) fn tells_tokens(&self) -> bool {
        match &self.inner {
            Inner::One(_) => self.detail == Detail::Tokens,
            Inner::Many(fleet) => fleet.detail() == Detail::Tokens,
        }
    }

    /// A process that begins anew counts anew.
    fn forget_crashed(&mut self) {
        let Inner::Many(fleet) = &mut self.inner else { return };
        for replica in std::mem::take(&mut fleet.crashed) {
            *self.meter(replica) = Meter::default();
        }
    }

    /// What the faults did so far, in the order of their beginnings.
    pub fn fault_truths(&self) -> &[FaultTruth] {
        match &self.inner {
            Inner::One(_) => &[],
            Inner::Many(fleet) => fleet.truths(),
        }
    }

    /// How many replicas there were, at each change since the last call: `replicas_ready`, `replicas_provisioning`,
    /// `replicas_billed` (asked for and not gone).
    pub fn take_samples(&mut self) -> Vec<Sample> {
        match &mut self.inner {
            Inner::One(_) => Vec::new(),
            Inner::Many(fleet) => fleet.take_samples(),
        }
    }
}
