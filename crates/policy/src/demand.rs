//! How many replicas the load asks for: what an autoscaler reads.
//!
//! Engines' own gauges don't show what waits in front of them, and requests in flight stop growing exactly when the pool is full. Here it
//! is work: what comes (sheds included, or shedding would scale down), and what waits, over what a replica does.

use plimsoll_model::At;
use serde::Serialize;

/// Seconds over which what comes is averaged.
const KEPT_S: f64 = 30.0;
/// How busy a replica should be: at more than three quarters queues grow faster than load.
const BUSY: f64 = 0.75;
/// What waits should be gone after this long where no time to the first token is promised, seconds.
pub(crate) const DRAIN_S: f64 = 5.0;

/// Prompt tokens that come, as a rate.
#[derive(Copy, Clone, PartialEq, Debug)]
pub struct Demand {
    per_s: f64,
    at: At,
}

/// What an autoscaler is told.
#[derive(Copy, Clone, PartialEq, Default, Debug, Serialize)]
pub struct ScaleSignal {
    pub queue_requests: u32,
    /// Prompt tokens of them that no replica has cached.
    pub queue_tokens: u64,
    /// Prompt tokens a second that come and are not cached, refused ones included.
    pub offered_tokens_per_s: f64,
    /// Prompt tokens a second that the replicas that answer compute.
    pub capacity_tokens_per_s: f64,
    /// What comes over what the replicas can do.
    pub saturation: f64,
    /// Replicas that the load asks for.
    pub desired_replicas: u32,
}

impl Demand {
    pub fn new(now: At) -> Demand {
        Demand { per_s: 0.0, at: now }
    }

    /// A request of so many uncached tokens came.
    pub fn came(&mut self, tokens: u32, now: At) {
        self.per_s = self.per_s(now) + f64::from(tokens) / KEPT_S;
        self.at = self.at.max(now);
    }

    /// Tokens a second.
    pub fn per_s(&self, now: At) -> f64 {
        self.per_s * (-(now - self.at).as_secs_f64().max(0.0) / KEPT_S).exp()
    }
}

/// What waits where, and what the replicas do about it.
#[derive(Copy, Clone, PartialEq, Default, Debug)]
pub struct Work {
    /// Requests and prompt tokens that wait here.
    pub queued: (u32, u64),
    /// Prompt tokens that wait on replicas.
    pub sent: u64,
    pub in_flight: u32,
    /// Replicas that may get requests, and prompt tokens a second of all of them.
    pub replicas: u32,
    /// See [`ScaleSignal::capacity_tokens_per_s`].
    pub capacity: f64,
}

/// The signal. `per_replica`: most requests on one; `drain_s`: how soon what waits should be gone.
pub fn signal(work: &Work, offered: f64, per_replica: Option<u32>, drain_s: f64) -> ScaleSignal {
    let one = work.capacity / f64::from(work.replicas.max(1));
    let saturation = if work.capacity > 0.0 { offered / work.capacity } else { 0.0 };
    let by_rate = if one > 0.0 { offered / (BUSY * one) } else { 0.0 };
    let backlog = (work.queued.1 + work.sent) as f64;
    let by_backlog = if one > 0.0 { backlog / (one * drain_s) } else { 0.0 };
    let by_slots =
        per_replica.map_or(0.0, |most| f64::from(work.in_flight + work.queued.0) / (BUSY * f64::from(most)));
    let waits = u32::from(work.queued.0 + work.in_flight > 0);
    let desired = by_rate.max(by_backlog).max(by_slots).ceil().min(f64::from(crate::MOST_REPLICAS)) as u32;
    ScaleSignal {
        queue_requests: work.queued.0,
        queue_tokens: work.queued.1,
        offered_tokens_per_s: offered,
        capacity_tokens_per_s: work.capacity,
        saturation,
        desired_replicas: desired.max(waits),
    }
}
