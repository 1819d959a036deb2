//! A gate that measures: it plans the load for the budgets, sends, stores and judges it. A load that is too short is
//! refused before anything is sent.

use std::fs;

use tempfile::TempDir;

use crate::kit::{Ended, Engine, plimsoll_in};

fn with_budget(text: &str) -> TempDir {
    let folder = tempfile::tempdir().expect("a temporary folder");
    fs::write(folder.path().join("budget.yaml"), text).expect("written");
    folder
}

fn gate(folder: &TempDir, what: &str, more: &[&str]) -> Ended {
    plimsoll_in(folder.path(), &[&["gate", what, "--budget", "budget.yaml"][..], more].concat())
}

/// Verdicts on a live endpoint may be invalid on a busy machine, but the measurement must be kept anyway.
#[test]
fn a_url_is_measured_as_the_budgets_need_and_judged() {
    let engine = Engine::start("canned");
    let folder = with_budget(
        "version: 1\nload: {rate: 150/s}\nbursts:\n  lunch: {arrivals: gamma:3, rate: 200/s}\nbudgets:\n  - {id: tail, metric: e2e, p: 95, \
         max: 20s}\n  - {id: errors at lunch, metric: error_and_retry_rate, max: 3%, under: lunch}\n",
    );
    let args = ["--time", "4s", "-o", "run", "--isl", "16", "--osl", "2", "--format", "json"];
    let ended = gate(&folder, &engine.url, &args);
    assert!([0, 3, 4].contains(&ended.code), "{}{}", ended.stdout, ended.stderr);
    assert!(ended.stderr.contains("the budgets need: steady 150/s"), "{}", ended.stderr);
    let shown = plimsoll_in(folder.path(), &["show", "run", "--format", "json"]).json();
    assert_eq!(shown["kind"], "gate");
    let levels = shown["levels"].as_array().expect("levels");
    let loads: Vec<_> = levels
        .iter()
        .map(|level| (level["traffic"].as_str(), level["load"]["rate_per_s"].as_f64()))
        .collect();
    let (steady, lunch) = ((Some("steady"), Some(150.0)), (Some("lunch"), Some(200.0)));
    assert_eq!(loads[..2], [steady, lunch]);
    assert!(loads.iter().all(|load| [steady, lunch].contains(load)), "{loads:?}");
    // Half of the time until the interim analysis, and no more than all of it in the end.
    let ns = |level: &serde_json::Value| {
        level["stop"].as_i64().expect("ns") - level["start"].as_i64().expect("ns")
    };
    let spent: i64 = levels.iter().map(ns).sum();
    assert!((2_000_000_000 - 1_000..4_000_000_000 + 1_000).contains(&spent), "{spent} ns");
    // The result is a normal run: judged again it has the same verdict, and its schedule, including the burst's, can be sent again.
    let again = gate(&folder, "run", &["--format", "json"]);
    assert_eq!(again.code, ended.code);
    let rerun = plimsoll_in(
        folder.path(),
        &["rerun", "run", "--target", &engine.url, "-q", "-o", "again", "--format", "json"],
    );
    assert!([0, 4].contains(&rerun.code), "{}", rerun.stderr);
    assert_eq!(rerun.json()["levels"][1]["schedule_hash"], levels[1]["schedule_hash"]);
}

/// Returns the rows of a gate's JSON answer.
fn rows(ended: &Ended) -> Vec<serde_json::Value> {
    ended.json()["rows"].as_array().cloned().expect("rows")
}

/// Items with a deadline: the gate searches the concurrency with the highest throughput, confirms it and checks the deadline.
/// A busy machine may make the measurement invalid, but never missing.
#[test]
fn a_batch_is_worked_off_as_fast_as_it_goes() {
    let engine = Engine::start("canned");
    let folder = with_budget(
        "version: 1\nkind: batch\nbatch: {items: 3600, deadline: 1h}\nbudgets:\n  - {id: errors, metric: error_rate, max: 5%}\n",
    );
    // The rate is limited, so that a fast engine on a busy machine does not get thousands of requests a second.
    let args = [
        "--time",
        "30s",
        "--max-rate",
        "100/s",
        "-o",
        "run",
        "--isl",
        "16",
        "--osl",
        "2",
        "--format",
        "json",
    ];
    let ended = gate(&folder, &engine.url, &args);
    assert!([0, 4].contains(&ended.code), "{}{}", ended.stdout, ended.stderr);
    assert!(ended.stderr.contains("in flight"), "{}", ended.stderr);
    let shown = plimsoll_in(folder.path(), &["show", "run", "--format", "json"]).json();
    let levels = shown["levels"].as_array().expect("levels");
    let (held, tried) = levels.split_last().expect("levels");
    assert!(tried.len() >= 2 && tried.iter().all(|level| level["load"]["mode"] == "saturating"), "{tried:?}");
    assert_eq!(held["load"]["mode"], "closed");
    // Judged on the confirmed level: far over one a second, with the duration of the batch.
    let rows = rows(&ended);
    let batch = rows.iter().find(|row| row["id"] == "batch").expect("the batch");
    assert_eq!(batch["levels"], serde_json::json!([held["id"]]), "{batch:#}");
    assert!(batch["measured"]["value"].as_f64().is_some_and(|rate| rate > 10.0), "{batch:#}");
    assert!(rows.iter().all(|row| row["missing"] == false), "{rows:?}");
}

/// A recording is replayed unchanged, and budgets that it can't decide are refused before anything is sent.
#[test]
fn a_trace_is_replayed_as_long_as_it_takes() {
    let engine = Engine::start("canned");
    let folder = with_budget("version: 1\nbudgets:\n  - {id: half, metric: e2e, p: 50, max: 20s}\n");
    let mut trace = String::from("TIMESTAMP,ContextTokens,GeneratedTokens\n");
    for i in 0..400 {
        trace.push_str(&format!("2023-11-16 18:15:{:02}.{:02}00000,{},2\n", i / 50, 2 * (i % 50), 8 + i % 7));
    }
    fs::write(folder.path().join("trace.csv"), trace).expect("written");
    let run = ["--trace", "trace.csv", "--time", "6s", "-o", "run", "--format", "json"];
    let ended = gate(&folder, &engine.url, &run);
    assert!([0, 3, 4].contains(&ended.code), "{}{}", ended.stdout, ended.stderr);
    let shown = plimsoll_in(folder.path(), &["show", "run", "--format", "json"]).json();
    let level = &shown["levels"][0];
    let sent = level["arrivals"].as_u64().expect("a count");
    let length_s = (level["stop"].as_i64().expect("ns") - level["start"].as_i64().expect("ns")) as f64 / 1e9;
    assert!((sent as f64 - 50.0 * length_s).abs() < 3.0, "{sent} in {length_s} s");
    assert!(ended.json()["rows"][0]["missing"] == false, "{}", ended.stdout);

    let refused = |budgets: &str, says: &str| {
        fs::write(folder.path().join("budget.yaml"), format!("version: 1\n{budgets}")).expect("written");
        let ended = gate(&folder, &engine.url, &["--trace", "trace.csv", "--time", "10m"]);
        assert_eq!(ended.code, 2, "{}", ended.stderr);
        assert!(ended.stderr.contains(says) && ended.stderr.lines().count() == 1, "{}", ended.stderr);
    };
    let tail = "budgets:\n  - {id: tail, metric: e2e, p: 99, max: 20s}\n";
    refused(tail, "tail needs at least 10.0 s of this traffic, and the trace lasts 8.00 s");
    refused(&format!("load: {{rate: 100/s}}\n{tail}"), "the trace has 50.0/s: add --speed 2.00");
    let onset = "budgets:\n  - {id: calm, metric: throughput_before_onset, min: 5/s}\n";
    refused(onset, "calm: sets a synthetic load, and a trace is replayed unchanged");
}

/// The median at 200/s needs at least 14 requests and about 60 as planned, which is less than the duration of a level.
///
/// An interim analysis is enough, and most of the time is left. If the machine stalled meanwhile, a second analysis is allowed.
#[test]
fn what_an_interim_analysis_decides_is_not_measured_further() {
    let engine = Engine::start("canned");
    let folder = with_budget(
        "version: 1\nload: {rate: 200/s}\nbudgets:\n  - {id: half, metric: e2e, p: 50, max: 20s}\n  - {id: errors, metric: error_rate, \
         max: 20%}\n",
    );
    let args = ["--time", "60s", "-o", "run", "--isl", "16", "--osl", "2", "--format", "json"];
    let ended = gate(&folder, &engine.url, &args);
    assert!([0, 3, 4].contains(&ended.code), "{}{}", ended.stdout, ended.stderr);
    assert!(ended.stderr.contains("more if a row stays open"), "{}", ended.stderr);
    let shown = plimsoll_in(folder.path(), &["show", "run", "--format", "json"]).json();
    let levels = shown["levels"].as_array().expect("levels");
    let took_ns: i64 =
        levels.iter().map(|l| l["stop"].as_i64().expect("ns") - l["start"].as_i64().expect("ns")).sum();
    assert!(took_ns < 60_000_000_000, "{took_ns} ns");
    if ended.code == 0 {
        assert_eq!(ended.stderr.contains("of the time left"), levels.len() == 1, "{}", ended.stderr);
        assert_eq!(levels.len() as u64, ended.json()["analyses"].as_u64().expect("a number"));
    }
}

/// Eight requests at 1/s, and a quarter more: 10 s.
#[test]
fn a_time_that_can_t_be_enough_is_refused_with_what_it_takes() {
    let engine = Engine::start("canned");
    let folder = with_budget(
        "version: 1\nload: {rate: 1/s}\nbudgets:\n  - {id: tail, metric: ttft, p: 99, max: 20s}\n",
    );
    let refused = |more: &[&str], says: &str| {
        let ended = gate(&folder, &engine.url, more);
        assert_eq!(ended.code, 2, "{}", ended.stderr);
        assert!(ended.stderr.contains(says), "{}", ended.stderr);
        assert_eq!(ended.stderr.lines().count(), 1, "{}", ended.stderr);
    };
    refused(
        &["--time", "5s"],
        "--time 5.00 s: too short; needs at least 10.0 s: steady at 1.00/s takes 10.0 s for tail",
    );
    refused(&[], "duration missing: set --time 5m or --until-decided --max 15m");
    refused(&["--time", "30m", "--max-rate", "30/m"], "tail needs 1.00/s, over --max-rate 0.5/s");
    assert!(!folder.path().join("plimsoll-runs").exists(), "nothing was begun");
    let ended = gate(&folder, "some/run", &["--time", "5m"]);
    assert!(ended.code == 2 && ended.stderr.contains("applies to a measurement"), "{}", ended.stderr);
}

/// Counting takes 115 s at 4/s. In 12 s the p99 passes because its limit is far above the slowest request, and the gate names that beforehand.
#[test]
fn a_short_time_decides_a_limit_far_above_the_slowest() {
    let engine = Engine::start("canned");
    let folder = with_budget(
        "version: 1\nload: {rate: 4/s}\nbudgets:\n  - {id: tail, metric: ttft, p: 99, max: 20s}\n",
    );
    let ended = gate(&folder, &engine.url, &["--time", "12s"]);
    // Invalid only where the machine is busy.
    assert!([0, 4].contains(&ended.code), "{}{}", ended.stdout, ended.stderr);
    let says = "in 12.0 s tail passes only if its limit is 3.14 times the slowest request or more; counting takes 115 s";
    assert!(ended.stderr.contains(says), "{}", ended.stderr);
}

#[test]
fn a_gate_against_a_named_baseline_goes_on_its_line() {
    let folder =
        with_budget("version: 1\nbaseline: main\nbudgets:\n  - {id: tail, metric: ttft, p: 99, max: 1s}\n");
    for name in ["old", "new"] {
        let args = [
            "simulate",
            "--profile",
            "mm8",
            "--rate",
            "300/s",
            "--for",
            "60s",
            "--osl",
            "1",
            "-q",
            "-o",
            name,
        ];
        assert_eq!(plimsoll_in(folder.path(), &args).code, 0);
    }
    assert_eq!(plimsoll_in(folder.path(), &["baseline", "set", "main", "old"]).code, 0);
    let ended = gate(&folder, "new", &["--label", "v2"]);
    assert_eq!(ended.code, 0, "{}{}", ended.stdout, ended.stderr);
    let line = plimsoll_in(folder.path(), &["history", "main", "--format", "json"]).json();
    let entries = line["entries"].as_array().expect("entries");
    assert_eq!(entries.len(), 2, "the baseline's own and this one");
    assert_eq!((&entries[1]["verdict"], &entries[1]["version"]), (&"pass".into(), &"v2".into()));
    assert_eq!(gate(&folder, "new", &[]).code, 0);
    let again = plimsoll_in(folder.path(), &["history", "main", "--format", "json"]).json();
    assert_eq!(
        again["entries"].as_array().map(Vec::len),
        Some(2),
        "the same rows judged twice are one result"
    );
}
