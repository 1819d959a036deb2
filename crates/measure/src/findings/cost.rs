//! Result types of a cost: the cost of requests and tokens at a load.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::price::Bill;
use super::{Estimate, Reading};

/// The cost result of a run.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct CostFinding {
    /// Price that all costs use.
    pub bill: Bill,
    /// Cost at the measured throughput of each level.
    pub levels: Vec<LevelCost>,
    /// Cost at the budget limit, one entry per kind of traffic; empty if the run is not a sweep.
    pub at_budget: Vec<LineCost>,
}

/// The cost at one level's throughput.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct LevelCost {
    /// Number of the level in the run, from 0.
    pub level: u32,
    /// Costs at the load of this level.
    pub costs: UnitCosts,
}

/// The cost at a budget limit.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct LineCost {
    /// Kind of traffic, such as `steady` or `burst`.
    pub traffic: String,
    /// Load in requests per second; `null` if the limit was not found.
    pub rate: Option<Estimate>,
    /// Costs at the load of this limit.
    pub costs: UnitCosts,
}

/// Unit costs in the bill's currency.
///
/// With an hourly price, the whole price is divided once by the requests, once by the input tokens and once by the output
/// tokens. These are alternative views of one sum and must not be added.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct UnitCosts {
    /// Cost per finished request; it includes the cost of failed requests.
    pub per_request: Reading,
    /// Cost per request that met every ceiling of the budget.
    pub per_good_request: Reading,
    /// Cost per session that ended successfully; `null` if there are no sessions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub per_session: Option<Reading>,
    /// Cost per million prompt tokens, in the bill's currency.
    pub per_million_input: Reading,
    /// Cost per million generated tokens, in the bill's currency.
    pub per_million_output: Reading,
}
