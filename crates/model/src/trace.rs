//! Spans of a distributed trace, as any tracer tells them.
//!
//! One type for OTLP, Jaeger and Chrome traces, so that what profiles a trace does not know
//! where it came from. Times are those of the machine that made the span, in nanoseconds of the Unix epoch: whether two
//! machines agree is for the profile to find out, not for a parser to assume.

use serde::{Deserialize, Serialize};

/// Which side of a call a span is, by OpenTelemetry's numbers.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[repr(u8)]
pub enum SpanKind {
    #[default]
    Unspecified = 0,
    /// Work inside a process.
    Internal = 1,
    /// The side that was called.
    Server = 2,
    /// The side that calls.
    Client = 3,
    /// Puts something into a queue.
    Producer = 4,
    Consumer = 5,
}

impl SpanKind {
    /// The kind of this number; what is unknown is [`SpanKind::Unspecified`].
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

/// What an attribute holds.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(untagged)]
pub enum AttributeValue {
    Flag(bool),
    Int(i64),
    Real(f64),
    /// A text; lists, maps and bytes are here as JSON text.
    Text(String),
}

impl AttributeValue {
    /// The number in it, also where a tracer wrote it as text (as OTLP's JSON does with whole numbers).
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

/// Something that happened at one instant of a span.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct SpanEvent {
    /// When, ns of the Unix epoch.
    pub at_ns: i64,
    pub name: String,
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct TraceSpan {
    pub trace: u128,
    /// Its own id, unique within the trace.
    pub id: u64,
    /// The span that caused it; `None` = a root.
    pub parent: Option<u64>,
    pub name: String,
    /// The service that made it (`service.name` of its resource).
    pub service: Option<String>,
    /// Which side of a call it is.
    pub kind: SpanKind,
    /// When it began, ns of the Unix epoch.
    pub start_ns: i64,
    /// When it ended; not before it began.
    pub end_ns: i64,
    /// Did it end in an error?
    pub failed: bool,
    /// Its attributes, sorted by key, each key once.
    pub attributes: Vec<(String, AttributeValue)>,
    /// What happened during it, in order of time.
    pub events: Vec<SpanEvent>,
    /// How many traces its trace stands for: 1 / the probability with which it was kept. 1 where all were.
    pub weight: f64,
}

impl TraceSpan {
    /// A span that nothing is known of; it stands for itself alone.
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

    /// How long it took, ns.
    pub fn took_ns(&self) -> i64 {
        self.end_ns - self.start_ns
    }
}
