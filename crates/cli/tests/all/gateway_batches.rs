//! `batching:` in front of a server that answers embeddings one request after another, at what each costs by its law, with and without.

use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::gateway::Running;
use crate::kit::{Engine, plimsoll_in};

/// 40 ms a request and 100 µs a token.
const LAW: (f64, f64) = (0.040, 0.000_1);
const PROFILE: &str = "
name: one-at-a-time
mode:
  kind: batching
  max_seqs: 1
  token_budget: 16384
  kv_blocks: 4096
  prefix_cache: false
  step: {kind: linear, base_us: 40000, decode_us: 0, prefill_us: 100}
";
const TOKENS: f64 = 16.0;

/// What a load of sixteen clients comes to, each of which asks again when it was answered: requests a second, and their median, s.
fn load(folder: &Path, url: &str, name: &str) -> (f64, f64) {
    let args = [
        "run",
        url,
        "--protocol",
        "embeddings",
        "--concurrency",
        "16",
        "--isl",
        "16",
        "--for",
        "8s",
        "-o",
        name,
    ];
    let found = plimsoll_in(folder, &[&args[..], &["--format", "json"]].concat()).json();
    let summary = &found["findings"]["levels"][0]["summary"];
    let counts = &summary["counts"];
    assert_eq!(counts["requests"], counts["finished"], "{counts}");
    let value = |of: &Value| of["value"].as_f64().unwrap_or_else(|| panic!("no value in {of}"));
    (value(&summary["rates"]["achieved_per_s"]), value(&summary["latency"]["e2e"]["p50"]))
}

#[test]
fn joined_a_server_of_one_at_a_time_answers_more_than_its_law_allows_alone() {
    let folder = tempfile::tempdir().expect("a folder");
    let profile = folder.path().join("profile.yaml");
    fs::write(&profile, PROFILE).expect("written");
    let mut loads = Vec::new();
    for batching in ["null", "{}"] {
        let engine = Engine::start(profile.to_str().expect("text"));
        let file = folder.path().join("gateway.yaml");
        let replica = engine.url.trim_end_matches("/v1");
        fs::write(&file, format!("replicas: [{{url: {replica}}}]\nbatching: {batching}\n")).expect("written");
        let gateway = Running::start(&[file.to_str().expect("text")]);
        let (per_s, p50) = load(folder.path(), &gateway.url, &format!("run{}", loads.len()));
        println!("batching {batching}: {per_s:.1}/s, e2e p50 {:.0} ms", p50 * 1e3);
        loads.push((per_s, p50));
    }
    let [(alone, alone_p50), (joined, joined_p50)] = loads[..] else { panic!("two loads") };
    // One after another: nothing makes it faster than that.
    let most = 1.0 / (LAW.0 + LAW.1 * TOKENS);
    assert!(alone < 1.02 * most, "{alone} where {most} a second are all it can do");
    assert!(joined > 2.0 * most, "{joined} where {most} a second are all it can do alone");
    assert!(joined_p50 < alone_p50, "{joined_p50} and {alone_p50} s");
}
