//! The number of replicas: cold starts, the autoscaler's desired number, and scale to zero.
//!
//! A replica costs from its request and accepts traffic when ready. A removed replica finishes its requests first.
//! Replicas are removed in this order: pending ones, the latest first, then ready ones, the highest number first.

use plimsoll_model::{At, Sample, SharedText, Span};
use plimsoll_policy::FleetSample as Seen;

use crate::engine::Engine;
use crate::fleet::Fleet;
use crate::fleet::adapters::AdapterCache;
use crate::fleet::agenda::AgendaItem;
use crate::fleet::replica::{Phase, Replica};
use crate::spec::fault::FaultKind;

impl Fleet {
    /// Returns whether a replica may become available without a further action.
    pub(crate) fn may_come(&self) -> bool {
        let coming = self.replicas.iter().any(|replica| replica.phase == Phase::Coming);
        coming || self.autoscaler.is_some() || self.sleeps().is_some()
    }

    /// Requests a replica for a request without one, if the fleet is scaled to zero.
    pub(crate) fn wake(&mut self, at: At) {
        let none = !self.replicas.iter().any(Replica::is_wanted);
        if none && self.sleeps().is_some() {
            self.scale_to(at, self.spec.fleet.replicas.max(1));
        }
    }

    /// Returns the active scale-to-zero fault.
    fn sleeps(&self) -> Option<u32> {
        let mut faults =
            self.faults.specs().filter(|(_, spec)| matches!(spec.kind, FaultKind::ScaleToZero { .. }));
        faults.find(|(fault, _)| self.faults.is_on(*fault)).map(|(fault, _)| fault)
    }

    /// Removes all replicas if all have been idle for the configured time.
    pub(crate) fn scale_to_zero_if_idle(&mut self, at: At, fault: u32) {
        let FaultKind::ScaleToZero { idle } = self.faults.spec(fault).kind else { return };
        if !self.faults.is_on(fault) {
            return;
        }
        self.run_all(at - Span(1));
        let busy = self.flights.ids().into_iter().next().is_some();
        if busy || self.active + idle > at {
            let again = if busy { at } else { self.active };
            self.agenda.note(again + idle, AgendaItem::Idle { fault });
            return;
        }
        self.scale_to(at, 0);
    }

    /// Runs the autoscaler and applies its result.
    pub(crate) fn autoscale(&mut self, at: At) {
        self.run_all(at - Span(1));
        let Some(mut autoscaler) = self.autoscaler.take() else { return };
        let wanted = || self.replicas.iter().filter(|replica| replica.is_wanted());
        let queued: u32 = wanted().map(waiting).sum();
        let seen = Seen {
            current: wanted().count() as u32,
            waiting: f64::from(queued) + self.unplaced.len() as f64,
        };
        let desired = autoscaler.decide(at, seen);
        self.agenda.note(autoscaler.next_at(), AgendaItem::Scale);
        self.autoscaler = Some(autoscaler);
        self.scale_to(at, desired);
    }

    /// Requests or removes replicas until there are `desired`.
    fn scale_to(&mut self, at: At, desired: u32) {
        let mut wanted = self.replicas.iter().filter(|replica| replica.is_wanted()).count() as u32;
        while wanted < desired && self.ask_for_one(at) {
            wanted += 1;
        }
        while wanted > desired {
            self.let_one_go(at);
            wanted -= 1;
        }
        self.sample_replicas(at);
    }

    /// Requests a replica. Returns `false` if its engine can't be built, which the validation rules out.
    fn ask_for_one(&mut self, at: At) -> bool {
        let Ok(mut engine) = Engine::new(&self.spec.engine, self.seed) else { return false };
        engine.set_detail(self.detail());
        let free = self.replicas.iter().position(|replica| replica.phase == Phase::Gone);
        let place = free.unwrap_or(self.replicas.len());
        match free {
            Some(place) => {
                let old = &mut self.replicas[place];
                self.totals.add_work(&old.engine.gauges().totals);
                let pending = std::mem::take(&mut old.pending);
                *old = Replica::new(engine, Phase::Coming, old.life + 1);
                old.pending = pending;
            }
            None => self.replicas.push(Replica::new(engine, Phase::Coming, 0)),
        }
        self.replicas[place].shelf = self.spec.fleet.adapters.as_ref().map(AdapterCache::new);
        let life = self.replicas[place].life;
        let cold = self.spec.fleet.cold_start.total(&self.spec.engine);
        self.agenda.note(at + cold, AgendaItem::Ready { replica: place as u32, life });
        true
    }

    pub(crate) fn ready(&mut self, at: At, number: u32, life: u32) {
        let replica = &mut self.replicas[number as usize];
        if replica.life != life || replica.phase != Phase::Coming {
            return;
        }
        replica.phase = Phase::Ready;
        self.router.forget(number);
        self.retune(number);
        self.sample_replicas(at);
        self.active = self.active.max(at);
        if let Some(fault) = self.sleeps()
            && let FaultKind::ScaleToZero { idle } = self.faults.spec(fault).kind
        {
            self.agenda.note(at + idle, AgendaItem::Idle { fault });
        }
        self.place_waiting(at);
    }

    fn let_one_go(&mut self, at: At) {
        let last = |phase| self.replicas.iter().rposition(|replica| replica.phase == phase);
        if let Some(place) = last(Phase::Coming) {
            self.replicas[place].phase = Phase::Gone;
        } else if let Some(place) = last(Phase::Ready) {
            self.replicas[place].phase = Phase::Draining;
            self.retire_if_drained(at, place as u32);
        }
    }

    /// Removes a draining replica without requests.
    pub(crate) fn retire_if_drained(&mut self, at: At, number: u32) {
        let replica = &mut self.replicas[number as usize];
        if replica.phase == Phase::Draining && replica.load.requests == 0 {
            replica.phase = Phase::Gone;
            self.sample_replicas(at);
        }
    }

    pub(crate) fn sample_replicas(&mut self, at: At) {
        let count =
            |is: fn(&Replica) -> bool| self.replicas.iter().filter(|replica| is(replica)).count() as f64;
        let figures = [
            ("replicas_ready", count(|replica| replica.phase == Phase::Ready && replica.down.is_none())),
            ("replicas_provisioning", count(|replica| replica.phase == Phase::Coming)),
            ("replicas_billed", count(|replica| replica.phase != Phase::Gone)),
        ];
        for ((name, value), last) in figures.into_iter().zip(&mut self.counted) {
            if last.replace(value) == Some(value) {
                continue;
            }
            let (source, labels) = ("server".into(), SharedText::default());
            self.samples.push(Sample { at, source, name: name.into(), labels, value });
        }
    }
}

/// Returns the number of waiting requests on a replica; 0 for one that is pending or down.
fn waiting(replica: &Replica) -> u32 {
    if replica.phase == Phase::Coming || replica.down.is_some() {
        return 0;
    }
    let gauges = replica.engine.gauges();
    gauges.waiting + replica.load.requests - replica.entered
}
