//! A latency divided over stages: what a profile is held against.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::quantity::{Amount, Percentile};

/// A latency divided over stages, with a margin.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct StageBudget {
    /// The whole: what slices and margin may add up to.
    pub total: Amount,
    /// Percentile at which each slice is held, where stage times are known.
    #[serde(default = "ninety_fifth")]
    pub p: Percentile,
    /// What is kept back for variance: a time, or a share of the total.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub margin: Option<Amount>,
    /// Each stage's slice.
    pub slices: BTreeMap<String, Amount>,
}

fn ninety_fifth() -> Percentile {
    Percentile(0.95)
}
