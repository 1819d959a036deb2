//! Input, result and error types of a fit.

use plimsoll_model::{Attempt, Level, Sample};
use plimsoll_sim::catalogue::origin::LoadRange;
use plimsoll_sim::{EngineSpec, SimSpecError, WorldSpec};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::spec::PredictionBand;

/// A measured run as input of a fit.
#[derive(Copy, Clone, Debug)]
pub struct FittedRun<'a> {
    pub levels: &'a [Level],
    pub attempts: &'a [Attempt],
    /// Metrics scraped during the run; may be empty.
    pub samples: &'a [Sample],
}

/// Settings of the target that the user states, because a run at low load does not reveal them.
#[derive(Clone, PartialEq, Default, Debug)]
pub struct StatedTarget {
    /// Maximum concurrent sequences of a replica (vLLM: `max_num_seqs`); for an endpoint without tokens, its servers.
    pub slots: Option<u32>,
    /// KV blocks of 16 tokens of a replica.
    pub kv_blocks: Option<u32>,
    /// Maximum tokens computed in a step (vLLM: `max_num_batched_tokens`).
    pub token_budget: Option<u32>,
    /// Largest batch of an endpoint that computes whole requests together; `None` if it computes each request separately.
    pub max_batch: Option<u32>,
    /// Replicas behind the address.
    pub replicas: Option<u32>,
    /// Level to fit; `None` for all levels with a good measurement.
    pub level: Option<u32>,
    pub seed: u64,
}

/// The origin of a setting of the fitted engine.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "From")]
pub enum SettingOrigin {
    /// Fitted to the times of the requests.
    Fitted,
    /// Reported by the server's metrics endpoint.
    Page,
    /// Stated by the user, not measured.
    Told,
    /// Assumed, because it is neither stated nor visible at this load.
    Assumed,
}

/// A setting of the fitted engine.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Setting {
    /// Name in the engine file: `base_us`, `max_seqs`, …
    pub name: String,
    /// Value in the unit of its name.
    pub value: f64,
    /// Standard error, by leaving out a sixth of the run in turn; null unless the setting was fitted.
    pub error: Option<f64>,
    /// Origin of the value.
    pub from: SettingOrigin,
    /// Bound that the run shows, and the flag that states the setting; null without a note.
    pub note: Option<String>,
}

/// The error of the fitted engine on held-out requests, for one figure.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Residual {
    /// Metric: `ttft`, `tpot` or `e2e`.
    pub metric: String,
    /// Percentile, 0 to 1; null for the mean.
    pub percentile: Option<f64>,
    /// Measured value over all held-out intervals, s.
    pub measured_s: f64,
    /// Simulated value over the same requests, s.
    pub simulated_s: f64,
    /// Number of requests behind the figure.
    pub requests: u64,
}

impl Residual {
    /// Returns the relative error: simulated / measured − 1.
    pub fn off(&self) -> f64 {
        self.simulated_s / self.measured_s - 1.0
    }
}

/// An engine fitted to the target's responses.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Fitted")]
pub struct FittedEngine {
    /// Engine of one replica; as a file, it is the input of `simulate --engine`.
    pub engine: EngineSpec,
    /// Engine with the replicas of the run.
    pub world: WorldSpec,
    /// Settings of the engine with their origin.
    pub settings: Vec<Setting>,
    /// Engines that fit nearly as well; their differences are the uncertainty of the settings.
    pub others: Vec<EngineSpec>,
    /// Errors on held-out intervals of the run.
    pub band: PredictionBand,
    /// Errors of the fit, one per figure.
    pub residuals: Vec<Residual>,
    /// Range of the fitted loads, means of the levels.
    pub range: LoadRange,
    /// Maximum requests in flight of the run.
    pub most_in_flight: u32,
    /// Requests used for the fit and its comparison.
    pub requests: u64,
    /// Notes for the user of the engine.
    pub notes: Vec<String>,
}

#[derive(Clone, PartialEq, Debug, Error)]
pub enum FitError {
    /// The run has too few answered requests.
    #[error(
        "{found} answered requests are too few to fit an engine: {needed} or more are needed; measure longer"
    )]
    TooFew {
        found: usize,
        /// Minimum number of answered requests for a fit.
        needed: usize,
    },
    /// Too many requests failed for a representative engine.
    #[error(
        "{percent:.0} % of the requests failed: an engine fitted to the others would be better than the target; fix the failures first"
    )]
    Failing {
        /// Share of the requests that failed, in percent.
        percent: f64,
    },
    /// This load does not determine the growth of a step with its batch.
    #[error(
        "how a step grows with the requests in it is unknown: {why}; measure at several loads (--rate LOW, then HIGHER, or a sweep)"
    )]
    OneConcurrency {
        /// Observed concurrency, as a phrase.
        why: String,
    },
    /// The best engine does not reproduce the target.
    #[error(
        "no engine of this kind answers as the target did: {metric} {figure} is {off:+.0} % off on the held-out intervals (up to ±{limit:.0} % is fitted); {hint}"
    )]
    Unlike {
        metric: String,
        figure: String,
        /// simulated / measured − 1, percent.
        off: f64,
        limit: f64,
        hint: String,
    },
    /// A required setting is missing; the text names it.
    #[error("{0}")]
    Ask(String),
    #[error("{0}")]
    Simulation(String),
    /// The settings are invalid for an engine.
    #[error(transparent)]
    Engine(#[from] SimSpecError),
}
