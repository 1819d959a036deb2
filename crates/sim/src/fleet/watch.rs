//! The effects of proxies and bad connections on responses: cut in the middle, or buffered and sent in groups.

use plimsoll_model::At;

use crate::fleet::Fleet;
use crate::fleet::agenda::AgendaItem;
use crate::traffic::{Emission, Failure, RequestEvent};

impl Fleet {
    /// Forwards an emission, cut or buffered by active faults.
    pub(crate) fn watch(&mut self, place: usize, emission: Emission) {
        let Emission { at, id, what } = emission;
        let Some(slot) = self.flights.find(id) else { return };
        if self.part_way(place as u32, &emission) {
            return;
        }
        if let RequestEvent::Token { n, last } = what {
            let flight = self.flights.at_mut(slot);
            flight.tokens += n;
            if let Some((fault, after)) = flight.cut
                && flight.tokens >= after
                && !last
            {
                self.faults.touch(fault, Some(place as u32), id);
                self.flush(at, id, false);
                self.replicas[place].pending.push(emission);
                self.fail(at, id, Failure::Cut, true);
                return;
            }
            if self.buffer(place as u32, at, id, n, last) {
                return;
            }
        }
        self.replicas[place].pending.push(emission);
        self.book(&emission);
    }

    /// Buffers a token in a proxy. Returns `true` if the token stays there.
    pub(crate) fn buffer(&mut self, number: u32, at: At, id: u64, n: u32, last: bool) -> bool {
        let Some(slot) = self.flights.find(id) else { return false };
        let Some((fault, every, most)) = self.faults.buffer(number) else {
            // The fault is over: buffered tokens leave with this one.
            return self.flights.at(slot).buffered > 0 && self.release(at, id, n, last);
        };
        self.faults.touch(fault, Some(number), id);
        let flight = self.flights.at_mut(slot);
        if last || most.is_some_and(|most| flight.buffered + n >= most) {
            return self.release(at, id, n, last);
        }
        let first = flight.buffered == 0;
        flight.buffered += n;
        let serial = flight.serial;
        if first && let Some(every) = every {
            self.agenda.note(at + every, AgendaItem::Release { id, serial });
        }
        true
    }

    /// Sends the buffered tokens of a response together with `n` more.
    fn release(&mut self, at: At, id: u64, n: u32, last: bool) -> bool {
        let Some(slot) = self.flights.find(id) else { return false };
        let flight = self.flights.at_mut(slot);
        let n = n + std::mem::take(&mut flight.buffered);
        let place = flight.replica as usize;
        if n > 0 {
            self.replicas[place].pending.push(Emission { at, id, what: RequestEvent::Token { n, last } });
        }
        true
    }

    /// Sends the buffered tokens of a response.
    fn flush(&mut self, at: At, id: u64, last: bool) {
        self.release(at, id, 0, last);
    }

    /// Sends a buffered group at its time.
    pub(crate) fn release_due(&mut self, at: At, id: u64, serial: u64) {
        if self.flights.find(id).is_some_and(|slot| self.flights.at(slot).serial == serial) {
            self.flush(at, id, false);
        }
    }
}
