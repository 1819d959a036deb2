//! The time to profile a million spans, and the errors of the stages compared with the generated spans.
//!
//! `cargo run --release -p plimsoll-profile --example profile -- [REQUESTS]`
#![expect(clippy::print_stdout, reason = "an example that prints figures")]
#![expect(clippy::disallowed_methods, reason = "it times itself")]

use std::time::Instant;

use plimsoll_math::dist::exponential;
use plimsoll_math::rng::Stream;
use plimsoll_model::{AttributeValue, SpanKind, TraceSpan};
use plimsoll_profile::{ProfileSpec, ProfiledLatency, Rules, Stage, judge, read};

const MS: f64 = 1e6;

fn main() {
    let requests = std::env::args().nth(1).and_then(|n| n.parse().ok()).unwrap_or(100_000u64);
    let (spans, truth) = made(requests);
    let rules = Rules::shipped();
    let began = Instant::now();
    let found = read(&spans, &rules, false);
    let paths = began.elapsed().as_secs_f64();
    let finding = judge(&found, &ProfileSpec::default());
    let all = began.elapsed().as_secs_f64();
    println!(
        "{} spans, {} requests: critical paths and re-timing {paths:.2} s, with statistics {all:.2} s",
        spans.len(),
        requests
    );
    let path = finding.path(ProfiledLatency::E2e).expect("requests");
    for (stage, mut values) in truth {
        let own = path.stage(stage).expect("made");
        let mean = values.iter().sum::<f64>() / values.len() as f64 / 1e9;
        let p99 = plimsoll_math::quantile::order_statistic(&mut values, 0.99).expect("values") / 1e9;
        println!(
            "{stage}: mean {:+.3} %, p99 {:+.3} %",
            100.0 * (own.times.mean_s / mean - 1.0),
            own.times.p99.value().map_or(f64::NAN, |found| 100.0 * (found / p99 - 1.0))
        );
    }
}

/// Returns application requests of eleven spans, and the times per stage in ns.
/// The spans are gateway, authorisation, two searches with their queries, ranking, a prompt, a call of a vLLM with durations as
/// attributes, and a filter.
fn made(requests: u64) -> (Vec<TraceSpan>, Vec<(Stage, Vec<f64>)>) {
    let mut stream = Stream::new(1, "profile", 0);
    let mut spans = Vec::new();
    let mut truth: Vec<(Stage, Vec<f64>)> = [Stage::Queue, Stage::Prefill, Stage::Decode, Stage::Rerank]
        .into_iter()
        .map(|s| (s, Vec::new()))
        .collect();
    for i in 0..requests {
        let begin = 1_795_000_000_000_000_000 + (i * 20_000_000) as i64;
        let mut draw = |mean: f64| exponential(&mut stream, mean * MS) as i64 + 1000;
        let (auth, search, other, rank, prompt) = (draw(2.0), draw(30.0), draw(20.0), draw(15.0), draw(1.0));
        let (queue, prefill, decode, filter) = (draw(10.0), draw(60.0), draw(800.0), draw(3.0));
        let way = 500_000;
        let mut span = |id: u64, parent: u64, name: &str, kind: SpanKind, from: i64, took: i64| {
            spans.push(TraceSpan {
                trace: u128::from(i) + 1,
                id,
                parent: (parent > 0).then_some(parent),
                name: name.to_owned(),
                service: Some(if id == 9 { "vllm" } else { "app" }.to_owned()),
                kind,
                start_ns: begin + from,
                end_ns: begin + from + took,
                failed: false,
                attributes: Vec::new(),
                events: Vec::new(),
                weight: 1.0,
            });
            from + took
        };
        let at = span(2, 1, "authenticate", SpanKind::Internal, 0, auth);
        let first = span(3, 1, "vector search", SpanKind::Internal, at, search);
        span(4, 3, "SELECT", SpanKind::Client, at + 100, search - 200);
        let second = span(5, 1, "keyword search query", SpanKind::Internal, at, other);
        span(6, 5, "GET", SpanKind::Client, at + 100, other - 200);
        let at = span(7, 1, "rerank", SpanKind::Internal, first.max(second), rank);
        let at = span(8, 1, "build prompt", SpanKind::Internal, at, prompt);
        let took = queue + prefill + decode;
        let call = span(10, 1, "chat llama", SpanKind::Client, at, took + 2 * way);
        span(9, 10, "llm_request", SpanKind::Server, at + way, took);
        let end = span(11, 1, "output filter", SpanKind::Internal, call, filter);
        span(1, 0, "POST /ask", SpanKind::Server, 0, end);
        let last = spans.len();
        let real = |ns: i64| AttributeValue::Real(ns as f64 / 1e9);
        spans[last - 1].attributes = vec![("http.route".to_owned(), AttributeValue::Text("/ask".into()))];
        spans[last - 4].attributes =
            vec![("gen_ai.operation.name".to_owned(), AttributeValue::Text("chat".into()))];
        spans[last - 3].attributes = vec![
            ("gen_ai.latency.e2e".to_owned(), real(took)),
            ("gen_ai.latency.time_in_model_decode".to_owned(), real(decode)),
            ("gen_ai.latency.time_in_model_prefill".to_owned(), real(prefill)),
            ("gen_ai.latency.time_in_queue".to_owned(), real(queue)),
            ("gen_ai.latency.time_to_first_token".to_owned(), real(queue + prefill)),
        ];
        for ((_, values), ns) in truth.iter_mut().zip([queue, prefill, decode, rank]) {
            values.push(ns as f64);
        }
    }
    (spans, truth)
}
