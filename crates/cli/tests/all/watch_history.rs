//! The history of a watch from the outside: compared with the log of the requests behind the pages, and under a kill at any time.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};

use plimsoll_measure::server_side::{ServerSide, Signal};
use plimsoll_model::At;
use serde_json::Value;

use crate::kit::{Ended, PLIMSOLL, Server, plimsoll, reply, until};
use crate::watch::get;

const BUDGET: &str =
    "version: 1\nname: chat\nbudgets:\n  - {id: ttft, metric: ttft, p: 95, max: 20ms, scope: engine}\n";

/// When the runs here begin, s since 1970: a full hour.
const BEGAN_S: i64 = 498_722 * 3600;

/// Simulates requests for this time in virtual time and writes their history.
fn history_of(folder: &Path, time: &str, more: &[&str]) -> [String; 3] {
    let at = |name: &str| folder.join(name).display().to_string();
    let [run, budget, history] = [at("run"), at("budget.yaml"), at("history")];
    std::fs::write(&budget, BUDGET).expect("written");
    let load = ["--rate", "1/s", "--for", time, "--isl", "64", "--osl", "4", "--seed", "5"];
    let ended = plimsoll(&[&["simulate", "--profile", "demo", "-o", &run, "-q"], &load[..], more].concat());
    assert!(ended.code != 2, "{}", ended.stderr);
    let mut manifest = plimsoll_store::read_manifest(Path::new(&run)).expect("a run");
    manifest.clock.realtime_ns = BEGAN_S * 1_000_000_000;
    plimsoll_store::replace_manifest(Path::new(&run), &manifest).expect("written");
    let tested = ["watch", "test", "--replay", &run, "-b", &budget, "--history", &history, "-q"];
    assert!(!plimsoll(&tested).stdout.is_empty());
    [run, budget, history]
}

/// Returns the time this many seconds after the start.
fn second(number: i64) -> String {
    (BEGAN_S + number).to_string()
}

fn cut(history: &str, from: &str, to: &str, run: &str) -> Ended {
    let ended = plimsoll(&["watch", "cut", history, "--from", from, "--to", to, "-o", run]);
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    ended
}

#[test]
fn stretches_of_a_history_are_read_like_runs_and_hold_what_came() {
    let folder = tempfile::tempdir().expect("a folder");
    let [run, budget, history] = history_of(folder.path(), "140m", &["--fault", "slow:factor=30,at=7200s"]);
    let at = |name: &str| folder.path().join(name).display().to_string();
    let shown = plimsoll(&["show", &history, "--format", "json"]).json();
    let lengths: Vec<f64> =
        shown.as_array().expect("rows").iter().filter_map(|r| r["length_s"].as_f64()).collect();
    assert_eq!(lengths, [60.0, 10.0], "the first hour is in minutes by now: {shown}");
    let text = plimsoll(&["show", &history]).stdout;
    assert!(text.contains("2026-11-23T02:00:0"), "{text}");

    // The bill of the history is its time: two hours and twenty minutes.
    let audit = plimsoll(&["audit", &history, "--price", "3600USD/h", "--format", "json"]).json();
    let total = audit["total"].as_f64().expect("a bill");
    let amounts = audit["parts"].as_array().expect("parts").iter().filter_map(|part| part["amount"].as_f64());
    assert!((total - 8400.0).abs() < 60.0 && (amounts.sum::<f64>() - total).abs() < 1e-6, "{audit:#}");
    let refused = plimsoll(&["audit", &history, "--price", "1USD/Mtok"]);
    assert!(refused.code == 2 && refused.stderr.contains("needs a price per hour"), "{}", refused.stderr);

    // The first hour, out of blocks of a minute; and the second, of ten seconds.
    let whole = plimsoll_store::open(Path::new(&run)).expect("a run");
    for (name, from, to, length) in [("first", 0, 3600, 60.0), ("second", 3600, 7200, 10.0)] {
        let dir = at(name);
        assert!(cut(&history, &second(from), &second(to), &dir).stdout.starts_with(&format!("{dir}: ")));
        let cut = plimsoll_store::open(Path::new(&dir)).expect("a run");
        assert_eq!(cut.manifest.scenario["watch"]["blocks"]["length_s"], length);
        let side = ServerSide::read(&cut.samples);
        let (begins, ends) = (
            cut.samples.iter().map(|sample| sample.at).min().expect("rows"),
            cut.samples.iter().map(|sample| sample.at).max().expect("rows"),
        );
        let wall = |at: At| At(at.0 + cut.manifest.clock.realtime_ns - whole.manifest.clock.realtime_ns);
        // The page's own counters at these instants are the truth.
        let truth = ServerSide::read(&whole.samples);
        for signal in [Signal::Finished, Signal::OutputTokens] {
            let gained =
                |side: &ServerSide, from, to| side.gained(signal, from, to).expect("a counter").value;
            assert_eq!(
                gained(&side, begins, ends),
                gained(&truth, wall(begins), wall(ends)),
                "{name} {signal:?}"
            );
        }
        let buckets =
            |side: &ServerSide, from, to| side.histogram(Signal::Ttft, from, to).expect("one").counts;
        assert_eq!(buckets(&side, begins, ends), buckets(&truth, wall(begins), wall(ends)), "{name}");
    }
    let ended = [
        plimsoll(&["gate", &at("second"), "-b", &budget]),
        plimsoll(&["show", &at("second")]),
        plimsoll(&["diagnose", &at("second")]),
        plimsoll(&["report", &at("second"), "-o", &at("page.html")]),
    ];
    for one in &ended {
        assert!(!one.stdout.is_empty() && one.stderr.is_empty(), "{} {}", one.code, one.stderr);
    }
    assert_eq!(ended[0].code, 0, "{}", ended[0].stdout);

    cut(&history, &second(7200), &second(8400), &at("third"));
    let listed = plimsoll(&["ls", &folder.path().display().to_string()]);
    assert!(
        listed.stdout.contains("live traffic") && !listed.stdout.contains("0 levels"),
        "{}",
        listed.stdout
    );
    assert_eq!(plimsoll(&["gate", &at("third"), "-b", &budget]).code, 1);
    let worse = plimsoll(&["compare", &at("second"), &at("third"), "--format", "json"]);
    assert_eq!((worse.code, worse.json()["verdict"].as_str()), (1, Some("regressed")), "{}", worse.stdout);
    let text = plimsoll(&["compare", &at("second"), &at("third")]).stdout;
    let row = text.lines().find(|line| line.contains("ttft p95")).expect("a row");
    assert!(row.contains(" to ") && row.ends_with("regressed"), "{text}");
    let same = plimsoll(&["compare", &at("first"), &at("second")]);
    assert!(!same.stdout.contains("regressed"), "{}", same.stdout);
    let blamed =
        plimsoll(&["diagnose", &at("third"), "--baseline", &at("second"), "--format", "json"]).json();
    assert_eq!(blamed["answer"], "found", "{blamed:#}");
}

#[test]
fn what_is_no_history_and_what_is_not_kept_is_said() {
    let folder = tempfile::tempdir().expect("a folder");
    let [_, budget, history] = history_of(folder.path(), "2m", &[]);
    let nothing = folder.path().join("nothing").display().to_string();
    let out = folder.path().join("out").display().to_string();
    for (args, word) in [
        (&["watch", "cut", &nothing, "-o", &out][..], "is no history"),
        (
            &["watch", "cut", &history, "--from", "2000000000", "-o", &out],
            "the history has no data of that time",
        ),
        (&["watch", "cut", &history, "--from", "soon", "-o", &out], "--from soon"),
        (&["watch", "cut", &history], "--out <RUN>"),
        (&["gate", &history, "-b", &budget], "is a history; cut out"),
        (&["watch", "http://127.0.0.1:1", "-b", &budget, "--from", "2h"], "'plimsoll watch cut'"),
    ] {
        let ended = plimsoll(args);
        assert_eq!(ended.code, 2, "{args:?}");
        assert!(ended.stderr.contains(word), "{args:?}: {}", ended.stderr);
    }
}

/// A watch of this page with a history.
fn watching(url: &str, budget: &str, history: &str, listen: &str) -> Child {
    let mut command = Command::new(PLIMSOLL);
    command.args([
        "watch",
        url,
        "-b",
        budget,
        "--every",
        "200ms",
        "--listen",
        listen,
        "--history",
        history,
        "-q",
    ]);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("it starts")
}

/// Returns the number of blocks in a history.
fn blocks(history: &str) -> u64 {
    let ended = plimsoll(&["show", history, "--format", "json"]);
    let found: Value = serde_json::from_str(&ended.stdout).unwrap_or_default();
    found["data"][0]["blocks"].as_u64().unwrap_or(0)
}

fn until_blocks(history: &str, wanted: u64) {
    until("blocks are kept", || blocks(history) >= wanted);
}

/// Returns the number of finished requests in each block, by the block's start in ns since the Unix epoch.
fn told(history: &str, out: &str) -> Vec<(i64, f64)> {
    assert_eq!(plimsoll(&["watch", "cut", history, "-o", out]).code, 0);
    let run = plimsoll_store::open(Path::new(out)).expect("a run");
    let begins = run.manifest.clock.realtime_ns;
    let blocks = plimsoll_watch::history::read::blocks(&run.samples);
    let finished = |counters: &std::collections::BTreeMap<_, f64>| {
        counters.iter().find(|((_, signal), _)| *signal == Signal::Finished).map_or(0.0, |counted| *counted.1)
    };
    blocks.iter().map(|block| (begins + block.from.0, finished(&block.counters))).collect()
}

/// Each scrape shows 25 requests more. A kill at any time loses the open block and no stored one; the next watch adds further blocks.
#[test]
fn a_kill_costs_the_open_block_and_no_other() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name).display().to_string();
    let (budget, history) = (at("budget.yaml"), at("history"));
    std::fs::write(&budget, BUDGET).expect("written");
    static SCRAPES: AtomicU64 = AtomicU64::new(0);
    let server = Server::start(|_, socket| {
        let ended = 25 * SCRAPES.fetch_add(1, Ordering::Relaxed);
        let page = format!(
            "vllm:num_requests_running 2\nvllm:request_success_total{{finished_reason=\"stop\"}} {ended}\n"
        );
        reply(socket, "200 OK", "Content-Type: text/plain\r\n", &page);
    });
    let url = format!("{}/metrics", server.url);
    let mut first = watching(&url, &budget, &history, "none");
    until_blocks(&history, 2);
    let busy =
        plimsoll(&["watch", &url, "-b", &budget, "--listen", "none", "--history", &history, "--for", "1s"]);
    assert!(busy.code == 2 && busy.stderr.contains("in use by another watch"), "{}", busy.stderr);
    let before = told(&history, &at("before"));
    first.kill().expect("killed");
    first.wait().expect("it ended");
    let after = told(&history, &at("after"));
    assert_eq!(after[..before.len()], before[..], "what was kept stays as it was");
    let mut second = watching(&url, &budget, &history, "127.0.0.1:0");
    let mut said = String::new();
    BufReader::new(second.stderr.as_mut().expect("piped")).read_line(&mut said).expect("where it is served");
    let addr = said.trim().rsplit("http://").next().expect("an address").to_owned();
    // The stored history is on its page immediately.
    let minute = |course: &str| -> Option<f64> {
        let course: Value = serde_json::from_str(course.split_once("\r\n\r\n")?.1).ok()?;
        course["minutes"][0]["from_s"].as_f64()
    };
    until("the page begins with the past", || {
        let begins = minute(&get(&addr, "GET /v1/course"));
        begins.is_some_and(|begins| (begins * 1e9 - after[0].0 as f64).abs() < 1e6)
    });
    until_blocks(&history, after.len() as u64 + 1);
    second.kill().expect("killed");
    second.wait().expect("it ended");
    let last = told(&history, &at("last"));
    assert_eq!(last[..after.len()], after[..]);
    let counted: f64 = last.iter().map(|(_, requests)| requests).sum();
    assert!(counted <= 25.0 * SCRAPES.load(Ordering::Relaxed) as f64 && counted > 0.0);
    assert!(last.iter().all(|(_, requests)| requests % 25.0 == 0.0 && *requests > 0.0), "{last:?}");
}
