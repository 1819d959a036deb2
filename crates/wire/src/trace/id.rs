//! Ids, times and weights as tracers write them.

use base64::Engine as _;
use base64::alphabet::STANDARD;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};

/// Longest text that is copied from a resource into each of its spans, bytes. A name is shorter; a megabyte of it, copied
/// into every span of a batch, would be an attack.
pub(crate) const NAME_MAX: usize = 256;

/// The text, cut to [`NAME_MAX`] bytes at a letter's end.
pub(crate) fn short(text: &str) -> &str {
    &text[..text.floor_char_boundary(NAME_MAX)]
}

/// An id of a trace as bytes: 16, or 8 as older tracers have them. `None` = none, or all zero, which means none.
pub(crate) fn trace_of(bytes: &[u8]) -> Option<u128> {
    let id = match bytes.len() {
        16 => u128::from_be_bytes(bytes.try_into().ok()?),
        8 => u128::from(u64::from_be_bytes(bytes.try_into().ok()?)),
        _ => 0,
    };
    (id != 0).then_some(id)
}

/// An id of a span as bytes. `None` = none, or all zero.
pub(crate) fn span_of(bytes: &[u8]) -> Option<u64> {
    let id = u64::from_be_bytes(bytes.try_into().ok()?);
    (id != 0).then_some(id)
}

/// An id of a trace as text: up to 32 hexadecimal digits (`0x…` too), or 16 or 8 bytes as base64.
pub(crate) fn trace_text(text: &str) -> Option<u128> {
    let text = text.strip_prefix("0x").unwrap_or(text);
    if text.len() <= 32 && is_hex(text) {
        return u128::from_str_radix(text, 16).ok().filter(|id| *id != 0);
    }
    trace_of(&base64(text)?)
}

/// An id of a span as text: up to 16 hexadecimal digits, or 8 bytes as base64.
pub(crate) fn span_text(text: &str) -> Option<u64> {
    let text = text.strip_prefix("0x").unwrap_or(text);
    // Twelve letters that end in `=` are eight bytes as base64; without it they are a number whose zeros were left out.
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

/// The bytes of a base64 text.
pub(crate) fn base64(text: &str) -> Option<Vec<u8>> {
    LENIENT.decode(text.replace('-', "+").replace('_', "/")).ok()
}

/// 2^56: thresholds of OpenTelemetry's consistent sampling are fractions of it.
const ROOM: u64 = 1 << 56;

/// How many traces one stands for by its `tracestate`: 1 / (1 − th / 2^56) of `ot=th:…`, or 2^p of the older `ot=p:…`.
/// 1 where nothing is said. Source: OpenTelemetry, "TraceState: Probability Sampling".
pub(crate) fn weight(trace_state: &str) -> f64 {
    for part in ours(trace_state).flat_map(|ours| ours.split(';')) {
        if let Some(th) = part.strip_prefix("th:")
            && th.len() <= 14
            && is_hex(th)
        {
            // Digits that are left out at the end are zeros.
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

/// The `tracestate` that says this weight; `None` where nothing need be said.
pub(crate) fn trace_state(weight: f64) -> Option<String> {
    if !(weight > 1.0 && weight.is_finite()) {
        return None;
    }
    Some(format!("ot={}", trace_state_of(weight)))
}

/// What OpenTelemetry says in a `tracestate`.
fn ours(trace_state: &str) -> impl Iterator<Item = &str> {
    trace_state.split(',').filter_map(|member| member.trim().strip_prefix("ot="))
}

/// `th:` and the threshold of this weight.
fn trace_state_of(weight: f64) -> String {
    let weight = if weight.is_finite() { weight.max(1.0) } else { 1.0 };
    let threshold = ((1.0 - 1.0 / weight) * ROOM as f64).round() as u64;
    let digits = format!("{:014x}", threshold.min(ROOM - 1));
    let digits = digits.trim_end_matches('0');
    format!("th:{}", if digits.is_empty() { "0" } else { digits })
}
