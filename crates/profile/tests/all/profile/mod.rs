//! Profiles: critical paths against hand-computed ones and invariants; stages against an engine's ground truth.

mod path;
mod repair;
mod statistics;
mod truth;

use std::sync::OnceLock;

use plimsoll_model::TraceSpan;
use plimsoll_model::trace::{AttributeValue, SpanEvent, SpanKind};
use plimsoll_profile::{Requests, Rules, Stage, read};

/// Nanoseconds per millisecond.
pub const MS: i64 = 1_000_000;
/// An instant of 2026, ns of the Unix epoch.
pub const BASE: i64 = 1_795_000_000_000_000_000;

/// Returns a span of trace 1, times in ms after [`BASE`].
pub fn span(id: u64, parent: u64, name: &str, start: i64, end: i64) -> TraceSpan {
    TraceSpan {
        trace: 1,
        id,
        parent: (parent != 0).then_some(parent),
        name: name.to_owned(),
        service: None,
        kind: SpanKind::Internal,
        start_ns: BASE + start * MS,
        end_ns: BASE + end * MS,
        failed: false,
        attributes: Vec::new(),
        events: Vec::new(),
        weight: 1.0,
    }
}

/// A builder of span attributes.
pub trait Said {
    fn in_trace(self, trace: u128) -> Self;
    fn of(self, service: &str, kind: SpanKind) -> Self;
    fn with(self, key: &str, value: impl Into<Value>) -> Self;
    fn event(self, name: &str, at: i64) -> Self;
}

/// A value of an attribute.
pub struct Value(AttributeValue);

impl From<f64> for Value {
    fn from(x: f64) -> Value {
        Value(AttributeValue::Real(x))
    }
}

impl From<&str> for Value {
    fn from(text: &str) -> Value {
        Value(AttributeValue::Text(text.to_owned()))
    }
}

impl Said for TraceSpan {
    fn in_trace(mut self, trace: u128) -> TraceSpan {
        self.trace = trace;
        self
    }

    fn of(mut self, service: &str, kind: SpanKind) -> TraceSpan {
        (self.service, self.kind) = (Some(service.to_owned()), kind);
        self
    }

    fn with(mut self, key: &str, value: impl Into<Value>) -> TraceSpan {
        self.attributes.push((key.to_owned(), value.into().0));
        self.attributes.sort_by(|a, b| a.0.cmp(&b.0));
        self
    }

    fn event(mut self, name: &str, at: i64) -> TraceSpan {
        self.events.push(SpanEvent { at_ns: BASE + at * MS, name: name.to_owned() });
        self
    }
}

/// Reads spans by the shipped rules.
pub fn requests(spans: &[TraceSpan]) -> Requests {
    static RULES: OnceLock<Rules> = OnceLock::new();
    read(spans, RULES.get_or_init(Rules::shipped), false)
}

/// Returns the stages of the only request to the last byte in whole ms, without empty ones.
pub fn e2e(spans: &[TraceSpan]) -> Vec<(Stage, i64)> {
    let found = requests(spans);
    assert_eq!(found.list.len(), 1, "{:?}", found.count);
    let times = found.list[0].e2e_stages;
    assert_eq!(times.iter().sum::<i64>(), found.list[0].e2e);
    told(&times)
}

/// Returns the stages of the only request to the first token in whole ms, without empty ones.
pub fn ttft(spans: &[TraceSpan]) -> Vec<(Stage, i64)> {
    let found = requests(spans);
    let times = found.list[0].ttft_stages;
    assert_eq!(Some(times.iter().sum::<i64>()), found.list[0].ttft);
    told(&times)
}

fn told(times: &[i64; Stage::COUNT]) -> Vec<(Stage, i64)> {
    Stage::ALL.into_iter().map(|stage| (stage, times[stage.index()] / MS)).filter(|(_, ms)| *ms > 0).collect()
}
