//! Builds request bodies ahead of their due time.
//!
//! Writing a prompt of some thousand tokens takes tens of microseconds, which would all be lag if it began at the due time.
//! The pacer therefore builds the next few bodies while it is idle. A closed loop has no such time, because the next
//! request is due when the last one ends.

use std::collections::HashMap;
use std::sync::Arc;

use plimsoll_model::Span;
use plimsoll_wire::RequestOptions;
use plimsoll_workload::schedule::dealt_to;
use plimsoll_workload::{Arrival, Schedule, SessionAnswerTexts};

use crate::driver::level::LevelContext;
use crate::http1::request::PreparedRequest;

/// Most bodies that are built ahead.
const AHEAD_MAX: usize = 16;

/// Shortest time before the next due time in which a body is built.
const ROOM: Span = Span::from_micros(300);

/// The bodies built ahead of an open loop.
#[derive(Debug, Default)]
pub struct BodyPrefetcher {
    schedule: Option<Arc<Schedule>>,
    worker: usize,
    workers: usize,
    /// Number of shards of the schedule.
    shards: u32,
    next: usize,
    /// Lowest arrival number to build: one more than the highest number that was taken.
    taken: u64,
    ready: HashMap<u64, PreparedRequest>,
    options: Vec<RequestOptions>,
    longest: Span,
}

impl BodyPrefetcher {
    /// Returns the time before the next due time that a build needs, because a body with images takes milliseconds.
    pub fn room(&self) -> Span {
        ROOM.max(Span(2 * self.longest.0))
    }

    pub fn took(&mut self, span: Span) {
        // Decays the maximum, because a stall of the machine is no build time.
        self.longest = span.max(Span(self.longest.0 - self.longest.0 / 16));
    }

    /// Returns the builder for one worker's part of a schedule with `shards` shards.
    pub fn of(schedule: Arc<Schedule>, shards: u32, worker: usize, workers: usize) -> BodyPrefetcher {
        BodyPrefetcher { schedule: Some(schedule), shards, worker, workers, ..BodyPrefetcher::default() }
    }

    pub(crate) fn wants_more(&self) -> bool {
        self.ready.len() < AHEAD_MAX
    }

    /// Builds the next body of this worker's part; false if there is none. Turns of sessions are skipped, because their
    /// time does not follow from the schedule.
    pub(crate) fn prepare_next(&mut self, shared: &LevelContext) -> bool {
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

    /// Returns the body of an attempt, built ahead or now. `said` is the answers of its session so far.
    pub fn take(
        &mut self,
        arrival: &Arrival,
        attempt: u16,
        shared: &LevelContext,
        said: Option<&SessionAnswerTexts>,
    ) -> PreparedRequest {
        self.taken = self.taken.max(arrival.id + 1);
        match self.ready.remove(&arrival.id) {
            Some(prepared) if attempt == 0 => prepared,
            _ => shared.prepare(arrival, attempt, &mut self.options, said),
        }
    }
}
