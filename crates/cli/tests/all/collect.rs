//! The collector from the outside: acknowledged spans are kept, and refused spans get an error.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use plimsoll_model::{AttributeValue, SpanEvent, SpanKind, TraceSpan};
use plimsoll_store::read_spans;
use plimsoll_wire::trace::otlp;
use serde_json::Value;

use crate::kit::{PLIMSOLL, data, plimsoll, run_folder};
use crate::real;

/// A collector in a separate process.
pub struct Collector {
    child: Child,
    pub addr: SocketAddr,
    pub run: PathBuf,
    _home: tempfile::TempDir,
}

impl Collector {
    pub fn start(more: &[&str]) -> Collector {
        let (home, run) = run_folder();
        let mut child = Command::new(PLIMSOLL)
            .args([
                "collect",
                "--listen",
                "127.0.0.1:0",
                "--until-stdin-ends",
                "-q",
                "--format",
                "json",
                "-o",
                &run,
            ])
            .args(more)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the collector starts");
        let mut line = String::new();
        let mut stderr = BufReader::new(child.stderr.take().expect("piped"));
        stderr.read_line(&mut line).expect("it says where it listens");
        let addr = line.split(' ').nth(2).and_then(|addr| addr.parse().ok());
        let addr = addr.unwrap_or_else(|| panic!("the collector said {line:?}"));
        // The rest of stderr is read and discarded, because a full pipe would block the collector.
        std::thread::spawn(move || std::io::copy(&mut stderr, &mut std::io::sink()));
        Collector { child, addr, run: run.into(), _home: home }
    }

    /// Ends it in order; what it printed. Its folder stays as long as it.
    pub fn end(&mut self) -> (i32, Value) {
        drop(self.child.stdin.take());
        self.ended()
    }

    /// Waits until the collector has ended without a signal.
    fn ended(&mut self) -> (i32, Value) {
        let mut text = String::new();
        let mut stdout = self.child.stdout.take().expect("piped");
        stdout.read_to_string(&mut text).expect("stdout is text");
        let code = self.child.wait().expect("it ends").code().unwrap_or(-1);
        (code, data(serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text:?}"))))
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.addr).expect("it listens");
        stream.set_read_timeout(Some(Duration::from_secs(60))).expect("a time-out");
        stream
    }

    /// Sends a POST request and returns status, head and body. After a refusal by its header, the connection may be closed during
    /// the write.
    fn post(&self, head: &str, body: &[u8]) -> (u16, String, Vec<u8>) {
        let mut stream = self.connect();
        let length = body.len();
        let _ = write!(stream, "POST /v1/traces HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {length}\r\n{head}\r\n\r\n")
            .and_then(|()| stream.write_all(body));
        answer(&mut stream)
    }
}

impl Drop for Collector {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn answer(stream: &mut TcpStream) -> (u16, String, Vec<u8>) {
    let mut bytes = Vec::new();
    // Bytes before a reset are an answer, too.
    let _ = stream.read_to_end(&mut bytes);
    let end = bytes.windows(4).position(|four| four == b"\r\n\r\n").expect("a head") + 4;
    let head = String::from_utf8_lossy(&bytes[..end]).to_ascii_lowercase();
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
    (status, head, bytes[end..].to_vec())
}

fn spans(trace: u128, count: u64) -> Vec<TraceSpan> {
    let span = |id: u64| TraceSpan {
        trace,
        id,
        parent: (id > 1).then_some(1),
        name: format!("step {}", id % 7),
        service: Some("shop".into()),
        kind: SpanKind::Server,
        start_ns: 1_800_000_000_000_000_000 + id as i64 * 1_000,
        end_ns: 1_800_000_000_000_500_000 + id as i64 * 1_000,
        failed: id.is_multiple_of(5),
        attributes: vec![
            ("gen_ai.request.model".into(), AttributeValue::Text("tiny".into())),
            ("n".into(), AttributeValue::Int(id as i64)),
            ("share".into(), AttributeValue::Real(id as f64 / 3.0)),
        ],
        events: vec![SpanEvent { at_ns: 1_800_000_000_000_200_000, name: "gen_ai.token".into() }],
        weight: 1.0,
    };
    (1..=count).map(span).collect()
}

const PROTOBUF: &str = "content-type: application/x-protobuf";

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).and_then(|()| encoder.finish()).expect("memory takes it")
}

#[test]
fn what_is_sent_over_http_is_in_the_run() {
    let mut collector = Collector::start(&[]);
    let (first, second) = (spans(1, 200), spans(2, 50));
    assert_eq!(collector.post(PROTOBUF, &otlp::encode(&first)).0, 200);
    let zipped =
        collector.post(&format!("{PROTOBUF}\r\ncontent-encoding: gzip"), &gzip(&otlp::encode(&second)));
    assert_eq!((zipped.0, zipped.2.len()), (200, 0), "taken in full: an empty message");
    let json = br#"{"resourceSpans":[{"scopeSpans":[{"spans":[
        {"traceId":"00000000000000000000000000000003","spanId":"0000000000000001","name":"j","startTimeUnixNano":"5","endTimeUnixNano":"6"},
        {"traceId":"","spanId":"0000000000000002","name":"no trace","startTimeUnixNano":"5","endTimeUnixNano":"6"}]}]}]}"#;
    let (status, head, body) = collector.post("content-type: application/json; charset=utf-8", json);
    assert_eq!((status, head.contains("application/json")), (200, true));
    let told: Value = serde_json::from_slice(&body).expect("JSON");
    assert_eq!(told["partialSuccess"]["rejectedSpans"], "1");
    let (code, said) = collector.end();
    assert_eq!(
        (code, said["collected"]["spans"].as_u64(), said["overview"]["traces"].as_u64()),
        (0, Some(251), Some(3))
    );
    let read = read_spans(&collector.run).expect("a run");
    assert_eq!(read[..200], first[..]);
    assert_eq!(read[200..250], second[..]);
    assert_eq!((read[250].name.as_str(), read[250].took_ns()), ("j", 1));
    let shown = plimsoll(&["show", collector.run.to_str().expect("utf-8")]);
    assert_eq!(shown.code, 0, "{}", shown.stderr);
    assert!(shown.stdout.starts_with("251 spans in 3 traces, from "), "{}", shown.stdout);
    let run = collector.run.to_str().expect("utf-8");
    let profile = plimsoll(&["profile", run, "--format", "json"]);
    assert_eq!(profile.code, 0, "{}", profile.stderr);
    assert_eq!(
        (&profile.json()["count"]["spans"], &profile.json()["count"]["profiled"]),
        (&251.into(), &3.into())
    );
}

#[test]
fn what_was_acknowledged_survives_a_kill() {
    let mut collector = Collector::start(&[]);
    let sent = spans(9, 3_000);
    for batch in sent.chunks(500) {
        assert_eq!(collector.post(PROTOBUF, &otlp::encode(batch)).0, 200);
    }
    collector.child.kill().expect("it is killed");
    collector.child.wait().expect("it is gone");
    assert!(!collector.run.join("spans.parquet").exists());
    let shown = plimsoll(&["show", collector.run.to_str().expect("utf-8")]);
    assert!(shown.stderr.contains("3000 spans from the log: the run was cut off"), "{}", shown.stderr);
    assert!(shown.stdout.contains("This run is partial"), "{}", shown.stdout);
    assert_eq!(read_spans(&collector.run).expect("recovered"), sent);
}

#[test]
fn past_its_bound_it_says_when_to_come_back() {
    let mut collector = Collector::start(&["--pending", "1"]);
    let body = otlp::encode(&spans(4, 5_000));
    let body = &body[..body.len().min(1 << 20)];
    let (most, rest) = body.split_at(900_000.min(body.len() - 1));
    let sent = spans(5, 2_000);
    let message = otlp::encode(&sent);
    assert!(message.len() > 200_000 && message.len() < 1 << 20, "{}", message.len());
    // A request that stays on its way takes most of the megabyte, once it has been read. Where the second comes before that, the first is the
    // one that finds no room.
    let met = (0..20).find_map(|_| {
        let mut held = collector.connect();
        let _ = write!(held, "POST /v1/traces HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {}\r\n{PROTOBUF}\r\n\r\n", body.len())
            .and_then(|()| held.write_all(most));
        std::thread::sleep(Duration::from_millis(200));
        let second = collector.post(PROTOBUF, &message);
        (second.0 != 200).then_some((held, second))
    });
    let (mut held, (status, head, body)) =
        met.expect("a request is refused while the other one is on its way");
    assert_eq!(status, 429);
    assert!(head.contains("retry-after: 1"), "{head}");
    assert!(body.windows(9).any(|part| part == b"RetryInfo"), "the status says so too");
    held.write_all(rest).expect("it takes the rest");
    let _ = answer(&mut held);
    assert_eq!(collector.post(PROTOBUF, &message).0, 200, "there is room again");
    let (code, said) = collector.end();
    assert_eq!(code, 0);
    assert!(said["collected"]["refused_requests"].as_u64() >= Some(1), "{said}");
}

#[test]
fn what_can_not_be_taken_is_named() {
    let mut collector = Collector::start(&["--pending", "1"]);
    let said = |head: &str, body: &[u8]| {
        let (status, _, body) = collector.post(head, body);
        (status, String::from_utf8_lossy(&body).into_owned())
    };
    let (status, why) = said("content-type: text/plain", b"x");
    assert!(status == 415 && why.contains("application/x-protobuf"), "{status} {why}");
    assert_eq!(said(&format!("{PROTOBUF}\r\ncontent-encoding: br"), b"x").0, 415);
    let (status, why) = said(PROTOBUF, b"\x0a\x05ab");
    assert!(status == 400 && why.contains("as many bytes as its length field"), "{status} {why}");
    let (status, why) = said("content-type: application/json", b"{\"resourceSpans\":7}");
    assert!(status == 400 && why.contains("line 1"), "{status} {why}");
    assert_eq!(said(&format!("{PROTOBUF}\r\ncontent-encoding: gzip"), b"no gzip").0, 400);
    assert_eq!(said(PROTOBUF, &vec![0; 2 << 20]).0, 413);
    for (request, status) in [("GET /v1/traces", 405), ("POST /v1/metrics", 404)] {
        let mut stream = collector.connect();
        write!(stream, "{request} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: 0\r\n\r\n")
            .expect("sent");
        assert_eq!(answer(&mut stream).0, status, "{request}");
    }
    // An exporter configured with https: its connection is closed immediately, and the collector's operator gets a message.
    let mut stream = collector.connect();
    stream.write_all(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03").expect("sent");
    assert_eq!(stream.read_to_end(&mut Vec::new()).map_err(|e| e.kind()).unwrap_or(0), 0);
    // A request without spans is a request.
    assert_eq!(said("content-type: application/json", b"{}"), (200, "{}".into()));
    let (status, why) = said("content-type: application/json", b"{\"resourceMetrics\":[]}");
    assert!(status == 400 && why.contains("resourceSpans, found a JSON object"), "{status} {why}");
    let (code, said) = collector.end();
    assert_eq!(code, 5, "nothing came");
    assert_eq!(said["collected"]["tls_connections"], 1);
    assert_eq!(said["collected"]["other_requests"], 1);
    assert_eq!(said["collected"]["spans"], 0);
}

#[test]
fn it_ends_by_itself_or_by_a_signal() {
    let mut collector = Collector::start(&["--max-spans", "100"]);
    assert_eq!(collector.post(PROTOBUF, &otlp::encode(&spans(6, 120))).0, 200);
    let (code, said) = collector.ended();
    assert_eq!(
        (code, said["collected"]["spans"].as_u64()),
        (0, Some(120)),
        "the batch that reaches it is kept whole"
    );

    let mut collector = Collector::start(&[]);
    assert_eq!(collector.post(PROTOBUF, &otlp::encode(&spans(7, 10))).0, 200);
    let process = nix::unistd::Pid::from_raw(collector.child.id() as i32);
    nix::sys::signal::kill(process, nix::sys::signal::Signal::SIGINT).expect("it lives");
    assert_eq!(collector.ended().0, 0);
    assert_eq!(read_spans(&collector.run).expect("a run").len(), 10);

    let held = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let held_at = held.local_addr().expect("an address").to_string();
    let (_folder, run) = run_folder();
    let wrong = plimsoll(&["collect", "--listen", &held_at, "-o", &run]);
    assert_eq!(wrong.code, 2);
    assert!(wrong.stderr.contains("name another port with --listen"), "{}", wrong.stderr);
    assert!(!std::path::Path::new(&run).exists(), "nothing is left behind");
    let wrong = plimsoll(&["collect", "--listen", "nowhere"]);
    assert_eq!(wrong.code, 2);
    assert!(wrong.stderr.contains("--listen nowhere: write :PORT"), "{}", wrong.stderr);
}

/// Spans as OpenTelemetry's own SDK sends them, over both protocols, with and without gzip.
///
/// `scripts/real-server setup otel` installs it (`.ci/run` does). Where it is not installed the test is skipped, or fails where parts are required.
#[test]
fn what_opentelemetry_sends_is_what_is_kept() {
    let Some(done) = real::or_skipped(real::installed("venv-otel/.done", "otel")) else { return };
    let python = done.with_file_name("bin/python");
    let mut collector = Collector::start(&[]);
    let addr = collector.addr.to_string();
    let mut sent = Vec::new();
    for how in [&["grpc"][..], &["grpc", "gzip"], &["http"], &["http", "gzip"]] {
        let output = Command::new(&python)
            .arg(real::root().join("crates/cli/tests/servers/otel_send.py"))
            .arg(&addr)
            .args(how)
            .output()
            .expect("python starts");
        let told: Value = serde_json::from_slice(&output.stdout)
            .unwrap_or_else(|e| panic!("{how:?}: {e}: {}", String::from_utf8_lossy(&output.stderr)));
        assert_eq!(told["flushed"], true, "{how:?}: {}", String::from_utf8_lossy(&output.stderr));
        let spans = told["spans"].as_array().cloned().unwrap_or_default();
        assert_eq!(spans.len(), 300);
        sent.extend(spans.into_iter().map(|span| (how[0], span)));
    }
    let (code, said) = collector.end();
    assert_eq!((code, said["collected"]["spans"].as_u64()), (0, Some(1_200)), "{said}");
    let mut read = read_spans(&collector.run).expect("a run");
    read.sort_by_key(|span| (span.trace, span.id));
    sent.sort_by_key(|(_, span)| (span["trace"].to_string(), span["id"].to_string()));
    for (span, (how, sent)) in read.iter().zip(&sent) {
        assert_eq!(plain(span), *sent);
        assert_eq!(span.service.as_deref(), Some(format!("shop-{how}").as_str()));
        let text = |key: &str| span.attribute(key).and_then(AttributeValue::text);
        assert_eq!((text("host.name"), text("otel.scope.name")), (Some("h1"), Some("otel_send")));
        assert_eq!(text("otel.status_description"), span.failed.then_some("boom"));
    }
}

/// A span in the format of `otel_send.py`, without the attributes of its resource and scope.
pub fn plain(span: &TraceSpan) -> Value {
    let is_own = |key: &str| key != "host.name" && !key.starts_with("otel.") && !key.starts_with("service.");
    let value = |value: &AttributeValue| match value {
        AttributeValue::Text(text) if text.starts_with('[') => serde_json::from_str(text).expect("a list"),
        other => serde_json::to_value(other).expect("JSON"),
    };
    let attributes: serde_json::Map<String, Value> = span
        .attributes
        .iter()
        .filter(|(key, _)| is_own(key))
        .map(|(key, held)| (key.clone(), value(held)))
        .collect();
    let events: Vec<Value> =
        span.events.iter().map(|event| serde_json::json!([event.at_ns, event.name])).collect();
    serde_json::json!({
        "trace": format!("{:032x}", span.trace),
        "id": format!("{:016x}", span.id),
        "parent": span.parent.map(|parent| format!("{parent:016x}")),
        "name": span.name,
        "kind": span.kind,
        "start_ns": span.start_ns,
        "end_ns": span.end_ns,
        "failed": span.failed,
        "attributes": attributes,
        "events": events,
    })
}
