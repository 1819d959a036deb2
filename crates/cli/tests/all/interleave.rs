//! Two live endpoints in turn: one schedule on both, A B B A, and a verdict after every pair.

use std::path::Path;

use serde_json::Value;

use crate::kit::{Engine, plimsoll, run_folder};

fn manifest(run: &str, arm: &str) -> Value {
    let text = std::fs::read(Path::new(run).join(arm).join("run.json")).expect("an ordinary run folder");
    serde_json::from_slice(&text).expect("JSON")
}

fn a_repeat(run: &str) -> String {
    manifest(run, "a")["reproduce"].as_str().unwrap_or_default().to_owned()
}

/// When each block began, on the machine's clock, by arm.
fn starts(run: &str) -> Vec<(i64, char)> {
    let mut starts = Vec::new();
    for (arm, name) in [("a", 'A'), ("b", 'B')] {
        let manifest = manifest(run, arm);
        let anchor = manifest["clock"]["monotonic_ns"].as_i64().expect("ns");
        for level in manifest["levels"].as_array().expect("levels") {
            if level["purpose"] == "run" {
                starts.push((anchor + level["start"].as_i64().expect("ns"), name));
            }
        }
    }
    starts.sort_unstable();
    starts
}

#[test]
fn a_slowed_engine_is_stopped_early() {
    let (fast, slow) = (Engine::start("demo"), Engine::start_with("demo", &["--fault", "slow:factor=4"]));
    let (_folder, run) = run_folder();
    let args = ["interleave", &fast.url, &slow.url, "--rate", "40/s", "--for", "500ms"];
    let more = [
        "--isl",
        "16",
        "--osl",
        "16",
        "--alternations",
        "30",
        "--pause",
        "10ms",
        "--stop-early",
        "--margin",
        "p99=30%",
    ];
    let ended = plimsoll(&[&args[..], &more, &["--format", "json", "-q", "-o", &run]].concat());
    let found = ended.json();
    assert_eq!(found["any_time"]["verdict"]["verdict"], "harm", "{found:#}");
    let pairs = found["any_time"]["pairs"].as_u64().expect("pairs");
    assert!((7..30).contains(&pairs), "{pairs}");
    // On a busy machine the measurement is invalid (4).
    assert!(ended.code == 1 || ended.code == 4, "{}", ended.stderr);

    // The runs are compared as any two are, under the same margins.
    assert_eq!(found["any_time"]["metrics"][0]["percentiles"][2]["guard"]["margin"], 0.3);
    assert!(found["comparison"]["verdict"].is_string() || found["refused"].is_string(), "{found:#}");
    assert!(a_repeat(&run).contains("--margin p99=30%"), "{}", a_repeat(&run));

    let (a, b) = (manifest(&run, "a"), manifest(&run, "b"));
    let schedule = |manifest: &Value| -> Vec<Value> {
        let levels = manifest["levels"].as_array().expect("levels");
        levels.iter().map(|level| level["schedule_hash"].clone()).collect()
    };
    assert_eq!(schedule(&a), schedule(&b));
    assert_eq!(schedule(&a).len() as u64, pairs + 1, "the warm-up and a block a pair");
    assert_eq!(a["scenario"]["prompts"], b["scenario"]["prompts"]);
    assert_ne!(a["nonce"], b["nonce"]);
    let order: String = starts(&run).into_iter().map(|(_, arm)| arm).collect();
    assert_eq!(order, "ABBA".repeat(15)[..2 * pairs as usize]);
}

#[test]
fn a_shared_backend_caches_nothing_of_the_other_arm() {
    let engine = Engine::start("demo");
    let (_folder, run) = run_folder();
    let args = ["interleave", &engine.url, &engine.url, "--rate", "20/s", "--for", "500ms"];
    let more = ["--isl", "64", "--osl", "2", "--alternations", "2", "--pause", "10ms"];
    let ended = plimsoll(&[&args[..], &more, &["-q", "-o", &run]].concat());
    // Two pairs are too few for a verdict.
    assert!(ended.code == 3 || ended.code == 4, "{}", ended.stderr);
    assert!(ended.stdout.contains("fewer than 7 pairs can prove nothing"), "{}", ended.stdout);
    for arm in ["a", "b"] {
        for level in manifest(&run, arm)["findings"]["levels"].as_array().expect("levels") {
            assert_eq!(level["summary"]["lengths"]["cached_share"], 0.0, "{level:#}");
        }
    }
}

#[test]
fn what_can_not_be_interleaved_is_refused() {
    for (args, said) in [
        (&["--rate", "1/s", "--alternations", "0"][..], "at least one block"),
        (&["--rate", "1/s", "--alpha", "2"], "--alpha 2"),
        (&["--rate", "1/s", "--pause", "soon"], "--pause soon"),
        (&["--saturate"], "name it with --rate or --concurrency"),
        (&[], "no load given"),
    ] {
        let both = ["interleave", "http://127.0.0.1:9/v1", "http://127.0.0.1:9/v1"];
        let ended = plimsoll(&[&both[..], args].concat());
        assert_eq!(ended.code, 2, "{}", ended.stderr);
        assert!(ended.stderr.contains(said) && ended.stderr.lines().count() == 1, "{}", ended.stderr);
    }
    assert_eq!(plimsoll(&["interleave", "http://127.0.0.1:9/v1"]).code, 2);
}

#[test]
fn an_endpoint_that_is_not_there_leaves_no_folder() {
    let engine = Engine::start("canned");
    let (_folder, run) = run_folder();
    let nowhere = "http://127.0.0.1:9/v1";
    for urls in [[engine.url.as_str(), nowhere], [nowhere, engine.url.as_str()]] {
        let ended = plimsoll(&[&["interleave"][..], &urls, &["--rate", "1/s", "-q", "-o", &run]].concat());
        assert_eq!(ended.code, 5, "{}", ended.stderr);
        assert!(ended.stderr.contains(nowhere) && !Path::new(&run).exists(), "{}", ended.stderr);
    }
}
