//! Counts the server's own events while it serves.
//!
//! Metrics of requests are in `sim::engine::meter`, per replica, with vLLM's bucket bounds. This module counts rejections,
//! connections and lateness.

use plimsoll_sim::EngineRejection;
use plimsoll_sim::engine::meter::{BucketHistogram, ReplicaMeter, SIZES};

const US: u64 = 1_000;
const MS: u64 = 1_000_000;
const S: u64 = 1_000_000_000;

/// Bucket bounds of the server's lateness in ns.
pub const LATE: &[u64] = &[
    US,
    2 * US,
    5 * US,
    10 * US,
    20 * US,
    50 * US,
    100 * US,
    200 * US,
    500 * US,
    MS,
    2 * MS,
    5 * MS,
    10 * MS,
    20 * MS,
    50 * MS,
    100 * MS,
    200 * MS,
    500 * MS,
    S,
];

#[derive(Clone, Debug)]
pub struct Metrics {
    pub meters: Vec<ReplicaMeter>,
    /// Requests that exceeded their queue timeout.
    pub expired: u64,
    /// Requests rejected by a full queue.
    pub refused_queue: u64,
    /// Requests rejected because they can never fit.
    pub refused_size: u64,
    /// Responses with a status of 400 and above.
    pub errors: u64,
    pub connections: u64,
    /// Connections closed for being slow or idle too long.
    pub timed_out: u64,
    /// Requested output tokens per request.
    pub max_tokens: BucketHistogram,
    /// Time from a token's virtual time to its processing by the engine.
    pub wake_late: BucketHistogram,
    /// Time from a token's virtual time to the start of its write.
    pub write_late: BucketHistogram,
}

impl Default for Metrics {
    fn default() -> Metrics {
        Metrics {
            meters: vec![ReplicaMeter::default()],
            expired: 0,
            refused_queue: 0,
            refused_size: 0,
            errors: 0,
            connections: 0,
            timed_out: 0,
            max_tokens: BucketHistogram::new(SIZES),
            wake_late: BucketHistogram::new(LATE),
            write_late: BucketHistogram::new(LATE),
        }
    }
}

impl Metrics {
    /// Returns the request metrics of a replica.
    pub fn meter(&mut self, replica: u32) -> &mut ReplicaMeter {
        let place = replica as usize;
        if self.meters.len() <= place {
            self.meters.resize_with(place + 1, ReplicaMeter::default);
        }
        &mut self.meters[place]
    }

    /// Returns the sum of the request metrics of all replicas.
    pub fn total(&self) -> ReplicaMeter {
        let mut total = ReplicaMeter::default();
        self.meters.iter().for_each(|meter| total.add(meter));
        total
    }

    /// Counts a request that the world rejected.
    pub fn rejected(&mut self, why: &EngineRejection) {
        match why {
            EngineRejection::QueueFull { .. } => self.refused_queue += 1,
            EngineRejection::TooLong { .. }
            | EngineRejection::TooManyItems { .. }
            | EngineRejection::DuplicateId { .. } => {
                self.refused_size += 1;
            }
            EngineRejection::Unavailable { .. } | EngineRejection::Reset => {}
        }
    }
}
