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
    let slices = "version: 1\nstages:\n  total: 15s\n  slices: {prefill: 1ms, decode: 12s}\n";
    std::fs::write(&budget, slices).expect("written");
    let budget = budget.to_str().expect("utf-8");
    let ended = plimsoll(&["profile", &run, "--budget", budget, "--format", "json"]);
    assert_eq!(ended.code, 1, "a slice that every request is over is broken");
    let with = ended.json();
    let slices = with["levels"][0]["slices"].as_array().expect("slices").clone();
    let of = |name: &str| slices.iter().find(|s| s["part"] == name).expect(name).clone();
    let over = |name: &str| of(name)["requests_over"]["value"].clone();
    assert_eq!((over("prefill"), over("decode")), (1.0.into(), 0.0.into()));
    assert_eq!((&of("prefill")["verdict"], &of("decode")["verdict"]), (&"fail".into(), &"pass".into()));
    // A mean over its slice is how much of the slice is used: two figures of the same page.
    let used = of("decode")["used"].as_f64().expect("a share");
    assert!((used - mean("decode") / 12.0).abs() < 1e-6, "{used}");
    let text = plimsoll(&["profile", &run, "--budget", budget]).stdout;
    assert!(text.contains("95 % interval") && text.contains("mean uses"), "{text}");
    std::fs::write(budget, "version: 1\nstages:\n  total: 15s\n  slices: {decode: 12s}\n").expect("written");
    assert_eq!(plimsoll(&["profile", &run, "--budget", budget]).code, 0, "a slice that holds");
    // Whole requests here and the run's own e2e are the same requests, read by another path.
    let shown = plimsoll(&["show", &run, "--format", "json"]).json();
    let there = &shown["findings"]["levels"][0]["summary"]["latency"]["e2e"]["p50"];
    let here = &level["whole"]["sampled"]["p50"];
    for end in ["value", "lower", "upper"] {
        let (a, b) = (here[end].as_f64().expect("a figure"), there[end].as_f64().expect("a figure"));
        assert!((a / b - 1.0).abs() < if end == "value" { 1e-6 } else { 0.03 }, "{end}: {here} {there}");
    }
}

/// The page has the same figures as the terminal, draws inferred parts differently from measured ones, and loads no external resource.
#[test]
fn a_run_s_time_is_drawn() {
    let (folder, run) = run_folder();
    let simulate =
        ["simulate", "--profile", "llama-3.1-8b@l4", "--rate", "5/s", "--for", "100s", "--isl", "256"];
    let ended = plimsoll(&[&simulate[..], &["--osl", "32", "-q", "-o", &run]].concat());
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    let page = folder.path().join("page.html").to_str().expect("utf-8").to_owned();
    let drawn = |more: &[&str]| {
        let ended = plimsoll(&[&["profile", &run, "--html", &page], more].concat());
        assert_eq!(ended.code, 0, "{}", ended.stderr);
        (std::fs::read_to_string(&page).expect("a page"), ended.stdout)
    };
    let (reported, _) = drawn(&[]);
    assert!(reported.contains("reported") && !reported.contains("class=\"inferred\""), "no guess is drawn");
    let (page, text) = drawn(&["--infer"]);
    assert!(page.contains("class=\"inferred\"") && page.contains("Hatched"), "{page}");
    for said in ["sent to first token", "inferred, mean reported", "slow − middle", "95 % interval"] {
        assert!(page.contains(said) && text.contains(said), "no {said} in {text}");
    }
    assert!(!page.contains("http://") && page.contains("Content-Security-Policy"), "offline");
    // The bar of all is as long as its parts, and each part as its share.
    let found = plimsoll(&["profile", &run, "--infer", "--format", "json"]).json();
    let level = &found["levels"][0];
    let slowest = level["bands"]["slowest_s"].as_f64().expect("ends");
    let decode = level["parts"].as_array().expect("parts").iter().find(|part| part["part"] == "decode");
    let mean = decode.expect("decode")["mean"]["value"].as_f64().expect("a mean");
    let width = format!("width:{:.3}%", 100.0 * mean / slowest);
    assert!(page.contains(&width), "no {width}");
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
