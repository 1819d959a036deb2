//! Encodes a trace span as the payload of a log frame.

use plimsoll_model::{AttributeValue, SpanEvent, SpanKind, TraceSpan};

use super::{CodeError, RecordDecoder, RecordEncoder, VARINT_MAX};

const PARENT: u64 = 1;
const SERVICE: u64 = 1 << 1;
const FAILED: u64 = 1 << 2;
const WEIGHT: u64 = 1 << 3;
const ALL: u64 = (1 << 4) - 1;

/// Appends an encoded span to `buf`.
pub fn put_span(buf: &mut Vec<u8>, s: &TraceSpan) {
    let bit = |on: bool, bit: u64| if on { bit } else { 0 };
    let mut pen = RecordEncoder::with_room(buf, bound(s));
    let has_weight = s.weight.to_bits() != 1.0f64.to_bits();
    pen.number(
        bit(s.parent.is_some(), PARENT)
            | bit(s.service.is_some(), SERVICE)
            | bit(s.failed, FAILED)
            | bit(has_weight, WEIGHT),
    );
    pen.word((s.trace >> 64) as u64);
    pen.word(s.trace as u64);
    pen.word(s.id);
    if let Some(parent) = s.parent {
        pen.word(parent);
    }
    pen.text(&s.name);
    if let Some(service) = &s.service {
        pen.text(service);
    }
    pen.number(s.kind as u64);
    pen.signed(s.start_ns);
    pen.signed(s.end_ns.wrapping_sub(s.start_ns));
    if has_weight {
        pen.word(s.weight.to_bits());
    }
    pen.number(s.attributes.len() as u64);
    for (key, value) in &s.attributes {
        pen.text(key);
        match value {
            AttributeValue::Flag(flag) => pen.number(u64::from(*flag)),
            AttributeValue::Int(n) => {
                pen.number(2);
                pen.signed(*n);
            }
            AttributeValue::Real(n) => {
                pen.number(3);
                pen.word(n.to_bits());
            }
            AttributeValue::Text(text) => {
                pen.number(4);
                pen.text(text);
            }
        }
    }
    pen.number(s.events.len() as u64);
    for event in &s.events {
        pen.signed(event.at_ns.wrapping_sub(s.start_ns));
        pen.text(&event.name);
    }
    pen.finish();
}

/// Returns an upper bound on the encoded size in bytes.
fn bound(s: &TraceSpan) -> usize {
    let text = |text: &str| VARINT_MAX + text.len();
    let value = |value: &AttributeValue| match value {
        AttributeValue::Text(held) => VARINT_MAX + text(held),
        _ => 2 * VARINT_MAX,
    };
    let attributes: usize = s.attributes.iter().map(|(key, held)| text(key) + value(held)).sum();
    let events: usize = s.events.iter().map(|event| VARINT_MAX + text(&event.name)).sum();
    16 * VARINT_MAX + text(&s.name) + s.service.as_deref().map_or(0, text) + attributes + events
}

/// Decodes a span, which must use all of the bytes.
pub fn get_span(bytes: &[u8]) -> Result<TraceSpan, CodeError> {
    let mut eye = RecordDecoder { bytes };
    let bits = eye.number()?;
    if bits & !ALL != 0 {
        return Err(CodeError::Range("presence bits"));
    }
    let on = |bit: u64| bits & bit != 0;
    let trace = u128::from(eye.word()?) << 64 | u128::from(eye.word()?);
    let id = eye.word()?;
    let parent = if on(PARENT) { Some(eye.word()?) } else { None };
    let name = eye.text()?;
    let service = if on(SERVICE) { Some(eye.text()?) } else { None };
    let kind = match eye.narrow::<u8>("kind of a span")? {
        kind @ 0..=5 => SpanKind::from_u8(kind),
        _ => return Err(CodeError::Range("kind of a span")),
    };
    let start_ns = eye.signed()?;
    let end_ns = start_ns.wrapping_add(eye.signed()?);
    let weight = if on(WEIGHT) { f64::from_bits(eye.word()?) } else { 1.0 };
    // An attribute has at least two bytes: the length of its key, and its kind.
    let count = eye.count(2)?;
    let mut attributes = Vec::with_capacity(count);
    for _ in 0..count {
        let key = eye.text()?;
        let value = match eye.number()? {
            flag @ 0..=1 => AttributeValue::Flag(flag == 1),
            2 => AttributeValue::Int(eye.signed()?),
            3 => AttributeValue::Real(f64::from_bits(eye.word()?)),
            4 => AttributeValue::Text(eye.text()?),
            _ => return Err(CodeError::Range("kind of an attribute")),
        };
        attributes.push((key, value));
    }
    let count = eye.count(2)?;
    let mut events = Vec::with_capacity(count);
    for _ in 0..count {
        let at_ns = start_ns.wrapping_add(eye.signed()?);
        events.push(SpanEvent { at_ns, name: eye.text()? });
    }
    eye.end()?;
    let failed = on(FAILED);
    Ok(TraceSpan {
        trace,
        id,
        parent,
        name,
        service,
        kind,
        start_ns,
        end_ns,
        failed,
        attributes,
        events,
        weight,
    })
}
