//! Spans that are passed on as they came: all of a span, its resource and its scope stay bytes, but for the weight in its `tracestate`.
//!
//! [`TraceSpan`] keeps what is asked of a span and lets the rest go (events' attributes, links, most of a resource), which a stage between a sender and its collector may not.

use std::sync::Arc;

use plimsoll_model::TraceSpan;

use super::origin::{Origin, settle};
use super::otlp::{self, text};
use super::{Notes, TraceError, id};
use crate::protobuf::{Fields, Pen, Value};

/// A span, what is known of it, and all of it.
#[derive(Clone, Debug)]
pub struct PassingSpan {
    /// What is known of it; of its resource the service alone.
    pub span: TraceSpan,
    /// OpenTelemetry's `R`, where its `tracestate` says it (`ot=rv`); else it is the last 56 bits of its trace id.
    pub randomness: Option<u64>,
    /// All of it.
    pub bytes: SpanBytes,
}

/// All of a span but the weight in its `tracestate`.
#[derive(Clone, Debug)]
pub struct SpanBytes {
    /// What of its resource and of its scope stands before spans.
    resource: Arc<[u8]>,
    scope: Arc<[u8]>,
    /// Its own fields, without `tracestate`.
    fields: Box<[u8]>,
    state: Box<str>,
}

impl SpanBytes {
    /// How many bytes are held for it, its resource counted as if no other span shared it: the others may be gone.
    pub fn len(&self) -> usize {
        self.resource.len() + self.scope.len() + self.fields.len() + self.state.len() + size_of::<Self>()
    }

    /// Is there nothing of it? There always is an id.
    pub fn is_empty(&self) -> bool {
        self.fields.is_empty()
    }
}

/// The spans of one `ExportTraceServiceRequest` in protobuf, appended to `spans`; those without a valid id are left out and counted.
///
/// # Errors
/// [`TraceError::Protobuf`] where the bytes are no such message.
pub fn split(bytes: &[u8], spans: &mut Vec<PassingSpan>) -> Result<Notes, TraceError> {
    let mut notes = Notes::default();
    let mut fields = Fields::of(bytes);
    while let Some((field, value)) = fields.next()? {
        if field == 1 {
            of_resource(value.bytes(), spans, &mut notes)?;
        }
    }
    Ok(notes)
}

fn of_resource(bytes: &[u8], spans: &mut Vec<PassingSpan>, notes: &mut Notes) -> Result<(), TraceError> {
    let resource = others(bytes, 2)?;
    let origin = Origin { service: otlp::origin(bytes)?.service, attributes: Vec::new() };
    let mut fields = Fields::of(bytes);
    while let Some((field, value)) = fields.next()? {
        if field != 2 {
            continue;
        }
        let scope: Arc<[u8]> = others(value.bytes(), 2)?;
        let mut inner = Fields::of(value.bytes());
        while let Some((field, value)) = inner.next()? {
            if field != 2 {
                continue;
            }
            match otlp::span(value.bytes())? {
                Some(span) => {
                    let state = state(value.bytes())?;
                    spans.push(PassingSpan {
                        randomness: id::randomness(&state),
                        span: settle(span, &origin, notes),
                        bytes: SpanBytes {
                            resource: Arc::clone(&resource),
                            scope: Arc::clone(&scope),
                            fields: Box::from(&*others(value.bytes(), 3)?),
                            state: state.into(),
                        },
                    });
                }
                None => notes.refused += 1,
            }
        }
    }
    Ok(())
}

/// A message without the fields of this number.
fn others(bytes: &[u8], number: u32) -> Result<Arc<[u8]>, TraceError> {
    let mut kept = Vec::new();
    let mut fields = Fields::of(bytes);
    let mut rest = bytes.len();
    while let Some((field, _)) = fields.next()? {
        let (from, to) = (bytes.len() - rest, bytes.len() - fields.left());
        if field != number {
            kept.extend_from_slice(&bytes[from..to]);
        }
        rest = fields.left();
    }
    Ok(kept.into())
}

fn state(bytes: &[u8]) -> Result<String, TraceError> {
    let mut state = String::new();
    let mut fields = Fields::of(bytes);
    while let Some((field, value)) = fields.next()? {
        if let (3, Value::Bytes(bytes)) = (field, value) {
            state = text(bytes);
        }
    }
    Ok(state)
}

/// As one `ExportTraceServiceRequest`, each with the weight of its trace; neighbours of one resource share it.
pub fn join(spans: &[(SpanBytes, f64)]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut pen = Pen(&mut bytes);
    let same = |a: &(SpanBytes, f64), b: &(SpanBytes, f64)| a.0.resource == b.0.resource;
    for of_resource in spans.chunk_by(same) {
        pen.message(1, |pen| {
            pen.0.extend_from_slice(&of_resource[0].0.resource);
            for of_scope in of_resource.chunk_by(|a, b| a.0.scope == b.0.scope) {
                pen.message(2, |pen| {
                    pen.0.extend_from_slice(&of_scope[0].0.scope);
                    for (span, weight) in of_scope {
                        pen.message(2, |pen| {
                            pen.0.extend_from_slice(&span.fields);
                            let state = id::with_weight(&span.state, *weight);
                            if !state.is_empty() {
                                pen.bytes(3, state.as_bytes());
                            }
                        });
                    }
                });
            }
        });
    }
    bytes
}
