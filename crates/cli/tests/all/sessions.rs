//! Sessions of a trace, whose turns wait for each other.
//!
//! The due time of each turn is compared with a recursion stepped manually and with the engine's log. Also tested: the turns that a
//! failure stops, and the figures of whole sessions against the rows.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use plimsoll_lab::sessions::{Session, Turn, step};
use plimsoll_math::rng::Stream;
use plimsoll_model::{Attempt, How};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::kit::{Engine, Server, plimsoll};

const SERVERS: usize = 6;
const SERVICE_NS: i64 = 37_000_000;

/// First come first served, every request 37 ms.
fn profile() -> Value {
    json!({
        "name": "fixed",
        "mode": {"kind": "queue", "servers": SERVERS, "service": {"law": "deterministic", "ms": SERVICE_NS as f64 / 1e6}}
    })
}

/// Returns sessions of one to nine turns, each after some of the turns before it. No two times are equal.
fn drawn(count: usize, gap_ns: i64) -> Vec<Session> {
    let mut stream = Stream::new(11, "sessions by hand", 0);
    let mut begins = 0;
    let mut odd = 0;
    let mut session = || {
        let turns = 1 + stream.below(9) as usize;
        let of = |t: usize, stream: &mut Stream, odd: &mut i64| {
            let after: Vec<usize> = (0..t).filter(|of| *of + 3 > t && stream.chance(0.6)).collect();
            *odd += 1_009;
            let wait =
                if after.is_empty() { 0 } else { stream.below(80_000_000) as i64 / 1_000 * 1_000 + *odd };
            Turn { after, wait }
        };
        let turns = (0..turns).map(|t| of(t, &mut stream, &mut odd)).collect();
        let one = Session { begins, turns };
        begins += stream.below(2 * gap_ns as u64) as i64 / 1_000 * 1_000 + 1_000;
        one
    };
    (0..count).map(|_| session()).collect()
}

/// Returns the sessions as a trace, its lines in any order.
fn lines(sessions: &[Session]) -> String {
    let mut lines = Vec::new();
    for (s, session) in sessions.iter().enumerate() {
        for (t, turn) in session.turns.iter().enumerate() {
            let after: Vec<String> = turn.after.iter().map(|of| format!("t{of}")).collect();
            let mut line = json!({
                "session_id": format!("agent {s}"), "id": format!("t{t}"), "input_length": 20 + 10 * t, "output_length": 1,
            });
            match after.is_empty() {
                true => line["timestamp"] = json!(session.begins as f64 / 1e6),
                false => {
                    line["after"] = json!(after);
                    line["wait_ms"] = json!(turn.wait as f64 / 1e6);
                }
            }
            lines.push(line.to_string());
        }
    }
    lines.join("\n")
}

struct Case {
    folder: TempDir,
}

impl Case {
    fn new() -> Case {
        let case = Case { folder: tempfile::tempdir().expect("a folder") };
        case.file("engine.json", &profile().to_string());
        case
    }

    fn at(&self, name: &str) -> String {
        self.folder.path().join(name).display().to_string()
    }

    fn file(&self, name: &str, text: &str) -> String {
        fs::write(self.at(name), text).expect("written");
        self.at(name)
    }

    /// Simulates a trace of these sessions; gives the findings.
    fn simulated(&self, sessions: &[Session], more: &[&str]) -> Value {
        let trace = self.file("agents.jsonl", &lines(sessions));
        let (engine, run) = (self.at("engine.json"), self.at("run"));
        let args =
            ["simulate", "--profile", &engine, "--trace", &trace, "-q", "--format", "json", "-o", &run];
        let ended = plimsoll(&[&args[..], more].concat());
        assert_eq!(ended.code, 0, "{}", ended.stderr);
        ended.json()
    }

    fn rows(&self) -> Vec<Attempt> {
        plimsoll_store::open(Path::new(&self.at("run"))).expect("a run").attempts
    }
}

/// First due time and last end of each session, in the order in which they begin.
fn whole(rows: &[Attempt]) -> Vec<(i64, i64)> {
    let mut sessions: BTreeMap<u64, (i64, i64)> = BTreeMap::new();
    for row in rows {
        let (due, end) = (row.due.0, row.end.map_or(i64::MAX, |end| end.0));
        let one = sessions.entry(row.session.expect("a session")).or_insert((due, end));
        *one = (one.0.min(due), one.1.max(end));
    }
    let mut all: Vec<(i64, i64)> = sessions.into_values().collect();
    all.sort_unstable();
    all
}

/// The value that so large a share is at most.
fn quantile(rows: &[Attempt], p: f64) -> f64 {
    let mut took: Vec<i64> = whole(rows).iter().map(|(due, end)| end - due).collect();
    took.sort_unstable();
    took[(p * took.len() as f64).ceil() as usize - 1] as f64 / 1e9
}

#[test]
fn every_turn_of_a_simulation_is_due_when_the_recursion_says() {
    let case = Case::new();
    let sessions = drawn(80, 36_000_000);
    case.simulated(&sessions, &[]);
    let truth = step(&sessions, SERVERS, SERVICE_NS);
    let rows = case.rows();
    assert_eq!(rows.len(), sessions.iter().map(|session| session.turns.len()).sum::<usize>());
    let mut waited = 0;
    for row in &rows {
        let (session, turn) = (row.session.expect("a session") as usize, usize::from(row.turn));
        let (due, end) = truth[session][turn];
        assert_eq!((row.due.0, row.end.map(|end| end.0)), (due, Some(end)), "turn {turn} of {session}");
        assert_eq!(usize::from(row.turns), sessions[session].turns.len());
        waited += usize::from(end - due > SERVICE_NS);
    }
    assert!(waited > 20, "{waited} that wait for a server tell nothing");
}

#[test]
fn session_e2e_is_what_the_rows_say_wherever_it_is_read() {
    let case = Case::new();
    let findings = case.simulated(&drawn(400, 150_000_000), &[]);
    let rows = case.rows();
    let shown = plimsoll(&["show", &case.at("run"), "--format", "json"]);
    for of in [&findings["findings"], &shown.json()["findings"]] {
        let summary = &of["levels"][0]["summary"];
        let told = &summary["latency"]["session_e2e"];
        let window = |ns: i64| ns >= summary["window"]["start"].as_i64().expect("ns");
        let firsts: Vec<u64> = rows
            .iter()
            .filter(|row| row.turn == 0 && window(row.due.0))
            .filter_map(|row| row.session)
            .collect();
        let counted: Vec<Attempt> =
            rows.iter().filter(|row| row.session.is_some_and(|s| firsts.contains(&s))).cloned().collect();
        assert_eq!(told["n"].as_u64(), Some(firsts.len() as u64));
        for (name, p) in [("p50", 0.5), ("p90", 0.9), ("p95", 0.95)] {
            let value = told[name]["value"].as_f64().unwrap_or_else(|| panic!("{name}: {}", told[name]));
            assert!(
                (value - quantile(&counted, p)).abs() < 1e-9,
                "{name}: {value} against {}",
                quantile(&counted, p)
            );
        }
    }
    let text = plimsoll(&["show", &case.at("run")]).words();
    assert!(text.contains("session_e2e") && text.contains("400 sessions"), "{text}");
}

#[test]
fn a_budget_on_sessions_holds_and_breaks_where_the_rows_do() {
    let case = Case::new();
    case.simulated(&drawn(1_500, 150_000_000), &[]);
    let rows = case.rows();
    let gate = |max: f64| {
        let budget = format!(
            "version: 1\nname: agents\nbudgets:\n  - {{id: s, metric: session_e2e, p: 90, max: {}ms}}\n",
            (1e3 * max).round()
        );
        plimsoll(&["gate", &case.at("run"), "--budget", &case.file("budget.yaml", &budget)])
    };
    let (holds, breaks) = (gate(quantile(&rows, 0.95)), gate(quantile(&rows, 0.8)));
    assert_eq!(
        (holds.code, breaks.code),
        (0, 1),
        "{}{}\n{}{}",
        holds.stdout,
        holds.stderr,
        breaks.stdout,
        breaks.stderr
    );
    assert!(breaks.words().contains("session_e2e p90"), "{}", breaks.stdout);
    // One-shot requests have no sessions: missing, and never passed.
    let plain = case.at("plain");
    let ended = plimsoll(&["simulate", "--rate", "50/s", "--for", "20s", "-q", "-o", &plain]);
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    let missing = plimsoll(&["gate", &plain, "--budget", &case.at("budget.yaml")]);
    assert_eq!(missing.code, 3, "{}", missing.stdout);
}

#[test]
fn every_turn_of_a_live_run_is_due_when_the_engine_has_ended_those_before_it() {
    let case = Case::new();
    let sessions = drawn(25, 60_000_000);
    let trace = case.file("agents.jsonl", &lines(&sessions));
    let (log, run) = (case.at("truth.jsonl"), case.at("run"));
    {
        let engine = Engine::start_with(&case.at("engine.json"), &["--truth-log", &log]);
        let ended = plimsoll(&[
            "run",
            &engine.url,
            "--trace",
            &trace,
            "--set",
            "prompts.words_per_token=1.0001",
            "-q",
            "-o",
            &run,
        ]);
        assert!(matches!(ended.code, 0 | 4), "{}", ended.stderr);
        engine.stop();
    }
    let (_, records) =
        plimsoll_server::truth::read(&fs::read_to_string(&log).expect("a log")).expect("a log");
    let opened = plimsoll_store::open(Path::new(&run)).expect("a run");
    let turns: usize = sessions.iter().map(|session| session.turns.len()).sum();
    let rows: BTreeMap<(usize, usize), &Attempt> = opened
        .attempts
        .iter()
        .map(|row| ((row.session.expect("a session") as usize, usize::from(row.turn)), row))
        .collect();
    assert_eq!((opened.attempts.len(), rows.len()), (turns, turns));
    let known = |row: &Attempt| {
        let id = format!("{}-{}-{}-{}", opened.manifest.id, row.level, row.request, row.attempt);
        records.iter().find(|record| record.id.as_ref() == Some(&id)).expect("the engine knows it")
    };
    let mut late = Vec::new();
    for ((session, turn), row) in &rows {
        assert!(row.outcome.is_finished(), "{row:?}");
        let of = &sessions[*session].turns[*turn];
        let Some(last) = of.after.iter().map(|before| rows[&(*session, *before)]).max_by_key(|row| row.end)
        else {
            assert_eq!((row.due - opened.manifest.levels[0].start).0, sessions[*session].begins);
            continue;
        };
        // By the client's own rows to the nanosecond, and by the engine's clock never before.
        assert_eq!(row.due.0, last.end.expect("ended").0 + of.wait, "turn {turn} of {session}");
        let ended = of
            .after
            .iter()
            .filter_map(|before| known(rows[&(*session, *before)]).end_ns)
            .max()
            .expect("ended");
        late.push(known(row).arrival_ns - ended - of.wait);
    }
    late.sort_unstable();
    assert!(late[0] >= 0, "{} ns before it was due", -late[0]);
    let median = late[late.len() / 2];
    assert!(median < 60_000_000, "half of the turns came {median} ns late");
}

#[test]
fn what_comes_after_a_failure_is_never_sent_and_says_so() {
    let case = Case::new();
    let line = |id: &str, after: &[&str], output: u32| {
        json!({"timestamp": 0, "session_id": 1, "id": id, "after": after, "input_length": 8, "output_length": output}).to_string()
    };
    // Two branches; one breaks, and what needs both is not sent.
    let text = [
        line("a", &[], 3),
        line("b", &["a"], 13),
        line("c", &["b"], 3),
        line("d", &["a"], 3),
        line("e", &["c", "d"], 3),
    ];
    let trace = case.file("agents.jsonl", &text.join("\n"));
    let server = Server::reading(|_, body, socket| {
        use std::io::Write as _;
        let body: Value = serde_json::from_slice(body).unwrap_or_default();
        let breaks = body["max_tokens"] == 13 || body["max_completion_tokens"] == 13;
        let (status, answer) = match breaks {
            true => ("400 Bad Request", json!({"error": {"message": "no such tool"}})),
            false => (
                "200 OK",
                json!({"choices": [{"message": {"content": "one two three"}, "finish_reason": "length"}],
                "usage": {"prompt_tokens": 8, "completion_tokens": 3, "total_tokens": 11}}),
            ),
        };
        let answer = answer.to_string();
        let head = format!(
            "HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
            answer.len()
        );
        let _ = socket.write_all(format!("{head}{answer}").as_bytes());
    });
    let run = case.at("run");
    let ended = plimsoll(&[
        "run",
        &server.url,
        "--trace",
        &trace,
        "--rate",
        "5/s",
        "--model",
        "m",
        "--no-stream",
        "--set",
        "prompts.words_per_token=1.0001",
        "-q",
        "--format",
        "json",
        "-o",
        &run,
    ]);
    assert!(matches!(ended.code, 0 | 4), "{} {}", ended.code, ended.stderr);
    let mut rows = case.rows();
    rows.sort_by_key(|row| row.turn);
    let how: Vec<How> = rows.iter().map(|row| row.outcome.how).collect();
    assert_eq!(how, [How::Finished, How::ClientError, How::NeverSent, How::Finished, How::NeverSent]);
    for row in [&rows[2], &rows[4]] {
        assert_eq!(row.answer.error.as_deref(), Some("an earlier turn of its session had no answer"));
    }
    let sessions = &ended.json()["findings"]["levels"][0]["summary"]["sessions"];
    assert_eq!((&sessions["begun"], &sessions["failed"]), (&json!(1), &json!(1)), "{sessions}");
}

#[test]
fn a_trace_that_is_no_graph_is_refused_with_its_line() {
    let case = Case::new();
    let line = |id: &str, after: &str| {
        json!({"timestamp": 0, "session_id": 1, "id": id, "after": [after], "input_length": 8, "output_length": 2}).to_string()
    };
    let trace = case.file("agents.jsonl", &[line("a", "b"), line("b", "a")].join("\n"));
    let ended = plimsoll(&["simulate", "--trace", &trace, "--rate", "2/s"]);
    assert_eq!(ended.code, 2, "{}", ended.stderr);
    let [said] = ended.stderr.lines().collect::<Vec<_>>()[..] else { panic!("one line: {}", ended.stderr) };
    assert!(said.contains("agents.jsonl, line 1: its turns wait for each other in a circle"), "{said}");
}
