//! Bodies made ahead of their time.
//!
//! Writing a prompt of some thousand tokens takes tens of microseconds, which would all be lag if it began when the
//! request is due. The pacer therefore makes the next few bodies while it has nothing else to do. In a closed loop there
//! is no such time: the next request is due when the last one ends.

use std::collections::HashMap;
use std::sync::Arc;

use plimsoll_model::Span;
use plimsoll_wire::RequestOptions;
use plimsoll_workload::schedule::dealt_to;
use plimsoll_workload::{Arrival, Said, Schedule};

use crate::level::Shared;
use crate::request::Prepared;

/// Most bodies kept ready.
const AHEAD_MAX: usize = 16;

/// Time that is left at the least.
const ROOM: Span = Span::from_micros(300);

/// See the module's head.
#[derive(Debug, Default)]
pub struct Ahead {
    schedule: Option<Arc<Schedule>>,
    worker: usize,
    workers: usize,
    /// Parts that the schedule was cut into, of which this is one.
    shards: u32,
    next: usize,
    /// Arrivals before this one have been taken; what is ready below it was a turn of a session taken later.
    taken: u64,
    ready: HashMap<u64, Prepared>,
    options: Option<RequestOptions>,
    longest: Span,
}

impl Ahead {
    /// Time that must be left before the next due moment to begin on a body: one with pictures takes milliseconds.
    pub fn room(&self) -> Span {
        ROOM.max(Span(2 * self.longest.0))
    }

    pub fn took(&mut self, span: Span) {
        // Less and less of what was once: a stall of the machine is no body's length.
        self.longest = span.max(Span(self.longest.0 - self.longest.0 / 16));
    }

    /// For one worker's part of a schedule, which is one of so many shards.
    pub fn of(schedule: Arc<Schedule>, shards: u32, worker: usize, workers: usize) -> Ahead {
        Ahead { schedule: Some(schedule), shards, worker, workers, ..Ahead::default() }
    }

    /// Is there room for another?
    pub(crate) fn wants_more(&self) -> bool {
        self.ready.len() < AHEAD_MAX
    }

    /// Makes the next body of this worker's part; false when there is none. Turns of sessions are left out: their time
    /// is not the schedule's.
    pub(crate) fn prepare_next(&mut self, shared: &Shared) -> bool {
        let Some(schedule) = &self.schedule else { return false };
        while let Some(arrival) = schedule.arrivals.get(self.next) {
            self.next += 1;
            if arrival.session.is_none()
                && dealt_to(arrival, self.shards, self.workers) == self.worker
                && arrival.id >= self.taken
            {
                let prepared = shared.prepare(arrival, 0, &mut self.options, None);
                self.ready.insert(arrival.id, prepared);
                return true;
            }
        }
        false
    }

    /// The body of an attempt: the one made ahead, or made now. `said`: the answers of its session so far.
    pub fn take(
        &mut self,
        arrival: &Arrival,
        attempt: u16,
        shared: &Shared,
        said: Option<&Said>,
    ) -> Prepared {
        self.taken = self.taken.max(arrival.id + 1);
        match self.ready.remove(&arrival.id) {
            Some(prepared) if attempt == 0 => prepared,
            _ => shared.prepare(arrival, attempt, &mut self.options, said),
        }
    }
}
