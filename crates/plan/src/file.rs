//! The plan file: the finding of a plan, and the input needed to compare a run with it later.

use plimsoll_sim::WorldSpec;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::finding::PlanFinding;
use super::spec::{EffortSpec, PlanSpec, PredictionBand};
use plimsoll_judge::cost::PriceSpec;

pub const PLAN_VERSION: u32 = 1;

/// A plan as a file.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct PlanFile {
    /// Version of the layout of the file: 1.
    pub plan_version: u32,
    /// Finding of the plan.
    #[serde(flatten)]
    pub finding: PlanFinding,
    /// Input of the plan.
    pub asked: PlanInputs,
}

/// The input of a plan that its finding does not contain.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "AskedPlan")]
pub struct PlanInputs {
    /// Shape of the arrivals, lengths and prompts: a scenario.
    pub scenario: Value,
    /// Seconds of arrivals in one simulation at the mean rate.
    pub window_s: f64,
    /// Description of the simulated replica, router and clients.
    pub world: WorldSpec,
    /// GPUs of one replica; null if unknown.
    pub gpus_per_replica: Option<u32>,
    /// Price; null if not given.
    pub price: Option<PriceSpec>,
    /// Limits of the simulation effort, as numbers of schedules.
    pub effort: EffortSpec,
    /// Differences of earlier predictions from measurements; null if unknown.
    pub band: Option<PredictionBand>,
    /// Seed of all random draws.
    pub seed: u64,
}

impl PlanFile {
    /// Returns the file of a plan and its input.
    pub fn new(spec: &PlanSpec, finding: PlanFinding) -> PlanFile {
        let PlanSpec { traffic, world, gpus_per_replica, price, effort, band, seed, .. } = spec;
        PlanFile {
            plan_version: PLAN_VERSION,
            finding,
            asked: PlanInputs {
                scenario: serde_json::to_value(&traffic.scenario).unwrap_or(Value::Null),
                window_s: traffic.window_s,
                world: world.clone(),
                gpus_per_replica: *gpus_per_replica,
                price: price.clone(),
                effort: *effort,
                band: band.clone(),
                seed: *seed,
            },
        }
    }
}
