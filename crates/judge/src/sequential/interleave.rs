//! Records of two arms measured in turn → a verdict after every pair: what `interleave` shows and stops by.
//!
//! Watched are the time to the first token and the whole answer's (where answers stream; else the latter alone): a server that
//! begins sooner and decodes slower must not pass. Each metric has its own [`PairWatch`] with its part of alpha.

use plimsoll_model::{Attempt, Span};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{PairFinding, PairWatch, PercentileGuard, SequentialVerdict, WatchSpec};
use plimsoll_measure::columns::{ABSENT, Columns, INFINITE};

/// What is known after the pairs so far.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct InterleaveState {
    /// Pairs of blocks.
    pub pairs: u64,
    /// The fewest pairs that can prove harm in one percentile.
    pub fewest_pairs: u64,
    /// Chance of a false alarm over all looks.
    pub alpha: f64,
    /// What may be said now.
    pub verdict: SequentialVerdict,
    /// Metric by metric.
    pub metrics: Vec<LookedAt>,
}

/// What is known of one metric.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct LookedAt {
    /// `ttft` or `e2e`.
    pub metric: String,
    /// Its percentiles.
    pub percentiles: Vec<PairFinding>,
}

/// Watches two arms by their records.
pub struct InterleaveWatch {
    spec: WatchSpec,
    guards: Vec<PercentileGuard>,
    /// Made at the first pair, which shows whether answers stream.
    watches: Vec<(&'static str, PairWatch)>,
}

impl InterleaveWatch {
    /// Nothing seen yet.
    pub fn new(spec: WatchSpec, guards: Vec<PercentileGuard>) -> InterleaveWatch {
        InterleaveWatch { spec, guards, watches: Vec::new() }
    }

    /// The rows of one block of each arm; `took` is the time the candidate's took.
    pub fn push(&mut self, baseline: &[Attempt], candidate: &[Attempt], took: Span) {
        let read = |rows: &[Attempt]| Columns::read(&rows.iter().collect::<Vec<_>>());
        let (a, b) = (read(baseline), read(candidate));
        if self.watches.is_empty() {
            let streams = a.leading().0 == "ttft" || b.leading().0 == "ttft";
            let metrics: &[&'static str] = if streams { &["ttft", "e2e"] } else { &["e2e"] };
            let spec = WatchSpec { alpha: self.spec.alpha / metrics.len() as f64, ..self.spec };
            self.watches = metrics.iter().map(|name| (*name, PairWatch::new(spec, &self.guards))).collect();
        }
        for (metric, watch) in &mut self.watches {
            watch.push(&latencies(&a, metric), &latencies(&b, metric), took);
        }
    }

    /// What is known now.
    pub fn looked(&self) -> InterleaveState {
        let metrics: Vec<LookedAt> = self
            .watches
            .iter()
            .map(|(metric, watch)| LookedAt { metric: (*metric).into(), percentiles: watch.findings() })
            .collect();
        let first = self.watches.first().map(|(_, watch)| watch);
        InterleaveState {
            pairs: first.map_or(0, PairWatch::pairs),
            fewest_pairs: first.map_or(0, PairWatch::fewest),
            alpha: self.spec.alpha,
            verdict: self.verdict(),
            metrics,
        }
    }

    /// Harm in any metric stops; all must hold for a promotion.
    fn verdict(&self) -> SequentialVerdict {
        let (mut harm, mut open) = (Vec::new(), Vec::new());
        for (metric, watch) in &self.watches {
            match watch.verdict() {
                SequentialVerdict::Harm { why } => harm.push(format!("{metric} {why}")),
                SequentialVerdict::GoOn { why } => open.push(format!("{metric} {why}")),
                SequentialVerdict::Promote => {}
            }
        }
        match (harm.is_empty(), open.is_empty() && !self.watches.is_empty()) {
            (false, _) => SequentialVerdict::Harm { why: harm.join("; ") },
            (true, true) => SequentialVerdict::Promote,
            (true, false) => SequentialVerdict::GoOn { why: open.join("; ") },
        }
    }
}

/// Latencies in seconds; what failed is later than every time, what does not exist is left out.
fn latencies(columns: &Columns, metric: &str) -> Vec<f64> {
    let column = if metric == "ttft" { &columns.ttft } else { &columns.e2e };
    let seconds = |ns: i64| if ns == INFINITE { f64::INFINITY } else { ns as f64 * 1e-9 };
    column.iter().filter(|ns| **ns != ABSENT).map(|ns| seconds(*ns)).collect()
}
