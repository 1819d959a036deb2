//! `plimsoll profile RUN` from the outside, on runs in virtual time.

use crate::kit::{plimsoll, run_folder};

#[test]
fn a_run_s_time_is_taken_apart() {
    let (folder, run) = run_folder();
    let simulate =
        ["simulate", "--profile", "llama-3.1-8b@l4", "--rate", "3/s", "--for", "100s", "--isl", "256"];
    let ended = plimsoll(&[&simulate[..], &["--osl", "32", "-q", "-o", &run]].concat());
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    let json = plimsoll(&["profile", &run, "--format", "json"]).json();
    let level = &json["levels"][0];
    assert_eq!(level["source"], "reported", "{level}");
    let parts = level["parts"].as_array().expect("parts");
    let mean = |name: &str| {
        let part = parts.iter().find(|part| part["part"] == name).expect(name);
        part["mean"]["value"].as_f64().expect("a mean")
    };
    let sum: f64 = parts.iter().filter_map(|part| part["mean"]["value"].as_f64()).sum();
    let whole = level["whole"]["mean"]["value"].as_f64().expect("a mean");
    assert!((sum - whole).abs() < 1e-6 && mean("decode") > mean("prefill"), "{level}");
    let text = plimsoll(&["profile", &run]).stdout;
    assert!(text.contains("prefill") && text.contains("reported"), "{text}");

    let budget = folder.path().join("budget.yaml");
    let slices = "version: 1\nstages:\n  total: 5s\n  slices: {prefill: 1ms, decode: 4s}\n";
    std::fs::write(&budget, slices).expect("written");
    let with =
        plimsoll(&["profile", &run, "--budget", budget.to_str().expect("utf-8"), "--format", "json"]).json();
    let slices = with["levels"][0]["slices"].as_array().expect("slices").clone();
    let over = |name: &str| slices.iter().find(|s| s["part"] == name).expect(name)["requests_over"].clone();
    assert_eq!((over("prefill"), over("decode")), (1.0.into(), 0.0.into()));
}

#[test]
fn what_is_no_run_or_no_part_is_refused() {
    let ended = plimsoll(&["profile", "/no/such/run"]);
    assert_eq!(ended.code, 2, "{}", ended.stderr);
    let (folder, run) = run_folder();
    let ended =
        plimsoll(&["simulate", "--profile", "mm8", "--rate", "50/s", "--for", "5s", "-q", "-o", &run]);
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    let ended = plimsoll(&["profile", &run, "--level", "7"]);
    assert!(ended.code == 2 && ended.stderr.contains("--level 7"), "{}", ended.stderr);
    let ended = plimsoll(&["profile", &run, "--baseline", &run]);
    assert!(ended.code == 2 && ended.stderr.contains("--baseline needs traces"), "{}", ended.stderr);
    let budget = folder.path().join("budget.yaml");
    std::fs::write(&budget, "version: 1\nstages:\n  total: 5s\n  slices: {retrieve: 1s}\n").expect("written");
    let ended = plimsoll(&["profile", &run, "--budget", budget.to_str().expect("utf-8")]);
    assert!(ended.code == 2 && ended.stderr.contains("retrieve"), "{}", ended.stderr);
}
