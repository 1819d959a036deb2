//! Rate limits of a key: token buckets for requests and tokens.
//!
//! A request larger than the whole bucket is admitted at a full bucket and leaves a debt. Rejecting it permanently
//! lost, because that would be a size limit. Unused charges are refunded. The `governor` crate lost, because it reads
//! its own clock, which prevents stepped time, and supports neither debts nor refunds.

use plimsoll_model::{At, Span};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::setting::SettingError;

/// Rate limits in requests and tokens per minute.
#[derive(Copy, Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct RateSpec {
    /// Requests per minute [default: no limit].
    pub requests_per_min: Option<f64>,
    /// Prompt and output tokens per minute [default: no limit].
    pub tokens_per_min: Option<f64>,
    /// Burst capacity in s of the rate [default: 10].
    pub burst_s: f64,
}

impl Default for RateSpec {
    fn default() -> RateSpec {
        RateSpec { requests_per_min: None, tokens_per_min: None, burst_s: 10.0 }
    }
}

impl RateSpec {
    /// Checks the rules that the types cannot express.
    ///
    /// # Errors
    /// Fails if a number is out of range.
    pub fn validate(&self, name: &str) -> Result<(), SettingError> {
        let wrong = |key, value: f64, want| {
            Err(SettingError::Value { name: name.to_owned(), key, value: value.to_string(), want })
        };
        for (key, value) in
            [("requests_per_min", self.requests_per_min), ("tokens_per_min", self.tokens_per_min)]
        {
            match value {
                Some(value) if !(1e-3..=1e12).contains(&value) => {
                    return wrong(key, value, "a number above 0; leave it out for no limit");
                }
                _ => {}
            }
        }
        match (0.1..=3600.0).contains(&self.burst_s) {
            true => Ok(()),
            false => wrong("burst_s", self.burst_s, "seconds from 0.1 to 3600"),
        }
    }
}

/// The state of a key's rate limits.
#[derive(Clone, PartialEq, Debug)]
pub struct RateLimit {
    spec: RateSpec,
    requests: f64,
    tokens: f64,
    at: At,
}

/// Returns the refill rate per s and the capacity of a bucket.
fn bucket(per_min: Option<f64>, burst_s: f64, least: f64) -> (f64, f64) {
    let per_s = per_min.unwrap_or(0.0) / 60.0;
    (per_s, (per_s * burst_s).max(least))
}

impl RateLimit {
    pub fn new(spec: &RateSpec, now: At) -> RateLimit {
        let mut limit = RateLimit { spec: *spec, requests: 0.0, tokens: 0.0, at: now };
        limit.requests = limit.of_requests().1;
        limit.tokens = limit.of_tokens().1;
        limit
    }

    /// Changes the limits; what was used stays used.
    pub fn change(&mut self, spec: &RateSpec, now: At) {
        if self.spec == *spec {
            return;
        }
        self.pass(now);
        let (requests, tokens) = (self.of_requests(), self.of_tokens());
        let was = self.spec;
        self.spec = *spec;
        // The new bucket has the fill level of the old one in percent. A bucket without an earlier limit starts full.
        let carry = |had: Option<f64>, left: f64, old: (f64, f64), new: (f64, f64)| match had {
            Some(_) => left / old.1 * new.1,
            None => new.1,
        };
        self.requests = carry(was.requests_per_min, self.requests, requests, self.of_requests());
        self.tokens = carry(was.tokens_per_min, self.tokens, tokens, self.of_tokens());
    }

    /// Charges a request with this many tokens.
    ///
    /// # Errors
    /// Fails with the time to wait if the limit is exceeded.
    pub fn take(&mut self, tokens: u64, now: At) -> Result<(), Span> {
        self.pass(now);
        let wait = |has: f64, needs: f64, per_s: f64| ((needs - has) / per_s).max(0.0);
        let mut seconds = 0.0f64;
        if self.spec.requests_per_min.is_some() {
            seconds = seconds.max(wait(self.requests, 1.0, self.of_requests().0));
        }
        if self.spec.tokens_per_min.is_some() {
            let (per_s, most) = self.of_tokens();
            seconds = seconds.max(wait(self.tokens, (tokens as f64).min(most), per_s));
        }
        // Shorter waits are rounding errors, because time is counted in nanoseconds.
        if seconds >= 1e-9 {
            return Err(Span::from_secs_f64(seconds.min(86_400.0)));
        }
        self.requests -= 1.0;
        self.tokens -= tokens as f64;
        Ok(())
    }

    /// Corrects the charge of a request that was charged `taken` tokens and used `used`: refunds or charges the difference.
    pub fn settle(&mut self, taken: u64, used: u64, now: At) {
        self.pass(now);
        self.tokens = (self.tokens + taken as f64 - used as f64).min(self.of_tokens().1);
    }

    fn of_requests(&self) -> (f64, f64) {
        bucket(self.spec.requests_per_min, self.spec.burst_s, 1.0)
    }

    fn of_tokens(&self) -> (f64, f64) {
        bucket(self.spec.tokens_per_min, self.spec.burst_s, 1.0)
    }

    fn pass(&mut self, now: At) {
        let passed = (now - self.at).as_secs_f64().max(0.0);
        self.at = self.at.max(now);
        let fill = |has: f64, (per_s, most): (f64, f64)| (has + per_s * passed).min(most);
        self.requests = fill(self.requests, self.of_requests());
        self.tokens = fill(self.tokens, self.of_tokens());
    }
}
