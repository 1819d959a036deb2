//! Fuzzing of the configuration file, the scraped pages and the trace context.

use http::{HeaderMap, HeaderName, HeaderValue};
use plimsoll_gateway::trace_context::TraceContext;
use plimsoll_gateway::{GatewaySpec, telemetry};

/// Paths whose pages have different parsers.
const PATHS: [&str; 3] = ["/metrics", "/loads", "/slots"];

pub fn check(bytes: &[u8]) {
    for path in PATHS {
        let _ = telemetry::read(path, bytes);
    }
    of_trace(bytes);
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    if let Ok(spec) = serde_saphyr::from_str::<GatewaySpec>(text) {
        let _ = spec.validate();
    }
}

/// The input is `traceparent` and, after the first line end, `tracestate`. The headers for a replica name the same
/// trace and parse again.
fn of_trace(bytes: &[u8]) {
    let mut lines = bytes.split(|byte| *byte == b'\n');
    let mut headers = HeaderMap::new();
    for name in ["traceparent", "tracestate"] {
        if let Some(Ok(value)) = lines.next().map(HeaderValue::from_bytes) {
            headers.insert(HeaderName::from_static(name), value);
        }
    }
    let context = TraceContext::of(&mut headers, [1, 2]);
    context.write(0, &mut headers);
    let again = TraceContext::of(&mut headers, [3, 4]);
    assert_eq!((again.trace, again.parent), (context.trace, Some(context.attempt(0))));
    assert_eq!(again.randomness, context.randomness);
}
