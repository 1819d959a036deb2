//! `plimsoll gate` from the outside: exit codes, refusals, and files that are read back by someone else's reader.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde_json::Value;
use tempfile::TempDir;

use crate::kit::{Ended, plimsoll};

/// A folder with a run of 100 requests/s for 40 s on the simulated demo engine (p50 of ttft 5 ms) and a budget file.
pub struct Case {
    folder: TempDir,
}

impl Case {
    pub fn new() -> Case {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let run = folder.path().join("run").display().to_string();
        let ended = plimsoll(&[
            "simulate", "--rate", "100/s", "--for", "40s", "--isl", "64", "--osl", "8", "--seed", "3", "-q",
            "-o", &run,
        ]);
        assert_eq!(ended.code, 0, "{}", ended.stderr);
        Case { folder }
    }

    pub fn path(&self, name: &str) -> String {
        self.folder.path().join(name).display().to_string()
    }

    pub fn gate(&self, budgets: &str, more: &[&str]) -> Ended {
        let budget = self.path("budget.yaml");
        fs::write(&budget, format!("version: 1\nname: test\n{budgets}")).expect("written");
        let run = self.path("run");
        plimsoll(&[&["gate", run.as_str(), "--budget", budget.as_str()], more].concat())
    }
}

pub const BUDGETS: &str = r#"budgets:
  - {id: holds, metric: ttft, p: 99, max: 50ms}
  - id: 'breaks <"&> it'
    metric: ttft
    p: 90
    max: 1ms
    owner: serving
  - {id: open, metric: ttft, p: 99.9, max: 50ms, min_n_eff: 100000}
  - {id: gone, metric: utilisation, max: 80%}
  - {id: seen, metric: cost_per_request}
policy: {primary: [holds, 'breaks <"&> it', open]}
"#;

#[test]
fn the_exit_code_is_the_verdict() {
    let case = Case::new();
    let row = |rest: &str| format!("budgets:\n  - {{id: a, {rest}}}\n");
    for (budgets, more, code) in [
        (row("metric: ttft, p: 99, max: 50ms"), &[][..], 0),
        (row("metric: ttft, p: 90, max: 1ms"), &[], 1),
        (row("metric: ttft, p: 99, max: 50ms, min_n_eff: 100000"), &[], 3),
        (row("metric: utilisation, max: 80%"), &[], 3),
        (row("metric: utilisation, max: 80%"), &["--map-exit", "3=0"], 0),
        (row("metric: ttft, p: 90, max: 1ms"), &["--map-exit", "3=0,1=77"], 77),
        (row("metric: ttft, p: 90, max: 1ms"), &["--map-exit", "1"], 2),
        (row("metric: ttft, p: 90, max: 1ms"), &["--map-exit", "2=0"], 2),
        (row("metric: ttft, p: 90"), &[], 2),
        (row("metric: ttft, p: 90, max: 1ms"), &["--baseline", "nowhere"], 2),
    ] {
        let ended = case.gate(&budgets, more);
        assert_eq!(ended.code, code, "{budgets}{more:?}\n{}{}", ended.stdout, ended.stderr);
        assert!(code != 2 || ended.stderr.lines().count() == 1, "{}", ended.stderr);
    }
    let slip = case.gate("budgets:\n  - {id: a, metric: tftt, p: 90, max: 1ms}\n", &[]);
    let said = format!("{}:4:", case.path("budget.yaml"));
    assert!(slip.stderr.contains(&said) && slip.stderr.contains("did you mean `ttft`?"), "{}", slip.stderr);
    // A run without its rows is a source that can't be read.
    fs::remove_file(Path::new(&case.path("run")).join("requests.parquet")).expect("removed");
    let gone = case.gate(&row("metric: ttft, p: 99, max: 50ms"), &[]);
    assert_eq!(gone.code, 5, "{}", gone.stderr);
    assert_eq!(case.gate(&row("metric: ttft, p: 99, max: 50ms"), &["--map-exit", "5=1"]).code, 1);
}

#[test]
fn what_ci_reads_says_what_the_finding_says() {
    let case = Case::new();
    let [junit, markdown, sarif] = ["gate.xml", "gate.md", "gate.sarif"].map(|name| case.path(name));
    let files = ["--junit", &junit, "--markdown", &markdown, "--sarif", &sarif, "--format", "json"];
    let ended = case.gate(BUDGETS, &files);
    assert_eq!(ended.code, 1, "{}", ended.stderr);
    let finding = ended.json();
    let rows = finding["rows"].as_array().expect("rows");
    assert_eq!(rows.len(), 5);

    let text = fs::read_to_string(&junit).expect("written");
    let xml = roxmltree::Document::parse(&text).expect("well-formed");
    let cases: BTreeMap<&str, _> = xml
        .descendants()
        .filter(|node| node.has_tag_name("testcase"))
        .map(|node| (node.attribute("name").expect("a name"), node))
        .collect();
    let child = |name: &str| {
        cases[name].children().find(|c| c.is_element()).expect("an element").tag_name().name().to_owned()
    };
    let ids: Vec<&str> = rows.iter().map(|row| row["id"].as_str().expect("an id")).collect();
    assert_eq!(cases.keys().copied().collect::<Vec<_>>(), {
        let mut ids = ids.clone();
        ids.sort_unstable();
        ids
    });
    assert_eq!(child("holds"), "system-out");
    assert_eq!(child("breaks <\"&> it"), "failure");
    assert_eq!(child("open"), "skipped");
    assert_eq!((child("gone"), child("seen")), ("skipped".into(), "skipped".into()));
    let suite = xml.descendants().find(|node| node.has_tag_name("testsuite")).expect("a suite");
    let count = |name: &str| suite.attribute(name).expect("a count").parse::<usize>().expect("a number");
    assert_eq!([count("tests"), count("failures"), count("errors"), count("skipped")], [5, 1, 0, 3]);
    // All are judged from the whole of the run.
    let seconds = |node: &roxmltree::Node| node.attribute("time").and_then(|time| time.parse::<f64>().ok());
    assert!(cases.values().all(|case| seconds(case).is_some_and(|s| s > 1.0)), "{text}");

    let page = fs::read_to_string(&markdown).expect("written");
    assert!(page.lines().count() < 60 && page.starts_with("### Budget `test`: BROKEN"), "{page}");
    let first = page.lines().find(|line| line.starts_with("| ✗ broken")).expect("the worst");
    assert!(page.find(first) < page.find("| ✓ pass"), "worst first: {page}");

    let log: Value = serde_json::from_str(&fs::read_to_string(&sarif).expect("written")).expect("JSON");
    assert_eq!(invalid(&log, &crate::sarif::schema()), None);
    let result = log["runs"][0]["results"].as_array().expect("results");
    let broken = result.iter().find(|result| result["level"] == "error").expect("one is broken");
    let region = &broken["locations"][0]["physicalLocation"]["region"];
    let budget = fs::read_to_string(case.path("budget.yaml")).expect("written");
    let line = budget.lines().position(|line| line.contains("breaks")).expect("there") as u64 + 1;
    assert_eq!(region["startLine"].as_u64(), Some(line));
}

/// The schema is valid for an independent validator, and the examples conform to it.
#[test]
fn the_examples_are_what_the_schema_says() {
    let schema = plimsoll(&["schema", "budget"]).json();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/examples");
    let case = Case::new();
    let mut seen = 0;
    for entry in fs::read_dir(folder).expect("examples").flatten() {
        let path = entry.path();
        if !path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("budget-")) {
            continue;
        }
        let text = fs::read_to_string(&path).expect("read");
        let value: Value = serde_saphyr::from_str(&text).expect("YAML");
        assert_eq!(invalid(&value, &schema), None, "{}", path.display());
        let mut slip = value.clone();
        slip["budgets"][0]["metrik"] = "ttft".into();
        assert!(invalid(&slip, &schema).is_some(), "the schema refuses what we refuse");
        let ended = plimsoll(&["gate", &case.path("run"), "--budget", &path.display().to_string()]);
        assert_ne!(ended.code, 2, "{}", ended.stderr);
        seen += 1;
    }
    assert!(seen >= 3);
}

/// Returns the defect of a value under a JSON Schema, from an independent validator; `None` if it is valid.
pub fn invalid(value: &Value, schema: &Value) -> Option<String> {
    let validator = jsonschema::validator_for(schema).expect("a sound schema");
    let all: Vec<String> =
        validator.iter_errors(value).map(|e| format!("{}: {e}", e.instance_path())).collect();
    (!all.is_empty()).then(|| all.join("; "))
}

/// From a sweep to a verdict in virtual time: the lines of eight exponential servers of 10 ms, whose stability limit is 800/s.
#[test]
fn the_lines_of_a_simulated_sweep_are_judged() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let run = folder.path().join("sweep").display().to_string();
    let swept = plimsoll(&[
        "simulate",
        "--profile",
        "mm8",
        "--sweep",
        "--time",
        "3m",
        "--osl",
        "1",
        "--seed",
        "3",
        "-q",
        "-o",
        &run,
    ]);
    assert_eq!(swept.code, 0, "{}", swept.stderr);
    let budget = folder.path().join("budget.yaml").display().to_string();
    let gate = |rate: u32, floor: u32| {
        let text = format!(
            "version: 1\nload: {{rate: {rate}/s}}\nbudgets:\n  - {{id: used, metric: utilisation, max: 80%}}\n  \
             - {{id: calm, metric: throughput_before_onset, min: {floor}/s}}\n"
        );
        fs::write(&budget, text).expect("written");
        plimsoll(&["gate", &run, "--budget", &budget, "--format", "json"])
    };
    let holds = gate(400, 300);
    assert_eq!(holds.code, 0, "half of 800/s, and an onset at about 640/s: {}", holds.stdout);
    let broken = gate(720, 900);
    let held: Vec<String> =
        broken.json()["rows"].as_array().expect("rows").iter().map(|row| row["held"].to_string()).collect();
    assert_eq!((broken.code, held), (1, vec!["\"fail\"".to_owned(); 2]), "{}", broken.stdout);
}

/// The slowest hundredth of the rows is removed, as if a writer had lost the requests in flight. The rest would pass a budget
/// that the whole run breaks. It did pass before rows were counted against arrivals.
#[test]
fn lost_rows_pass_nothing() {
    let case = Case::new();
    let whole = plimsoll_store::open(Path::new(&case.path("run"))).expect("a run");
    let took = |attempt: &plimsoll_model::Attempt| attempt.end.map(|end| end - attempt.due);
    let mut sorted: Vec<_> = whole.attempts.iter().map(took).collect();
    sorted.sort_unstable();
    let limit = sorted[sorted.len() * 99 / 100];
    fs::rename(case.path("run"), case.path("whole")).expect("moved");
    let writer = plimsoll_store::RunWriter::create(Path::new(&case.path("run")), whole.manifest.clone());
    let writer = writer.expect("a folder");
    whole.attempts.iter().filter(|attempt| took(attempt) < limit).for_each(|attempt| writer.attempt(attempt));
    whole.samples.iter().for_each(|sample| writer.sample(sample));
    writer.finish(whole.manifest).expect("written");
    let ended = case.gate("budgets:\n  - {id: a, metric: e2e, p: 90, max: 1s}\n", &[]);
    assert!([3, 4].contains(&ended.code), "{}: {}", ended.code, ended.stdout);
    assert!(ended.stdout.contains("left no row"), "{}", ended.stdout);
    let (whole, lossy) = (case.path("whole"), case.path("run"));
    let compared = plimsoll(&["compare", &whole, &lossy]);
    assert_eq!(compared.code, 4, "{}", compared.stdout);
    assert!(compared.stderr.contains("left no row"), "{}", compared.stderr);
}
