//! Replicas that a gateway's file adds and takes away under load. The truth is what the engines wrote down of themselves.

use std::path::Path;

use serde_json::Value;

use crate::gateway::Running;
use crate::kit::{Engine, plimsoll, run_folder, until};

/// An engine that writes its truth there.
fn engine(log: &Path) -> Engine {
    Engine::start_with("demo", &["--truth-log", log.to_str().expect("utf-8")])
}

/// The names of requests that an engine answered.
fn answered(log: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(log).expect("a truth log");
    let rows = text.lines().skip(1).map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
    let of_load = rows.filter(|row| row["path"] == "/v1/chat/completions");
    of_load.filter_map(|row| Some(row["id"].as_str()?.to_owned())).collect()
}

/// One replica becomes three, then the first goes, and the second is moved: every request reaches one engine, once, and gets its whole answer.
#[test]
fn replicas_come_and_go_under_load_and_no_request_is_lost() {
    let folder = tempfile::tempdir().expect("a folder");
    let logs = ["a", "b", "c"].map(|name| folder.path().join(format!("{name}.jsonl")));
    let engines = logs.each_ref().map(|log| engine(log));
    let line = |name: &str, engine: &Engine| format!("  - {{url: \"{}\", name: {name}}}\n", engine.url);
    let file = folder.path().join("gateway.yaml");
    let write = |replicas: &[String]| {
        let text = format!(
            "route: {{policy: round_robin}}\nhealth: {{every_s: 0.1}}\nname_replicas: true\nreplicas:\n{}",
            replicas.concat()
        );
        std::fs::write(&file, text).expect("written");
    };
    let [a, b, c] = &engines;
    write(&[line("a", a)]);
    let gateway = Running::start(&[&file.display().to_string()]);
    let listed = |gateway: &Running| -> Vec<(String, String, u64)> {
        let page: Value = serde_json::from_str(&gateway.page("/v1/replicas")).expect("JSON");
        let text = |one: &Value, key: &str| one[key].as_str().expect("text").to_owned();
        let each = page["replicas"].as_array().expect("a list").iter();
        each.map(|one| (text(one, "name"), text(one, "standing"), one["requests"].as_u64().expect("a count")))
            .collect()
    };
    let worked = |name: &str| -> u64 {
        let line = format!("plimsoll_gateway_attempts_total{{replica=\"{name}\",outcome=\"worked\"}} ");
        let page = gateway.page("/metrics");
        let count = page.lines().find_map(|text| text.strip_prefix(&line));
        count.map_or(0, |count| count.parse().expect("a count"))
    };
    let (_kept, run) = run_folder();
    let url = gateway.url.clone();
    let into = run.clone();
    let load = std::thread::spawn(move || {
        let args =
            ["run", &url, "--rate", "40/s", "--for", "12s", "--isl", "60", "--osl", "20", "-q", "-o", &into];
        plimsoll(&[&args[..], &["--format", "json"]].concat())
    });
    until("the first answers", || worked("a") > 20);
    write(&[line("a", a), line("b", b), line("c", c)]);
    gateway.hang_up();
    until("the new ones answer requests", || worked("b") > 10 && worked("c") > 10);
    write(&[line("b", b), line("c", c)]);
    gateway.hang_up();
    until("the old one is forgotten", || listed(&gateway).iter().all(|(name, ..)| name != "a"));
    assert!(!gateway.page("/metrics").contains("replica=\"a\""), "and so are its metrics");
    // Under the name of b there is another server from now on; the one that had it ends what it has.
    write(&[line("b", a), line("c", c)]);
    gateway.hang_up();
    until("it is the one that has moved", || worked("b") > 10 && listed(&gateway).len() == 2);
    let ended = load.join().expect("a thread");
    let found = ended.json();
    let counts = &found["findings"]["levels"][0]["summary"]["counts"];
    assert_eq!(counts["requests"], counts["finished"], "{counts}");
    until("all loads are given back", || listed(&gateway).iter().all(|(.., requests)| *requests == 0));
    let (_, talk) = gateway.end_with_talk();
    for says in [
        "reloaded and active; new: b, c",
        "replica c: answers",
        "reloaded and active; no further requests for a",
        "replica a: has ended and is forgotten",
        "reloaded and active; new: b; no further requests for b",
    ] {
        assert!(talk.contains(says), "{says} in {talk}");
    }
    engines.into_iter().for_each(Engine::stop);
    let each = logs.each_ref().map(|log| answered(log));
    let mut all: Vec<&String> = each.iter().flatten().collect();
    let (sent, reached) = (all.len(), each.each_ref().map(Vec::len));
    all.sort_unstable();
    all.dedup();
    assert_eq!(all.len(), sent, "one request, one engine");
    assert!(reached.iter().all(|count| *count > 10), "{reached:?}");
    let opened = plimsoll_store::open(Path::new(&run)).expect("a run");
    for row in &opened.attempts {
        let name = format!("{}-{}-{}-{}", opened.manifest.id, row.level, row.request, row.attempt);
        assert!(row.outcome.is_finished(), "{:?}", row.outcome);
        assert!(all.binary_search(&&name).is_ok(), "no engine knows {name}");
    }
    // What the client sent to learn how its server counts is no request of the run.
    let of_level = |name: &&&String| {
        let level =
            name.strip_prefix(&format!("{}-", opened.manifest.id)).and_then(|rest| rest.split_once('-'));
        level.is_some_and(|(level, _)| opened.attempts.iter().any(|row| row.level.to_string() == level))
    };
    let of_run: Vec<&&String> = all.iter().filter(of_level).collect();
    assert_eq!(opened.attempts.len(), of_run.len(), "and nothing of it was sent twice: {of_run:?}");
}
