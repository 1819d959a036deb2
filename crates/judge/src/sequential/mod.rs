//! Verdicts that may be asked for at any time while a measurement goes on: stop for harm, promote, or go on.
//!
//! Steppers: push a block of latencies, ask. Whoever drives them (two live targets measured in turn, a monitor) may look after
//! every block and stop when it likes; the chance of a false alarm over all looks together stays under `alpha`
//! (see [`plimsoll_math::anytime`]). A block is a stretch of traffic that is long against the memory of the
//! queue: its requests may depend on one another in any way, but a block should not know how the one before it went.
//!
//! * [`CeilingWatch`]: one arm against a fixed budget ("p99 ≤ 500 ms"), or against a baseline that was itself measured, whose
//!   quantile is then not a number but an interval.
//! * [`PairWatch`]: two arms, block by block in turn, the same schedule on both; [`InterleaveWatch`]: the same from records.
//!
//! Harm ends the matter whenever it is proven. An early pass does not: promotion waits for the least time and the least effective
//! number of requests that were asked for, because what is rare (a night's batch job, a cache that fills) has to have had its chance.

mod ceiling;
mod interleave;
mod pairs;

use plimsoll_model::Span;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use ceiling::{Baseline, CeilingWatch, TooShort};
pub use interleave::{InterleaveState, InterleaveWatch, LookedAt};
pub use pairs::{PairFinding, PairWatch, PercentileGuard, guards};

/// What a watch asks before it speaks.
#[derive(Copy, Clone, PartialEq, Debug)]
pub struct WatchSpec {
    /// Chance of a false alarm over all looks together; and, apart from it, of a false promotion.
    pub alpha: f64,
    /// Not promoted before so much traffic was seen, however clear it is.
    pub least_time: Span,
    /// Not promoted before the candidate's requests are worth so many independent ones in the tail that is judged.
    pub least_n_eff: f64,
}

impl Default for WatchSpec {
    fn default() -> WatchSpec {
        // Ten exceedances of a p99: below that the percentile would not even be shown.
        WatchSpec { alpha: 0.05, least_time: Span::ZERO, least_n_eff: 1000.0 }
    }
}

/// What may be said now.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "verdict", rename_all = "snake_case")]
pub enum SequentialVerdict {
    /// Worse than allowed, proven: stop.
    Harm {
        /// In what.
        why: String,
    },
    /// Not worse than allowed, proven, and seen for long enough.
    Promote,
    /// Neither.
    GoOn {
        /// What is missing.
        why: String,
    },
}
