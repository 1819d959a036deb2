//! Workloads from production logs (`crates/wire/fixtures/logs`), compared with another parser's reading of the lines.
//! They are also compared with the engine that served the traffic.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

use flate2::read::MultiGzDecoder;
use plimsoll_model::Attempt;
use serde_json::{Value, json};

use crate::kit::{Ended, plimsoll};

fn log(name: &str) -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../wire/fixtures/logs").join(name).display().to_string()
}

fn text(path: &str) -> String {
    let bytes = fs::read(path).unwrap_or_else(|e| panic!("{path}: {e}"));
    let mut out = String::new();
    if !bytes.starts_with(&[0x1f, 0x8b]) {
        return String::from_utf8(bytes).expect("text");
    }
    MultiGzDecoder::new(bytes.as_slice()).read_to_string(&mut out).expect("a gzip file of text");
    out
}

fn lines(path: &str) -> Vec<Value> {
    text(path).lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

/// A folder for files of this test only.
struct Place(tempfile::TempDir);

impl Place {
    fn new() -> Place {
        Place(tempfile::tempdir().expect("a folder"))
    }

    fn at(&self, name: &str) -> String {
        self.0.path().join(name).display().to_string()
    }

    fn file(&self, name: &str, content: &str) -> String {
        fs::write(self.at(name), content).expect("written");
        self.at(name)
    }
}

fn ok(args: &[&str]) -> Ended {
    let ended = plimsoll(args);
    assert_eq!(ended.code, 0, "{args:?}: {}", ended.stderr);
    ended
}

fn refused(args: &[&str], why: &str) {
    let ended = plimsoll(args);
    assert_eq!(ended.code, 2, "{args:?}: {}", ended.stderr);
    let last = ended.stderr.trim_end().lines().last().unwrap_or_default();
    assert!(last.contains(why), "{args:?}: {}", ended.stderr);
}

/// Makes a workload; its report and its rows.
fn made(args: &[&str], file: &str) -> (Value, Vec<Value>) {
    let report = ok(&[&["workload", "--format", "json", "-o", file][..], args].concat()).json();
    (report, lines(file))
}

fn property<'a>(report: &'a Value, name: &str) -> &'a Value {
    let all = report["made"]["properties"].as_array().expect("properties");
    all.iter().find(|one| one["name"] == name).unwrap_or_else(|| panic!("{name}: {all:?}"))
}

/// Times of rows in s, from the first.
fn times(rows: &[Value]) -> Vec<f64> {
    rows.iter().map(|row| row["timestamp"].as_f64().expect("ms") / 1e3).collect()
}

fn close(a: &[f64], b: &[f64], within: f64) {
    assert_eq!(a.len(), b.len());
    for (i, (a, b)) in a.iter().zip(b).enumerate() {
        assert!((a - b).abs() <= within, "row {i}: {a} and {b}");
    }
}

#[test]
fn litellms_log_keeps_when_each_request_came_and_how_long_it_was() {
    let place = Place::new();
    let source = log("litellm_standard_logging.jsonl.gz");
    let (report, rows) = made(&[&source], &place.at("w.jsonl.gz"));
    // The same log by another parser; the log is in the order of completion.
    let mut truth: Vec<Value> = lines(&source);
    truth.sort_by(|a, b| a["startTime"].as_f64().expect("s").total_cmp(&b["startTime"].as_f64().expect("s")));
    let start = |line: &Value| line["startTime"].as_f64().expect("s");
    let since: Vec<f64> = truth.iter().map(|line| start(line) - start(&truth[0])).collect();
    close(&times(&rows), &since, 1e-6);
    for (row, line) in rows.iter().zip(&truth).filter(|(_, line)| line["status"] == "success") {
        assert_eq!(row["input_length"], line["prompt_tokens"]);
        assert_eq!(row["output_length"], line["completion_tokens"]);
    }
    let session = |line: &Value| line["trace_id"].as_str().expect("a session").to_owned();
    for (i, j) in (0..rows.len()).flat_map(|i| (0..i).map(move |j| (i, j))) {
        assert_eq!(rows[i]["session_id"] == rows[j]["session_id"], session(&truth[i]) == session(&truth[j]));
    }
    // Read off the log: 33 answered, 3 failed without any tokens, two models.
    let ended = &report["made"]["ended"];
    assert_eq!((&ended["answered"], &ended["failed"]), (&json!(33), &json!(3)));
    assert_eq!(report["made"]["lengths_drawn"], 3);
    assert_eq!(report["made"]["models"], json!([["tiny", 34], ["gone", 2]]));
    for name in ["requests", "mean rate, 1/s", "gaps between requests, s", "time from turn to turn, s"] {
        assert_eq!(property(&report, name)["verdict"], "same", "{name}");
    }
    assert!(report["effect_not_told"].as_str().is_some_and(|why| why.contains("too few for a p99")));
    let (only, _) = made(&[&source, "--model", "tiny"], &place.at("one.jsonl"));
    assert_eq!(only["made"]["requests"], 34);
}

#[test]
fn nginx_has_times_and_the_lengths_that_are_said() {
    let place = Place::new();
    let source = log("nginx_access_json.log");
    refused(&["workload", &source], "--isl: missing: the log has no number of prompt tokens");
    let lengths = ["--isl", "lognormal:400,0.8", "--osl", "60"];
    let (report, rows) = made(&[&[source.as_str()][..], &lengths].concat(), &place.at("w.jsonl"));
    let number = |line: &Value, key: &str| -> f64 {
        line[key].as_f64().or_else(|| line[key].as_str()?.parse().ok()).expect("a number")
    };
    let mut truth: Vec<f64> = lines(&source)
        .iter()
        .filter(|line| line["uri"] == "/v1/chat/completions" && line["status"] == 200)
        .map(|line| number(line, "ts") - number(line, "request_time"))
        .collect();
    truth.sort_by(f64::total_cmp);
    let first = truth[0];
    close(&times(&rows), &truth.iter().map(|at| at - first).collect::<Vec<_>>(), 1e-6);
    assert!(rows.iter().all(|row| row["output_length"] == 60));
    // Read off the log: 2 of 400, 3 to /nope, 20 of the 40 sent on twice.
    assert_eq!((&report["made"]["refused"], &report["made"]["ended"]["retried"]), (&json!(2), &json!(20)));
    assert!(
        report["made"]["left_out"][0].as_str().is_some_and(|line| line.starts_with("3 lines: another path"))
    );
    for name in ["prompt tokens", "output tokens", "prompt tokens seen before"] {
        assert_eq!(property(&report, name)["verdict"], "unknown", "{name}");
    }
}

#[test]
fn llama_cpps_log_says_lengths_and_what_its_cache_held() {
    let place = Place::new();
    let (report, rows) = made(&[&log("llama_server.log")], &place.at("w.jsonl"));
    let lengths: Vec<(u64, u64)> = rows
        .iter()
        .map(|row| (row["input_length"].as_u64().expect("n"), row["output_length"].as_u64().expect("n")))
        .collect();
    // Read off the log: prompts of three sizes (the first was computed whole: 207), and what was generated.
    let known = [
        (207, 128),
        (207, 128),
        (32, 16),
        (1007, 128),
        (32, 64),
        (207, 16),
        (207, 128),
        (32, 128),
        (1007, 128),
        (207, 128),
    ];
    assert_eq!(lengths, known);
    assert_eq!(report["made"]["reuse"].as_str().expect("words").split(':').next(), Some("fitted"));
}

/// The documentation's records, each a second time a minute later: one request makes no workload.
#[test]
fn dynamo_envoy_and_vllm_are_known_by_their_lines() {
    let place = Place::new();
    for (name, was, later, more, requests, source) in [
        (
            "dynamo_request_trace.jsonl",
            "1777312800000",
            "1777312860000",
            &[][..],
            4,
            "Dynamo's request trace",
        ),
        (
            "envoy_ai_gateway_access.jsonl",
            "16:51:37.894Z",
            "16:52:37.894Z",
            &[][..],
            2,
            "Envoy AI gateway's access log",
        ),
        (
            "vllm_server.log",
            "02-13 11:33:33",
            "02-13 11:34:33",
            &["--isl", "64", "--osl", "8"][..],
            2,
            "vLLM's log",
        ),
    ] {
        let once = text(&log(name));
        let both = place.file(name, &format!("{}\n{}", once.trim_end(), once.replace(was, later)));
        let (report, rows) = made(&[&[both.as_str()][..], more].concat(), &place.at("w.jsonl"));
        assert_eq!((report["made"]["source"].as_str(), rows.len()), (Some(source), requests), "{name}");
        let span = report["made"]["span_s"].as_f64().expect("s");
        // vLLM's stamps are whole seconds.
        assert!((span - 60.0).abs() < 1.0, "{name}: {span}");
    }
    let dynamo = lines(&place.at("w.jsonl"));
    assert!(dynamo.iter().all(|row| row["input_length"] == 64));
    let (report, rows) = made(&[&place.at("dynamo_request_trace.jsonl")], &place.at("d.jsonl"));
    // 128 tokens in blocks of 64 with the same two hashes: all but the first prompt were there before.
    assert_eq!(rows.iter().map(|row| row["hash_ids"].clone()).collect::<Vec<_>>(), vec![json!([0, 1]); 4]);
    let reuse = property(&report, "prompt tokens seen before");
    assert_eq!((reuse["source"].as_f64(), reuse["workload"].as_f64()), (Some(0.75), Some(0.75)));
}

/// One prompt in three has nothing before it; the others share half of theirs.
#[test]
fn hashed_prompts_keep_what_they_share_and_no_text() {
    let place = Place::new();
    let genuine = lines(&log("litellm_standard_logging.jsonl.gz"));
    let genuine = genuine.iter().find(|line| line["status"] == "success").expect("one that was answered");
    let system = "You are a careful clerk of the harbour office. ".repeat(14);
    let written: Vec<String> = (0..3)
        .map(|i| {
            let mut line = genuine.clone();
            let own = format!("berth {i} is asked for by the ship of captain number {i} ").repeat(20);
            line["messages"] = json!([
                {"role": "system", "content": &system[..640]},
                {"role": "user", "content": [{"type": "text", "text": &own[..640]}]},
            ]);
            line["startTime"] = json!(1_795_405_383.25 + f64::from(i));
            (line["prompt_tokens"], line["completion_tokens"]) = (json!(320), json!(8));
            line.to_string()
        })
        .collect();
    let source = place.file("log.jsonl", &written.join("\n"));
    let (report, rows) = made(&[&source, "--hash-prompts"], &place.at("w.jsonl"));
    let shared = |a: &Value, b: &Value| {
        let (a, b) = (a["hash_ids"].as_array().expect("ids"), b["hash_ids"].as_array().expect("ids"));
        (a.iter().zip(b).take_while(|(a, b)| a == b).count(), a.len())
    };
    // 1280 bytes of 320 tokens: blocks of 64 bytes are 16 tokens, the first ten of twenty are the system prompt's.
    assert_eq!(
        (rows[0]["block_size"].clone(), shared(&rows[0], &rows[1]), shared(&rows[1], &rows[2])),
        (json!(16), (10, 20), (10, 20))
    );
    let reuse = property(&report, "prompt tokens seen before");
    let third = 1.0 / 3.0;
    assert!((reuse["source"].as_f64().expect("a share") - third).abs() < 1e-9, "{reuse}");
    assert!((reuse["workload"].as_f64().expect("a share") - third).abs() < 1e-9, "{reuse}");
    let all = text(&place.at("w.jsonl")) + &report.to_string();
    assert!(["harbour", "captain", "berth"].iter().all(|word| !all.contains(word)));
    // The key is nobody's and the numbers are new ones: the same log gives the same bytes.
    let (_, again) = made(&[&source, "--hash-prompts"], &place.at("again.jsonl"));
    assert_eq!(rows, again);
    let unread = ok(&["workload", &source]);
    assert!(unread.words().contains("--hash-prompts keeps their shared prefixes"), "{}", unread.stdout);
}

#[test]
fn lines_that_cannot_be_read_are_named() {
    let place = Place::new();
    let genuine = text(&log("litellm_standard_logging.jsonl.gz"));
    let mut lines: Vec<&str> = genuine.lines().collect();
    let cut = lines[5].split_at(400).0.to_owned();
    lines[5] = &cut;
    lines.insert(2, "{\"startTime\": \"soon\", \"call_type\": \"acompletion\"}");
    let source = place.file("log.jsonl", &lines.join("\n"));
    let ended = ok(&["workload", &source]);
    let said =
        "can't be read: line 3 (expected startTime, in seconds), line 6 (expected a whole JSON object)";
    // The cut line has moved down by the one that was put before it.
    assert!(ended.words().contains(&said.replace("line 6", "line 7")), "{}", ended.stdout);
    assert!(ended.words().contains("35 requests"), "{}", ended.stdout);
    let nothing = place.file("nothing.jsonl", "{\"hello\": 1}\n");
    refused(&["workload", &nothing], "unknown log format; supported are logs of LiteLLM");
    refused(&["workload", &log("nginx_access_combined.log")], "log JSON with $msec");
    refused(
        &["workload", &log("llama_server.log"), "--isl", "9"],
        "--isl: the log has the number of prompt tokens",
    );
    refused(
        &["workload", &log("litellm_standard_logging.jsonl.gz"), "--model", "x"],
        "the log names tiny, gone",
    );
    refused(&["workload", &source, &log("llama_server.log")], "make a workload of one kind");
    refused(&["workload", &log("envoy_ai_gateway_access.jsonl")], "all its requests came at one instant");
    refused(&["workload", &place.at("missing")], "missing");
}

fn attempts(run: &str) -> Vec<Attempt> {
    plimsoll_store::open(&PathBuf::from(run)).expect("a run").attempts
}

/// p99 of ttft by its definition: the rank ⌈0.99 n⌉ of first token less due.
fn ttft_p99(run: &str) -> f64 {
    let mut ttft: Vec<f64> = attempts(run)
        .iter()
        .map(|one| (one.first_token.expect("all are answered") - one.due).as_secs_f64())
        .collect();
    ttft.sort_by(f64::total_cmp);
    ttft[(0.99 * ttft.len() as f64).ceil() as usize - 1]
}

/// The truth is the scenario that made the traffic, at 60 and 85 % of the engine's capacity.
/// Gamma gaps scale with the rate, so it draws the same requests faster. The workload does not use the scenario.
#[test]
fn a_workload_makes_the_same_wait_as_the_traffic_it_is_of() {
    let place = Place::new();
    let traffic = |rate: f64, out: &str| {
        let (rate, length) = (format!("{rate}/s"), format!("{}s", 3_000.0 / rate));
        ok(&[
            &[
                "simulate",
                "--profile",
                "llama-3.1-8b@h100",
                "-q",
                "--arrivals",
                "gamma:2",
                "--prefix",
                "0.5,8",
            ][..],
            &[
                "--isl",
                "lognormal:800,0.8",
                "--osl",
                "lognormal:120,0.6",
                "--rate",
                &rate,
                "--for",
                &length,
                "-o",
                out,
            ],
        ]
        .concat());
    };
    let run = place.at("run");
    traffic(25.0, &run);
    let file = place.at("w.jsonl.gz");
    let (report, rows) = made(&[&run], &file);
    assert_eq!(rows.len(), attempts(&run).len());
    let differs = |one: &&Value| one["verdict"] == "differs";
    let all = report["made"]["properties"].as_array().expect("properties");
    assert_eq!(all.iter().find(differs), None);
    let effect = &report["effect"];
    assert!(effect["at"].as_array().expect("shares").iter().all(|at| at["agrees"] == true), "{effect}");
    for (i, share) in [0.6, 0.85].into_iter().enumerate() {
        let rate = share * effect["limit_per_s"].as_f64().expect("a rate");
        let (truth, replay) = (place.at(&format!("truth{i}")), place.at(&format!("replay{i}")));
        traffic(rate, &truth);
        let rate = format!("{rate}/s");
        ok(&[
            "simulate",
            "--profile",
            "llama-3.1-8b@h100",
            "-q",
            "--trace",
            &file,
            "--rate",
            &rate,
            "-o",
            &replay,
        ]);
        let (truth, replay) = (ttft_p99(&truth), ttft_p99(&replay));
        assert!((replay / truth - 1.0).abs() < 0.05, "{share}: {truth} s and {replay} s");
    }
}

/// Conversations stay together, and a faster replay has the same gaps, all of them shorter by as much.
#[test]
fn conversations_and_bursts_stay_as_they_were_at_another_speed() {
    let place = Place::new();
    let (run, file, fast) = (place.at("run"), place.at("w.jsonl"), place.at("fast"));
    ok(&[
        "simulate",
        "-q",
        "--sessions",
        "4,2s",
        "--rate",
        "6/s",
        "--for",
        "60s",
        "--isl",
        "64",
        "--osl",
        "16",
        "-o",
        &run,
    ]);
    let (report, rows) = made(&[&run], &file);
    for name in ["turns of a conversation", "time from turn to turn, s", "prompt tokens seen before"] {
        assert_eq!(property(&report, name)["verdict"], "same", "{name}");
    }
    let mut came = attempts(&run);
    came.sort_by_key(|one| (one.due, one.request));
    for (i, j) in (1..rows.len()).map(|i| (i, i - 1)) {
        assert_eq!(
            rows[i]["session_id"] == rows[j]["session_id"],
            came[i].session == came[j].session,
            "row {i}"
        );
    }
    ok(&["simulate", "-q", "--trace", &file, "--speed", "4", "-o", &fast]);
    let mut due: Vec<f64> = attempts(&fast).iter().map(|one| 4.0 * one.due.0 as f64 / 1e9).collect();
    due.sort_by(f64::total_cmp);
    close(&due, &times(&rows), 1e-5);
}
