//! The embedded engine over HTTP/2 and gRPC with independent clients: Triton's own Python client (grpcio) and curl (nghttp2).
//! Our own client follows; its rows must match the engine's log.

use std::collections::HashMap;
use std::path::Path;
use std::process::Command;

use plimsoll_model::How;
use serde_json::{Value, json};

use crate::kit::{Engine, plimsoll, run_folder};
use crate::real::{self, get};

/// One instance, 4 ms a batch and 1 ms a row, at most 16 rows.
pub fn profile(folder: &tempfile::TempDir) -> String {
    let file = folder.path().join("batcher.json");
    let profile = json!({
        "name": "batcher",
        "mode": {"kind": "dynamic", "max_batch_size": 16, "dynamic_batching": {},
            "batch": {"compute": {"kind": "affine", "base_ms": 4.0, "item_ms": 1.0}}},
    });
    std::fs::write(&file, profile.to_string()).expect("written");
    file.to_str().expect("utf-8").to_owned()
}

/// Returns `host:port` of the engine.
pub fn authority(engine: &Engine) -> &str {
    engine.url.split('/').nth(2).expect("an authority")
}

fn port(engine: &Engine) -> u16 {
    authority(engine).rsplit(':').next().and_then(|port| port.parse().ok()).expect("a port")
}

/// Returns the results of Triton's client: twenty unary calls, twenty of a stream and some that fail; `None` if it is not installed.
pub fn asked_by_triton(engine: &Engine, more: &[&str]) -> Option<Value> {
    let done = real::or_skipped(real::installed("venv-triton/.done", "triton"))?;
    let script = real::root().join("crates/cli/tests/servers/triton_client.py");
    let ran = Command::new(done.with_file_name("bin/python"))
        .arg(script)
        .args([authority(engine), "batcher", "20"])
        .args(more)
        .output()
        .expect("python starts");
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    Some(serde_json::from_slice(&ran.stdout).expect("JSON"))
}

#[test]
fn tritons_own_client_is_answered() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let engine = Engine::start(&profile(&folder));
    let Some(told) = asked_by_triton(&engine, &[]) else { return };
    for yes in ["live", "ready", "model_ready"] {
        assert_eq!(told[yes], true, "{yes}");
    }
    assert_eq!((&told["nobody_ready"], &told["server"]), (&false.into(), &"plimsoll-engine".into()));
    assert_eq!(told["metadata"]["inputs"][0]["shape"], json!(["-1", "4"]));
    assert_eq!(told["config"]["max_batch_size"], 16);
    assert_eq!(told["index"]["models"][0]["state"], "READY");
    for (number, answer) in told["unary"].as_array().expect("answers").iter().enumerate() {
        assert_eq!(*answer, json!([number.to_string(), [1 + number % 3, 1]]));
    }
    let mut streamed: Vec<String> = Vec::new();
    for answer in told["streamed"].as_array().expect("answers") {
        assert_eq!(answer[1], true);
        streamed.push(answer[0].as_str().expect("an id").to_owned());
    }
    streamed.sort_by_key(|id| id[1..].parse::<u32>().expect("a number"));
    assert_eq!(streamed, (0..20).map(|n| format!("s{n}")).collect::<Vec<_>>());
    let large = "inference request batch-size must be <= 16 for 'batcher'";
    assert!(told["streamed_error"].as_str().expect("an error").contains(large), "{told}");
    assert_eq!(told["too_many_rows"][0], "StatusCode.INVALID_ARGUMENT");
    assert!(told["too_many_rows"][1].as_str().expect("words").contains(large), "{told}");
    assert_eq!(told["unknown_model"][0], "StatusCode.NOT_FOUND");
    assert_eq!(told["health"], json!([8, 1]));
    // Both kinds were counted: twenty each, and of the unary ones 1, 2, 3, 1, … rows.
    let page = get(port(&engine), "/metrics").expect("a page");
    let counter = |name: &str| {
        let sample = format!("nv_inference_{name}{{");
        let line = page
            .lines()
            .find(|line| line.starts_with(&sample))
            .unwrap_or_else(|| panic!("no {name}: {page}"));
        line.rsplit(' ').next().and_then(|n| n.parse::<f64>().ok()).expect("a number")
    };
    let rows: usize = (0..20).map(|n| 1 + n % 3).sum::<usize>() + 40;
    assert_eq!((counter("request_success"), counter("count")), (40.0, rows as f64));
}

/// The engine's log of each request, by the name in the request.
fn truth(path: &Path) -> HashMap<String, Value> {
    let text = std::fs::read_to_string(path).expect("a truth log");
    let lines = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    lines.filter_map(|line| Some((line["id"].as_str()?.to_owned(), line))).collect()
}

/// Our rows are the engine's: each has its line, and no latency is shorter than what the engine itself took.
pub fn agrees(target: &str, more: &[&str], (profile, flags): (&str, &[&str]), streams: bool) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let log = folder.path().join("truth.jsonl");
    let engine =
        Engine::start_with(profile, &[&["--truth-log", log.to_str().expect("utf-8")], flags].concat());
    let url = target.replace("HOST", authority(&engine));
    let (_folder, run) = run_folder();
    let fixed = ["run", &url, "--for", "2s", "--concurrency", "8", "-q", "-o", &run, "--format", "json"];
    let ended = plimsoll(&[&fixed[..], more].concat());
    assert!(ended.code == 0 || ended.code == 4, "{}", ended.stderr);
    engine.stop();
    let logged = truth(&log);
    let recorded = plimsoll_store::open(Path::new(&run)).expect("a run");
    let (id, rows) = (recorded.manifest.id, recorded.attempts);
    assert!(
        rows.len() > 20 && rows.iter().all(|row| row.outcome.how == How::Finished),
        "{:#?}",
        rows.first()
    );
    for row in &rows {
        let name = format!("{}-{}-{}-{}", id, row.level, row.request, row.attempt);
        let line = logged.get(&name).unwrap_or_else(|| panic!("{name} is not in the log"));
        let took = line["end_ns"].as_i64().zip(line["arrival_ns"].as_i64()).map(|(end, from)| end - from);
        let ours = (row.end.expect("it ended") - row.sent.expect("it was sent")).0;
        assert!(ours + 50_000 >= took.expect("it has both"), "{ours} ns, the engine took {took:?}: {line}");
        assert_eq!(row.first_token.is_some(), streams);
    }
    // Eight in flight share one connection of HTTP/2 for each worker.
    let most = if target.starts_with("grpc") || more.contains(&"--http") { 4 } else { 8 };
    let connections: std::collections::HashSet<_> = rows.iter().map(|row| row.connection).collect();
    assert!(connections.len() <= most, "{} connections", connections.len());
}

#[test]
fn our_own_calls_are_what_the_engine_logged() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let profile = profile(&folder);
    agrees("grpc://HOST", &["--batch", "2"], (&profile, &[]), false);
    agrees("grpc://HOST", &["--batch", "2", "--set", "target.stream=true"], (&profile, &[]), true);
    agrees("http://HOST/v2", &["--protocol", "kserve", "--http", "2"], (&profile, &[]), false);
}

#[test]
fn our_own_streams_over_http2_are_what_the_engine_logged() {
    agrees("http://HOST/v1", &["--http", "2", "--osl", "8"], ("demo", &[]), true);
}

#[test]
fn curl_is_answered_over_http2() {
    let engine = Engine::start("demo");
    let curl = |version: &str| {
        let ran = Command::new("curl")
            .args(["-sN", version, "-w", "\n%{http_version} %{http_code}", "-d"])
            .arg(r#"{"messages":[{"role":"user","content":"hello"}],"max_tokens":5,"stream":true}"#)
            .arg(format!("{}/chat/completions", engine.url))
            .output()
            .expect("curl starts");
        String::from_utf8(ran.stdout).expect("text")
    };
    let (one, two) = (curl("--http1.1"), curl("--http2-prior-knowledge"));
    assert!(one.ends_with("\n1.1 200") && two.ends_with("\n2 200"), "{one}\n{two}");
    let chunks = |text: &str| text.matches("data: {").count();
    assert_eq!(chunks(&one), chunks(&two));
    assert!(chunks(&two) >= 5 && two.contains("data: [DONE]"), "{two}");
}
