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
    /// Of the percentile `p` of the very requests that a histogram counted, ladder by ladder, and of no others: no chance is in it. `None` = nothing came.
    pub fn observed(ladders: &[Buckets], p: f64) -> Option<EdgeBracket> {
        let n: f64 = ladders.iter().flat_map(|ladder| &ladder.counts).sum();
        let rank = (p * n).ceil().max(1.0);
        let mut edges: Vec<f64> = ladders.iter().flat_map(|ladder| ladder.edges.iter().copied()).collect();
        edges.sort_by(f64::total_cmp);
        edges.dedup();
        // Of a bucket that an edge of another ladder cuts, none lie below that edge, or all do.
        let below = |edge: f64, all: bool| -> f64 {
            let each = ladders.iter().flat_map(|ladder| {
                let uppers = ladder.edges.iter().copied().chain([f64::INFINITY]);
                let lowers = [f64::NEG_INFINITY].into_iter().chain(ladder.edges.iter().copied());
                lowers.zip(uppers).zip(ladder.counts.iter().copied())
            });
            let each = each.filter(|((lower, upper), _)| if all { *lower < edge } else { *upper <= edge });
            each.map(|(_, count)| count).sum()
        };
        (n > 0.0 && !edges.is_empty()).then(|| EdgeBracket {
            over_s: edges.iter().copied().filter(|edge| below(*edge, true) < rank).reduce(f64::max),
            most_s: edges.iter().copied().find(|edge| below(*edge, false) >= rank),
        })
    }

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
