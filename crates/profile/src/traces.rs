//! An overview of spans before any evaluation: counts, and the time range.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};

use plimsoll_model::TraceSpan;
use serde::Serialize;

#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Overview {
    pub spans: u64,
    /// Number of distinct trace ids.
    pub traces: u64,
    /// Number of traces that these represent: the sum of their weights (see [`TraceSpan::weight`]); equals `traces`
    /// without sampling.
    pub traces_stood_for: f64,
    pub roots: u64,
    /// Spans whose parent is not in the trace.
    pub orphans: u64,
    /// Spans that ended in an error.
    pub failed: u64,
    /// First start, ns of the Unix epoch; `None` without spans.
    pub from_ns: Option<i64>,
    /// Last end, ns of the Unix epoch; `None` without spans.
    pub to_ns: Option<i64>,
    /// Number of spans per service, largest first; spans without a service have an empty name.
    pub services: Vec<(String, u64)>,
}

pub fn overview(spans: &[TraceSpan]) -> Overview {
    let mut counting = SpanCounter::default();
    spans.iter().for_each(|span| counting.add(span));
    counting.end()
}

/// A counter of streamed spans, with some thirty bytes for each of millions.
///
/// Ids are stored as 64-bit digests. Among five million spans a collision has a probability under one in a million,
/// and makes a count off by one.
#[derive(Default)]
pub struct SpanCounter {
    ids: HashSet<u64>,
    parents: Vec<u64>,
    /// Maximum weight of the spans of each trace.
    weights: HashMap<u64, f64>,
    services: BTreeMap<String, u64>,
    spans: u64,
    failed: u64,
    from_ns: Option<i64>,
    to_ns: Option<i64>,
}

impl SpanCounter {
    pub fn add(&mut self, span: &TraceSpan) {
        self.spans += 1;
        self.failed += u64::from(span.failed);
        self.ids.insert(digest(span.trace, span.id));
        self.parents.extend(span.parent.map(|parent| digest(span.trace, parent)));
        let weight = self.weights.entry(digest(span.trace, 0)).or_insert(1.0);
        *weight = weight.max(span.weight);
        let service = span.service.as_deref().unwrap_or_default();
        match self.services.get_mut(service) {
            Some(count) => *count += 1,
            None => drop(self.services.insert(service.to_owned(), 1)),
        }
        self.from_ns = Some(self.from_ns.map_or(span.start_ns, |from| from.min(span.start_ns)));
        self.to_ns = Some(self.to_ns.map_or(span.end_ns, |to| to.max(span.end_ns)));
    }

    pub fn end(self) -> Overview {
        let mut services: Vec<(String, u64)> = self.services.into_iter().collect();
        services.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        let mut weights: Vec<f64> = self.weights.into_values().collect();
        // Summed in sorted order, because equal spans must give equal digits in any order of the table.
        weights.sort_by(f64::total_cmp);
        Overview {
            spans: self.spans,
            traces: weights.len() as u64,
            traces_stood_for: weights.iter().sum(),
            roots: self.spans - self.parents.len() as u64,
            orphans: self.parents.iter().filter(|parent| !self.ids.contains(parent)).count() as u64,
            failed: self.failed,
            from_ns: self.from_ns,
            to_ns: self.to_ns,
            services,
        }
    }
}

/// Returns a span or trace as 64 bits, equal on every machine.
fn digest(trace: u128, id: u64) -> u64 {
    let mut hasher = DefaultHasher::new();
    (trace, id).hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use plimsoll_model::TraceSpan;

    use super::overview;

    /// Compares with a count by whole ids: several spans per trace, some orphans, some sampled.
    #[test]
    fn digests_count_as_ids_do() {
        let spans: Vec<TraceSpan> = (0..20_000_u64)
            .map(|n| {
                let mut span = TraceSpan::blank();
                // Ids that differ in one bit, in either half.
                span.trace = u128::from(n / 4) << if n % 8 < 4 { 0 } else { 64 };
                span.id = n % 4 + 1;
                span.parent = (span.id > 1).then_some(if n % 37 == 0 { 99 } else { 1 });
                span.weight = if n % 40 < 4 { 10.0 } else { 1.0 };
                span.failed = n % 11 == 0;
                span.service = (n % 3 > 0).then(|| format!("s{}", n % 3));
                (span.start_ns, span.end_ns) = (n as i64 - 500, n as i64 + 7);
                span
            })
            .collect();
        let ids: BTreeSet<(u128, u64)> = spans.iter().map(|span| (span.trace, span.id)).collect();
        let weights: BTreeMap<u128, f64> = spans.iter().map(|span| (span.trace, span.weight)).collect();
        let lost = spans.iter().filter(|s| s.parent.is_some_and(|parent| !ids.contains(&(s.trace, parent))));
        let found = overview(&spans);
        assert_eq!((found.spans, found.traces, found.roots), (20_000, weights.len() as u64, 5_000));
        assert_eq!(found.orphans, lost.count() as u64);
        assert!(found.orphans > 100, "{found:?}");
        assert!((found.traces_stood_for - weights.values().sum::<f64>()).abs() < 1e-6, "{found:?}");
        assert_eq!((found.from_ns, found.to_ns), (Some(-500), Some(20_006)));
        let of = |name: &str| found.services.iter().find(|(of, _)| of == name).map(|(_, count)| *count);
        assert_eq!((of(""), of("s1"), of("s2")), (Some(6_667), Some(6_667), Some(6_666)));
    }
}
