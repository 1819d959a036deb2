//! What a sweep is asked for, and what it asks for in turn.

use plimsoll_model::{Load, Span};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::LineSpec;
use crate::findings::BudgetSpec;

/// What a sweep is asked for.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct SweepSpec {
    /// Kinds of traffic, searched one after the other.
    pub traffic: Vec<String>,
    /// Time for all of it, holds included, ns.
    pub time: Span,
    /// How long a found line is held, ns; zero = not at all.
    pub hold: Span,
    /// Times the zero-contention value that marks the onset.
    pub knee_factor: f64,
    /// Percentile that the onset is read from, if the time supports it: 0.99, 0.95, 0.9 or 0.5.
    pub percentile: f64,
    /// The budget whose line is looked for; `None` = no budget line.
    pub budget: Option<BudgetSpec>,
    /// Whether most of the time proves the budget line, not the onset.
    pub proves_budget: bool,
    /// Time a person takes between an answer and the next request, s: for the users figure.
    pub think_time_s: f64,
    /// Completions wanted on a level near the limit, if the time allows.
    pub completions: u64,
    /// Width of the onset's interval, as a share of the onset, at which the search for it ends.
    pub narrow: f64,
    /// Highest rate offered, requests/s.
    pub max_rate: Option<f64>,
    /// Most requests sent in all.
    pub max_requests: Option<u64>,
    /// Most requests that may fail in all before the search ends.
    pub max_errors: Option<u64>,
    /// Highest concurrency of the closed-loop ladder.
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
    /// The first thing in it that makes no sense, as one line.
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
    /// How the lines of this sweep are read, with so many redraws of the bootstrap.
    pub fn line_spec(&self, replicates: usize) -> LineSpec {
        super::line_spec(self, replicates)
    }
}

/// A field of a [`SweepSpec`] that makes no sense.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("sweep.{field}: want {want}")]
pub struct SweepError {
    /// The field.
    pub field: &'static str,
    /// What would be accepted.
    pub want: &'static str,
}

/// One level that a sweep asks for.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct SweepLevel {
    /// Kind of traffic.
    pub traffic: String,
    /// Purpose: `baseline`, `idle`, `ladder`, `curve`, `bisect`, `overload`, `place`, `prove`, `hold`.
    pub purpose: String,
    /// The load.
    pub load: Load,
    /// How long arrivals fall.
    pub window: Span,
    /// Most requests it may send: what is left of the sweep's own ceiling.
    pub max_requests: Option<u64>,
    /// The rate that a closed loop is held to, requests/s: how it is made to pause.
    pub max_rate_per_s: Option<f64>,
}

/// What is to be done next.
#[derive(Clone, PartialEq, Debug)]
pub enum SweepNext {
    /// Run this level, drain, and hand the records to `observe`.
    Run(SweepLevel),
    /// The sweep is over.
    Done {
        /// Why, as a sentence part.
        why: String,
    },
}

/// How far a sweep is.
#[derive(Clone, PartialEq, Debug)]
pub struct SweepProgress {
    /// Measured so far, s, drains included.
    pub spent_s: f64,
    /// Time of the whole, s.
    pub time_s: f64,
    /// Levels measured.
    pub levels: usize,
    /// Requests sent.
    pub requests: u64,
    /// What it is at: a word or two.
    pub phase: String,
}
