//! The endpoint picker with independent clients: Envoy carries requests, and gRPC's Python sends Envoy's own messages. The
//! reference is the engines' own logs.
//!
//! `scripts/real-server setup envoy` installs both (`.ci/run` does). If they are not installed, these tests are skipped, or
//! fail if parts are required.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};

use crate::gateway::Running;
use crate::kit::{Engine, plimsoll_in, until};
use crate::real;

/// `host:port` of an engine.
fn address(engine: &Engine) -> String {
    engine.url.trim_start_matches("http://").trim_end_matches("/v1").to_owned()
}

/// A gateway with a picker in front of these, whose replicas are called a, b and c.
struct Picking {
    gateway: Running,
    port: u16,
}

impl Picking {
    fn start(folder: &Path, engines: &[&Engine], more: &str) -> Picking {
        let port = real::free_port();
        let lines = engines.iter().zip(["a", "b", "c"]);
        let lines: String =
            lines.map(|(engine, name)| format!("  - {{url: \"{}\", name: {name}}}\n", engine.url)).collect();
        let file = folder.join("gateway.yaml");
        let text = format!(
            "name_replicas: true\npicker: {{listen: \"127.0.0.1:{port}\"}}\n{more}replicas:\n{lines}"
        );
        std::fs::write(&file, text).expect("written");
        let gateway = Running::start(&[&file.display().to_string()]);
        let picking = Picking { gateway, port };
        until("all replicas answer", || picking.replicas().iter().all(|one| one["standing"] == "ready"));
        picking
    }

    fn replicas(&self) -> Vec<Value> {
        let page: Value = serde_json::from_str(&self.gateway.page("/v1/replicas")).expect("JSON");
        page["replicas"].as_array().expect("a list").clone()
    }

    fn metric(&self, line: &str) -> u64 {
        let page = self.gateway.page("/metrics");
        let found = page.lines().find_map(|text| text.strip_prefix(line)?.strip_prefix(' '));
        found.map_or(0, |count| count.trim().parse().expect("a count"))
    }

    fn ended(&self, how: &str) -> u64 {
        self.metric(&format!("plimsoll_gateway_requests_total{{outcome=\"{how}\"}}"))
    }

    fn all_ended(&self) -> u64 {
        let page = self.gateway.page("/metrics");
        let counts = page
            .lines()
            .filter_map(|line| line.strip_prefix("plimsoll_gateway_requests_total{")?.split_once("} "));
        counts.map(|(_, count)| count.trim().parse::<u64>().expect("a count")).sum()
    }

    fn is_empty(&self) {
        until("all loads are given back", || {
            self.replicas().iter().all(|one| one["requests"] == 0 && one["prompt_tokens_waiting"] == 0)
        });
    }

    /// Returns the picker's answers to these calls, by gRPC's Python.
    fn told(&self, python: &Path, calls: &[Value]) -> Vec<Value> {
        let mut child = Command::new(python)
            .arg(real::root().join("crates/cli/tests/servers/ext_proc.py"))
            .args(["ask", &self.port.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .spawn()
            .expect("python starts");
        let mut stdin = child.stdin.take().expect("piped");
        let lines: String = calls.iter().map(|call| format!("{call}\n")).collect();
        let writes = std::thread::spawn(move || {
            let _ = stdin.write_all(lines.as_bytes());
        });
        let output = child.wait_with_output().expect("it ends");
        writes.join().expect("a thread");
        let text = String::from_utf8(output.stdout).expect("text");
        text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
    }
}

/// Envoy with the configuration of the manual, its ports replaced; it ends with this value.
struct Envoy {
    child: Child,
    port: u16,
}

impl Drop for Envoy {
    fn drop(&mut self) {
        let group = nix::unistd::Pid::from_raw(self.child.id() as i32);
        let _ = nix::sys::signal::killpg(group, nix::sys::signal::Signal::SIGKILL);
        let _ = self.child.wait();
    }
}

impl Envoy {
    /// Starts Envoy with the manual's configuration, edited by `change`.
    fn start(folder: &Path, picker: u16, engines: &[String], change: impl Fn(String) -> String) -> Envoy {
        let port = real::free_port();
        let mut text = include_str!("../../../../docs/examples/envoy-picker.yaml").to_owned();
        for (from, to) in [("8080", port.to_string()), ("9002", picker.to_string())].into_iter().chain(
            ["8001", "8002", "8003"]
                .into_iter()
                .zip(engines.iter().map(|one| one.rsplit_once(':').expect("a port").1.to_owned())),
        ) {
            text = text.replace(&format!("port_value: {from}"), &format!("port_value: {to}"));
        }
        let file = folder.join("envoy.yaml");
        std::fs::write(&file, change(text)).expect("written");
        let folders = real::installed("venv-envoy/lib", "envoy").expect("it was looked for");
        let mut found = std::fs::read_dir(folders).expect("a folder").flatten();
        let python = found.find(|one| one.file_name().to_string_lossy().starts_with("python3")).expect("one");
        let log = std::fs::File::create(folder.join("envoy.log")).expect("created");
        let child = Command::new(python.path().join("site-packages/envoy/_bin/envoy"))
            .args(["-c", &file.display().to_string(), "--concurrency", "2", "-l", "warning"])
            .args(["--use-dynamic-base-id", "--disable-hot-restart"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .process_group(0)
            .spawn()
            .expect("envoy starts");
        let envoy = Envoy { child, port };
        until("envoy listens", || std::net::TcpStream::connect(("127.0.0.1", port)).is_ok());
        envoy
    }
}

/// Requests that an engine answered, by their ids.
fn answered(log: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(log).expect("a truth log");
    let rows = text.lines().skip(1).map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
    rows.map(|row| row["id"].as_str().expect("an id").to_owned()).collect()
}

/// Envoy in front of three engines, configured as in the manual, under a load of our own client.
/// Every request is answered once, by one engine, and by the picked one.
#[test]
fn envoy_sends_each_request_where_it_is_told() {
    if real::python("envoy").is_none() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let logs = ["a", "b", "c"].map(|name| folder.path().join(format!("{name}.jsonl")));
    let engines =
        logs.each_ref().map(|log| Engine::start_with("demo", &["--truth-log", log.to_str().expect("utf-8")]));
    let traffic = folder.path().join("traffic");
    let record = format!("record: {{dir: {}}}\n", traffic.display());
    let picking = Picking::start(folder.path(), &engines.each_ref(), &record);
    let envoy = Envoy::start(folder.path(), picking.port, &engines.each_ref().map(address), |text| text);
    let url = format!("http://127.0.0.1:{}/v1", envoy.port);
    let args = ["run", &url, "--rate", "30/s", "--for", "6s", "--isl", "200", "--osl", "20", "-q"];
    let found = plimsoll_in(folder.path(), &[&args[..], &["-o", "run", "--format", "json"]].concat()).json();
    let counts = &found["findings"]["levels"][0]["summary"]["counts"];
    let finished = counts["finished"].as_u64().expect("a count");
    assert!(finished > 120 && counts["requests"] == counts["finished"], "{counts}");
    picking.is_empty();
    let streamed = picking.metric("plimsoll_gateway_stage_seconds_count{stage=\"first_token\"}");
    assert!(streamed >= finished, "{streamed}: of each stream the first token was seen");
    drop(envoy);
    let (_, code) = picking.gateway.end();
    assert_eq!(code, Some(0));
    // The client's calibration requests are added; its probes are not recorded.
    let opened = plimsoll_store::open(&traffic.join("gateway-000001")).expect("a run");
    let picked = ["a", "b", "c"]
        .map(|name| opened.attempts.iter().filter(|row| row.answer.replica.as_deref() == Some(name)).count());
    assert!(opened.attempts.iter().all(|row| row.outcome.is_finished()), "all of it came whole");
    engines.into_iter().for_each(Engine::stop);
    let each = logs.each_ref().map(|log| answered(log));
    assert_eq!(each.each_ref().map(Vec::len), picked, "the engine that was picked is the one that was asked");
    assert!(
        picked.iter().filter(|count| **count > 0).count() > 1,
        "a choice that is none shows nothing: {picked:?}"
    );
    let mut ids: Vec<&String> = each.iter().flatten().collect();
    let all = ids.len();
    ids.sort_unstable();
    ids.dedup();
    assert!(
        ids.len() == all && all as u64 >= finished,
        "one request, one engine: {all}, {finished} of the load"
    );
}

/// A replica that Envoy does not know, and one that dies before anybody has noticed: the endpoint behind it serves, and is booked.
#[test]
fn envoy_falls_over_to_the_endpoint_behind() {
    if real::python("envoy").is_none() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let engines = [0; 2].map(|_| Engine::start("demo"));
    // The health interval is long, so that the gateway does not notice.
    let more = "route: {policy: round_robin}\ntelemetry: null\nhealth: {every_s: 600}\n";
    let picking = Picking::start(folder.path(), &engines.each_ref(), more);
    let [first, second] = engines.each_ref().map(address);
    let nobody = || format!("127.0.0.1:{}", real::free_port());
    let envoy = Envoy::start(folder.path(), picking.port, &[nobody(), second.clone(), nobody()], |text| text);
    let url = format!("http://127.0.0.1:{}/v1", envoy.port);
    let args = ["run", &url, "--rate", "10/s", "--for", "3s", "--isl", "50", "--osl", "5", "-q", "-o", "run"];
    let found = plimsoll_in(folder.path(), &[&args[..], &["--format", "json"]].concat()).json();
    let counts = &found["findings"]["levels"][0]["summary"]["counts"];
    assert_eq!(counts["requests"], counts["finished"], "{counts}");
    picking.is_empty();
    let of = |name: &str, how: &str| {
        picking.metric(&format!("plimsoll_gateway_attempts_total{{replica=\"{name}\",outcome=\"{how}\"}}"))
    };
    assert_eq!((of("a", "worked"), of("a", "failed")), (0, 0), "nothing is held against it");
    assert!(of("a", "cancelled") > 0, "it was chosen in turn");
    assert_eq!(of("b", "worked"), picking.ended("answered") + picking.ended("refused"));
    drop(envoy);
    let folder = tempfile::tempdir().expect("another");
    let envoy = Envoy::start(folder.path(), picking.port, &[first, second, nobody()], |text| text);
    let [a, b] = engines;
    a.stop();
    let (before, chosen) = (of("b", "worked"), of("a", "cancelled"));
    for _ in 0..6 {
        let url = format!("http://127.0.0.1:{}/v1/completions", envoy.port);
        let body = r#"{"model": "demo", "prompt": "hello", "max_tokens": 3}"#;
        let output =
            Command::new("curl").args(["-s", "-m", "60", "--json", body, &url]).output().expect("curl");
        let told = String::from_utf8(output.stdout).expect("text");
        assert!(told.contains("\"choices\""), "{told}");
    }
    picking.is_empty();
    assert_eq!(of("b", "worked"), before + 6, "each was answered by the one that lives");
    assert!(of("a", "cancelled") > chosen, "though the other was chosen in turn");
    b.stop();
}

/// Clients that leave Envoy in the middle, before a first token and after, leave no load behind.
/// Without replicas the client gets the picker's message.
#[test]
fn what_envoys_clients_do_comes_through() {
    if real::python("envoy").is_none() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let engine = Engine::start("demo");
    let picking = Picking::start(folder.path(), &[&engine], "admission: {wait_s: 1}\n");
    let own = address(&engine);
    let envoy = Envoy::start(folder.path(), picking.port, &[own.clone(), own.clone(), own], |text| text);
    let curl = |body: &Value| {
        let file = folder.path().join("body.json");
        std::fs::write(&file, body.to_string()).expect("written");
        let url = format!("http://127.0.0.1:{}/v1/chat/completions", envoy.port);
        let mut command = Command::new("curl");
        let body = format!("@{}", file.display());
        command.args(["-sN", "-m", "60", "-w", "\n%{http_code} %header{retry-after}", "--json", &body, &url]);
        command.stdout(Stdio::piped()).spawn().expect("curl starts")
    };
    let whole = |body: &Value| {
        let output = curl(body).wait_with_output().expect("it ends");
        String::from_utf8(output.stdout).expect("text")
    };
    let long = json!({"model": "demo", "stream": true, "max_tokens": 8000, "messages": [{"role": "user", "content": "hi"}]});
    let mut leaves = curl(&long);
    let mut begins = [0; 6];
    leaves.stdout.as_mut().expect("piped").read_exact(&mut begins).expect("an event");
    assert_eq!(&begins, b"data: ");
    leaves.kill().expect("it lives");
    leaves.wait().expect("killed");
    picking.is_empty();
    until("it is counted", || picking.ended("cancelled") == 1);
    let short = json!({"model": "demo", "max_tokens": 4, "messages": [{"role": "user", "content": "x".repeat(300_000)}]});
    let told = whole(&short);
    assert!(told.ends_with("\n200 "), "a body of many pieces: {}", &told[told.len().saturating_sub(300)..]);
    picking.is_empty();
    engine.stop();
    until("nobody is there", || picking.gateway.page("/readyz").starts_with("no replica"));
    let told = whole(&short);
    assert!(told.contains("\"code\":\"no_replica\"") && told.ends_with("\n503 1"), "{told}");
}

/// gRPC's own Python, with Envoy's own messages, in every pair of modes: the picked replica, the answer that names it, and no
/// leaked booking.
#[test]
fn a_client_that_is_not_ours_is_told_in_every_mode() {
    let Some(python) = real::python("envoy") else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let engines = [0; 2].map(|_| Engine::start("demo"));
    let picking = Picking::start(folder.path(), &engines.each_ref(), "telemetry: null\n");
    let addresses = engines.each_ref().map(address);
    let modes = ["NONE", "STREAMED", "BUFFERED", "BUFFERED_PARTIAL", "FULL_DUPLEX_STREAMED"];
    let head = |modes: [&str; 2]| {
        let headers =
            [[":method", "POST"], [":path", "/v1/completions"], [":scheme", "http"], ["x-request-id", "it"]];
        json!({"request_headers": headers, "modes": modes})
    };
    let body = "{\"model\": \"demo\", \"stream\": true, \"prompt\": \"hello\"}";
    let event = "data: {\"choices\":[{\"index\":0,\"text\":\" word\"}]}\n\n";
    let mut calls = Vec::new();
    let mut pairs = Vec::new();
    for request in modes {
        for answer in modes {
            let mut steps = vec![head([request, answer])];
            let mut due = 1;
            let mut answers = vec!["request_headers"];
            match request {
                "FULL_DUPLEX_STREAMED" => {
                    steps.push(json!({"request_body": &body[..9]}));
                    steps.push(json!({"request_body": &body[9..], "end": true}));
                    due = 2;
                    answers.push("request_body");
                }
                _ => {
                    steps.push(json!({"wait": due}));
                    if request != "NONE" {
                        steps.push(json!({"request_body": body, "end": true}));
                        due += 1;
                        answers.push("request_body");
                    }
                }
            }
            steps.push(json!({"wait": due}));
            let stream = [[":status", "200"], ["content-type", "text/event-stream"]];
            steps.push(json!({"response_headers": stream}));
            answers.push("response_headers");
            if answer == "NONE" {
                steps.push(json!({"response_trailers": true}));
                answers.push("response_trailers");
            } else {
                steps.push(json!({"response_body": event, "times": 2}));
                steps.push(json!({"response_body": "data: [DONE]\n\n", "end": true}));
                answers.extend(["response_body", "response_body"]);
            }
            calls.push(Value::Array(steps));
            pairs.push((request, answer, answers));
        }
    }
    let told = picking.told(&python, &calls);
    assert_eq!(told.len(), pairs.len());
    for (told, (request, answer, kinds)) in told.iter().zip(&pairs) {
        let what = format!("{request} {answer}: {told}");
        assert_eq!(told["status"], "OK", "{what}");
        let answers = told["answers"].as_array().expect("a list");
        let found: Vec<&str> = answers.iter().filter_map(|one| one["kind"].as_str()).collect();
        assert_eq!(found, *kinds, "{what}");
        let place = usize::from(request.starts_with("BUFFERED"));
        let named = &answers[place];
        let to = named["metadata"]["envoy.lb"]["x-gateway-destination-endpoint"].as_str().expect("somebody");
        assert_eq!(named["set"]["x-gateway-destination-endpoint"], to, "{what}");
        let mut both: Vec<&str> = to.split(',').collect();
        both.sort_unstable();
        let mut known: Vec<&str> = addresses.iter().map(String::as_str).collect();
        known.sort_unstable();
        assert_eq!(both, known, "{what}");
        assert_eq!((&named["actions"], &named["clears_route"]), (&json!([2]), &json!(true)), "{what}");
        assert!(
            answers.iter().enumerate().all(|(at, one)| at == place || one.get("metadata").is_none()),
            "{what}"
        );
        let streamed: String = answers.iter().filter_map(|one| one["streamed"].as_str()).collect();
        let duplex = |mode: &str| mode == "FULL_DUPLEX_STREAMED";
        let back = if duplex(request) { body.to_owned() } else { String::new() };
        let forth = if duplex(answer) { format!("{event}{event}data: [DONE]\n\n") } else { String::new() };
        assert_eq!(streamed, back + &forth, "{what}");
    }
    picking.is_empty();
    assert_eq!((picking.ended("answered"), picking.all_ended()), (25, 25));
    // A client that is cut off, or leaves at any point, gets no further message and leaves no booking.
    let duplex = head(["FULL_DUPLEX_STREAMED", "FULL_DUPLEX_STREAMED"]);
    let course = [
        duplex.clone(),
        json!({"request_body": body, "end": true}),
        json!({"wait": 2}),
        json!({"response_headers": [[":status", "200"]]}),
        json!({"response_body": event}),
    ];
    let gone: Vec<Value> = (1..=course.len())
        .map(|steps| {
            Value::Array([&course[..steps], &[json!({"wait": 0}), json!({"cancel": true})]].concat())
        })
        .collect();
    let told = picking.told(&python, &gone);
    assert!(
        told.iter().all(|one| one["status"].as_str().is_some_and(|s| s.starts_with("CANCELLED"))),
        "{told:?}"
    );
    picking.is_empty();
    let mut among = duplex.clone();
    among["subset"] = json!([addresses[1]]);
    let mut nobody = duplex;
    nobody["subset"] = json!("10.9.9.9:1");
    let told = picking.told(&python, &[json!([among, course[1]]), json!([nobody, course[1]])]);
    let metadata = &told[0]["answers"][0]["metadata"]["envoy.lb"]["x-gateway-destination-endpoint"];
    assert_eq!(metadata.as_str(), Some(addresses[1].as_str()));
    let instead = &told[1]["answers"][0];
    assert_eq!(
        (&instead["kind"], &instead["status"]),
        (&json!("immediate_response"), &json!(503)),
        "{instead}"
    );
    picking.is_empty();
    let said = Command::new(&python)
        .arg(real::root().join("crates/cli/tests/servers/ext_proc.py"))
        .args(["health", &picking.port.to_string(), "", "liveness", "readiness"])
        .args(["envoy.service.ext_proc.v3.ExternalProcessor", "nobody"])
        .output()
        .expect("python starts");
    let said = String::from_utf8(said.stdout).expect("text");
    assert_eq!(said.lines().collect::<Vec<_>>(), ["SERVING", "SERVING", "SERVING", "SERVING", "NOT_FOUND"]);
    let by_name: BTreeMap<String, u64> = picking
        .replicas()
        .iter()
        .map(|one| {
            (one["name"].as_str().expect("a name").to_owned(), one["requests"].as_u64().expect("a count"))
        })
        .collect();
    assert!(by_name.values().all(|count| *count == 0), "{by_name:?}");
}
