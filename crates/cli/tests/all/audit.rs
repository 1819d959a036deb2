//! `plimsoll audit` on runs whose division is known: one request at a time, a gateway of its own words, wrong flags.

use std::path::Path;

use crate::gateway::Running;
use crate::kit::{Engine, plimsoll, run_folder};

/// Sends one request at a time, so that each attempt has its time alone: the good part is the sum of the good responses' times.
#[test]
fn the_good_part_is_the_time_of_the_good_responses() {
    let (folder, run) = run_folder();
    let fault = "disconnect:share=0.2";
    let simulate = ["simulate", "--profile", "llama-3.1-8b@h100", "--concurrency", "1", "--requests", "100"];
    let ended = plimsoll(&[&simulate[..], &["--fault", fault, "--seed", "3", "-q", "-o", &run]].concat());
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    let csv = folder.path().join("rows.csv").display().to_string();
    assert_eq!(plimsoll(&["show", &run, "--csv", &csv]).code, 0);
    let text = std::fs::read_to_string(Path::new(&csv)).expect("rows");
    let mut lines = text.lines();
    let names: Vec<&str> = lines.next().expect("a head").split(',').collect();
    let column = |name: &str| names.iter().position(|own| *own == name).expect(name);
    let (e2e, outcome) = (column("e2e_s"), column("outcome"));
    let rows: Vec<Vec<&str>> = lines.map(|line| line.split(',').collect()).collect();
    let good: f64 = rows
        .iter()
        .filter(|row| row[outcome] == "finished")
        .map(|row| row[e2e].parse::<f64>().expect("seconds"))
        .sum();
    let found = plimsoll(&["audit", &run, "--price", "3600USD/h", "--format", "json"]).json();
    let parts = found["parts"].as_array().expect("parts");
    let amount = |name: &str| {
        let own = parts.iter().find(|part| part["part"] == name);
        own.map_or(0.0, |part| part["amount"].as_f64().expect("an amount"))
    };
    assert!((amount("good") - good).abs() < 1e-6 * good, "{} {good}", amount("good"));
    assert!(amount("failed") > 0.02 * good, "{parts:#?}");
    let total: f64 = parts.iter().map(|part| part["amount"].as_f64().expect("an amount")).sum();
    let [bill, billed_s] = ["total", "billed_s"].map(|key| found[key].as_f64().expect("a figure"));
    assert!((total - bill).abs() < 1e-9 * bill && (bill - billed_s).abs() < 1e-9 * bill, "{found:#}");
    // With a limit below every response, none is good.
    let late = plimsoll(&["audit", &run, "--price", "3600USD/h", "--slo", "e2e p99 < 1ms"]);
    assert!(late.stdout.starts_with("0 % of ") && late.stdout.contains("late"), "{}", late.stdout);
    // The screen begins with the answer and fits in 80 columns.
    assert!(late.stdout.lines().take(8).all(|line| line.chars().count() <= 80), "{}", late.stdout);
}

#[test]
fn an_audit_without_a_price_or_a_run_says_so_in_one_line() {
    let (_folder, run) = run_folder();
    let simulate = ["simulate", "--profile", "demo", "--rate", "20/s", "--for", "5s", "-q", "-o", &run];
    assert_eq!(plimsoll(&simulate).code, 0);
    for (args, says) in [
        (&["audit", &run][..], "needs the price"),
        (&["audit", &run, "--price", "2.49USD/gpu-hour"], "--gpus N"),
        (&["audit", "nowhere", "--price", "20USD/h"], "no such file or folder"),
        (&["audit", &run, "--price", "20USD/h", "--long-answer", "0"], "--long-answer"),
    ] {
        let ended = plimsoll(args);
        assert_eq!(ended.code, 2, "{args:?}");
        assert!(ended.stderr.contains(says), "{}", ended.stderr);
    }
}

/// A gateway's record has the attempts of the requests that it relayed.
#[test]
fn the_record_of_a_gateway_is_audited_like_a_run() {
    let engine = Engine::start("demo");
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name).display().to_string();
    let (record, load) = (at("traffic"), at("load"));
    let gateway = Running::start(&["--replica", &engine.url, "--record", &record]);
    let size = ["--rate", "20/s", "--for", "2s", "--isl", "32", "--osl", "4", "-o", &load, "-q"];
    let ended = plimsoll(&[&["run", &gateway.url, "--model", "demo"], &size[..]].concat());
    assert!(ended.code != 2, "{}", ended.stderr);
    assert_eq!(gateway.end().1, Some(0));
    let run = std::fs::read_dir(&record).expect("a record").flatten().next().expect("a run").path();
    let run = run.display().to_string();
    let found = plimsoll(&["audit", &run, "--price", "36USD/h", "--format", "json"]).json();
    let parts = found["parts"].as_array().expect("parts");
    assert!(parts[0]["part"] == "good" && parts.iter().any(|part| part["part"] == "idle"), "{found:#}");
    let all = plimsoll(&["audit", &record, "--price", "36USD/h"]);
    assert!(all.code == 2 && all.stderr.contains("gateway-000001"), "{}", all.stderr);
}

/// A price per token bills the tokens of the rows, and the longer part of each response apart.
#[test]
fn a_price_per_token_bills_the_tokens_of_the_rows() {
    let (_folder, run) = run_folder();
    let simulate =
        ["simulate", "--profile", "demo", "--rate", "5/s", "--for", "20s", "--isl", "64", "--osl", "32"];
    assert_eq!(plimsoll(&[&simulate[..], &["--cancel", "0.2", "-q", "-o", &run]].concat()).code, 0);
    let args = ["audit", &run, "--price", "1,2USD/Mtok", "--long-answer", "20", "--format", "json"];
    let found = plimsoll(&args).json();
    let stored = plimsoll_store::open(Path::new(&run)).expect("a run");
    let sum = |of: &dyn Fn(u32, u32) -> u32| -> f64 {
        let finished = stored.attempts.iter().filter(|row| row.outcome.is_finished());
        let tokens = finished.map(|row| &row.answer.tokens);
        tokens.map(|own| f64::from(of(own.prompt.expect("told"), own.output.expect("told")))).sum()
    };
    let wanted = [
        ("good", sum(&|prompt, output| prompt + 2 * output.min(20)) / 1e6),
        ("over_long", sum(&|_, output| 2 * output.saturating_sub(20)) / 1e6),
    ];
    for (name, money) in wanted {
        let own = found["parts"].as_array().expect("parts").iter().find(|part| part["part"] == name);
        let amount = own.and_then(|part| part["amount"].as_f64()).expect("an amount");
        assert!((amount / money - 1.0).abs() < 1e-9, "{name} {amount} {money}");
    }
}
