//! Represents spans of a distributed trace from any tracer.
//!
//! One type serves OTLP, Jaeger and Chrome traces, so that the profiler is independent of their source. Times are on the
//! clock of the span's machine, in ns of the Unix epoch. The profiler determines whether two machines agree, and parsers do
//! not assume it.

use serde::{Deserialize, Serialize};

/// The side of a call that a span represents, with OpenTelemetry's numbers.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[repr(u8)]
pub enum SpanKind {
    #[default]
    Unspecified = 0,
    /// Work inside a process.
    Internal = 1,
    /// The receiving side of a call.
    Server = 2,
    /// The calling side of a call.
    Client = 3,
    /// Adds a message to a queue.
    Producer = 4,
    Consumer = 5,
}

impl SpanKind {
    /// Returns the kind with this number; unknown numbers give [`SpanKind::Unspecified`].
    pub fn from_u8(n: u8) -> SpanKind {
        match n {
            1 => SpanKind::Internal,
            2 => SpanKind::Server,
            3 => SpanKind::Client,
            4 => SpanKind::Producer,
            5 => SpanKind::Consumer,
            _ => SpanKind::Unspecified,
        }
    }
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(untagged)]
pub enum AttributeValue {
    Flag(bool),
    Int(i64),
    Real(f64),
    /// A text; lists, maps and bytes are stored as JSON text.
    Text(String),
}

impl AttributeValue {
    /// Returns the number, also if a tracer wrote it as text (as OTLP's JSON does for whole numbers).
    pub fn number(&self) -> Option<f64> {
        match self {
            AttributeValue::Int(n) => Some(*n as f64),
            AttributeValue::Real(n) => Some(*n),
            AttributeValue::Text(text) => text.trim().parse().ok().filter(|n: &f64| n.is_finite()),
            AttributeValue::Flag(_) => None,
        }
    }

    pub fn text(&self) -> Option<&str> {
        match self {
            AttributeValue::Text(text) => Some(text),
            _ => None,
        }
    }
}

/// An event at one instant of a span.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct SpanEvent {
    /// Time in ns of the Unix epoch.
    pub at_ns: i64,
    pub name: String,
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct TraceSpan {
    pub trace: u128,
    /// Span id, unique within the trace.
    pub id: u64,
    /// Span id of the parent; `None` = a root.
    pub parent: Option<u64>,
    pub name: String,
    /// Service that created the span (`service.name` of its resource).
    pub service: Option<String>,
    pub kind: SpanKind,
    /// Start in ns of the Unix epoch.
    pub start_ns: i64,
    /// End in ns of the Unix epoch; never before the start.
    pub end_ns: i64,
    /// Set if the span ended with an error.
    pub failed: bool,
    /// Attributes sorted by key, with unique keys.
    pub attributes: Vec<(String, AttributeValue)>,
    /// Events during the span, in order of time.
    pub events: Vec<SpanEvent>,
    /// Number of traces that this trace represents: 1 / its sampling probability. 1 without sampling.
    pub weight: f64,
}

impl TraceSpan {
    /// Returns a span without data and with weight 1.
    pub fn blank() -> TraceSpan {
        TraceSpan {
            trace: 0,
            id: 0,
            parent: None,
            name: String::new(),
            service: None,
            kind: SpanKind::Unspecified,
            start_ns: 0,
            end_ns: 0,
            failed: false,
            attributes: Vec::new(),
            events: Vec::new(),
            weight: 1.0,
        }
    }

    pub fn attribute(&self, key: &str) -> Option<&AttributeValue> {
        let place = self.attributes.binary_search_by(|(name, _)| name.as_str().cmp(key)).ok()?;
        Some(&self.attributes[place].1)
    }

    pub fn took_ns(&self) -> i64 {
        self.end_ns - self.start_ns
    }
}
