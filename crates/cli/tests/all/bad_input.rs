//! Bad input gets one clear line naming the thing and what to do, and exit code 2.

use crate::kit::{Engine, plimsoll, run_folder};

/// The command must end with code 2, one line, and these words in it.
fn refused(args: &[&str], words: &[&str]) {
    let ended = plimsoll(args);
    assert_eq!(ended.code, 2, "{args:?}: {}{}", ended.stdout, ended.stderr);
    assert_eq!(
        ended.stderr.trim().lines().count(),
        1,
        "{args:?} printed more than one line: {}",
        ended.stderr
    );
    for word in words {
        assert!(ended.stderr.contains(word), "{args:?}: {word:?} is missing in: {}", ended.stderr);
    }
}

const URL: &str = "http://127.0.0.1:9/v1";

#[test]
fn a_misspelt_flag_is_answered_with_the_nearest_one() {
    refused(&["run", URL, "--raet", "5/s"], &["--raet", "--rate"]);
    refused(&["swep", URL], &["swep", "sweep"]);
}

#[test]
fn rates_must_be_above_zero() {
    for rate in ["0", "0/s", "-3/s", "nan", "fast"] {
        let flag = format!("--rate={rate}");
        refused(&["run", URL, &flag], &["rate"]);
    }
}

#[test]
fn a_run_needs_a_load() {
    refused(&["run", URL], &["--rate", "--concurrency"]);
}

#[test]
fn a_sweep_does_not_drop_a_trace_in_silence() {
    refused(&["sweep", URL, "--set", "arrivals={\"process\":\"constant\"}"], &["--traffic"]);
    refused(&["run", URL, "--concurrency", "2", "--max-rate", "5/s"], &["--max-rate", "closed loop"]);
}

#[test]
fn words_that_are_not_allowed_are_answered_with_those_that_are() {
    refused(&["schema", "nope"], &["nope", "scenario", "manifest"]);
    refused(&["run", URL, "--rate", "5/s", "--connections", "pol:3"], &["pool:N"]);
    refused(&["run", URL, "--rate", "5/s", "--set", "load.rat=4/s"], &["rat", "rate"]);
}

#[test]
fn a_url_must_be_one_and_hold_no_secret() {
    refused(&["run", "localhost:8000", "--rate", "5/s"], &["http://"]);
    refused(&["run", "http://user:hunter2@host/v1", "--rate", "5/s"], &["--key-env"]);
}

#[test]
fn a_broken_trace_is_named_with_its_line() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("trace.csv");
    let rows = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:15:47.0,many,3\n";
    std::fs::write(&path, rows).expect("written");
    let path = path.to_str().expect("utf-8");
    refused(&["run", URL, "--trace", path], &["trace.csv", "3"]);
}

#[test]
fn an_unknown_key_of_the_scenario_gets_the_nearest() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("scenario.yaml");
    std::fs::write(&path, "client:\n  timeuots:\n    total: 5s\n").expect("written");
    let path = path.to_str().expect("utf-8");
    refused(&["run", URL, "--rate", "5/s", "--spec", path], &["timeuots", "timeouts"]);
    refused(&["run", URL, "--rate", "5/s", "--set", "sizes.promt=5"], &["promt", "prompt"]);
}

#[test]
fn a_run_folder_is_never_overwritten() {
    let engine = Engine::start("canned");
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().to_str().expect("utf-8");
    refused(&["run", &engine.url, "--rate", "5/s", "--for", "1s", "-q", "-o", path], &["already exists"]);
}

#[test]
fn what_is_no_run_folder_says_so() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    refused(&["show", folder.path().to_str().expect("utf-8")], &["not a run folder"]);
}

#[test]
fn profiles_that_are_not_there_are_listed() {
    refused(&["engine", "--profile", "llama-9000@h100"], &["llama-9000@h100", "llama-3.1-8b@h100"]);
}

#[test]
fn an_unreachable_endpoint_is_code_5_and_leaves_no_folder() {
    let (_folder, run) = run_folder();
    let ended = plimsoll(&["run", URL, "--rate", "5/s", "--for", "1s", "-q", "-o", &run]);
    assert_eq!(ended.code, 5, "{}", ended.stderr);
    assert!(ended.stderr.contains("127.0.0.1:9"), "{}", ended.stderr);
    assert!(!std::path::Path::new(&run).exists());
}
