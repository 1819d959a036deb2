//! The histogram edges that enclose a percentile with certainty. The test is that of a ceiling at every edge.

use plimsoll_measure::findings::Held;
use plimsoll_measure::server_side::Buckets;
use serde::Serialize;

use crate::over::{OverCount, decide_blocks, over};

/// A percentile between two edges; `None` if no edge bounds it.
#[derive(Copy, Clone, PartialEq, Default, Debug, Serialize)]
pub struct EdgeBracket {
    /// Lower edge in s: the percentile is over it.
    pub over_s: Option<f64>,
    /// Upper edge in s: the percentile is not over it.
    pub most_s: Option<f64>,
}

impl EdgeBracket {
    /// Returns the bracket of percentile `p` of exactly the counted requests, per set of edges. It is not a
    /// statistical bound. Returns `None` without requests.
    pub fn observed(ladders: &[Buckets], p: f64) -> Option<EdgeBracket> {
        let n: f64 = ladders.iter().flat_map(|ladder| &ladder.counts).sum();
        let rank = (p * n).ceil().max(1.0);
        let mut edges: Vec<f64> = ladders.iter().flat_map(|ladder| ladder.edges.iter().copied()).collect();
        edges.sort_by(f64::total_cmp);
        edges.dedup();
        // If an edge of another set cuts a bucket, either none or all of its requests are below the edge.
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

    /// Returns the bracket of percentile `p` from a histogram in parts. Each bound is wrong with probability `alpha`
    /// at most. Returns `None` without requests.
    pub fn of(parts: &[Buckets], p: f64, alpha: f64) -> Option<EdgeBracket> {
        let mut edges: Vec<f64> = parts.iter().flat_map(|part| part.edges.iter().copied()).collect();
        edges.sort_by(f64::total_cmp);
        edges.dedup();
        let held = |edge: &f64| {
            let counts: Vec<OverCount> = parts.iter().filter_map(|part| over(part, *edge)).collect();
            let (all, decision) = decide_blocks(&counts, 1.0 - p, alpha);
            (all.n > 0).then_some(decision.held)
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
