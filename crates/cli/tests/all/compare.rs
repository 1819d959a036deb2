//! Two runs compared from the outside: exit codes, refusals in one line, and the printed text.

use tempfile::TempDir;

use crate::kit::{Ended, plimsoll, run_folder};

/// Returns a queue of eight exponential servers, simulated for `time` at 70 % of the first queue's capacity.
fn simulated(mean_ms: f64, time: &str, seed: &str) -> (TempDir, String) {
    let (folder, run) = run_folder();
    let profile = folder.path().join("profile.yaml");
    let text = format!(
        "name: q8\nmode: {{kind: queue, servers: 8, service: {{law: exponential, mean_ms: {mean_ms}}}}}\n"
    );
    std::fs::write(&profile, text).expect("written");
    let profile = profile.to_str().expect("utf-8");
    let args = ["simulate", "--profile", profile, "--rate", "560/s", "--osl", "1", "-q", "-o", &run];
    let ended = plimsoll(&[&args[..], &["--for", time, "--seed", seed]].concat());
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    (folder, run)
}

fn compare(base: &str, candidate: &str, more: &[&str]) -> Ended {
    plimsoll(&[&["compare", base, candidate][..], more].concat())
}

#[test]
fn a_regression_an_improvement_and_no_change_have_their_codes() {
    let ((_a, fast), (_b, slow), (_c, same)) =
        (simulated(10.0, "15s", "4"), simulated(11.0, "15s", "4"), simulated(10.001, "15s", "4"));
    let worse = compare(&fast, &slow, &["--format", "json"]);
    assert_eq!(worse.code, 1, "{}", worse.stderr);
    let worse = worse.json();
    assert_eq!((&worse["verdict"], &worse["design"]), (&"regressed".into(), &"paired".into()));
    // Every request takes a tenth longer at least; the stage that does is named.
    let rows = worse["groups"][0]["rows"].as_array().expect("rows");
    let typical = rows.iter().find(|row| row["metric"] == "e2e" && row["statistic"] == "per request");
    let effect = &typical.expect("paired")["effect"];
    assert!((effect["value"].as_f64().expect("a ratio") - 1.1).abs() < 0.01, "{effect}");

    let better = compare(&slow, &fast, &[]);
    assert_eq!(better.code, 0, "{}", better.stdout);
    assert!(
        better.stdout.contains("Improved: ") && better.stdout.contains("nothing got worse"),
        "{}",
        better.stdout
    );

    let none = compare(&fast, &same, &[]);
    assert_eq!(none.code, 0, "{}", none.stdout);
    assert!(
        none.stdout.contains("No change: every figure of the family stays within its margin."),
        "{}",
        none.stdout
    );
    // Wide margins accept the regression.
    assert_eq!(compare(&fast, &slow, &["--margin", "p50=50%,p95=50%", "--margin", "p99=50%"]).code, 0);
}

/// Both limits of a queue scale only with its service time: the onset is a ratio of percentiles, the stability limit servers over mean.
#[test]
fn the_lines_of_two_sweeps_move_by_the_service_time() {
    let swept = |mean_ms: f64| {
        let (folder, run) = run_folder();
        let profile = folder.path().join("profile.yaml");
        let text = format!(
            "name: q8\nmode: {{kind: queue, servers: 8, service: {{law: exponential, mean_ms: {mean_ms}}}}}\n"
        );
        std::fs::write(&profile, text).expect("written");
        let profile = profile.to_str().expect("utf-8");
        let args = ["simulate", "--sweep", "--time", "4m", "--profile", profile, "--osl", "1", "--seed", "1"];
        plimsoll(&[&args[..], &["-q", "-o", &run]].concat());
        (folder, run)
    };
    let ((_a, base), (_b, slower)) = (swept(10.0), swept(13.0));
    let ended = compare(&base, &slower, &["--format", "json"]);
    assert_eq!(ended.code, 1, "{}", ended.stderr);
    let json = ended.json();
    let rows = json["lines"].as_array().expect("lines");
    for line in ["onset", "stability limit"] {
        let row = rows.iter().find(|row| row["metric"].as_str().is_some_and(|name| name.starts_with(line)));
        let effect = &row.unwrap_or_else(|| panic!("{line}: {json}"))["effect"];
        let bound = |end: &str| effect[end].as_f64().expect("a bound");
        let truth = 10.0 / 13.0;
        assert!(bound("lower") < truth && truth < bound("upper") && bound("upper") < 1.0, "{line}: {effect}");
    }
}

#[test]
fn another_experiment_is_refused_in_one_line() {
    let ((_a, one), (_b, other)) = (simulated(10.0, "15s", "4"), simulated(10.0, "15s", "5"));
    let refused = compare(&one, &other, &[]);
    assert_eq!((refused.code, refused.stdout.as_str()), (2, ""));
    assert_eq!(refused.stderr.lines().count(), 1, "{}", refused.stderr);
    for word in ["not the same experiment", "seed 4 against seed 5", "--despite-differences"] {
        assert!(refused.stderr.contains(word), "{word}: {}", refused.stderr);
    }
    let told = compare(&one, &other, &["--despite-differences"]);
    assert!(told.stdout.contains("unpaired, at the base's mix"), "{}", told.stdout);
    assert!([0, 3].contains(&told.code), "{}", told.stdout);
}

#[test]
fn too_few_requests_are_inconclusive_and_say_so() {
    let ((_a, one), (_b, other)) = (simulated(10.0, "2s", "4"), simulated(10.02, "2s", "4"));
    let open = compare(&one, &other, &["--margin", "p99=0.1%"]);
    assert_eq!(open.code, 3, "{}", open.stdout);
    assert!(open.stdout.contains("Inconclusive: "), "{}", open.stdout);
}

#[test]
fn wrong_input_is_one_line() {
    let (_a, one) = simulated(10.0, "2s", "4");
    let nowhere = format!("{one}/nothing");
    for (args, word) in [
        (vec![one.as_str(), nowhere.as_str()], "nothing"),
        (vec![one.as_str(), one.as_str()], "one run"),
        (vec![one.as_str(), "mian"], "neither a run folder nor a baseline"),
        (vec![one.as_str()], "CANDIDATE"),
        (vec!["--interleave", "http://a", "http://b", "--rate", "5/s"], "plimsoll interleave URL_A URL_B"),
        (vec![one.as_str(), nowhere.as_str(), "--rate", "5/s"], "'--rate'"),
        (vec![one.as_str(), nowhere.as_str(), "--margin", "-20%"], "--margin -20%: wants WHAT=SHARE"),
        (vec![one.as_str(), nowhere.as_str(), "--margin", "p98=3%"], "p98 is none of"),
        (vec![one.as_str(), nowhere.as_str(), "--margin", "p99=ten"], "for example p99=10%"),
    ] {
        let ended = plimsoll(&[vec!["compare"], args.clone()].concat());
        assert_eq!((ended.code, ended.stderr.lines().count()), (2, 1), "{args:?}: {}", ended.stderr);
        assert!(ended.stderr.contains(word), "{args:?}: {}", ended.stderr);
    }
}
