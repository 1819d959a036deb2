//! Drain rate of a queue: tokens per s that left the queue while requests waited.
//!
//! The prior is the sum of the replicas' prefill speeds. It is right while prefill is the bottleneck, and wrong if
//! slots or KV cache are. The measured rate is right in all cases and dominates after about 1 s of waiting.

use plimsoll_model::At;

/// Time constant in s, counted in time with a non-empty queue.
const KEPT_S: f64 = 10.0;
/// Weight of the prior in s.
const PRIOR_S: f64 = 1.0;

#[derive(Copy, Clone, PartialEq, Default, Debug)]
pub(crate) struct Drain {
    tokens: f64,
    seconds: f64,
    /// Start of the current wait without a departure; `None` if the queue is empty.
    since: Option<At>,
}

impl Drain {
    /// Records that the queue is not empty.
    pub fn begin(&mut self, now: At) {
        self.since.get_or_insert(now);
    }

    /// Records a departure of this many tokens. `empty` is set if the queue is empty now.
    pub fn took(&mut self, tokens: u64, empty: bool, now: At) {
        let passed = self.since.map_or(0.0, |since| (now - since).as_secs_f64().max(0.0));
        let kept = (-passed / KEPT_S).exp();
        self.tokens = self.tokens * kept + tokens as f64;
        self.seconds = self.seconds * kept + passed;
        self.since = (!empty).then_some(now);
    }

    /// Records that the last request left without service.
    pub fn emptied(&mut self) {
        self.since = None;
    }

    /// Returns the rate in tokens per s. `prior` is the expected rate of the replicas.
    pub fn per_s(&self, prior: f64, now: At) -> f64 {
        let still = self.since.map_or(0.0, |since| (now - since).as_secs_f64().max(0.0));
        (self.tokens + prior * PRIOR_S) / (self.seconds + still + PRIOR_S)
    }
}
