//! The active budget as the time limit of requests, in virtual time: as if the file had named its ceiling itself.

use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::kit::plimsoll_in;

const BUDGET: &str = "version: 1\nbudgets:\n- {id: slow, metric: ttft, p: p95, max: 800ms}\n- {id: usual, metric: ttft, p: p50, max: 100ms}\n";

/// The summary of an engine of six sequences under a burst above its capacity.
fn summary(folder: &Path, admission: &str) -> Value {
    fs::write(
        folder.join("gateway.yaml"),
        format!(
            "replicas: [{{url: http://a:1}}]\nbudget: budget.yaml\nadmission: {{per_replica: 6{admission}}}\n"
        ),
    )
    .expect("written");
    let args = [
        "simulate",
        "--gateway",
        "gateway.yaml",
        "--profile",
        "demo",
        "--rate",
        "160/s",
        "--for",
        "20s",
        "--seed",
        "3",
    ];
    let found = plimsoll_in(folder, &[&args[..], &["--format", "json"]].concat()).json();
    found["findings"]["levels"][0]["summary"].clone()
}

#[test]
fn what_would_be_over_the_budgets_ceiling_is_refused_where_that_is_asked_for() {
    let folder = tempfile::tempdir().expect("a folder");
    fs::write(folder.path().join("budget.yaml"), BUDGET).expect("written");
    let [plain, budget, named] =
        ["", ", slo_from_budget: true", ", slo_ttft_ms: 800"].map(|text| summary(folder.path(), text));
    let finished = |of: &Value| of["counts"]["finished"].as_u64().expect("a count");
    assert_eq!(budget["counts"], named["counts"]);
    assert_eq!(budget["latency"], named["latency"]);
    let latest = |of: &Value| of["latency"]["ttft"]["max_finite_s"].as_f64().expect("a time");
    assert!(latest(&budget) < 0.9 && latest(&plain) > 3.0, "{} and {} s", latest(&budget), latest(&plain));
    // What it can't do in time waits without a limit, and is refused with one.
    assert!(finished(&budget) < finished(&plain), "{} and {}", budget["counts"], plain["counts"]);
}
