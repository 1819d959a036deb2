//! Exports checked with other tools: promtool checks the rules and runs their tests, and Grafana's own schema validates
//! the dashboard. Every named series exists in a recorded scrape.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use plimsoll_judge::budget::BudgetFile;
use plimsoll_lab::parts;
use plimsoll_model::{At, Sample, join_labels};
use plimsoll_watch::export::{ExportKind, ExportResult, ExportSource, ExportSpec, PAGES, export};
use serde_json::Value;

const BUDGET: &str = r#"{"version": 1, "name": "chat", "budgets": [
    {"id": "ttft-p99", "metric": "ttft", "p": "99", "max": "500ms"},
    {"id": "ttft-p95", "metric": "ttft", "p": "95", "max": "350ms"},
    {"id": "e2e-p50", "metric": "e2e", "p": "50", "max": "1s"},
    {"id": "itl-p99", "metric": "itl", "p": "99", "max": "100ms"},
    {"id": "errors", "metric": "error_rate", "max": "1%"},
    {"id": "no-errors", "metric": "error_rate", "max": "0%"},
    {"id": "goodput", "metric": "goodput", "min": "0.9"}]}"#;

fn budget() -> BudgetFile {
    serde_json::from_str(BUDGET).expect("a budget")
}

/// Parses the samples of a recorded scrape: one line each, without commas in label values.
fn page(text: &str) -> Vec<Sample> {
    let lines = text.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
    lines
        .map(|line| {
            let (series, value) = line.rsplit_once(' ').expect("a value");
            let (name, labels) = series.split_once('{').unwrap_or((series, "}"));
            let labels = labels.trim_end_matches('}').split("\",").filter(|label| !label.is_empty());
            let labels: Vec<(&str, &str)> =
                labels.map(|label| label.split_once("=\"").expect("a label")).collect();
            let labels: Vec<(&str, &str)> =
                labels.iter().map(|(label, value)| (*label, value.trim_end_matches('"'))).collect();
            Sample {
                at: At::ZERO,
                source: "server".into(),
                name: name.into(),
                labels: join_labels(&labels).into(),
                value: value.parse().expect("a number"),
            }
        })
        .collect()
}

fn source(name: &str) -> ExportSource {
    let text = PAGES.iter().find(|(known, _)| *known == name).expect("a known server").1;
    ExportSource::new(name.to_owned(), vec![("job".to_owned(), "chat".to_owned())], &page(text))
}

fn spec() -> ExportSpec {
    ExportSpec { queue_per_replica: Some(4.0), deployment: Some("chat".to_owned()), prometheus: None }
}

fn exported(kind: ExportKind, name: &str) -> ExportResult {
    export(kind, &budget(), &source(name), &spec()).expect("everything is said")
}

/// A tail ratio has no allowed share of requests, and the export names that as the reason.
#[test]
fn a_tail_ratio_is_left_out_as_a_ratio() {
    let file = r#"{"version": 1, "budgets": [{"id": "tail", "metric": "ttft_tail_ratio", "max": "3"}]}"#;
    let file: BudgetFile = serde_json::from_str(file).expect("a budget");
    let found = export(ExportKind::Rules, &file, &source("vllm"), &spec()).expect("rules");
    let lint = &found.rows[0].lint;
    assert!(!lint.judged && lint.says == "a ratio of two percentiles is no share of requests", "{lint:?}");
}

/// Runs promtool in a folder; returns `false` if it is not installed.
fn promtool(folder: &Path, args: &[&str]) -> bool {
    let why = "promtool is not installed: apt-get install prometheus";
    // Otherwise it would spend most of its time collecting garbage.
    let ran = Command::new("promtool").args(args).current_dir(folder).env("GOGC", "400").output();
    let Some(ran) = parts::or_skipped(ran.map_err(|_| why.to_owned())) else { return false };
    let said = String::from_utf8_lossy(&ran.stdout).into_owned() + &String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.success(), "promtool {args:?}: {said}");
    true
}

/// promtool accepts the rules of a server, and sees them fire and be silent. This takes minutes, so each server is a
/// separate test.
fn promtool_takes(server: &str) {
    let exported = exported(ExportKind::Rules, server);
    let folder = tempfile::tempdir().expect("a folder");
    for file in &exported.files {
        std::fs::write(folder.path().join(&file.name), &file.text).expect("written");
    }
    if promtool(folder.path(), &["check", "rules", "chat-rules.yml"]) {
        promtool(folder.path(), &["test", "rules", "chat-rules-test.yml"]);
    }
}

#[test]
fn promtool_takes_the_rules_of_vllm() {
    promtool_takes("vllm");
}

#[test]
fn promtool_takes_the_rules_of_sglang() {
    promtool_takes("sglang");
}

#[test]
fn promtool_takes_the_rules_of_triton() {
    promtool_takes("triton");
}

#[test]
fn promtool_takes_the_rules_of_llama_cpp() {
    promtool_takes("llama.cpp");
}

#[test]
fn promtool_takes_the_rules_of_the_gateway() {
    promtool_takes("gateway");
    assert_eq!(PAGES.len(), 5, "each server's rules have such a test");
}

/// Requests in groups of thirty are weaker evidence. A share that would be proven for independent requests is not
/// proven, once a day has shown the groups.
#[test]
fn what_comes_in_groups_takes_more_proof() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut budget = budget();
    budget.budgets.truncate(1);
    let exported = export(ExportKind::Rules, &budget, &source("vllm"), &spec()).expect("everything is said");
    std::fs::write(folder.path().join("chat-rules.yml"), &exported.files[0].text).expect("written");
    // A request per second; every ninety minutes half of five minutes' are slow, which is 2.8 % of all in groups of
    // 150.
    let (mut fast, mut all) = (Vec::new(), Vec::new());
    let (mut below, mut total) = (0, 0);
    for scrape in 0..(26 * 120) {
        total += 30;
        below += if scrape % 180 < 10 && scrape > 10 { 15 } else { 30 };
        fast.push(below.to_string());
        all.push(total.to_string());
    }
    let name = "vllm:time_to_first_token_seconds_bucket";
    let test = format!(
        "rule_files: [chat-rules.yml]\nevaluation_interval: 30s\ntests:\n  - interval: 30s\n    input_series:\n      \
         - {{series: '{name}{{job=\"chat\",le=\"0.5\"}}', values: '{}'}}\n      - {{series: '{name}{{job=\"chat\",le=\"+Inf\"}}', values: '{}'}}\n    \
         promql_expr_test:\n      - {{expr: 'plimsoll:design_effect:1d{{about=\"ttft-p99\"}} > bool 20', eval_time: 25h, exp_samples: [{{labels: '{{about=\"ttft-p99\",budget=\"chat\"}}', value: 1}}]}}\n",
        fast.join(" "),
        all.join(" ")
    );
    std::fs::write(folder.path().join("test.yml"), test).expect("written");
    promtool(folder.path(), &["test", "rules", "test.yml"]);
}

/// Returns the names of series in a text of queries.
fn names(text: &str) -> BTreeSet<String> {
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == ':';
    let words = text.split(|c: char| !is_name(c)).map(|word| word.trim_matches(':'));
    let servers = ["vllm:", "sglang:", "nv_", "llamacpp:", "plimsoll_gateway_"];
    words.filter(|word| servers.iter().any(|server| word.starts_with(server))).map(str::to_owned).collect()
}

#[test]
fn every_series_that_is_named_is_on_the_recorded_page() {
    for (server, text) in PAGES {
        let known: BTreeSet<String> = page(text).into_iter().map(|sample| sample.name.into()).collect();
        let mut seen = 0;
        for kind in [ExportKind::Rules, ExportKind::Dashboard, ExportKind::OpenSlo, ExportKind::Keda] {
            for file in export(kind, &budget(), &source(server), &spec()).expect("said").files {
                for name in names(&file.text) {
                    assert!(known.contains(&name), "{server}: {name} of {} is not on its page", file.name);
                    seen += 1;
                }
            }
        }
        assert!(seen >= 2, "{server}: {seen} names");
    }
}

/// Each row is either evaluated or reported as not evaluated, in the output and in the file.
#[test]
fn what_a_source_cannot_judge_is_said() {
    let judged = |name: &str| -> Vec<String> {
        let exported = exported(ExportKind::Rules, name);
        let rules = &exported.files[0].text;
        for row in &exported.rows {
            let said = if row.lint.judged { "evaluated" } else { "NOT EVALUATED" };
            let line = format!("# {} ({}): {said}: ", row.lint.id, row.lint.budget);
            assert!(rules.contains(&line), "{name}: {line}");
            let alerts = rules.contains(&format!("labels: {{about: \"{}\"", row.lint.id));
            assert_eq!(alerts, row.lint.judged, "{name} {}", row.lint.id);
        }
        exported.rows.iter().filter(|row| row.lint.judged).map(|row| row.lint.id.clone()).collect()
    };
    assert_eq!(judged("vllm"), ["ttft-p99", "ttft-p95", "e2e-p50", "itl-p99", "errors", "no-errors"]);
    assert_eq!(judged("sglang"), ["ttft-p99", "ttft-p95", "e2e-p50", "itl-p99"]);
    assert_eq!(judged("triton"), ["errors", "no-errors"]);
    assert_eq!(judged("gateway"), ["errors", "no-errors"]);
    assert!(judged("llama.cpp").is_empty());
    // 500 ms is an edge of vLLM's histogram and not of SGLang's.
    let edges = |name| exported(ExportKind::Rules, name).rows[0].lint.edges_s;
    assert_eq!((edges("vllm"), edges("sglang")), (Some([0.5, 0.5]), Some([0.4, 0.6])));
}

#[test]
fn the_dashboard_is_one_by_grafanas_schema_and_draws_no_quantile() {
    let schema: Value =
        serde_json::from_str(include_str!("../fixtures/grafana_dashboard_classic.jsonschema.json"))
            .expect("JSON");
    let reader = jsonschema::validator_for(&schema).expect("a sound schema");
    for (name, _) in PAGES {
        let board = exported(ExportKind::Dashboard, name).files.remove(0).text;
        assert!(!board.contains("histogram_quantile"), "{name}");
        let mut board: Value = serde_json::from_str(&board).expect("JSON");
        let wrong: Vec<String> =
            reader.iter_errors(&board).map(|e| format!("{}: {e}", e.instance_path())).collect();
        assert!(wrong.is_empty(), "{name}: {wrong:?}");
        board["schemaVersion"] = "41".into();
        assert!(!reader.is_valid(&board), "the schema must bite");
    }
}

#[test]
fn openslo_keda_and_the_collector_get_what_their_documents_ask_for() {
    let slo = exported(ExportKind::OpenSlo, "vllm").files.remove(0).text;
    assert_eq!(slo.matches("kind: SLO\n").count(), 6, "{slo}");
    assert_eq!(slo.matches("budgetingMethod: Occurrences").count(), 6);
    assert!(slo.contains("      target: 0.99\n") && slo.contains("      target: 0.5\n"), "{slo}");
    assert!(
        slo.contains("Only requests that are certainly over it are charged."),
        "350 ms lies inside a bucket: {slo}"
    );
    let keda = exported(ExportKind::Keda, "vllm").files.remove(0).text;
    for line in
        ["kind: ScaledObject", "ignoreNullValues: \"false\"", "threshold: \"4\"", "behavior: currentReplicas"]
    {
        assert!(keda.contains(line), "{line}: {keda}");
    }
    assert!(keda.contains("vllm:num_requests_waiting") && !keda.contains("num_requests_running"), "{keda}");
    let gateway = exported(ExportKind::Keda, "gateway").files.remove(0).text;
    assert!(gateway.contains("plimsoll_gateway_replica_requests"), "{gateway}");
    let missing = export(ExportKind::Keda, &budget(), &source("vllm"), &ExportSpec::default());
    assert!(missing.is_err_and(|why| why.contains("--queue-per-replica")));
    let sampling = exported(ExportKind::TailSampling, "vllm").files.remove(0).text;
    assert!(sampling.contains("threshold_ms: 1000") && sampling.contains("decision_wait: 10s"), "{sampling}");
}

/// For any source and labels, a rule pages when all its series are missing; `up` disappears with its targets.
#[test]
fn every_source_that_vanishes_is_called() {
    for (server, text) in PAGES {
        for labels in [vec![], vec![("job".to_owned(), "x".to_owned())]] {
            let source = ExportSource::new(server.to_owned(), labels, &page(text));
            let exported =
                export(ExportKind::Rules, &budget(), &source, &spec()).expect("everything is said");
            let rules = &exported.files[0].text;
            let (_, lost) = rules.split_once("alert: PlimsollSourceLost").expect(server);
            let lost = lost.split("- alert:").next().expect("a rule");
            for part in ["absent(", "for: 2m", "severity: \"page\""] {
                assert!(lost.contains(part), "{server}: {part}: {lost}");
            }
            assert_eq!(lost.contains("up{job=\"x\"} == 0"), !source.scope.is_empty(), "{lost}");
            // The rules' own tests show that nothing fires on a healthy source.
            assert!(exported.files[1].text.contains("a source that vanishes fires an alert"), "{server}");
        }
    }
}
