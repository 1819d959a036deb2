//! A gate that measures: what the budgets need is planned, sent, kept and judged; what can't be enough is refused before anything is sent.

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

/// Verdicts on a live endpoint may be invalid where the machine is busy; what was measured must be kept all the same.
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
    assert!(ended.stderr.contains("the budgets take: steady 150/s"), "{}", ended.stderr);
    let shown = plimsoll_in(folder.path(), &["show", "run", "--format", "json"]).json();
    assert_eq!(shown["kind"], "gate");
    let levels = shown["levels"].as_array().expect("levels");
    let loads: Vec<_> = levels
        .iter()
        .map(|level| (level["traffic"].as_str(), level["load"]["rate_per_s"].as_f64()))
        .collect();
    assert_eq!(loads, [(Some("steady"), Some(150.0)), (Some("lunch"), Some(200.0))]);
    // All of the time is spent on the two.
    let ns = |level: &serde_json::Value| {
        level["stop"].as_i64().expect("ns") - level["start"].as_i64().expect("ns")
    };
    let spent: i64 = levels.iter().map(ns).sum();
    assert!((spent - 4_000_000_000).abs() < 1_000, "{spent} ns");
    // It is a run like any other: judged again it says the same, and its schedule, the burst's too, can be sent again.
    let again = gate(&folder, "run", &["--format", "json"]);
    assert_eq!(again.code, ended.code);
    let rerun = plimsoll_in(
        folder.path(),
        &["rerun", "run", "--target", &engine.url, "-q", "-o", "again", "--format", "json"],
    );
    assert!([0, 4].contains(&rerun.code), "{}", rerun.stderr);
    assert_eq!(rerun.json()["levels"][1]["schedule_hash"], levels[1]["schedule_hash"]);
}

/// 630 requests at 1/s, and a quarter more: 788 s.
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
        &["--time", "5m"],
        "it takes 13 min 8 s at the least: steady at 1.00/s takes 13 min 8 s for tail",
    );
    refused(&[], "--time 5m: say how long");
    refused(&["--time", "30m", "--max-rate", "30/m"], "tail needs 1.00/s, over --max-rate 0.5/s");
    assert!(!folder.path().join("plimsoll-runs").exists(), "nothing was begun");
    let ended = gate(&folder, "some/run", &["--time", "5m"]);
    assert!(ended.code == 2 && ended.stderr.contains("judged as it was measured"), "{}", ended.stderr);
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
