//! Converts OTLP's protobuf `ExportTraceServiceRequest` to spans and back.
//!
//! Field numbers are from `opentelemetry/proto/{collector/trace,trace,resource,common}/v1` (stable since 1.0).

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use plimsoll_model::{AttributeValue, SpanEvent, SpanKind, TraceSpan};
use serde_json::Value as Json;

use super::id::{self, short};
use super::origin::{Origin, settle, time_ns};
use super::{Notes, TraceError};
use crate::protobuf::{Fields, ProtobufWriter, Value};

/// Limit of nested lists in attributes; real attributes are shallower.
const DEPTH_MAX: usize = 32;

/// Appends the spans of one `ExportTraceServiceRequest` to `spans`. Spans without a valid id are left out and counted
/// in [`Notes::refused`]. Memory is linear in `bytes`.
///
/// # Errors
/// Fails with [`TraceError::Protobuf`] if the bytes are malformed; `spans` may then contain a part of the spans.
pub fn decode(bytes: &[u8], spans: &mut Vec<TraceSpan>) -> Result<Notes, TraceError> {
    decode_each(bytes, &mut |span| spans.push(span))
}

/// Decodes a request and passes on each span.
pub(crate) fn decode_each(bytes: &[u8], each: &mut dyn FnMut(TraceSpan)) -> Result<Notes, TraceError> {
    let mut notes = Notes::default();
    let mut fields = Fields::of(bytes);
    while let Some((field, value)) = fields.next()? {
        if field == 1 {
            resource_spans(value.bytes(), each, &mut notes)?;
        }
    }
    Ok(notes)
}

/// Returns whether the bytes resemble a request. Only the outermost layer is walked.
pub(crate) fn looks_like(bytes: &[u8]) -> bool {
    let mut fields = Fields::of(bytes);
    loop {
        match fields.next() {
            Ok(None) => return !bytes.is_empty(),
            Ok(Some((1, Value::Bytes(_)))) => {}
            _ => return false,
        }
    }
}

fn resource_spans(
    bytes: &[u8],
    each: &mut dyn FnMut(TraceSpan),
    notes: &mut Notes,
) -> Result<(), TraceError> {
    let origin = origin(bytes)?;
    let mut fields = Fields::of(bytes);
    while let Some((field, value)) = fields.next()? {
        if field == 2 {
            scope_spans(value.bytes(), &origin, each, notes)?;
        }
    }
    Ok(())
}

/// Returns the origin of the spans of one `ResourceSpans`.
pub(crate) fn origin(bytes: &[u8]) -> Result<Origin, TraceError> {
    let mut origin = Origin::default();
    // A resource may follow its spans, so it is parsed first.
    let mut fields = Fields::of(bytes);
    while let Some((field, value)) = fields.next()? {
        if field == 1 {
            let mut fields = Fields::of(value.bytes());
            while let Some((field, value)) = fields.next()? {
                if field == 1 {
                    let (key, value) = key_value(value.bytes(), 0)?;
                    origin.learn(&key, value);
                }
            }
        }
    }
    Ok(origin)
}

fn scope_spans(
    bytes: &[u8],
    origin: &Origin,
    each: &mut dyn FnMut(TraceSpan),
    notes: &mut Notes,
) -> Result<(), TraceError> {
    let mut named = None;
    let mut fields = Fields::of(bytes);
    while let Some((field, value)) = fields.next()? {
        if field == 1 {
            let mut fields = Fields::of(value.bytes());
            while let Some((field, value)) = fields.next()? {
                if field == 1 {
                    named = Some(text(value.bytes()));
                }
            }
        }
    }
    let mut with_scope;
    let origin = match named.filter(|name| !name.is_empty()) {
        Some(name) => {
            with_scope = origin.clone();
            with_scope.keep(super::SCOPE, AttributeValue::Text(short(&name).to_owned()));
            &with_scope
        }
        None => origin,
    };
    let mut fields = Fields::of(bytes);
    while let Some((field, value)) = fields.next()? {
        if field == 2 {
            match span(value.bytes())? {
                Some(span) => each(settle(span, origin, notes)),
                None => notes.refused += 1,
            }
        }
    }
    Ok(())
}

/// Parses one span; `None` if it has no valid id.
pub(crate) fn span(bytes: &[u8]) -> Result<Option<TraceSpan>, TraceError> {
    let (mut trace, mut own) = (None, None);
    let mut span = TraceSpan::blank();
    let mut fields = Fields::of(bytes);
    while let Some((field, value)) = fields.next()? {
        match field {
            1 => trace = id::trace_of(value.bytes()),
            2 => own = id::span_of(value.bytes()),
            3 => span.weight = id::weight(&text(value.bytes())),
            4 => span.parent = id::span_of(value.bytes()),
            5 => span.name = text(value.bytes()),
            6 => span.kind = SpanKind::from_u8(u8::try_from(value.number()).unwrap_or(0)),
            7 => span.start_ns = time_ns(value.number()),
            8 => span.end_ns = time_ns(value.number()),
            9 => {
                let (key, value) = key_value(value.bytes(), 0)?;
                if !key.is_empty() {
                    span.attributes.push((key, value));
                }
            }
            11 => span.events.push(event(value.bytes())?),
            15 => status(value.bytes(), &mut span)?,
            _ => {}
        }
    }
    let (Some(trace), Some(own)) = (trace, own) else { return Ok(None) };
    (span.trace, span.id) = (trace, own);
    Ok(Some(span))
}

fn event(bytes: &[u8]) -> Result<SpanEvent, TraceError> {
    let mut event = SpanEvent { at_ns: 0, name: String::new() };
    let mut fields = Fields::of(bytes);
    while let Some((field, value)) = fields.next()? {
        match field {
            1 => event.at_ns = time_ns(value.number()),
            2 => event.name = text(value.bytes()),
            _ => {}
        }
    }
    Ok(event)
}

fn status(bytes: &[u8], span: &mut TraceSpan) -> Result<(), TraceError> {
    let mut fields = Fields::of(bytes);
    while let Some((field, value)) = fields.next()? {
        match field {
            2 if !value.bytes().is_empty() => {
                let said = AttributeValue::Text(text(value.bytes()));
                span.attributes.push((super::STATUS_MESSAGE.to_owned(), said));
            }
            3 => span.failed = value.number() == 2,
            _ => {}
        }
    }
    Ok(())
}

pub(crate) fn key_value(bytes: &[u8], depth: usize) -> Result<(String, AttributeValue), TraceError> {
    let (mut key, mut value) = (String::new(), None);
    let mut fields = Fields::of(bytes);
    while let Some((field, held)) = fields.next()? {
        match field {
            1 => key = text(held.bytes()),
            2 => value = Some(any_value(held.bytes(), depth)?),
            _ => {}
        }
    }
    Ok((key, value.unwrap_or_else(nothing)))
}

/// Returns a value that was never set: JSON's `null`.
fn nothing() -> AttributeValue {
    AttributeValue::Text("null".into())
}

fn any_value(bytes: &[u8], depth: usize) -> Result<AttributeValue, TraceError> {
    let mut found = nothing();
    let mut fields = Fields::of(bytes);
    while let Some((field, value)) = fields.next()? {
        found = match field {
            1 => AttributeValue::Text(text(value.bytes())),
            2 => AttributeValue::Flag(value.number() != 0),
            3 => AttributeValue::Int(value.number() as i64),
            4 => AttributeValue::Real(f64::from_bits(value.number())),
            5..=7 => AttributeValue::Text(nested(field, value.bytes(), depth)?.to_string()),
            _ => continue,
        };
    }
    Ok(found)
}

/// Converts a list (5), a map (6) or bytes (7) to JSON.
fn nested(field: u32, bytes: &[u8], depth: usize) -> Result<Json, TraceError> {
    if depth >= DEPTH_MAX {
        return Err(TraceError::Protobuf { at: 0, expected: "lists and maps nested at most 32 deep" });
    }
    if field == 7 {
        return Ok(Json::String(STANDARD.encode(bytes)));
    }
    let (mut list, mut map) = (Vec::new(), serde_json::Map::new());
    let mut fields = Fields::of(bytes);
    while let Some((1, value)) = fields.next()? {
        if field == 5 {
            list.push(json(value.bytes(), depth + 1)?);
            continue;
        }
        let (mut key, mut held) = (String::new(), Json::Null);
        let mut fields = Fields::of(value.bytes());
        while let Some((field, value)) = fields.next()? {
            match field {
                1 => key = text(value.bytes()),
                2 => held = json(value.bytes(), depth + 1)?,
                _ => {}
            }
        }
        map.insert(key, held);
    }
    Ok(if field == 5 { Json::Array(list) } else { Json::Object(map) })
}

fn json(bytes: &[u8], depth: usize) -> Result<Json, TraceError> {
    let mut found = Json::Null;
    let mut fields = Fields::of(bytes);
    while let Some((field, value)) = fields.next()? {
        found = match field {
            1 => text(value.bytes()).into(),
            2 => (value.number() != 0).into(),
            3 => (value.number() as i64).into(),
            4 => f64::from_bits(value.number()).into(),
            5..=7 => nested(field, value.bytes(), depth)?,
            _ => continue,
        };
    }
    Ok(found)
}

/// Returns the text with U+FFFD for invalid UTF-8, because a misspelt name is no reason to lose a span.
pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Encodes spans as one `ExportTraceServiceRequest`; adjacent spans of one service share a resource.
pub fn encode(spans: &[TraceSpan]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut pen = ProtobufWriter(&mut bytes);
    for batch in spans.chunk_by(|a, b| a.service == b.service) {
        pen.message(1, |pen| {
            if let Some(service) = batch.first().and_then(|span| span.service.as_deref()) {
                let name = AttributeValue::Text(service.to_owned());
                pen.message(1, |pen| put_attribute(pen, 1, "service.name", &name));
            }
            pen.message(2, |pen| batch.iter().for_each(|span| pen.message(2, |pen| put_span(pen, span))));
        });
    }
    bytes
}

fn put_span(pen: &mut ProtobufWriter<'_>, span: &TraceSpan) {
    pen.bytes(1, &span.trace.to_be_bytes());
    pen.bytes(2, &span.id.to_be_bytes());
    if let Some(state) = id::trace_state(span.weight) {
        pen.bytes(3, state.as_bytes());
    }
    if let Some(parent) = span.parent {
        pen.bytes(4, &parent.to_be_bytes());
    }
    pen.bytes(5, span.name.as_bytes());
    pen.number(6, span.kind as u64);
    pen.fixed64(7, u64::try_from(span.start_ns).unwrap_or(0));
    pen.fixed64(8, u64::try_from(span.end_ns).unwrap_or(0));
    let is_message = |key: &str| key == super::STATUS_MESSAGE;
    for (key, value) in span.attributes.iter().filter(|(key, _)| !is_message(key)) {
        put_attribute(pen, 9, key, value);
    }
    for event in &span.events {
        pen.message(11, |pen| {
            pen.fixed64(1, u64::try_from(event.at_ns).unwrap_or(0));
            pen.bytes(2, event.name.as_bytes());
        });
    }
    let message = span.attribute(super::STATUS_MESSAGE).and_then(AttributeValue::text);
    if span.failed || message.is_some() {
        pen.message(15, |pen| {
            if let Some(message) = message {
                pen.bytes(2, message.as_bytes());
            }
            if span.failed {
                pen.number(3, 2);
            }
        });
    }
}

fn put_attribute(pen: &mut ProtobufWriter<'_>, field: u32, key: &str, value: &AttributeValue) {
    pen.message(field, |pen| {
        pen.bytes(1, key.as_bytes());
        pen.message(2, |pen| match value {
            AttributeValue::Text(text) => pen.bytes(1, text.as_bytes()),
            AttributeValue::Flag(flag) => pen.number(2, u64::from(*flag)),
            AttributeValue::Int(n) => pen.number(3, *n as u64),
            AttributeValue::Real(n) => pen.fixed64(4, n.to_bits()),
        });
    });
}
