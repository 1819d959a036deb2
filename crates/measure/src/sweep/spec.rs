//! The specification of a sweep, and the levels that a sweep requests.

use plimsoll_model::{Load, Span};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::LineSpec;
use crate::findings::BudgetSpec;

/// The specification of a sweep: traffic, time and limits.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct SweepSpec {
    /// Kinds of traffic, searched in sequence.
    pub traffic: Vec<String>,
    /// Total time including sustained levels, in ns.
    pub time: Span,
    /// Duration of the level at a found limit, in ns; zero for no such level.
    pub hold: Span,
    /// Multiple of the zero-contention value that marks the onset.
    pub knee_factor: f64,
    /// Percentile for the onset, if the time supports it: 0.99, 0.95, 0.9 or 0.5.
    pub percentile: f64,
    /// Budget whose limit is searched; `null` for no budget limit.
    pub budget: Option<BudgetSpec>,
    /// Set if most of the time is for proving the budget limit and not for the onset.
    pub proves_budget: bool,
    /// Think time of a user between a response and the next request in seconds, for the number of users.
    pub think_time_s: f64,
    /// Desired completions of a level near the limit, if the time allows.
    pub completions: u64,
    /// Relative width of the onset's interval at which its search ends.
    pub narrow: f64,
    /// Maximum offered rate in requests per second; `null` for no limit.
    pub max_rate: Option<f64>,
    /// Maximum number of requests in total; `null` for no limit.
    pub max_requests: Option<u64>,
    /// Maximum number of failed requests before the search ends; `null` for no limit.
    pub max_errors: Option<u64>,
    /// Maximum concurrency of the closed-loop levels.
    pub max_concurrency: u32,
    /// Seed of the order of levels and of the bootstrap.
    pub seed: u64,
}

impl Default for SweepSpec {
    fn default() -> SweepSpec {
        SweepSpec {
            traffic: vec!["steady".into()],
            time: Span::from_secs(900),
            hold: Span::ZERO,
            knee_factor: 1.5,
            percentile: 0.99,
            budget: Some(BudgetSpec::default()),
            proves_budget: false,
            think_time_s: 10.0,
            completions: 20_000,
            narrow: 0.06,
            max_rate: None,
            max_requests: None,
            max_errors: None,
            max_concurrency: 1024,
            seed: 1,
        }
    }
}

impl SweepSpec {
    /// Checks the specification.
    ///
    /// # Errors
    /// Fails if a field is invalid; the error contains the first invalid field.
    pub fn check(&self) -> Result<(), SweepError> {
        let refuse = |field: &'static str, want: &'static str| Err(SweepError { field, want });
        if self.traffic.is_empty() {
            return refuse("traffic", "at least one kind");
        }
        if self.time <= Span::ZERO {
            return refuse("time", "longer than nothing");
        }
        if self.hold < Span::ZERO || self.hold.0.saturating_mul(self.traffic.len() as i64) >= self.time.0 {
            return refuse("hold", "shorter, over all kinds of traffic, than the time of the sweep");
        }
        if !(self.knee_factor > 1.0 && self.knee_factor.is_finite()) {
            return refuse("knee_factor", "a number over 1");
        }
        if ![0.99, 0.95, 0.9, 0.5].iter().any(|p| (self.percentile - p).abs() < 1e-9) {
            return refuse("percentile", "0.99, 0.95, 0.9 or 0.5");
        }
        if !(self.think_time_s >= 0.0 && self.think_time_s.is_finite()) {
            return refuse("think_time_s", "a number from 0");
        }
        if !(self.narrow > 0.0 && self.narrow < 1.0) {
            return refuse("narrow", "a share between 0 and 1");
        }
        if self.max_rate.is_some_and(|rate| rate <= 0.0 || rate.is_nan()) {
            return refuse("max_rate", "a number over 0");
        }
        if self.max_requests == Some(0) {
            return refuse("max_requests", "at least 1");
        }
        if self.completions == 0 || self.max_concurrency == 0 {
            return refuse("completions, max_concurrency", "at least 1");
        }
        Ok(())
    }
}

impl SweepSpec {
    /// Returns the settings of the capacity limits of this sweep, with this many bootstrap replicates.
    pub fn line_spec(&self, replicates: usize) -> LineSpec {
        super::line_spec(self, replicates)
    }
}

/// The error of an invalid field of a [`SweepSpec`].
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("sweep.{field}: want {want}")]
pub struct SweepError {
    pub field: &'static str,
    /// Accepted values, as a phrase.
    pub want: &'static str,
}

/// A level that a sweep requests.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct SweepLevel {
    /// Kind of traffic, such as `steady` or `burst`.
    pub traffic: String,
    /// Purpose: `baseline`, `idle`, `ladder`, `curve`, `bisect`, `overload`, `place`, `prove`, `hold`.
    pub purpose: String,
    /// Offered load of the level, open or closed.
    pub load: Load,
    /// Duration of the arrivals in ns.
    pub window: Span,
    /// Maximum number of requests: the rest of the sweep's maximum; `null` for no limit.
    pub max_requests: Option<u64>,
    /// Maximum rate of a closed loop in requests per second, which adds pauses; `null` for no limit.
    pub max_rate_per_s: Option<f64>,
}

/// The next step of a sweep.
#[derive(Clone, PartialEq, Debug)]
pub enum SweepNext {
    /// Run this level, drain, and pass the records to `observe`.
    Run(SweepLevel),
    Done {
        why: String,
    },
}

#[derive(Clone, PartialEq, Debug)]
pub struct SweepProgress {
    /// Elapsed time in seconds, including drains.
    pub spent_s: f64,
    pub time_s: f64,
    pub levels: usize,
    pub requests: u64,
    /// Current phase, in a few words.
    pub phase: String,
}
