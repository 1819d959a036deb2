//! Levers and costs from the outside: a simulated run in, a ranking and a price out, and each wrong flag in one line.

use crate::kit::{plimsoll, run_folder};

#[test]
fn a_run_says_what_to_change_first_and_what_it_costs() {
    let (_folder, run) = run_folder();
    let args = ["simulate", "--profile", "demo", "--rate", "40/s", "--for", "30s", "--prefix", "0.5,3"];
    let more = ["--isl", "128", "--osl", "16", "-q", "-o", &run];
    assert_eq!(plimsoll(&[&args[..], &more].concat()).code, 0);

    let levers = plimsoll(&["levers", &run, "--schedules", "3", "--format", "json"]);
    assert_eq!(levers.code, 0, "{}", levers.stderr);
    let found = levers.json();
    assert_eq!(found["fit"]["fits"], true, "{}", found["fit"]);
    // Half of each prompt is one of three beginnings: 64 of 128 tokens.
    let reuse = found["evidence"]["prefix_reuse"]["value"].as_f64().expect("prompts with blocks");
    assert!((reuse - 0.5).abs() < 0.01, "{reuse}");
    let out = found["ruled_out"].as_array().expect("a list");
    let why = |id: &str| out.iter().find(|lever| lever["lever"] == id).map(|lever| lever["why"].to_string());
    assert!(why("exact-cache").expect("no prompt repeats").contains("0.0 %"));
    assert!(why("request-routing").expect("nothing to choose").contains("one replica"));

    // 3.6 USD an hour are 0.001 USD a second, over what was done in one.
    let shown = plimsoll(&["show", &run, "--price", "3.6USD/h", "--format", "json"]).json();
    let done = &shown["findings"]["levels"][0]["summary"]["rates"]["achieved_per_s"]["value"];
    let each = &shown["findings"]["cost"]["levels"][0]["costs"]["per_request"]["value"];
    let (done, each) = (done.as_f64().expect("a rate"), each.as_f64().expect("a cost"));
    assert!((each * done / 0.001 - 1.0).abs() < 1e-9, "{each} at {done}/s");

    let wrong: [(&[&str], &str); 6] = [
        (&["levers", &run, "--by", "cost"], "needs a price"),
        (&["levers", &run, "--level", "7"], "levels are 0"),
        (&["levers", &run, "--profile", "llama-9@h100"], "nearest"),
        (&["levers", "nowhere"], "there is no such file or folder"),
        (&["show", &run, "--price", "3.6/h"], "currency"),
        (&["show", &run, "--price", "3.6USD/fortnight"], "gpu-hour"),
    ];
    for (args, word) in wrong {
        let ended = plimsoll(args);
        assert_eq!(ended.code, 2, "{args:?}");
        assert!(ended.stderr.contains(word) && ended.stderr.lines().count() == 1, "{}", ended.stderr);
    }
}

/// An overloaded engine: the levers share the queue, in which all of the time is spent, and not the prefill that they also move.
#[test]
fn levers_that_move_the_same_term_say_so() {
    let (_folder, run) = run_folder();
    let args =
        ["simulate", "--profile", "demo", "--rate", "140/s", "--for", "8s", "--isl", "256", "--osl", "64"];
    assert_eq!(plimsoll(&[&args[..], &["-q", "-o", &run]].concat()).code, 0);
    let levers = plimsoll(&["levers", &run, "--slo", "ttft p95 < 100ms", "--schedules", "3"]);
    assert_eq!(levers.code, 0, "{}", levers.stderr);
    assert!(levers.stdout.contains("move the same term, queue"), "{}", levers.stdout);
}

/// A measured run has no engine, so one is fitted. Seven rows of "at most 100 %" used to be printed.
#[test]
fn levers_of_a_measured_run_are_predicted_with_a_fitted_engine() {
    let (_folder, run) = run_folder();
    let args = ["simulate", "--profile", "llama-3.1-8b@l4", "--rate", "6/s", "--for", "2m", "--isl", "256"];
    assert_eq!(plimsoll(&[&args[..], &["--osl", "32", "-q", "-o", &run]].concat()).code, 0);
    // The measured data does not name the engine.
    let path = std::path::Path::new(&run).join("run.json");
    let text = std::fs::read_to_string(&path).expect("a manifest");
    let mut manifest: serde_json::Value = serde_json::from_str(&text).expect("json");
    manifest["scenario"].as_object_mut().expect("a scenario").remove("world").expect("the world");
    std::fs::write(&path, manifest.to_string()).expect("written");
    let levers = plimsoll(&["levers", &run, "--schedules", "3", "--format", "json"]);
    assert_eq!(levers.code, 0, "{}", levers.stderr);
    assert!(levers.stderr.contains("the engine was fitted to"), "{}", levers.stderr);
    assert_eq!(levers.json()["fit"]["fits"], true, "{}", levers.json()["fit"]);
}

/// A sweep too short for an onset: the heaviest of the levels measured best is taken, and named.
#[test]
fn a_sweep_without_an_onset_brings_its_best_level() {
    let (_folder, run) = run_folder();
    let sweep = ["simulate", "--profile", "llama-3.1-8b@l4", "--sweep", "--time", "80s", "--isl", "256"];
    plimsoll(&[&sweep[..], &["--osl", "32", "-q", "-o", &run]].concat());
    for args in [&["profile", &run][..], &["levers", &run, "--schedules", "3"]] {
        let ended = plimsoll(args);
        assert_eq!(ended.code, 0, "{args:?}: {}", ended.stderr);
        assert!(ended.stderr.contains("is taken: the heaviest"), "{args:?}: {}", ended.stderr);
    }
}
