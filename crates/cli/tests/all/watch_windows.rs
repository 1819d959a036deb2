//! The window of an alert as a run folder, compared with the run that it was cut from.
//! The commands that read runs read it too.

use std::path::Path;

use plimsoll_measure::server_side::{ServerSide, Signal};
use plimsoll_model::{At, Span};
use plimsoll_store::StoredRun;
use serde_json::Value;

use crate::kit::{Ended, plimsoll};

fn opened(dir: &str) -> StoredRun {
    plimsoll_store::open(Path::new(dir)).expect("a run folder")
}

fn seconds(alert: &Value, key: &str) -> At {
    At::ZERO + Span::from_secs_f64(alert[key].as_f64().expect("an instant"))
}

/// Runs these commands on that folder; each must print something.
fn read(dir: &str, budget: &str) -> [Ended; 4] {
    let html = format!("{dir}.html");
    let ended = [
        plimsoll(&["show", dir]),
        plimsoll(&["gate", dir, "-b", budget]),
        plimsoll(&["diagnose", dir, "--format", "json"]),
        plimsoll(&["report", dir, "-o", &html]),
    ];
    for one in &ended {
        assert!(!one.stdout.is_empty() && one.stderr.is_empty(), "{dir}: {} {}", one.code, one.stderr);
    }
    assert!(Path::new(&html).exists());
    ended
}

/// Thirty times slower from 120 s on: one alert by requests, one by pages, each with its window.
#[test]
fn windows_hold_what_the_run_held_and_are_read_like_runs() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name).display().to_string();
    let (run, budget, kept) = (at("run"), at("budget.yaml"), at("alerts"));
    std::fs::write(
        &budget,
        "version: 1\nname: chat\nbudgets:\n  - {id: ttft, metric: ttft, p: 99, max: 50ms}\n",
    )
    .expect("written");
    let load = ["--rate", "40/s", "--for", "300s", "--isl", "64", "--osl", "4"];
    let fault = ["--fault", "slow:factor=30,at=120s", "-o", &run, "-q"];
    plimsoll(&[&["simulate", "--profile", "demo"], &load[..], &fault].concat());
    let tested = ["watch", "test", "--replay", &run, "-b", &budget, "--record", &kept, "--format", "json"];
    let tested = plimsoll(&tested).json();
    let whole = opened(&run);

    let alert = &tested["requests"]["alerts"][0];
    let (since, fired) = (seconds(alert, "since_s"), seconds(alert, "fired_s"));
    let dir = alert["run"].as_str().expect("a window");
    let window = opened(dir);
    let ended = |row: &plimsoll_model::Attempt| row.end.or(row.sent).unwrap_or(row.due);
    let mut truth: Vec<_> =
        whole.attempts.iter().filter(|row| ended(row) <= fired).map(|row| (row.due, row.end)).collect();
    let mut found: Vec<_> = window.attempts.iter().map(|row| (row.due, row.end)).collect();
    truth.sort_unstable();
    found.sort_unstable();
    assert_eq!(found, truth, "ten minutes before are all of it");
    assert!(window.attempts.iter().all(|row| (row.level == 1) == (ended(row) >= since)));
    let [show, gate, diagnose, _] = read(dir, &budget);
    assert!(show.stdout.contains("live"), "{}", show.stdout);
    assert_eq!(gate.code, 1, "{}", gate.stdout);
    assert!(diagnose.json()["verdicts"].as_array().is_some_and(|verdicts| !verdicts.is_empty()));

    let alert = &tested["pages"]["alerts"][0];
    let fired = seconds(alert, "fired_s");
    let dir = alert["run"].as_str().expect("a window");
    let window = opened(dir);
    let counted = |samples: &[plimsoll_model::Sample]| {
        let side = ServerSide::read(samples);
        let gained = side.gained(Signal::Finished, At::ZERO, fired).expect("a counter");
        (gained.value, side.histogram(Signal::Ttft, At::ZERO, fired).expect("a histogram").counts)
    };
    assert_eq!(counted(&window.samples), counted(&whole.samples));
    let [show, gate, diagnose, _] = read(dir, &budget);
    assert!(
        show.stdout.contains("ceiling broken (ttft)") && show.stdout.contains("Diagnosis"),
        "{}",
        show.stdout
    );
    assert!(show.stdout.contains("First: "), "{}", show.stdout);
    assert_eq!(gate.code, 1, "{}", gate.stdout);
    let said = plimsoll(&["diagnose", dir]).words();
    assert!(said.contains("requests/s, against the earlier requests"), "{said}");
    // The diagnosis that the alert carried is the one of its window.
    let cause = &alert["diagnosis"]["cause"];
    let verdicts = diagnose.json();
    let answer = if verdicts["answer"] == "found" {
        verdicts["verdicts"][0]["cause"].clone()
    } else {
        "unknown".into()
    };
    assert_eq!(*cause, answer, "{alert:#} {verdicts:#}");

    // Later windows are stored next to earlier ones.
    let again =
        plimsoll(&["watch", "test", "--replay", &run, "-b", &budget, "--record", &kept, "--format", "json"])
            .json();
    let names: Vec<&str> =
        ["requests", "pages"].iter().filter_map(|of| again[of]["alerts"][0]["run"].as_str()).collect();
    assert!(names[0].ends_with("alert-000003") && names[1].ends_with("alert-000004"), "{names:?}");
}

/// Every token takes 1.6 times as long from 120 s on, without a queue.
/// The second half is stationary, so it is compared with the first.
#[test]
fn what_is_slower_since_is_held_against_what_came_before() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name).display().to_string();
    let (run, budget, kept) = (at("run"), at("budget.yaml"), at("alerts"));
    std::fs::write(
        &budget,
        "version: 1\nname: chat\nbudgets:\n  - {id: e2e, metric: e2e, p: 90, max: 60ms}\n",
    )
    .expect("written");
    let load = ["simulate", "--profile", "demo", "--rate", "40/s", "--for", "240s", "--seed", "3"];
    plimsoll(&[&load[..], &["--fault", "slow:factor=1.6,at=120s", "-o", &run, "-q"]].concat());
    let tested = ["watch", "test", "--replay", &run, "-b", &budget, "--record", &kept, "--format", "json"];
    let tested = plimsoll(&tested).json();
    let dir = tested["requests"]["alerts"][0]["run"].as_str().expect("a window");
    let diagnosis = plimsoll(&["diagnose", dir, "--format", "json"]).json();
    assert_eq!(diagnosis["verdicts"][0]["cause"], "slower_model", "{diagnosis:#}");
}
