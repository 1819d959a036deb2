//! Measured data survives kill -9, one Ctrl-C and two Ctrl-Cs.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use plimsoll_model::How;

use crate::kit::{Engine, PLIMSOLL, plimsoll, run_folder, until};

/// Starts a long run and waits until some of its records are in the log.
fn running(engine: &Engine, run: &str) -> Child {
    loaded(engine, run, &["--rate", "100/s"])
}

/// Starts a run under another load; otherwise like [`running`].
fn loaded(engine: &Engine, run: &str, load: &[&str]) -> Child {
    let child = Command::new(PLIMSOLL)
        .args(["run", &engine.url, "--for", "60s", "--osl", "4", "--scrape", "off", "-q", "-o", run])
        .args(load)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("the binary starts");
    let log = Path::new(run).join("records.log");
    until("the log grows", || std::fs::metadata(&log).is_ok_and(|meta| meta.len() > 40_000));
    child
}

fn pid(child: &Child) -> Pid {
    Pid::from_raw(child.id() as i32)
}

#[test]
fn a_run_that_is_killed_is_recovered_and_says_so() {
    let engine = Engine::start("canned");
    for n in 0..3 {
        let (_folder, run) = run_folder();
        let mut child = running(&engine, &run);
        thread::sleep(Duration::from_millis(37 * n));
        child.kill().expect("killed");
        child.wait().expect("ended");
        if n == 2 {
            // The first command that opens the run reports the losses.
            let levers = plimsoll(&["levers", &run]);
            assert!(levers.stderr.contains("in flight when it was cut off"), "{}", levers.stderr);
        }
        let shown = plimsoll(&["show", &run, "--format", "json"]);
        let json = shown.json();
        assert_eq!(json["progress"]["state"], "partial", "{}", shown.stderr);
        let requests = json["findings"]["levels"][0]["summary"]["counts"]["requests"].as_u64();
        assert!(requests.is_some_and(|n| n > 20), "{json}");
        // Answers take well over a tenth of a second at 100 requests/s: some were in flight, and they must not vanish.
        let by = json["findings"]["levels"][0]["summary"]["counts"]["by_outcome"].clone();
        assert!(by["unfinished"].as_u64().is_some_and(|n| n > 0), "{by}");
        assert!(Path::new(&run).join("requests.parquet").exists());
    }
}

/// Each request of a closed loop leaves one record: the assigned numbers have no gap and no duplicate.
///
/// Requests that had not ended are unfinished. Their number equals the concurrency, except in the moment between an end and
/// the next start. A second read, of the Parquet files, gives the same result.
#[test]
fn a_closed_loop_that_is_killed_leaves_one_record_for_each_request() {
    let engine = Engine::start("canned");
    for n in 0..6 {
        let (_folder, run) = run_folder();
        let mut child = loaded(&engine, &run, &["--concurrency", "12", "--workers", "2"]);
        thread::sleep(Duration::from_millis(31 * n));
        child.kill().expect("killed");
        child.wait().expect("ended");
        let shown = plimsoll(&["show", &run, "--format", "json"]).json();
        let counts = &shown["findings"]["levels"][0]["summary"]["counts"];
        let unfinished = counts["by_outcome"]["unfinished"].as_u64().unwrap_or(0);
        let rows = plimsoll_store::open(Path::new(&run)).expect("a run").attempts;
        assert_eq!(counts["requests"].as_u64(), Some(rows.len() as u64));
        let open: Vec<_> = rows.iter().filter(|row| row.outcome.how == How::Unfinished).collect();
        assert_eq!(open.len() as u64, unfinished);
        assert!((10..=12).contains(&open.len()), "{} of 12 in flight", open.len());
        // Two workers share the numbers in turn; each hands its own out in order.
        for worker in 0..2 {
            let mut numbers: Vec<u64> =
                rows.iter().map(|row| row.request).filter(|n| n % 2 == worker).collect();
            numbers.sort_unstable();
            let all: Vec<u64> = (0..numbers.len() as u64).map(|i| 2 * i + worker).collect();
            assert_eq!(numbers, all);
        }
        assert!(open.iter().all(|row| row.end.is_none() && row.asked_output == 4));
        let again = plimsoll(&["show", &run, "--format", "json"]).json();
        assert_eq!(&again["findings"]["levels"][0]["summary"]["counts"], counts);
        let text = plimsoll(&["show", &run]).words();
        assert!(text.contains("then in flight came from the log"), "{text}");
    }
}

#[test]
fn one_interrupt_drains_and_keeps_everything() {
    let engine = Engine::start("canned");
    let (_folder, run) = run_folder();
    let mut child = running(&engine, &run);
    kill(pid(&child), Signal::SIGINT).expect("sent");
    assert_eq!(child.wait().expect("ended").code(), Some(130));
    let json = plimsoll(&["show", &run, "--format", "json"]).json();
    assert_eq!(json["progress"]["state"], "partial");
    let by = json["findings"]["levels"][0]["summary"]["counts"]["by_outcome"].clone();
    assert!(by["unfinished"].is_null(), "drained, so nothing is unfinished: {by}");
    assert!(by["finished"].as_u64().is_some_and(|n| n > 20), "{by}");
}

#[test]
fn two_interrupts_stop_at_once_and_leave_a_readable_run() {
    let engine = Engine::start("canned");
    let (_folder, run) = run_folder();
    let mut child = running(&engine, &run);
    kill(pid(&child), Signal::SIGINT).expect("sent");
    thread::sleep(Duration::from_millis(30));
    kill(pid(&child), Signal::SIGINT).expect("sent");
    assert_eq!(child.wait().expect("ended").code(), Some(130));
    let json = plimsoll(&["show", &run, "--format", "json"]).json();
    assert_eq!(json["progress"]["state"], "partial");
    assert!(json["levels"][0]["arrivals"].as_u64().is_some_and(|n| n > 20));
}
