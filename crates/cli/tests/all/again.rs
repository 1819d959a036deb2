//! A run has a name, and its schedule can be sent again: the same arrivals, sizes and prompts, row by row.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::path::Path;

use plimsoll_model::At;
use plimsoll_store::open;
use serde_json::Value;
use tempfile::TempDir;

use crate::kit::{Ended, Engine, plimsoll_in};

/// The schedule of a row, without the start of its level.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Asked {
    level: u32,
    request: u64,
    due_ns: i64,
    lengths: (u32, u32),
    of: (Option<u64>, u16, u16),
    blocks: Vec<u64>,
}

/// First attempts of a run in the order of the schedule.
fn asked(run: &Path) -> Vec<Asked> {
    let run = open(run).expect("a run");
    let starts: HashMap<u32, At> = run.manifest.levels.iter().map(|level| (level.id, level.start)).collect();
    let first = run.attempts.into_iter().filter(|row| row.attempt == 0);
    let mut rows: Vec<Asked> = first
        .map(|row| Asked {
            level: row.level,
            request: row.request,
            due_ns: (row.due - starts[&row.level]).0,
            lengths: (row.asked_prompt, row.asked_output),
            of: (row.session, row.turn, row.class),
            blocks: row.prompt_blocks,
        })
        .collect();
    rows.sort();
    rows
}

fn done(ended: Ended) -> Ended {
    assert!(ended.code == 0 || ended.code == 4, "{}", ended.stderr);
    ended
}

/// Runs in this folder; gives the manifest.
fn measured(folder: &TempDir, args: &[&str], name: &str) -> Value {
    done(plimsoll_in(folder.path(), &[args, &["--format", "json", "-q", "-o", name]].concat())).json()
}

fn refused(folder: &TempDir, args: &[&str], code: i32, says: &str) {
    let ended = plimsoll_in(folder.path(), args);
    assert_eq!(ended.code, code, "{args:?}: {}", ended.stderr);
    assert!(ended.stderr.contains(says), "{args:?}: {}", ended.stderr);
    assert_eq!(ended.stderr.trim().lines().count(), 1, "one line: {}", ended.stderr);
}

#[test]
fn the_same_schedule_reaches_another_target_row_by_row() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (one, two) = (Engine::start("canned"), Engine::start("demo"));
    // Bursty arrivals, drawn lengths, shared prefixes, a warm-up: everything that is drawn.
    let args = ["run", &one.url, "--rate", "60/s", "--for", "1s", "--arrivals", "gamma:2", "--warm-up", "3"];
    let sizes = ["--isl", "lognormal:64,0.7", "--osl", "uniform:2,9", "--prefix", "0.5,3", "--retries", "1"];
    let first = measured(&folder, &[&args[..], &sizes].concat(), "one");
    let again = measured(&folder, &["rerun", "one", "--target", &two.url], "two");
    assert_eq!(again["kind"], "rerun");
    assert_eq!(again["repeats"]["id"], first["id"]);
    assert_eq!(again["repeats"]["url"], first["target"]["url"]);
    assert_eq!(again["target"]["url"], two.url.as_str());
    assert_eq!((&again["seed"], &again["nonce"]), (&first["seed"], &first["nonce"]));
    assert_eq!(again["scenario"]["client"], first["scenario"]["client"]);
    assert_eq!(again["scenario"]["prompts"], first["scenario"]["prompts"], "no new count of tokens per word");
    let (sent, sent_again) = (asked(&folder.path().join("one")), asked(&folder.path().join("two")));
    assert!(sent.len() > 30, "{} rows", sent.len());
    assert!(sent.iter().any(|row| row.blocks.len() > 3), "prompts have named blocks");
    // The warm-up is a closed loop: its requests are equal, and due when a slot is free.
    let open = |rows: &[Asked]| rows.iter().filter(|row| row.level == 1).cloned().collect::<Vec<_>>();
    assert_eq!(open(&sent), open(&sent_again));
    let timeless =
        |rows: &[Asked]| rows.iter().map(|row| Asked { due_ns: 0, ..row.clone() }).collect::<Vec<_>>();
    assert_eq!(timeless(&sent), timeless(&sent_again));
    // The repetition is repeated too, by the command in its manifest.
    let command = again["reproduce"].as_str().expect("a command").to_owned();
    let words: Vec<&str> = command.split(' ').skip(1).collect();
    let third = measured(&folder, &words, "three");
    assert_eq!(third["levels"][1]["schedule_hash"], first["levels"][1]["schedule_hash"]);
    // Another run of the same command has its own nonce, and none of the names of this one.
    let other = measured(&folder, &[&args[..], &sizes].concat(), "other");
    assert_ne!(other["nonce"], first["nonce"]);
    let names = |rows: &[Asked]| rows.iter().flat_map(|row| row.blocks.clone()).collect::<HashSet<_>>();
    assert!(names(&asked(&folder.path().join("other"))).is_disjoint(&names(&sent)));
}

#[test]
fn a_sweep_s_loads_are_sent_again_in_another_world() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let search = ["simulate", "--profile", "demo", "--sweep", "--time", "60s", "--traffic", "steady,burst"];
    let first = measured(&folder, &search, "one");
    let again = measured(&folder, &["rerun", "one", "--replicas", "2"], "two");
    let hashes = |run: &Value| {
        let levels = run["levels"].as_array().expect("levels").clone();
        levels
            .iter()
            .map(|level| level["schedule_hash"].as_str().unwrap_or("").to_owned())
            .collect::<Vec<_>>()
    };
    assert!(hashes(&first).len() > 5);
    assert_eq!(hashes(&first), hashes(&again));
    let (one, two) = (asked(&folder.path().join("one")), asked(&folder.path().join("two")));
    let is_open: Vec<bool> = first["levels"]
        .as_array()
        .expect("levels")
        .iter()
        .map(|level| level["load"]["mode"] == "open")
        .collect();
    let open =
        |rows: Vec<Asked>| rows.into_iter().filter(|row| is_open[row.level as usize]).collect::<Vec<_>>();
    let (one, two) = (open(one), open(two));
    assert!(one.len() > 1000 && one == two, "{} and {} rows", one.len(), two.len());
    // The limits are recomputed, because two replicas carry a load that one did not.
    assert_eq!(again["findings"]["lines"].as_array().map(Vec::len), Some(2));
    assert_eq!(again["scenario"]["world"]["fleet"]["replicas"], 2);
}

#[test]
fn what_can_t_be_repeated_is_said() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let engine = Engine::start("canned");
    let text = |last: &str| {
        let words = |i: usize| vec![format!("w{i}"); 40].join(" ");
        let lines: Vec<String> =
            (0..20).map(|i| format!("{{\"prompt\": \"{} {last}\"}}\n", words(i))).collect();
        lines.concat()
    };
    let prompts = folder.path().join("prompts.jsonl");
    fs::write(&prompts, text("end")).expect("written");
    let file = prompts.to_str().expect("utf-8");
    let args = ["run", &engine.url, "--rate", "40/s", "--for", "1s", "--prompts", file, "--osl", "2"];
    measured(&folder, &args, "run");
    measured(&folder, &["rerun", "run", "--target", &engine.url], "same");
    assert_eq!(asked(&folder.path().join("run")), asked(&folder.path().join("same")));
    fs::write(&prompts, text("END")).expect("written");
    refused(&folder, &["rerun", "run", "--target", &engine.url], 2, "other text now than was sent");
    fs::remove_file(&prompts).expect("removed");
    refused(&folder, &["rerun", "run", "--target", &engine.url], 2, "prompts.jsonl");
    fs::write(&prompts, text("end")).expect("written");
    refused(&folder, &["rerun", "run"], 2, "--target URL: missing");
    refused(&folder, &["rerun", "rum", "--target", &engine.url], 2, "neither a run folder nor a baseline");
    refused(&folder, &["rerun", "run", "--target", &engine.url, "--replicas", "2"], 2, "no flags of World");
    let cut = ["run", &engine.url, "--rate", "200/s", "--for", "1s", "--osl", "2", "--max-requests", "50"];
    assert_eq!(measured(&folder, &cut, "cut")["progress"]["state"], "partial");
    refused(&folder, &["rerun", "cut", "--target", &engine.url], 2, "is partial (a ceiling was reached)");
}

#[test]
fn the_first_target_s_key_is_not_sent_to_another_host() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (one, two) = (Engine::start("canned"), Engine::start("canned"));
    let key = folder.path().join("key");
    fs::write(&key, "secret-of-one").expect("written");
    let key = key.to_str().expect("utf-8");
    let args = [
        "run",
        &one.url,
        "--rate",
        "20/s",
        "--for",
        "1s",
        "--osl",
        "2",
        "--key-file",
        key,
        "-H",
        "x-team: a",
    ];
    measured(&folder, &args, "one");
    let same = measured(&folder, &["rerun", "one", "--target", &one.url], "same");
    assert_eq!(same["scenario"]["target"]["key_file"], key);
    let ended = done(plimsoll_in(
        folder.path(),
        &["rerun", "one", "--target", &two.url, "--format", "json", "-q", "-o", "two"],
    ));
    assert!(
        ended.stderr.contains("another host: key-file of the first target is not sent"),
        "{}",
        ended.stderr
    );
    let two = ended.json();
    assert_eq!(two["scenario"]["target"]["key_file"], Value::Null);
    assert_eq!(two["scenario"]["target"]["headers"]["x-team"], "a");
}

#[test]
fn a_baseline_is_a_run_that_is_still_there_and_still_the_same() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let simulate = ["simulate", "--profile", "mm8", "--rate", "400/s", "--osl", "1", "--for"];
    let run = |time: &str, name: &str| measured(&folder, &[&simulate[..], &[time]].concat(), name);
    let first = run("20s", "runs/first");
    run("20s", "runs/second");
    let set = |more: &[&str]| plimsoll_in(folder.path(), &[&["baseline", "set"][..], more].concat());
    let ended = set(&["main", "runs/first", "--label", "v1.2"]);
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    let path = folder.path().join("plimsoll-baselines/main.json");
    let pinned: Value = serde_json::from_slice(&fs::read(&path).expect("written")).expect("JSON");
    // The path is relative to the file's folder, so that a clone finds the run.
    assert_eq!(pinned["run"], "runs/first");
    assert_eq!((&pinned["id"], &pinned["version"]), (&first["id"], &"v1.2".into()));
    assert_eq!(
        pinned["load"][0].as_str().map(|load| load.starts_with("open loop, 400/s")),
        Some(true),
        "{pinned}"
    );
    let ttft = &first["findings"]["levels"][0]["summary"]["latency"]["ttft"]["p50"]["value"];
    let shown = plimsoll_report::figure::duration_ns(ttft.as_f64().expect("shown") * 1e9);
    let figure = pinned["figures"][0].clone();
    assert_eq!(figure["what"], "ttft p50");
    assert!(figure["value"].as_str().is_some_and(|text| text.starts_with(&shown)), "{figure} is not {shown}");
    // A baseline's name is accepted in place of a run.
    let again = measured(&folder, &["rerun", "main", "--replicas", "2"], "again");
    assert_eq!(again["repeats"]["id"], first["id"]);
    let judged = plimsoll_in(folder.path(), &["diagnose", "again", "--baseline", "main", "--format", "json"]);
    assert!([0, 1, 3].contains(&judged.code), "{}", judged.stderr);
    assert!(
        judged.json()["changed"]["same"].as_array().is_some_and(|same| !same.is_empty()),
        "{}",
        judged.stdout
    );
    refused(&folder, &["diagnose", "again", "--baseline", "mian"], 2, "did you mean main?");
    // A baseline keeps its run unless --replace is given.
    refused(&folder, &["baseline", "set", "main", "runs/second"], 2, "--replace overwrites it");
    assert_eq!(set(&["other", "runs/second"]).code, 0);
    refused(&folder, &["rerun", "mian"], 2, "did you mean main?");
    refused(&folder, &["baseline", "rm", "mian"], 2, "did you mean main?");
    refused(&folder, &["baseline", "set", "a/b", "runs/first"], 2, "a baseline's name is");
    refused(&folder, &["baseline", "set", "x", "runs/none"], 2, "runs/none");

    // A row changed, a run in another's place, no run at all: never used in silence.
    let rows = folder.path().join("runs/first/requests.parquet");
    let kept = fs::read(&rows).expect("readable");
    let mut changed = kept.clone();
    changed[100] ^= 1;
    fs::write(&rows, &changed).expect("written");
    refused(&folder, &["rerun", "main"], 5, "runs/first was changed since it was pinned");
    fs::write(&rows, &kept).expect("written");
    assert!(plimsoll_in(folder.path(), &["baseline", "list"]).stdout.contains("as pinned"));
    fs::rename(folder.path().join("runs/first"), folder.path().join("runs/moved")).expect("moved");
    refused(&folder, &["rerun", "main"], 5, "its run runs/first is not here");
    fs::rename(folder.path().join("runs/second"), folder.path().join("runs/first")).expect("moved");
    refused(&folder, &["rerun", "main"], 5, "runs/first now contains another run");
    let list = plimsoll_in(folder.path(), &["baseline", "list", "--format", "json"]).json();
    assert_eq!(list.as_array().map(Vec::len), Some(2));
    assert!(list[0]["state"].as_str().is_some_and(|state| state.contains("another run")), "{list}");
    assert_eq!(plimsoll_in(folder.path(), &["baseline", "rm", "main"]).code, 0);
    assert!(!path.exists());
}

#[test]
fn a_run_that_can_t_be_trusted_is_no_baseline() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let simulate = ["simulate", "--profile", "mm8", "--rate", "400/s", "--osl", "1"];
    measured(
        &folder,
        &[&simulate[..], &["--for", "20s", "--fault", "error:share=1,status=500"]].concat(),
        "failed",
    );
    refused(&folder, &["baseline", "set", "main", "failed"], 2, "not a valid measurement (0 of");
    measured(&folder, &[&simulate[..], &["--for", "20ms"]].concat(), "short");
    refused(&folder, &["baseline", "set", "main", "short"], 2, "has no percentile to compare with");
    measured(&folder, &[&simulate[..], &["--for", "20s"]].concat(), "bad");
    // The marker of a writer that died: the manifest says so.
    let manifest = folder.path().join("bad/run.json");
    let text = fs::read_to_string(&manifest).expect("readable");
    let mut value: Value = serde_json::from_str(&text).expect("JSON");
    value["progress"] = serde_json::json!({"state": "partial", "why": "stopped by the user"});
    fs::write(&manifest, value.to_string()).expect("written");
    refused(&folder, &["baseline", "set", "main", "bad"], 2, "is partial (stopped by the user)");
}

/// A load with `--until` ends early but complete: every arrival until then has a row, and none of the later ones counts as missing.
#[test]
fn a_load_ends_once_its_figure_is_known() {
    let engine = Engine::start("demo");
    let folder = tempfile::tempdir().expect("a folder");
    let until = |figure: &str, longest: &str, run: &str| {
        let args = ["run", &engine.url, "--rate", "100/s", "--for", longest, "--isl", "32", "--osl", "4"];
        plimsoll_in(
            folder.path(),
            &[&args[..], &["--until", figure, "-o", run, "--format", "json", "-q"]].concat(),
        )
    };
    let ended = done(until("e2e p50 ±20%", "60s", "known"));
    assert!(ended.stderr.contains("--until e2e p50 ±20%: known to ±"), "{}", ended.stderr);
    let run = open(&folder.path().join("known")).expect("a run");
    let level = run.manifest.levels.last().expect("a level");
    assert_eq!(level.ended_by, plimsoll_model::EndedBy::Known);
    assert!((level.stop - level.start).as_secs_f64() < 40.0, "{level:?}");
    let rows = run.attempts.iter().filter(|row| row.level == level.id).count() as u64;
    assert_eq!(rows, level.arrivals);
    let finding = &run.manifest.findings.as_ref().expect("findings")["levels"][0];
    let named = |name: &str| {
        finding["validity"]["reasons"].as_array().into_iter().flatten().any(|check| check["check"] == name)
    };
    assert!(!named("never_sent") && !named("rows"), "{finding:#}");
    let short = until("e2e p99 ±0.1%", "1s", "short");
    assert!(matches!(short.code, 3 | 4), "{}", short.stderr);
    assert!(short.stderr.contains("when the time was over"), "{}", short.stderr);
    let refused = until("e2e p98 ±1%", "1s", "none");
    assert_eq!(refused.code, 2, "{}", refused.stderr);
}
