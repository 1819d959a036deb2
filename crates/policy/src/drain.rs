//! How fast a queue gets shorter: tokens a second that were taken out of it while somebody waited.
//!
//! What the replicas' speeds add up to is the prior: it is right while prompts are what they are busy with, and wrong where slots or the KV cache
//! are short. What left the queue is right in all cases, and is believed after about a second of waiting.

use plimsoll_model::At;

/// Seconds of waiting by which a second of long ago has lost most of its weight.
const KEPT_S: f64 = 10.0;
/// What the prior counts for, seconds.
const PRIOR_S: f64 = 1.0;

#[derive(Copy, Clone, PartialEq, Default, Debug)]
pub(crate) struct Drain {
    tokens: f64,
    seconds: f64,
    /// Since when somebody waits and nobody was taken out.
    since: Option<At>,
}

impl Drain {
    /// Somebody waits from now on, if nobody did.
    pub fn begin(&mut self, now: At) {
        self.since.get_or_insert(now);
    }

    /// One was taken out that counted for so many tokens; `empty`: nobody waits any more.
    pub fn took(&mut self, tokens: u64, empty: bool, now: At) {
        let passed = self.since.map_or(0.0, |since| (now - since).as_secs_f64().max(0.0));
        let kept = (-passed / KEPT_S).exp();
        self.tokens = self.tokens * kept + tokens as f64;
        self.seconds = self.seconds * kept + passed;
        self.since = (!empty).then_some(now);
    }

    /// Nobody waits: who did has left unserved.
    pub fn emptied(&mut self) {
        self.since = None;
    }

    /// Tokens a second, where `prior` is what the replicas should do.
    pub fn per_s(&self, prior: f64, now: At) -> f64 {
        let still = self.since.map_or(0.0, |since| (now - since).as_secs_f64().max(0.0));
        (self.tokens + prior * PRIOR_S) / (self.seconds + still + PRIOR_S)
    }
}
