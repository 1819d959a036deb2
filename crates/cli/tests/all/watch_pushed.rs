//! A watch of what is pushed: a real Prometheus that scrapes our engine and writes on, and bodies that are none. The engine's own log of each request is the truth.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use serde_json::Value;

use plimsoll_lab::parts;

use crate::kit::{Engine, PLIMSOLL, plimsoll, run_folder};
use crate::real;

/// A watch, what it listens on, and where it is read. It ends with this value.
pub struct Watch {
    child: Child,
    /// Where it is read.
    pub page: String,
    /// Where it takes what is pushed, by what is taken there; `host:port`.
    pub takes: Vec<(String, String)>,
}

impl Drop for Watch {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Fails where something does not become so within a minute.
pub fn becomes<T>(what: &str, mut get: impl FnMut() -> Result<T, String>) -> T {
    let mut last = String::new();
    for _ in 0..600 {
        match get() {
            Ok(found) => return found,
            Err(seen) => last = seen,
        }
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
    panic!("{what}: never; last {last}")
}

impl Watch {
    /// Watches these sources (a line of a watch file), which push to so many addresses.
    pub fn start(folder: &Path, name: &str, sources: &str, addresses: usize, env: &[(&str, &str)]) -> Watch {
        let asked = format!("sources: {sources}\nbudget: {}\n", budget(folder));
        Watch::of(folder, name, &asked, addresses, env)
    }

    /// Watches what this says in a watch file.
    pub fn of(folder: &Path, name: &str, asked: &str, addresses: usize, env: &[(&str, &str)]) -> Watch {
        let file = folder.join(format!("{name}.yaml"));
        let every = if asked.contains("every: ") { "" } else { "every: 500ms\n" };
        let rest = "window: 5m\nlisten: 127.0.0.1:0\n";
        std::fs::write(&file, format!("{asked}{every}{rest}")).expect("written");
        let mut child = Command::new(PLIMSOLL)
            .args(["watch", &file.display().to_string(), "-q", "--format", "json"])
            .envs(env.iter().copied())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the binary starts");
        let mut lines = BufReader::new(child.stderr.take().expect("piped")).lines().map_while(Result::ok);
        let page = lines.next().expect("where it is served");
        let page = page.rsplit("http://").next().expect("an address").to_owned();
        let takes = (0..addresses).map(|_| {
            let line = lines.next().expect("where it listens");
            let (what, at) = line.split_once(" is taken at http://").unwrap_or_else(|| panic!("{line}"));
            (what.to_owned(), at.split('/').next().expect("an address").to_owned())
        });
        let takes = takes.collect();
        std::thread::spawn(move || lines.for_each(drop));
        Watch { child, page, takes }
    }

    /// What stands at a path of it.
    pub fn get(&self, path: &str) -> String {
        let answer = request(&self.page, &format!("GET {path} HTTP/1.1\r\n"), b"");
        answer.split_once("\r\n\r\n").map(|(_, body)| body.to_owned()).unwrap_or_default()
    }

    /// What it knows now.
    pub fn rows(&self) -> Value {
        serde_json::from_str(&self.get("/v1/rows")).unwrap_or_default()
    }

    /// One of its own figures.
    pub fn figure(&self, name: &str) -> f64 {
        let page = self.get("/metrics");
        let line = page.lines().find(|line| line.starts_with(name));
        line.and_then(|line| line.rsplit(' ').next()?.parse().ok()).unwrap_or(0.0)
    }
}

/// Sends a request and reads its whole answer.
pub fn request(addr: &str, head: &str, body: &[u8]) -> String {
    let mut socket = TcpStream::connect(addr).expect("it listens");
    let length =
        if head.starts_with("GET") { String::new() } else { format!("Content-Length: {}\r\n", body.len()) };
    let _ = socket.write_all(format!("{head}Host: {addr}\r\nConnection: close\r\n{length}\r\n").as_bytes());
    let _ = socket.write_all(body);
    let mut answer = String::new();
    socket.read_to_string(&mut answer).expect("an answer");
    answer
}

/// 150 ms lies inside a bucket of vLLM's, so that its count is a bracket.
fn budget(folder: &Path) -> String {
    let path = folder.join("budget.yaml");
    let rows =
        "  - {id: ttft, metric: ttft, p: 99, max: 30ms}\n  - {id: e2e, metric: e2e, p: 50, max: 400ms}\n";
    std::fs::write(&path, format!("version: 1\nname: chat\nbudgets:\n{rows}")).expect("written");
    path.display().to_string()
}

/// A Prometheus that scrapes this target twice a second and writes on what it scraped, in several queues of which one may be four scrapes behind another.
fn prometheus(folder: &Path, target: &str, writes_to: &str) -> Option<Child> {
    let config = format!(
        "global: {{scrape_interval: 500ms, scrape_timeout: 400ms, external_labels: {{prometheus_replica: p0}}}}\n\
         scrape_configs: [{{job_name: llm, static_configs: [{{targets: ['{target}'], labels: {{namespace: prod}}}}]}}]\n\
         remote_write: [{{url: 'http://{writes_to}/api/v1/write', authorization: {{credentials: sesame}}, queue_config: {{batch_send_deadline: 2s, min_shards: 4, max_samples_per_send: 200}}}}]\n"
    );
    std::fs::write(folder.join("prometheus.yml"), config).expect("written");
    let started = Command::new("prometheus")
        .arg(format!("--config.file={}", folder.join("prometheus.yml").display()))
        .arg(format!("--storage.tsdb.path={}", folder.join("data").display()))
        .arg("--web.listen-address=127.0.0.1:0")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    parts::or_skipped(
        started.map_err(|_| "prometheus is not installed: apt-get install prometheus".to_owned()),
    )
}

/// Ended with its value.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Seconds to the first token, and to the end, of each request that the engine finished.
fn truth(log: &Path) -> Vec<[f64; 2]> {
    let text = std::fs::read_to_string(log).expect("a log");
    let lines = text.lines().skip(1).map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
    let finished = lines.filter(|line| line["outcome"] == "finished" && line["steps_ns"][0].is_i64());
    finished
        .map(|line| {
            let steps = line["steps_ns"].as_array().expect("steps");
            let since = |step: &Value| {
                (step.as_i64().expect("ns") - line["submitted_ns"].as_i64().expect("ns")) as f64 / 1e9
            };
            [since(&steps[0]), since(&steps[steps.len() - 1])]
        })
        .collect()
}

/// The verdict's counts are those of the page read directly, to the request, and its brackets hold what the engine's log says. A server that is gone is a lost source.
#[test]
fn what_a_prometheus_writes_is_counted_to_the_request() {
    let folder = tempfile::tempdir().expect("a folder");
    let log = folder.path().join("truth.jsonl");
    let engine = Engine::start_with("demo", &["--truth-log", &log.display().to_string()]);
    let target = engine.url.trim_start_matches("http://").trim_end_matches("/v1").to_owned();
    let sources = "[{remote_write: \"127.0.0.1:0\", key_env: PUSH_KEY}]";
    let watch = Watch::start(folder.path(), "written", sources, 1, &[("PUSH_KEY", "sesame")]);
    let direct =
        Watch::start(folder.path(), "direct", &format!("[{{url: \"http://{target}/metrics\"}}]"), 0, &[]);
    let Some(_prometheus) = prometheus(folder.path(), &target, &watch.takes[0].1).map(Ended) else { return };
    becomes("pages answer", || {
        let answering = [&watch, &direct].map(|watch| watch.figure("plimsoll_watch_pages_answering"));
        (answering == [1.0, 1.0]).then_some(()).ok_or(format!("{answering:?}"))
    });
    let (_run_folder, run) = run_folder();
    let load =
        ["run", &engine.url, "--rate", "30/s", "--for", "3s", "--osl", "8", "-q", "-o", &run, "--force"];
    let ended = plimsoll(&load);
    assert!(matches!(ended.code, 0 | 4), "{}", ended.stderr);
    let n = |watch: &Watch, row: usize| watch.rows()["rows"][row]["n"].as_u64().unwrap_or(0);
    let sent = plimsoll_store::open(Path::new(&run)).expect("a run").attempts.len() as u64;
    // Every scrape is told once all queues have sent it.
    let counted = becomes("both count the same", || {
        let all = [n(&watch, 0), n(&watch, 1), n(&direct, 0), n(&direct, 1)];
        (all[0] >= sent && all.iter().all(|n| *n == all[0]))
            .then_some(all[0])
            .ok_or(format!("{all:?} of {sent}"))
    });
    let (written, read) = (watch.rows(), direct.rows());
    engine.stop();
    let truth = truth(&log);
    assert_eq!(counted, truth.len() as u64);
    for (row, limit_s) in [(0, 0.03), (1, 0.4)] {
        let over = truth.iter().filter(|request| request[row] > limit_s).count() as f64;
        // The page rounds to its own clock: a request within a millisecond of the ceiling may be on either side.
        let near = truth.iter().filter(|request| (request[row] - limit_s).abs() < 1e-3).count() as f64;
        for said in [&written, &read] {
            let share =
                |end: usize| said["rows"][row]["over"][end].as_f64().expect("a share") * counted as f64;
            assert!(
                share(0) - near <= over + 1e-6 && over <= share(1) + near + 1e-6,
                "{over}: {}",
                said["rows"][row]
            );
        }
    }
    let state = becomes("the source is lost", || {
        let rows = watch.rows();
        let state = rows["rows"][0]["state"].as_str().unwrap_or_default().to_owned();
        (state == "source_lost").then_some(state.clone()).ok_or(rows["rows"][0].to_string())
    });
    assert_eq!(
        (state.as_str(), watch.rows()["fleet"]["pages"].clone()),
        ("source_lost", serde_json::json!([0, 1]))
    );
}

/// What is no such request is refused for good with a line that says why; who does not know the token too; and the next one is taken.
#[test]
fn what_is_no_remote_write_is_refused_in_a_line() {
    let folder = tempfile::tempdir().expect("a folder");
    let watch = Watch::start(
        folder.path(),
        "w",
        "[{remote_write: \"0\", key_env: PUSH_KEY}]",
        1,
        &[("PUSH_KEY", "sesame")],
    );
    let addr = &watch.takes[0].1;
    assert!(addr.starts_with("127.0.0.1:"), "a port alone is loopback's: {addr}");
    let recorded =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../wire/fixtures/prometheus/remote_write/001.snappy");
    let body = std::fs::read(recorded).expect("a recorded body");
    let post = "POST /api/v1/write HTTP/1.1\r\n";
    let key = "Authorization: Bearer sesame\r\n";
    let usual = "Content-Type: application/x-protobuf\r\nContent-Encoding: snappy\r\nX-Prometheus-Remote-Write-Version: 0.1.0\r\n";
    let claims = [0xff, 0xff, 0xff, 0xff, 0x0f];
    for (head, body, status, word) in [
        (format!("{post}{usual}"), &body[..], 401, "bearer token"),
        (format!("{post}{usual}Authorization: Bearer sesam\r\n"), &body[..], 401, "bearer token"),
        (format!("{post}{key}{}", usual.replace("snappy", "gzip")), &body[..], 415, "send snappy"),
        (
            format!("{post}{key}{}", usual.replace("x-protobuf", "json")),
            &body[..],
            415,
            "send application/x-protobuf",
        ),
        (
            format!(
                "{post}{key}{}",
                usual.replace("protobuf\r", "protobuf;proto=io.prometheus.write.v2.Request\r")
            ),
            &body[..],
            415,
            "send 1.0",
        ),
        (format!("{post}{key}{}", usual.replace("0.1.0", "2.0.0")), &body[..], 400, "send 0.1.0"),
        (format!("{post}{key}{usual}"), &b"{\"streams\": []}"[..], 400, "snappy's block format"),
        (format!("{post}{key}{usual}"), &body[..100], 400, "snappy's block format"),
        (format!("{post}{key}{usual}"), &claims[..], 413, "smaller batches"),
        (format!("GET /api/v1/write HTTP/1.1\r\n{key}"), &b""[..], 405, "POST"),
        (format!("POST /v1/traces HTTP/1.1\r\n{key}{usual}"), &b""[..], 404, "at /api/v1/write"),
    ] {
        let answer = request(addr, &head, body);
        let (said, text) = answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("{answer}"));
        assert!(said.starts_with(&format!("HTTP/1.1 {status} ")) && text.contains(word), "{head}: {answer}");
        assert_eq!(text.trim_end().lines().count(), 1, "{answer}");
    }
    assert!(request(addr, &format!("{post}{key}{usual}"), &body).starts_with("HTTP/1.1 204"));
    becomes("what was taken is told", || {
        let taken = watch.figure("plimsoll_watch_pushed_samples_total{source=\"remote write");
        (taken == 6.0).then_some(()).ok_or(taken.to_string())
    });
    // The scrape lies long before the watch: it is where counters begin.
    assert_ne!(watch.rows()["rows"][0]["state"], "holds");
}

#[test]
fn a_pushed_source_that_cannot_be_is_refused_in_one_line() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("watch.yaml");
    let budget = budget(folder.path());
    let held = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let in_use = format!("{{remote_write: \"{}\"}}", held.local_addr().expect("bound"));
    for (source, word) in [
        ("{remote_write: nowhere}", "write PORT or ADDRESS:PORT"),
        ("{remote_write: \"0\", key_env: PLIMSOLL_NO_SUCH_KEY}", "PLIMSOLL_NO_SUCH_KEY"),
        ("{url: \"http://127.0.0.1:9/metrics\", key_env: X}", "--key-env"),
        ("{push: \"0\"}", "unknown"),
        (&in_use, "name another port"),
    ] {
        std::fs::write(&file, format!("sources: [{source}]\nlisten: none\n")).expect("written");
        let ended = plimsoll(&["watch", &file.display().to_string(), "-b", &budget, "--for", "1s", "-q"]);
        assert!(ended.code == 2 && ended.stderr.contains(word), "{source}: {} {}", ended.code, ended.stderr);
        assert_eq!(ended.stderr.trim_end().lines().count(), 1, "{}", ended.stderr);
    }
    // Nothing comes: what could be judged is not known.
    std::fs::write(&file, "sources: [{remote_write: \"0\"}]\nlisten: none\n").expect("written");
    let ended = plimsoll(&["watch", "lint", &file.display().to_string(), "-b", &budget, "--for", "1s", "-q"]);
    assert!(
        ended.code == 5 && ended.stderr.contains("nothing came within 1 s"),
        "{} {}",
        ended.code,
        ended.stderr
    );
}

/// OpenTelemetry's own SDK in each of its ways, as two processes of one name after each other: every request is counted once, the brackets hold what was measured, and the
/// largest observation settles a ceiling that lies inside a bucket. What failed is over every ceiling.
#[test]
fn what_opentelemetry_measures_is_counted_to_the_request() {
    let Some(done) = real::or_skipped(real::installed("venv-otel/.done", "otel")) else { return };
    let python = done.with_file_name("bin/python");
    let folder = tempfile::tempdir().expect("a folder");
    for (temporality, buckets) in [
        ("delta", "explicit"),
        ("cumulative", "explicit"),
        ("delta", "exponential"),
        ("cumulative", "exponential"),
    ] {
        // gRPC has its token elsewhere: without one, it is on loopback.
        let grpc = temporality == "delta" && buckets == "explicit";
        let key = if grpc { "" } else { ", key_env: PUSH_KEY" };
        let source = format!("[{{otlp: \"127.0.0.1:0\"{key}}}]");
        let name = format!("{temporality}-{buckets}");
        // A source is lost after some of these, and a busy machine takes seconds from a last export to the first look at the rows.
        let asked = format!("sources: {source}\nbudget: {}\nevery: 2s\n", budget(folder.path()));
        let watch = Watch::of(folder.path(), &name, &asked, 1, &[("PUSH_KEY", "sesame")]);
        assert_eq!(watch.takes[0].0, "otlp");
        let (mut ttft, mut e2e, mut failed) = (Vec::new(), Vec::new(), 0);
        for seed in ["1", "2"] {
            let output = Command::new(&python)
                .arg(real::root().join("crates/cli/tests/servers/otel_measure.py"))
                .args([&watch.takes[0].1, temporality, buckets, seed])
                .args(grpc.then_some("grpc"))
                .output()
                .expect("python starts");
            let said = String::from_utf8_lossy(&output.stderr);
            let told: Value =
                serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{e}: {said}"));
            let values = |name: &str| -> Vec<f64> {
                told[name].as_array().expect("values").iter().map(|v| v.as_f64().expect("s")).collect()
            };
            ttft.extend(values("ttft"));
            e2e.extend(values("e2e"));
            failed += told["failed"].as_u64().expect("a count");
        }
        let n = ttft.len() as u64 + failed;
        let rows = becomes("all are counted", || {
            let rows = watch.rows()["rows"].clone();
            let all = [0, 1].iter().all(|row| rows[*row]["n"].as_u64() == Some(n));
            all.then_some(rows.clone()).ok_or(format!("{n}: {rows}"))
        });
        let over = |row: usize, end: usize| {
            (rows[row]["over"][end].as_f64().expect("a share") * n as f64).round() as u64
        };
        let truth = ttft.iter().filter(|s| **s > 0.03).count() as u64 + failed;
        assert!(over(0, 0) <= truth && truth <= over(0, 1), "{name}: {truth}: {}", rows[0]);
        if buckets == "exponential" {
            // A bucket of a twentieth of an octave holds few of them.
            assert!(over(0, 1) - over(0, 0) <= 40, "{name}: {}", rows[0]);
        }
        assert!(e2e.iter().all(|s| *s < 0.4));
        assert_eq!([over(1, 0), over(1, 1)], [failed, failed], "{name}: {}", rows[1]);
        let pages = watch.rows()["fleet"]["pages"].clone();
        assert_eq!(pages[1], 1, "{name}: two processes of one name are one page");
    }
}
