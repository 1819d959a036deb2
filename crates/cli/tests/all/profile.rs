//! `plimsoll profile` from the outside: real exports of MLflow and Phoenix, an application's traces, and each wrong file in one line.

use std::fs;
use std::path::PathBuf;

use serde_json::{Value, json};

use crate::kit::plimsoll;

fn fixture(name: &str) -> String {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../wire/fixtures").join(name).display().to_string()
}

fn stage<'a>(profile: &'a Value, path: usize, name: &str) -> &'a Value {
    let stages = profile["paths"][path]["stages"].as_array().expect("stages");
    stages.iter().find(|stage| stage["stage"] == name).unwrap_or_else(|| panic!("no {name}: {stages:?}"))
}

#[test]
fn a_real_vllm_span_from_mlflow_is_taken_apart() {
    let file = fixture("mlflow/trace_from_vllm_llm_request.json");
    let found = plimsoll(&["profile", &file, "--format", "json"]);
    assert_eq!(found.code, 0, "{}", found.stderr);
    let profile = found.json();
    assert_eq!((&profile["count"]["profiled"], &profile["count"]["laid_out"]), (&json!(1), &json!(1)));
    for (name, ms) in [("prefill", 35.65), ("decode", 1336.15)] {
        let found = stage(&profile, 0, name);
        assert!((found["times"]["mean_s"].as_f64().expect("a mean") * 1e3 - ms).abs() < 0.01, "{found}");
        assert_eq!(found["known"], "laid_out");
    }
    // One request says nothing of traffic: its own time is shown, percentiles and a tail are not.
    assert_eq!(profile["paths"][0]["times"]["p50"]["is"], "refused");
    assert_eq!(profile["paths"][0]["tail"]["is"], "refused");
    assert_eq!(profile["unmapped"][0]["name"], "llm_request");
    let text = plimsoll(&["profile", &file]);
    assert!(
        text.stdout.contains("laid out") && text.stdout.contains("1 request profiled"),
        "{}",
        text.stdout
    );
}

#[test]
fn phoenix_spans_know_their_first_token() {
    let found = plimsoll(&["profile", &fixture("phoenix/spans.json"), "--format", "json"]);
    assert_eq!(found.code, 0, "{}", found.stderr);
    let profile = found.json();
    assert_eq!(profile["paths"][0]["of"], "e2e");
    let mean = |path: usize| profile["paths"][path]["times"]["mean_s"].as_f64().expect("a mean");
    assert!((mean(0) - 0.120).abs() < 1e-6 && (mean(1) - 0.031).abs() < 1e-6, "{} {}", mean(0), mean(1));
}

/// Requests of an application as OTLP's JSON: authorise, search, ask; every fiftieth waits in a queue.
fn traces(requests: u64, queue_ms: u64) -> Value {
    let mut spans = Vec::new();
    for i in 0..requests {
        let start = 1_795_000_000_000_000_000 + i * 50_000_000;
        let wait = if i % 50 == 7 { queue_ms } else { 2 };
        let mut at = 0;
        let mut span = |id: u64, name: &str, kind: u64, from: u64, to: u64| {
            let mut one = json!({
                "traceId": format!("{:032x}", i + 1), "spanId": format!("{id:016x}"), "name": name, "kind": kind,
                "startTimeUnixNano": (start + from * 1_000_000).to_string(),
                "endTimeUnixNano": (start + to * 1_000_000).to_string(),
            });
            if id == 1 {
                one["attributes"] = json!([{"key": "http.route", "value": {"stringValue": "/ask"}}]);
            } else {
                one["parentSpanId"] = json!(format!("{:016x}", 1));
            }
            spans.push(one);
        };
        let mut next = |took: u64| {
            at += took;
            (at - took, at)
        };
        for (id, name, took) in [
            (2, "authenticate", 3),
            (3, "frobnicate", 5),
            (4, "queue", wait),
            (5, "prefill", 20),
            (6, "decode", 80),
        ] {
            let (from, to) = next(took);
            span(id, name, 1, from, to);
        }
        let end = next(0).1;
        span(1, "POST /ask", 2, 0, end + 1);
    }
    let service = json!({"attributes": [{"key": "service.name", "value": {"stringValue": "app"}}]});
    json!({"resourceSpans": [{"resource": service, "scopeSpans": [{"spans": spans}]}]})
}

#[test]
fn traces_are_held_to_rules_a_budget_and_a_baseline() {
    let folder = tempfile::tempdir().expect("a folder");
    let write = |name: &str, text: String| {
        let path = folder.path().join(name);
        fs::write(&path, text).expect("written");
        path.display().to_string()
    };
    let (base, after) =
        (write("base.json", traces(600, 100).to_string()), write("after.json", traces(600, 300).to_string()));
    let rules = write("rules.yaml", "version: 1\nrules:\n  - {stage: retrieve, name: frob}\n".into());
    let budget = write(
        "budget.yaml",
        "version: 1\nstages:\n  total: 1s\n  p: 95\n  slices: {queue: 150ms, prefill: 10ms}\n".into(),
    );
    let page = folder.path().join("page.html");
    let html = page.display().to_string();
    let args =
        ["profile", &after, "--baseline", &base, "--rules", &rules, "--budget", &budget, "--html", &html];
    let found = plimsoll(&[&args[..], &["--format", "json"]].concat());
    assert_eq!(found.code, 1, "prefill takes 20 ms of its 10: {}", found.stderr);
    let profile = found.json();
    assert_eq!(profile["unmapped"].as_array().map(Vec::len), Some(0), "{}", profile["unmapped"]);
    assert_eq!(stage(&profile, 0, "retrieve")["times"]["mean_s"], json!(0.005));
    // 600 requests: the slowest twentieth, 30 of them, of which 12 wait.
    let tail = &profile["paths"][0]["tail"];
    assert_eq!((&tail["slowest"], &tail["tail_requests"]), (&json!(0.05), &json!(30)));
    assert_eq!(tail["parts"][0]["stage"], "queue");
    let moved = &profile["changes"][0]["parts"][0];
    assert_eq!(moved["stage"], "queue");
    let ms = moved["tail"]["value"].as_f64().expect("a change") * 1e3;
    assert!((ms - 200.0 * 12.0 / 30.0).abs() < 1e-6, "{ms}");
    let verdict = |name: &str| {
        let slices = profile["slices"].as_array().expect("slices");
        slices.iter().find(|slice| slice["name"] == name).expect("a slice")["verdict"].clone()
    };
    assert_eq!((verdict("prefill"), verdict("queue")), (json!("fail"), json!("pass")));
    let page = fs::read_to_string(&page).expect("a page");
    assert!(
        page.contains("Where the time of")
            && page.contains("against the baseline")
            && !page.contains("http://")
    );
    let text = plimsoll(&args).stdout;
    for word in ["queue", "surely moved: queue", "Slices of the budget", "service time only", "broken"] {
        assert!(text.contains(word), "{word}: {text}");
    }
}

#[test]
fn what_can_t_be_profiled_is_said_in_one_line() {
    let folder = tempfile::tempdir().expect("a folder");
    let write = |name: &str, text: &str| {
        let path = folder.path().join(name);
        fs::write(&path, text).expect("written");
        path.display().to_string()
    };
    let vllm = fixture("mlflow/trace_from_vllm_llm_request.json");
    let unknown = write("unknown.yaml", "version: 1\nrules:\n  - {stage: lunch, name: x}\n");
    let nothing = write("nothing.yaml", "version: 1\nrules:\n  - {stage: queue}\n");
    let no_stages = write("budget.yaml", "version: 1\nbudgets: [{id: a, metric: e2e, p: 99, max: 1s}]\n");
    let floor = write("floor.json", "{}");
    let mut failed = traces(1, 5);
    for span in failed["resourceSpans"][0]["scopeSpans"][0]["spans"].as_array_mut().expect("spans") {
        span["status"] = json!({"code": 2});
    }
    let failed = write("failed.json", &failed.to_string());
    for (args, code, word) in [
        (vec!["profile", "nowhere.json"], 2, "nowhere.json"),
        (vec!["profile", &vllm, "--rules", &unknown], 2, "lunch"),
        (vec!["profile", &vllm, "--rules", &nothing], 2, "asks nothing"),
        (vec!["profile", &vllm, "--budget", &no_stages], 2, "has no stages"),
        (vec!["profile", &vllm, "--floor", &floor], 2, "trtexec"),
        (vec!["profile", &failed], 4, "--failed"),
    ] {
        let ended = plimsoll(&args);
        assert_eq!(ended.code, code, "{args:?}: {}", ended.stderr);
        assert!(ended.stderr.contains(word) && ended.stderr.lines().count() == 1, "{}", ended.stderr);
    }
    assert_eq!(plimsoll(&["profile", &failed, "--failed"]).code, 0);
}
