//! Cost of a request on a replica in seconds: one number that weighs cached prefixes, queues and slow replicas.
//!
//! ```text
//! ttft   = base + (backlog + uncached) · s/token + step(b)         b = decoding requests
//! others = answer · (late + c · (2b + 1)) + b/2 · uncached · s/token    step(b) = a + c · b
//! cost   = ttft + weight · others + penalty
//! ```
//!
//! `others` has three parts. The response itself is slower because of concurrent requests, and on a certainly slow
//! replica ([`Speed::late`]). The concurrent requests are slower because of this one. They also wait for half of its
//! prompt's time. A cached prefix wins exactly if recomputing it takes longer than waiting for it. A threshold for a
//! "balanced" pool is therefore not needed.
//!
//! The uncached tokens must be computed *before* the router records this prompt. Afterwards everything seems cached,
//! no load is booked, and the replica of the most popular prompt is overloaded.

use serde::{Deserialize, Serialize};

use crate::load::ReplicaLoad;
use crate::speed::Speed;

/// Default weight of the delay of others. Between 0.1 and 0.3, results are equal in simulations of chat and of one
/// shared prompt. At 0 streams suffer; at 1 cached prefixes are wasted.
pub const WEIGHT: f64 = 0.2;
/// Relative tolerance: replicas within this share of the lowest cost are equal, and one is picked at random.
/// Otherwise several gateways, or one with stale metrics, would all pick one replica.
pub const LEVEL: f64 = 0.05;
/// Absolute tolerance in s, added to the relative one, because network jitter is larger.
pub const LEVEL_S: f64 = 0.001;

/// The cost of a request on a replica by term, in s. Their sum is [`seconds`] plus the penalty.
#[derive(Copy, Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct CostTerms {
    /// Base time to first token.
    pub base_s: f64,
    pub wait_s: f64,
    /// Time for the uncached part of the request's own prompt.
    pub own_s: f64,
    /// Decode step with the current concurrent streams.
    pub step_s: f64,
    /// Weighted delay for others and for the response.
    pub others_s: f64,
    /// Penalty, because the replica recently rejected requests.
    pub penalty_s: f64,
}

impl CostTerms {
    /// Returns the terms. `uncached` is the number of prompt tokens to compute; `answer` is the expected output in
    /// tokens.
    pub fn of(speed: &Speed, on: ReplicaLoad, uncached: u32, answer: f64, weight: f64) -> CostTerms {
        let [base_s, step_s] = [speed.prefill.at(0.0), speed.step.at(f64::from(on.decoding))];
        let wait_s = speed.prefill.at(on.backlog as f64) - base_s;
        CostTerms {
            base_s,
            wait_s,
            own_s: f64::from(uncached) * speed.prefill.per,
            step_s,
            others_s: seconds(speed, on, uncached, answer, weight) - first_token(speed, on, uncached),
            penalty_s: 0.0,
        }
    }

    pub fn cost_s(&self) -> f64 {
        self.base_s + self.wait_s + self.own_s + self.step_s + self.others_s + self.penalty_s
    }
}

/// Returns the time to first token in s. `uncached` is the number of prompt tokens to compute.
pub fn first_token(speed: &Speed, on: ReplicaLoad, uncached: u32) -> f64 {
    speed.prefill.at(on.backlog as f64 + f64::from(uncached)) + speed.step.at(f64::from(on.decoding))
}

/// Returns the cost in s. `uncached` is the number of prompt tokens to compute; `answer` is the expected output in
/// tokens.
pub fn seconds(speed: &Speed, on: ReplicaLoad, uncached: u32, answer: f64, weight: f64) -> f64 {
    let beside = f64::from(on.decoding);
    let own = f64::from(uncached) * speed.prefill.per;
    let others = answer * (speed.late + speed.step.per * (2.0 * beside + 1.0)) + 0.5 * beside * own;
    first_token(speed, on, uncached) + weight * others
}
