//! Waiting for a replica in the queue.

use std::sync::Arc;

use plimsoll_model::At;
use plimsoll_policy::{Refusal, Ticket};
use tokio::sync::oneshot;

use crate::pool::{ReplicaLease, ReplicaPool};
use crate::timer::soon;

/// The result of placing a request.
pub enum Placement {
    Booked(ReplicaLease),
    Waits(QueueWait),
    Refused(Refusal),
}

/// A queued request. A drop before the end removes it from the queue, because its client disconnected.
pub struct QueueWait {
    pub(crate) pool: Arc<ReplicaPool>,
    pub(crate) ticket: Ticket,
    pub(crate) until: At,
    pub(crate) given: oneshot::Receiver<Result<ReplicaLease, Refusal>>,
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
