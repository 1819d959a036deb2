//! The whole path against a server that is not ours: llama.cpp's HTTP server with a tiny random model.
//!
//! `scripts/real-server setup` installs it (`.ci/run` does). Where it is not installed the test is skipped, or
//! fails where parts are required; nothing else in it is allowed to be lenient.

use std::path::Path;

use plimsoll_measure::server_side::{ServerSide, Signal};
use plimsoll_model::{At, Tokens};
use serde_json::Value;

use crate::kit::{plimsoll, run_folder};
use crate::real;
use crate::tune::undisturbed;

#[test]
fn llama_cpp_is_measured_from_end_to_end() {
    let Some(server) = real::or_skipped(real::llama()) else { return };
    let folder = tempfile::tempdir().expect("a temporary folder");
    let run = folder.path().join("run");
    let url = server.v1();
    let ended = plimsoll(&[
        "run",
        &url,
        "--rate",
        "5/s",
        "--for",
        "8s",
        "--isl",
        "48",
        "--osl",
        "16",
        "--seed",
        "3",
        "-o",
        run.to_str().expect("utf-8"),
        "--format",
        "json",
    ]);
    // A loaded machine may make the generator late (4); what the server did is judged strictly either way.
    assert!(ended.code == 0 || ended.code == 4, "{}", ended.stderr);
    let json = ended.json();
    let level = &json["findings"]["levels"][0]["summary"];
    let arrivals = level["counts"]["requests"].as_u64().expect("requests are counted");
    assert!((20..=64).contains(&arrivals), "5/s for 8 s gave {arrivals} requests");
    assert_eq!(level["counts"]["finished"].as_u64(), Some(arrivals), "{level}");
    assert!(run.join("requests.parquet").exists());
    assert_eq!(json["target"]["facts"]["model"], "tiny");
}

/// A model that is missing ends the server; the other setting is measured, and no server is left.
#[test]
fn llama_cpp_is_tuned_and_a_setting_that_ends_it_is_a_result() {
    let Some(done) = real::or_skipped(real::installed("venv-llama/.done", "llama")) else { return };
    let python = done.with_file_name("bin/python");
    let script = real::root().join("crates/cli/tests/servers/llama_serve.py");
    let models = done.with_file_name("../models");
    let (_folder, run) = run_folder();
    let launch = [python.display(), script.display(), models.display()].map(|path| path.to_string());
    let launch = format!("{}/{{model}} --port {{port}} --parallel 2", launch.join(" "));
    let set = "model=missing.gguf,tiny-128-2.gguf";
    let ended = plimsoll(&[
        "tune", "--launch", &launch, "--set", set, "--first", "3s", "--isl", "32", "--osl", "8", "-o", &run,
        "--format", "json",
    ]);
    let settings = ended.json()["settings"].as_array().expect("settings").clone();
    let is_missing = |one: &&Value| one["values"]["model"] == "missing.gguf";
    let missing = settings.iter().find(is_missing).expect("a result");
    let good = settings.iter().find(|one| !is_missing(one)).expect("a result");
    if undisturbed(good) {
        assert_eq!((ended.code, &good["standing"]), (0, &"best".into()), "{}", ended.stderr);
        assert!(good["load"]["value"].as_f64().is_some_and(|rate| rate > 1.0), "{good}");
    }
    assert_eq!(missing["standing"], "failed");
    assert!(missing["why"].as_str().is_some_and(|why| why.contains("ended")), "{missing}");
    let port: u16 = good["launch"]
        .as_str()
        .and_then(|text| text.split("--port ").nth(1)?.split(' ').next()?.parse().ok())
        .expect("a port");
    assert!(std::net::TcpStream::connect(("127.0.0.1", port)).is_err(), "no server is left");
}

/// The server closes each connection right after a streamed answer although it announces keep-alive. A closed loop that relied
/// on the announcement failed a sixth of its requests.
#[test]
fn what_llama_cpp_ends_without_a_word_fails_hardly_a_request() {
    let Some(server) = real::or_skipped(real::llama()) else { return };
    let folder = tempfile::tempdir().expect("a temporary folder");
    let run = folder.path().join("run");
    let path = run.to_str().expect("utf-8");
    let url = server.v1();
    let load = ["run", &url, "--concurrency", "4", "--for", "4s", "--isl", "48", "--osl", "16", "-o", path];
    let ended = plimsoll(&[&load[..], &["--format", "json"]].concat());
    assert!(ended.code == 0 || ended.code == 4, "{}", ended.stderr);
    let json = ended.json();
    let level = &json["findings"]["levels"][0];
    let count =
        |of: &str| level["summary"]["counts"][of].as_f64().unwrap_or_else(|| panic!("no {of}: {level}"));
    let (requests, failed) = (count("requests"), count("requests") - count("finished"));
    assert!(requests >= 20.0 && failed <= 0.05 * requests, "{failed} of {requests} failed");
    let kept = &level["summary"]["generator"]["kept"];
    let told = |of: &str| kept[of].as_f64().unwrap_or_else(|| panic!("no {of}: {kept}"));
    assert!(2.0 * told("ended") > told("looks") && told("lost") == failed, "{kept}");
}

/// Two servers behind the gateway: their early closes of kept connections cost clients without the gateway requests, and with it none.
#[test]
fn two_llama_cpp_behind_the_gateway_lose_no_request() {
    let Some(one) = real::or_skipped(real::llama()) else { return };
    let Some(two) = real::or_skipped(real::llama()) else { return };
    let (first, second) = (format!("one={}", one.v1()), format!("two={}", two.v1()));
    let gateway = crate::gateway::Running::start(&["--replica", &first, "--replica", &second]);
    let folder = tempfile::tempdir().expect("a temporary folder");
    let run = folder.path().join("run");
    let path = run.to_str().expect("utf-8");
    let load =
        ["run", &gateway.url, "--concurrency", "4", "--for", "4s", "--isl", "48", "--osl", "16", "-o", path];
    let ended = plimsoll(&[&load[..], &["--format", "json"]].concat());
    assert!(ended.code == 0 || ended.code == 4, "{}", ended.stderr);
    let json = ended.json();
    let counts = &json["findings"]["levels"][0]["summary"]["counts"];
    assert!(counts["requests"].as_u64().is_some_and(|requests| requests >= 20), "{counts}");
    assert_eq!(counts["finished"], counts["requests"], "{counts}");
}

/// Its own page against what the client knows: every request finished, so each token is on both sides.
#[test]
fn what_llama_cpp_says_of_itself_is_what_the_client_got() {
    let Some(server) = real::or_skipped(real::llama()) else { return };
    let folder = tempfile::tempdir().expect("a temporary folder");
    let run = folder.path().join("run");
    let path = run.to_str().expect("utf-8");
    let url = server.v1();
    // Eight requests at a time on four slots. Its HTTP library closes a connection after a fixed number of requests, even during one.
    let load = ["--concurrency", "8", "--for", "5s", "--isl", "48", "--osl", "64", "--connections", "fresh"];
    let fixed = ["run", &url, "-o", path, "--scrape-every", "100ms", "--format", "json"];
    let ended = plimsoll(&[&fixed[..], &load].concat());
    assert!(ended.code == 0 || ended.code == 4, "{}", ended.stderr);
    let json = ended.json();
    let found = &json["findings"]["levels"][0]["summary"]["counts"];
    assert_eq!(found["finished"], found["requests"], "{found}");

    let read = plimsoll_store::open(&run).expect("a run");
    let level = read.manifest.levels.iter().find(|level| level.purpose != "warmup").expect("a level");
    let own = || read.attempts.iter().filter(|attempt| attempt.level == level.id);
    let sum = |of: fn(&Tokens) -> Option<u32>| -> f64 {
        own().map(|attempt| f64::from(of(&attempt.answer.tokens).expect("llama.cpp reports usage"))).sum()
    };
    let said = ServerSide::read(&read.samples);
    let gained =
        |signal| said.gained(signal, level.start, At::MAX).unwrap_or_else(|| panic!("no {signal:?}")).value;
    assert_eq!(gained(Signal::PromptTokens), sum(|tokens| tokens.prompt), "cached ones included");
    assert_eq!(gained(Signal::OutputTokens), sum(|tokens| tokens.output));
    assert_eq!(gained(Signal::CachedTokens), sum(|tokens| tokens.cached.or(Some(0))));

    let told = &json["findings"]["server"]["levels"][0];
    assert_eq!(told["running_limit"].as_f64(), Some(4.0), "{told}");
    // The accuracy depends on the number of scrapes: in five seconds some found all slots used, and none found a fifth.
    assert_eq!(told["running_max"].as_f64(), Some(4.0), "{told}");
    let waiting = told["waiting_max"].as_f64().unwrap_or_else(|| panic!("{told}"));
    assert!((1.0..=4.0).contains(&waiting), "{told}");
    assert_eq!(told["kv_usage"], Value::Null, "this server no longer tells, so it is unknown: {told}");
}

/// Returns a number from its metrics endpoint.
fn page(port: u16, name: &str) -> Option<f64> {
    let page = real::get(port, "/metrics")?;
    page.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok())
}

/// The phases of request time from the client's timestamps and the server's metrics, against the server's own `timings` of each answer.
#[test]
fn where_the_time_went_is_what_llama_cpp_says_of_its_answers() {
    let Some(server) = real::or_skipped(real::llama()) else { return };
    let (_folder, run) = run_folder();
    let url = server.v1();
    // Twice as many as its slots: half of them wait.
    let load = ["--concurrency", "8", "--for", "6s", "--isl", "uniform:32,400", "--osl", "32"];
    let fixed = ["run", &url, "--connections", "fresh", "--scrape-every", "250ms", "-q", "-o", &run];
    let ended = plimsoll(&[&fixed[..], &load].concat());
    assert!(ended.code == 0 || ended.code == 4, "{}", ended.stderr);
    let found = plimsoll(&["profile", &run, "--format", "json"]).json();
    let level = &found["levels"][0];
    let part = |name: &str| {
        let parts = level["parts"].as_array().expect("parts");
        parts.iter().find(|part| part["part"] == name).cloned().unwrap_or_default()
    };
    let mean = |part: &Value| part["mean"]["value"].as_f64().expect("a mean");

    let read = plimsoll_store::open(Path::new(&run)).expect("a run");
    let asked = read.manifest.levels.iter().find(|level| level.purpose != "warmup").expect("a level");
    let own: Vec<_> = read
        .attempts
        .iter()
        .filter(|attempt| attempt.level == asked.id && attempt.outcome.is_finished())
        .collect();
    let said = |name: &str| -> Vec<f64> {
        let of = |attempt: &&plimsoll_model::Attempt| {
            let stage = attempt.answer.stages.iter().find(|stage| stage.name == name)?;
            Some(stage.took.as_secs_f64())
        };
        own.iter().filter_map(of).collect()
    };
    let average = |of: &[f64]| of.iter().sum::<f64>() / of.len() as f64;
    let (prompts, predicted) = (said("prefill"), said("decode"));
    assert_eq!(prompts.len(), own.len(), "llama.cpp tells both of every answer");
    assert!(own.len() as u64 >= level["requests"].as_u64().expect("requests"), "{level}");

    assert_eq!(part("prefill")["basis"], "reported", "{level}");
    // A closed loop's first seconds may be cut as warm-up: the figure is of most of these requests.
    let ratio = mean(&part("prefill")) / average(&prompts);
    assert!((0.7..1.4).contains(&ratio), "{ratio}: {level}");
    // First token to last is the server's generation time, measured by another clock on the other side of the network.
    let (decode, generation) = (mean(&part("decode")), average(&predicted));
    assert!((decode - generation).abs() < 0.5 * generation + 0.05, "{decode} and {generation}");
    // Half of eight wait for four slots, so the time before the prompt is about the service time of a request.
    let before = mean(&level["wait"]) - mean(&part("prefill"));
    assert!(before > 0.2 * (mean(&part("prefill")) + decode), "{before}: {level}");
    let text = plimsoll(&["profile", &run]).stdout;
    assert!(text.contains("prefill as the server reports it") && text.contains("reported"), "{text}");
}

/// The process is killed while it is idle and started again, with the times noted independently.
/// The client's measured downtime must contain the noted downtime.
#[test]
#[expect(clippy::disallowed_methods, reason = "the server of this test is started and stopped in real time")]
fn a_server_that_was_away_is_a_cold_start_as_long_as_it_was() {
    use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
    let Some(server) = real::or_skipped(real::llama()) else { return };
    let (_folder, run) = run_folder();
    let port = server.port;
    let url = format!("http://127.0.0.1:{port}/v1");
    let since_epoch = || SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_secs_f64();
    let away = std::thread::spawn(move || {
        // 3 + 25 requests of 4 tokens each; nothing more for a second means that they are over.
        let (begun, mut last, mut quiet) = (Instant::now(), 0.0, Instant::now());
        while begun.elapsed() < Duration::from_secs(60) {
            let steps = page(port, "llamacpp:n_decode_total").unwrap_or(last);
            if steps != last {
                (last, quiet) = (steps, Instant::now());
            }
            if last >= 80.0 && quiet.elapsed() > Duration::from_millis(1_000) {
                break;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        drop(server);
        std::thread::sleep(Duration::from_secs(8));
        let started = since_epoch();
        let server = real::llama_at(port).expect("it was installed");
        (started, since_epoch(), server)
    });
    let flags = ["--isl", "32", "--osl", "4", "--warm", "25", "--idle", "6s", "--then", "3", "-q"];
    let ended = plimsoll(&[&["cold-start", &url, "-o", &run, "--format", "json"][..], &flags].concat());
    let (started, ready, _server) = away.join().expect("it came back");
    // On a busy machine the measurement may be inconclusive or invalid.
    assert!(matches!(ended.code, 0 | 3 | 4), "{}", ended.stderr);
    if ended.code != 0 {
        return;
    }
    let json = ended.json();
    let found = &json["findings"]["cold_start"];
    assert_eq!(found["verdict"], "started", "{found}");
    let trial = &found["trials"][0];
    assert_eq!(trial["connect_s"], Value::Null, "a try that failed waited for its turn: {trial}");
    let part = &trial["parts"][0];
    assert_eq!(part["phase"], "no_listener", "{trial}");
    let end = |name: &str| part["seconds"][name].as_f64().expect("s");
    let read = plimsoll_store::open(Path::new(&run)).expect("a run");
    let first = read.attempts.iter().filter(|attempt| attempt.attempt > 0).min_by_key(|attempt| attempt.due);
    let due = first.expect("it was tried again").due;
    let due = (read.manifest.clock.realtime_ns + due.0) as f64 / 1e9;
    // It began to listen somewhere between the start of its process and its first word.
    assert!(end("lower") <= ready - due + 0.1, "{part}: ready {}", ready - due);
    assert!(end("upper") >= started - due - 0.1, "{part}: started {}", started - due);
}
