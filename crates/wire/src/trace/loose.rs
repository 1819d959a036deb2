//! Parses one span as a JSON object, in OTLP's JSON and in Jaeger's.
//!
//! The field names of the two do not collide. So one set of names covers both, and the name of a field
//! decides the unit of a time. A struct per format was rejected: it needs twice the code, and the
//! decision between them would precede the field that decides.

use std::borrow::Cow;
use std::fmt;

use plimsoll_model::{AttributeValue, SpanEvent, SpanKind, TraceSpan};
use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, Visitor};

use super::attributes::{Attributes, Many, Scalar, Text};
use super::id::{span_text, trace_text, weight};
use super::origin::Origin;

/// The fields of a span so far.
#[derive(Default)]
pub(crate) struct PartialSpan<'a> {
    trace: Option<Cow<'a, str>>,
    id: Option<Cow<'a, str>>,
    parent: Option<Cow<'a, str>>,
    name: Option<String>,
    start_ns: Option<i64>,
    end_ns: Option<i64>,
    took_ns: Option<i64>,
    kind: SpanKind,
    failed: bool,
    weight: f64,
    attributes: Vec<(String, AttributeValue)>,
    events: Vec<SpanEvent>,
    /// Key of the span's process (Jaeger).
    pub(crate) process: Option<Cow<'a, str>>,
    /// Process of the span itself, which some Jaeger exports write into the span.
    pub(crate) origin: Option<Origin>,
    /// Whether any field of a span was found.
    pub(crate) seen: bool,
    pub(crate) is_jaeger: bool,
}

impl<'a> PartialSpan<'a> {
    /// Reads the value of `key` if it is a span's; returns false otherwise, and then the value is still unread.
    pub(crate) fn field<A: MapAccess<'a>>(&mut self, key: &str, map: &mut A) -> Result<bool, A::Error> {
        match key {
            "traceId" | "trace_id" | "traceID" => self.trace = text(map)?,
            "spanId" | "span_id" | "spanID" => self.id = text(map)?,
            "parentSpanId" | "parent_span_id" | "parentSpanID" => self.parent = text(map)?,
            "traceState" | "trace_state" => self.state(map.next_value::<Scalar<'_>>()?.text()),
            "name" | "operationName" => self.name = text(map)?.map(Cow::into_owned),
            "kind" => self.kind_of(&map.next_value()?),
            "startTimeUnixNano" | "start_time_unix_nano" => {
                self.start_ns = map.next_value::<Scalar<'_>>()?.int()
            }
            "endTimeUnixNano" | "end_time_unix_nano" => self.end_ns = map.next_value::<Scalar<'_>>()?.int(),
            "startTime" => self.start_ns = micros(&map.next_value()?),
            "duration" => self.took_ns = micros(&map.next_value()?),
            "references" => {
                let Many(references) = map.next_value::<Many<Reference<'a>>>()?;
                self.refer(references);
            }
            "attributes" => self.attributes.append(&mut map.next_value::<Attributes>()?.0),
            "tags" => self.tags(map.next_value::<Attributes>()?.0),
            "events" => {
                let Many(events) = map.next_value::<Many<Event<'a>>>()?;
                self.events.extend(events.into_iter().map(Event::settled));
            }
            "logs" => {
                let Many(logs) = map.next_value::<Many<Log>>()?;
                self.events.extend(logs.into_iter().map(Log::settled));
            }
            "status" => {
                if let Some(status) = map.next_value::<Option<Status<'a>>>()? {
                    self.status(status.code, status.message);
                }
            }
            "processID" => (self.process, self.is_jaeger) = (text(map)?, true),
            "process" => self.origin = map.next_value::<Option<Process>>()?.map(Process::origin),
            _ => return Ok(false),
        }
        self.seen = true;
        Ok(true)
    }

    fn state(&mut self, state: Option<&str>) {
        if let Some(state) = state {
            self.weight = weight(state);
        }
    }

    fn kind_of(&mut self, said: &Scalar<'_>) {
        if let Some(n) = said.int() {
            self.kind = SpanKind::from_u8(u8::try_from(n).unwrap_or(0));
            return;
        }
        let Some(text) = said.text() else { return };
        if let Some(kind) = kind_word(text.strip_prefix("SPAN_KIND_").unwrap_or(text)) {
            self.kind = kind;
        }
    }

    fn refer(&mut self, references: Vec<Reference<'a>>) {
        self.is_jaeger = true;
        let is_child = |r: &Reference<'_>| r.kind.as_ref().is_some_and(|kind| kind.0 == "CHILD_OF");
        let at = references.iter().position(is_child).unwrap_or(0);
        if let Some(Text(id)) = references.into_iter().nth(at).and_then(|reference| reference.span) {
            self.parent = Some(id);
        }
    }

    /// Adds Jaeger's tags: attributes, including values that are fields in other formats.
    fn tags(&mut self, tags: Vec<(String, AttributeValue)>) {
        let mut is_sampled_by_chance = false;
        let mut share = None;
        for (key, value) in &tags {
            match (key.as_str(), value) {
                ("span.kind", AttributeValue::Text(kind)) => {
                    self.kind = kind_word(kind).unwrap_or_default();
                }
                ("error", AttributeValue::Flag(failed)) => self.failed |= failed,
                ("error", AttributeValue::Text(text)) => self.failed |= text == "true",
                ("otel.status_code", AttributeValue::Text(code)) => self.failed |= code == "ERROR",
                ("w3c.tracestate", AttributeValue::Text(state)) => self.weight = weight(state),
                ("sampler.type", AttributeValue::Text(kind)) => {
                    is_sampled_by_chance = kind == "probabilistic"
                }
                ("sampler.param", value) => share = value.number(),
                _ => {}
            }
        }
        if let Some(share) = share.filter(|p| is_sampled_by_chance && *p > 0.0 && *p <= 1.0) {
            self.weight = 1.0 / share;
        }
        self.attributes.extend(tags);
    }

    fn status(&mut self, code: Option<Scalar<'_>>, message: Option<Scalar<'_>>) {
        if let Some(code) = code {
            let is_error = |text: &str| text.ends_with("ERROR");
            self.failed |= code.text().map_or(code.int() == Some(2), is_error);
        }
        if let Some(message) = message.as_ref().and_then(Scalar::text).filter(|text| !text.is_empty()) {
            let message = AttributeValue::Text(message.to_owned());
            self.attributes.push((super::STATUS_MESSAGE.into(), message));
        }
    }

    /// Returns the sampling weight from the span's own fields.
    pub(crate) fn weight(&self) -> Option<f64> {
        (self.weight > 0.0).then_some(self.weight)
    }

    /// Sets the number of traces that the trace represents.
    pub(crate) fn set_weight(&mut self, weight: f64) {
        self.weight = weight;
    }

    /// Returns the name, which an event of a Chrome trace has under an equal key.
    pub(crate) fn take_name(&mut self) -> String {
        self.name.take().unwrap_or_default()
    }

    /// Returns whether the object has the fields of a span, because a log line may have ids too.
    pub(crate) fn is_span(&self) -> bool {
        self.trace.is_some() && self.id.is_some() && self.start_ns.is_some()
    }

    /// Converts the object to a span; `None` if it has no ids or no start.
    pub(crate) fn into_span(self) -> Option<TraceSpan> {
        let start_ns = self.start_ns?;
        let end_ns = self.end_ns.or(self.took_ns.map(|took| start_ns.saturating_add(took))).unwrap_or(0);
        Some(TraceSpan {
            trace: trace_text(self.trace.as_deref()?)?,
            id: span_text(self.id.as_deref()?)?,
            parent: self.parent.as_deref().and_then(span_text),
            name: self.name.unwrap_or_default(),
            service: None,
            kind: self.kind,
            start_ns,
            end_ns,
            failed: self.failed,
            weight: if self.weight > 0.0 { self.weight } else { 1.0 },
            attributes: self.attributes,
            events: self.events,
        })
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for PartialSpan<'a> {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<PartialSpan<'a>, D::Error> {
        struct Take;
        impl<'de> Visitor<'de> for Take {
            type Value = PartialSpan<'de>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a span")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<PartialSpan<'de>, A::Error> {
                let mut span = PartialSpan::default();
                while let Some(Text(key)) = map.next_key()? {
                    if !span.field(&key, &mut map)? {
                        map.next_value::<IgnoredAny>()?;
                    }
                }
                Ok(span)
            }
        }
        d.deserialize_map(Take)
    }
}

fn text<'a, A: MapAccess<'a>>(map: &mut A) -> Result<Option<Cow<'a, str>>, A::Error> {
    map.next_value::<Scalar<'a>>().map(into_text)
}

fn into_text(scalar: Scalar<'_>) -> Option<Cow<'_, str>> {
    match scalar {
        Scalar::Text(text) if !text.is_empty() => Some(text),
        _ => None,
    }
}

fn micros(said: &Scalar<'_>) -> Option<i64> {
    said.int().map(|us| us.saturating_mul(1_000))
}

fn kind_word(word: &str) -> Option<SpanKind> {
    Some(match word.to_ascii_lowercase().as_str() {
        "internal" => SpanKind::Internal,
        "server" => SpanKind::Server,
        "client" => SpanKind::Client,
        "producer" => SpanKind::Producer,
        "consumer" => SpanKind::Consumer,
        "unspecified" => SpanKind::Unspecified,
        _ => return None,
    })
}

#[derive(Deserialize)]
struct Reference<'a> {
    #[serde(borrow, rename = "refType")]
    kind: Option<Text<'a>>,
    #[serde(borrow, rename = "spanID")]
    span: Option<Text<'a>>,
}

#[derive(Deserialize)]
struct Event<'a> {
    #[serde(borrow, default)]
    name: Scalar<'a>,
    #[serde(borrow, alias = "timeUnixNano")]
    time_unix_nano: Option<Scalar<'a>>,
}

impl Event<'_> {
    fn settled(self) -> SpanEvent {
        let at = self.time_unix_nano.and_then(|said| said.int());
        SpanEvent { at_ns: at.unwrap_or(0), name: self.name.text().unwrap_or_default().to_owned() }
    }
}

#[derive(Deserialize)]
struct Log {
    timestamp: Option<i64>,
    #[serde(default)]
    fields: Attributes,
}

impl Log {
    /// Returns the event. Jaeger's logs have no name, so it is the field `event`, otherwise `message`, otherwise the first key.
    fn settled(self) -> SpanEvent {
        let field = |key: &str| {
            let found = self.fields.0.iter().find(|(name, _)| name == key);
            found.and_then(|(_, value)| value.text()).map(str::to_owned)
        };
        let name = field("event").or_else(|| field("message"));
        let name = name.or_else(|| self.fields.0.first().map(|(key, _)| key.clone()));
        SpanEvent { at_ns: self.timestamp.unwrap_or(0).saturating_mul(1_000), name: name.unwrap_or_default() }
    }
}

#[derive(Deserialize)]
struct Status<'a> {
    #[serde(borrow)]
    code: Option<Scalar<'a>>,
    #[serde(borrow)]
    message: Option<Scalar<'a>>,
}

/// A process of Jaeger, which is its resource.
#[derive(Deserialize)]
pub(crate) struct Process {
    #[serde(rename = "serviceName")]
    service: Option<String>,
    #[serde(default)]
    tags: Attributes,
}

impl Process {
    pub(crate) fn origin(self) -> Origin {
        let mut origin = Origin::default();
        let service = self.service.map(|name| ("service.name".to_owned(), AttributeValue::Text(name)));
        for (key, value) in self.tags.0.into_iter().chain(service) {
            origin.learn(&key, value);
        }
        origin
    }
}

#[derive(Deserialize, Default)]
#[serde(default)]
pub(crate) struct Resource {
    attributes: Attributes,
}

impl Resource {
    pub(crate) fn origin(self) -> Origin {
        let mut origin = Origin::default();
        self.attributes.0.into_iter().for_each(|(key, value)| origin.learn(&key, value));
        origin
    }
}
