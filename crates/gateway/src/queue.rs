//! Waiting for a replica in the queue.

use std::sync::Arc;

use plimsoll_model::At;
use plimsoll_policy::{Refusal, Ticket};
use tokio::sync::oneshot;

use crate::pool::{Booked, ReplicaPool};
use crate::timer::soon;

/// The result of placing a request.
pub enum Placing {
    Booked(Booked),
    Waits(QueuedWait),
    Refused(Refusal),
}

/// A queued request. A drop before the end removes it from the queue, because its client disconnected.
pub struct QueuedWait {
    pub(crate) pool: Arc<ReplicaPool>,
    pub(crate) ticket: Ticket,
    pub(crate) until: At,
    pub(crate) given: oneshot::Receiver<Result<Booked, Refusal>>,
}

impl QueuedWait {
    /// Waits for a replica until the queue timeout. Fails if the request got no replica.
    pub async fn wait(mut self) -> Result<Booked, Refusal> {
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

impl Drop for QueuedWait {
    fn drop(&mut self) {
        self.pool.leave(self.ticket);
    }
}
