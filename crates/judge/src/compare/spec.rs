//! What a comparison may be told: how much worse is still no change.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How much worse is still no change. Ratios, but for the error rate, which is a difference of shares.
///
/// The median's is 5 %: at 80 % load 12 000 requests of two equal servers pass 3 % one time in five. Tails vary more and are
/// allowed more; what is to be held tighter has to be measured longer.
#[derive(Copy, Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Margins {
    /// Of medians, of means and of the typical request.
    pub p50: f64,
    /// Of 95th percentiles.
    pub p95: f64,
    /// Of 99th percentiles.
    pub p99: f64,
    /// Of requests and tokens per second.
    pub throughput: f64,
    /// Of the error rate, in shares of all requests.
    pub errors: f64,
    /// Of the lines of a sweep.
    pub lines: f64,
}

impl Default for Margins {
    fn default() -> Margins {
        Margins { p50: 0.05, p95: 0.07, p99: 0.10, throughput: 0.05, errors: 0.01, lines: 0.10 }
    }
}

impl Margins {
    /// The names, as they are typed.
    pub const NAMES: [&'static str; 6] = ["p50", "p95", "p99", "throughput", "errors", "lines"];

    /// The margin of this name.
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

/// What to do with runs that are not the same experiment.
#[derive(Copy, Clone, PartialEq, Eq, Default, Debug)]
pub enum Differing {
    /// Refuse, with the reasons.
    #[default]
    Refuse,
    /// Compare all the same: unpaired, at the base's mix of lengths and classes.
    Standardise,
}

/// A comparison as asked.
#[derive(Copy, Clone, PartialEq, Default, Debug)]
pub struct CompareSpec {
    /// How much worse is still no change.
    pub margins: Margins,
    /// What to do with runs that are not the same experiment.
    pub differing: Differing,
}

/// Confidence of every interval, and one minus the level of every test.
pub const LEVEL: f64 = 0.95;
