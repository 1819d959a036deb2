//! KV cache events as vLLM publishes them, through libzmq and msgspec themselves (`servers/kv_publish.py`): heard, missed, sent again, begun anew, and bytes that are none.
//! Truth is what the publisher was told to send; and where the embedded engine publishes its own, what it wrote down that it had cached.
//!
//! `scripts/real-server setup zmq` installs both (`.ci/run` does). Where they are not installed these tests are skipped, or fail where parts are required.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use serde_json::{Value, json};

use crate::gateway::Running;
use crate::kit::{Engine, plimsoll, until};
use crate::real;

/// Who publishes; it ends with this value.
struct Publisher {
    child: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
}

impl Drop for Publisher {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Publisher {
    fn start(python: &PathBuf, (port, replay): (u16, u16)) -> Publisher {
        let mut child = Command::new(python)
            .arg(real::root().join("crates/cli/tests/servers/kv_publish.py"))
            .args([&port.to_string(), &replay.to_string(), "kv"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .spawn()
            .expect("python starts");
        let (stdin, stdout) = (child.stdin.take().expect("piped"), child.stdout.take().expect("piped"));
        let mut publisher = Publisher { child, stdin, stdout: BufReader::new(stdout) };
        publisher.does(&json!({"subscribed": true}));
        publisher
    }

    fn does(&mut self, command: &Value) {
        writeln!(self.stdin, "{command}").expect("it reads");
        let mut line = String::new();
        self.stdout.read_line(&mut line).expect("it answers");
        assert!(line.contains("next"), "{command}: {line:?}");
    }

    /// A batch in which blocks of these names are stored.
    fn stores(&mut self, names: std::ops::Range<u64>) {
        self.does(&stored(names));
    }
}

fn stored(names: std::ops::Range<u64>) -> Value {
    json!({"events": [["stored", null, names.collect::<Vec<u64>>(), 16]]})
}

/// A gateway in front of one engine, whose events are published at these ports.
struct Scene {
    gateway: Running,
    _engine: Engine,
    _folder: tempfile::TempDir,
}

impl Scene {
    fn start((port, replay): (u16, u16)) -> Scene {
        let (engine, folder) = (Engine::start("demo"), tempfile::tempdir().expect("a folder"));
        let replays = match replay {
            0 => String::new(),
            replay => format!(", replay_endpoint: \"tcp://127.0.0.1:{replay}\""),
        };
        let events = format!("{{endpoint: \"tcp://127.0.0.1:{port}\", topic: kv{replays}}}");
        let file = folder.path().join("gateway.yaml");
        let text = format!("replicas: [{{url: \"{}\", name: a, kv_events: {events}}}]\n", engine.url);
        std::fs::write(&file, text).expect("written");
        let gateway = Running::start(&[&file.display().to_string()]);
        Scene { gateway, _engine: engine, _folder: folder }
    }

    fn count(&self, what: &str) -> u64 {
        let line = format!("plimsoll_gateway_kv_events_{what}{{replica=\"a\"}} ");
        let page = self.gateway.page("/metrics");
        let found = page.lines().find_map(|text| text.strip_prefix(&line));
        found.map_or(0, |count| count.trim().parse::<f64>().expect("a number") as u64)
    }

    fn waits_for(&self, what: &str, count: u64) {
        until(&format!("{what} is {count}"), || self.count(what) == count);
    }

    fn standing(&self) -> Value {
        let page: Value = serde_json::from_str(&self.gateway.page("/v1/replicas")).expect("JSON");
        page["replicas"][0]["kv_events"].clone()
    }
}

#[test]
fn what_libzmq_publishes_is_heard_and_a_gap_is_made_good_by_a_replay() {
    let Some(python) = real::python("zmq") else { return };
    let ports = (real::free_port(), real::free_port());
    let scene = Scene::start(ports);
    until("it says that nobody publishes", || scene.standing()["standing"] == "broken");
    assert!(scene.standing()["why"].as_str().is_some_and(|why| why.contains("can't be reached")));
    let mut publisher = Publisher::start(&python, ports);
    until("they are followed", || scene.standing() == json!({"standing": "followed"}));
    publisher.stores(0..100);
    publisher.does(&json!({"events": [["removed", [3, 4]], ["cleared"]]}));
    scene.waits_for("batches_total", 2);
    for _ in 0..5 {
        publisher.does(&json!({"miss": stored(100..110)}));
    }
    publisher.stores(110..120);
    // The one behind the gap and the five that are sent again.
    scene.waits_for("batches_total", 8);
    assert_eq!([scene.count("gaps_total"), scene.count("replays_total")], [1, 1]);
    assert_eq!([scene.count("replays_failed_total"), scene.count("restarts_total")], [0, 0]);
    // What is not kept any more can't be sent again.
    publisher.does(&json!({"miss": stored(120..130)}));
    publisher.does(&json!({"forget": true}));
    publisher.stores(130..140);
    scene.waits_for("replays_failed_total", 1);
    scene.waits_for("batches_total", 9);
    assert_eq!(scene.count("gaps_total"), 2);
    // Another process under the same address: its count begins anew.
    drop(publisher);
    let mut publisher = Publisher::start(&python, ports);
    publisher.stores(0..10);
    scene.waits_for("restarts_total", 1);
    scene.waits_for("batches_total", 10);
    assert_eq!(scene.standing(), json!({"standing": "followed"}));
}

#[test]
fn without_a_replay_a_gap_is_counted_and_what_comes_after_it_is_heard() {
    let Some(python) = real::python("zmq") else { return };
    let ports = (real::free_port(), 0);
    let scene = Scene::start(ports);
    let mut publisher = Publisher::start(&python, ports);
    publisher.stores(0..10);
    publisher.does(&json!({"miss": stored(10..20)}));
    publisher.stores(20..30);
    scene.waits_for("gaps_total", 1);
    scene.waits_for("batches_total", 2);
    // A flood: all of it is read, and nobody waits for it.
    for at in 0..300 {
        publisher.stores(at * 1_000..(at + 1) * 1_000);
    }
    scene.waits_for("batches_total", 302);
    assert_eq!([scene.count("gaps_total"), scene.count("unreadable_total")], [1, 0]);
    // A payload that is none ends the connection; the next one is heard again.
    publisher.does(&json!({"bytes": "c1"}));
    scene.waits_for("unreadable_total", 1);
    publisher.does(&json!({"subscribed": true}));
    publisher.stores(0..10);
    scene.waits_for("batches_total", 303);
    assert_eq!(scene.standing(), json!({"standing": "followed"}));
}

/// Whatever answers at the address, requests are served, and one line says what is wrong.
#[test]
fn what_is_no_zeromq_socket_is_one_line_and_stops_nobody() {
    let engine = Engine::start("demo");
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("gateway.yaml");
    // The engine itself: it speaks HTTP.
    let place = engine.url.trim_start_matches("http://").trim_end_matches("/v1");
    let text = format!(
        "replicas: [{{url: \"{}\", name: a, kv_events: {{endpoint: \"tcp://{place}\"}}}}]\n",
        engine.url
    );
    std::fs::write(&file, text).expect("written");
    let gateway = Running::start(&[&file.display().to_string()]);
    let standing = || {
        let page: Value = serde_json::from_str(&gateway.page("/v1/replicas")).expect("JSON");
        page["replicas"][0]["kv_events"].clone()
    };
    until("it is seen", || standing()["standing"] == "broken");
    let why = standing()["why"].as_str().expect("a reason").to_owned();
    assert!(why.starts_with(&format!("tcp://{place}")), "{why}");
    until("the replica is there all the same", || gateway.page("/readyz").contains("ok"));
}

#[test]
fn an_address_that_can_not_be_one_is_refused_by_check() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("gateway.yaml");
    let text =
        "replicas: [{url: \"http://127.0.0.1:1\", name: a, kv_events: {endpoint: \"tcp://*:5557\"}}]\n";
    std::fs::write(&file, text).expect("written");
    let output = plimsoll(&["gateway", "check", &file.display().to_string()]);
    assert_eq!(output.code, 2);
    assert!(output.stderr.contains("write its host, such as tcp://10.0.0.7:5557"), "{}", output.stderr);
}

/// 512 blocks of 16 tokens: fifty of the prompts that are sent.
const SMALL: &str = "name: small\nmode: {kind: batching, max_seqs: 8, token_budget: 2048, kv_blocks: 512, prefix_cache: true, \
     step: {kind: linear, base_us: 200, decode_us: 0, prefill_us: 1, context_ns: 0}}\n";
const PROMPTS: u64 = 96;
const ASKED: u64 = 800;
/// Until then the router learns.
const LEARNS: usize = 400;

/// A prompt of 150 words, which the embedded engine takes for as many tokens.
fn prompt(number: u64) -> String {
    (0..150u64).map(|place| format!("{} ", (number * 7_919 + place * 104_729) % 9_000_000)).collect()
}

/// Which prompt is asked next, by chance that is always the same.
fn turns() -> impl Iterator<Item = u64> {
    let mut state = 12_345u64;
    (0..ASKED).map(move |_| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % PROMPTS
    })
}

/// Asks, and gives the share of the prompt that the gateway took to be cached. The answer is a stream without usage, from which it learns nothing of that.
fn expected(gateway: &Running, prompt: &str) -> f64 {
    let body = json!({"model": "small", "prompt": prompt, "max_tokens": 1, "stream": true}).to_string();
    let addr = gateway.url.trim_start_matches("http://").trim_end_matches("/v1").to_owned();
    let mut socket = TcpStream::connect(addr).expect("it listens");
    let head = "POST /v1/completions HTTP/1.1\r\nHost: x\r\nX-Plimsoll-Explain: 1\r\nConnection: close\r\n";
    write!(socket, "{head}Content-Length: {}\r\n\r\n{body}", body.len()).expect("sent");
    let mut answer = String::new();
    socket.read_to_string(&mut answer).expect("text");
    assert!(!answer.contains("cached_tokens"), "{answer}");
    let why = answer.lines().find_map(|line| line.strip_prefix("x-plimsoll-explain: "));
    let why: Value = serde_json::from_str(why.unwrap_or_else(|| panic!("{answer}"))).expect("JSON");
    let number = |value: &Value| value.as_f64().expect("a number");
    number(&why["candidates"][0]["cached"]) / number(&why["prompt_tokens"])
}

/// By how much the expected share is off the engine's own, at the mean.
fn off(hears: bool) -> f64 {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name).display().to_string();
    std::fs::write(at("engine.yaml"), SMALL).expect("written");
    let events = format!("tcp://127.0.0.1:{}", real::free_port());
    let log = at("truth.jsonl");
    let engine = Engine::start_with(&at("engine.yaml"), &["--truth-log", &log, "--kv-events", &events]);
    let heard = if hears { format!(", kv_events: {{endpoint: \"{events}\"}}") } else { String::new() };
    let text = format!("explain_header: true\nreplicas: [{{url: \"{}\", name: a{heard}}}]\n", engine.url);
    std::fs::write(at("gateway.yaml"), text).expect("written");
    let gateway = Running::start(&[&at("gateway.yaml")]);
    until("it may get requests, and is heard", || {
        let page: Value = serde_json::from_str(&gateway.page("/v1/replicas")).expect("JSON");
        let one = &page["replicas"][0];
        one["standing"] == "ready" && (!hears || one["kv_events"]["standing"] == "followed")
    });
    let expected: Vec<f64> = turns().map(|number| expected(&gateway, &prompt(number))).collect();
    engine.stop();
    let text = std::fs::read_to_string(&log).expect("a log");
    let (_, records) = plimsoll_server::truth::read(&text).expect("a log");
    let truly =
        records.iter().map(|one| f64::from(one.cached_tokens.unwrap_or(0)) / f64::from(one.prompt_tokens));
    let truly: Vec<f64> = truly.collect();
    assert_eq!(truly.len(), expected.len());
    let after = || expected.iter().zip(&truly).skip(LEARNS);
    let gone = after().filter(|(_, share)| **share < 0.5).count();
    assert!((60..340).contains(&gone), "of 400 {gone} were not there: nothing is dropped, or all is");
    after().map(|(own, truly)| (own - truly).abs()).sum::<f64>() / after().count() as f64
}

/// An engine that drops half of what it is asked for, whose answers don't say what was cached: by its events the gateway knows.
#[test]
fn what_is_cached_is_known_better_by_what_the_engine_publishes() {
    let (with, without) = (off(true), off(false));
    println!("off what the engine had cached: {with:.3} with events, {without:.3} without");
    assert!(with < 0.5 * without, "{with} and {without}");
}

/// What the embedded engine publishes is what vLLM's subscribers read: libzmq connects, and msgspec takes it for vLLM's structs.
#[test]
fn what_the_embedded_engine_publishes_libzmq_and_msgspec_read() {
    let Some(python) = real::python("zmq") else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("engine.yaml").display().to_string();
    std::fs::write(&file, SMALL).expect("written");
    let port = real::free_port();
    let engine = Engine::start_with(&file, &["--kv-events", &format!("tcp://127.0.0.1:{port}")]);
    let reads = r#"
import sys, threading, urllib.request, json, itertools
import msgspec, zmq
class Stored(msgspec.Struct, array_like=True, tag="BlockStored"):
    block_hashes: list[int]; parent_block_hash: int | None; token_ids: list[int]; block_size: int; lora_id: int | None; medium: str | None
class Removed(msgspec.Struct, array_like=True, tag="BlockRemoved"):
    block_hashes: list[int]; medium: str | None
class Cleared(msgspec.Struct, array_like=True, tag="AllBlocksCleared"):
    pass
class Batch(msgspec.Struct, array_like=True):
    ts: float; events: list[Stored | Removed | Cleared]; data_parallel_rank: int | None
sub = zmq.Context().socket(zmq.SUB)
sub.connect("tcp://127.0.0.1:" + sys.argv[1]); sub.subscribe(b"")
def ask():
    for number in itertools.count():
        body = json.dumps({"prompt": f"{number} " * 400, "max_tokens": 1}).encode()
        urllib.request.urlopen(urllib.request.Request(sys.argv[2] + "/completions", body, {"content-type": "application/json"})).read()
threading.Thread(target=ask, daemon=True).start()
stored, removed, numbers = set(), 0, []
while removed == 0:
    topic, number, payload = sub.recv_multipart()
    numbers.append(int.from_bytes(number, "big"))
    for event in msgspec.msgpack.decode(payload, type=Batch).events:
        if isinstance(event, Stored):
            assert len(event.token_ids) == len(event.block_hashes) * event.block_size == len(event.block_hashes) * 16
            assert event.parent_block_hash is None or event.parent_block_hash in stored or not stored
            stored.update(event.block_hashes)
        elif isinstance(event, Removed):
            removed += len(event.block_hashes)
assert numbers == list(range(numbers[0], numbers[0] + len(numbers))), numbers
print(len(stored))
"#;
    let output = Command::new(&python)
        .args(["-c", reads, &port.to_string(), &engine.url])
        .output()
        .expect("python starts");
    let said = String::from_utf8_lossy(&output.stderr);
    let stored = String::from_utf8_lossy(&output.stdout).trim().parse::<u32>().unwrap_or(0);
    assert!(stored > 100, "{stored}: {said}");
}
