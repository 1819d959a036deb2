//! Whole answers from end to end: an engine that batches, run and swept over loopback like a Triton server.
//!
//! The budget's limit is searched in virtual time, where a busy machine can't blur it. It is compared with long runs of the
//! same engine just under and just over it. Over loopback only the path and its output are tested.

use plimsoll_measure::findings::{BudgetSpec, CapacityLine, Findings};
use plimsoll_measure::sweep::SweepNext;
use plimsoll_measure::{Sweep, SweepSpec};
use plimsoll_model::{At, Load, Span};
use plimsoll_sim::client::{SimLevelPlan, simulate_level};
use plimsoll_sim::{EngineSpec, World};
use plimsoll_workload::Scenario;
use serde_json::{Value, json};

use crate::kit::{Engine, plimsoll, run_folder, undisturbed};

/// A ranker of four instances. A batch takes 20 ms plus 5 ms per row and has at most 16 rows. At full load that is 640 rows/s.
fn profile() -> Value {
    json!({
        "name": "ranker",
        "mode": {"kind": "dynamic", "instances": 4, "max_batch_size": 16, "dynamic_batching": {},
            "batch": {"compute": {"kind": "affine", "base_ms": 20.0, "item_ms": 5.0}}},
    })
}

fn ranker(folder: &tempfile::TempDir) -> Engine {
    let file = folder.path().join("ranker.json");
    std::fs::write(&file, profile().to_string()).expect("written");
    Engine::start(file.to_str().expect("utf-8"))
}

#[test]
fn a_run_counts_rows_and_has_no_tokens() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let engine = ranker(&folder);
    assert!(engine.url.ends_with("/v2"), "{}", engine.url);
    let (_folder, run) = run_folder();
    let ended = plimsoll(&[
        "run",
        &engine.url,
        "--protocol",
        "triton",
        "--concurrency",
        "1",
        "--batch",
        "4",
        "--for",
        "3s",
        "-q",
        "-o",
        &run,
        "--format",
        "json",
    ]);
    assert!(ended.code == 0 || ended.code == 4, "{}", ended.stderr);
    let json = ended.json();
    let level = &json["findings"]["levels"][0]["summary"];
    let requests = level["counts"]["finished"].as_u64().expect("counted");
    // One at a time, 40 ms each: at most 75 in 3 s. A busy machine does fewer.
    let (fewest, slowest) = if undisturbed(&json["findings"]["levels"][0]) { (60, 0.050) } else { (1, 1.0) };
    assert!((fewest..=76).contains(&requests), "{requests}");
    let latency = &level["latency"];
    assert!(latency["ttft"].is_null() && latency["tpot"].is_null() && latency["itl"].is_null(), "{latency}");
    // The median is refused if stalls of the machine leave too few independent requests.
    if let Some(median) = latency["e2e"]["p50"]["value"].as_f64() {
        assert!((0.040..slowest).contains(&median), "{median}");
    }
    let rates = &level["rates"];
    let (per_s, items) = (&rates["achieved_per_s"]["value"], &rates["items_per_s"]["value"]);
    let ratio = items.as_f64().expect("items") / per_s.as_f64().expect("a rate");
    assert!((ratio - 4.0).abs() < 1e-9, "{ratio}");
    assert!(rates["input_tokens_per_s"].is_null() && rates["output_tokens_per_s"].is_null());
    assert_eq!(json["target"]["facts"]["engine"], "plimsoll-engine");
    assert_eq!(json["target"]["facts"]["max_batch"], "16");
    let shown = plimsoll(&["show", &run]).stdout;
    assert!(shown.contains("items/s") && !shown.contains("token"), "{shown}");
    let command = json["reproduce"].as_str().expect("a command");
    assert!(command.contains("--protocol kserve") && command.contains("--batch 4"), "{command}");
}

fn scenario() -> Scenario {
    let scenario = json!({"target": {"url": "http://h/v2", "protocol": "kserve", "stream": false},
        "sizes": {"prompt": "1", "output": "0"}, "seed": 5, "nonce": 1});
    Scenario::from_json(&scenario).expect("valid")
}

/// p50, p95, p99 of e2e in virtual time at this rate, s.
fn virtually(rate_per_s: f64) -> [f64; 3] {
    let spec: EngineSpec = serde_json::from_value(profile()).expect("a valid profile");
    let mut world = World::new(&spec, 5).expect("a valid engine");
    let scenario = scenario();
    let plan = SimLevelPlan::new(&scenario, 0, Load::Open { rate_per_s }, At::ZERO, Span::from_secs(120));
    let run = simulate_level(&mut world, &scenario, plan).expect("simulated");
    let mut e2e: Vec<f64> =
        run.attempts.iter().filter_map(|a| Some((a.end? - a.due).as_secs_f64())).collect();
    e2e.sort_by(f64::total_cmp);
    [0.5, 0.95, 0.99].map(|p| e2e[((e2e.len() as f64 * p).ceil() as usize).clamp(1, e2e.len()) - 1])
}

fn keeps_budget([p50, p95, p99]: [f64; 3]) -> bool {
    p50 < 0.06 && p95 < 0.15 && p99 < 0.35
}

/// The sweep of this budget on the engine in virtual time, where no machine is in the way.
fn swept() -> Findings {
    let spec: EngineSpec = serde_json::from_value(profile()).expect("a valid profile");
    let scenario = scenario();
    let budget = Some(BudgetSpec::recommendation());
    let spec_of_sweep = SweepSpec { time: Span::from_secs(300), budget, ..SweepSpec::default() };
    let mut sweep = Sweep::new(spec_of_sweep).expect("a valid sweep");
    let mut id = 0;
    while let SweepNext::Run(experiment) = sweep.next() {
        let mut world = World::new(&spec, 5).expect("a valid engine");
        let plan = SimLevelPlan {
            purpose: experiment.purpose,
            traffic: experiment.traffic,
            ..SimLevelPlan::new(&scenario, id, experiment.load, At::ZERO, experiment.window)
        };
        let run = simulate_level(&mut world, &scenario, plan).expect("simulated");
        sweep.observe(&run.level, &run.attempts, &run.samples);
        id += 1;
    }
    sweep.findings()
}

#[test]
fn the_budget_line_of_a_batcher_is_found() {
    let findings = swept();
    assert_eq!(findings.curves[0].metric, "e2e");
    let line = findings.lines[0].budget.as_ref().and_then(CapacityLine::rate).expect("a budget limit");
    // The interval is the bracket of the last passing and the first broken level; long runs on either side confirm it.
    let (under, over) = (virtually(0.97 * line.lower), virtually(1.03 * line.upper));
    assert!(keeps_budget(under), "{line:?}: {under:?} just under it");
    assert!(!keeps_budget(over), "{line:?}: {over:?} just over it");
    // The estimate between them is within 5 % of where the budget really breaks.
    let (under, over) = (virtually(0.95 * line.value), virtually(1.05 * line.value));
    assert!(keeps_budget(under) && !keeps_budget(over), "{line:?}: {under:?}, {over:?}");
    // Full, four instances of 16 rows in 100 ms do 640 a second.
    let limit = findings.lines[0].stability.rate().expect("a stability limit");
    assert!((600.0..680.0).contains(&limit.value), "{limit:?}");
}

#[test]
fn a_sweep_over_loopback_speaks_of_whole_answers() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let engine = ranker(&folder);
    let (_folder, run) = run_folder();
    let slo = "e2e p50 < 60ms, e2e p95 < 150ms, e2e p99 < 350ms";
    let args =
        ["sweep", &engine.url, "--protocol", "kserve", "--slo", slo, "--time", "10s", "--max-rate", "400/s"];
    let ended =
        plimsoll(&[&args[..], &["--batch", "uniform:1,3", "-q", "-o", &run, "--format", "json"]].concat());
    assert!(ended.code == 0 || ended.code == 4, "{}", ended.stderr);
    let json = ended.json();
    let findings = &json["findings"];
    assert_eq!(findings["curves"][0]["metric"], "e2e");
    let levels = findings["levels"].as_array().expect("levels");
    assert!(levels.len() >= 4, "{} levels", levels.len());
    for level in levels {
        let summary = &level["summary"];
        assert!(summary["latency"]["ttft"].is_null());
        let rows = summary["budget"]["rows"].as_array().expect("a row for each ceiling");
        let ceilings: Vec<f64> = rows.iter().filter_map(|row| row["ceiling"].as_f64()).collect();
        assert_eq!(ceilings, [0.06, 0.15, 0.35]);
    }
    let page = std::fs::read_to_string(std::path::Path::new(&run).join("report.html")).expect("a report");
    assert!(
        page.contains("items a request") && !page.contains("tokens/s") && !page.contains("prompt tokens")
    );
    let repeat = json["reproduce"].as_str().expect("a command");
    assert!(repeat.contains("--slo 'e2e p95 < 150ms'"), "{repeat}");
}

#[test]
fn a_simulated_batcher_is_asked_for_rows_and_repeats() {
    let profile = "resnet50-triton@a100";
    let simulate = |more: &[&str]| {
        let (_folder, run) = run_folder();
        let fixed = ["simulate", "--profile", profile, "-q", "-o", &run, "--format", "json"];
        let ended = plimsoll(&[&fixed[..], more].concat());
        assert_eq!(ended.code, 0, "{}", ended.stderr);
        ended.json()
    };
    let json = simulate(&["--rate", "200/s", "--for", "20s", "--batch", "4"]);
    let summary = &json["findings"]["levels"][0]["summary"];
    assert!(summary["latency"]["ttft"].is_null(), "{}", summary["latency"]);
    let (items, requests) =
        (&summary["rates"]["items_per_s"]["value"], &summary["rates"]["achieved_per_s"]["value"]);
    assert!((items.as_f64().expect("items") / requests.as_f64().expect("a rate") - 4.0).abs() < 1e-9);
    // The command under `reproduce` gives equal rows.
    let words = json["reproduce"].as_str().expect("a command");
    assert!(!words.contains("--model") && !words.contains("--protocol"), "{words}");
    let again = simulate(&[
        "--set",
        r#"load={"mode":"open","rate":"200/s","window":"20s"}"#,
        "--nonce",
        "0",
        "--batch",
        "4",
    ]);
    assert_eq!(again["findings"]["levels"][0]["summary"], *summary);
}

#[test]
fn what_means_nothing_for_tensors_is_refused() {
    let url = "http://127.0.0.1:9/v2/models/m";
    let refused = |more: &[&str], words: &str| {
        let ended = plimsoll(&[&["run", url, "--rate", "5/s", "-q"], more].concat());
        assert_eq!(ended.code, 2, "{more:?}: {}", ended.stderr);
        assert!(ended.stderr.contains(words), "{more:?}: {}", ended.stderr);
    };
    refused(&["--protocol", "kserve", "--isl", "64"], "set the rows with --batch");
    refused(&["--protocol", "kserve", "--model", "other"], "the URL names m");
    refused(&["--protocol", "kserve", "--shape", "A"], "--shape A");
    refused(&["--protocol", "kserve", "--batch", "many"], "many");
    refused(&["--protocol", "kserve", "--first-token-timeout", "1s"], "--timeout");
    refused(&["--protocol", "kserve", "--price", "1USD/Mtok"], "per hour");
    refused(&["--batch", "4"], "--protocol kserve");
    let ended = plimsoll(&["sweep", url, "--protocol", "kserve", "--slo", "ttft p99 < 1s", "-q"]);
    assert!(ended.code == 2 && ended.stderr.contains("set a limit on e2e"), "{}", ended.stderr);
}
