//! What a request costs on a replica, in seconds: the one figure by which cached prefixes, queues and slow replicas are weighed.
//!
//! ```text
//! ttft   = base + (backlog + uncached) · s/token + step(b)         b = requests that decode there
//! others = answer · (late + c · (2b + 1)) + b/2 · uncached · s/token    step(b) = a + c · b
//! cost   = ttft + weight · others + penalty
//! ```
//!
//! `others` is what the answer is slower by for its company and on a replica that is surely a slow one ([`Speed::late`]), what it makes its company
//! slower by, and the half of its prompt's time for which the others wait. A cached prefix wins exactly when computing it again takes longer than waiting for it: no threshold says when a
//! pool is "balanced". What is uncached must be known *before* the router notes where the prompt went: after that everything looks
//! cached, nothing is booked, and the hottest prompt's replica drowns.

use serde::{Deserialize, Serialize};

use crate::load::Load;
use crate::speed::Speed;

/// The weight of others unless told otherwise: from 0.1 to 0.3 the outcome is level (our simulations of chat and of one hot prompt); at 0 streams
/// suffer, at 1 cached prefixes are thrown away.
pub const WEIGHT: f64 = 0.2;
/// Replicas whose cost is within this share of the least are as good as it: chance decides, so that several gateways, or one with old figures, do
/// not all choose the same.
pub const LEVEL: f64 = 0.05;
/// And so are those within this many seconds: a network's jitter is larger.
pub const LEVEL_S: f64 = 0.001;

/// What a request costs on a replica, term by term, s: what [`seconds`] and a penalty add up to.
#[derive(Copy, Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct CostTerms {
    /// What every first token takes there.
    pub base_s: f64,
    pub wait_s: f64,
    /// Its own prompt, less what is cached.
    pub own_s: f64,
    /// A step beside those that decode there.
    pub step_s: f64,
    /// What company costs, weighed.
    pub others_s: f64,
    /// What is laid on top: it refused requests a moment ago.
    pub penalty_s: f64,
}

impl CostTerms {
    /// The terms. `uncached`: prompt tokens that the replica would have to compute; `answer`: tokens that are expected.
    pub fn of(speed: &Speed, on: Load, uncached: u32, answer: f64, weight: f64) -> CostTerms {
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

/// Seconds to the first token. `uncached`: prompt tokens that the replica would have to compute.
pub fn first_token(speed: &Speed, on: Load, uncached: u32) -> f64 {
    speed.prefill.at(on.backlog as f64 + f64::from(uncached)) + speed.step.at(f64::from(on.decoding))
}

/// Seconds that a request costs. `uncached`: prompt tokens that the replica would have to compute; `answer`: tokens that are expected.
pub fn seconds(speed: &Speed, on: Load, uncached: u32, answer: f64, weight: f64) -> f64 {
    let beside = f64::from(on.decoding);
    let own = f64::from(uncached) * speed.prefill.per;
    let others = answer * (speed.late + speed.step.per * (2.0 * beside + 1.0)) + 0.5 * beside * own;
    first_token(speed, on, uncached) + weight * others
}
