//! A plan from a run of the live engine, and the run that then happened.
//!
//! Timing is judged only if the machine left the generator undisturbed ([`undisturbed`]); the fit of the commands is judged always.

use crate::kit::{Engine, plimsoll, undisturbed};

/// Load of the measured run: long enough to fit an engine, short enough to wait for.
const LOAD: [&str; 9] =
    ["--rate", "250/s", "--for", "8s", "--isl", "lognormal:64,0.5", "--osl", "lognormal:8,0.5", "-q"];

#[test]
fn a_plan_from_a_live_run_is_verified_by_the_next_one() {
    let engine = Engine::start("demo");
    let folder = tempfile::tempdir().expect("a temporary folder");
    let at = |name: &str| folder.path().join(name).to_str().expect("utf-8").to_owned();
    let (first, second, plan) = (at("first"), at("second"), at("plan.json"));
    let mut alone = true;
    for (name, seed) in [(&first, "1"), (&second, "2")] {
        plimsoll(&[&["run", &engine.url, "-o", name, "--seed", seed], &LOAD[..]].concat());
        let shown = plimsoll(&["show", name, "--format", "json"]).json();
        alone &= undisturbed(&shown["findings"]["levels"][0]);
        // A stall of the machine makes the run invalid, and this verdict is printed.
        if shown["findings"]["validity"]["verdict"] == "invalid" {
            return;
        }
    }
    let asked = ["plan", "--from", &first, "--slots", "8", "--slo", "ttft p95 < 500ms", "--for", "20s", "-q"];
    let files = ["--time", "5m", "-o", &plan, "--format", "json"];
    let planned = plimsoll(&[&asked[..], &files].concat());
    let what_if = plimsoll(&["what-if", &first, "rate 1.2x", "--slots", "8", "--format", "json"]);
    if planned.code == 2 && !alone {
        // No engine fits a run in which the machine stalled; both commands report this in equal words.
        assert!(
            planned.stderr.contains("plimsoll") || planned.stderr.lines().count() == 1,
            "{}",
            planned.stderr
        );
        assert_eq!(what_if.code, 2, "{}", what_if.stderr);
        return;
    }
    assert_eq!((planned.code, what_if.code), (0, 0), "{}{}", planned.stderr, what_if.stderr);
    let (planned, what_if) = (planned.json(), what_if.json());
    let fitted = |notes: &serde_json::Value| {
        let notes = notes.as_array().expect("notes").clone();
        notes.into_iter().find(|note| note.to_string().contains("the engine was fitted to"))
    };
    assert!(fitted(&planned["notes"]).is_some(), "{}", planned["notes"]);
    assert_eq!(fitted(&planned["notes"]), fitted(&what_if["notes"]), "one run, one engine");
    let slots = &planned["asked"]["world"]["engine"]["mode"]["max_seqs"];
    assert_eq!(slots, 8, "what was told is what is planned with");

    let verified = plimsoll(&["plan", "verify", &plan, &second, "--replicas", "1", "--format", "json"]);
    let held = verified.json();
    assert!(held["compared"].as_u64().is_some_and(|n| n >= 1), "{held}");
    if alone {
        for row in held["rows"].as_array().expect("rows") {
            let miss = row["miss_log"].as_f64().unwrap_or(0.0);
            assert!(miss.abs() < 0.4, "{row}");
        }
    }
}
