//! Runs by name: `ls`, `last`, labels; one row per request as CSV; and a plain yes or no.

use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::process::{Command, Stdio};

use crate::kit::{Engine, PLIMSOLL, Server, plimsoll, plimsoll_in, reply, run_folder};

fn simulated(folder: &std::path::Path, more: &[&str]) {
    let args = ["simulate", "--rate", "20/s", "--for", "4s", "--osl", "8", "-q"];
    let ended = plimsoll_in(folder, &[&args[..], more].concat());
    assert_eq!(ended.code, 0, "{}", ended.stderr);
}

#[test]
fn runs_are_listed_and_found_by_name() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = folder.path();
    let none = plimsoll_in(at, &["show", "last"]);
    assert_eq!((none.code, none.stderr.contains("there is no run under plimsoll-runs/ yet")), (2, true));
    assert_eq!(plimsoll_in(at, &["ls"]).code, 2);
    simulated(at, &["--label", "before"]);
    simulated(at, &["--seed", "2"]);
    let text = plimsoll_in(at, &["ls"]).stdout;
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines[1].starts_with("simulate-002") && lines[2].starts_with("simulate-001"), "{text}");
    assert!(lines[2].contains("before") && lines[2].contains("20.0/s"), "{text}");
    assert!(lines.iter().all(|line| line.chars().count() <= 80), "{text}");
    let json = plimsoll_in(at, &["ls", "--format", "json"]).json();
    assert_eq!(json[1]["label"], "before");
    let id = |name: &str| plimsoll_in(at, &["show", name, "--format", "json"]).json()["id"].clone();
    assert_eq!((id("last"), id("before")), (json[0]["id"].clone(), json[1]["id"].clone()));
    // A label works in every place that accepts a run; two runs with one label are distinguished by their folders.
    assert_eq!(plimsoll_in(at, &["compare", "before", "last", "--despite-differences"]).code, 3);
    simulated(at, &["--label", "before"]);
    let both = plimsoll_in(at, &["show", "before"]);
    assert_eq!((both.code, both.stderr.contains("2 runs have this label")), (2, true), "{}", both.stderr);
}

#[test]
fn requests_are_rows_with_the_latencies_that_are_shown() {
    let (folder, run) = run_folder();
    simulated(folder.path(), &["-o", &run]);
    let file = folder.path().join("rows.csv").display().to_string();
    assert_eq!(plimsoll(&["show", &run, "--csv", &file]).code, 0);
    let text = std::fs::read_to_string(&file).expect("a table");
    let mut lines = text.lines();
    let names: Vec<&str> = lines.next().expect("names").split(',').collect();
    let at = |name: &str| names.iter().position(|other| *other == name).expect("a column");
    let mut ttft: Vec<f64> =
        lines.map(|line| line.split(',').nth(at("ttft_s")).expect("a cell").parse().expect("s")).collect();
    ttft.sort_by(f64::total_cmp);
    let shown = plimsoll(&["show", &run, "--format", "json"]).json();
    let reading = &shown["findings"]["levels"][0]["summary"]["latency"]["ttft"]["p50"];
    assert_eq!(reading["n"].as_u64(), Some(ttft.len() as u64), "nothing was cut as warm-up");
    let median = ttft[ttft.len().div_ceil(2) - 1];
    assert!((reading["value"].as_f64().expect("s") - median).abs() < 1e-9, "{reading} {median}");
}

#[test]
fn a_smoke_test_says_yes_or_no() {
    let engine = Engine::start("demo");
    let (_folder, run) = run_folder();
    let args = [
        "run",
        &engine.url,
        "--smoke",
        "--concurrency",
        "1",
        "--requests",
        "5",
        "--osl",
        "4",
        "-q",
        "-o",
        &run,
    ];
    let ended = plimsoll(&args);
    assert_eq!(ended.code, 0, "{}{}", ended.stdout, ended.stderr);
    assert!(ended.stdout.starts_with("yes: 5 requests answered whole"), "{}", ended.stdout);

    let broken = Server::start(|_, socket| reply(socket, "500 Internal Server Error", "", "out of order"));
    let (_folder, run) = run_folder();
    let args = [
        "run",
        &broken.url,
        "--smoke",
        "--concurrency",
        "1",
        "--requests",
        "3",
        "-m",
        "x",
        "--force",
        "-q",
        "-o",
        &run,
    ];
    let ended = plimsoll(&args);
    assert_eq!(ended.code, 1, "{}{}", ended.stdout, ended.stderr);
    assert!(ended.stdout.starts_with("no: ") && ended.stdout.contains("out of order"), "{}", ended.stdout);
}

/// The server starts after the run has reported that it waits.
#[test]
fn a_run_waits_for_its_target_as_long_as_it_is_told() {
    let free = TcpListener::bind("127.0.0.1:0").and_then(|socket| socket.local_addr()).expect("a free port");
    let url = format!("http://{free}/v1");
    let (_folder, run) = run_folder();
    let load =
        ["run", url.as_str(), "--concurrency", "1", "--requests", "5", "--osl", "4", "-o", run.as_str()];
    let given_up = plimsoll(&[&load[..], &["--wait-ready", "1s", "-q"]].concat());
    assert_eq!((given_up.code, given_up.stderr.lines().count()), (5, 1), "{}", given_up.stderr);
    let mut child = Command::new(PLIMSOLL)
        .args(load)
        .args(["--wait-ready", "120s"])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary starts");
    let mut said = BufReader::new(child.stderr.take().expect("piped")).lines().map_while(Result::ok);
    assert!(said.any(|line| line.contains("for the target: ")));
    let _engine = Engine::serve_at(&free.to_string(), &["--profile", "demo"]);
    // Its messages are read to the end, because a full pipe would block it.
    said.for_each(drop);
    assert_eq!(child.wait().expect("it ends").code(), Some(0));
    assert_eq!(plimsoll_store::open(std::path::Path::new(&run)).expect("a run").attempts.len(), 5);
    let other = format!("{run}-2");
    let wrong = plimsoll(&["run", &url, "--concurrency", "1", "-o", &other, "--wait-ready", "soon"]);
    assert_eq!((wrong.code, wrong.stderr.contains("--wait-ready: ")), (2, true), "{}", wrong.stderr);
}
