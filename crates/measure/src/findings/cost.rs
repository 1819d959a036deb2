//! The words of a cost: what requests and tokens cost at a load.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::price::Bill;
use super::{Estimate, Reading};

/// What a run is found to cost.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct CostFinding {
    /// The price all of it rests on.
    pub bill: Bill,
    /// At the throughput of each level as it ran.
    pub levels: Vec<LevelCost>,
    /// At the budget line, one entry per kind of traffic; empty for a run that is no sweep.
    pub at_budget: Vec<LineCost>,
}

/// The cost at one level's throughput.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct LevelCost {
    /// The level.
    pub level: u32,
    /// What things cost there.
    pub costs: UnitCosts,
}

/// The cost at a budget line.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct LineCost {
    /// Kind of traffic.
    pub traffic: String,
    /// The load it is for, requests/s; `None` where the line was not found.
    pub rate: Option<Estimate>,
    /// What things cost there.
    pub costs: UnitCosts,
}

/// What things cost, in the bill's currency. Paid by the hour, the whole price falls once on the requests, once on the input
/// tokens and once on the output tokens: four views of one sum, not parts of it.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct UnitCosts {
    /// Per finished request: what failed is paid for by those that did not.
    pub per_request: Reading,
    /// Per request that met every ceiling of the budget.
    pub per_good_request: Reading,
    /// Per session played to a good end; `None` where there are no sessions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub per_session: Option<Reading>,
    /// Per million prompt tokens.
    pub per_million_input: Reading,
    /// Per million generated tokens.
    pub per_million_output: Reading,
}
