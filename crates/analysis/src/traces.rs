//! What lies in a heap of spans, before anything is judged: how many of what, from when to when.

use std::collections::{BTreeMap, HashSet};

use plimsoll_model::TraceSpan;
use serde::Serialize;

/// Counts over spans.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Overview {
    /// Spans.
    pub spans: u64,
    /// Traces, by id.
    pub traces: u64,
    /// How many traces these stand for: the sum of their weights (see [`TraceSpan::weight`]); `traces` where all were kept.
    pub traces_stood_for: f64,
    /// Spans without a parent.
    pub roots: u64,
    /// Spans whose parent is not among the spans of their trace.
    pub orphans: u64,
    /// Spans that ended in an error.
    pub failed: u64,
    /// The first start, ns of the Unix epoch; `None` where there are no spans.
    pub from_ns: Option<i64>,
    /// The last end.
    pub to_ns: Option<i64>,
    /// Spans per service, the most first; what names no service is under the empty name.
    pub services: Vec<(String, u64)>,
}

/// Counts these spans.
pub fn overview(spans: &[TraceSpan]) -> Overview {
    let ids: HashSet<(u128, u64)> = spans.iter().map(|span| (span.trace, span.id)).collect();
    let mut weights: BTreeMap<u128, f64> = BTreeMap::new();
    let mut services: BTreeMap<&str, u64> = BTreeMap::new();
    for span in spans {
        let weight = weights.entry(span.trace).or_insert(1.0);
        *weight = weight.max(span.weight);
        *services.entry(span.service.as_deref().unwrap_or_default()).or_default() += 1;
    }
    let is_orphan =
        |span: &&TraceSpan| span.parent.is_some_and(|parent| !ids.contains(&(span.trace, parent)));
    let mut services: Vec<(String, u64)> =
        services.into_iter().map(|(name, count)| (name.to_owned(), count)).collect();
    services.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    Overview {
        spans: spans.len() as u64,
        traces: weights.len() as u64,
        traces_stood_for: weights.values().sum(),
        roots: spans.iter().filter(|span| span.parent.is_none()).count() as u64,
        orphans: spans.iter().filter(is_orphan).count() as u64,
        failed: spans.iter().filter(|span| span.failed).count() as u64,
        from_ns: spans.iter().map(|span| span.start_ns).min(),
        to_ns: spans.iter().map(|span| span.end_ns).max(),
        services,
    }
}
