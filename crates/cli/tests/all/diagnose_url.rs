//! `plimsoll diagnose URL` from the outside: live engines over loopback, experimented on from the command line.
//!
//! Causes that are counted (rejected requests) must be named however busy the machine is. Causes that are timed are checked
//! against the truth only if the run's own figures show that the machine did not disturb the generator.

use serde_json::Value;

use super::kit::{Engine, plimsoll, run_folder, undisturbed};

const ENGINE: &str = "llama-3.1-8b@h100";

/// A diagnosis as JSON, and its run folder; it sends at most 200 requests.
fn diagnose(engine: &Engine, run: &str, more: &[&str]) -> Value {
    let flags = ["diagnose", &engine.url, "--max-requests", "200", "--max-concurrency", "4", "-q"];
    let ended = plimsoll(&[&flags[..], more, &["-o", run, "--format", "json"]].concat());
    assert!([0, 1, 3, 4].contains(&ended.code), "{}: {}", ended.code, ended.stderr);
    ended.json()
}

fn calm(run: &str) -> bool {
    let findings = plimsoll(&["show", run, "--format", "json"]).json();
    let levels = findings["findings"]["levels"].as_array().expect("levels");
    levels.iter().all(undisturbed)
}

#[test]
fn a_limit_on_the_rate_is_named() {
    let engine = Engine::start_with(ENGINE, &["--fault", "rate_limit:rate=5,burst=5"]);
    let (_folder, run) = run_folder();
    let told = diagnose(&engine, &run, &["--time", "20s", "--isl", "64", "--osl", "8"]);
    let verdict = &told["diagnosis"]["verdicts"][0];
    if told["diagnosis"]["answer"] != "invalid" {
        assert_eq!(verdict["cause"], "rate_limit", "{verdict}");
        assert_eq!(verdict["counter"]["is"], "moved", "{verdict}");
    }
    // The folder is judged by the same code that judged the endpoint.
    let again = plimsoll(&["diagnose", &run, "--format", "json"]).json();
    assert_eq!(again["diagnosis"]["headline"], told["diagnosis"]["headline"]);
}

#[test]
fn an_endpoint_that_has_become_slower_is_told_by_its_baseline() {
    let (_before, before) = run_folder();
    let (_after, after) = run_folder();
    let sound = Engine::start(ENGINE);
    diagnose(&sound, &before, &["--time", "10s", "--isl", "64", "--osl", "8"]);
    sound.stop();
    // Every step takes three times as long. The requests are the baseline's, so no lengths are given.
    let slow = Engine::start_with(ENGINE, &["--fault", "slow:factor=3"]);
    let told = diagnose(&slow, &after, &["--time", "15s", "--baseline", &before]);
    let diagnosis = &told["diagnosis"];
    let moved = &diagnosis["questions"][2];
    assert!(moved["asks"].as_str().is_some_and(|asks| asks.contains("artefact unchanged")), "{moved}");
    let changed = diagnosis["changed"].to_string();
    assert!(changed.contains(ENGINE), "the model is known on both sides: {changed}");
    if calm(&before) && calm(&after) {
        let shows = |found: &&Value| found["fact"] == "alone_tokens_slower";
        let tried = told["tried"].as_array().expect("experiments");
        let token = tried.iter().flat_map(|one| one["shows"].as_array().expect("facts")).find(shows);
        let token = token.unwrap_or_else(|| panic!("not compared: {}", diagnosis["missing"]));
        let ratio = token["value"]["value"].as_f64().expect("a ratio");
        assert!((2.4..3.6).contains(&ratio), "three times as slow was measured as {ratio}");
        assert_eq!((&token["is"], &moved["answer"]), (&"yes".into(), &"yes".into()), "{token} {moved}");
        let cause = &diagnosis["verdicts"][0]["cause"];
        assert!(cause == "slower_model" || cause == "unknown", "{cause}");
    }
    // The folder is enough to judge the run again, because it contains the baseline's figures.
    std::fs::remove_dir_all(&before).expect("removed");
    let again = plimsoll(&["diagnose", &after, "--format", "json"]).json();
    assert_eq!(again["diagnosis"]["headline"], diagnosis["headline"]);
    assert_eq!(again["diagnosis"]["questions"][2]["says"], moved["says"]);
}

#[test]
fn a_baseline_that_holds_nothing_to_compare_with_is_refused() {
    let (_folder, run) = run_folder();
    let simulate = ["simulate", "--profile", "mm8", "--rate", "150/s", "--for", "4s", "-q", "-o", &run];
    let ended = plimsoll(&simulate);
    assert!([0, 3, 4].contains(&ended.code), "{}", ended.stderr);
    let ended = plimsoll(&["diagnose", "http://127.0.0.1:9/v1", "--baseline", "/no/such/run"]);
    assert!(ended.code == 2 && ended.stderr.contains("/no/such/run"), "{}", ended.stderr);
    let ended = plimsoll(&["diagnose", "http://127.0.0.1:9/v1", "--level", "1"]);
    assert!(ended.code == 2 && ended.stderr.contains("--level"), "{}", ended.stderr);
    let ended = plimsoll(&["diagnose", "http://127.0.0.1:9/v1", "--baseline", &run, "--dry-run"]);
    let told = format!("{}{}", ended.stdout, ended.stderr);
    // The comparison is refused if no request was isolated, else the number of isolated requests is printed.
    assert!(
        ended.code == 2 && told.contains("has no isolated or closed-loop request")
            || told.contains("compared with"),
        "{told}"
    );
}

#[test]
fn a_budget_says_what_is_material_and_answers_for_a_single_request() {
    let engine = Engine::start(ENGINE);
    let (folder, run) = run_folder();
    let file = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).expect("written");
        path.display().to_string()
    };
    // No engine of this sort answers 32 tokens within a millisecond; every one does within a minute.
    let broken = file("broken.yaml", "version: 1\nbudgets:\n  - {id: a, metric: e2e, p: 95, max: 1ms}\n");
    let kept = file("kept.yaml", "version: 1\nbudgets:\n  - {id: a, metric: ttft, p: 99, max: 60s}\n");
    let other = file("other.yaml", "version: 1\nbudgets:\n  - {id: a, metric: error_rate, max: 1%}\n");
    let told = diagnose(&engine, &run, &["--time", "15s", "--isl", "64", "--osl", "32", "--budget", &broken]);
    let alone = |told: &Value| told["diagnosis"]["questions"][3].clone();
    assert_eq!(told["allowed"]["ceilings"][0]["limit_s"], 0.001, "{told}");
    if told["diagnosis"]["answer"] != "invalid" {
        assert_eq!(alone(&told)["answer"], "yes", "{}", alone(&told));
        assert_eq!(told["diagnosis"]["verdicts"][0]["cause"], "single_request_over_budget", "{told}");
    }
    // The folder is judged again: by its own budget, and by another one.
    let again = |more: &[&str]| plimsoll(&[&["diagnose", &run, "--format", "json"], more].concat());
    assert_eq!(again(&[]).json()["diagnosis"]["headline"], told["diagnosis"]["headline"]);
    let fine = again(&["--budget", &kept]).json();
    assert_ne!(alone(&fine)["answer"], "yes", "{}", alone(&fine));
    assert_ne!(fine["diagnosis"]["verdicts"][0]["cause"], "single_request_over_budget");
    let refused = plimsoll(&["diagnose", &engine.url, "--budget", &other]);
    assert!(
        refused.code == 2 && refused.stderr.contains("no ceiling on ttft, tpot or e2e"),
        "{}",
        refused.stderr
    );
}
