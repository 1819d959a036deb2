//! Plans from the outside: figures that were checked manually, and a fleet of queues with a known formula.
//! A plan is compared with a later run, and each wrong flag gives one line.

use std::fs;
use std::path::Path;

use plimsoll_math::queueing::Mmc;
use serde_json::Value;

use crate::kit::plimsoll;

const ENVELOPE: [&str; 7] = ["plan", "--rate", "50", "--latency", "2s", "--slots", "8"];

/// 50 requests/s at 2 s, 8 slots, 80 %: 100 slots busy, 16 replicas, 3.2/s each, 51.2/s in all; twice the load takes 32.
#[test]
fn the_back_of_an_envelope_has_the_figures_of_the_specification() {
    let text = plimsoll(&[&ENVELOPE[..], &["--utilisation", "0.8"]].concat());
    assert_eq!(text.code, 0, "{}", text.stderr);
    for said in
        ["16 replicas", "= 100 requests", "4.00/s is its stability limit", "3.20/s", "51.2/s", "2.4 %"]
    {
        assert!(text.stdout.contains(said), "{said} is not in\n{}", text.stdout);
    }
    let more = ["--peak", "2x", "--gpus-per-replica", "1", "--price", "2.49USD/gpu-hour", "--format", "json"];
    let plan = plimsoll(&[&ENVELOPE[..], &more].concat()).json();
    assert_eq!(plan["replicas"], 32);
    assert_eq!(plan["gpus"], 32);
    let hour = number(&plan["cost"]["per_hour"]);
    assert!((hour - 32.0 * 2.49).abs() < 1e-9, "{hour}");
    let each = number(&plan["cost"]["per_request_at_mean"]);
    assert!((each - hour / 3600.0 / 50.0).abs() < 1e-12, "{each}");
}

#[test]
fn an_envelope_that_contradicts_itself_is_refused_in_one_line() {
    for (more, word) in [
        (&["--utilisation", "1"][..], "ρ ≥ 1"),
        (&["--utilisation", "120%"], "ρ ≥ 1"),
        (&["--utilisation", "0"], "above 0"),
        (&["--peak", "0.5x"], "--peak"),
        (&["--domains", "0"], "--domains"),
        (&["--price", "2.49/gpu-hour"], "currency"),
        (&["--price", "2.49USD/gpu-hour"], "--gpus-per-replica"),
        (&["--price", "20USD/h"], "whole endpoint"),
        (&["--slo", "ttft p99 < 500ms"], "--slo: contradicts --latency"),
        (&["--profile", "llama-3.1-8b@h100"], "--profile: contradicts --latency"),
    ] {
        refused(&[&ENVELOPE[..], more].concat(), word);
    }
    refused(&["plan", "--latency", "2s", "--slots", "8"], "--rate");
}

fn refused(args: &[&str], word: &str) {
    let ended = plimsoll(args);
    assert_eq!(ended.code, 2, "{args:?}: {}", ended.stderr);
    assert!(ended.stderr.contains(word) && ended.stderr.lines().count() == 1, "{args:?}: {}", ended.stderr);
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("{value} is no number"))
}

/// A replica of four servers with exponential services of 50 ms on average: it is stable up to 80/s.
const QUEUE: &str = "name: four\nmode: {kind: queue, servers: 4, service: {law: exponential, mean_ms: 50}}\n";

/// The p95 of wait and service of a replica at `rate`/s, ms.
fn p95_ms(rate: f64) -> f64 {
    1e3 * Mmc { servers: 4, load: rate / 80.0, service_mean: 0.05 }.sojourn_quantile(0.95)
}

/// The rate at which that reaches `limit_ms`, by bisection.
fn breaks_at(limit_ms: f64) -> f64 {
    let (mut low, mut high) = (0.0, 80.0);
    for _ in 0..60 {
        let middle = 0.5 * (low + high);
        if p95_ms(middle) <= limit_ms { low = middle } else { high = middle }
    }
    low
}

fn engine_file(folder: &Path) -> String {
    let path = folder.join("four.yaml");
    fs::write(&path, QUEUE).expect("written");
    path.to_str().expect("utf-8").to_owned()
}

/// Requests dealt at random make each replica an independent M/M/4, whose sojourn time has a closed form.
///
/// The plan must find the least number whose p95 is under the ceiling, and the load at which it reaches the ceiling. A run on that
/// fleet is then compared with the plan.
#[test]
fn a_fleet_of_queues_is_planned_as_theory_says_and_verified_by_a_run() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let at = |name: &str| folder.path().join(name).to_str().expect("utf-8").to_owned();
    let (engine, plan, page) = (engine_file(folder.path()), at("plan.json"), at("plan.html"));
    let one = breaks_at(200.0);
    // Three are short of it, four have room: 3.6 of them would just do.
    let rate = format!("{:.1}/s", 3.6 * one);
    let load = ["--profile", &engine, "--route", "random", "--rate", &rate, "--osl", "1", "--isl", "1"];
    let asked = ["--slo", "e2e p95 < 200ms", "--utilisation", "0.95", "--for", "120s", "--time", "5m", "-q"];
    let files = ["-o", &plan, "--html", &page, "--format", "json", "--price", "2USD/replica-hour"];
    let found = plimsoll(&[&["plan"], &load[..], &asked, &files].concat());
    assert_eq!(found.code, 0, "{}", found.stderr);
    let found = found.json();
    let chosen = &found["chosen"];
    assert_eq!((&chosen["replicas"], &chosen["held"]), (&4.into(), &"pass".into()), "{chosen}");
    let breaks = number(&chosen["breaks_at"]["value"]);
    assert!((breaks / (4.0 * one) - 1.0).abs() < 0.05, "{breaks} against {}", 4.0 * one);
    let seen = number(&chosen["expected"][0]["value"]["value"]);
    let truth = p95_ms(0.9 * one) / 1e3;
    assert!((seen / truth - 1.0).abs() < 0.04, "{seen} against {truth}");
    assert_eq!(number(&found["cost"]["per_hour"]), 8.0);
    let html = fs::read_to_string(&page).expect("the page");
    assert!(html.contains("Capacity plan for four") && html.contains("id=\"curve\""));

    let run = at("run");
    let measured = ["simulate", "--replicas", "4", "--for", "300s", "--seed", "7", "-q", "-o", &run];
    assert_eq!(plimsoll(&[&measured[..], &load[..]].concat()).code, 0);
    let band = at("band.json");
    let verified = plimsoll(&["plan", "verify", &plan, &run, "--band", &band, "--format", "json"]);
    let held = verified.json();
    assert!(number(&held["compared"]) >= 2.0, "{held}");
    for row in held["rows"].as_array().expect("rows") {
        let miss = number(&row["miss_log"]);
        assert!(miss.abs() < 0.1, "{row}");
    }
    let banded = ["--band", &band, "--format", "json"];
    let again = plimsoll(&[&["plan"], &load[..], &asked, &banded].concat()).json();
    let chance = number(&again["probability"]["held"]);
    assert!((0.0..=1.0).contains(&chance), "{chance}");

    let other = at("other");
    let longer = [
        "simulate",
        "--profile",
        &engine,
        "--rate",
        "50/s",
        "--isl",
        "9",
        "--osl",
        "1",
        "--for",
        "60s",
        "-q",
    ];
    assert_eq!(plimsoll(&[&longer[..], &["-o", &other]].concat()).code, 0);
    refused(&["plan", "verify", &plan, &other], "mean prompt is 9 tokens");
}

#[test]
fn the_load_and_the_world_come_from_a_simulated_run() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (engine, run) =
        (engine_file(folder.path()), folder.path().join("run").to_str().expect("utf-8").to_owned());
    let args = [
        "simulate",
        "--profile",
        &engine,
        "--rate",
        "40/s",
        "--for",
        "60s",
        "--isl",
        "3",
        "--osl",
        "1",
        "-q",
    ];
    assert_eq!(plimsoll(&[&args[..], &["-o", &run]].concat()).code, 0);
    let plan = ["plan", "--from", &run, "--slo", "e2e p95 < 300ms", "--for", "30s", "--format", "json"];
    let found = plimsoll(&plan).json();
    assert_eq!(found["engine"], "four");
    assert!((number(&found["load"]["rate_per_s"]) / 40.0 - 1.0).abs() < 0.1, "{}", found["load"]);
    assert_eq!(number(&found["load"]["prompt"][0]), 3.0);
    let faster = plimsoll(&[&plan[..], &["--rate", "400/s"]].concat()).json();
    assert_eq!(number(&faster["load"]["rate_per_s"]), 400.0);
    // 400/s at 80 % of 80/s each take at least 6.25.
    assert!(number(&faster["chosen"]["replicas"]) >= 7.0, "{}", faster["chosen"]);
}

/// Without time for a simulation, the result is the number from the bounds, which is not a verified plan.
#[test]
fn no_time_leaves_the_bounds_and_says_so() {
    let args = ["plan", "--profile", "llama-3.1-8b@h100", "--rate", "200/s", "--isl", "512", "--osl", "64"];
    let more =
        ["--slo", "ttft p99 < 500ms", "--price", "2USD/gpu-hour", "--time", "1ms", "--format", "json", "-q"];
    let ended = plimsoll(&[&args[..], &more].concat());
    assert_eq!(ended.code, 3, "{}", ended.stderr);
    let plan = ended.json();
    assert!(plan["simulated"].is_null(), "{}", plan["simulated"]);
    assert_eq!(plan["chosen"]["replicas"], plan["bounds"]["replicas"]);
    assert!(plan["notes"].to_string().contains("the time was up"), "{}", plan["notes"]);
    let replicas = number(&plan["chosen"]["replicas"]);
    assert_eq!(number(&plan["cost"]["per_hour"]), 2.0 * replicas);
}

/// The output starts with the number of replicas, the SLO, the breaking load and the cost; the rest follows by importance.
#[test]
fn the_text_says_the_most_important_first() {
    let args =
        ["plan", "--profile", "llama-3.1-70b@h100x4", "--rate", "20/s", "--peak", "2x", "--spare", "1", "-q"];
    let more = [
        "--isl",
        "900",
        "--osl",
        "180",
        "--slo",
        "ttft p99 < 1s, tpot p95 < 40ms",
        "--for",
        "30s",
        "--time",
        "10m",
    ];
    let text = plimsoll(&[&args[..], &more, &["--price", "2.49USD/gpu-hour"]].concat());
    assert_eq!(text.code, 0, "{}", text.stderr);
    let order = [
        "+ 1 spare (",
        "20.0/s × 2.00 = 40.0/s",
        "ttft p99 < 1.00 s, tpot p95 < 40.0 ms",
        "Breaks at ",
        "headroom ",
        "USD an hour",
        "Assumptions",
        "Expected at the peak",
        "limited by kv cache",
        "Cost in USD",
    ];
    let words = text.words();
    let mut from = 0;
    for said in order {
        let at = words[from..].find(said);
        from += at.unwrap_or_else(|| panic!("{said} is not there, or too early:\n{}", text.stdout));
    }
    assert!(text.stdout.lines().all(|line| line.chars().count() <= 110), "{}", text.stdout);
}

#[test]
fn a_plan_that_cannot_be_is_refused_in_one_line() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let nothing = folder.path().join("no-lengths.csv").to_str().expect("utf-8").to_owned();
    fs::write(&nothing, "TIMESTAMP,Who\n2023-11-16 18:15:46,a\n").expect("written");
    let base = ["plan", "--profile", "llama-3.1-8b@h100", "--isl", "512", "--osl", "64", "-q"];
    let loaded = [&base[..], &["--rate", "30/s"]].concat();
    let promised = [&loaded[..], &["--slo", "ttft p99 < 500ms"]].concat();
    refused(&[&loaded[..], &["--slo", "ttft p99 < 5ms"]].concat(), "no number of replicas can meet it");
    refused(&loaded, "no SLO");
    refused(&[&base[..], &["--slo", "ttft p99 < 500ms"]].concat(), "no load");
    refused(&["plan", "--rate", "5/s", "--slo", "ttft p99 < 500ms"], "no engine");
    refused(&["plan", "--rate", "5/s", "--latency", "2s"], "--slots");
    refused(&["plan", "verify", "nothing.json", "nowhere"], "nothing.json");
    for (more, word) in [
        (&["--utilisation", "1"][..], "ρ ≥ 1"),
        (&["--price", "2.49/gpu-hour"], "currency"),
        (&["--price", "20USD/h"], "whole endpoint"),
        (&["--seeds", "2"], "from 5"),
        (&["--autoscale", "hpa:target=8"], "keda"),
        (&["--autoscale", "keda:target=4,min=9,max=2"], "min 9 and max 2"),
        (&["--slo", "ttft p50 < 800ms"], "higher percentile"),
        (&["--for", "0s"], "--for"),
        (&["--time", "soon"], "--time"),
        (&["--band", &nothing], "mapping"),
    ] {
        refused(&[&promised[..], more].concat(), word);
    }
    let traced = ["plan", "--profile", "llama-3.1-8b@h100", "--slo", "ttft p99 < 500ms", "--trace", &nothing];
    refused(&traced, "no column of prompt tokens");
}

/// With one sequence at a time, a replica of the demo is stable up to about 330/s, with six up to 1 770/s.
///
/// At 300/s and 70 % utilisation, the requested six need one replica and the one needs two. The latter is simulated as well, because
/// its isolated requests are as fast.
#[test]
fn a_search_names_what_is_cheaper() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let page = folder.path().join("plan.html");
    let path = page.display().to_string();
    let mut args = vec!["plan", "--profile", "demo", "--rate", "300/s", "--isl", "64", "--osl", "4", "-q"];
    args.extend(["--slo", "e2e p95 < 100ms", "--utilisation", "0.7", "--price", "2USD/replica-hour"]);
    args.extend(["--search", "--vary", "max_seqs=1,6", "--for", "20s", "--time", "10m"]);
    args.extend(["--html", &path, "--format", "json"]);
    let ended = plimsoll(&args);
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    let plan = ended.json();
    let options = plan["options"].as_array().expect("options");
    let facts = |i: usize| (&options[i]["name"], &options[i]["replicas"], &options[i]["how"]);
    assert_eq!(options.len(), 2, "{options:?}");
    assert_eq!(facts(0), (&"6 seqs".into(), &1.into(), &"simulated".into()));
    assert_eq!(facts(1), (&"1 seqs".into(), &2.into(), &"simulated".into()));
    assert!(plan["notes"].to_string().contains("none is cheaper"), "{}", plan["notes"]);
    assert!(fs::read_to_string(&page).expect("a page").contains("6 seqs"));
}

#[test]
fn a_search_that_makes_no_sense_is_refused_in_one_line() {
    let plan = ["plan", "--profile", "demo", "--rate", "200/s", "--slo", "e2e p95 < 100ms"];
    for (more, word) in [
        (&["--search", "--vary", "seqs=2"][..], "max_seqs"),
        (&["--search", "--vary", "tp=2"], "no such setting"),
        (&["--search", "--price-of", "a100=1USD/gpu-hour"], "--vary gpu=a100"),
        (&["--search", "--price-of", "a100"], "GPU=PRICE"),
        (&["--search", "--price-of", "a100=1USD/h"], "gpu-hour"),
    ] {
        refused(&[&plan[..], more].concat(), word);
    }
}
