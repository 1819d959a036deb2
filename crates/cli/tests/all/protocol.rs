//! The kinds of load: ended by requests, as one wave, after a warm-up; live and in virtual time alike.
//! The expected figures are computed manually from eight servers of 10 ms.

use std::sync::{Arc, Mutex};

use serde_json::Value;

use crate::kit::{Engine, Server, plimsoll, reply, run_folder};

fn json(args: &[&str]) -> Value {
    let (_folder, run) = run_folder();
    let ended =
        plimsoll(&[args, &["--osl", "1", "--isl", "8", "-q", "-o", &run, "--format", "json"]].concat());
    assert!(matches!(ended.code, 0 | 4), "{}", ended.stderr);
    ended.json()
}

/// Length of a level, ms.
fn length_ms(level: &Value) -> f64 {
    let at = |name: &str| level[name].as_i64().expect("an instant") as f64 / 1e6;
    at("drained") - at("start")
}

#[test]
fn a_wave_is_as_long_as_its_requests_take() {
    // A hundred requests on eight servers: thirteen rounds.
    let run = json(&["simulate", "--profile", "md8", "--wave", "100"]);
    assert_eq!(length_ms(&run["levels"][0]), 130.0);
    assert_eq!(run["levels"][0]["stop"], run["levels"][0]["drained"]);
    assert_eq!(run["levels"][0]["load"], serde_json::json!({"mode": "wave", "requests": 100}));
    let engine = Engine::start("md8");
    let live = json(&["run", &engine.url, "--wave", "16"]);
    let level = &live["levels"][0];
    assert_eq!(level["arrivals"], 16);
    assert!(length_ms(level) >= 20.0 && length_ms(level) < 2_000.0, "{}", length_ms(level));
}

#[test]
fn a_closed_loop_ends_after_its_requests_and_its_warm_up_counts_nowhere() {
    let engine = Engine::start("md8");
    let load = ["--concurrency", "4", "--requests", "200", "--warm-up", "20"];
    for head in [&["simulate", "--profile", "md8"][..], &["run", &engine.url][..]] {
        let run = json(&[head, &load].concat());
        let purposes: Vec<&str> =
            run["levels"].as_array().expect("levels").iter().filter_map(|l| l["purpose"].as_str()).collect();
        assert_eq!(purposes, ["warmup", "run"]);
        assert_eq!((&run["levels"][0]["arrivals"], &run["levels"][1]["arrivals"]), (&20.into(), &200.into()));
        let levels = run["findings"]["levels"].as_array().expect("levels");
        assert_eq!(levels.len(), 1);
        let counts = &levels[0]["summary"]["counts"];
        let cut = &levels[0]["summary"]["window"]["warm_up_requests"];
        assert_eq!(counts["requests"].as_u64().expect("n") + cut.as_u64().expect("n"), 200);
        // Four in flight, 10 ms each: fifty rounds.
        let length = length_ms(&run["levels"][1]);
        let most = if head[0] == "simulate" { 500.0 } else { 3_000.0 };
        assert!((500.0..=most).contains(&length), "{length} ms");
    }
}

/// Isolated requests before a load are in no figure of the run; a diagnosis uses them as the time of a single request.
#[test]
fn requests_alone_before_a_load_are_what_a_diagnosis_asks() {
    let (_folder, run) = run_folder();
    let load = ["--rate", "200/s", "--for", "2s", "--alone", "25", "--osl", "8", "-q", "-o", &run];
    let ended = plimsoll(&[&["simulate", "--profile", "md8"][..], &load].concat());
    assert!(ended.stdout.contains("25 requests isolated before"), "{}", ended.stdout);
    let opened = plimsoll_store::open(std::path::Path::new(&run)).expect("a run");
    let levels: Vec<(&str, u64)> =
        opened.manifest.levels.iter().map(|l| (l.purpose.as_str(), l.arrivals)).collect();
    assert_eq!((levels[0], levels[1].0, levels.len()), (("alone", 25), "run", 2));
    let shown = plimsoll(&["show", &run, "--format", "json"]).json();
    assert_eq!(shown["findings"]["levels"].as_array().map(Vec::len), Some(1), "{shown}");
    let told = plimsoll(&["diagnose", &run, "--format", "json"]).json();
    assert_eq!(told["subject"]["alone"], 25, "{}", told["subject"]);
    assert_eq!(told["subject"]["level"], opened.manifest.levels[1].id);
}

#[test]
fn the_page_says_how_the_load_was_put_on() {
    let (_folder, run) = run_folder();
    let args = [
        "simulate",
        "--profile",
        "md8",
        "--concurrency",
        "4",
        "--requests",
        "50",
        "--warm-up",
        "3",
        "-q",
        "-o",
    ];
    let ended = plimsoll(&[&args[..], &[&run]].concat());
    let words = "closed loop, 4 in flight until 50 requests have ended; 3 warm-up requests before";
    assert!(ended.words().contains(words), "{}", ended.stdout);
    let report = plimsoll(&["report", &run]);
    let page = std::fs::read_to_string(report.stdout.trim()).expect("written");
    assert!(page.contains(words));
}

/// One load by each of OpenAI's generating protocols: equal requests, tokens and time by the server's truth.
#[test]
fn the_protocols_that_generate_are_measured_alike() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("even.yaml");
    let even = "name: even\nmode: {kind: canned, ttft: {law: deterministic, ms: 40}, gap: {law: deterministic, ms: 10}}";
    std::fs::write(&file, even).expect("written");
    let engine = Engine::start(file.to_str().expect("utf-8"));
    for protocol in ["chat", "completions", "responses"] {
        let (_folder, run) = run_folder();
        let load = ["--rate", "40/s", "--for", "1500ms", "--isl", "8", "--osl", "5", "--seed", "3"];
        let head = ["run", &engine.url, "--protocol", protocol];
        let ended = plimsoll(&[&head[..], &load, &["-q", "-o", &run]].concat());
        assert!(matches!(ended.code, 0 | 4), "{}", ended.stderr);
        let rows = plimsoll_store::open(std::path::Path::new(&run)).expect("a run").attempts;
        assert!(rows.len() > 30, "{}", rows.len());
        let mut spans = Vec::new();
        for row in &rows {
            assert!(row.outcome.is_finished(), "{protocol}: {:?}", row.answer.error);
            let events = row.events.iter().filter(|event| event.kind.is_token()).count();
            let tokens = (row.answer.tokens.prompt, row.answer.tokens.output);
            assert_eq!((events, tokens), (5, (Some(8), Some(5))), "{protocol}");
            assert_eq!(row.answer.finish_reason.as_deref(), Some("length"));
            let at = |at: Option<plimsoll_model::At>| {
                (at.expect("a token") - row.sent.expect("sent")).0 as f64 / 1e6
            };
            spans.push((at(row.first_token), at(row.last_token)));
        }
        spans.sort_by(|a, b| a.0.total_cmp(&b.0));
        let (first, last) = spans[spans.len() / 2];
        assert!(
            (40.0..50.0).contains(&first) && (80.0..95.0).contains(&last),
            "{protocol}: {first} {last} ms"
        );
    }
}

/// A server that keeps the first lines of its requests, and resets its cache or does not.
fn resetting(status: &'static str) -> (Server, Arc<Mutex<Vec<String>>>) {
    let seen: Arc<Mutex<Vec<String>>> = Arc::default();
    let kept = Arc::clone(&seen);
    let server = Server::start(move |first, socket| {
        kept.lock().expect("nobody panicked").push(first.to_owned());
        match first {
            _ if first.starts_with("POST /reset_prefix_cache ") => reply(socket, status, "", ""),
            _ if first.starts_with("GET ") => {
                reply(socket, "200 OK", "", r#"{"object":"list","data":[{"id":"m"}]}"#)
            }
            _ => {
                let events = [
                    r#"{"choices":[{"index":0,"delta":{"content":"a"}}]}"#,
                    r#"{"choices":[{"index":0,"delta":{},"finish_reason":"length"}],"usage":{"prompt_tokens":8,"completion_tokens":1}}"#,
                    "[DONE]",
                ];
                let body: String = events.iter().map(|event| format!("data: {event}\n\n")).collect();
                reply(socket, "200 OK", "Content-Type: text/event-stream\r\n", &body);
            }
        }
    });
    (server, seen)
}

#[test]
fn what_is_to_come_before_a_level_comes_before_each_and_none_begins_without() {
    let reset = "POST /reset_prefix_cache HTTP/1.1";
    let run = |url: &str, before: &str| {
        let (_folder, run) = run_folder();
        let load = ["--wave", "6", "--warm-up", "3", "--osl", "1", "--isl", "8", "-q"];
        plimsoll(&[&["run", url, "--before-level", before, "-o", &run][..], &load].concat())
    };
    let posts = |lines: &[String]| lines.iter().filter(|line| line.starts_with("POST /v1/chat")).count();
    let (server, seen) = resetting("200 OK");
    let ended = run(&server.url, "POST /reset_prefix_cache");
    assert!(matches!(ended.code, 0 | 4), "{}", ended.stderr);
    let lines: Vec<String> = seen.lock().expect("nobody panicked").clone();
    let resets: Vec<usize> = (0..lines.len()).filter(|&n| lines[n] == reset).collect();
    assert_eq!(resets.len(), 2, "{lines:?}");
    // Of the warm-up, and of the level.
    assert_eq!([posts(&lines[resets[0]..resets[1]]), posts(&lines[resets[1]..])], [3, 6], "{lines:?}");

    let (server, seen) = resetting("404 Not Found");
    let ended = run(&server.url, "POST /reset_prefix_cache");
    assert_eq!(ended.code, 5, "{}", ended.stderr);
    assert!(ended.stderr.contains("--before-level POST /reset_prefix_cache: HTTP 404"), "{}", ended.stderr);
    let lines: Vec<String> = seen.lock().expect("nobody panicked").clone();
    let at = lines.iter().position(|line| line == reset).expect("it was sent");
    assert_eq!(posts(&lines[at..]), 0, "{lines:?}");

    for slip in ["reset", "POST reset", "PATCH /x", "POST http://h/x", "POST //h/x"] {
        let ended = run(&server.url, slip);
        assert_eq!(ended.code, 2, "{slip}: {}", ended.stderr);
        assert!(ended.stderr.contains("write a method and a path"), "{slip}: {}", ended.stderr);
    }
}
