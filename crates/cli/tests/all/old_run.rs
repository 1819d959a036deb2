//! Run folders of earlier versions are read. `fixtures/run-before-tcp` was written before the kernel's figures of
//! connections were kept: its requests have no such columns.

use serde_json::Value;

use super::kit::{files, plimsoll, run_folder};

/// Returns a copy of the old folder, because a reader may write into it.
fn old_run() -> (tempfile::TempDir, String) {
    let (folder, run) = run_folder();
    let from = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/run-before-tcp");
    std::fs::create_dir(&run).expect("made");
    for (name, bytes) in files(std::path::Path::new(from)) {
        std::fs::write(std::path::Path::new(&run).join(name), bytes).expect("written");
    }
    (folder, run)
}

fn e2e(of: &Value) -> &Value {
    &of["levels"][0]["summary"]["latency"]["e2e"]["p50"]
}

#[test]
fn a_run_without_the_kernels_columns_is_shown_diagnosed_and_gated() {
    let (folder, run) = old_run();
    let manifest = std::fs::read(std::path::Path::new(&run).join("run.json")).expect("there");
    let manifest: Value = serde_json::from_slice(&manifest).expect("json");
    let shown = plimsoll(&["show", &run, "--format", "json"]);
    assert_eq!(shown.code, 0, "{}", shown.stderr);
    let shown = shown.json();
    // The stored findings of these rows equal today's (upper ends are now read to the safer side).
    let (then, now) = (e2e(&manifest["findings"]), e2e(&shown["findings"]));
    assert!(now["upper"].as_f64() >= then["upper"].as_f64(), "{then} {now}");
    for end in ["value", "lower"] {
        let (a, b) = (then[end].as_f64().expect("a figure"), now[end].as_f64().expect("a figure"));
        assert!((a / b - 1.0).abs() < 1e-9, "{end}: {then} {now}");
    }
    // What was not written down is unknown and not zero.
    let network = &shown["findings"]["network"];
    assert!(network["known"] == 0 && network["rtt_p50_s"].is_null(), "{network}");
    let told = plimsoll(&["diagnose", &run, "--format", "json"]).json();
    assert_eq!(told["answer"], "nothing_material", "{}", told["headline"]);
    let cleared = told["cleared"].to_string();
    assert!(!cleared.contains("network"), "a network of which nothing is known is not cleared: {cleared}");
    let budget = folder.path().join("budget.yaml");
    let text = "version: 1\nbudgets:\n  - {id: wide, metric: e2e, p: 50, max: 10s}\n";
    std::fs::write(&budget, text).expect("written");
    let gated = plimsoll(&["gate", &run, "--budget", budget.to_str().expect("utf-8")]);
    assert_eq!(gated.code, 0, "{}{}", gated.stdout, gated.stderr);
    assert_eq!(plimsoll(&["profile", &run]).code, 0);
}

/// Found by the fuzzer: a footer with a column that starts before the file.
#[test]
fn a_damaged_footer_is_one_line() {
    let (_folder, run) = old_run();
    let damaged = include_bytes!("../fixtures/run-negative-offset/requests.parquet");
    std::fs::write(std::path::Path::new(&run).join("requests.parquet"), damaged).expect("written");
    let shown = plimsoll(&["show", &run]);
    assert!(![0, 101].contains(&shown.code), "{}", shown.stderr);
    assert!(shown.stderr.contains("is outside the file"), "{}", shown.stderr);
    assert_eq!(shown.stderr.lines().count(), 1, "{}", shown.stderr);
}
