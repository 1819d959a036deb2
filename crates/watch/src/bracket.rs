//! Between which edges of a histogram's buckets a percentile lies for certain: as a ceiling at every edge would be judged.

use plimsoll_measure::budget::decide;
use plimsoll_measure::findings::Held;
use plimsoll_measure::server_side::Buckets;
use serde::Serialize;

use crate::over::{OverCount, count, over};

/// A percentile, for certain above `over_s` and no more than `most_s`; `None` = no edge says it.
#[derive(Copy, Clone, PartialEq, Default, Debug, Serialize)]
pub struct EdgeBracket {
    /// It is over this edge, s.
    pub over_s: Option<f64>,
    /// It is not over this one, s.
    pub most_s: Option<f64>,
}

impl EdgeBracket {
    /// Of the percentile `p`, by a histogram part by part, each of its bounds wrong with this chance at most; `None` = nothing came.
    pub fn of(parts: &[Buckets], p: f64, alpha: f64) -> Option<EdgeBracket> {
        let mut edges: Vec<f64> = parts.iter().flat_map(|part| part.edges.iter().copied()).collect();
        edges.sort_by(f64::total_cmp);
        edges.dedup();
        let held = |edge: &f64| {
            let counts: Vec<OverCount> = parts.iter().filter_map(|part| over(part, *edge)).collect();
            let all = counts.iter().copied().fold(OverCount::default(), OverCount::with);
            (all.n > 0).then(|| decide(&count(&counts, all), 1.0 - p, alpha).held)
        };
        let held: Vec<(f64, Held)> =
            edges.into_iter().filter_map(|edge| Some((edge, held(&edge)?))).collect();
        let is = |which: Held| held.iter().filter(move |one| one.1 == which).map(|one| one.0);
        (!held.is_empty()).then(|| EdgeBracket {
            over_s: is(Held::Fail).reduce(f64::max),
            most_s: is(Held::Pass).reduce(f64::min),
        })
    }
}
