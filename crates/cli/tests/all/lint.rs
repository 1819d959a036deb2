//! Budget files from the outside: begun from conventions and from runs, and linted with what a run measured.

use std::fs;

use serde_json::Value;
use tempfile::TempDir;

use crate::kit::{Ended, plimsoll_in};

fn folder_with_run(name: &str, args: &[&str]) -> TempDir {
    let folder = tempfile::tempdir().expect("a temporary folder");
    run(&folder, name, args);
    folder
}

fn run(folder: &TempDir, name: &str, args: &[&str]) {
    let ended = plimsoll_in(folder.path(), &[&["simulate", "-q", "-o", name][..], args].concat());
    assert_eq!(ended.code, 0, "{}", ended.stderr);
}

fn lint(folder: &TempDir, budget: &str, more: &[&str]) -> Ended {
    fs::write(folder.path().join("budget.yaml"), budget).expect("written");
    plimsoll_in(folder.path(), &[&["budget", "lint", "budget.yaml"][..], more].concat())
}

#[test]
fn every_preset_is_a_file_that_passes_and_says_that_it_is_a_convention() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    for preset in ["chat", "search", "recommendation", "code", "batch"] {
        let begun = plimsoll_in(folder.path(), &["budget", "init", "--preset", preset]);
        assert_eq!(begun.code, 0, "{}", begun.stderr);
        assert!(begun.stdout.starts_with("# A convention"), "{}", begun.stdout);
        let ended = lint(&folder, &begun.stdout, &["--output-tokens", "32"]);
        assert_eq!(ended.code, 0, "{preset}: {}{}", ended.stdout, ended.stderr);
        assert!(ended.stdout.contains("0 errors"), "{}", ended.stdout);
    }
    // Completions of 600 tokens in a second are no completions.
    let code = plimsoll_in(folder.path(), &["budget", "init", "--preset", "code"]).stdout;
    let long = lint(&folder, &code, &["--output-tokens", "600"]);
    assert_eq!(long.code, 2);
    assert!(
        long.stdout.contains("250 ms + 599 × tpot p95 15 ms is 9.235 s at 600 output tokens"),
        "{}",
        long.stdout
    );
}

#[test]
fn a_proposal_stands_on_what_was_measured_and_passes() {
    let args =
        ["--profile", "demo", "--rate", "20/s", "--for", "120s", "--isl", "64", "--osl", "lognormal:16,0.6"];
    let folder = folder_with_run("run", &args);
    let begun = plimsoll_in(folder.path(), &["budget", "init", "--from", "run", "-o", "mine.yaml"]);
    assert_eq!(begun.code, 0, "{}", begun.stderr);
    let text = fs::read_to_string(folder.path().join("mine.yaml")).expect("written");
    let shown: Value = plimsoll_in(folder.path(), &["show", "run", "--format", "json"]).json();
    assert!(text.contains(shown["id"].as_str().expect("an id")), "{text}");
    assert!(text.contains("rate: 20/s") && text.contains("duration: 2m"), "{text}");
    let ended =
        plimsoll_in(folder.path(), &["budget", "lint", "mine.yaml", "--run", "run", "--format", "json"]);
    assert_eq!(ended.code, 0, "{}{text}", ended.stdout);
    let kinds = |kind: &str| {
        ended.json()["remarks"].as_array().expect("a list").iter().filter(|r| r["kind"] == kind).count()
    };
    assert!(kinds("histogram_edge") > 3);
    // The text output joins equal messages for several rows.
    let text_of = plimsoll_in(folder.path(), &["budget", "lint", "mine.yaml", "--run", "run"]).stdout;
    assert_eq!(text_of.matches("is no edge of").count(), 1, "{text_of}");
    assert!(text_of.contains("(likewise tpot-p50, e2e-p50, ttft-p95"), "{text_of}");
    // Each ceiling is above the measured upper end by the margin, and by less than the margin and two digits' rounding.
    let latency = &shown["findings"]["levels"][0]["summary"]["latency"];
    for (metric, p) in [("ttft", "p50"), ("ttft", "p95"), ("tpot", "p50")] {
        let upper = latency[metric][p]["upper"].as_f64().expect("shown");
        let line = text.lines().find(|line| line.contains(&format!("id: {metric}-{p}"))).expect("proposed");
        let max = line.split("max: ").nth(1).and_then(|rest| rest.split("ms").next()).expect("in ms");
        let max: f64 = max.parse::<f64>().expect("a number") / 1e3;
        assert!((1.2 * upper..1.2 * upper * 1.11).contains(&max), "{metric} {p}: {max} over {upper}");
    }
    let twice = plimsoll_in(folder.path(), &["budget", "init", "--from", "run", "-o", "mine.yaml"]);
    assert_eq!((twice.code, twice.stderr.contains("it exists")), (2, true));
    let none = plimsoll_in(folder.path(), &["budget", "init"]);
    assert!(none.code == 2 && none.stderr.contains("--preset (chat, search"), "{}", none.stderr);
}

/// A server of exponential services of 10 ms answers half of its isolated requests within 6.93 ms.
#[test]
fn a_ceiling_below_the_single_request_floor_can_t_be_met() {
    let folder =
        folder_with_run("alone", &["--profile", "mm8", "--concurrency", "1", "--for", "60s", "--osl", "1"]);
    let budget =
        |max: &str| format!("version: 1\nbudgets:\n  - {{id: half, metric: ttft, p: 50, max: {max}}}\n");
    let ended = lint(&folder, &budget("6ms"), &["--run", "alone"]);
    assert_eq!(ended.code, 2, "{}", ended.stdout);
    assert!(ended.stdout.contains("budget.yaml:3:"), "line and column: {}", ended.stdout);
    assert!(
        ended.stdout.contains("error: 6 ms is below what one isolated request takes: ttft p50 is 6."),
        "{}",
        ended.stdout
    );
    let ended = lint(&folder, &budget("8ms"), &["--run", "alone"]);
    assert_eq!(ended.code, 0, "{}", ended.stdout);
}

/// In a queue at load 0.9 requests are correlated for long: n_eff is below the count, and the plan is compared with n_eff.
#[test]
fn the_measured_correlation_is_counted() {
    let folder =
        folder_with_run("run", &["--profile", "mm8", "--rate", "720/s", "--for", "60s", "--osl", "1"]);
    let budget = |time: &str| {
        format!(
            "version: 1\nload: {{rate: 720/s, duration: {time}}}\nbudgets:\n  - {{id: tail, metric: ttft, p: 95, max: 250ms}}\n"
        )
    };
    let shown = plimsoll_in(folder.path(), &["show", "run", "--format", "json"]).json();
    let p95 = &shown["findings"]["levels"][0]["summary"]["latency"]["ttft"]["p95"];
    let figure = |key: &str| p95[key].as_f64().expect("shown");
    let effect = figure("n") / figure("n_eff");
    assert!(effect > 3.0, "{effect}");
    // 72 effective requests to pass (0.95⁷² < 2.5 %): a second has 720 requests, and 720 / D of them count.
    let second = (72.0 * effect / 720.0).floor();
    let ended = lint(&folder, &budget(&format!("{}ms", (second * 1e3).max(100.0))), &["--run", "run"]);
    assert!(ended.stdout.contains("counts, as measured"), "{}", ended.stdout);
    assert!(ended.stdout.contains(&format!("takes {} requests", (72.0 * effect).ceil())), "{}", ended.stdout);
    let alone = lint(&folder, &budget("1m"), &[]);
    assert!(alone.stdout.contains("0 warnings"), "{}", alone.stdout);
}

#[test]
fn wrong_input_is_one_line() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let ended = lint(&folder, "version: 1\nbudgets:\n  - {id: a, metric: tftt, p: 99, max: 1s}\n", &[]);
    assert_eq!(ended.code, 2);
    assert!(
        ended.stderr.contains("budget.yaml:3:") && ended.stderr.contains("did you mean `ttft`?"),
        "{}",
        ended.stderr
    );
    let ended = lint(
        &folder,
        "version: 1\nbudgets:\n  - {id: a, metric: ttft, p: 99, max: 1s}\n",
        &["--run", "none"],
    );
    assert_eq!((ended.code, ended.stderr.lines().count()), (2, 1), "{}", ended.stderr);
}
