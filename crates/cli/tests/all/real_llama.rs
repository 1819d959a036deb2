//! The whole path against a server that is not ours: llama.cpp's HTTP server with a tiny random model.
//!
//! `scripts/real-server setup` installs it (`.ci/run` does). Where it is not installed the test prints why it is
//! skipped and passes; nothing else in it is allowed to be lenient.

use plimsoll_analysis::server_side::{ServerSide, Signal};
use plimsoll_model::{At, Tokens};
use serde_json::Value;

use crate::kit::plimsoll;
use crate::real;

#[test]
fn llama_cpp_is_measured_from_end_to_end() {
    let server = match real::llama() {
        Ok(server) => server,
        Err(why) => {
            eprintln!("SKIPPED: {why}");
            return;
        }
    };
    let folder = tempfile::tempdir().expect("a temporary folder");
    let run = folder.path().join("run");
    let url = format!("http://127.0.0.1:{}/v1", server.port);
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

/// Its own page against what the client knows: every request finished, so each token is on both sides.
#[test]
fn what_llama_cpp_says_of_itself_is_what_the_client_got() {
    let server = match real::llama() {
        Ok(server) => server,
        Err(why) => {
            eprintln!("SKIPPED: {why}");
            return;
        }
    };
    let folder = tempfile::tempdir().expect("a temporary folder");
    let run = folder.path().join("run");
    let path = run.to_str().expect("utf-8");
    let url = format!("http://127.0.0.1:{}/v1", server.port);
    // Eight at a time on four slots. Its HTTP library closes a connection after so many requests, whatever is on its way.
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
    // As often right as somebody looked: in five seconds some look found all slots taken, and none found a fifth.
    assert_eq!(told["running_max"].as_f64(), Some(4.0), "{told}");
    let waiting = told["waiting_max"].as_f64().unwrap_or_else(|| panic!("{told}"));
    assert!((1.0..=4.0).contains(&waiting), "{told}");
    assert_eq!(told["kv_usage"], Value::Null, "this server no longer tells, so it is unknown: {told}");
}
