//! The KServe path against an independent server: NVIDIA's Triton with a model whose time is known.
//!
//! `scripts/real-server setup triton` installs it (`.ci/run` does). If it is not installed, the test is skipped, or
//! fails if parts are required; nothing else in it is allowed to be lenient. The reference is Triton's own counters: their
//! requests, rows, batches and time must match the run.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::time::Duration;

use serde_json::Value;

use crate::kit::{Engine, plimsoll, run_folder};
use crate::real::{self, Real, get};

/// One of Triton's counters for the model.
fn counter(page: &str, name: &str) -> f64 {
    let sample = format!(r#"nv_inference_{name}{{model="lockstep",version="1"}} "#);
    let line =
        page.lines().find_map(|line| line.strip_prefix(&sample)).unwrap_or_else(|| panic!("no {sample}"));
    line.trim().parse().expect("a number")
}

/// The difference of every counter that is read, after and before a run.
struct Counted {
    success: f64,
    rows: f64,
    batches: f64,
    request_us: f64,
    queue_us: f64,
    infer_us: f64,
}

fn counted(before: &str, after: &str) -> Counted {
    let of = |name: &str| counter(after, name) - counter(before, name);
    Counted {
        success: of("request_success"),
        rows: of("count"),
        batches: of("exec_count"),
        request_us: of("request_duration_us"),
        queue_us: of("queue_duration_us"),
        infer_us: of("compute_infer_duration_us"),
    }
}

/// The files of a run, and Triton's counters during it.
struct Ran {
    level: Value,
    /// Facts that the target reported.
    facts: Value,
    /// Requests finished, the warm-up included: what Triton counted too.
    all: f64,
    /// Mean latency in microseconds, over the same requests as Triton's, including the warm-up.
    e2e_us: f64,
    counted: Counted,
    profile: Value,
}

fn run(triton: &Real, more: &[&str]) -> Ran {
    let metrics = triton.port + 2;
    let before = get(metrics, "/metrics").expect("a metrics page");
    let (_folder, folder) = run_folder();
    let url = format!("http://127.0.0.1:{}/v2/models/lockstep", triton.port);
    let fixed = ["run", &url, "--protocol", "kserve", "--seed", "3", "-q", "-o", &folder, "--format", "json"];
    let ended = plimsoll(&[&fixed[..], more].concat());
    // A loaded machine may make the generator late (4); what the server did is judged strictly either way.
    assert!(ended.code == 0 || ended.code == 4, "{}", ended.stderr);
    let after = get(metrics, "/metrics").expect("a metrics page");
    let json = ended.json();
    let rows = plimsoll_store::open(Path::new(&folder)).expect("a run").attempts;
    let took = rows.iter().filter(|row| row.outcome.is_finished()).map(|row| {
        let (due, end) = (row.due, row.end.expect("it finished"));
        (end - due).as_secs_f64()
    });
    let all = took.clone().count() as f64;
    Ran {
        level: json["findings"]["levels"][0]["summary"].clone(),
        facts: json["target"]["facts"].clone(),
        all,
        e2e_us: 1e6 * took.sum::<f64>() / all,
        counted: counted(&before, &after),
        profile: plimsoll(&["profile", &folder, "--format", "json"]).json(),
    }
}

/// The parts of a mean request are what Triton counts of its stages, and add up to what the client measured.
fn holds_together(profile: &Value, counted: &Counted, all: f64) {
    let answers = &profile["levels"][0]["answers"];
    let mean = |name: &str| {
        let parts = answers["parts"].as_array().unwrap_or_else(|| panic!("{profile}"));
        let part = parts.iter().find(|part| part["name"].as_str().is_some_and(|own| own.starts_with(name)));
        part.unwrap_or_else(|| panic!("no {name}: {answers}"))["mean_s"].as_f64().expect("a mean")
    };
    let sum: f64 = ["before", "queue", "input", "compute", "output", "network"].map(mean).iter().sum();
    assert!((sum - number(&answers["mean_s"])).abs() < 1e-9, "{answers}");
    // Requests before the first and after the last scrape are not in the means, but in the counters of the test.
    let (compute, queue) = (counted.infer_us / all / 1e6, counted.queue_us / all / 1e6);
    assert!((mean("compute") / compute - 1.0).abs() < 0.3, "{} {compute}", mean("compute"));
    assert!((mean("queue") - queue).abs() < 0.5 * queue + 0.002, "{} {queue}", mean("queue"));
}

/// Checks the client's time against Triton's time plus the path to it: HTTP and its threads, on a shared machine.
/// (On a busy machine Triton notes the end when its thread runs, which may be after the client had its answer.)
fn one_way(ours_us: f64, theirs_us: f64) {
    let way_us = ours_us - theirs_us;
    assert!(
        (-0.05 * theirs_us..20_000.0 + 0.5 * theirs_us).contains(&way_us),
        "client {ours_us} us, Triton {theirs_us} us"
    );
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("{value} is no number"))
}

#[test]
fn triton_is_measured_and_agrees() {
    let Some(triton) = real::or_skipped(real::triton()) else { return };
    // One at a time, three rows each: every request is a batch, of 5 + 3 ms and what the machine adds.
    let Ran { level, facts, all, e2e_us: ours_us, counted, profile } =
        run(&triton, &["--concurrency", "1", "--batch", "3", "--for", "3s"]);
    let finished = number(&level["counts"]["finished"]);
    assert!(finished >= 20.0 && finished == number(&level["counts"]["requests"]), "{}", level["counts"]);
    // The whole level, its warm-up included, was counted by both.
    assert_eq!(all, number(&level["window"]["warm_up_requests"]) + finished);
    assert_eq!((counted.success, counted.rows, counted.batches), (all, 3.0 * all, all));
    holds_together(&profile, &counted, all);
    let theirs_us = counted.request_us / all;
    assert!(ours_us >= 8_000.0 && theirs_us >= 8_000.0, "{ours_us} {theirs_us}");
    eprintln!(
        "one at a time: e2e {ours_us:.0} us, of which Triton counts {theirs_us:.0} (infer {:.0})",
        counted.infer_us / all
    );
    one_way(ours_us, theirs_us);
    assert_eq!((&facts["engine"], &facts["engine_version"]), (&"triton".into(), &"2.51.0".into()));
    assert_eq!((&facts["model"], &facts["max_batch"]), (&"lockstep".into(), &"16".into()));

    // Eight at a time, drawn sizes, as JSON numbers: batches form, and rows still add up.
    let json = ["--set", "target.tensors.encoding=json", "--shape", "SCALE=1"];
    let Ran { level, all, e2e_us: ours_us, counted, .. } =
        run(&triton, &[&["--concurrency", "8", "--batch", "uniform:1,2", "--for", "3s"][..], &json].concat());
    assert_eq!(number(&level["counts"]["failed"]), 0.0, "{}", level["counts"]);
    assert_eq!(counted.success, all);
    assert!(counted.rows > 1.2 * all && counted.rows < 1.8 * all, "{} rows in {all} requests", counted.rows);
    // A greedy batcher under eight clients puts two or more requests into a batch on average.
    assert!(counted.batches < 0.6 * all, "{} batches for {all} requests", counted.batches);
    assert!(counted.queue_us > 0.0);
    let theirs_us = counted.request_us / all;
    eprintln!(
        "eight at a time: e2e {ours_us:.0} us, Triton {theirs_us:.0}, {:.2} requests a batch",
        all / counted.batches
    );
    one_way(ours_us, theirs_us);

    // The load is larger than the queue: refused requests are shed immediately and are not among the successes.
    let Ran { level, counted, .. } = run(&triton, &["--rate", "300/s", "--batch", "16", "--for", "2s"]);
    let by = &level["counts"]["by_outcome"];
    assert!(number(&by["shed"]) > 0.0, "{by}");
    assert!(number(&by["finished"]) <= counted.success, "{by}");
    let words = level["counts"]["errors"][0]["text"].as_str().expect("an error");
    assert!(words.contains("Exceeds maximum queue size"), "{words}");

    the_engine_refuses_alike(&triton);
    the_doctor_reads_the_batcher(&triton);
}

/// The doctor's batches are those of Triton's counters, and its rules name the settings that contradict a compiled profile.
fn the_doctor_reads_the_batcher(triton: &Real) {
    let metrics = || get(triton.port + 2, "/metrics").expect("a metrics page");
    let before = metrics();
    let url = format!("http://127.0.0.1:{}", triton.port);
    let fixed =
        ["doctor", &url, "--model", "lockstep", "--protocol", "kserve", "--format", "json", "--for", "2s"];
    let more = ["--concurrency", "8", "--slo", "e2e p95 < 5ms", "--compiled-batch", "1,4,12"];
    let ended = plimsoll(&[&fixed[..], &more].concat());
    assert!(ended.code == 0 || ended.code == 4, "{}", ended.stderr);
    let Counted { success, batches, queue_us, .. } = counted(&before, &metrics());
    let json = ended.json();
    let of = |check: &str| -> Vec<&str> {
        let own = json.as_array().expect("a list").iter().filter(|own| own["check"] == check);
        own.filter_map(|own| own["found"].as_str()).collect()
    };
    let all = format!("{} in {} (", counted_as(success, "request"), counted_as(batches, "execution"));
    assert!(of("batches").iter().any(|found| found.starts_with(&all)), "{all}: {json}");
    let waits =
        format!("a request waits {} of ", plimsoll_report::figure::duration_ns(1e3 * queue_us / success));
    assert!(of("queue time").iter().any(|found| found.starts_with(&waits)), "{waits}: {json}");
    // The model takes 5 ms a batch and 1 ms a row, which the limit does not allow and a large batch shares.
    for (check, says) in [
        ("batcher", "dynamic batching to 16 rows, delay 0 µs; max_batch_size 16, 1 instance"),
        ("compiled profile", "the compiled profile has 1 to 12 rows, max_batch_size is 16"),
        ("preferred sizes", "preferred 16 is outside the compiled 1 to 12 rows"),
        ("queue delay", "limit 5.00 ms (e2e p95)"),
    ] {
        assert!(of(check).iter().any(|found| found.contains(says)), "{says}: {json}");
    }
}

fn counted_as(n: f64, one: &str) -> String {
    plimsoll_report::figure::counted(n as u64, one)
}

/// Right and wrong requests to this Triton and to an engine that declares the same inputs: status and words are equal.
fn the_engine_refuses_alike(triton: &Real) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("lockstep.yaml");
    let spec = "name: lockstep\nmode: {kind: dynamic, max_batch_size: 16, dynamic_batching: {}, \
         batch: {compute: {kind: affine, base_ms: 1, item_ms: 0}}}";
    std::fs::write(&file, spec).expect("written");
    let declared = ["--input", "PIXELS:UINT8:8", "--input", "SCALE:FP32:-1"];
    let engine = Engine::start_with(file.to_str().expect("utf-8"), &declared);
    let port = engine.url.rsplit(':').next().and_then(|rest| rest.split('/').next()?.parse().ok());
    let port: u16 = port.expect("a port");
    let cases = real::root().join("crates/wire/fixtures/triton/infer_checks.jsonl");
    let cases = std::fs::read_to_string(cases).expect("recorded");
    for line in cases.lines() {
        let case: Value = serde_json::from_str(line).expect("JSON");
        let request = case["request"].to_string();
        let (status, theirs) = infer(triton.port, &request);
        let (own_status, ours) = infer(port, &request.replace("\"SUM\"", "\"OUTPUT\""));
        assert_eq!((own_status, &ours["error"]), (status, &theirs["error"]), "{request}");
        assert_eq!(ours["id"], theirs["id"], "{request}");
        assert_eq!(ours["outputs"][0]["shape"], theirs["outputs"][0]["shape"], "{request}");
    }
}

/// Status and body of one inference.
fn infer(port: u16, body: &str) -> (u16, Value) {
    let mut socket = TcpStream::connect(("127.0.0.1", port)).expect("it listens");
    socket.set_read_timeout(Some(Duration::from_secs(10))).expect("set");
    let length = body.len();
    write!(
        socket,
        "POST /v2/models/lockstep/infer HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{body}"
    )
    .expect("sent");
    let mut answer = String::new();
    socket.read_to_string(&mut answer).expect("answered");
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
    (status, serde_json::from_str(body).expect("JSON"))
}
