//! Statements about a plan and their later verification.
//!
//! Each what-if is compared with a run in which the change was made, and a sweep's limits with the engine's. A plan that the
//! user interrupts is tested too.

use std::io::{BufRead, BufReader};
use std::process::Command;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use crate::kit::{PLIMSOLL, begun, plimsoll};

const LENGTHS: [&str; 4] = ["--isl", "lognormal:64,0.5", "--osl", "lognormal:8,0.5"];

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("{value} is no number"))
}

fn refused(args: &[&str], word: &str) {
    let ended = plimsoll(args);
    assert_eq!(ended.code, 2, "{args:?}: {}", ended.stderr);
    assert!(ended.stderr.contains(word) && ended.stderr.lines().count() == 1, "{args:?}: {}", ended.stderr);
}

fn simulated(at: &str, more: &[&str]) {
    let base = ["simulate", "--profile", "demo", "-q", "-o", at];
    let ended = plimsoll(&[&base[..], &LENGTHS, more].concat());
    assert_eq!(ended.code, 0, "{}", ended.stderr);
}

/// Checks predictions whose engine is the measured one.
///
/// All figures but one, which chance may put outside, are in their 95 % bands. Bodies of the distribution agree within fifteen percent.
/// The band covers the effect of a run's own luck on a p99.
fn near(held: &Value, least: usize) {
    let rows = held["rows"].as_array().expect("rows");
    let body = |row: &&Value| number(&row["percentile"]) < 0.97;
    let misses: Vec<f64> = rows.iter().filter(body).filter_map(|row| row["miss_log"].as_f64()).collect();
    assert!(misses.len() >= least && misses.iter().all(|miss| miss.abs() < 0.15), "{held}");
    assert!(number(&held["inside"]) >= number(&held["compared"]) - 1.0, "{held}");
}

/// Predictions of a measured run are a separate file; the run shows which of the changes were made.
#[test]
fn what_ifs_of_a_run_are_held_against_a_later_one() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let at = |name: &str| folder.path().join(name).to_str().expect("utf-8").to_owned();
    let (quiet, file, band) = (at("quiet"), at("later.json"), at("band.json"));
    simulated(&quiet, &["--rate", "300/s", "--for", "20s"]);
    let asks = plimsoll(&["what-if", &quiet, "rate 2x", "prompts +50%", "rate 10x", "-o", &file]);
    assert_eq!(asks.code, 0, "{}", asks.stderr);

    let twice = at("twice");
    simulated(&twice, &["--rate", "600/s", "--for", "40s", "--seed", "5"]);
    let held = plimsoll(&["plan", "verify", &file, &twice, "--band", &band, "--format", "json"]);
    let held = held.json();
    assert_eq!(held["case"], "rate 2x", "{held}");
    near(&held, 4);
    let learnt: Value = serde_json::from_str(&std::fs::read_to_string(&band).expect("a band")).expect("JSON");
    assert!(learnt["rows"].as_array().is_some_and(|rows| rows.len() >= 2), "{learnt}");

    // The load is not quite twice, so the prediction is recomputed for the load that was measured.
    let less = at("less");
    simulated(&less, &["--rate", "540/s", "--for", "40s", "--seed", "6"]);
    let held = plimsoll(&["plan", "verify", &file, &less, "--what-if", "rate 2x", "--format", "json"]).json();
    assert!(held["notes"].to_string().contains("recomputed"), "{held}");
    near(&held, 4);

    let other = at("other");
    let longer = ["simulate", "--profile", "demo", "-q", "-o", &other, "--rate", "120/s", "--for", "20s"];
    assert_eq!(plimsoll(&[&longer[..], &["--isl", "300", "--osl", "8"]].concat()).code, 0);
    refused(&["plan", "verify", &file, &other], "matches none of");
    refused(&["plan", "verify", &file, &other, "--what-if", "prompts +50%"], "mean prompt is 300");
}

/// A sweep of the planned engine in virtual time finds the limit of the plan. Its error becomes an input of the next plan.
#[test]
fn a_sweeps_lines_are_held_against_the_plans_engine() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let at = |name: &str| folder.path().join(name).to_str().expect("utf-8").to_owned();
    let (plan, run, band) = (at("plan.json"), at("sweep"), at("band.json"));
    let asked = ["plan", "--profile", "demo", "--rate", "500/s", "--slo", "ttft p95 < 50ms", "-o", &plan];
    let quick = ["--for", "30s", "--format", "json"];
    assert_eq!(plimsoll(&[&asked[..], &LENGTHS, &quick].concat()).code, 0);
    simulated(&run, &["--sweep", "--time", "4m"]);
    let held = plimsoll(&["plan", "verify", &plan, &run, "--band", &band, "--format", "json"]).json();
    let lines = held["lines"].as_array().expect("lines");
    assert_eq!(lines.len(), 1, "{held}");
    for line in lines {
        let miss = number(&line["miss_log"]);
        assert!(miss.abs() < 0.15, "{line}");
    }
    let learnt = std::fs::read_to_string(&band).expect("a band");
    assert!(learnt.contains("\"throughput\""), "{learnt}");
    let text = plimsoll(&["plan", "verify", &plan, &run]).stdout;
    assert!(text.contains("stability limit"), "{text}");
}

/// A Ctrl-C during the simulation ends immediately with the results so far and the exit code of an interrupt.
#[test]
fn an_interrupted_plan_says_what_it_knows() {
    let mut command = Command::new(PLIMSOLL);
    command.args(["plan", "--profile", "llama-3.1-70b@h100x4", "--rate", "60/s", "--isl", "900"]);
    command.args(["--osl", "180", "--slo", "ttft p99 < 1s, tpot p95 < 40ms", "--for", "30m", "--time", "1h"]);
    let mut child = begun(&mut command);
    let mut said = BufReader::new(child.stderr.take().expect("piped")).lines();
    let simulates = said.by_ref().map_while(Result::ok).any(|line| line.starts_with("planning: "));
    assert!(simulates, "it never said that it simulates");
    let pid = i32::try_from(child.id()).expect("a process id");
    kill(Pid::from_raw(pid), Signal::SIGINT).expect("it lives");
    // The rest of stderr is read, because a full pipe would block the command.
    said.for_each(drop);
    let ended = child.wait_with_output().expect("ended");
    let text = String::from_utf8(ended.stdout).expect("text");
    assert_eq!(ended.status.code(), Some(130), "{text}");
    assert!(
        text.contains("nothing was simulated") && text.contains("stopped before all was known"),
        "{text}"
    );
}

/// A plan is a part of its run's report, including its chart.
/// It lists the assumptions of its costs if the number of GPUs per replica is not configured. Another file is refused before
/// anything is written.
#[test]
fn a_plan_stands_on_its_runs_report() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name).display().to_string();
    simulated(&at("run"), &["--rate", "40/s", "--for", "30s"]);
    let plan = [
        "plan",
        "--from",
        &at("run"),
        "--slo",
        "ttft p95 < 60ms",
        "--price",
        "2.49USD/gpu-hour",
        "--for",
        "30s",
        "--out",
        &at("plan.json"),
    ];
    assert_eq!(plimsoll(&plan).code, 0);
    let page = at("page.html");
    let ended = plimsoll(&["report", &at("run"), "--plan", &at("plan.json"), "--out", &page]);
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    let text = std::fs::read_to_string(&page).expect("a page");
    for said in ["Run of", "Capacity plan for demo", "assume one GPU per replica", "\"curve\":"] {
        assert!(text.contains(said), "{said}");
    }
    std::fs::remove_file(&page).expect("it was there");
    let manifest = at("run/run.json");
    refused(&["report", &at("run"), "--plan", &manifest, "--out", &page], "contains no predictions");
    assert!(!std::path::Path::new(&page).exists());
}
