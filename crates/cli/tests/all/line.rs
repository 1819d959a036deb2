//! The history of a baseline: its content, its output, and its state after a killed writer.

use std::fs;
use std::io::Write;
use std::path::PathBuf;

use serde_json::Value;
use tempfile::TempDir;

use crate::kit::{Ended, plimsoll_in};

/// A folder with a pinned run `old` and a run `new` of an engine whose steps take half as long again.
fn folder() -> TempDir {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let simulate = ["simulate", "--profile", "demo", "--rate", "20/s", "--for", "40s", "--osl", "4", "-q"];
    for (name, more) in [("old", &[][..]), ("new", &["--fault", "slow:factor=1.5"][..])] {
        let ended = plimsoll_in(folder.path(), &[&simulate[..], &["-o", name], more].concat());
        assert_eq!(ended.code, 0, "{}", ended.stderr);
    }
    assert_eq!(plimsoll_in(folder.path(), &["baseline", "set", "main", "old", "--label", "v1"]).code, 0);
    folder
}

fn file(folder: &TempDir) -> PathBuf {
    folder.path().join("plimsoll-baselines/main.history.jsonl")
}

fn history(folder: &TempDir, more: &[&str]) -> Ended {
    plimsoll_in(folder.path(), &[&["history", "main"][..], more].concat())
}

fn lines(folder: &TempDir) -> Vec<Value> {
    let text = fs::read_to_string(file(folder)).expect("written");
    text.lines().map(|line| serde_json::from_str(line).expect("an entry")).collect()
}

/// Appends `count` results similar to this one, each of a separate run and a per cent or two apart.
fn go_on(folder: &TempDir, like: &Value, count: usize) {
    let mut file = fs::OpenOptions::new().append(true).open(file(folder)).expect("there");
    for i in 0..count {
        let mut entry = like.clone();
        entry["id"] = format!("{}-{i}", like["id"].as_str().expect("an id")).into();
        for metric in entry["metrics"].as_array_mut().expect("metrics") {
            let off = 1.0 + 0.01 * ((i * 7) % 5) as f64;
            for key in ["value", "lower", "upper"] {
                metric[key] = (metric[key].as_f64().expect("finite") * off).into();
            }
        }
        writeln!(file, "{entry}").expect("appended");
    }
}

#[test]
fn a_line_says_since_which_version_a_metric_is_worse() {
    let folder = folder();
    let ended = history(&folder, &[]);
    assert_eq!((ended.code, ended.stderr.contains("no results yet")), (2, true), "{}", ended.stderr);
    // The first result brings the baseline's own with it.
    let ended = history(&folder, &["--add", "new", "--label", "v2"]);
    assert_eq!(ended.code, 0, "{}{}", ended.stdout, ended.stderr);
    assert!(
        ended.stdout.contains("it takes 15 results, with 3 after it, and there are 2"),
        "{}",
        ended.stdout
    );
    let [old, new] = &lines(&folder)[..] else { panic!("two results") };
    assert_eq!((&old["version"], &new["version"]), (&"v1".into(), &"v2".into()));
    assert_eq!(old["load"], "open loop, 20/s, 130 in, 4 out");
    // A repeated run does not add a result.
    assert!(history(&folder, &["--add", "new"]).stderr.contains("counts once"));
    assert_eq!(lines(&folder).len(), 2);

    // Twelve nights of the old version, one spike, then six of the new one.
    fs::write(file(&folder), format!("{old}\n")).expect("written");
    go_on(&folder, old, 12);
    let quiet = history(&folder, &[]);
    assert_eq!(quiet.code, 0, "{}", quiet.stdout);
    go_on(&folder, new, 1);
    let spiked = history(&folder, &[]);
    assert_eq!((spiked.code, spiked.stdout.contains("Worse")), (0, false), "{}", spiked.stdout);
    let next = Value::Object(
        new.as_object()
            .expect("an entry")
            .clone()
            .into_iter()
            .map(|(key, value)| {
                let value = if key == "id" { "next".into() } else { value };
                (key, value)
            })
            .collect(),
    );
    go_on(&folder, &next, 6);
    let worse = history(&folder, &[]);
    assert_eq!(worse.code, 1, "{}", worse.stdout);
    assert!(worse.stdout.contains("Worse since v2: ttft p50 +"), "{}", worse.stdout);
    assert!(worse.stdout.contains("v2, after v1"), "{}", worse.stdout);
    let json = history(&folder, &["--format", "json"]).json();
    // Thirteen of the old, so that the first of the new has index 13.
    let change = &json["courses"][0]["changes"][0];
    assert_eq!((&json["courses"][0]["metric"], &change["at"]), (&"ttft p50".into(), &13.into()), "{json}");
    let ratio = change["ratio"].as_f64().expect("a ratio");
    let value = |entry: &Value| entry["metrics"][0]["value"].as_f64().expect("finite");
    let truth = value(new) / value(old);
    // The nights differ by up to 4 %.
    assert!(truth > 1.05 && (ratio / truth - 1.0).abs() < 0.03, "{ratio} is not {truth}");

    // Pinning the new version accepts its change.
    assert_eq!(plimsoll_in(folder.path(), &["baseline", "set", "main", "new", "--replace"]).code, 0);
    let mut all = lines(&folder);
    all[13]["id"] = new["id"].clone();
    fs::write(file(&folder), all.iter().map(|entry| format!("{entry}\n")).collect::<String>())
        .expect("written");
    let accepted = history(&folder, &[]);
    assert_eq!(
        (accepted.code, accepted.stdout.contains("Nothing has got worse")),
        (0, true),
        "{}",
        accepted.stdout
    );
}

#[test]
fn a_killed_writer_costs_its_own_line_only() {
    let folder = folder();
    assert_eq!(history(&folder, &["--add", "old"]).code, 0);
    let whole = fs::read(file(&folder)).expect("written");
    // Cut at every tenth byte of a second line, as a kill or a full disk would.
    for cut in (1..whole.len()).step_by(10) {
        fs::write(file(&folder), [&whole[..], &whole[..cut]].concat()).expect("written");
        let ended = history(&folder, &["--format", "json"]);
        assert_eq!(ended.code, 0, "{}", ended.stderr);
        assert_eq!(ended.json()["entries"].as_array().map(Vec::len), Some(1));
        let says = cut < whole.len() - 1;
        assert_eq!(ended.stderr.contains("line 2 was cut off"), says, "cut at {cut}: {}", ended.stderr);
        if cut > 30 {
            break;
        }
    }
    let ended = history(&folder, &["--add", "new", "--format", "json"]);
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    assert_eq!(ended.json()["entries"].as_array().map(Vec::len), Some(2));
    let text = fs::read_to_string(file(&folder)).expect("written");
    assert_eq!(text.lines().count(), 3, "{text}");
    // Foreign lines in the file are named and skipped.
    fs::write(file(&folder), format!("{text}{{\"schema\": 1, \"colour\": 3}}\nhello\n")).expect("written");
    let ended = history(&folder, &[]);
    assert!(
        ended.stderr.contains("line 4 is no result") && ended.stderr.contains("line 5"),
        "{}",
        ended.stderr
    );
    let wrong = plimsoll_in(folder.path(), &["history", "mian"]);
    assert_eq!((wrong.code, wrong.stderr.contains("did you mean main?")), (2, true), "{}", wrong.stderr);
}
