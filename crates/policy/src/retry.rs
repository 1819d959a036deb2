//! Retry budget of a pool: requests fill it and retries empty it.
//!
//! A limit per request lost, because it multiplies load in an overload. With five attempts each, a pool that rejects
//! gets five times the requests. A budget limits the sum (Finagle's `RetryBudget`): a tenth of the requests, plus a
//! few per second so that an idle pool can retry.

use std::collections::HashMap;

use plimsoll_model::{At, Span};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::setting::SettingError;

/// Settings of retries and of their budget.
#[derive(Copy, Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(rename = "RetrySpec")]
pub struct RetryBudgetSpec {
    /// Limit on the retries of one request; 0 disables retries [default: 2].
    pub most: u32,
    /// Retry budget as a share of requests, from 0 to 1 [default: 0.1].
    pub share: f64,
    /// Additional retries per s, independent of the requests [default: 3].
    pub reserve_per_s: f64,
}

impl Default for RetryBudgetSpec {
    fn default() -> RetryBudgetSpec {
        RetryBudgetSpec { most: 2, share: 0.1, reserve_per_s: 3.0 }
    }
}

impl RetryBudgetSpec {
    /// Checks the rules that the types cannot express.
    ///
    /// # Errors
    /// Fails if a number is out of range.
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

/// Saving period of the retry budget, in s and in requests.
const KEPT: (f64, f64) = (10.0, 100.0);

/// A budget that earns a share of an inflow and saves it for a limited period.
#[derive(Copy, Clone, PartialEq, Debug)]
pub(crate) struct BudgetReserve {
    share: f64,
    /// Saving period in s, or in requests if they take longer, so that slow traffic can save too.
    kept: (f64, f64),
    left: f64,
    /// Recent inflow per s and per request.
    per_s: f64,
    per_request: f64,
    at: At,
}

impl BudgetReserve {
    /// Returns an empty budget. `share` is the earned share of the inflow; `kept` is the saving period in s and in
    /// requests.
    pub fn new(share: f64, kept: (f64, f64), now: At) -> BudgetReserve {
        BudgetReserve { share, kept, left: 0.0, per_s: 0.0, per_request: 0.0, at: now }
    }

    /// Adds the inflow of a request.
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

    /// Spends an amount if available, and returns whether it was.
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

/// Returns the capacity of the reserve: 2 s, which covers the failures until a breaker ejects a replica. It is at
/// least one retry, so that half a retry per s permits one every 2 s.
fn reserve(spec: &RetryBudgetSpec) -> f64 {
    if spec.reserve_per_s > 0.0 { (2.0 * spec.reserve_per_s).max(1.0) } else { 0.0 }
}

#[derive(Clone, PartialEq, Debug)]
pub struct RetryBudget {
    spec: RetryBudgetSpec,
    /// Retries earned by requests.
    earned: BudgetReserve,
    /// Retries in the reserve, as of `at`.
    reserve: f64,
    at: At,
}

impl RetryBudget {
    pub fn new(spec: &RetryBudgetSpec, now: At) -> RetryBudget {
        RetryBudget {
            spec: *spec,
            earned: BudgetReserve::new(spec.share, KEPT, now),
            reserve: reserve(spec),
            at: now,
        }
    }

    pub fn request(&mut self, now: At) {
        self.earned.earn(1.0, now);
    }

    /// Takes a retry from the budget if available, and returns whether it was.
    pub fn take(&mut self, now: At) -> bool {
        let passed = (now - self.at).as_secs_f64().max(0.0);
        self.at = self.at.max(now);
        self.reserve = (self.reserve + passed * self.spec.reserve_per_s).min(reserve(&self.spec));
        // The reserve is spent first, because its unused refill is lost.
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

/// Limit on the replicas that a request may crash.
const MOST_BROKEN: u32 = 2;
/// Memory of a request that broke a connection: with a dead process, and with a living one.
const DIED: Span = Span::from_secs(600);
const BROKE: Span = Span::from_secs(3);
const REMEMBERED: usize = 4096;

/// The requests during which replicas broke the connection, by the hash of their content. A prompt that crashes an
/// engine crashes the next one too, and its client retries.
#[derive(Clone, Debug, Default)]
pub struct Breaks {
    each: HashMap<u64, (u32, At)>,
}

impl Breaks {
    /// Records that a replica broke the connection during a request. `died` is set if its process is dead. Returns
    /// whether another replica may get the request.
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

    pub fn is_empty(&self) -> bool {
        self.each.is_empty()
    }
}
