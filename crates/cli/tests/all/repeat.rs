//! A run can be repeated: the command in its manifest gives the same scenario and the same schedule, byte for byte.

use std::process::Command;

use serde_json::Value;

use crate::kit::{Engine, PLIMSOLL, data, plimsoll, run_folder};

/// Runs a command, then the command in its manifest, through a shell; returns both manifests.
fn twice(args: &[&str]) -> (Value, Value) {
    let (_folder, run) = run_folder();
    let first = plimsoll(&[args, &["--format", "json", "-q", "-o", &run]].concat());
    assert!(first.code == 0 || first.code == 4, "{}", first.stderr);
    let first = first.json();
    let command = first["reproduce"].as_str().expect("a command").replacen("plimsoll", PLIMSOLL, 1);
    let (_folder, run) = run_folder();
    let output = Command::new("sh")
        .args(["-c", &format!("{command} --format json -q -o {run}")])
        .output()
        .expect("a shell");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let second = serde_json::from_str(&text)
        .unwrap_or_else(|e| panic!("{command}: {e}: {}", String::from_utf8_lossy(&output.stderr)));
    (first, data(second))
}

fn same(first: &Value, second: &Value) {
    assert_eq!(first["scenario"], second["scenario"]);
    assert_eq!(first["levels"][0]["schedule_hash"], second["levels"][0]["schedule_hash"]);
    assert_eq!(first["levels"][0]["arrivals"], second["levels"][0]["arrivals"]);
    assert_eq!(first["reproduce"], second["reproduce"]);
}

#[test]
fn an_open_loop_repeats() {
    let engine = Engine::start("canned");
    let args =
        ["run", &engine.url, "--rate", "40/s", "--for", "1s", "--isl", "lognormal:32,0.5", "--osl", "3"];
    let (first, second) =
        twice(&[&args[..], &["--arrivals", "gamma:2", "--retries", "1", "--seed", "9"]].concat());
    same(&first, &second);
}

#[test]
fn a_trace_repeats_with_its_window() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("trace.csv");
    let mut rows = String::from("TIMESTAMP,ContextTokens,GeneratedTokens\n");
    for i in 0..40 {
        rows.push_str(&format!("2023-11-16 18:15:{:02}.{}000000,{},3\n", 10 + i / 10, i % 10, 16 + i));
    }
    std::fs::write(&path, rows).expect("written");
    let engine = Engine::start("canned");
    let (first, second) =
        twice(&["run", &engine.url, "--trace", path.to_str().expect("utf-8"), "--speed", "4"]);
    assert_eq!(first["levels"][0]["arrivals"], 40);
    same(&first, &second);
}
