//! Clients that are not ours, through the gateway: OpenAI's Python client and curl.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::{Command, Output};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};

use crate::gateway::Running;
use crate::kit::{Engine, until};
use crate::real;

const KEY: &str = "a-key-of-the-test-0123456789";

/// A gateway before an embedded engine, which knows one key and takes 64 KiB.
struct Scene {
    gateway: Running,
    _engine: Engine,
    _folder: tempfile::TempDir,
}

fn scene() -> Scene {
    let engine = Engine::start("demo");
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("gateway.yaml");
    let text = format!(
        "replicas: [{{url: {}, name: one}}]\nname_replicas: true\nkeys: [{{id: alice, key: {{env: TEST_CLIENT_KEY}}}}]\nlimits: {{body_bytes: 65536}}\n",
        engine.url
    );
    std::fs::write(&file, text).expect("written");
    let gateway = Running::with(&[&file.display().to_string()], &[("TEST_CLIENT_KEY", KEY)]);
    until("the replica answers", || gateway.page("/readyz").starts_with("ok"));
    Scene { gateway, _engine: engine, _folder: folder }
}

impl Scene {
    fn metric(&self, line: &str) -> f64 {
        let metrics = self.gateway.page("/metrics");
        let found = metrics.lines().find_map(|text| text.strip_prefix(line)?.strip_prefix(' '));
        found.map_or(0.0, |count| count.trim().parse().expect("a number"))
    }

    /// Checks that one request was abandoned by its client and that its replica is idle long before the answer would have ended.
    fn one_was_left(&self) {
        until("the client's leaving is counted", || {
            self.metric("plimsoll_gateway_requests_total{outcome=\"cancelled\"}") == 1.0
        });
        until("nothing runs", || self.metric("plimsoll_gateway_replica_requests{replica=\"one\"}") == 0.0);
    }
}

/// `scripts/real-server setup openai` installs it (`.ci/run` does). Where it is not installed the test is skipped, or fails where parts are required.
#[test]
fn openais_client_gets_what_it_asks_for() {
    let Some(done) = real::or_skipped(real::installed("venv-openai/.done", "openai")) else { return };
    let scene = scene();
    let output = Command::new(done.with_file_name("bin/python"))
        .arg(real::root().join("crates/cli/tests/servers/openai_client.py"))
        .args([&scene.gateway.url, KEY, "demo"])
        .output()
        .expect("python starts");
    let told: Value = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|e| panic!("{e}: {}", String::from_utf8_lossy(&output.stderr)));
    assert_eq!(told["models"], json!(["demo"]));
    let (whole, stream) = (&told["whole"], &told["stream"]);
    assert_eq!(
        (&whole["tokens"], &whole["finish"], &whole["replica"]),
        (&json!(8), &json!("length"), &json!("one"))
    );
    assert!(whole["id"].as_str().is_some_and(|id| !id.is_empty()), "{whole}");
    assert!(whole["text"].as_str().is_some_and(|text| !text.is_empty()), "{whole}");
    assert_eq!((&stream["tokens"], &stream["finish"]), (&json!(8), &json!("length")), "{stream}");
    assert!(stream["chunks"].as_u64() >= Some(8), "{stream}");
    assert!(told["completion"].as_str().is_some_and(|text| !text.is_empty()), "{told}");
    for form in ["embeddings base64", "embeddings float"] {
        assert_eq!(told[form]["index"], json!([0, 1, 2]), "{form}");
        for length in told[form]["length"].as_array().expect("a list") {
            assert!((length.as_f64().expect("a number") - 1.0).abs() < 1e-3, "{form}: {told}");
        }
    }
    for (what, kind, status, code) in [
        ("unknown key", "AuthenticationError", 401, json!("invalid_api_key")),
        ("unknown class", "BadRequestError", 400, json!("unknown_class")),
        ("bad request", "BadRequestError", 400, json!(400)),
        ("large", "APIStatusError", 413, json!("body_too_large")),
    ] {
        let error = &told[what];
        assert_eq!((&error["type"], &error["status"]), (&json!(kind), &json!(status)), "{what}: {error}");
        assert!(error["code"] == code || error["code"] == json!(code.to_string()), "{what}: {error}");
        assert!(error["id"].is_string(), "{what}: {error}");
    }
    assert_eq!(told["at once"], json!(vec![8; 20]));
    assert_eq!(told["left"], 3);
    scene.one_was_left();
}

fn curl(scene: &Scene, args: &[&str]) -> Output {
    let key = format!("authorization: Bearer {KEY}");
    Command::new("curl")
        .args(["-sS", "-H", &key])
        .args(args)
        .arg(format!("{}/completions", scene.gateway.url))
        .output()
        .expect("curl starts")
}

#[test]
fn curl_streams_waits_to_be_told_to_go_on_and_leaves() {
    let scene = scene();
    let body = |tokens: u32, streams: bool| {
        json!({"model": "demo", "prompt": "hello", "max_tokens": tokens, "stream": streams, "ignore_eos": true}).to_string()
    };
    // The client delays the body until the gateway permits it.
    for expect in ["expect:", "expect: 100-continue"] {
        let output = curl(&scene, &["-H", expect, "-w", "\n%{http_code}", "--json", &body(3, false)]);
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let (answer, status) = text.trim_end().rsplit_once('\n').expect("a status");
        assert_eq!(status, "200", "{text}");
        let answer: Value = serde_json::from_str(answer).expect("JSON");
        assert_eq!(answer["usage"]["completion_tokens"], 3);
    }
    let output = curl(&scene, &["-N", "--json", &body(5, true)]);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success() && text.trim_end().ends_with("data: [DONE]"), "{text}");
    let events = text.lines().filter(|line| line.starts_with("data: {")).count();
    assert!(events >= 5, "{text}");
    // 8 000 tokens take the engine much longer.
    let output = curl(&scene, &["-N", "-m", "1", "--json", &body(8_000, true)]);
    assert_eq!(output.status.code(), Some(28), "curl's own time is over");
    assert!(output.stdout.starts_with(b"data: {"), "what came had passed by then");
    scene.one_was_left();
}

/// The outcome of one request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Came {
    /// One answer, whole, and its own.
    Answer,
    /// A connection that was refused, or closed before the end: its client can detect this and retry.
    Closed,
}

/// Sends one request on a separate connection; anything but one answer or a closed connection fails.
fn one(addr: &str, id: &str) -> Came {
    let Ok(mut socket) = TcpStream::connect(addr) else { return Came::Closed };
    let body = json!({"model": "demo", "prompt": "hello", "max_tokens": 8, "stream": true}).to_string();
    let head = format!(
        "POST /v1/completions HTTP/1.1\r\nhost: g\r\nconnection: close\r\nx-request-id: {id}\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    let mut text = Vec::new();
    let asked = socket.write_all((head + &body).as_bytes());
    let read = asked.and_then(|()| socket.read_to_end(&mut text));
    let text = String::from_utf8_lossy(&text);
    let ends = text.matches("data: [DONE]").count();
    match read.is_ok() && ends == 1 && text.ends_with("0\r\n\r\n") {
        true => {
            assert_eq!(text.matches("HTTP/1.1 ").count(), 1, "{id}: {text}");
            assert!(text.starts_with("HTTP/1.1 200") && text.contains(id), "{id}: {text}");
            Came::Answer
        }
        // A cut answer must not have a valid end.
        false => {
            assert!(!text.ends_with("0\r\n\r\n"), "{id}: {text}");
            Came::Closed
        }
    }
}

/// `kill -9` in the middle of a load, and a new gateway at the same address.
///
/// A request gets one answer or a closed connection, never a partial answer that seems complete. The replica drops requests
/// whose client is disconnected.
#[test]
fn a_gateway_that_is_killed_leaves_nobody_in_doubt() {
    let engine = Engine::start("demo");
    let replica = format!("one={}", engine.url.trim_end_matches("/v1"));
    let start = |listen: &str| {
        let gateway = Running::at(listen, &["--replica", &replica], &[]);
        until("the replica answers", || gateway.page("/readyz").starts_with("ok"));
        gateway
    };
    let first = start("127.0.0.1:0");
    let addr = first.url.trim_start_matches("http://").trim_end_matches("/v1").to_owned();
    let (stop, began) = (AtomicBool::new(false), AtomicUsize::new(0));
    let (came, second) = thread::scope(|scope| {
        let client = |client: usize| {
            let (addr, stop, began) = (&addr, &stop, &began);
            move || {
                let mut came = Vec::new();
                while !stop.load(Ordering::SeqCst) && began.load(Ordering::SeqCst) < 50_000 {
                    let number = began.fetch_add(1, Ordering::SeqCst);
                    came.push(one(addr, &format!("id-{client}-{number}-end")));
                    if came.last() == Some(&Came::Closed) {
                        thread::sleep(Duration::from_millis(5));
                    }
                }
                came
            }
        };
        let clients: Vec<_> = (0..8).map(|number| scope.spawn(client(number))).collect();
        until("requests pass", || began.load(Ordering::SeqCst) > 60);
        first.kill();
        let second = start(&addr);
        let reached = began.load(Ordering::SeqCst);
        until("they pass again", || began.load(Ordering::SeqCst) > reached + 60);
        stop.store(true, Ordering::SeqCst);
        let came: Vec<Vec<Came>> = clients.into_iter().map(|one| one.join().expect("a client")).collect();
        (came, second)
    });
    let mut after = 0;
    for came in &came {
        // Closed connections fall between the two gateways; the second one answers all its requests.
        let Some(first) = came.iter().position(|one| *one == Came::Closed) else { continue };
        let last = came.iter().rposition(|one| *one == Came::Closed).unwrap_or(first);
        assert!(came[first..=last].iter().all(|one| *one == Came::Closed), "{came:?}");
        after += came.len() - 1 - last;
    }
    assert!(after > 0, "nobody was cut off, or nobody answered after: {came:?}");
    until("the replica has nothing to do", || {
        let metrics = real::get(port(&engine.url), "/metrics").unwrap_or_default();
        let running = metrics.lines().filter(|line| line.starts_with("vllm:num_requests_running"));
        running.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum::<f64>() == 0.0
    });
    drop(second);
}

fn port(url: &str) -> u16 {
    let text = url.trim_start_matches("http://127.0.0.1:").trim_end_matches("/v1");
    text.parse().expect("a port")
}
