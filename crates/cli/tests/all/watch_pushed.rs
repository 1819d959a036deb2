//! A watch of pushed metrics: OpenTelemetry's own SDK, and invalid sources. The reference is the measurement of the SDK's process.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use serde_json::Value;

use crate::kit::{PLIMSOLL, plimsoll};
use crate::real;

/// A watch, what it listens on, and where it is read. It ends with this value.
pub struct Watch {
    child: Child,
    /// URL of the watch's page.
    pub page: String,
    /// Push addresses by kind of data; `host:port`.
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
    /// Starts a watch with this text in its watch file.
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

    /// Returns the content at a path of the watch.
    pub fn get(&self, path: &str) -> String {
        let answer = request(&self.page, &format!("GET {path} HTTP/1.1\r\n"), b"");
        answer.split_once("\r\n\r\n").map(|(_, body)| body.to_owned()).unwrap_or_default()
    }

    pub fn rows(&self) -> Value {
        serde_json::from_str(&self.get("/v1/rows")).unwrap_or_default()
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

/// A ceiling of 150 ms is inside a bucket of vLLM's, so that its count is a bracket.
fn budget(folder: &Path) -> String {
    let path = folder.join("budget.yaml");
    let rows =
        "  - {id: ttft, metric: ttft, p: 99, max: 30ms}\n  - {id: e2e, metric: e2e, p: 50, max: 400ms}\n";
    std::fs::write(&path, format!("version: 1\nname: chat\nbudgets:\n{rows}")).expect("written");
    path.display().to_string()
}

#[test]
fn a_pushed_source_that_cannot_be_is_refused_in_one_line() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("watch.yaml");
    let budget = budget(folder.path());
    let held = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let in_use = format!("{{otlp: \"{}\"}}", held.local_addr().expect("bound"));
    for (source, word) in [
        ("{otlp: nowhere}", "write the listen address as PORT or ADDRESS:PORT"),
        ("{otlp: \"0\", key_env: PLIMSOLL_NO_SUCH_KEY}", "PLIMSOLL_NO_SUCH_KEY"),
        ("{url: \"http://127.0.0.1:9/metrics\", key_env: X}", "--key-env"),
        ("{push: \"0\"}", "unknown"),
        ("{remote_write: \"0\"}", "unknown"),
        (&in_use, "name another port"),
    ] {
        std::fs::write(&file, format!("sources: [{source}]\nlisten: none\n")).expect("written");
        let ended = plimsoll(&["watch", &file.display().to_string(), "-b", &budget, "--for", "1s", "-q"]);
        assert!(ended.code == 2 && ended.stderr.contains(word), "{source}: {} {}", ended.code, ended.stderr);
        assert_eq!(ended.stderr.trim_end().lines().count(), 1, "{}", ended.stderr);
    }
    // Nothing comes: what could be judged is not known.
    std::fs::write(&file, "sources: [{otlp: \"0\"}]\nlisten: none\n").expect("written");
    let ended = plimsoll(&["watch", "lint", &file.display().to_string(), "-b", &budget, "--for", "1s", "-q"]);
    assert!(
        ended.code == 5 && ended.stderr.contains("nothing was received within 1 s"),
        "{} {}",
        ended.code,
        ended.stderr
    );
}

/// OpenTelemetry's own SDK in each of its modes, as two successive processes of one name: every request is counted once.
///
/// The brackets contain the measured values. The largest observation decides a ceiling inside a bucket. A failed request is over every
/// ceiling.
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
        // A source is lost after some of these, and a busy machine takes seconds from a last export to the first read of the rows.
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
            // A bucket of a twentieth of an octave contains few of them.
            assert!(over(0, 1) - over(0, 0) <= 40, "{name}: {}", rows[0]);
        }
        assert!(e2e.iter().all(|s| *s < 0.4));
        assert_eq!([over(1, 0), over(1, 1)], [failed, failed], "{name}: {}", rows[1]);
        let pages = watch.rows()["fleet"]["pages"].clone();
        assert_eq!(pages[1], 1, "{name}: two processes of one name are one page");
    }
}
