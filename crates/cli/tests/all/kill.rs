//! Nothing measured is lost: kill -9, one Ctrl-C, two Ctrl-Cs.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::kit::{Engine, PLIMSOLL, plimsoll, run_folder};

/// A long run under way, with some of its records in the log.
#[expect(
    clippy::zombie_processes,
    reason = "the caller waits for the child; the panic ends the test process"
)]
fn running(engine: &Engine, run: &str) -> Child {
    let child = Command::new(PLIMSOLL)
        .args(["run", &engine.url, "--rate", "100/s", "--for", "60s", "--osl", "4", "-q", "-o", run])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("the binary starts");
    let log = Path::new(run).join("records.log");
    for _ in 0..600 {
        if std::fs::metadata(&log).is_ok_and(|meta| meta.len() > 40_000) {
            return child;
        }
        thread::sleep(Duration::from_millis(50));
    }
    panic!("the log did not grow within half a minute");
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
