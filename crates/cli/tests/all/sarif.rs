//! SARIF 2.1.0: its official schema, and the rules in its prose that a schema of keys and types can't express.
//! Scanners refuse or misread a log that breaks such a rule.
//!
//! The schema (`fixtures/sarif-schema-2.1.0.json`) is that of the OASIS technical committee, as the crate `serde-sarif` 0.8.0 (MIT) carries
//! it. Each rule names the standard's section. The log has one row of every kind; each rule is shown to reject a log that breaks it.

use std::collections::BTreeSet;
use std::fs;

use serde_json::{Value, json};

use crate::gate::{BUDGETS, Case, invalid};
use crate::kit::plimsoll;

/// Returns the official schema, with one character of one pattern escaped.
/// A bracket that closes nothing is a literal in JavaScript's patterns, and an error in stricter ones.
pub fn schema() -> Value {
    let text = include_str!("../fixtures/sarif-schema-2.1.0.json");
    serde_json::from_str(&text.replace("{2}]?$", r"{2}\\]?$")).expect("JSON")
}

/// The rules that a log breaks, by section.
fn broken(log: &Value) -> BTreeSet<&'static str> {
    let mut broken = BTreeSet::new();
    let mut rule = |section: &'static str, holds: bool| {
        if !holds {
            broken.insert(section);
        }
    };
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    rule("3.13.2 version", log["version"] == "2.1.0");
    let uri = log["$schema"].as_str();
    rule("3.13.3 $schema", uri.is_none_or(|uri| uri.starts_with("https://") && uri.contains("2.1.0")));
    rule("3.13.4 runs", log["runs"].is_array());
    for run in list(&log["runs"]) {
        let driver = &run["tool"]["driver"];
        rule("3.19.8 driver name", driver["name"].as_str().is_some_and(|name| !name.is_empty()));
        let rules = list(&driver["rules"]);
        let ids: Vec<Option<&str>> = rules.iter().map(|rule| rule["id"].as_str()).collect();
        rule("3.49.3 rule id", ids.iter().all(Option::is_some));
        rule("3.19.23 rules are unique", ids.iter().collect::<BTreeSet<_>>().len() == ids.len());
        // A run that was scanned has results, if none was found an empty array; null is for a scan that never began.
        rule("3.14.23 results", run["results"].is_array());
        for result in list(&run["results"]) {
            let (kind, level) = (result["kind"].as_str(), result["level"].as_str());
            let fails = kind.is_none_or(|kind| kind == "fail");
            rule("3.27.10 a level goes with kind fail alone", fails || level == Some("none"));
            rule(
                "3.27.11 text",
                result["message"]["text"].as_str().is_some_and(|text| !text.trim().is_empty()),
            );
            let at = result["ruleIndex"].as_u64().and_then(|at| ids.get(at as usize));
            rule("3.27.6 the index is of the id", at == Some(&result["ruleId"].as_str()));
            let prints = result["partialFingerprints"].as_object().cloned().unwrap_or_default();
            // name/v1: a version at the end of a hierarchical name.
            let versioned =
                |name: &String| name.rsplit_once("/v").is_some_and(|(_, v)| v.parse::<u32>().is_ok());
            rule(
                "3.27.18 fingerprints",
                prints.iter().all(|(name, print)| versioned(name) && print.is_string()),
            );
            for location in list(&result["locations"]) {
                let place = &location["physicalLocation"];
                let uri = place["artifactLocation"]["uri"].as_str().unwrap_or_default();
                let plain = |c: char| c.is_ascii_alphanumeric() || "-._~/%:".contains(c);
                rule(
                    "3.10.1 a URI reference",
                    !uri.is_empty() && uri.chars().all(plain) && !uri.contains("/../"),
                );
                let (line, column) = (&place["region"]["startLine"], &place["region"]["startColumn"]);
                rule("3.30.5 lines count from 1", line.as_u64().is_some_and(|line| line >= 1));
                rule(
                    "3.30.6 columns count from 1",
                    column.is_null() || column.as_u64().is_some_and(|c| c >= 1),
                );
            }
        }
        for invocation in list(&run["invocations"]) {
            rule("3.20.14 executionSuccessful", invocation["executionSuccessful"].is_boolean());
            for notice in list(&invocation["toolExecutionNotifications"]) {
                rule("3.58.5 text", notice["message"]["text"].as_str().is_some_and(|text| !text.is_empty()));
            }
        }
    }
    broken
}

#[test]
fn a_log_keeps_the_rules_of_the_standard() {
    let case = Case::new();
    let path = case.path("gate.sarif");
    assert_eq!(case.gate(BUDGETS, &["--sarif", &path]).code, 1);
    let log: Value = serde_json::from_str(&fs::read_to_string(&path).expect("written")).expect("JSON");
    assert_eq!(log["runs"][0]["results"].as_array().map(Vec::len), Some(5));
    assert_eq!(broken(&log), BTreeSet::new());

    // Each rule bites.
    let result = |key: &str| format!("/runs/0/results/0/{key}");
    let driver = |key: &str| format!("/runs/0/tool/driver/{key}");
    for (at, value, section) in [
        ("/version".to_owned(), json!("2.0.0"), "3.13.2 version"),
        ("/$schema".to_owned(), json!("schema"), "3.13.3 $schema"),
        ("/runs".to_owned(), json!(null), "3.13.4 runs"),
        (driver("name"), json!(""), "3.19.8 driver name"),
        (driver("rules/0/id"), json!(7), "3.49.3 rule id"),
        (
            driver("rules/1/id"),
            log["runs"][0]["tool"]["driver"]["rules"][0]["id"].clone(),
            "3.19.23 rules are unique",
        ),
        ("/runs/0/results".to_owned(), json!(null), "3.14.23 results"),
        (result("level"), json!("warning"), "3.27.10 a level goes with kind fail alone"),
        (result("message/text"), json!(" "), "3.27.11 text"),
        (result("ruleIndex"), json!(1), "3.27.6 the index is of the id"),
        (result("partialFingerprints"), json!({"plimsoll": "1"}), "3.27.18 fingerprints"),
        (
            result("locations/0/physicalLocation/artifactLocation/uri"),
            json!("a b.yaml"),
            "3.10.1 a URI reference",
        ),
        (result("locations/0/physicalLocation/region/startLine"), json!(0), "3.30.5 lines count from 1"),
        (result("locations/0/physicalLocation/region/startColumn"), json!(0), "3.30.6 columns count from 1"),
        ("/runs/0/invocations/0/executionSuccessful".to_owned(), json!("yes"), "3.20.14 executionSuccessful"),
    ] {
        let mut slip = log.clone();
        *slip.pointer_mut(&at).expect("there") = value;
        assert!(broken(&slip).contains(section), "{at}: {:?}", broken(&slip));
    }
}

/// The log points at a budget file with an awkward name and ids, and an invalid measurement is not a failed budget.
#[test]
fn a_log_of_an_invalid_run_fails_nothing() {
    let case = Case::new();
    let folder = case.path("an odd folder");
    fs::create_dir(&folder).expect("made");
    let budget = format!("{folder}/b\u{fc}dget #1.yaml");
    fs::write(&budget, "version: 1\nbudgets:\n  - {id: '50 % <b>', metric: ttft, p: 90, max: 1ms}\n")
        .expect("written");
    // A run without any level has no valid measurement.
    let run = case.path("run");
    let manifest = format!("{run}/run.json");
    let mut value: Value = serde_json::from_str(&fs::read_to_string(&manifest).expect("read")).expect("JSON");
    value["levels"] = json!([]);
    fs::write(&manifest, value.to_string()).expect("written");
    let path = case.path("gate.sarif");
    let ended = plimsoll(&["gate", &run, "--budget", &budget, "--sarif", &path]);
    assert_eq!(ended.code, 4, "{}{}", ended.stdout, ended.stderr);
    let log: Value = serde_json::from_str(&fs::read_to_string(&path).expect("written")).expect("JSON");
    assert_eq!(broken(&log), BTreeSet::new(), "{log:#}");
    let run = &log["runs"][0];
    assert_eq!(run["invocations"][0]["executionSuccessful"], false);
    assert!(run["results"].as_array().is_some_and(|all| all.iter().all(|result| result["kind"] != "fail")));
}

/// Logs of every verdict: passed, broken, inconclusive, not measured, a batch, the stages of traces.
#[test]
fn logs_of_every_verdict_are_what_the_official_schema_says() {
    let case = Case::new();
    let (path, schema) = (case.path("gate.sarif"), schema());
    let log_of = |code: i32, ended: crate::kit::Ended| -> Value {
        assert_eq!(ended.code, code, "{}{}", ended.stdout, ended.stderr);
        let log: Value = serde_json::from_str(&fs::read_to_string(&path).expect("written")).expect("JSON");
        assert_eq!(invalid(&log, &schema), None, "{log:#}");
        assert_eq!(broken(&log), BTreeSet::new(), "{log:#}");
        log
    };
    let row = |rest: &str| format!("budgets:\n  - {{id: a, {rest}}}\n");
    for (code, budgets) in [
        (0, row("metric: ttft, p: 99, max: 50ms")),
        (1, row("metric: ttft, p: 90, max: 1ms")),
        (3, row("metric: ttft, p: 99, max: 50ms, min_n_eff: 100000")),
        (3, row("metric: utilisation, max: 80%")),
        (1, BUDGETS.to_owned()),
    ] {
        let log = log_of(code, case.gate(&budgets, &["--sarif", &path]));
        assert!(log["runs"][0]["results"].as_array().is_some_and(|results| !results.is_empty()));
    }
    // A batch of items with a deadline, and the stages of a request: each has a separate row for every verdict.
    let batch = "kind: batch\nbatch: {items: 200000, deadline: 8h}\nbudgets:\n  - {id: errors, metric: error_rate, max: 1%}\n";
    let stages = "stages:\n  total: 200ms\n  margin: 10%\n  slices: {queue: 25ms, prefill: 50ms, decode: 100ms}\n\
                  budgets:\n  - {id: e2e, metric: e2e, p: 99, max: 200ms}\n";
    for (budgets, rows) in [(batch, 2), (stages, 5)] {
        let ended = case.gate(budgets, &["--sarif", &path]);
        let log = log_of(ended.code, ended);
        assert_eq!(log["runs"][0]["results"].as_array().map(Vec::len), Some(rows), "{log:#}");
    }
    // The schema bites.
    let log = log_of(1, case.gate(BUDGETS, &["--sarif", &path]));
    for (at, value) in [
        ("/version", json!("2.0.0")),
        ("/runs/0/results/0/level", json!("fatal")),
        ("/runs/0/results/0/kind", json!("failed")),
        ("/runs/0/results/0/mesage", json!({"text": "a slip"})),
        ("/runs/0/results/0/locations/0/physicalLocation/region/startLine", json!(0)),
        ("/runs/0/tool/driver/name", json!(7)),
    ] {
        let mut slip = log.clone();
        let (parent, key) = at.rsplit_once('/').expect("a path");
        slip.pointer_mut(parent).expect("there")[key] = value;
        assert!(invalid(&slip, &schema).is_some(), "{at}");
    }
}
