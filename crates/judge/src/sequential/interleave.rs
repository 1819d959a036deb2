//! Sequential evaluation of two targets measured in alternation, from their records: the display and stop rule of `interleave`.
//!
//! The metrics are the time to first token and the total latency (only the latter if responses do not stream). A server that
//! starts sooner and decodes slower must not pass. Each metric has its [`PairWatch`] with a part of alpha.

use plimsoll_model::{Attempt, Span};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{PairFinding, PairWatch, PercentileGuard, SequentialSpec, SequentialVerdict};
use plimsoll_measure::columns::{ABSENT, Columns, INFINITE};

/// The state of a sequential comparison after the pairs so far.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct InterleaveState {
    /// Number of pairs of blocks so far.
    pub pairs: u64,
    /// Minimum number of pairs that can prove harm in one percentile.
    pub fewest_pairs: u64,
    /// Probability of a false alarm over all checks.
    pub alpha: f64,
    /// Current verdict; it can change with more pairs.
    pub verdict: SequentialVerdict,
    /// Results so far of each metric.
    pub metrics: Vec<MetricInterim>,
}

/// The results of one metric so far.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "LookedAt")]
pub struct MetricInterim {
    /// Name of the metric: `ttft` or `e2e`.
    pub metric: String,
    /// Results of the percentiles of this metric.
    pub percentiles: Vec<PairFinding>,
}

/// A sequential comparison of two targets from their records.
pub struct InterleaveWatch {
    spec: SequentialSpec,
    guards: Vec<PercentileGuard>,
    /// Tests by metric, created at the first pair, which shows whether responses stream.
    watches: Vec<(&'static str, PairWatch)>,
}

impl InterleaveWatch {
    pub fn new(spec: SequentialSpec, guards: Vec<PercentileGuard>) -> InterleaveWatch {
        InterleaveWatch { spec, guards, watches: Vec::new() }
    }

    /// Adds the rows of one block of each target; `took` is the duration of the candidate's block.
    pub fn push(&mut self, baseline: &[Attempt], candidate: &[Attempt], took: Span) {
        let read = |rows: &[Attempt]| Columns::read(&rows.iter().collect::<Vec<_>>());
        let (a, b) = (read(baseline), read(candidate));
        if self.watches.is_empty() {
            let streams = a.leading().0 == "ttft" || b.leading().0 == "ttft";
            let metrics: &[&'static str] = if streams { &["ttft", "e2e"] } else { &["e2e"] };
            let spec = SequentialSpec { alpha: self.spec.alpha / metrics.len() as f64, ..self.spec };
            self.watches = metrics.iter().map(|name| (*name, PairWatch::new(spec, &self.guards))).collect();
        }
        for (metric, watch) in &mut self.watches {
            watch.push(&latencies(&a, metric), &latencies(&b, metric), took);
        }
    }

    pub fn looked(&self) -> InterleaveState {
        let metrics: Vec<MetricInterim> = self
            .watches
            .iter()
            .map(|(metric, watch)| MetricInterim { metric: (*metric).into(), percentiles: watch.findings() })
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

    /// Returns the verdict: harm in any metric stops, and a promotion needs all metrics.
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

/// Returns latencies in seconds: infinite for failed requests, without absent values.
fn latencies(columns: &Columns, metric: &str) -> Vec<f64> {
    let column = if metric == "ttft" { &columns.ttft } else { &columns.e2e };
    let seconds = |ns: i64| if ns == INFINITE { f64::INFINITY } else { ns as f64 * 1e-9 };
    column.iter().filter(|ns| **ns != ABSENT).map(|ns| seconds(*ns)).collect()
}
