//! The effects of faults on the replicas of a fleet, and their times.

use plimsoll_model::{At, Span};

use crate::fleet::Fleet;
use crate::fleet::agenda::AgendaItem;
use crate::fleet::replica::{Down, Phase};
use crate::spec::ModeSpec;
use crate::spec::fault::{FaultKind, FaultSpec};
use crate::traffic::Failure;

impl Fleet {
    /// Schedules all actions with fixed times.
    pub(crate) fn schedule(&mut self) {
        let begins: Vec<(u32, At)> =
            self.faults.specs().map(|(fault, spec)| (fault, At(spec.at.0))).collect();
        for (fault, at) in begins {
            self.agenda.note(at, AgendaItem::Begin { fault });
        }
        if let Some(autoscaler) = &self.autoscaler {
            self.agenda.note(autoscaler.next_at(), AgendaItem::Scale);
        }
        self.sample_replicas(At::ZERO);
    }

    pub(crate) fn happen(&mut self, at: At, due: AgendaItem) {
        match due {
            AgendaItem::Begin { fault } => self.begin_fault(at, fault),
            AgendaItem::End { fault } => self.end_fault(at, fault),
            AgendaItem::Notice { fault, replica } => self.notice(fault, replica),
            AgendaItem::Switch { fault, replica } => self.switch(at, fault, replica),
            AgendaItem::Idle { fault } => self.scale_to_zero_if_idle(at, fault),
            AgendaItem::Ready { replica, life } => self.ready(at, replica, life),
            AgendaItem::Scale => self.autoscale(at),
            AgendaItem::Look => self.look_at_queue(at),
            AgendaItem::Expire { ticket } => self.expire(at, ticket),
            AgendaItem::Hedge { id, serial, after } => self.hedge_due(at, id, serial, after),
            AgendaItem::Enter { id, serial } => self.enter_due(at, id, serial),
            AgendaItem::Handover { id, serial } => self.hand_over(at, id, serial),
            AgendaItem::Release { id, serial } => self.release_due(at, id, serial),
        }
    }

    fn begin_fault(&mut self, at: At, fault: u32) {
        let spec = self.faults.spec(fault).clone();
        let times = self.faults.begin(fault, at);
        if let Some(ends) = self.lasts(&spec) {
            self.agenda.note(at + ends, AgendaItem::End { fault });
        }
        if let Some(every) = every(&spec.kind).filter(|(_, most)| most.is_none_or(|most| times < most)) {
            self.agenda.note(at + every.0, AgendaItem::Begin { fault });
        }
        if let FaultKind::ScaleToZero { idle } = spec.kind {
            self.agenda.note(at.max(self.active) + idle, AgendaItem::Idle { fault });
        }
        for replica in self.struck(&spec) {
            // Events of the engine at this very instant come after the fault.
            self.bring(replica as usize, at - Span(1));
            self.strike(at, fault, &spec, replica);
            self.look(replica);
        }
        if let FaultKind::CacheFlush { .. } = spec.kind {
            self.faults.end(fault, at);
        }
    }

    /// Applies the start of a fault to one replica.
    fn strike(&mut self, at: At, fault: u32, spec: &FaultSpec, replica: u32) {
        if spec.kind.needs_engine() && !matches!(spec.kind, FaultKind::Noisy { .. }) {
            self.touch_all(fault, replica);
        }
        match spec.kind {
            FaultKind::Stall { .. } => {
                let until = at + spec.lasts.unwrap_or(Span::ZERO);
                self.replicas[replica as usize].engine.stall(until);
            }
            FaultKind::CacheFlush { .. } => {
                self.replicas[replica as usize].engine.flush_cache();
                self.router.forget(replica);
            }
            FaultKind::Noisy { .. } => self.switch(at, fault, replica),
            FaultKind::Crash { notice } => self.take_down(at, fault, replica, false, notice),
            FaultKind::Lost { notice } => self.take_down(at, fault, replica, true, notice),
            _ => self.retune(replica),
        }
    }

    fn end_fault(&mut self, at: At, fault: u32) {
        let spec = self.faults.spec(fault).clone();
        let struck = self.struck(&spec);
        for &replica in &struck {
            self.bring(replica as usize, at - Span(1));
        }
        self.faults.end(fault, at);
        for replica in struck {
            let this = &mut self.replicas[replica as usize];
            if this.down.is_some_and(|down| down.fault == fault) {
                this.down = None;
                self.sample_replicas(at);
            }
            self.retune(replica);
            self.drain_backlog(at, replica);
            self.look(replica);
        }
        self.place_waiting(at);
    }

    /// Stops the engine of a replica and drops everything in it.
    fn take_down(&mut self, at: At, fault: u32, replica: u32, reset: bool, notice: Option<Span>) {
        if self.replicas[replica as usize].phase == Phase::Coming {
            return;
        }
        let known = notice == Some(Span::ZERO);
        self.replicas[replica as usize].down = Some(Down { fault, reset, known });
        if let Some(notice) = notice.filter(|notice| *notice > Span::ZERO) {
            self.agenda.note(at + notice, AgendaItem::Notice { fault, replica });
        }
        if let Some(shelf) = &mut self.replicas[replica as usize].shelf {
            shelf.clear();
        }
        let lost = self.replicas[replica as usize].engine.reset(at);
        self.crashed.push(replica);
        // Earlier emissions go out before the end of the engine.
        self.bring(replica as usize, at - Span(1));
        self.router.forget(replica);
        for id in lost {
            self.faults.touch(fault, Some(replica), id);
            let began = self.flights.find(id).is_some_and(|slot| self.flights.at(slot).began);
            let failure = match (reset, began) {
                (true, _) => Failure::Reset,
                (false, true) => Failure::Cut,
                (false, false) => Failure::Status { status: 500, why: "the engine is dead" },
            };
            self.lose(at, id, failure);
        }
        self.retry_adapters(at, replica);
        self.sample_replicas(at);
    }

    fn notice(&mut self, fault: u32, replica: u32) {
        if let Some(down) = &mut self.replicas[replica as usize].down
            && down.fault == fault
        {
            down.known = true;
        }
    }

    fn switch(&mut self, at: At, fault: u32, replica: u32) {
        self.bring(replica as usize, at - Span(1));
        let records = self.faults.truths().len();
        let Some(stay) = self.faults.switch(fault, replica, at) else { return };
        if self.faults.truths().len() > records {
            self.touch_all(fault, replica);
        }
        self.agenda.note(at + stay, AgendaItem::Switch { fault, replica });
        self.retune(replica);
        self.look(replica);
    }

    /// Sets the pace and the KV blocks of an engine by the active faults.
    pub(crate) fn retune(&mut self, replica: u32) {
        let pace = self.faults.pace(replica);
        let engine = &mut self.replicas[replica as usize].engine;
        engine.set_speed(pace.factor);
        engine.extra_step_us(pace.extra_us);
        if let ModeSpec::Batching(batching) = &self.spec.engine.mode
            && self.spec.faults.iter().any(|fault| matches!(fault.kind, FaultKind::KvPressure { .. }))
            && let Ok(blocks) = batching.blocks()
        {
            engine.set_kv_blocks((f64::from(blocks) * pace.kv_share).floor().max(1.0) as u32);
        }
    }

    /// Records all requests of a replica in a fault.
    fn touch_all(&mut self, fault: u32, replica: u32) {
        for id in self.flights.ids() {
            if self.flights.find(id).is_some_and(|slot| self.flights.at(slot).replica == replica) {
                self.faults.touch(fault, Some(replica), id);
            }
        }
    }

    /// Returns the affected replicas of a fault.
    fn struck(&self, spec: &FaultSpec) -> Vec<u32> {
        let there = |number: &u32| self.replicas[*number as usize].phase != Phase::Gone;
        let all = 0..self.replicas.len() as u32;
        all.filter(|number| spec.replica.is_none_or(|struck| struck == *number)).filter(there).collect()
    }

    /// Returns the duration of each occurrence of a fault.
    fn lasts(&self, spec: &FaultSpec) -> Option<Span> {
        match spec.kind {
            FaultKind::Crash { .. } => {
                Some(spec.lasts.unwrap_or_else(|| self.spec.fleet.cold_start.restart(&self.spec.engine)))
            }
            _ => spec.lasts,
        }
    }
}

/// Returns the repeat interval of a fault, and its maximum number of occurrences.
fn every(kind: &FaultKind) -> Option<(Span, Option<u32>)> {
    match kind {
        FaultKind::Stall { every: Some(every), times } => Some((*every, *times)),
        FaultKind::CacheFlush { every: Some(every) } => Some((*every, None)),
        _ => None,
    }
}
