//! One load over several endpoints: the endpoint in each row against the log of each engine.

use std::collections::{BTreeMap, BTreeSet};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Stdio};

use plimsoll_model::How;
use plimsoll_store::StoredRun;
use serde_json::Value;
use tempfile::TempDir;

use crate::kit::{Engine, PLIMSOLL, plimsoll, run_folder, until};

/// Two engines, each with a log of what it served.
struct Pair {
    engines: Vec<Engine>,
    folder: TempDir,
}

impl Pair {
    fn start() -> Pair {
        let folder = tempfile::tempdir().expect("a folder");
        let engine = |n: usize| {
            let log = folder.path().join(format!("{n}.jsonl"));
            Engine::start_with("canned", &["--truth-log", log.to_str().expect("utf-8")])
        };
        Pair { engines: (0..2).map(engine).collect(), folder }
    }

    fn urls(&self) -> [String; 2] {
        [self.engines[0].url.clone(), self.engines[1].url.clone()]
    }

    /// Ends the engines. Returns, by endpoint, the names of the requests in each engine's log.
    fn told(self) -> Vec<BTreeSet<String>> {
        self.engines.into_iter().for_each(Engine::stop);
        let names = |n: usize| {
            let text =
                std::fs::read_to_string(self.folder.path().join(format!("{n}.jsonl"))).expect("a truth log");
            let rows = text.lines().skip(1).map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
            rows.filter_map(|row| row["id"].as_str().map(str::to_owned)).collect()
        };
        (0..2).map(names).collect()
    }
}

fn open(run: &str) -> StoredRun {
    plimsoll_store::open(Path::new(run)).expect("a run")
}

/// Returns, by endpoint, the names of the requests in a run.
fn said(run: &StoredRun, endpoints: usize) -> Vec<BTreeSet<String>> {
    let mut all = vec![BTreeSet::new(); endpoints];
    for row in run.attempts.iter().filter(|row| row.sent.is_some()) {
        let name = format!("{}-{}-{}-{}", run.manifest.id, row.level, row.request, row.attempt);
        all[usize::from(row.target)].insert(name);
    }
    all
}

/// Each engine's log contains exactly the rows of its endpoint, except the requests before the load.
fn agrees(run: &StoredRun, pair: Pair) {
    let id = format!("{}-", run.manifest.id);
    let before = [0, 1].map(|tries| format!("{id}{}-", u32::MAX - tries));
    for (number, (said, mut told)) in said(run, 2).into_iter().zip(pair.told()).enumerate() {
        told.retain(|name| name.starts_with(&id) && !before.iter().any(|before| name.starts_with(before)));
        let differ: Vec<_> = said.symmetric_difference(&told).take(4).collect();
        assert!(differ.is_empty() && said.len() > 20, "endpoint {number}, {} rows: {differ:?}", said.len());
    }
}

fn ends(run: &StoredRun, target: u16) -> BTreeMap<How, usize> {
    let mut ends = BTreeMap::new();
    for row in run.attempts.iter().filter(|row| row.target == target) {
        *ends.entry(row.outcome.how).or_default() += 1;
    }
    ends
}

/// Returns a URL with a port on which no server listens.
fn nobody() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("loopback has a free port");
    format!("http://{}/v1", listener.local_addr().expect("bound"))
}

#[test]
fn each_endpoint_gets_the_rows_that_are_said_to_be_its() {
    let pair = Pair::start();
    let [a, b] = pair.urls();
    let dead = nobody();
    let (_folder, run) = run_folder();
    let load =
        ["--rate", "60/s", "--for", "2s", "--osl", "4", "--workers", "2", "-o", &run, "--format", "json"];
    // The first endpoint is dead, so the others supply the facts before the load.
    let ended = plimsoll(&[&["run", &dead, &a, &b][..], &load].concat());
    assert!(matches!(ended.code, 0 | 4), "{}", ended.stderr);
    assert!(ended.stderr.contains("its share of the requests will fail"), "{}", ended.stderr);
    let mut read = open(&run);
    let lost = ends(&read, 0);
    assert!(lost.len() == 1 && lost[&How::Refused] > 20, "{lost:?}");
    let targets = ended.json()["findings"]["levels"][0]["summary"]["targets"].clone();
    for (number, target) in targets.as_array().expect("figures of each").iter().enumerate() {
        let all = ends(&read, number as u16).values().sum::<usize>();
        assert_eq!(
            (target["target"].as_u64(), target["requests"].as_u64()),
            (Some(number as u64), Some(all as u64))
        );
        let failed = if number == 0 { all } else { 0 };
        assert_eq!(target["failed"].as_u64(), Some(failed as u64), "{target}");
    }
    assert_eq!(targets.as_array().map(Vec::len), Some(3));
    let shown = plimsoll(&["show", &run]).stdout;
    assert!(shown.contains("and 2 more endpoints"), "{shown}");
    for url in [&dead, &a, &b] {
        assert!(shown.lines().any(|line| line.trim_start().starts_with(url.as_str())), "{shown}");
    }
    let page = plimsoll(&["report", &run, "-o", &format!("{run}.html")]);
    assert_eq!(page.code, 0, "{}", page.stderr);
    let html = std::fs::read_to_string(format!("{run}.html")).expect("a page");
    assert!(html.contains("By endpoint") && html.contains(&b), "{}", html.len());
    // Both engines' own pages were read, each by its own name.
    let host = |url: &str| url.trim_start_matches("http://").trim_end_matches("/v1").to_owned();
    for url in [&a, &b] {
        assert!(read.samples.iter().any(|sample| sample.labels.contains(&host(url))), "no page of {url}");
    }
    assert!(
        read.manifest.reproduce.starts_with(&format!("plimsoll run {dead} {a} {b} ")),
        "{}",
        read.manifest.reproduce
    );
    // Targets are renumbered without the dead endpoint.
    read.attempts.retain(|row| row.target > 0);
    read.attempts.iter_mut().for_each(|row| row.target -= 1);
    agrees(&read, pair);
}

#[test]
fn a_session_keeps_its_endpoint_and_a_repetition_keeps_it_too() {
    let pair = Pair::start();
    let [a, b] = pair.urls();
    let (folder, run) = run_folder();
    let load =
        ["--rate", "60/s", "--for", "2s", "--osl", "4", "--sessions", "3,50ms", "--scrape", "off", "-q"];
    let ended = plimsoll(&[&["run", &a, &b, "-o", &run][..], &load].concat());
    assert!(matches!(ended.code, 0 | 4), "{}", ended.stderr);
    let first = open(&run);
    let mut homes: BTreeMap<u64, BTreeSet<u16>> = BTreeMap::new();
    for row in &first.attempts {
        homes.entry(row.session.expect("a session")).or_default().insert(row.target);
    }
    assert!(homes.len() > 20 && homes.values().all(|targets| targets.len() == 1), "{homes:?}");
    let again = folder.path().join("again");
    let again = again.to_str().expect("utf-8");
    let ended = plimsoll(&["rerun", &run, "--target", &a, "--target", &b, "-q", "-o", again]);
    assert!(matches!(ended.code, 0 | 4), "{}", ended.stderr);
    let second = open(again);
    let place = |run: &StoredRun| -> BTreeMap<u64, u16> {
        run.attempts.iter().map(|row| (row.request, row.target)).collect()
    };
    assert_eq!(place(&first), place(&second));
    agrees(&second, pair);
}

/// Rows from the log and rows of what was in flight alike.
#[test]
fn a_run_that_is_killed_still_knows_where_its_rows_went() {
    let pair = Pair::start();
    let [a, b] = pair.urls();
    let (_folder, run) = run_folder();
    let mut child = Command::new(PLIMSOLL)
        .args([
            "run", &a, &b, "--rate", "100/s", "--for", "60s", "--osl", "4", "--scrape", "off", "-q", "-o",
            &run,
        ])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("the binary starts");
    let log = Path::new(&run).join("records.log");
    until("a log of some requests", || std::fs::metadata(&log).is_ok_and(|meta| meta.len() > 40_000));
    child.kill().expect("killed");
    child.wait().expect("ended");
    let shown = plimsoll(&["show", &run, "--format", "json"]).json();
    let read = open(&run);
    let targets = &shown["findings"]["levels"][0]["summary"]["targets"];
    for number in 0..2u16 {
        let target = &targets[usize::from(number)];
        // Those in flight are drawn again whenever the run is read: they are in no file.
        let open = target["by_outcome"]["unfinished"].as_u64().unwrap_or(0);
        let rows = ends(&read, number).values().sum::<usize>() as u64;
        assert!(open > 0, "none in flight at {number}: {targets}");
        assert_eq!(target["requests"].as_u64(), Some(rows + open), "{targets}");
    }
    // An engine's log may have more requests than the run, because served requests that the client had not recorded are
    // in flight by the schedule.
    let told = pair.told();
    for (said, told) in said(&read, 2).into_iter().zip(&told) {
        assert!(said.iter().all(|name| told.contains(name)) && said.len() > 20);
    }
}

#[test]
fn shards_and_gates_take_several_endpoints() {
    let pair = Pair::start();
    let [a, b] = pair.urls();
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name).to_str().expect("utf-8").to_owned();
    let place = path("place");
    let shard = |index: u32| {
        let shard = format!("{index}/2");
        Command::new(PLIMSOLL)
            .args([
                "run",
                &a,
                &b,
                "--shard",
                &shard,
                "--rendezvous",
                &place,
                "--rate",
                "100/s",
                "--for",
                "2s",
            ])
            .args(["--osl", "4", "--scrape", "off", "-q"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("the binary starts")
    };
    let both: Vec<_> = (0..2).map(shard).collect();
    both.into_iter()
        .for_each(|mut child| assert!(matches!(child.wait().expect("ended").code(), Some(0 | 4))));
    let merged = path("merged");
    let merge = plimsoll(&["merge", &place, "-o", &merged]);
    assert!(matches!(merge.code, 0 | 4), "{}", merge.stderr);
    let whole = open(&merged);
    assert!(whole.attempts.iter().all(|row| row.outcome.is_finished()));

    let budget = path("budget.yaml");
    std::fs::write(
        &budget,
        "version: 1\nload: {rate: 60/s}\nbudgets:\n  - {id: tail, metric: e2e, p: 95, max: 20s}\n",
    )
    .expect("written");
    let gated = path("gated");
    let gate =
        plimsoll(&["gate", &a, &b, "--budget", &budget, "--time", "4s", "--osl", "4", "-q", "-o", &gated]);
    assert!(matches!(gate.code, 0 | 3 | 4), "{}\n{}", gate.stdout, gate.stderr);
    assert!((0..2).all(|number| ends(&open(&gated), number).values().sum::<usize>() > 20));
    let folder_too = plimsoll(&["gate", &merged, &b, "--budget", &budget]);
    assert!(
        folder_too.code == 2 && folder_too.stderr.contains("only URLs are measured together"),
        "{}",
        folder_too.stderr
    );
    let twice = plimsoll(&["run", &a, &format!("{a}/"), "--rate", "1/s"]);
    assert!(twice.code == 2 && twice.stderr.contains("named twice"), "{}", twice.stderr);
    let secret = plimsoll(&["run", &a, "http://user:pass@h/v1", "--rate", "1/s"]);
    assert!(secret.code == 2 && !secret.stderr.contains("pass@"), "{}", secret.stderr);
    agrees(&whole, pair);
}
