//! What a proxy and a bad connection do to answers on their way: cut in the middle, or held back and let go in lumps.

use plimsoll_model::At;

use crate::fleet::Fleet;
use crate::fleet::agenda::AgendaItem;
use crate::traffic::{Emission, Failure, RequestEvent};

impl Fleet {
    /// Passes an emission on, cut or held back where a fault wants it so.
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

    /// A proxy's turn with a token. True where the token goes no further by itself.
    pub(crate) fn buffer(&mut self, number: u32, at: At, id: u64, n: u32, last: bool) -> bool {
        let Some(slot) = self.flights.find(id) else { return false };
        let Some((fault, every, most)) = self.faults.buffer(number) else {
            // The fault is over: what it held goes with this token.
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

    /// Lets go what is held of an answer, together with `n` tokens more.
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

    /// Lets go what is held of an answer.
    fn flush(&mut self, at: At, id: u64, last: bool) {
        self.release(at, id, 0, last);
    }

    /// A held lump's time has come.
    pub(crate) fn release_due(&mut self, at: At, id: u64, serial: u64) {
        if self.flights.find(id).is_some_and(|slot| self.flights.at(slot).serial == serial) {
            self.flush(at, id, false);
        }
    }
}
