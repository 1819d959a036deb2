//! Traces through a watch: spans in any order over OTLP, and what a collector gets of them. The truth is a list of every trace that was sent.

use std::collections::HashMap;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use plimsoll_math::rng::Stream;
use plimsoll_model::TraceSpan;
use plimsoll_store::read_spans;
use plimsoll_wire::trace::otlp;
use serde_json::Value;

use crate::collect::{Collector, plain};
use crate::kit::{Server, plimsoll, reply};
use crate::real;
use crate::watch_pushed::{Watch, becomes, request};

/// A field of bytes, of a fixed number and of a short one.
fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
    let (mut key, mut left) = (vec![number << 3 | 2], bytes.len());
    while left > 127 {
        key.push(left as u8 | 0x80);
        left >>= 7;
    }
    key.push(left as u8);
    [&key, bytes].concat()
}

fn fixed(number: u8, value: i64) -> Vec<u8> {
    [&[number << 3 | 1], &value.to_le_bytes()[..]].concat()
}

fn text(key: &str, value: &str) -> Vec<u8> {
    [field(1, key.as_bytes()), field(2, &field(1, value.as_bytes()))].concat()
}

/// The fields of a message that hold bytes: their numbers, their contents, and where they end.
fn walk(message: &[u8]) -> Vec<(u8, &[u8], usize)> {
    let (mut fields, mut at) = (Vec::new(), 0);
    let varint = |at: &mut usize| {
        let (mut value, mut shift) = (0_usize, 0);
        loop {
            let byte = message[*at];
            *at += 1;
            value |= usize::from(byte & 0x7f) << shift;
            shift += 7;
            if byte < 0x80 {
                return value;
            }
        }
    };
    while at < message.len() {
        let key = varint(&mut at);
        match key & 7 {
            0 => drop(varint(&mut at)),
            1 => at += 8,
            5 => at += 4,
            _ => {
                let len = varint(&mut at);
                fields.push(((key >> 3) as u8, &message[at..at + len], at + len));
                at += len;
            }
        }
    }
    fields
}

fn of(message: &[u8], number: u8) -> impl Iterator<Item = &[u8]> {
    walk(message).into_iter().filter(move |(field, ..)| *field == number).map(|(_, bytes, _)| bytes)
}

/// What is known of a trace by whoever sent it.
#[derive(Copy, Clone, Debug)]
struct Sent {
    trace: u128,
    ms: f64,
    failed: bool,
}

const EPOCH: i64 = 1_800_000_000_000_000_000;

/// The three spans of a trace: the second fails where it does. Among what they hold is a link, an event's attribute and a field that nobody knows.
fn spans(sent: &Sent) -> Vec<Vec<u8>> {
    let took = (sent.ms * 1e6) as i64;
    let span = |id: u8, name: &str, share: i64, more: Vec<u8>| {
        let parent = if id > 1 { field(4, &[0, 0, 0, 0, 0, 0, 0, id - 1]) } else { Vec::new() };
        let ids = [field(1, &sent.trace.to_be_bytes()), field(2, &[0, 0, 0, 0, 0, 0, 0, id]), parent];
        // Within ten minutes of each other.
        let start = EPOCH + (sent.trace % 600_000) as i64 * 1_000_000;
        let times = [field(5, name.as_bytes()), fixed(7, start), fixed(8, start + took / share)];
        [ids.concat(), times.concat(), more].concat()
    };
    let event = [field(2, b"exception"), field(3, &text("exception.stacktrace", "at a"))].concat();
    let link = [field(1, &[7; 16]), field(2, &[8; 8])].concat();
    let unknown = [(250_u32 << 3 | 5) as u8 | 0x80, 15, 1, 2, 3, 4];
    let status = if sent.failed { field(15, &[3 << 3, 2]) } else { Vec::new() };
    let model = field(9, &text("gen_ai.request.model", "tiny"));
    vec![
        span(1, "POST /v1/chat/completions", 1, [field(11, &event), unknown.to_vec()].concat()),
        span(2, "chat tiny", 1, [model, status].concat()),
        span(3, "prefill", 4, field(13, &link)),
    ]
}

fn resource() -> Vec<u8> {
    field(1, &[field(1, &text("service.name", "shop")), field(1, &text("os.type", "linux"))].concat())
}

fn scope() -> Vec<u8> {
    field(1, &[field(1, b"sdk"), field(2, b"1.0")].concat())
}

fn body(spans: &[Vec<u8>]) -> Vec<u8> {
    let spans: Vec<u8> = spans.iter().flat_map(|span| field(2, span)).collect();
    field(1, &[resource(), field(2, &[scope(), spans].concat())].concat())
}

/// Whoever receives what is kept; the first time it is busy.
struct Receiver {
    url: String,
    bodies: Arc<Mutex<Vec<Vec<u8>>>>,
}

impl Receiver {
    fn start() -> Receiver {
        let bodies: Arc<Mutex<Vec<Vec<u8>>>> = Arc::default();
        let (into, was_busy) = (Arc::clone(&bodies), AtomicBool::new(false));
        let server = Server::whole(move |head, body, socket| {
            if !was_busy.swap(true, Ordering::Relaxed) {
                return reply(socket, "503 Service Unavailable", "retry-after: 0\r\n", "");
            }
            let says = |line: &str| head.to_ascii_lowercase().contains(line);
            if says("post /v1/traces ") && says("x-tenant: blue") && says("authorization: bearer opensesame")
            {
                into.lock().expect("no panic").push(body.to_vec());
                return reply(socket, "200 OK", "", "");
            }
            reply(socket, "401 Unauthorized", "", "");
        });
        Receiver { url: server.url.trim_end_matches("/v1").to_owned(), bodies }
    }

    fn bodies(&self) -> Vec<Vec<u8>> {
        self.bodies.lock().expect("no panic").clone()
    }
}

/// Everybody who sends: its truth, and its chance.
struct Sender<'a> {
    watch: &'a Watch,
    chance: Stream,
    sent: Vec<Sent>,
}

impl Sender<'_> {
    fn trace(&mut self, ms: f64, failed: bool) -> Sent {
        let trace = u128::from(self.chance.next_u64()) << 64 | u128::from(self.chance.next_u64());
        Sent { trace, ms, failed }
    }

    /// Their spans in any order, a few hundred a request.
    fn send(&mut self, traces: &[Sent]) {
        for some in traces.chunks(200) {
            let mut spans: Vec<Vec<u8>> = some.iter().flat_map(spans).collect();
            for place in (1..spans.len()).rev() {
                let other = (self.chance.uniform() * (place + 1) as f64) as usize;
                spans.swap(place, other);
            }
            for batch in spans.chunks(200) {
                let head = "POST /v1/traces HTTP/1.1\r\nContent-Type: application/x-protobuf\r\nAuthorization: Bearer sesame\r\n";
                let answer = request(&self.watch.takes[0].1, head, &body(batch));
                assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
            }
        }
        self.sent.extend_from_slice(traces);
    }

    /// So many traces of which none is slow, and none fails.
    fn usual(&mut self, count: usize) -> Vec<Sent> {
        (0..count)
            .map(|_| {
                let ms = 50.0 + 150.0 * self.chance.uniform();
                self.trace(ms, false)
            })
            .collect()
    }
}

fn ended(watch: &Watch, stratum: &str, what: &str) -> u64 {
    watch.figure(&format!("plimsoll_watch_traces_total{{stratum=\"{stratum}\",what=\"{what}\"}} ")) as u64
}

/// Until every trace is decided and sent: nothing is held, nothing waits, and every span is accounted for.
fn settle(watch: &Watch, traces: usize) {
    becomes("all are decided", || {
        let of = |what: &str| {
            ["failed", "slow", "rest"].map(|stratum| ended(watch, stratum, what)).iter().sum::<u64>()
        };
        let left = watch.figure("plimsoll_watch_spans_held ") + watch.figure("plimsoll_watch_spans_waiting ");
        let outcome =
            |name: &str| watch.figure(&format!("plimsoll_watch_spans_total{{outcome=\"{name}\"}} ")) as u64;
        let [sent, not] = ["sent", "not_sampled"].map(outcome);
        let said = (of("ended"), left as u64, sent + not, sent);
        let all = (traces as u64, 0, 3 * traces as u64, 3 * of("kept"));
        (said == all).then_some(()).ok_or(format!("{said:?}, not {all:?}"))
    });
}

/// Kept traces with their weights, by what reached the collector: each whole, and each span byte for byte what was sent but for its `tracestate`.
fn kept(bodies: &[Vec<u8>], sent: &[Sent]) -> Vec<(Sent, f64)> {
    let by_id: HashMap<u128, &Sent> = sent.iter().map(|one| (one.trace, one)).collect();
    type Fields = Vec<Vec<u8>>;
    let mut found: HashMap<u128, (Fields, Fields)> = HashMap::new();
    for message in bodies {
        for of_resource in of(message, 1) {
            assert!(of_resource.starts_with(&resource()), "a resource as it came");
            assert!(of(of_resource, 2).all(|of_scope| of_scope.starts_with(&scope())), "a scope too");
            for span in of(of_resource, 2).flat_map(|of_scope| of(of_scope, 2)) {
                let [(1, trace, _), .., (3, state, end)] = walk(span)[..] else { panic!("{span:?}") };
                let trace = u128::from_be_bytes(trace.try_into().expect("16 bytes"));
                let own = span.len() - state.len() - 2;
                assert!(end == span.len() && state.starts_with(b"ot=th:"), "{state:?}");
                let (fields, states) = found.entry(trace).or_default();
                fields.push(span[..own].to_vec());
                states.push(state.to_vec());
            }
        }
    }
    let weight = |state: &[u8]| {
        let digits = std::str::from_utf8(&state[6..]).expect("digits");
        let threshold = u64::from_str_radix(&format!("{digits:0<14}"), 16).expect("digits") as f64;
        1.0 / (1.0 - threshold / (1u64 << 56) as f64)
    };
    found
        .into_iter()
        .map(|(trace, (mut fields, states))| {
            let sent = *by_id[&trace];
            let mut whole = spans(&sent);
            whole.sort();
            fields.sort();
            assert_eq!(fields, whole, "a trace is kept whole and as it came");
            assert!(states.iter().all(|state| *state == states[0]), "one weight a trace");
            (sent, weight(&states[0]))
        })
        .collect()
}

/// Failed and slow traces are all kept, of the rest at most so many a second; sums over what is kept, weighted, are those of all that was sent.
#[test]
#[expect(clippy::disallowed_methods, reason = "the bound is one of each second that went by")]
fn what_is_kept_stands_for_all() {
    let (folder, receiver) = (tempfile::tempdir().expect("a folder"), Receiver::start());
    let to =
        format!("{{url: \"{}/v1/traces\", key_env: OUT_KEY, headers: {{x-tenant: $TENANT}}}}", receiver.url);
    let keep = "{share: 0.5, failed_per_s: 1000, slow_per_s: 1000, rest_per_s: 300}";
    let traces =
        format!("traces: {{listen: \"127.0.0.1:0\", key_env: IN_KEY, to: {to}, wait: 4s, keep: {keep}}}\n");
    let env = [("IN_KEY", "sesame"), ("OUT_KEY", "opensesame"), ("TENANT", "blue")];
    let begun = std::time::Instant::now();
    let watch = Watch::of(folder.path(), "traces", &traces, 1, &env);
    let mut sender = Sender { watch: &watch, chance: Stream::new(5, "watch traces", 0), sent: Vec::new() };
    let usual = sender.usual(1_500);
    sender.send(&usual);
    // What is slow is known once enough of the past is: now and then one asks.
    let mut asked = 0;
    becomes("slow ones are known", || {
        if asked % 20 == 0 {
            let slow = sender.trace(5_000.0, false);
            sender.send(&[slow]);
        }
        asked += 1;
        let slow = ended(&watch, "slow", "ended");
        (slow > 0).then_some(()).ok_or(format!("{asked}"))
    });
    let before = sender.sent.len();
    let mut mixed = sender.usual(2_700);
    for n in 0..210 {
        let failed = n % 7 < 5;
        let ms = 100.0 + if failed { 0.0 } else { 2_000.0 + n as f64 };
        let odd = sender.trace(ms, failed);
        mixed.insert(n * 13, odd);
    }
    sender.send(&mixed);
    settle(&watch, sender.sent.len());
    let seconds = begun.elapsed().as_secs() + 1;
    let kept = kept(&receiver.bodies(), &sender.sent);
    let [failed, slow] = ["failed", "slow"].map(|stratum| ended(&watch, stratum, "ended"));
    assert_eq!((failed, ended(&watch, "failed", "kept")), (150, 150));
    assert!(slow >= 60 && ended(&watch, "slow", "kept") == slow, "{slow}");
    for one in sender.sent[before..].iter().filter(|one| one.failed || one.ms > 1_000.0) {
        let found = kept.iter().find(|(sent, _)| sent.trace == one.trace);
        assert!(found.is_some_and(|(_, weight)| *weight == 1.0), "{one:?}: {found:?}");
    }
    let rest = kept.iter().filter(|(_, weight)| *weight > 1.0);
    assert!(
        rest.clone().all(|(_, weight)| *weight > 1.99)
            && rest.clone().count() as u64 == ended(&watch, "rest", "kept")
    );
    assert!(rest.count() as u64 <= 300 * seconds, "{seconds}");
    // Horvitz–Thompson: under rank conditioning terms are uncorrelated, each of variance w (w − 1) x².
    let law = |x: &dyn Fn(&Sent) -> f64| {
        let sum = |of: &dyn Fn(&(Sent, f64)) -> f64| kept.iter().map(of).sum::<f64>();
        (sum(&|(sent, w)| w * x(sent)), sum(&|(sent, w)| w * (w - 1.0) * x(sent).powi(2)).sqrt())
    };
    let n = sender.sent.len() as f64;
    let mean = sender.sent.iter().map(|one| one.ms).sum::<f64>() / n;
    let (count, error) = law(&|_| 1.0);
    assert!(error > 20.0 && (count - n).abs() <= 4.0 * error, "{count} ± {error}, not {n}");
    let (off, error) = law(&|one| (one.ms - mean) / n);
    assert!(off.abs() <= 4.0 * error, "the mean is off by {off} ± {error} ms");
    profile_weighs(folder.path(), &receiver.bodies(), &kept, &sender.sent);
    let page = watch.get("/");
    assert!(
        page.contains("\"says\":\"traces: ") && watch.rows()["traces"]["spans"]["over_bound"] == 0,
        "{page}"
    );
}

/// The profile of what was kept is that of all that was sent; unweighted it would be another.
fn profile_weighs(folder: &Path, bodies: &[Vec<u8>], kept: &[(Sent, f64)], sent: &[Sent]) {
    let file = folder.join("kept.binpb");
    let with_lengths: Vec<u8> =
        bodies.iter().flat_map(|body| [&(body.len() as u32).to_be_bytes()[..], body].concat()).collect();
    std::fs::write(&file, with_lengths).expect("written");
    let profile = plimsoll(&["profile", &file.display().to_string(), "--format", "json"]);
    assert_eq!(profile.code, 0, "{}", profile.stderr);
    let profile = profile.json();
    let p95 = |of: &mut Vec<f64>| {
        of.sort_by(f64::total_cmp);
        of[of.len() * 95 / 100]
    };
    let unweighted = p95(&mut kept.iter().map(|(one, _)| one.ms).collect());
    let truth = p95(&mut sent.iter().map(|one| one.ms).collect());
    assert!(unweighted > 2_000.0 && truth < 200.0, "{unweighted} {truth}");
    let times = &profile["paths"][0]["times"];
    let near = |key: &str, said: &Value, is: f64, by: f64| {
        let said = said.as_f64().unwrap_or_else(|| panic!("{key}: {times}"));
        assert!((said - is).abs() <= by, "{key}: {said}, not {is}");
    };
    let weights: f64 = kept.iter().map(|(_, weight)| weight).sum();
    let mean = kept.iter().map(|(one, weight)| weight * one.ms).sum::<f64>() / weights;
    near("stands for", &profile["stand_for"], weights, 1e-6 * weights);
    near("mean", &times["mean_s"], mean / 1e3, 1e-6);
    let p95 = times["p95"]["value"].as_f64().or(times["p95"]["seen"]["value"].as_f64());
    near("p95", &p95.into(), truth / 1e3, 0.01);
}

/// OpenTelemetry's own SDK over both protocols: of what it sends the failed traces reach a collector, whole and unchanged.
#[test]
fn what_an_sdk_sends_is_passed_on_unchanged() {
    let Some(done) = real::or_skipped(real::installed("venv-otel/.done", "otel")) else { return };
    let python = done.with_file_name("bin/python");
    let (folder, mut collector) = (tempfile::tempdir().expect("a folder"), Collector::start(&[]));
    let traces = format!(
        "traces: {{listen: \"127.0.0.1:0\", to: {{url: \"http://{}\"}}, wait: 1s, keep: {{share: 0, slow_per_s: 0}}}}\n",
        collector.addr
    );
    let watch = Watch::of(folder.path(), "sdk", &traces, 1, &[]);
    let (mut sent, mut came) = (Vec::new(), 0);
    for how in [&["grpc"][..], &["http", "gzip"]] {
        let output = Command::new(&python)
            .arg(real::root().join("crates/cli/tests/servers/otel_send.py"))
            .arg(&watch.takes[0].1)
            .args(how)
            .output()
            .expect("python starts");
        let told: Value = serde_json::from_slice(&output.stdout)
            .unwrap_or_else(|e| panic!("{how:?}: {e}: {}", String::from_utf8_lossy(&output.stderr)));
        let spans = told["spans"].as_array().cloned().unwrap_or_default();
        came += spans.len() as u64;
        let failed: Vec<Value> =
            spans.iter().filter(|span| span["failed"] == true).map(|span| span["trace"].clone()).collect();
        sent.extend(spans.into_iter().filter(|span| failed.contains(&span["trace"])));
    }
    becomes("all are decided", || {
        let [received, held, waiting] = ["received_total ", "held ", "waiting "]
            .map(|name| watch.figure(&format!("plimsoll_watch_spans_{name}")) as u64);
        let sent = watch.figure("plimsoll_watch_spans_total{outcome=\"sent\"}");
        let all = (received, held, waiting) == (came, 0, 0) && sent > 0.0;
        all.then_some(()).ok_or(format!("{received} {held} {waiting}"))
    });
    assert_eq!(collector.end().0, 0);
    let mut read: Vec<TraceSpan> = read_spans(&collector.run).expect("a run");
    assert_eq!((read.len(), sent.len()), (60, 60), "15 failed traces of two spans each");
    read.sort_by_key(|span| (span.trace, span.id));
    sent.sort_by_key(|span| (span["trace"].to_string(), span["id"].to_string()));
    for (span, sent) in read.iter().zip(&sent) {
        assert_eq!((plain(span), span.weight), (sent.clone(), 1.0));
    }
}

/// What can't be is said in one line, before anything is taken; a file of traces alone needs no budget.
#[test]
fn what_is_wrong_with_traces_is_said_in_one_line() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("watch.yaml");
    let held = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let in_use =
        format!("{{listen: \"{}\", to: {{url: \"http://c:4318\"}}}}", held.local_addr().expect("bound"));
    let to = "to: {url: \"http://c:4318\"}";
    for (traces, word) in [
        (format!("{{{to}}}"), "listen"),
        ("{listen: 4318}".to_owned(), "to"),
        (format!("{{listen: nowhere, {to}}}"), "traces.listen: nowhere: write PORT or ADDRESS:PORT"),
        ("{listen: 0, to: {url: collector}}".to_owned(), "traces.to.url"),
        ("{listen: 4318, to: {url: \"http://127.0.0.1:4318\"}}".to_owned(), "name another collector"),
        (format!("{{listen: 0, {to}, keep: {{share: 3}}}}"), "traces.keep.share"),
        (format!("{{listen: 0, {to}, keep: {{shares: 1}}}}"), "shares"),
        (format!("{{listen: 0, {to}, wait: 1h}}"), "traces.wait: at most 10m"),
        (format!("{{listen: 0, {to}, memory_mb: 0}}"), "traces.memory_mb"),
        (format!("{{listen: 0, {to}, key_env: PLIMSOLL_NO_SUCH_KEY}}"), "PLIMSOLL_NO_SUCH_KEY"),
        (
            "{listen: 0, to: {url: \"http://c\", key_env: PLIMSOLL_NO_SUCH_KEY}}".to_owned(),
            "PLIMSOLL_NO_SUCH_KEY",
        ),
        (in_use, "name another port"),
    ] {
        std::fs::write(&file, format!("traces: {traces}\nlisten: none\n")).expect("written");
        let ended = plimsoll(&["watch", &file.display().to_string(), "--for", "1s", "-q"]);
        assert!(ended.code == 2 && ended.stderr.contains(word), "{traces}: {} {}", ended.code, ended.stderr);
        assert_eq!(ended.stderr.trim_end().lines().count(), 1, "{traces}: {}", ended.stderr);
    }
    std::fs::write(&file, format!("traces: {{listen: 0, {to}}}\nlisten: none\n")).expect("written");
    let name = file.display().to_string();
    let ended = plimsoll(&["watch", &name, "--for", "1s", "-q"]);
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    assert!(ended.stdout.starts_with("traces: 0 of 0 kept (failed 0 of 0, "), "{}", ended.stdout);
    let lint = plimsoll(&["watch", "lint", &name]);
    assert!(
        lint.code == 0 && lint.stderr.starts_with("traces to c:4318: failed ones up to 50 a second"),
        "{}",
        lint.stderr
    );
    std::fs::write(
        folder.path().join("b.yaml"),
        "version: 1\nbudgets: [{id: a, metric: ttft, p: 99, max: 1s}]\n",
    )
    .expect("written");
    let budget = folder.path().join("b.yaml").display().to_string();
    let ended = plimsoll(&["watch", &name, "-b", &budget]);
    assert!(
        ended.code == 2 && ended.stderr.contains("no source that it could be held against"),
        "{}",
        ended.stderr
    );
}

/// JSON is taken as protobuf is; what is neither is refused.
#[test]
fn what_cannot_be_passed_on_is_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let watch =
        Watch::of(folder.path(), "w", "traces: {listen: 0, to: {url: \"http://127.0.0.1:1\"}}\n", 1, &[]);
    let post = "POST /v1/traces HTTP/1.1\r\nContent-Type: application/";
    for (kind, body, status, word) in [
        ("json", &b"{\"resourceSpans\": [{\"scopeSpans\": 7}]}"[..], 400, "scopeSpans: expected an object"),
        ("json", &include_bytes!("../../../wire/fixtures/otlp/traces.json")[..], 200, ""),
        ("x-protobuf", &b"{\"resourceSpans\": []}"[..], 400, "not OTLP protobuf"),
        ("x-protobuf", &otlp::encode(&[])[..], 200, ""),
    ] {
        let answer = request(&watch.takes[0].1, &format!("{post}{kind}\r\n"), body);
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")) && answer.contains(word), "{answer}");
    }
    becomes("they are counted", || {
        let of =
            |name: &str| watch.figure(&format!("plimsoll_watch_span_requests_total{{outcome=\"{name}\"}} "));
        let all = [of("taken"), of("unreadable")];
        (all == [2.0, 2.0]).then_some(()).ok_or(format!("{all:?}"))
    });
}
