//! Hedged requests: the gateway's second attempt if the first is late with its first token (`policy::hedge`).
//!
//! The second attempt has its own flight and number. Its emissions carry the number of the request only once it has
//! won. When one attempt wins, the other leaves its replica at that instant. If one fails, the other continues, as
//! behind a live gateway.

use plimsoll_model::{At, Span};

use crate::fleet::agenda::AgendaItem;
use crate::fleet::gate::{chosen, verdict};
use crate::fleet::{Fleet, facts};
use crate::traffic::{Emission, RequestEvent, Submit};

/// Bit that distinguishes a second attempt's number from its request's.
const COPY: u64 = 1 << 63;

/// The state of a hedged request.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum HedgeState {
    /// Neither attempt has a first token.
    Open,
    /// The second attempt has won.
    Second,
}

impl Fleet {
    /// Schedules the time at which a request on its replica is late.
    pub(crate) fn note_lateness(&mut self, now: At, id: u64, request: impl FnOnce() -> Box<Submit>) {
        let (Some(gate), Some(slot)) = (&self.gate, self.flights.find(id)) else { return };
        let flight = self.flights.at_mut(slot);
        let Some(after) = flight.sent.as_ref().and_then(|sent| gate.front.hedge_after(sent)) else { return };
        flight.twice = Some(request());
        self.agenda.note(now + after, AgendaItem::Hedge { id, serial: flight.serial, after });
    }

    /// Hedges a late request, if it still waits for its first token.
    pub(crate) fn hedge_due(&mut self, now: At, id: u64, serial: u64, after: Span) {
        self.see_replicas();
        let (Some(gate), Some(slot)) = (&mut self.gate, self.flights.find(id)) else { return };
        let flight = self.flights.at(slot);
        let (Some(request), Some(sent), false) = (&flight.twice, &flight.sent, flight.began) else { return };
        if flight.serial != serial {
            return;
        }
        match gate.front.hedge(&facts(request), sent, now, &mut gate.chance) {
            Ok(second) => {
                let copy = Submit { id: id | COPY, ..(**request).clone() };
                let taken = self.place(now, chosen(&second), copy);
                let Some(gate) = &mut self.gate else { return };
                match (taken, self.flights.find(id | COPY)) {
                    (Ok(()), Some(slot)) => {
                        self.flights.at_mut(slot).sent = Some(second);
                        gate.races.insert(id, HedgeState::Open);
                        self.totals.hedged += 1;
                    }
                    (Err(why), _) => {
                        let verdict = verdict(why.status(), why.retry_after());
                        gate.front.ended(second, Some(verdict), 0, now, &mut gate.chance);
                    }
                    (Ok(()), None) => {}
                }
            }
            // As in the gateway: the next attempt is at twice the time, because the state may differ then.
            Err(_) => self.agenda.note(now + after, AgendaItem::Hedge { id, serial, after: after + after }),
        }
    }

    /// Records a first token; the other attempt is cancelled.
    pub(crate) fn decide_race(&mut self, at: At, id: u64) {
        let Some(gate) = &mut self.gate else { return };
        let (request, is_second) = (id & !COPY, id & COPY != 0);
        let Some(race) = gate.races.get(&request).copied() else { return };
        if race == HedgeState::Open {
            let other = if is_second { request } else { request | COPY };
            let slower = self.flights.find(other).and_then(|slot| self.flights.at(slot).sent);
            gate.front.hedge_ended(is_second, slower.as_ref(), at);
            match is_second {
                true => gate.races.insert(request, HedgeState::Second),
                false => gate.races.remove(&request),
            };
            self.leave(at, other);
        }
        if let Some(slot) = self.flights.find(id).filter(|_| is_second) {
            let flight = self.flights.at(slot);
            let placed = RequestEvent::Placed { replica: flight.replica };
            let admitted = RequestEvent::Admitted { cached: flight.cached };
            self.own.extend([placed, admitted].map(|what| Emission { at, id: request, what }));
        }
    }

    /// Cancels the second attempt of a cancelled request. Returns `true` if there was one.
    pub(crate) fn cancel_second(&mut self, at: At, id: u64) -> bool {
        let raced = self.gate.as_mut().and_then(|gate| gate.races.remove(&id)).is_some();
        if raced {
            self.leave(at, id | COPY);
        }
        raced
    }

    /// Forwards the emissions of both attempts, under the number of their request and with one end.
    pub(crate) fn tell_races(&mut self, told: Vec<Emission>, out: &mut Vec<Emission>) {
        let Some(gate) = &mut self.gate else { return out.extend(told) };
        let races = &mut gate.races;
        out.extend(told.into_iter().filter_map(|emission| {
            let request = emission.id & !COPY;
            let is_second = emission.id & COPY != 0;
            let ends = matches!(emission.what, RequestEvent::Finished { .. } | RequestEvent::Failed(_));
            // These emissions are forwarded once the winner is known.
            let begins = matches!(emission.what, RequestEvent::Placed { .. } | RequestEvent::Admitted { .. });
            let is_told = match (races.get(&request), is_second) {
                (None, is_second) => !is_second,
                (Some(HedgeState::Open), is_second) if !ends => !is_second,
                // One attempt failed, and the other continues.
                (Some(HedgeState::Open), true) => {
                    races.remove(&request);
                    false
                }
                (Some(HedgeState::Open), false) => {
                    races.insert(request, HedgeState::Second);
                    false
                }
                (Some(HedgeState::Second), false) => begins,
                (Some(HedgeState::Second), true) => {
                    if ends {
                        races.remove(&request);
                    }
                    !begins
                }
            };
            is_told.then_some(Emission { id: request, ..emission })
        }));
    }
}
