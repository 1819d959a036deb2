//! Requests that wait for a replica.

use std::sync::Arc;

use plimsoll_model::At;
use plimsoll_policy::{Refusal, Ticket};
use tokio::sync::oneshot;

use crate::pool::{Booked, ReplicaPool};
use crate::timer::soon;

/// What becomes of a request that comes.
pub enum Placing {
    Booked(Booked),
    Waits(QueuedWait),
    Refused(Refusal),
}

/// A request that waits. Dropped before its end, it leaves the queue: its client went away.
pub struct QueuedWait {
    pub(crate) pool: Arc<ReplicaPool>,
    pub(crate) ticket: Ticket,
    pub(crate) until: At,
    pub(crate) given: oneshot::Receiver<Result<Booked, Refusal>>,
}

impl QueuedWait {
    /// Waits for a replica, or for the end of its time.
    pub async fn wait(mut self) -> Result<Booked, Refusal> {
        let due = soon(self.until - self.pool.clock.now());
        if let Ok(given) = tokio::time::timeout_at(due, &mut self.given).await {
            return given.unwrap_or(Err(Refusal::NoReplica));
        }
        match self.pool.expire(self.ticket) {
            Some(refusal) => Err(refusal),
            // It was given a replica in this very moment.
            None => (&mut self.given).await.unwrap_or(Err(Refusal::NoReplica)),
        }
    }
}

impl Drop for QueuedWait {
    fn drop(&mut self) {
        self.pool.leave(self.ticket);
    }
}
