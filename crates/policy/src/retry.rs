//! How many second tries a pool may make: a budget that requests fill and retries empty.
//!
//! A limit per request multiplies load exactly when there is too much of it: with five tries each, a pool that refuses gets five times the
//! requests. A budget bounds the sum instead (Finagle's `RetryBudget`): a tenth of the requests, and a few a second so that a quiet pool may
//! retry at all.

use std::collections::HashMap;

use plimsoll_model::{At, Span};
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

/// Retries are saved up for ten seconds, or a hundred requests.
const KEPT: (f64, f64) = (10.0, 100.0);

/// A share of what requests bring, saved up for a while.
#[derive(Copy, Clone, PartialEq, Debug)]
pub(crate) struct Savings {
    share: f64,
    /// For how long, and for how many requests where so many take longer: a slow trickle can save up too.
    kept: (f64, f64),
    left: f64,
    /// What comes a second of late, and with one request.
    per_s: f64,
    per_request: f64,
    at: At,
}

impl Savings {
    /// Nothing saved yet. `share`: of what comes; `kept`: seconds of it, or requests'.
    pub fn new(share: f64, kept: (f64, f64), now: At) -> Savings {
        Savings { share, kept, left: 0.0, per_s: 0.0, per_request: 0.0, at: now }
    }

    /// A request brings so much.
    pub(crate) fn earn(&mut self, amount: f64, now: At) {
        let passed = (now - self.at).as_secs_f64().max(0.0);
        self.at = self.at.max(now);
        let (kept_s, requests) = self.kept;
        self.per_s = self.per_s * (-passed / kept_s).exp() + amount / kept_s;
        let known = if self.per_request > 0.0 { self.per_request } else { amount };
        self.per_request = known + (amount - known) / requests;
        let most = self.share * (self.per_s * kept_s).max(self.per_request * requests);
        self.left = (self.left + self.share * amount).min(most);
    }

    /// Spends as much, if it is there.
    pub fn take(&mut self, amount: f64) -> bool {
        let is_there = self.left >= amount;
        if is_there {
            self.left -= amount;
        }
        is_there
    }

    pub fn left(&self) -> f64 {
        self.left
    }
}

/// Two seconds' worth: enough for the failures by which a breaker comes to know that a replica is broken. Never less than one retry: half a
/// retry a second allows one every two seconds.
fn reserve(spec: &RetrySpec) -> f64 {
    if spec.reserve_per_s > 0.0 { (2.0 * spec.reserve_per_s).max(1.0) } else { 0.0 }
}

#[derive(Clone, PartialEq, Debug)]
pub struct RetryBudget {
    spec: RetrySpec,
    /// Retries that requests have paid for.
    earned: Savings,
    /// Retries that are allowed besides, as of `at`.
    reserve: f64,
    at: At,
}

impl RetryBudget {
    pub fn new(spec: &RetrySpec, now: At) -> RetryBudget {
        RetryBudget {
            spec: *spec,
            earned: Savings::new(spec.share, KEPT, now),
            reserve: reserve(spec),
            at: now,
        }
    }

    pub fn request(&mut self, now: At) {
        self.earned.earn(1.0, now);
    }

    /// Takes a retry out of the budget, if there is one in it.
    pub fn take(&mut self, now: At) -> bool {
        let passed = (now - self.at).as_secs_f64().max(0.0);
        self.at = self.at.max(now);
        self.reserve = (self.reserve + passed * self.spec.reserve_per_s).min(reserve(&self.spec));
        // What the reserve gives is lost when it is not used: it goes first.
        if self.reserve >= 1.0 {
            self.reserve -= 1.0;
            return true;
        }
        self.earned.take(1.0)
    }

    pub fn left(&self) -> f64 {
        self.reserve + self.earned.left()
    }
}

/// Replicas that a request may break.
const MOST_BROKEN: u32 = 2;
/// How long it is remembered that a request broke a replica: whose process died, and whose process did not.
const DIED: Span = Span::from_secs(600);
const BROKE: Span = Span::from_secs(3);
const REMEMBERED: usize = 4096;

/// Requests at which replicas broke off, by a hash of what they ask: a prompt that kills an engine kills the next one too, and its client asks again.
#[derive(Clone, Debug, Default)]
pub struct Breaks {
    each: HashMap<u64, (u32, At)>,
}

impl Breaks {
    /// A replica broke off at this request after it was sent; `died`: its process is gone. Returns whether the request may be sent to another one.
    pub fn broke(&mut self, request: u64, died: bool, now: At) -> bool {
        self.each.retain(|_, (_, until)| *until > now);
        if self.each.len() >= REMEMBERED && !self.each.contains_key(&request) {
            let oldest = self.each.iter().min_by_key(|(_, (_, until))| *until).map(|(request, _)| *request);
            oldest.and_then(|oldest| self.each.remove(&oldest));
        }
        let (broken, until) = self.each.entry(request).or_insert((0, now));
        *broken += 1;
        *until = (*until).max(now + if died { DIED } else { BROKE });
        *broken < MOST_BROKEN
    }

    pub fn may_send(&self, request: u64, now: At) -> bool {
        self.each.get(&request).is_none_or(|(broken, until)| *broken < MOST_BROKEN || *until <= now)
    }

    pub fn answered(&mut self, request: u64) {
        self.each.remove(&request);
    }

    /// Is none remembered?
    pub fn is_empty(&self) -> bool {
        self.each.is_empty()
    }
}
