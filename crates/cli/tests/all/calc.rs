//! Formulas from the outside: the specification's figures as a user requests them, and each question without an answer.

use serde_json::Value;

use crate::kit::{plimsoll, run_folder};

fn asked(args: &[&str]) -> Value {
    let ended = plimsoll(&[&["calc"], args, &["--json"]].concat());
    assert_eq!(ended.code, 0, "{args:?}: {}", ended.stderr);
    ended.json()
}

/// Returns the answer with this name.
fn answer(found: &Value, name: &str) -> f64 {
    let answers = found["answers"].as_array().expect("answers");
    let figure = answers.iter().find(|figure| figure["name"] == name);
    figure.and_then(|figure| figure["value"].as_f64()).unwrap_or_else(|| panic!("{name}: {answers:?}"))
}

fn is(args: &[&str], name: &str, wanted: f64) {
    let got = answer(&asked(args), name);
    assert!((got / wanted - 1.0).abs() < 1e-9, "{args:?}: {name} is {got}, not {wanted}");
}

#[test]
fn the_specifications_figures_are_what_is_printed() {
    is(&["little", "--rate", "50/s", "--time", "2s"], "in flight", 100.0);
    is(&["little", "--in-flight", "100", "--time", "2s"], "rate", 50.0);
    is(&["little", "--in-flight", "100", "--rate", "3000/m"], "time", 2.0);
    let slots = ["utilisation", "--rate", "50/s", "--service", "2s", "--slots", "8", "--ceiling", "80%"];
    for (name, wanted) in [
        ("busy servers", 100.0),
        ("one replica's limit", 4.0),
        ("one replica at the ceiling", 3.2),
        ("replicas needed", 16.0),
        ("all of them at the ceiling", 51.2),
        ("utilisation", 100.0 / 128.0),
    ] {
        is(&slots, name, wanted);
    }
    is(&["amdahl", "--share", "70%", "--factor", "2"], "speed-up", 1.0 / 0.65);
    is(&["amdahl", "--share", "70%", "--speed-up", "2"], "factor", 3.5);
    is(&["mm1", "--utilisation", "95%", "--service", "1s"], "waiting", 18.05);
    is(&["mm1", "--waiting", "18.05", "--service", "1s"], "load", 0.95);
    is(&["fanout", "--calls", "10"], "for a page's p95", 0.95f64.powf(0.1));
    let shown = plimsoll(&["calc", "fanout", "--calls", "10"]).stdout;
    assert!(shown.contains("9.562 %") && shown.contains("p99.49") && shown.contains("p99.90"), "{shown}");
}

/// M/M/8 at 80 % computed manually (Erlang's sum, not the recursion), M/G/1 by its closed form.
#[test]
fn queues_answer_as_their_formulas_do() {
    let sum: f64 = (0..8).map(|k| 6.4f64.powi(k) / (1..=k).map(f64::from).product::<f64>()).sum();
    let last = 6.4f64.powi(8) / 40_320.0 / 0.2;
    let wait = last / (sum + last) * 2.0 / (8.0 * 0.2);
    let queue = ["--rate", "3.2/s", "--service", "2s"];
    let mmc = asked(&[&["mmc", "--servers", "8"][..], &queue].concat());
    assert!((answer(&mmc, "mean wait") / wait - 1.0).abs() < 1e-12);
    is(&["mg1", "--utilisation", "0.5", "--service", "1s", "--cv", "3"], "mean wait", 5.0);
    is(&["mg1", "--utilisation", "0.5", "--service", "1s", "--cv", "0"], "mean wait", 0.5);
}

#[test]
fn a_sample_is_read_from_a_file() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("sample").display().to_string();
    let sample: String = (1..=100).map(|ms| format!("{ms}ms\n")).collect();
    std::fs::write(&path, sample).expect("written");
    let found = asked(&["fanout", "--calls", "2", "--p", "90", "--sample", &path]);
    // Each of two calls has to meet its p94.87: the 95th of a hundred.
    assert!((answer(&found, "page p90") - 0.095).abs() < 1e-12, "{found}");
}

#[test]
fn a_run_is_a_sample() {
    let (_folder, run) = run_folder();
    let args = ["simulate", "--profile", "demo", "--rate", "40/s", "--for", "20s", "-q", "-o", &run];
    assert_eq!(plimsoll(&args).code, 0);
    let found = asked(&["fanout", "--calls", "5", "--sample", &run]);
    assert!(answer(&found, "page p95") > 0.0, "{found}");
}

#[test]
fn every_law_answers_and_is_listed() {
    for args in [
        &["little", "--rate", "50/s", "--time", "2s"][..],
        &["utilisation", "--rate", "50/s", "--service", "2s"],
        &["mm1", "--rate", "3/s", "--service", "200ms"],
        &["mmc", "--servers", "4", "--rate", "3/s", "--service", "1s"],
        &["mg1", "--rate", "3/s", "--service", "200ms", "--cv", "2"],
        &["amdahl", "--share", "70%"],
        &["fanout", "--calls", "10"],
    ] {
        let ended = plimsoll(&[&["calc"], args].concat());
        assert_eq!(ended.code, 0, "{}", ended.stderr);
        assert!(ended.stdout.contains("Assumes"), "{}", ended.stdout);
        ended.stdout.lines().for_each(|line| assert!(line.chars().count() <= 80, "{args:?}: {line}"));
        let points = asked(args)["curve"]["lines"].as_array().map_or(0, Vec::len);
        assert!(points > 0, "{args:?}: no points of its curve");
        let listed = plimsoll(&["calc"]);
        assert_eq!(listed.code, 0);
        assert!(listed.stdout.contains(&format!("  {} ", args[0])), "{}", listed.stdout);
    }
}

/// Each is one clear line that names the thing.
#[test]
fn what_has_no_answer_is_refused_with_the_reason() {
    let queue = ["--rate", "3/s", "--service", "200ms"];
    let of = |args: &[&'static str]| [args, &queue].concat();
    for (args, word) in [
        (of(&["mm1", "--p", "99", "--for", "llm"]), "batches step by step"),
        (of(&["mm1", "--p", "99", "--profile", "llama-3.1-8b@h100"]), "llama-3.1-8b@h100 batches"),
        (
            of(&["mmc", "--servers", "2", "--p", "99", "--profile", "resnet50-triton@a100"]),
            "serves whole batches",
        ),
        (of(&["mg1", "--cv", "2", "--p", "99"]), "whole distribution"),
        (of(&["mm1", "--p", "0.99"]), "not 0.99"),
        (of(&["mg1", "--cv=-1"]), "coefficient of variation"),
        (of(&["mm1", "--profile", "nothing@x"]), "nothing@x"),
        (vec!["mm1", "--rate", "5/s", "--service", "200ms"], "not under 1"),
        (vec!["mm1", "--rate", "5/s", "--service", "200"], "unit"),
        (vec!["mm1", "--rate", "5/s", "--utilisation", "0.5", "--service", "200ms"], "cannot be used with"),
        (vec!["mmc", "--servers", "2", "--waiting", "3", "--service", "200ms"], "one server only"),
        (vec!["little", "--rate", "5/s"], "two of"),
        (vec!["little", "--rate", "5/s", "--time", "2s", "--in-flight", "3"], "leave out the value"),
        (vec!["utilisation", "--rate", "5/s", "--service", "2s", "--ceiling", "120%"], "--ceiling"),
        (vec!["amdahl", "--share", "70%", "--speed-up", "4"], "past the limit of 3.333"),
        (vec!["amdahl", "--factor", "2", "--speed-up", "3"], "faster than its part"),
        (vec!["fanout", "--calls", "0"], "--calls"),
        (vec!["erlang"], "erlang"),
    ] {
        let ended = plimsoll(&[&["calc"], &args[..]].concat());
        assert_eq!(ended.code, 2, "{args:?}: {}", ended.stdout);
        assert!(
            ended.stderr.contains(word) && ended.stderr.lines().count() == 1,
            "{args:?}: {}",
            ended.stderr
        );
    }
    // Without a requested percentile, the mean is shown, with the refusal of percentiles.
    let shown = plimsoll(&["calc", "mm1", "--rate", "3/s", "--service", "200ms", "--for", "llm"]);
    assert_eq!(shown.code, 0);
    assert!(shown.stdout.contains("percentiles refused: an LLM engine batches"), "{}", shown.stdout);
    assert!(!shown.stdout.contains("wait + service p99"), "{}", shown.stdout);
}
