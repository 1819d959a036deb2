//! `plimsoll budget split` from the outside: what it prints is a budget file that the lint accepts, and the sum of its slices is the total's.

use std::fs;

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::kit::plimsoll;

struct Desk(TempDir);

impl Desk {
    fn new() -> Desk {
        Desk(tempfile::tempdir().expect("a folder"))
    }

    fn path(&self, name: &str) -> String {
        self.0.path().join(name).display().to_string()
    }

    fn file(&self, name: &str, text: &str) -> String {
        fs::write(self.path(name), text).expect("written");
        self.path(name)
    }

    /// Splits into a file, which must pass the lint without an error; returns (slices by stage in s, their sum).
    fn split(&self, args: &[&str]) -> (Value, f64) {
        let out = self.path("budget.yaml");
        let _ = fs::remove_file(&out);
        let ended = plimsoll(&[&["budget", "split", "-o", &out], args].concat());
        assert_eq!(ended.code, 0, "{args:?}: {}", ended.stderr);
        let lint = plimsoll(&["budget", "lint", &out]);
        assert_eq!(lint.code, 0, "{}{}", fs::read_to_string(&out).expect("a file"), lint.stdout);
        let found = plimsoll(&[&["budget", "split", "--format", "json"], args].concat()).json();
        let slices = found["slices"].as_array().expect("slices");
        let sum = slices.iter().map(|slice| slice["slice_s"].as_f64().expect("a time")).sum();
        (found, sum)
    }
}

fn slice(found: &Value, stage: &str) -> f64 {
    let slices = found["slices"].as_array().expect("slices");
    let slice = slices.iter().find(|slice| slice["stage"] == stage);
    slice.and_then(|slice| slice["slice_s"].as_f64()).unwrap_or_else(|| panic!("no {stage}: {found}"))
}

/// The specification's path: ten fixed slices that total 2850 of 3000 ms. 250 ms more are refused with the sum.
#[test]
fn the_sum_decides() {
    let desk = Desk::new();
    let fixed = |prefill: u32| {
        let stages = [30, 20, 50, 100, 100, 50, prefill, 2000, 50, 50];
        let lines = stages.iter().enumerate().map(|(i, ms)| format!("  s{i}: {{fixed: {ms}ms}}\n"));
        format!("stages:\n{}", lines.collect::<String>())
    };
    let fits = desk.file("fits.yaml", &fixed(400));
    let (_, sum) = desk.split(&["--total", "3s", "--margin", "150ms", &fits]);
    assert!((sum - 2.85).abs() < 1e-9, "{sum}");
    let over = desk.file("over.yaml", &fixed(650));
    for (margin, word) in
        [("0.0001ms", "3100 ms"), ("150ms", "3250 ms in all: 250 ms more than the total of 3000 ms")]
    {
        let ended = plimsoll(&["budget", "split", "--total", "3s", "--margin", margin, &over]);
        assert_eq!(ended.code, 2);
        assert!(ended.stderr.contains(word) && ended.stderr.lines().count() == 1, "{}", ended.stderr);
    }
}

#[test]
fn what_is_left_goes_to_weights_or_to_what_varies() {
    let desk = Desk::new();
    let stages = "total: 3s\nmargin: 5%\nstages:\n  gateway: {fixed: 30ms}\n  embedding: {share: 2%}\n  search: {p50: 60ms, p99: 140ms}\n";
    let weighted =
        desk.file("weighted.yaml", &format!("{stages}  prefill: {{weight: 1}}\n  decode: {{weight: 4}}\n"));
    let (found, sum) = desk.split(&[&weighted]);
    assert!((sum - 2.85).abs() < 1e-3 && sum <= 2.85, "{sum}");
    // 2850 − 30 − 60 − 140 = 2620 ms over five parts.
    assert!(
        (slice(&found, "prefill") - 0.524).abs() < 1e-9 && (slice(&found, "decode") - 2.096).abs() < 1e-9,
        "{found}"
    );
    assert!((slice(&found, "search") - 0.14).abs() < 1e-9, "{found}");

    // 1000 − 100 − 300 = 600 ms are shared by the spreads of 50 and 150.
    let measured =
        desk.file("measured.yaml", "stages:\n  a: {p50: 50ms, p99: 100ms}\n  b: {p50: 150ms, p99: 300ms}\n");
    let (found, sum) = desk.split(&["--total", "1s", &measured]);
    assert!((slice(&found, "a") - 0.25).abs() < 1e-9 && (slice(&found, "b") - 0.75).abs() < 1e-9, "{found}");
    assert!((sum - 1.0).abs() < 1e-9);
    let notes = found["notes"].to_string();
    assert!(notes.contains("percentiles do not add") && notes.contains("98.0 %"), "{notes}");
}

/// Requests whose queue and prefill are slow in 2 % each, never together: 400 + 20 + 100 or 2 + 300 + 100 ms.
fn traces() -> Value {
    let mut spans = Vec::new();
    for i in 0..3000u64 {
        let start = 1_795_000_000_000_000_000 + i * 50_000_000;
        let parts = [
            ("queue", if i % 50 == 7 { 400 } else { 2 }),
            ("prefill", if i % 50 == 31 { 300 } else { 20 }),
            ("decode", 100),
        ];
        let mut span = |id: u64, name: &str, from: u64, to: u64| {
            let mut one = json!({
                "traceId": format!("{:032x}", i + 1), "spanId": format!("{id:016x}"), "name": name, "kind": if id == 1 { 2 } else { 1 },
                "startTimeUnixNano": (start + from * 1_000_000).to_string(),
                "endTimeUnixNano": (start + to * 1_000_000).to_string(),
            });
            if id > 1 {
                one["parentSpanId"] = json!(format!("{:016x}", 1));
            }
            spans.push(one);
        };
        let mut at = 0;
        for (id, (name, took)) in (2..).zip(parts) {
            span(id, name, at, at + took);
            at += took;
        }
        span(1, "POST /ask", 0, at);
    }
    json!({"resourceSpans": [{"scopeSpans": [{"spans": spans}]}]})
}

#[test]
fn a_profile_tells_what_the_joint_tail_allows() {
    let desk = Desk::new();
    let traces = desk.file("traces.json", &traces().to_string());
    let profile = plimsoll(&["profile", &traces, "--format", "json"]);
    assert_eq!(profile.code, 0, "{}", profile.stderr);
    let profile = desk.file("profile.json", &profile.stdout);
    let from = ["--from", &profile];

    // Each stage's own p99: 400 + 300 + 100 = 800 ms, the whole's 520, because no request waits for both.
    let (found, sum) = desk.split(&[&from[..], &["--total", "1s", "--margin", "50ms"]].concat());
    assert!((0.9499..=0.95).contains(&sum), "{sum}");
    assert!(
        slice(&found, "queue") >= 0.4 && slice(&found, "prefill") >= 0.3 && slice(&found, "decode") >= 0.1,
        "{found}"
    );
    let notes = found["notes"].to_string();
    assert!(
        notes.contains("add up to 800 ms, the p99 of the whole was 520 ms: the sum is 280 ms higher"),
        "{notes}"
    );

    // 700 ms are less than the sum but enough for the whole.
    let tight = [&from[..], &["--total", "700ms", "--margin", "20ms"]].concat();
    let ended = plimsoll(&[&["budget", "split"], &tight[..]].concat());
    assert_eq!(ended.code, 2);
    assert!(
        ended.stderr.contains("add up to 800 ms") && ended.stderr.contains("--joint"),
        "{}",
        ended.stderr
    );
    let (found, sum) = desk.split(&[&tight[..], &["--joint"]].concat());
    assert_eq!(found["slices_p"], 0.95);
    assert!(sum <= 0.68 + 1e-9 && sum > 0.679, "{sum}");
    let text = fs::read_to_string(desk.path("budget.yaml")).expect("a file");
    assert!(
        text.contains("p: 95\n") && text.contains("{id: e2e-p99, metric: e2e, p: 99, max: 700ms}"),
        "{text}"
    );

    // Less than the whole takes: no split.
    let ended = plimsoll(&[&["budget", "split", "--joint", "--total", "500ms"], &from[..]].concat());
    assert_eq!(ended.code, 2);
    assert!(ended.stderr.contains("measured at 520 ms"), "{}", ended.stderr);
}

#[test]
fn what_can_not_be_split_is_refused_in_one_line() {
    let desk = Desk::new();
    let good = desk.file("good.yaml", "stages: {a: {fixed: 1s}, b: {weight: 1}}\n");
    let file = |name: &str, text: &str| desk.file(name, text);
    let typo = file("typo.yaml", "stages: {a: {fixd: 1s}}\n");
    let two = file("two.yaml", "stages: {a: {fixed: 1s, weight: 2}}\n");
    let none = file("none.yaml", "stages: {a: {}}\n");
    let unit = file("unit.yaml", "stages: {a: {fixed: 1}}\n");
    let other = file("other.yaml", "stages: {a: {p50: 1s}}\n");
    for (args, word) in [
        (vec![good.as_str()], "--total 3s"),
        (vec!["--total", "1s", &good], "nothing is left for the weights"),
        (vec!["--total", "3", &good], "length of time"),
        (vec!["--total", "soon", &good], "--total"),
        (vec!["--total", "3s", "--margin", "3s", &good], "leaves nothing"),
        (vec!["--total", "3s", &typo], "did you mean `fixed`?"),
        (vec!["--total", "3s", &two], "not several"),
        (vec!["--total", "3s", &none], "one of fixed"),
        (vec!["--total", "3s", &unit], "length of time"),
        (vec!["--total", "3s", &other], "--p"),
        (vec!["--total", "3s", "--joint", &good], "--from"),
        (vec!["--total", "3s", "--from", &good], "profile"),
        (vec!["--total", "3s"], "STAGES"),
        (vec!["--total", "3s", "nowhere.yaml"], "nowhere.yaml"),
    ] {
        let ended = plimsoll(&[&["budget", "split"], &args[..]].concat());
        assert_eq!(ended.code, 2, "{args:?}: {}", ended.stdout);
        assert!(
            ended.stderr.contains(word) && ended.stderr.lines().count() == 1,
            "{args:?}: {}",
            ended.stderr
        );
    }
}
