//! `plimsoll tradeoff` on simulated runs whose costs are known, with results of lm-evaluation-harness.

use std::fmt::Write;
use std::path::Path;

use crate::kit::{plimsoll, run_folder};

/// Writes results of `n` documents, of which the first `right` are right, with samples if `logged`.
fn harness(folder: &Path, n: u32, right: u32, logged: bool) -> String {
    std::fs::create_dir_all(folder).expect("a folder");
    let share = f64::from(right) / f64::from(n);
    let error = (share * (1.0 - share) / f64::from(n - 1)).sqrt();
    let results = format!(
        "{{\"results\": {{\"gsm8k\": {{\"exact_match,strict-match\": {share}, \"exact_match_stderr,strict-match\": {error}}}}}, \
         \"n-samples\": {{\"gsm8k\": {{\"original\": {n}, \"effective\": {n}}}}}}}"
    );
    std::fs::write(folder.join("results_2026-11-29T08-00-00.1.json"), results).expect("written");
    if logged {
        let mut samples = String::new();
        for id in 0..n {
            let score = f64::from(u8::from(id < right));
            let line =
                format!("{{\"doc_id\": {id}, \"filter\": \"strict-match\", \"exact_match\": {score:.1}}}");
            writeln!(samples, "{line}").expect("a string");
        }
        std::fs::write(folder.join("samples_gsm8k_2026-11-29T08-00-00.1.jsonl"), samples).expect("written");
    }
    folder.display().to_string()
}

/// A run of a closed loop, or with `rate` at an offered rate.
fn simulated(run: &str, profile: &str, rate: bool) {
    let load =
        if rate { ["--rate", "20/s", "--for", "60s"] } else { ["--concurrency", "8", "--requests", "2000"] };
    let args =
        ["simulate", "--profile", profile, "--isl", "64", "--osl", "lognormal:32,0.3", "--nonce", "7", "-q"];
    let ended = plimsoll(&[&args[..], &load, &["-o", run]].concat());
    assert!([0, 3, 4].contains(&ended.code), "{}", ended.stderr);
}

#[test]
fn a_cheaper_candidate_pays_until_it_loses_too_much() {
    let (folder, base) = run_folder();
    let at = |name: &str| folder.path().join(name);
    let candidate = at("candidate").display().to_string();
    simulated(&base, "llama-3.1-8b@h100", false);
    simulated(&candidate, "llama-3.1-8b@h100", false);
    let eval = |name: &str, right: u32, logged: bool| harness(&at(name), 2000, right, logged);
    let (good, equal, bad, few) =
        (eval("a", 1500, true), eval("b", 1499, true), eval("c", 1400, true), eval("d", 1499, false));
    let tradeoff = |candidate_eval: &str, gpus: &str| {
        let flags = ["--price", "2USD/gpu-hour", "--gpus", "2", "--candidate-gpus", gpus];
        let evals = ["--base-eval", &good, "--candidate-eval", candidate_eval, "--despite-differences"];
        let json =
            plimsoll(&[&["tradeoff", &base, &candidate][..], &flags, &evals, &["--format", "json"]].concat());
        assert!(json.code != 2, "{}", json.stderr);
        (json.code, json.json())
    };
    // Half the GPUs, equal tokens: half the cost. The answer of `audit` and `show` is the truth for the base's.
    let (code, found) = tradeoff(&equal, "1");
    assert_eq!(code, 0, "{found:#}");
    let number = |value: &serde_json::Value| value.as_f64().expect("a number");
    assert!((number(&found["cost"]["ratio"]["value"]) - 0.5).abs() < 0.02, "{found:#}");
    let shown =
        plimsoll(&["show", &base, "--price", "2USD/gpu-hour", "--gpus", "2", "--format", "json"]).json();
    let cost = &shown["findings"]["cost"]["levels"][0]["costs"]["per_million_output"]["value"];
    assert_eq!(&found["cost"]["base"]["value"], cost);
    // One of 2000 items differs: −0.05 points by Tango's interval, whose upper end is above zero.
    let difference = &found["accuracy"]["difference"];
    assert!((number(&difference["value"]) + 0.05).abs() < 1e-9 && number(&difference["upper"]) > 0.0);
    assert_eq!(found["point"]["is"], "at_least", "{found:#}");
    // A hundred items lost are five points, each at a known price.
    let (code, found) = tradeoff(&bad, "1");
    assert_eq!((code, found["point"]["is"].as_str()), (1, Some("known")), "{found:#}");
    let price = number(&found["point"]["price"]["value"]);
    assert!((price - number(&found["cost"]["saving"]["value"]) / 5.0).abs() < 1e-9, "{found:#}");
    // Twice the cost without a gain does not pay; without samples the standard errors add, and the loss stays open.
    assert_eq!(tradeoff(&equal, "4").0, 1);
    let (code, found) = tradeoff(&few, "1");
    assert_eq!((code, found["accuracy"]["is_paired"].as_bool()), (3, Some(false)), "{found:#}");
    let page = at("page.html").display().to_string();
    let flags =
        ["--price", "4USD/h", "--candidate-price", "2USD/h", "--html", &page, "--despite-differences"];
    let ended = plimsoll(
        &[&["tradeoff", &base, &candidate][..], &flags, &["--base-eval", &good, "--candidate-eval", &equal]]
            .concat(),
    );
    assert!(
        ended.stdout.contains("The change pays") && ended.stdout.contains("A point of accuracy"),
        "{}",
        ended.stdout
    );
    assert!(ended.stdout.lines().all(|line| line.chars().count() <= 80), "{}", ended.stdout);
    assert!(std::fs::read_to_string(&page).expect("a page").contains("Cost against accuracy"));
}

#[test]
fn a_tradeoff_without_its_parts_says_so_in_one_line() {
    let (folder, base) = run_folder();
    let at = |name: &str| folder.path().join(name);
    let candidate = at("candidate").display().to_string();
    simulated(&base, "demo", true);
    simulated(&candidate, "demo", true);
    let eval = harness(&at("a"), 100, 50, true);
    let evals = ["--base-eval", &eval, "--candidate-eval", &eval];
    let (none, other) = (at("none").display().to_string(), at("other.json"));
    std::fs::write(&other, "{\"a\": 1}").expect("written");
    let other = other.display().to_string();
    for (flags, says) in [
        (&evals[..], "needs the price"),
        (&["--price", "20USD/h"], "an accuracy is missing"),
        (&["--price", "20USD/h", "--base-eval", &eval], "--candidate-eval"),
        (&["--price", "20USD/h", "--base-eval", &eval, "--candidate-eval", &none], "none"),
        (&["--price", "20USD/h", "--base-eval", &eval, "--candidate-eval", &other], "not a result of"),
        (&["--price", "20USD/h", "--quality", &other], "no results of plimsoll quality"),
        (&["--price", "2USD/gpu-hour", "--base-eval", &eval, "--candidate-eval", &eval], "--gpus"),
        (
            &["--price", "20USD/h", "--max-loss", "-1", "--base-eval", &eval, "--candidate-eval", &eval],
            "max-loss",
        ),
        (
            &["--price", "20USD/h", "--metric", "bleu", "--base-eval", &eval, "--candidate-eval", &eval],
            "bleu",
        ),
        (
            &[
                "--price",
                "2USD/h",
                "--candidate-price",
                "1EUR/h",
                "--base-eval",
                &eval,
                "--candidate-eval",
                &eval,
            ],
            "one currency",
        ),
    ] {
        let ended =
            plimsoll(&[&["tradeoff", &base, &candidate][..], flags, &["--despite-differences"]].concat());
        assert_eq!(ended.code, 2, "{flags:?}: {}", ended.stderr);
        assert!(ended.stderr.contains(says), "{flags:?}: {}", ended.stderr);
    }
    // At one offered rate and one price nothing can be told of the cost.
    let ended = plimsoll(
        &[&["tradeoff", &base, &candidate, "--price", "20USD/h"][..], &evals, &["--despite-differences"]]
            .concat(),
    );
    assert_eq!(ended.code, 3, "{}", ended.stderr);
    assert!(ended.stdout.contains("by design"), "{}", ended.stdout);
}
