//! A latency divided over stages, for the check of a profile.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::quantity::{Amount, PercentileLevel};

/// A latency divided over stages, with a margin.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct StageBudget {
    /// Maximum of the sum of slices and margin.
    pub total: Amount,
    /// Percentile of each slice [default: 95].
    #[serde(default = "ninety_fifth")]
    pub p: PercentileLevel,
    /// Reserve for variance: a time, or a share of the total.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub margin: Option<Amount>,
    /// Slice of each stage, by name.
    pub slices: BTreeMap<String, Amount>,
}

fn ninety_fifth() -> PercentileLevel {
    PercentileLevel(0.95)
}
