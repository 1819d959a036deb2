//! The words of a fit: what it is told, what it says, and why there may be none.

use plimsoll_model::{Attempt, Level, Sample};
use plimsoll_sim::catalogue::origin::LoadRange;
use plimsoll_sim::{EngineSpec, SpecError, WorldSpec};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::spec::Band;

/// A measured run, as a fit reads it.
#[derive(Copy, Clone, Debug)]
pub struct FittedRun<'a> {
    pub levels: &'a [Level],
    pub attempts: &'a [Attempt],
    /// What was scraped beside them; may be empty.
    pub samples: &'a [Sample],
}

/// What a person says of the target because no run at low load can.
#[derive(Clone, PartialEq, Default, Debug)]
pub struct StatedTarget {
    /// Most sequences that run at once on a replica (vLLM: `max_num_seqs`); of an endpoint without tokens, its servers.
    pub slots: Option<u32>,
    /// KV blocks of 16 tokens of a replica.
    pub kv_blocks: Option<u32>,
    /// Most tokens computed in a step (vLLM: `max_num_batched_tokens`).
    pub token_budget: Option<u32>,
    /// Largest batch of an endpoint that computes whole requests together; `None` = it computes each alone.
    pub max_batch: Option<u32>,
    /// Replicas behind the address.
    pub replicas: Option<u32>,
    /// The level to fit to; `None` = all that were measured well enough.
    pub level: Option<u32>,
    /// Seed of everything drawn.
    pub seed: u64,
}

/// Where a setting of the fitted engine comes from.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum From {
    /// Fitted to the requests' times.
    Fitted,
    /// The server's own page says it.
    Page,
    /// A person said it.
    Told,
    /// Nobody said it and this load does not show it.
    Assumed,
}

/// One setting of the fitted engine.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Setting {
    /// Its name in the engine's file: `base_us`, `max_seqs`, …
    pub name: String,
    /// Its value.
    pub value: f64,
    /// Standard error, by leaving out a sixth of the run in turn; of fitted ones only.
    pub error: Option<f64>,
    /// Where it comes from.
    pub from: From,
    /// What to know: a bound that the run shows, and what to say to have it known.
    pub note: Option<String>,
}

/// How far the fitted engine was from requests that the fit did not see, for one figure.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Residual {
    /// `ttft`, `tpot` or `e2e`.
    pub metric: String,
    /// Which percentile, 0 to 1; `None` = the mean.
    pub percentile: Option<f64>,
    /// As measured over all stretches held out, s.
    pub measured_s: f64,
    /// As simulated over the same requests, s.
    pub simulated_s: f64,
    /// Requests.
    pub requests: u64,
}

impl Residual {
    /// simulated / measured − 1.
    pub fn off(&self) -> f64 {
        self.simulated_s / self.measured_s - 1.0
    }
}

/// An engine that answers as the target did.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Fitted {
    /// The engine of one replica; as a file, it is what `simulate --engine` takes.
    pub engine: EngineSpec,
    /// That engine with the replicas that the run had.
    pub world: WorldSpec,
    /// Every setting with its origin.
    pub settings: Vec<Setting>,
    /// Engines that would have answered nearly as well: the settings are known no better than these differ.
    pub others: Vec<EngineSpec>,
    /// How far it was from stretches of the run that the fit did not see.
    pub band: Band,
    /// The same per figure.
    pub residuals: Vec<Residual>,
    /// Loads that it was fitted to, means of the levels.
    pub range: LoadRange,
    /// Most requests in flight at once that the run had.
    pub most_in_flight: u32,
    /// Requests it was fitted to and held against.
    pub requests: u64,
    /// What to know before relying on it.
    pub notes: Vec<String>,
}

/// Why there is no engine.
#[derive(Clone, PartialEq, Debug, Error)]
pub enum FitError {
    /// Nothing that was finished, or too little.
    #[error(
        "{found} answered requests are too few to fit an engine: {needed} or more are needed; measure longer"
    )]
    TooFew {
        /// Requests there are.
        found: usize,
        /// Requests it takes.
        needed: usize,
    },
    /// More failed than an engine that answers everything can stand for.
    #[error(
        "{percent:.0} % of the requests failed: an engine fitted to the others would promise what the target does not do"
    )]
    Failing {
        /// Share, percent.
        percent: f64,
    },
    /// How the step grows with its batch can't be told from this load.
    #[error(
        "how a step grows with the requests in it is unknown: {why}; measure at several loads (--rate LOW, then HIGHER, or a sweep)"
    )]
    OneConcurrency {
        /// What was seen, in a sentence part.
        why: String,
    },
    /// The best engine does not answer as the target did.
    #[error(
        "no engine of this kind answers as the target did: {metric} {figure} is {off:+.0} % off on the stretches held out (up to ±{limit:.0} % is fitted); {hint}"
    )]
    Unlike {
        /// `ttft`, `tpot` or `e2e`.
        metric: String,
        /// `mean`, `p50`, …
        figure: String,
        /// simulated / measured − 1, percent.
        off: f64,
        /// What would be accepted, percent.
        limit: f64,
        /// What may be the matter.
        hint: String,
    },
    /// Something has to be said first.
    #[error("{0}")]
    Ask(String),
    /// The engine can't be simulated.
    #[error("{0}")]
    Simulation(String),
    /// Settings that make no engine.
    #[error(transparent)]
    Engine(#[from] SpecError),
}
