//! `plimsoll tune` on the embedded engine, whose best setting is known: a ranking, a server that dies, a `kill -9`, wrong flags.

use std::net::TcpStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use plimsoll_measure::findings::CapacityLine;
use serde_json::Value;

use crate::kit::{PLIMSOLL, plimsoll, run_folder};
use crate::real::free_port;

/// The engine with a fault as its setting. A wrong fault ends it with an error line.
fn engine(port: &str) -> String {
    format!("{PLIMSOLL} engine -q --listen 127.0.0.1:{port} --fault slow:factor={{slow}}")
}

const SHORT: [&str; 8] = ["--first", "4s", "--isl", "16", "--osl", "4", "--seed", "1"];

fn trials(folder: &str) -> usize {
    let text = std::fs::read_to_string(Path::new(folder).join("tune.json")).unwrap_or_default();
    let state: Value = serde_json::from_str(&text).unwrap_or_default();
    state["trials"].as_array().map_or(0, Vec::len)
}

/// Returns whether the machine left the generator undisturbed, so that the setting has a figure.
#[expect(clippy::print_stderr, reason = "what a test leaves out it says")]
pub fn undisturbed(setting: &Value) -> bool {
    let why = setting["why"].as_str();
    let disturbed =
        why.filter(|why| why.contains("measurement is invalid") || why.contains("too few requests"));
    disturbed.iter().for_each(|why| eprintln!("not judged, the machine was busy: {why}"));
    disturbed.is_none()
}

/// Waits until a condition holds; the longest wait is for a busy machine.
fn until(mut holds: impl FnMut() -> bool, what: &str) {
    for _ in 0..600 {
        if holds() {
            return;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    panic!("{what} did not happen within a minute");
}

#[test]
fn the_faster_setting_is_best_and_a_killed_tuning_continues() {
    let (_folder, run) = run_folder();
    let port = free_port().to_string();
    let (launch, url) = (engine(&port), format!("http://127.0.0.1:{port}/v1"));
    let flags = ["tune", "--launch", &launch, "--url", &url, "--set", "slow=12,3,none", "--price", "2USD/h"];
    let args = [&flags[..], &SHORT, &["-o", &run, "--format", "json"]].concat();
    let mut child = Command::new(PLIMSOLL)
        .args(&args)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("it starts");
    let second = Path::new(&run).join("02-rung1/records.log");
    until(|| trials(&run) == 1 && second.exists(), "the second measurement");
    child.kill().expect("killed");
    child.wait().expect("ended");
    until(|| TcpStream::connect(format!("127.0.0.1:{port}")).is_err(), "the end of the server");

    let ended = plimsoll(&args);
    let found = ended.json();
    let of = |slow: &str| {
        let settings = found["settings"].as_array().expect("settings").iter();
        settings.clone().find(|one| one["values"]["slow"] == slow).expect("measured").clone()
    };
    let (fast, slow, dead) = (of("3"), of("12"), of("none"));
    assert_eq!(dead["standing"], "failed");
    let why = dead["why"].as_str().expect("a reason");
    assert!(why.contains("exit status: 2") && why.contains("slow:factor=none"), "{why}");
    assert!(
        fast["launch"].as_str().is_some_and(|launch| launch.ends_with("--fault slow:factor=3")),
        "{fast}"
    );
    if undisturbed(&fast) && undisturbed(&slow) {
        assert_eq!((ended.code, &fast["standing"], &slow["standing"]), (0, &"best".into(), &"worse".into()));
        // Four times the speed, and four tokens per request.
        let load = |one: &Value| one["load"]["value"].as_f64().expect("a rate");
        assert!(load(&fast) > 2.0 * load(&slow), "{} {}", load(&fast), load(&slow));
        let cost = 2.0 / 3600.0 / (4.0 * load(&fast)) * 1e6;
        assert!((fast["cost"]["value"].as_f64().expect("a cost") / cost - 1.0).abs() < 1e-6, "{fast}");
    }

    let name = |one: &Value| one["run"].as_str().expect("a run").to_owned();
    assert_eq!((name(&slow), name(&fast)), ("01-rung1".to_owned(), "02-rung1-again".to_owned()));
    let again = plimsoll(&["tune", "--resume", &run, "--format", "json"]);
    assert_eq!((again.code, again.json()), (ended.code, found), "{}", again.stderr);
    let other = plimsoll(&[&args[..], &["--warm-up", "11"]].concat());
    assert!(other.code == 2 && other.stderr.contains("another warm_up"), "{}", other.stderr);
    let shown = plimsoll(&["show", &format!("{run}/01-rung1")]);
    assert!(shown.stdout.contains("Label: slow=12"), "{}", shown.stdout);
}

/// The figure is the budget line that `show` prints of the run.
#[test]
fn limits_set_the_load_of_a_setting() {
    let (_folder, run) = run_folder();
    let slo = ["--slo", "e2e p50 < 2s", "--rungs", "1", "-o", &run, "--format", "json", "--set", "slow=10"];
    let launch = engine("{port}");
    let args = [&["tune", "--launch", &launch][..], &SHORT, &slo].concat();
    let ended = plimsoll(&args);
    let setting = ended.json()["settings"][0].clone();
    if !undisturbed(&setting) {
        return;
    }
    assert!([0, 1].contains(&ended.code), "{}", ended.stderr);
    let shown = plimsoll(&["show", &format!("{run}/01-rung1"), "--format", "json"]).json();
    let line = serde_json::from_value(shown["findings"]["lines"][0]["budget"].clone()).expect("a line");
    let ends = match line {
        CapacityLine::Found { rate, .. } => [Some(rate.lower), Some(rate.upper)],
        CapacityLine::Above { rate_per_s, .. } => [Some(rate_per_s), None],
        CapacityLine::Below { rate_per_s, .. } => [Some(0.0), Some(rate_per_s)],
        CapacityLine::CannotTell { .. } => [Some(0.0), None],
    };
    assert_eq!([setting["load"]["lower"].as_f64(), setting["load"]["upper"].as_f64()], ends, "{setting}");
}

#[test]
fn a_wrong_flag_is_named_before_a_server_starts() {
    let (_folder, run) = run_folder();
    for (flags, said) in [
        (&["--launch", "x {a} {port}"][..], "--launch: {a} has no value; add --set a="),
        (&["--launch", "x 'y {port}"], "--launch: a quote is not closed"),
        (&["--launch", "x"], "--launch: has no {port}"),
        (&["--launch", "x {port}", "--url", "http://127.0.0.1:9/v1"], "--url: has no {port}"),
        (&["--launch", "x {port}", "--set", "a=1"], "--set a: --launch has no {a}"),
        (&["--launch", "x {port} {a}", "--set", "a=1,"], "--set a=1,: write NAME=VALUE"),
        (&["--launch", "x {port}", "--set", "port=1"], "--set port: {port} is a free port"),
        (&["--launch", "no-such-server {port}"], "--launch: no-such-server can't be started"),
        (&["--launch", "x {port}", "--goal", "cost"], "--goal cost: needs the price"),
        (&["--launch", "x {port}", "--price", "1USD/gpu-hour", "--gpus", "two"], "--gpus two: write a whole"),
        (&["--launch", "x {port}", "--price", "1,2USD/Mtok"], "--price 1,2USD/Mtok: a price per token"),
        (&["--launch", "x {port}", "--slo", "wait < 1s"], "--slo wait < 1s"),
        (&["--launch", "x {port}", "--first", "10ms"], "--first 10ms: at least 1s"),
        (&["--launch", "x {port}", "--set", "client.nonsense=1"], "nonsense"),
    ] {
        let ended = plimsoll(&[&["tune"], flags, &["-o", &run]].concat());
        assert!(ended.code == 2 && ended.stderr.contains(said), "{flags:?}: {}", ended.stderr);
        let _ = std::fs::remove_dir_all(&run);
    }
    let none = plimsoll(&["tune", "--resume", &run]);
    assert!(none.code == 2 && none.stderr.contains("tune.json: there is no such file"), "{}", none.stderr);
    let plan =
        plimsoll(&["tune", "--launch", "x {port} {a} {b}", "--set", "a=1,2", "--set", "b=3,4", "--dry-run"]);
    assert!(plan.code == 0 && plan.stdout.contains("a=2 b=4: x '{port}' 2 4"), "{}", plan.stdout);
    assert!(plan.stdout.contains("4 settings: about 12 min"), "{}", plan.stdout);
}
