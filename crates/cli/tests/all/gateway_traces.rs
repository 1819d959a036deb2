//! Traces of a gateway's own requests, as a collector gets them; the truth is what the client measured and what it called its spans.

use std::collections::HashMap;

use plimsoll_model::{AttributeValue, SpanKind, TraceSpan};
use plimsoll_store::read_spans;
use serde_json::Value;

use crate::collect::Collector;
use crate::gateway::Running;
use crate::kit::{Engine, plimsoll_in, until};

/// A gateway that sends its traces there, in front of an engine.
fn gateway(folder: &std::path::Path, engine: &str, traces: &str) -> Running {
    let file = folder.join("gateway.yaml");
    let engine = engine.trim_end_matches("/v1");
    let text = format!(
        "replicas: [{{url: \"{engine}\", name: one}}, {{url: \"http://127.0.0.1:1\", name: nobody}}]\ntraces: {traces}\n"
    );
    std::fs::write(&file, text).expect("written");
    Running::start(&[&file.display().to_string()])
}

fn number(span: &TraceSpan, key: &str) -> f64 {
    span.attribute(key).and_then(AttributeValue::number).unwrap_or_else(|| panic!("no {key} in {span:?}"))
}

#[test]
fn a_request_is_one_trace_with_its_clients() {
    let (engine, mut collector) = (Engine::start("demo"), Collector::start(&[]));
    let folder = tempfile::tempdir().expect("a folder");
    let traces =
        format!("{{to: \"http://{}/v1/traces\", keep: {{share: 1, rest_per_s: 10000}}}}", collector.addr);
    let gateway = gateway(folder.path(), &engine.url, &traces);
    let header = "traceparent: 00-{trace}-{span}-01";
    let args = [
        "run",
        &gateway.url,
        "--rate",
        "40/s",
        "--for",
        "2s",
        "--isl",
        "64",
        "--osl",
        "16",
        "-H",
        header,
        "-o",
        "run",
        "--format",
        "json",
    ];
    let found = plimsoll_in(folder.path(), &args).json();
    let counts = &found["findings"]["levels"][0]["summary"]["counts"];
    let finished = counts["finished"].as_u64().expect("a count");
    assert!(finished > 40 && counts["requests"].as_u64() == Some(finished), "{counts}");
    let ended = "plimsoll_gateway_traces_total{stratum=\"rest\",what=\"ended\"} ";
    until("all are counted", || {
        let page = gateway.page("/metrics");
        page.lines().filter_map(|line| line.strip_prefix(ended)?.parse::<u64>().ok()).any(|n| n >= finished)
    });
    gateway.end();
    assert_eq!(collector.end().0, 0);
    let spans = read_spans(&collector.run).expect("a run");
    let mut traces: HashMap<u128, Vec<&TraceSpan>> = HashMap::new();
    spans.iter().for_each(|span| traces.entry(span.trace).or_default().push(span));
    let output = |span: &&TraceSpan| number(span, "gen_ai.usage.output_tokens");
    let own: Vec<&Vec<&TraceSpan>> = traces.values().filter(|trace| trace[0].parent.is_some()).collect();
    assert!(own.len() as u64 >= finished, "{} of {finished}", own.len());
    for trace in &own {
        let [root, attempt] = trace[..] else { panic!("{trace:?}") };
        assert_eq!(
            (root.kind, root.name.as_str(), root.failed),
            (SpanKind::Server, "POST /v1/chat/completions", false)
        );
        assert_eq!((attempt.kind, attempt.parent), (SpanKind::Client, Some(root.id)));
        assert_eq!(attempt.name, "chat demo");
        assert!(root.start_ns <= attempt.start_ns && attempt.end_ns <= root.end_ns, "{root:?} {attempt:?}");
        let first = (number(attempt, "gen_ai.response.time_to_first_chunk") * 1e9).round() as i64;
        assert_eq!(attempt.events[0].at_ns, attempt.start_ns + first);
        assert_eq!(root.attribute("plimsoll.sampled").and_then(AttributeValue::text), Some("rest"));
        assert_eq!(root.weight, 1.0);
    }
    // The requests before the load, which probe the target, have fewer output tokens.
    let whole = own.iter().filter(|trace| output(&trace[1]) == 16.0).count() as u64;
    assert_eq!(whole, finished + 1, "the first request asks for 16 tokens too");
    assert!(own.len() as u64 <= finished + 8, "{} of {finished}", own.len());
}

/// An unreachable collector delays no request; an invalid collector is reported before the gateway starts to serve.
#[test]
fn a_collector_that_is_away_costs_no_request() {
    let engine = Engine::start("demo");
    let folder = tempfile::tempdir().expect("a folder");
    let away = gateway(folder.path(), &engine.url, "{to: \"http://127.0.0.1:1\", keep: {share: 1}}");
    let args = ["run", &away.url, "--rate", "20/s", "--for", "1s", "-o", "run", "--format", "json"];
    let found: Value = plimsoll_in(folder.path(), &args).json();
    let counts = &found["findings"]["levels"][0]["summary"]["counts"];
    assert_eq!(counts["finished"], counts["requests"], "{counts}");
    until("traces wait", || {
        let page = away.page("/metrics");
        page.lines().any(|line| {
            line.starts_with("plimsoll_gateway_spans_waiting ") || line.contains("outcome=\"dropped\"} 0")
        })
    });
    assert_eq!(away.end().1, Some(0));
    let file = folder.path().join("wrong.yaml");
    for (traces, says) in [
        ("{to: collector}", "traces.to"),
        ("{to: \"http://c:4318\", keep: {share: 3}}", "traces.keep.share"),
        ("{to: \"http://c:4318\", key: {sha256: \"00\"}}", "key"),
    ] {
        std::fs::write(&file, format!("replicas: [{{url: \"http://127.0.0.1:1\"}}]\ntraces: {traces}\n"))
            .expect("written");
        let refused = plimsoll_in(folder.path(), &["gateway", "--listen", "127.0.0.1:0", "wrong.yaml"]);
        assert_eq!(refused.code, 2, "{}", refused.stderr);
        assert!(refused.stderr.contains(says), "{}", refused.stderr);
    }
}
