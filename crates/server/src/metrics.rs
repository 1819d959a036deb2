//! What the server counts of itself while it serves.
//!
//! What it counts of requests is `sim::engine::meter`, per replica, with vLLM's bounds; what is here is its own: what it refused, its
//! connections, how late it was.

use plimsoll_sim::Rejected;
use plimsoll_sim::engine::meter::{BucketHistogram, Meter, SIZES};

const US: u64 = 1_000;
const MS: u64 = 1_000_000;
const S: u64 = 1_000_000_000;

/// Bounds of the server's own lateness.
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

/// All that is counted.
#[derive(Clone, Debug)]
pub struct Metrics {
    /// What each replica counted of its requests.
    pub meters: Vec<Meter>,
    /// Requests that waited longer than their queue allows.
    pub expired: u64,
    /// Requests that the full queue refused.
    pub refused_queue: u64,
    /// Requests that can never fit.
    pub refused_size: u64,
    /// Answers of 400 and above, by any cause.
    pub errors: u64,
    pub connections: u64,
    /// Connections ended for being slow or idle too long.
    pub timed_out: u64,
    /// Output tokens asked for.
    pub max_tokens: BucketHistogram,
    /// From a token's virtual time to the engine's noticing.
    pub wake_late: BucketHistogram,
    /// From a token's virtual time to the instant before its write.
    pub write_late: BucketHistogram,
}

impl Default for Metrics {
    fn default() -> Metrics {
        Metrics {
            meters: vec![Meter::default()],
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
    /// What this replica counted.
    pub fn meter(&mut self, replica: u32) -> &mut Meter {
        let place = replica as usize;
        if self.meters.len() <= place {
            self.meters.resize_with(place + 1, Meter::default);
        }
        &mut self.meters[place]
    }

    /// What all replicas counted.
    pub fn total(&self) -> Meter {
        let mut total = Meter::default();
        self.meters.iter().for_each(|meter| total.add(meter));
        total
    }

    /// The world did not take a request.
    pub fn rejected(&mut self, why: &Rejected) {
        match why {
            Rejected::QueueFull { .. } => self.refused_queue += 1,
            Rejected::TooLong { .. } | Rejected::TooManyItems { .. } | Rejected::DuplicateId { .. } => {
                self.refused_size += 1;
            }
            Rejected::Unavailable { .. } | Rejected::Reset => {}
        }
    }
}
