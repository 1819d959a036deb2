//! W3C Trace Context (<https://www.w3.org/TR/trace-context-2/>): read from the client and written for the replica, so
//! that the spans of client, gateway and engine form one trace.

use http::{HeaderMap, HeaderName, HeaderValue};
use plimsoll_math::rng::mix;

const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
const TRACESTATE: HeaderName = HeaderName::from_static("tracestate");
/// New traces are sampled downstream, because tail sampling needs the spans for its decision. The second bit declares
/// a random id.
const SAMPLED: u8 = 1;
const RANDOM: u8 = 2;
/// OpenTelemetry's randomness: the last 56 bits of the trace id.
const RANDOMNESS: u128 = (1 << 56) - 1;

/// The position of a request in its trace.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct TraceContext {
    pub trace: u128,
    /// Span id of the client; `None` if the client sent no trace.
    pub parent: Option<u64>,
    /// Span id of the request in the gateway.
    pub root: u64,
    /// Random value that decides about sampling.
    pub randomness: u64,
    flags: u8,
}

impl TraceContext {
    /// Returns the client's trace or a new one from two unique numbers. A `tracestate` without a valid `traceparent`
    /// is removed.
    pub fn of(headers: &mut HeaderMap, fresh: [u64; 2]) -> TraceContext {
        let [high, low] = fresh.map(mix);
        let root = mix(low ^ high).max(1);
        let Some((trace, parent, flags)) = headers.get(TRACEPARENT).and_then(read) else {
            headers.remove(TRACESTATE);
            let trace = (u128::from(high) << 64 | u128::from(low)).max(1);
            let randomness = (trace & RANDOMNESS) as u64;
            return TraceContext { trace, parent: None, root, randomness, flags: SAMPLED | RANDOM };
        };
        let said = headers.get(TRACESTATE).and_then(|state| state.to_str().ok()).and_then(randomness);
        let randomness = said.unwrap_or((trace & RANDOMNESS) as u64);
        TraceContext { trace, parent: Some(parent), root, randomness, flags }
    }

    /// Returns the span id of an attempt.
    pub fn attempt(&self, number: usize) -> u64 {
        mix(self.root ^ (number as u64 + 1)).max(1)
    }

    /// Writes the headers for a replica.
    pub fn write(&self, attempt: usize, headers: &mut HeaderMap) {
        let text = format!("00-{:032x}-{:016x}-{:02x}", self.trace, self.attempt(attempt), self.flags);
        if let Ok(value) = HeaderValue::try_from(text) {
            headers.insert(TRACEPARENT, value);
        }
    }
}

/// Parses `00-<32 hex>-<16 hex>-<2 hex>`; later versions may append fields. Ids of zeros are invalid.
fn read(value: &HeaderValue) -> Option<(u128, u64, u8)> {
    let text = value.to_str().ok()?;
    let mut parts = text.split('-');
    let version = hex(parts.next()?, 2)?;
    let trace = parts.next().and_then(|part| hex(part, 32))?;
    let parent = parts.next().and_then(|part| hex(part, 16))? as u64;
    let flags = parts.next().and_then(|part| hex(part, 2))? as u8;
    let is_sound = version != 0xff && (version > 0 || parts.next().is_none()) && trace != 0 && parent != 0;
    is_sound.then_some((trace, parent, flags & (SAMPLED | RANDOM)))
}

fn hex(text: &str, digits: usize) -> Option<u128> {
    let is_lower = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    (text.len() == digits && text.bytes().all(is_lower)).then(|| u128::from_str_radix(text, 16).ok())?
}

/// Parses `ot=rv:<14 hex>` in a `tracestate`.
fn randomness(state: &str) -> Option<u64> {
    let own = state.split(',').find_map(|member| member.trim().strip_prefix("ot="))?;
    let said = own.split(';').find_map(|field| field.strip_prefix("rv:"))?;
    hex(said, 14).map(|value| value as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn context(parent: &str, state: Option<&str>) -> (TraceContext, HeaderMap) {
        let mut headers = HeaderMap::new();
        headers.insert(TRACEPARENT, HeaderValue::from_str(parent).expect("a header"));
        state.map(|state| headers.insert(TRACESTATE, HeaderValue::from_str(state).expect("a header")));
        (TraceContext::of(&mut headers, [1, 2]), headers)
    }

    /// The example is from section 3.2 of the recommendation.
    #[test]
    fn a_clients_trace_is_gone_on_with() {
        let example = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        let (of, mut headers) = context(example, Some("congo=t61rcWkgMzE,ot=th:8;rv:0123456789abcd"));
        assert_eq!(of.trace, 0x4bf9_2f35_77b3_4da6_a3ce_929d_0e0e_4736);
        assert_eq!((of.parent, of.randomness), (Some(0x00f0_67aa_0ba9_02b7), 0x01_2345_6789_abcd));
        of.write(0, &mut headers);
        let written = headers[TRACEPARENT].to_str().expect("text").to_owned();
        assert!(written.starts_with("00-4bf92f3577b34da6a3ce929d0e0e4736-") && written.ends_with("-01"));
        assert_eq!(read(&headers[TRACEPARENT]).expect("sound").1, of.attempt(0));
        assert!(headers.contains_key(TRACESTATE));
        assert_eq!(context(example, None).0.randomness, 0xce_929d_0e0e_4736);
        // A later version may append fields.
        let later = "cc-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00-more";
        assert_eq!(context(later, None).0.trace, of.trace);
    }

    #[test]
    fn what_is_no_trace_begins_a_new_one() {
        for wrong in [
            "",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7",
            "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-more",
            "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
        ] {
            let (of, headers) = context(wrong, Some("ot=rv:0123456789abcd"));
            assert_eq!(of.parent, None, "{wrong}");
            assert_ne!(of.trace, 0);
            assert!(!headers.contains_key(TRACESTATE), "{wrong}");
        }
    }
}
