//! How fast are traces read? Spans per second and bytes per second of each format, one thread:
//! `cargo bench -p plimsoll-wire --bench traces`. A word after `--`: the number of spans (default 200000).
//!
//! The documents are made on the spot: a trace is a request of ten spans with five attributes each. The bar is a million
//! spans in well under the ten seconds that a profile of them may take.

#![expect(clippy::print_stdout, reason = "a bench prints")]
#![expect(clippy::disallowed_methods, reason = "a bench reads the clock")]

use std::fmt::Write;
use std::time::Instant;

use plimsoll_model::{AttributeValue, SpanKind, TraceSpan};
use plimsoll_wire::trace::{otlp, read};

fn main() {
    // Cargo calls benches without `--bench` when it tests, and test runners with `--list`.
    if !std::env::args().any(|word| word == "--bench") {
        return;
    }
    let count = std::env::args().filter_map(|word| word.parse().ok()).next_back().unwrap_or(200_000);
    let spans: Vec<TraceSpan> = (0..count).map(span).collect();
    let began = Instant::now();
    let protobuf = otlp::encode(&spans);
    println!("encode OTLP protobuf  {:>9.0} spans/s", count as f64 / began.elapsed().as_secs_f64());
    let documents: [(&str, Vec<u8>); 4] = [
        ("OTLP protobuf", protobuf),
        ("OTLP JSON", otlp_json(&spans)),
        ("Jaeger JSON", jaeger(&spans)),
        ("Chrome trace", chrome(&spans)),
    ];
    for (name, bytes) in &documents {
        let began = Instant::now();
        let parsed = read(bytes).unwrap_or_else(|e| panic!("{name}: {e}"));
        let seconds = began.elapsed().as_secs_f64();
        assert_eq!(parsed.spans.len() as u64, count, "{name}");
        let (rate, bytes) = (count as f64 / seconds, bytes.len() as f64);
        println!(
            "read   {name:<14} {rate:>9.0} spans/s {:>6.0} MB/s {:>5.0} bytes a span; a million in {:.2} s",
            bytes / seconds / 1e6,
            bytes / count as f64,
            1e6 / rate
        );
    }
}

fn span(n: u64) -> TraceSpan {
    let start_ns = 1_800_000_000_000_000_000 + n as i64 * 1_000_000;
    TraceSpan {
        trace: 1 << 100 | u128::from(n / 10),
        id: n + 1,
        parent: (!n.is_multiple_of(10)).then_some(n / 10 * 10 + 1),
        name: ["request", "auth", "retrieve", "rerank", "chat tiny"][n as usize % 5].into(),
        service: Some(["front", "search", "llm"][n as usize / 10 % 3].into()),
        kind: SpanKind::Server,
        start_ns,
        end_ns: start_ns + 5_000_000,
        failed: n.is_multiple_of(100),
        attributes: vec![
            ("gen_ai.request.model".into(), AttributeValue::Text("tiny-1b-instruct".into())),
            ("gen_ai.server.time_to_first_token".into(), AttributeValue::Real(n as f64 / 7e3)),
            ("gen_ai.usage.output_tokens".into(), AttributeValue::Int(n as i64 % 512)),
            ("http.route".into(), AttributeValue::Text("/v1/chat/completions".into())),
            ("stream".into(), AttributeValue::Flag(n.is_multiple_of(2))),
        ],
        events: Vec::new(),
        weight: 1.0,
    }
}

fn otlp_json(spans: &[TraceSpan]) -> Vec<u8> {
    let mut text = String::from("{\"resourceSpans\":[");
    for (n, batch) in spans.chunks(500).enumerate() {
        let comma = if n > 0 { "," } else { "" };
        let _ = write!(
            text,
            "{comma}{{\"resource\":{{\"attributes\":[{{\"key\":\"service.name\",\"value\":{{\"stringValue\":\"front\"}}}}]}},\"scopeSpans\":[{{\"spans\":["
        );
        for (n, s) in batch.iter().enumerate() {
            let comma = if n > 0 { "," } else { "" };
            let _ = write!(
                text,
                "{comma}{{\"traceId\":\"{:032x}\",\"spanId\":\"{:016x}\",\"parentSpanId\":\"{}\",\"name\":\"{}\",\"kind\":2,\"startTimeUnixNano\":\"{}\",\"endTimeUnixNano\":\"{}\",\"attributes\":[",
                s.trace,
                s.id,
                s.parent.map(|parent| format!("{parent:016x}")).unwrap_or_default(),
                s.name,
                s.start_ns,
                s.end_ns
            );
            for (n, (key, value)) in s.attributes.iter().enumerate() {
                let comma = if n > 0 { "," } else { "" };
                let value = match value {
                    AttributeValue::Flag(flag) => format!("\"boolValue\":{flag}"),
                    AttributeValue::Int(n) => format!("\"intValue\":\"{n}\""),
                    AttributeValue::Real(n) => format!("\"doubleValue\":{n}"),
                    AttributeValue::Text(text) => format!("\"stringValue\":\"{text}\""),
                };
                let _ = write!(text, "{comma}{{\"key\":\"{key}\",\"value\":{{{value}}}}}");
            }
            text.push_str("]}");
        }
        text.push_str("]}]}");
    }
    text.push_str("]}");
    text.into_bytes()
}

fn plain(value: &AttributeValue) -> String {
    match value {
        AttributeValue::Flag(flag) => flag.to_string(),
        AttributeValue::Int(n) => n.to_string(),
        AttributeValue::Real(n) => format!("{n:?}"),
        AttributeValue::Text(text) => format!("\"{text}\""),
    }
}

fn jaeger(spans: &[TraceSpan]) -> Vec<u8> {
    let mut text = String::from("{\"data\":[");
    for (n, trace) in spans.chunks(10).enumerate() {
        let comma = if n > 0 { "," } else { "" };
        let _ = write!(text, "{comma}{{\"traceID\":\"{:032x}\",\"spans\":[", trace[0].trace);
        for (n, s) in trace.iter().enumerate() {
            let comma = if n > 0 { "," } else { "" };
            let _ = write!(
                text,
                "{comma}{{\"traceID\":\"{:032x}\",\"spanID\":\"{:016x}\",\"operationName\":\"{}\",\"startTime\":{},\"duration\":5000,\"processID\":\"p1\",\"tags\":[",
                s.trace,
                s.id,
                s.name,
                s.start_ns / 1_000
            );
            for (n, (key, value)) in s.attributes.iter().enumerate() {
                let comma = if n > 0 { "," } else { "" };
                let _ = write!(text, "{comma}{{\"key\":\"{key}\",\"value\":{}}}", plain(value));
            }
            text.push_str("],\"references\":[]}");
        }
        text.push_str("],\"processes\":{\"p1\":{\"serviceName\":\"front\"}}}");
    }
    text.push_str("]}");
    text.into_bytes()
}

fn chrome(spans: &[TraceSpan]) -> Vec<u8> {
    let mut text = String::from("{\"traceEvents\":[");
    for (n, s) in spans.iter().enumerate() {
        let comma = if n > 0 { "," } else { "" };
        let _ = write!(
            text,
            "{comma}{{\"ph\":\"X\",\"cat\":\"cpu_op\",\"name\":\"{}\",\"pid\":1,\"tid\":{},\"ts\":{}.125,\"dur\":12.5,\"args\":{{\"External id\":{n},\"Ev Idx\":{n}}}}}",
            s.name,
            n % 8,
            s.start_ns / 1_000
        );
    }
    text.push_str("]}");
    text.into_bytes()
}
