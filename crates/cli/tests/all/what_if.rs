//! An engine from a run and predictions for it, from the outside; and each wrong word in one line.

use crate::kit::{Engine, plimsoll, run_folder};

#[test]
fn a_run_becomes_an_engine_that_simulates_and_predicts() {
    let (folder, run) = run_folder();
    let mix = ["--isl", "lognormal:64,0.6", "--osl", "lognormal:8,0.5", "-q"];
    let args = ["simulate", "--profile", "demo", "--rate", "150/s", "--for", "6s", "-o", &run];
    assert_eq!(plimsoll(&[&args[..], &mix].concat()).code, 0);

    let engine = folder.path().join("engine.json").display().to_string();
    let fitted = plimsoll(&["calibrate", &run, "--slots", "6", "-o", &engine, "--format", "json"]);
    assert_eq!(fitted.code, 0, "{}", fitted.stderr);
    // The demo's own step: 600 µs and 2 µs a prompt token, 4.5 ms before the queue.
    let mode = &fitted.json()["engine"]["mode"];
    let near = |value: &serde_json::Value, truth: f64| {
        (value.as_f64().expect("a figure") / truth - 1.0).abs() < 0.02
    };
    assert!(near(&mode["step"]["base_us"], 600.0) && near(&mode["step"]["prefill_us"], 2.0), "{mode}");
    assert!(near(&mode["front_ms"], 4.5), "{mode}");
    let again = folder.path().join("again").display().to_string();
    let args = ["simulate", "--profile", &engine, "--rate", "150/s", "--for", "6s", "-o", &again];
    assert_eq!(plimsoll(&[&args[..], &mix].concat()).code, 0);
    assert_eq!(plimsoll(&["engine", "--profile", &engine, "--list"]).code, 0);

    let found =
        plimsoll(&["what-if", &run, "rate 2x", "weights fp8", "--profile", &engine, "--format", "json"]);
    assert_eq!(found.code, 0, "{}", found.stderr);
    let cases = found.json()["cases"].clone();
    assert!(cases[0]["figures"].as_array().is_some_and(|figures| figures.len() >= 6), "{cases}");
    assert!(cases[1]["refused"].as_str().is_some_and(|why| why.contains("--profile MODEL@GPU")), "{cases}");

    let wrong: [(&[&str], &str); 5] = [
        (&["what-if", &run, "faster"], "is no change; write rate 2x"),
        (&["what-if", &run, "rate two"], "no factor"),
        (&["what-if", &run, "rate 2x", "--level", "7"], "levels are 0"),
        (&["what-if", "nowhere", "rate 2x"], "there is no such file or folder"),
        (&["calibrate", &run, "-o", &engine], "it exists"),
    ];
    for (args, word) in wrong {
        let ended = plimsoll(args);
        assert_eq!(ended.code, 2, "{args:?}: {}", ended.stderr);
        assert!(
            ended.stderr.contains(word) && ended.stderr.trim().lines().count() == 1,
            "{args:?}: {}",
            ended.stderr
        );
    }
}

/// A run that fits no engine is inconclusive: the command is valid, but the data is not enough.
///
/// A prompt longer than the context is rejected, so nothing is known of the endpoint. The command used to print a prediction without
/// a figure, with exit code 0.
#[test]
fn a_run_that_tells_no_engine_is_inconclusive() {
    let engine = Engine::start("demo");
    let (_folder, run) = run_folder();
    let load = ["--concurrency", "1", "--requests", "8", "--scrape", "off", "-q", "-o", &run];
    let ended = plimsoll(&[&["run", &engine.url][..], &load].concat());
    assert!(matches!(ended.code, 0 | 4), "{}", ended.stderr);
    for args in [
        &["what-if", &run, "rate 2x"][..],
        &["plan", "--from", &run, "--slo", "ttft p95 < 5s", "--rate", "5/s"],
    ] {
        let ended = plimsoll(args);
        assert_eq!(ended.code, 3, "{args:?}: {}", ended.words());
        assert!(ended.stderr.contains("too few to fit an engine"), "{}", ended.stderr);
    }
}

#[test]
fn nothing_is_predicted_from_a_run_without_answers() {
    let (_folder, run) = run_folder();
    let args = ["simulate", "--rate", "20/s", "--for", "5s", "--isl", "1000000", "-q", "-o", &run];
    assert_eq!(plimsoll(&args).code, 4);
    let ended = plimsoll(&["what-if", &run, "rate 2x"]);
    assert_eq!(ended.code, 4, "{}{}", ended.stdout, ended.stderr);
    assert!(ended.stderr.contains("was answered") && ended.stdout.is_empty(), "{}", ended.stderr);
}
