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

/// What a load of sixteen clients, each of which asks again when it was answered, comes to: requests a second, and their times, s.
struct Load {
    per_s: f64,
    p50: f64,
    p95: f64,
}

fn load(folder: &Path, url: &str, name: &str) -> Load {
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
        "10s",
        "-o",
        name,
    ];
    let found = plimsoll_in(folder, &[&args[..], &["--format", "json"]].concat()).json();
    let summary = &found["findings"]["levels"][0]["summary"];
    let counts = &summary["counts"];
    assert_eq!(counts["requests"], counts["finished"], "{counts}");
    let value = |of: &Value| of["value"].as_f64().unwrap_or_else(|| panic!("no value in {of}"));
    let e2e = &summary["latency"]["e2e"];
    Load {
        per_s: value(&summary["rates"]["finished_per_s"]),
        p50: value(&e2e["p50"]),
        p95: value(&e2e["p95"]),
    }
}

#[test]
fn joined_a_server_of_one_at_a_time_answers_more_than_its_law_allows_alone() {
    let folder = tempfile::tempdir().expect("a folder");
    let profile = folder.path().join("profile.yaml");
    fs::write(&profile, PROFILE).expect("written");
    let profile = profile.to_str().expect("text");
    let mut loads = Vec::new();
    for batching in ["null", "{}"] {
        let engine = Engine::start(profile);
        let file = folder.path().join("gateway.yaml");
        let replica = engine.url.trim_end_matches("/v1");
        fs::write(&file, format!("replicas: [{{url: {replica}}}]\nbatching: {batching}\n")).expect("written");
        let gateway = Running::start(&[file.to_str().expect("text")]);
        let name = format!("run{}", loads.len());
        let load = load(folder.path(), &gateway.url, &name);
        println!(
            "batching {batching}: {:.1}/s, e2e p50 {:.0} ms, p95 {:.0} ms",
            load.per_s,
            load.p50 * 1e3,
            load.p95 * 1e3
        );
        loads.push(load);
    }
    let [alone, joined] = &loads[..] else { panic!("two loads") };
    // One after another: nothing makes it faster than that.
    let most = 1.0 / (LAW.0 + LAW.1 * TOKENS);
    assert!(alone.per_s < 1.02 * most, "{} where {most} a second are all it can do", alone.per_s);
    assert!(joined.per_s > 2.0 * most, "{} of {most} a second", joined.per_s);
    assert!(joined.p50 < alone.p50, "{} and {} s", joined.p50, alone.p50);
}
