//! Sequential verdicts during a measurement: stop because of harm, promote, or go on.
//!
//! The types are steppers: add a block of latencies and read the verdict. The caller
//! may check after every block and stop at any time. The probability of a false alarm over all checks stays under `alpha`
//! (see [`plimsoll_math::anytime`]). A block is an interval of traffic that is long compared with the queue's correlation. Its
//! requests may depend on each other in any way, but blocks should be independent.
//!
//! [`PairWatch`] tests two targets, with blocks in alternation and one schedule on both. [`InterleaveWatch`] uses records.
//!
//! Proven harm ends the test immediately. A promotion also needs the minimum time and the minimum effective number of requests.
//! Rare events (a nightly batch job, a filling cache) must have time to occur.

mod interleave;
mod pairs;

use plimsoll_model::Span;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use interleave::{InterleaveState, InterleaveWatch, MetricInterim};
pub use pairs::{PairFinding, PairWatch, PercentileGuard, guards};

/// The criteria of a sequential test.
#[derive(Copy, Clone, PartialEq, Debug)]
pub struct SequentialSpec {
    /// Probability of a false alarm over all checks, and separately of a false promotion.
    pub alpha: f64,
    /// Minimum measured time before a promotion.
    pub least_time: Span,
    /// Minimum effective number of the candidate's requests before a promotion, in the tail that is tested.
    pub least_n_eff: f64,
}

impl Default for SequentialSpec {
    fn default() -> SequentialSpec {
        // Ten exceedances of a p99, which is also the minimum for showing the percentile.
        SequentialSpec { alpha: 0.05, least_time: Span::ZERO, least_n_eff: 1000.0 }
    }
}

/// The current verdict of a sequential test.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "verdict", rename_all = "snake_case")]
pub enum SequentialVerdict {
    /// Proven to be worse than allowed: stop.
    Harm {
        /// Metrics or percentiles that are worse.
        why: String,
    },
    /// Proven not to be worse than allowed, after the minimum time.
    Promote,
    /// The evidence is inconclusive so far.
    GoOn {
        /// Condition that is missing for a verdict.
        why: String,
    },
}
