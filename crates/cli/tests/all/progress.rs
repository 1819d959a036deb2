//! `--progress json`: each line of stderr is an object of the published schema, and the last counts are those of the run.

use serde_json::{Value, json};

use crate::kit::{Ended, Engine, plimsoll, run_folder};

/// Returns the lines of stderr; each must fit the schema.
fn lines(ended: &Ended) -> Vec<Value> {
    let schema: Value = serde_json::from_str(&plimsoll(&["schema", "progress"]).stdout).expect("a schema");
    let schema = jsonschema::validator_for(&schema).expect("a sound schema");
    let line = |text: &str| {
        let line: Value = serde_json::from_str(text).unwrap_or_else(|e| panic!("{text}: {e}"));
        let wrong: Vec<String> = schema.iter_errors(&line).map(|e| e.to_string()).collect();
        assert!(wrong.is_empty(), "{text}: {wrong:?}");
        line
    };
    ended.stderr.lines().map(line).collect()
}

fn of<'a>(lines: &'a [Value], event: &str) -> Vec<&'a Value> {
    lines.iter().filter(|line| line["event"] == event).collect()
}

/// Warm-up and load are two levels: their counts add up, and time runs on while the time left becomes less.
#[test]
fn the_lines_of_a_run_end_with_the_counts_of_its_records() {
    let (engine, (_folder, run)) = (Engine::start("demo"), run_folder());
    let load = ["--rate", "20/s", "--for", "5s", "--isl", "32", "--osl", "8", "--warm-up", "5"];
    let base = ["run", &engine.url, "--progress", "json", "-o", &run];
    let ended = plimsoll(&[&base[..], &load].concat());
    // On a busy machine the measurement can be invalid; its counts are true all the same.
    assert!([0, 4].contains(&ended.code), "{}", ended.stderr);
    let lines = lines(&ended);
    let phases: Vec<&Value> = of(&lines, "phase").into_iter().map(|line| &line["phase"]).collect();
    assert_eq!(phases, [&json!("warm-up, 5 requests"), &json!("open loop, 20.0/s")]);
    let times: Vec<f64> = lines.iter().map(|line| line["elapsed_s"].as_f64().expect("a time")).collect();
    assert!(times.is_sorted(), "{times:?}");
    let states = of(&lines, "state");
    let left: Vec<f64> = states.iter().filter_map(|line| line["eta_s"].as_f64()).collect();
    assert!(left.len() >= 3 && left.is_sorted_by(|a, b| a >= b) && left[0] <= 5.0, "{left:?}");
    let rows = plimsoll_store::open(std::path::Path::new(&run)).expect("a run").attempts;
    // The requests of the calibration belong to no level.
    let sent = rows.iter().filter(|row| row.level != u32::MAX).count();
    let figures = &states.last().expect("a last state")["figures"];
    assert_eq!((&figures["requests"], &figures["finished"]), (&json!(sent), &json!(sent)));
    assert_eq!((&figures["tokens_in"], &figures["tokens_out"]), (&json!(sent * 32), &json!(sent * 8)));
    assert!(states.iter().all(|line| line["verdict"].is_null()));
}

#[test]
fn a_gate_gives_the_verdict_of_its_last_look() {
    let (engine, (_folder, run)) = (Engine::start("demo"), run_folder());
    let ended = plimsoll(&[
        "gate",
        &engine.url,
        "--slo",
        "ttft p90 < 5s",
        "--until-decided",
        "--max",
        "40s",
        "--rate",
        "20/s",
        "--isl",
        "32",
        "--osl",
        "8",
        "--progress=json",
        "-o",
        &run,
    ]);
    let lines = lines(&ended);
    // A busy machine leaves the verdict open until the time is over.
    let is_decided =
        |line: &Value| line["message"].as_str().is_some_and(|text| text.starts_with("decided after"));
    let (verdict, code) = if lines.iter().any(is_decided) { ("pass", 0) } else { ("inconclusive", 3) };
    assert_eq!(lines.last().expect("lines")["verdict"], verdict);
    assert!([code, 4].contains(&ended.code), "{}", ended.stderr);
    assert!(lines.iter().any(|line| line["verdict"].is_null()), "no verdict before the first look");
    assert!(lines.iter().all(|line| line["command"] == "gate"));
}

/// A reader of lines gets no other text: neither from a wrong flag nor from a target that is absent.
#[test]
fn an_error_is_a_line_too() {
    for words in [
        &["sweep", "http://127.0.0.1:9/v1"][..],
        &["run", "http://127.0.0.1:9/v1", "--rate", "1/s", "--nope"],
    ] {
        let ended = plimsoll(&[words, &["--progress", "json"]].concat());
        let lines = lines(&ended);
        let said = lines.last().expect("a line")["message"].as_str().expect("a message").to_owned();
        assert!(ended.code != 0 && said.starts_with("plimsoll: "), "{said}");
    }
}
