//! A finished run under a watch: its verdicts against a gate's, and its alerts against the fault in the run.

use std::path::Path;

use serde_json::Value;

use crate::kit::{plimsoll, plimsoll_with};

/// A fault in front of the engine.
const REFUSED: &str = "error:share=0.05,status=500";

/// A run in virtual time, with more flags.
fn run(folder: &Path, name: &str, flags: &[&str]) -> String {
    let dir = folder.join(name).display().to_string();
    let fixed = ["simulate", "--profile", "demo", "--isl", "64", "--osl", "4", "-o", &dir, "-q"];
    let ended = plimsoll(&[&fixed, flags].concat());
    assert!(Path::new(&dir).join("run.json").exists(), "{}", ended.stderr);
    dir
}

/// A budget of these rows, each `metric,percentile,limit` and perhaps `,margin`.
fn budget(folder: &Path, name: &str, rows: &[String]) -> String {
    let row = |(place, row): (usize, &String)| {
        let mut parts = row.split(',');
        let mut part = || parts.next().expect("three parts");
        let (metric, p, max) = (part(), part(), part());
        let p = if p.is_empty() { String::new() } else { format!("p: {p}, ") };
        let margin = parts.next().map_or(String::new(), |margin| format!(", margin: {margin}"));
        format!("  - {{id: r{place}, metric: {metric}, {p}max: {max}{margin}}}\n")
    };
    let rows: String = rows.iter().enumerate().map(row).collect();
    let path = folder.join(name);
    std::fs::write(&path, format!("version: 1\nname: chat\nbudgets:\n{rows}")).expect("written");
    path.display().to_string()
}

/// Returns rows' verdicts by id: true = broken, false = passed; inconclusive ones are left out.
fn decided(rows: &Value, key: &str, words: [&str; 2]) -> Vec<(String, bool)> {
    let rows = rows.as_array().expect("rows").iter();
    let one = |row: &Value| {
        let verdict = words.iter().position(|word| row[key] == *word)?;
        Some((row["id"].as_str().expect("an id").to_owned(), verdict == 1))
    };
    rows.filter_map(one).collect()
}

/// Every row that both decide they decide alike, from quiet to overloaded and failing, by requests and by pages.
#[test]
fn a_replay_and_a_gate_never_contradict_each_other() {
    let folder = tempfile::tempdir().expect("a folder");
    let ceilings = |metric: &str, p: &str, limits: &[f64]| -> Vec<String> {
        limits.iter().map(|limit| format!("{metric},{p},{limit}ms")).collect()
    };
    let rows = [
        ceilings("ttft", "99", &[3.0, 5.0, 5.8, 6.0, 10.0, 40.0, 250.0]),
        ceilings("e2e", "95", &[5.0, 7.0, 7.5, 30.0, 300.0, 1000.0]),
        ceilings("tpot", "90", &[0.2, 0.5, 1.0, 10.0, 25.0]),
        vec!["error_rate,,0.1%".into(), "error_rate,,3%".into(), "error_rate,,20%".into()],
    ]
    .concat();
    let budget = budget(folder.path(), "budget.yaml", &rows);
    let mut agreed = [[0; 2]; 2];
    let runs: [&[&str]; 4] = [
        &["--rate", "40/s", "--for", "120s"],
        &["--rate", "700/s", "--for", "20s", "--seed", "2"],
        &["--rate", "60/s", "--for", "120s", "--fault", "slow:factor=30,at=0s", "--seed", "3"],
        &["--rate", "40/s", "--for", "120s", "--fault", REFUSED, "--seed", "4"],
    ];
    for (place, flags) in runs.iter().enumerate() {
        let dir = run(folder.path(), &place.to_string(), flags);
        let gate = plimsoll(&["gate", &dir, "-b", &budget, "--format", "json"]).json();
        let gate = decided(&gate["rows"], "held", ["pass", "fail"]);
        let args = ["watch", "test", "--replay", &dir, "-b", &budget, "--every", "1s", "--format", "json"];
        let found = plimsoll(&args).json();
        for (source, agreed) in ["requests", "pages"].into_iter().zip(&mut agreed) {
            for (id, is_broken) in decided(&found[source]["rows"], "state", ["holds", "broken"]) {
                let Some((_, fails)) = gate.iter().find(|(of, _)| *of == id) else { continue };
                // These requests are refused before the server counts them, so its page passes from its own view.
                if source == "pages" && !is_broken && flags.contains(&REFUSED) {
                    continue;
                }
                assert_eq!(is_broken, *fails, "{flags:?} {source} {id}: {found:#}");
                agreed[usize::from(is_broken)] += 1;
            }
        }
    }
    let [requests, pages] = agreed;
    assert!(requests.iter().all(|rows| *rows >= 15), "too few to compare: {agreed:?}");
    assert!(pages.iter().all(|rows| *rows >= 5), "too few to compare: {agreed:?}");
}

/// A ceiling with a margin is the ceiling minus the margin: for a gate, a replay of requests, a replay of pages, and `watch lint`.
#[test]
fn a_margin_is_kept_free_of_live_traffic_too() {
    let folder = tempfile::tempdir().expect("a folder");
    let dir = run(folder.path(), "run", &["--rate", "40/s", "--for", "120s", "--fault", REFUSED]);
    // Each would pass without its margin, and is broken with it.
    let kept = ["ttft,90,1s,997ms", "e2e,90,10s,99.95%", "error_rate,,20%,90%"].map(String::from);
    let plain = ["ttft,90,3ms", "e2e,90,5ms", "error_rate,,2%"].map(String::from);
    let written = ["ttft,90,1s", "e2e,90,10s", "error_rate,,20%"].map(String::from);
    let verdicts = |name: &str, rows: &[String]| {
        let budget = budget(folder.path(), name, rows);
        let gate = plimsoll(&["gate", &dir, "-b", &budget, "--format", "json"]).json();
        let replay = ["watch", "test", "--replay", &dir, "-b", &budget, "--every", "1s", "--format", "json"];
        let found = plimsoll(&replay).json();
        [
            decided(&gate["rows"], "held", ["pass", "fail"]),
            decided(&found["requests"]["rows"], "state", ["holds", "broken"]),
            decided(&found["pages"]["rows"], "state", ["holds", "broken"]),
        ]
    };
    let (with, without) = (verdicts("kept.yaml", &kept), verdicts("written.yaml", &written));
    assert_eq!(with, verdicts("plain.yaml", &plain));
    for (with, without) in with.iter().zip(&without).take(2) {
        assert!(with.len() == 3 && with.iter().all(|(_, is_broken)| *is_broken), "{with:?}");
        assert!(without.len() == 3 && without.iter().all(|(_, is_broken)| !is_broken), "{without:?}");
    }
    assert_ne!(with[2], without[2], "a page's rows");
}

/// A fault from 60 s to 150 s gives one alert a minute after its start, resolved after its end.
/// There is no alert without the fault.
#[test]
fn what_would_have_alerted_is_the_fault_alone() {
    let folder = tempfile::tempdir().expect("a folder");
    let budget = budget(folder.path(), "budget.yaml", &["ttft,99,50ms".into(), "error_rate,,1%".into()]);
    let watch = folder.path().join("watch.yaml");
    // The sources do not answer and the receivers' keys do not exist, because a replay contacts neither.
    let text = format!(
        "sources: [{{url: \"http://127.0.0.1:9/metrics\"}}]\nbudget: {budget}\nsinks: {{webhook: {{url_env: NOT_THERE}}}}\n"
    );
    std::fs::write(&watch, text).expect("written");
    let watch = watch.display().to_string();

    let calm = run(folder.path(), "calm", &["--rate", "40/s", "--for", "300s"]);
    let ended = plimsoll(&["watch", "test", &watch, "--replay", &calm]);
    assert_eq!(ended.code, 0, "{}{}", ended.stdout, ended.stderr);
    assert_eq!(ended.stdout.matches("no alert would have fired").count(), 2, "{}", ended.stdout);

    let slow = ["--rate", "40/s", "--for", "300s", "--fault", "slow:factor=30,at=60s,for=90s"];
    let slow = run(folder.path(), "slow", &slow);
    let ended = plimsoll(&["watch", "test", &watch, "--replay", &slow, "--format", "json"]);
    assert_eq!(ended.code, 1, "{}", ended.stderr);
    for source in ["requests", "pages"] {
        let found = &ended.json()[source];
        let alerts = found["alerts"].as_array().expect("alerts");
        let named: Vec<&Value> = alerts.iter().map(|alert| &alert["about"]).collect();
        assert_eq!(named, ["r0"], "{found:#}");
        let at = |key: &str| alerts[0][key].as_f64().expect("an instant");
        assert!((55.0..=70.0).contains(&at("since_s")), "{found:#}");
        assert!((120.0..=135.0).contains(&at("fired_s")), "{found:#}");
        assert!((155.0..=300.0).contains(&at("resolved_s")), "{found:#}");
    }
}

#[test]
fn a_replay_that_cannot_be_is_refused_in_one_line() {
    let folder = tempfile::tempdir().expect("a folder");
    let budget = budget(folder.path(), "budget.yaml", &["ttft,99,50ms".into()]);
    for (args, code, word) in [
        (&["watch", "test", "-b", &budget][..], 2, "--replay"),
        (&["watch", "http://127.0.0.1:9", "-b", &budget, "--replay", "run"], 2, "watch test"),
        (&["watch", "test", "http://127.0.0.1:9", "-b", &budget, "--replay", "run"], 2, "watch file"),
        (&["watch", "test", "--replay", "run"], 2, "no budget"),
        (&["watch", "test", "-b", &budget, "--replay", "nowhere"], 2, "nowhere"),
    ] {
        let ended = plimsoll_with(args, &[]);
        assert_eq!(ended.code, code, "{args:?}: {}", ended.stderr);
        let said = &ended.stderr;
        assert!(said.contains(word) && said.lines().count() == 1, "{args:?}: {said}");
    }
}
