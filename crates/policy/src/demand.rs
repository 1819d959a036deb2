//! Demand signal for an autoscaler: the number of replicas that the load needs.
//!
//! Engine metrics do not show the gateway's queue, and requests in flight stop growing when the pool is full. This
//! signal uses work: the arriving and the waiting tokens relative to the capacity of a replica. It includes rejected
//! requests, because otherwise rejections would cause a scale-down.

use plimsoll_model::At;
use serde::Serialize;

/// Time constant of the arrival rate in s.
const KEPT_S: f64 = 30.0;
/// Target utilisation of a replica: above three quarters, queues grow faster than load.
const BUSY: f64 = 0.75;
/// Default time in s within which the backlog should be computed, if no TTFT objective is set.
pub(crate) const DRAIN_S: f64 = 5.0;

/// An estimate of the arrival rate of prompt tokens.
#[derive(Copy, Clone, PartialEq, Debug)]
pub struct TokenDemand {
    per_s: f64,
    at: At,
}

#[derive(Copy, Clone, PartialEq, Default, Debug, Serialize)]
pub struct ScaleSignal {
    pub queue_requests: u32,
    /// Their prompt tokens that no replica has cached.
    pub queue_tokens: u64,
    /// Arriving uncached prompt tokens per s, including rejected requests.
    pub offered_tokens_per_s: f64,
    /// Prompt tokens per s that the healthy replicas can compute.
    pub capacity_tokens_per_s: f64,
    /// Arrival rate divided by capacity; 0 without capacity.
    pub saturation: f64,
    /// Number of replicas that the load needs.
    pub desired_replicas: u32,
}

impl TokenDemand {
    pub fn new(now: At) -> TokenDemand {
        TokenDemand { per_s: 0.0, at: now }
    }

    /// Records the arrival of a request with this many uncached tokens.
    pub fn came(&mut self, tokens: u32, now: At) {
        self.per_s = self.per_s(now) + f64::from(tokens) / KEPT_S;
        self.at = self.at.max(now);
    }

    /// Returns the arrival rate in tokens per s.
    pub fn per_s(&self, now: At) -> f64 {
        self.per_s * (-(now - self.at).as_secs_f64().max(0.0) / KEPT_S).exp()
    }
}

/// The work in the system and the capacity for it.
#[derive(Copy, Clone, PartialEq, Default, Debug)]
pub struct Work {
    /// Requests and prompt tokens in the gateway's queue.
    pub queued: (u32, u64),
    /// Prompt tokens that wait on replicas.
    pub sent: u64,
    pub in_flight: u32,
    /// Number of usable replicas.
    pub replicas: u32,
    /// Prompt tokens per s of all usable replicas.
    pub capacity: f64,
}

/// Returns the signal. `per_replica` limits requests per replica; `drain_s` is the target time for the backlog.
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
