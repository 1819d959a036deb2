//! Parses ids, times and weights in the formats of tracers.

use base64::Engine as _;
use base64::alphabet::STANDARD;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};

/// Longest text that is copied from a resource into each of its spans, bytes. A name is shorter; a megabyte of it, copied
/// into every span of a batch, would be an attack.
pub(crate) const NAME_MAX: usize = 256;

/// Returns the text, cut to [`NAME_MAX`] bytes at a character boundary.
pub(crate) fn short(text: &str) -> &str {
    &text[..text.floor_char_boundary(NAME_MAX)]
}

/// Parses a trace id from bytes: 16, or 8 from older tracers. `None` if it is missing or all zero, which means missing.
pub(crate) fn trace_of(bytes: &[u8]) -> Option<u128> {
    let id = match bytes.len() {
        16 => u128::from_be_bytes(bytes.try_into().ok()?),
        8 => u128::from(u64::from_be_bytes(bytes.try_into().ok()?)),
        _ => 0,
    };
    (id != 0).then_some(id)
}

/// Parses a span id from bytes. `None` if it is missing or all zero.
pub(crate) fn span_of(bytes: &[u8]) -> Option<u64> {
    let id = u64::from_be_bytes(bytes.try_into().ok()?);
    (id != 0).then_some(id)
}

/// Parses a trace id from text: up to 32 hexadecimal digits (`0x…` too), or 16 or 8 bytes as base64.
pub(crate) fn trace_text(text: &str) -> Option<u128> {
    let text = text.strip_prefix("0x").unwrap_or(text);
    if text.len() <= 32 && is_hex(text) {
        return u128::from_str_radix(text, 16).ok().filter(|id| *id != 0);
    }
    trace_of(&base64(text)?)
}

/// Parses a span id from text: up to 16 hexadecimal digits, or 8 bytes as base64.
pub(crate) fn span_text(text: &str) -> Option<u64> {
    let text = text.strip_prefix("0x").unwrap_or(text);
    // Twelve letters that end in `=` are eight bytes as base64; without it they are a number without its leading zeros.
    if text.len() <= 16 && is_hex(text) {
        return u64::from_str_radix(text, 16).ok().filter(|id| *id != 0);
    }
    span_of(&base64(text)?)
}

fn is_hex(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|b| b.is_ascii_hexdigit())
}

/// Tracers write either alphabet, padded or not.
const LENIENT: GeneralPurpose = GeneralPurpose::new(
    &STANDARD,
    GeneralPurposeConfig::new()
        .with_decode_allow_trailing_bits(true)
        .with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// Returns the bytes of a base64 text.
pub(crate) fn base64(text: &str) -> Option<Vec<u8>> {
    LENIENT.decode(text.replace('-', "+").replace('_', "/")).ok()
}

/// 2^56: thresholds of OpenTelemetry's consistent sampling are fractions of it.
const ROOM: u64 = 1 << 56;

/// Returns the number of traces that one represents by its `tracestate`.
///
/// This is 1 / (1 − th / 2^56) of `ot=th:…`, or 2^p of the older `ot=p:…`, and 1 without either.
/// Source: OpenTelemetry, "TraceState: Probability Sampling".
pub(crate) fn weight(trace_state: &str) -> f64 {
    for part in ours(trace_state).flat_map(|ours| ours.split(';')) {
        if let Some(th) = part.strip_prefix("th:")
            && th.len() <= 14
            && is_hex(th)
        {
            // Omitted digits at the end are zeros.
            let threshold = u64::from_str_radix(th, 16).unwrap_or(0) << (4 * (14 - th.len()));
            return ROOM as f64 / (ROOM - threshold) as f64;
        }
        if let Some(p) = part.strip_prefix("p:").and_then(|p| p.parse::<u32>().ok())
            && p < 63
        {
            return (1u64 << p) as f64;
        }
    }
    1.0
}

/// Returns the `tracestate` of this weight; `None` if the weight needs none.
pub(crate) fn trace_state(weight: f64) -> Option<String> {
    if !(weight > 1.0 && weight.is_finite()) {
        return None;
    }
    Some(format!("ot={}", trace_state_of(weight)))
}

/// Returns OpenTelemetry's entries of a `tracestate`.
fn ours(trace_state: &str) -> impl Iterator<Item = &str> {
    trace_state.split(',').filter_map(|member| member.trim().strip_prefix("ot="))
}

/// Returns `th:` and the threshold of this weight.
fn trace_state_of(weight: f64) -> String {
    let weight = if weight.is_finite() { weight.max(1.0) } else { 1.0 };
    let threshold = ((1.0 - 1.0 / weight) * ROOM as f64).round() as u64;
    let digits = format!("{:014x}", threshold.min(ROOM - 1));
    let digits = digits.trim_end_matches('0');
    format!("th:{}", if digits.is_empty() { "0" } else { digits })
}
