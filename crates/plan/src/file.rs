//! The plan file: what a plan says, and what it takes to hold a run against it later.

use plimsoll_sim::WorldSpec;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::finding::PlanFinding;
use super::spec::{Band, EffortSpec, PlanSpec};
use super::verify::VerifyFinding;
use plimsoll_judge::cost::PriceSpec;

pub const PLAN_VERSION: u32 = 1;

/// A plan as a file.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct PlanFile {
    /// Version of the layout: 1.
    pub plan_version: u32,
    /// What it says.
    #[serde(flatten)]
    pub finding: PlanFinding,
    /// What it was asked.
    pub asked: AskedPlan,
    /// Runs that were held against it, oldest first.
    #[serde(default)]
    pub verified: Vec<VerifyFinding>,
}

/// What a plan was asked, as far as it is not in what it says.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct AskedPlan {
    /// Shape of the arrivals, lengths and prompts: a scenario.
    pub scenario: Value,
    /// Seconds of arrivals in one simulation at the mean rate.
    pub window_s: f64,
    /// One replica and what is around it.
    pub world: WorldSpec,
    /// GPUs of one replica.
    pub gpus_per_replica: Option<u32>,
    /// The price.
    pub price: Option<PriceSpec>,
    /// How much was to be simulated.
    pub effort: EffortSpec,
    /// How far predictions had been from measurements.
    pub band: Option<Band>,
    /// Seed of everything drawn.
    pub seed: u64,
}

impl PlanFile {
    /// A plan with what it was asked.
    pub fn new(spec: &PlanSpec, finding: PlanFinding) -> PlanFile {
        let PlanSpec { traffic, world, gpus_per_replica, price, effort, band, seed, .. } = spec;
        PlanFile {
            plan_version: PLAN_VERSION,
            finding,
            asked: AskedPlan {
                scenario: serde_json::to_value(&traffic.scenario).unwrap_or(Value::Null),
                window_s: traffic.window_s,
                world: world.clone(),
                gpus_per_replica: *gpus_per_replica,
                price: price.clone(),
                effort: *effort,
                band: band.clone(),
                seed: *seed,
            },
            verified: Vec::new(),
        }
    }
}
