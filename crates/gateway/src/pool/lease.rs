//! The lease of a replica by a request, and the wait for one in the queue.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use plimsoll_model::{At, Span};
use plimsoll_policy::{Refusal, ReplicaOutcome, SentRequest, Ticket};
use tokio::sync::oneshot;

use super::{Inner, ReplicaPool};
use crate::explain::RouteExplanation;
use crate::replica::Replica;
use crate::timer::soon;

/// A request on a replica. A drop without an end counts as cancelled; the load is released in any case.
pub struct ReplicaLease {
    pool: Arc<ReplicaPool>,
    replica: Arc<Replica>,
    pub(super) sent: SentRequest,
    events: u32,
    /// Set if the response shows no progress before its end.
    is_blind: bool,
    open: bool,
    /// Explanation of the routing decision, if requested.
    pub explained: Option<Box<RouteExplanation>>,
}

impl ReplicaLease {
    pub(super) fn new(
        pool: &Arc<ReplicaPool>,
        each: &[Arc<Replica>],
        sent: SentRequest,
        explained: Option<Box<RouteExplanation>>,
    ) -> ReplicaLease {
        let replica = Arc::clone(&each[sent.booking.replica as usize]);
        let pool = Arc::clone(pool);
        let is_blind = !sent.streams;
        if sent.is_generation() {
            replica.begins(is_blind, sent.booking.sent);
        }
        ReplicaLease { pool, replica, sent, events: 0, is_blind, open: true, explained }
    }

    /// Returns the number of the replica.
    pub fn number(&self) -> u32 {
        self.sent.booking.replica
    }

    pub fn replica(&self) -> &Arc<Replica> {
        &self.replica
    }

    /// Returns the index of the model tier that serves the request.
    pub fn tier(&self) -> u32 {
        self.sent.tier
    }

    /// Returns the time of the booking.
    pub fn sent(&self) -> At {
        self.sent.booking.sent
    }

    /// Returns the time to first token that was expected at arrival.
    pub fn expected(&self) -> Span {
        self.sent.expected
    }

    /// Records stream progress. Events count from the first token on.
    pub fn moved(&mut self, events: u32, now: At) {
        self.replica.moves(now);
        if self.sent.booking.first.is_some() {
            self.events += events;
        }
    }

    /// Records the first token.
    pub fn begin(&mut self, now: At) {
        let mut inner = self.pool.lock();
        inner.front.first(&mut self.sent, now);
        self.pool.settle(inner);
    }

    /// Records the share of the prompt that the replica reported as cached.
    pub fn cached(&self, share: f64) {
        self.pool.lock().front.cached(&self.sent, share);
    }

    /// Records that the replica created and stores an object.
    pub fn made(&self, object: u64) {
        self.pool.owners.made(object, self.replica.id);
    }

    pub fn end(mut self, verdict: ReplicaOutcome) {
        self.close(Some(verdict));
    }

    fn close(&mut self, verdict: Option<ReplicaOutcome>) {
        if !std::mem::take(&mut self.open) {
            return;
        }
        let now = self.pool.clock.now();
        let place = match verdict {
            Some(ReplicaOutcome::Worked | ReplicaOutcome::Neutral) => 0,
            Some(ReplicaOutcome::Shed(_)) => 1,
            Some(ReplicaOutcome::Failed) => 2,
            None => 3,
            Some(ReplicaOutcome::Refused) => 4,
        };
        self.replica.attempts[place].fetch_add(1, Ordering::Relaxed);
        if verdict == Some(ReplicaOutcome::Worked) {
            self.replica.moves(now);
        }
        if self.sent.is_generation() {
            self.replica.ends(self.is_blind);
        }
        let mut inner = self.pool.lock();
        let Inner { front, chance, .. } = &mut *inner;
        front.ended(self.sent, verdict, self.events, now, chance);
        let parts = !self.replica.is_named() && inner.part(self.replica.number);
        self.pool.settle(inner);
        if parts {
            self.pool.changes.send_modify(|count| *count += 1);
        }
    }
}

impl Drop for ReplicaLease {
    fn drop(&mut self) {
        self.close(None);
    }
}

/// The result of placing a request.
pub enum Placement {
    Booked(ReplicaLease),
    Waits(QueueWait),
    Refused(Refusal),
}

/// A queued request. A drop before the end removes it from the queue, because its client disconnected.
pub struct QueueWait {
    pub(super) pool: Arc<ReplicaPool>,
    pub(super) ticket: Ticket,
    pub(super) until: At,
    pub(super) given: oneshot::Receiver<Result<ReplicaLease, Refusal>>,
}

impl QueueWait {
    /// Waits for a replica until the queue timeout. Fails if the request got no replica.
    pub async fn wait(mut self) -> Result<ReplicaLease, Refusal> {
        let due = soon(self.until - self.pool.clock.now());
        if let Ok(given) = tokio::time::timeout_at(due, &mut self.given).await {
            return given.unwrap_or(Err(Refusal::NoReplica));
        }
        match self.pool.expire(self.ticket) {
            Some(refusal) => Err(refusal),
            // The request got a replica at the moment of the timeout.
            None => (&mut self.given).await.unwrap_or(Err(Refusal::NoReplica)),
        }
    }
}

impl Drop for QueueWait {
    fn drop(&mut self) {
        self.pool.leave(self.ticket);
    }
}
