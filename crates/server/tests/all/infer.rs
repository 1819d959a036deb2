//! Tests KServe v2 over loopback: a batcher with known times, its responses, rejections and counters.

use plimsoll_server::serve;
use plimsoll_server::truth::{TrueOutcome, read};
use plimsoll_sim::EngineSpec;
use serde_json::{Value, json};

use super::http::{Client, config, get, post, start, until_metric};

/// Returns a batcher with one instance, 5 ms per batch and 1 ms per row, at most eight rows.
pub fn batcher(base_ms: f64, batching: Value) -> EngineSpec {
    serde_json::from_value(json!({"name": "test", "mode": {
        "kind": "dynamic", "max_batch_size": 8, "dynamic_batching": batching,
        "batch": {"compute": {"kind": "affine", "base_ms": base_ms, "item_ms": 1.0}},
    }}))
    .expect("a valid engine")
}

fn body(rows: u32, more: &str) -> String {
    let data = vec!["0.5"; rows as usize * 4].join(",");
    format!(
        r#"{{"id":"a","inputs":[{{"name":"INPUT","shape":[{rows},4],"datatype":"FP32","data":[{data}]}}]{more}}}"#
    )
}

const INFER: &str = "/v2/models/tiny/infer";

#[test]
fn the_pages_say_what_is_served() {
    let running = start(batcher(5.0, json!({"max_queue_delay_us": 100})));
    let page = |path: &str| get(running.addr(), path);
    for path in ["/v2/health/live", "/v2/health/ready", "/v2/models/tiny/ready"] {
        assert_eq!((page(path).status, page(path).text().as_str()), (200, ""), "{path}");
    }
    assert_eq!(page("/v2").json()["name"], "plimsoll-engine");
    let model = page("/v2/models/tiny/versions/1").json();
    assert_eq!((&model["name"], &model["inputs"][0]["shape"]), (&json!("tiny"), &json!([-1, 4])));
    let batching = page("/v2/models/tiny/config").json();
    assert_eq!(batching["max_batch_size"], 8);
    // Without preferred sizes Triton reports the largest batch.
    assert_eq!(batching["dynamic_batching"]["preferred_batch_size"], json!([8]));
    assert_eq!(batching["dynamic_batching"]["max_queue_delay_microseconds"], 100);
    let index = post(running.addr(), "/v2/repository/index", "{}").json();
    assert_eq!(index, json!([{"name": "tiny", "version": "1", "state": "READY"}]));
    let wrong = page("/v2/models/nope");
    assert_eq!(
        (wrong.status, wrong.json()),
        (404, json!({"error": "Request for unknown model: 'nope' is not found"}))
    );
    assert_eq!((page(INFER).status, page("/v2/nothing").status), (405, 404));
}

#[test]
fn answers_and_counters_are_exact() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("truth.jsonl");
    let mut with_log = config(batcher(5.0, json!({})));
    with_log.truth_log = Some(path.clone());
    let running = serve(with_log).unwrap();
    let mut client = Client::connect(running.addr());
    for turn in 0..4 {
        client.post(INFER, &format!("t-{turn}"), &body(2, ""));
        let answer = client.answer();
        assert_eq!(answer.status, 200);
        assert_eq!(answer.json()["outputs"][0]["shape"], json!([2, 1]));
        assert_eq!(answer.json()["id"], "a");
    }
    let too_many = post(running.addr(), INFER, &body(9, ""));
    assert_eq!(too_many.status, 400);
    assert!(too_many.text().contains("inference request batch-size must be <= 8 for 'tiny'"));
    let page = get(running.addr(), "/metrics").text();
    let value = |name: &str| -> f64 {
        let sample = format!(r#"nv_inference_{name}{{model="tiny",version="1"}} "#);
        let line = page.lines().find(|line| line.starts_with(&sample)).unwrap_or_else(|| panic!("{name}"));
        line[sample.len()..].parse().unwrap()
    };
    assert_eq!((value("request_success"), value("count"), value("exec_count")), (4.0, 8.0, 4.0));
    // Four batches of two rows in sequence: 5 + 2 ms each, without waiting.
    assert_eq!((value("compute_infer_duration_us"), value("queue_duration_us")), (28_000.0, 0.0));
    assert!(value("request_duration_us") >= 28_000.0);
    assert_eq!(value("pending_request_count"), 0.0);
    assert!(!page.contains("vllm:"));
    running.shutdown().unwrap();
    let (_, records) = read(&std::fs::read_to_string(&path).unwrap()).unwrap();
    let (whole, refused): (Vec<_>, Vec<_>) = records.iter().partition(|r| r.ending == TrueOutcome::Finished);
    assert_eq!((whole.len(), refused.len(), refused[0].status), (4, 1, 400));
    for record in whole {
        assert_eq!((record.items, record.status, record.path.as_str()), (2, 200, INFER));
        // Virtual time is exact, independent of the machine's lateness.
        assert_eq!(record.end_ns.unwrap() - record.submitted_ns, 7_000_000);
        assert!(record.writes_ns[0] >= record.end_ns.unwrap());
    }
}

#[test]
fn a_full_queue_and_a_long_wait_are_503_in_tritons_words() {
    let hour = 3_600_000.0;
    let policy = |more: Value| json!({"default_queue_policy": more});
    let full = start(batcher(hour, policy(json!({"max_queue_size": 1}))));
    let pending = r#"nv_inference_pending_request_count{model="tiny",version="1"}"#;
    // Full batches, so that no request joins the first.
    let mut held: Vec<Client> = (0..2).map(|_| Client::connect(full.addr())).collect();
    for client in &mut held {
        client.post(INFER, "held", &body(8, ""));
    }
    until_metric(full.addr(), pending, 1.0);
    let refused = post(full.addr(), INFER, &body(8, ""));
    assert_eq!(refused.status, 503);
    assert_eq!(refused.json()["error"], "[request id: <id_unknown>] Exceeds maximum queue size");

    let slow = start(batcher(
        hour,
        policy(json!({"default_timeout_us": 1_000_000_000, "allow_timeout_override": true})),
    ));
    // One request runs and one waits behind it, so a third must wait, and times out after its own millisecond.
    let mut held: Vec<Client> = (0..2).map(|_| Client::connect(slow.addr())).collect();
    for client in &mut held {
        client.post(INFER, "held", &body(8, ""));
    }
    until_metric(slow.addr(), pending, 1.0);
    let late = post(slow.addr(), INFER, &body(8, r#","parameters":{"timeout":1000}"#));
    assert_eq!((late.status, &late.json()["error"]), (503, &json!("Request timeout expired")));
    let rejected = r#"nv_inference_request_failure{model="tiny",reason="REJECTED",version="1"}"#;
    until_metric(slow.addr(), rejected, 1.0);
}

#[test]
fn engines_that_generate_have_no_such_front() {
    let running = start(super::http::canned(1.0, 1.0));
    assert_eq!(get(running.addr(), "/v2").status, 404);
    let queue = start(super::http::stuck());
    assert_eq!(get(queue.addr(), "/v2/models/tiny/config").json()["max_batch_size"], 1);
    assert!(get(queue.addr(), "/metrics").text().contains("nv_inference_exec_count"));
}
