//! Settings of a comparison: margins, and the treatment of different experiments.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Margins: the largest change for the worse that counts as no change. They are ratios, except for the error rate, which is a
/// difference of shares.
///
/// The median's margin is 5 %: at 80 % load, 12 000 requests of two equal servers differ by more than 3 % one time in five. Tails
/// vary more and have larger margins; smaller margins need longer measurements.
#[derive(Copy, Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Margins {
    /// Margin of medians, means and the typical request, as a share.
    pub p50: f64,
    /// Margin of 95th percentiles, as a share.
    pub p95: f64,
    /// Margin of 99th percentiles, as a share.
    pub p99: f64,
    /// Margin of requests and tokens per second, as a share.
    pub throughput: f64,
    /// Margin of the error rate, as a difference of shares.
    pub errors: f64,
    /// Margin of a sweep's capacity limits, as a share.
    pub lines: f64,
}

impl Default for Margins {
    fn default() -> Margins {
        Margins { p50: 0.05, p95: 0.07, p99: 0.10, throughput: 0.05, errors: 0.01, lines: 0.10 }
    }
}

impl Margins {
    /// Names of the margins for the command line.
    pub const NAMES: [&'static str; 6] = ["p50", "p95", "p99", "throughput", "errors", "lines"];

    /// Returns the margin of this name; `None` if the name is unknown.
    pub fn by_name(&mut self, name: &str) -> Option<&mut f64> {
        match name {
            "p50" => Some(&mut self.p50),
            "p95" => Some(&mut self.p95),
            "p99" => Some(&mut self.p99),
            "throughput" => Some(&mut self.throughput),
            "errors" => Some(&mut self.errors),
            "lines" => Some(&mut self.lines),
            _ => None,
        }
    }
}

/// The treatment of runs that are different experiments.
#[derive(Copy, Clone, PartialEq, Eq, Default, Debug)]
pub enum DifferencePolicy {
    /// Reject them with their differences.
    #[default]
    Refuse,
    /// Compare them unpaired, at the base's mix of lengths and classes.
    Standardise,
}

#[derive(Copy, Clone, PartialEq, Default, Debug)]
pub struct CompareSpec {
    pub margins: Margins,
    /// Treatment of runs that are different experiments.
    pub differing: DifferencePolicy,
}

/// Confidence of all intervals, and one minus the significance level of all tests.
pub const LEVEL: f64 = 0.95;
