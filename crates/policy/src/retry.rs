//! How many second tries a pool may make: a budget that requests fill and retries empty.
//!
//! A limit per request multiplies load exactly when there is too much of it: with five tries each, a pool that refuses gets five times the
//! requests. A budget bounds the sum instead (Finagle's `RetryBudget`): a tenth of the requests, and a few a second so that a quiet pool may
//! retry at all.

use plimsoll_model::At;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::setting::SettingError;

/// How much may be retried.
#[derive(Copy, Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct RetrySpec {
    /// Most second tries of one request; 0 = none.
    pub most: u32,
    /// Retries as a share of requests.
    pub share: f64,
    /// Retries a second that are allowed besides.
    pub reserve_per_s: f64,
}

impl Default for RetrySpec {
    fn default() -> RetrySpec {
        RetrySpec { most: 2, share: 0.1, reserve_per_s: 3.0 }
    }
}

impl RetrySpec {
    /// Checks everything that the types can't.
    ///
    /// # Errors
    /// A number is outside what its field means.
    pub fn validate(&self) -> Result<(), SettingError> {
        let range = |key, value: f64, most: f64, want| match (0.0..=most).contains(&value) {
            true => Ok(()),
            false => {
                Err(SettingError::Value { name: "retry".to_owned(), key, value: value.to_string(), want })
            }
        };
        range("share", self.share, 1.0, "a share from 0 to 1, such as 0.1")?;
        range("reserve_per_s", self.reserve_per_s, 1e6, "a number from 0, such as 3")
    }
}

/// Seconds of income that are kept at most.
const KEPT_S: f64 = 10.0;
/// Income by requests is kept for this many requests at least, so that a slow trickle can save up for one retry.
const KEPT_REQUESTS: f64 = 100.0;

/// Two seconds' worth: enough for the failures by which a breaker comes to know that a replica is broken. Never less than one retry: half a
/// retry a second allows one every two seconds.
fn reserve(spec: &RetrySpec) -> f64 {
    if spec.reserve_per_s > 0.0 { (2.0 * spec.reserve_per_s).max(1.0) } else { 0.0 }
}

/// See the module.
#[derive(Clone, PartialEq, Debug)]
pub struct RetryBudget {
    spec: RetrySpec,
    /// Retries that requests have paid for, and that the reserve allows.
    earned: f64,
    reserve: f64,
    /// Requests a second of late: what ten seconds' income is reckoned from.
    per_s: f64,
    at: At,
}

impl RetryBudget {
    /// One with its reserve full.
    pub fn new(spec: &RetrySpec, now: At) -> RetryBudget {
        RetryBudget { spec: *spec, earned: 0.0, reserve: reserve(spec), per_s: 0.0, at: now }
    }

    /// A request came.
    pub fn request(&mut self, now: At) {
        self.pass(now);
        self.per_s += 1.0 / KEPT_S;
        let most = self.spec.share * (self.per_s * KEPT_S).max(KEPT_REQUESTS);
        self.earned = (self.earned + self.spec.share).min(most);
    }

    /// Takes a retry out of the budget, if there is one in it.
    pub fn take(&mut self, now: At) -> bool {
        self.pass(now);
        // What the reserve gives is lost when it is not used: it goes first.
        for purse in [&mut self.reserve, &mut self.earned] {
            if *purse >= 1.0 {
                *purse -= 1.0;
                return true;
            }
        }
        false
    }

    /// Retries that are left.
    pub fn left(&self) -> f64 {
        self.reserve + self.earned
    }

    fn pass(&mut self, now: At) {
        let passed = (now - self.at).as_secs_f64().max(0.0);
        self.at = self.at.max(now);
        self.per_s *= (-passed / KEPT_S).exp();
        self.reserve = (self.reserve + passed * self.spec.reserve_per_s).min(reserve(&self.spec));
    }
}
