//! Cold starts from the outside: an endpoint that scales to zero, and one that does not.

use serde_json::Value;

use crate::kit::{Engine, plimsoll, run_folder};

/// Runs `cold-start` with a short idle stretch; its JSON and what it left. `None` where it says itself that the machine was too busy
/// to measure on.
fn cold_start(url: &str, more: &[&str]) -> Option<(Value, tempfile::TempDir, String)> {
    let (folder, run) = run_folder();
    let base = ["cold-start", url, "--isl", "50", "--osl", "4", "--warm", "25", "-q", "-o", &run];
    let ended = plimsoll(&[&base[..], more, &["--format", "json"]].concat());
    assert!(matches!(ended.code, 0 | 3 | 4), "code {}: {}", ended.code, ended.stderr);
    let run_json = ended.json();
    (ended.code == 0).then_some((run_json, folder, run))
}

/// Three seconds of idling are past the second after which replicas go; a start takes four. On however busy a machine the first
/// request waits at least that long, and steady ones do not.
#[test]
fn a_replica_that_had_to_start_is_found() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let spec = folder.path().join("world.yaml");
    let world = "engine: demo\nfleet:\n  cold_start: {image_pull: 3s, compile: 1s}\nfaults: [\"scale_to_zero:idle=1s\"]\n";
    std::fs::write(&spec, world).expect("written");
    let engine = Engine::serve(&[spec.to_str().expect("utf-8")]);
    let Some((run, _folder, path)) = cold_start(&engine.url, &["--idle", "3s", "--then", "5"]) else {
        return;
    };
    let found = &run["findings"]["cold_start"];
    assert_eq!(found["verdict"], "started", "{found}");
    let trial = &found["trials"][0];
    assert!(trial["first_s"].as_f64().expect("answered") >= 3.5, "{trial}");
    assert!(trial["idle_s"].as_f64().expect("idle") >= 3.0, "{trial}");
    // The cold level is in no steady figure.
    let levels = run["findings"]["levels"].as_array().expect("levels");
    assert_eq!(levels.len(), 1, "{levels:?}");
    assert_eq!(levels[0]["summary"]["counts"]["requests"], 25);
    // Whoever reads the folder later says the same.
    let shown = plimsoll(&["show", &path, "--format", "json"]).json();
    assert_eq!(shown["findings"]["cold_start"]["verdict"], "started");
    let text = plimsoll(&["show", &path]).stdout;
    assert!(text.contains("Cold start: a replica had to start"), "{text}");
}

/// Nothing goes away in a second here: no start may be seen, on however busy a machine.
#[test]
fn an_endpoint_that_stays_has_no_cold_start() {
    let engine = Engine::start("demo");
    let Some((run, _folder, _)) = cold_start(&engine.url, &["--idle", "1s", "--then", "2"]) else { return };
    let found = &run["findings"]["cold_start"];
    assert!(found["verdict"] == "none" || found["verdict"] == "idle", "{found}");
}

#[test]
fn a_wrong_idle_is_refused() {
    let ended = plimsoll(&["cold-start", "http://127.0.0.1:9", "--idle", "never"]);
    assert_eq!(ended.code, 2, "{}", ended.stderr);
    assert!(ended.stderr.contains("--idle"), "{}", ended.stderr);
}

/// Twenty requests a second for ten seconds, twenty seconds of nothing, and so on, in virtual time: replicas go after ten idle seconds and a start
/// takes four, so that two of the requests pay four seconds and no other does.
#[test]
fn a_start_that_an_ordinary_run_met_is_told() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = |name: &str| folder.path().join(name).to_str().expect("utf-8").to_owned();
    let burst = |from: u64| (0..200u64).map(move |n| from * 1_000 + 50 * n);
    let line = |ms: u64| format!("{{\"timestamp\": {ms}, \"input_length\": 50, \"output_length\": 4}}\n");
    let trace: String = [0, 30, 60].into_iter().flat_map(burst).map(line).collect();
    std::fs::write(path("trace.jsonl"), trace).expect("written");
    let run = |faults: &str, to: &str| {
        let world = format!("engine: demo\nfleet:\n  cold_start: {{image_pull: 3s, compile: 1s}}\n{faults}");
        std::fs::write(path("world.yaml"), world).expect("written");
        let (world, trace, to) = (path("world.yaml"), path("trace.jsonl"), path(to));
        let ended = plimsoll(&["simulate", &world, "--trace", &trace, "--for", "75s", "-q", "-o", &to]);
        assert!([0, 3, 4].contains(&ended.code), "code {}: {}", ended.code, ended.stderr);
        let shown = plimsoll(&["show", &to, "--format", "json"]).json();
        (shown["findings"]["cold_start"].clone(), to)
    };
    let (found, to) = run("faults: [\"scale_to_zero:idle=10s\"]\n", "cold");
    assert_eq!((&found["verdict"], &found["in_passing"]), (&"started".into(), &true.into()), "{found}");
    let trials = found["trials"].as_array().expect("trials");
    assert_eq!(trials.len(), 2, "{found}");
    for trial in trials {
        let (idle, penalty) = (trial["idle_s"].as_f64().expect("s"), trial["penalty_s"].as_f64().expect("s"));
        assert!((19.0..20.1).contains(&idle) && (3.9..4.3).contains(&penalty), "{trial}");
    }
    let text = plimsoll(&["show", &to]).stdout;
    assert!(text.contains("met in passing: 2 times"), "{text}");
    // Replicas that stay: the same pauses, and nothing is made of them.
    let (none, _) = run("", "warm");
    assert!(none.is_null(), "{none}");
}
