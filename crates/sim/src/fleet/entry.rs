//! The path of a request into an engine: delays in front of it, a stopped engine, its adapter, a connection limit.

use plimsoll_model::{At, Span};
use plimsoll_policy::{Booking, ReplicaLoad};

use crate::fleet::agenda::AgendaItem;
use crate::fleet::{Chosen, Fleet, NOWHERE, TakenRequest, failure_of};
use crate::traffic::{Emission, EngineRejection, RequestEvent, Submit};

impl Fleet {
    /// Sends a new request to a replica, immediately or once it is admitted.
    pub(crate) fn place(&mut self, now: At, chosen: Chosen, request: Submit) -> Result<(), EngineRejection> {
        let (id, number) = (request.id, chosen.replica);
        self.faults.refuse(Some(number), id, now)?;
        self.answer_of_the_dead(number, id)?;
        let (enters, depended) = self.faults.enters(number, id, now);
        if enters > now {
            let serial = self.hold(number, request);
            self.agenda.note(enters, AgendaItem::Enter { id, serial });
        } else if request.adapter.is_some() && self.spec.fleet.adapters.is_some() {
            self.hold(number, request);
            self.placed(now, id, chosen);
            self.let_in(now, id);
            return Ok(());
        } else if self.is_full(number, id)? {
            self.hold(number, request);
            self.replicas[number as usize].backlog.push_back(id);
        } else {
            let flight = self.flight(number, &request, None);
            self.give_engine(now, number, request)?;
            self.flights.insert(id, flight);
        }
        self.placed(now, id, chosen);
        if depended > Span::ZERO {
            self.own.push(Emission { at: now, id, what: RequestEvent::Depends { takes: depended } });
        }
        Ok(())
    }

    /// Records the replica of a request.
    pub(crate) fn placed(&mut self, now: At, id: u64, chosen: Chosen) {
        let number = chosen.replica;
        if let Some(slot) = self.flights.find(id) {
            let (flight, replica) = (self.flights.at_mut(slot), &mut self.replicas[number as usize]);
            flight.replica = number;
            if self.gate.is_none() && self.router.learns() {
                flight.load.backlog = u64::from(chosen.uncached);
                let booking = Booking::new(number, replica.load, flight.load, now);
                flight.booking = Some(Booking { expected: chosen.expected, ..booking });
            }
            replica.more(now, flight.load, self.load_delay);
        }
        self.own.push(Emission { at: now, id, what: RequestEvent::Placed { replica: number } });
        self.faults.came(number, id);
    }

    /// Places the requests without a replica, in order, while there is one.
    pub(crate) fn place_waiting(&mut self, now: At) {
        while let Some(&id) = self.unplaced.front() {
            let Some(slot) = self.flights.find(id) else {
                self.unplaced.pop_front();
                continue;
            };
            let Some(request) = self.flights.at(slot).held.clone() else { return };
            let Some(chosen) = self.choose(now, &request) else { return };
            self.unplaced.pop_front();
            self.flights.at_mut(slot).cut = self.faults.cut(chosen.replica, id, request.output_tokens);
            self.placed(now, id, chosen);
            self.let_in(now, id);
        }
    }

    /// Accepts a request without passing it to an engine.
    pub(crate) fn hold(&mut self, number: u32, request: Submit) -> u64 {
        let id = request.id;
        let flight = self.flight(number, &request, Some(Box::new(request.clone())));
        let serial = flight.serial;
        self.flights.insert(id, flight);
        serial
    }

    fn flight(&mut self, number: u32, request: &Submit, held: Option<Box<Submit>>) -> TakenRequest {
        self.serial += 1;
        let tokens = u64::from(request.prompt_tokens.max(1)) + u64::from(request.output_tokens);
        TakenRequest {
            replica: number,
            load: ReplicaLoad::of_one(tokens, 0),
            booking: None,
            sent: None,
            ticket: None,
            verdict: None,
            prompt: request.prompt_tokens.max(1),
            cached: 0,
            answer: request.output_tokens,
            serial: self.serial,
            held,
            began: false,
            tokens: 0,
            cut: if number == NOWHERE {
                None
            } else {
                self.faults.cut(number, request.id, request.output_tokens)
            },
            buffered: 0,
            adapter: None,
            twice: None,
            onward: None,
        }
    }

    pub(crate) fn give_engine(
        &mut self,
        now: At,
        number: u32,
        request: Submit,
    ) -> Result<(), EngineRejection> {
        let replica = &mut self.replicas[number as usize];
        replica.engine.submit(now, request)?;
        replica.entered += 1;
        replica.look(self.detail);
        Ok(())
    }

    /// Moves a delayed request into its engine or to the end of the backlog, or fails it.
    pub(crate) fn let_in(&mut self, now: At, id: u64) {
        let Some(slot) = self.flights.find(id) else { return };
        let number = self.flights.at(slot).replica;
        let dead = self.answer_of_the_dead(number, id);
        if dead.is_ok() && !self.has_adapter(now, number, id) {
            return;
        }
        let full = dead.and_then(|()| self.is_full(number, id));
        let taken = match full {
            Ok(true) => {
                self.replicas[number as usize].backlog.push_back(id);
                return;
            }
            Ok(false) => match self.flights.at_mut(slot).held.take() {
                Some(request) => self.give_engine(now, number, *request),
                None => return,
            },
            Err(rejected) => Err(rejected),
        };
        if let Err(rejected) = taken {
            self.flights.at_mut(slot).held = None;
            self.fail(now, id, failure_of(&rejected), false);
        }
    }

    /// Admits requests from a replica's backlog up to its connection limit.
    pub(crate) fn drain_backlog(&mut self, now: At, number: u32) {
        while let Some(&id) = self.replicas[number as usize].backlog.front() {
            let room = self
                .faults
                .gate(number)
                .is_none_or(|gate| self.replicas[number as usize].entered < gate.limit);
            if !room {
                return;
            }
            self.replicas[number as usize].backlog.pop_front();
            self.let_in(now, id);
        }
    }

    /// Returns whether the request must wait for admission. Fails if the backlog is full too.
    fn is_full(&mut self, number: u32, id: u64) -> Result<bool, EngineRejection> {
        let Some(gate) = self.faults.gate(number) else { return Ok(false) };
        let replica = &self.replicas[number as usize];
        if replica.entered < gate.limit {
            return Ok(false);
        }
        self.faults.touch(gate.fault, Some(number), id);
        if replica.backlog.len() < gate.backlog as usize { Ok(true) } else { Err(EngineRejection::Reset) }
    }

    /// Fails with the error of a replica that is down.
    pub(crate) fn answer_of_the_dead(&mut self, number: u32, id: u64) -> Result<(), EngineRejection> {
        let Some(down) = self.replicas[number as usize].down else { return Ok(()) };
        self.faults.touch(down.fault, Some(number), id);
        Err(if down.reset { EngineRejection::Reset } else { ENGINE_DEAD })
    }

    /// Admits a delayed request at its time.
    pub(crate) fn enter_due(&mut self, at: At, id: u64, serial: u64) {
        if self.flights.find(id).is_some_and(|slot| self.flights.at(slot).serial == serial) {
            self.let_in(at, id);
        }
    }
}

/// Error of a front end whose engine has stopped.
const ENGINE_DEAD: EngineRejection =
    EngineRejection::Unavailable { status: 500, why: "the engine is dead", retry_after: None };
