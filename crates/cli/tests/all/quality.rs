//! Two endpoints whose every answer is known: agreement, first divergence and scores must match the table below.

use std::io::Write;
use std::net::TcpStream;
use std::path::Path;
use std::sync::Mutex;

use serde_json::{Value, json};

use crate::kit::{Engine, Server, plimsoll, reply, stream_head};

/// Prompt, A's answer, B's answer.
const TABLE: [(&str, &str, &str); 8] = [
    ("q0", "the capital is Paris", "the capital is Paris"),
    ("q1", "so we get 12", "so we get 12.0"),
    ("q2", "The answer is B.", "The answer is C."),
    ("q3", "one two three four", "one two three five"),
    ("q4", "forty two", "forty two"),
    ("q5", "3 apples and 4 pears make 7", "3 apples and 4 pears make 8"),
    ("q6", "short", "short but longer"),
    ("q7", "blue", "green"),
];

/// An endpoint that answers the prompt `qN` with its text, word by word; `q6` every second time with another one where it `wavers`.
fn endpoint(second: bool, wavers: bool) -> Server {
    let times = Mutex::new(0);
    Server::reading(move |first, body, socket| {
        if first.starts_with("GET") {
            return reply(socket, "200 OK", "content-type: application/json\r\n", r#"{"data":[{"id":"m"}]}"#);
        }
        let body: Value = serde_json::from_slice(body).unwrap_or_default();
        // A request with a temperature other than 0, or with a salt before it, gets no answer.
        let prompt = body["messages"][0]["content"].as_str().unwrap_or_default();
        let known = TABLE.iter().find(|row| row.0 == prompt && body["temperature"] == 0.0);
        let Some(row) = known else {
            return reply(socket, "400 Bad Request", "", "unknown");
        };
        let mut text = if second { row.2 } else { row.1 };
        if wavers && prompt == "q6" {
            let mut times = times.lock().expect("no test panicked");
            *times += 1;
            text = if *times % 2 == 0 { "other" } else { text };
        }
        stream(socket, text);
    })
}

fn stream(socket: &mut TcpStream, text: &str) {
    stream_to(socket, text, "stop");
}

fn stream_to(socket: &mut TcpStream, text: &str, reason: &str) {
    stream_head(socket);
    for piece in text.split_inclusive(' ') {
        let event = json!({"choices": [{"index": 0, "delta": {"content": piece}}]});
        let _ = write!(socket, "data: {event}\n\n");
    }
    let end = json!({"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]});
    let _ = write!(socket, "data: {end}\n\ndata: [DONE]\n\n");
    let _ = socket.shutdown(std::net::Shutdown::Both);
}

fn eval(folder: &Path) -> String {
    let lines = [
        json!({"id": "capital", "prompt": "q0", "score": {"kind": "regex", "pattern": "(?i)paris"}}),
        json!({"prompt": "q1", "score": {"kind": "numeric", "answer": 12, "tolerance": 0.01}}),
        json!({"prompt": "q2", "score": {"kind": "choice", "answer": "B"}}),
        json!({"messages": [{"role": "user", "content": "q3"}]}),
        json!({"prompt": "q4", "score": {"kind": "exact", "answer": "forty two"}}),
        json!({"prompt": "q5", "score": {"kind": "numeric", "answer": 8}}),
        json!({"prompt": "q6", "max_tokens": 5}),
        json!({"prompt": "q7", "score": {"kind": "exact", "answer": "blue"}}),
    ];
    let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
    let path = folder.join("eval.jsonl");
    std::fs::write(&path, text).expect("written");
    path.to_str().expect("utf-8").to_owned()
}

#[test]
fn every_figure_is_the_tables() {
    let (a, b) = (endpoint(false, true), endpoint(true, false));
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (eval, out) = (eval(folder.path()), folder.path().join("quality.json"));
    let out = out.to_str().expect("utf-8");
    let args = ["quality", &a.url, &b.url, "--eval", &eval, "-o", out, "--format", "json", "-q"];
    let ended = plimsoll(&args);
    let found = ended.json();
    // Six scored items decide nothing at two points.
    assert_eq!(ended.code, 3, "{}", ended.stderr);
    let scores = &found["scores"];
    // A: q0 q1 q2 q4 q7 right, q5 wrong; B: q0 q1 q4 q5 right.
    assert_eq!(scores["only_a"], 2);
    assert_eq!(scores["only_b"], 1);
    assert_eq!(scores["a"]["value"], 5.0 / 6.0);
    assert_eq!(scores["b"]["value"], 4.0 / 6.0);
    assert_eq!(scores["p"], 1.0);
    let parts: Vec<Option<u64>> = found["items"]
        .as_array()
        .expect("items")
        .iter()
        .map(|item| item["first_divergence"].as_u64())
        .collect();
    assert_eq!(parts, [None, Some(4), Some(3), Some(3), None, Some(6), Some(1), Some(0)]);
    // q0 and q4 are equal in both rounds; A's answers to q6 vary and never equal B's.
    assert_eq!(found["agreement"]["between"]["exact"]["value"], 2.0 / 8.0);
    assert_eq!(found["agreement"]["a_itself"]["exact"]["value"], 7.0 / 8.0);
    assert_eq!(found["agreement"]["b_itself"]["exact"]["value"], 1.0);
    assert_eq!(found["agreement"]["longer_shorter"], json!([2, 0]));
    assert_eq!(found["items"][0]["id"], "capital");
    // Answers are stored only on request.
    let text = std::fs::read_to_string(out).expect("written");
    assert!(!text.contains("Paris") && !text.contains("pears"));
    assert_eq!(serde_json::from_str::<Value>(&text).expect("JSON"), found);
}

#[test]
fn answers_are_kept_when_asked_for_and_a_comparison_can_quote_the_result() {
    let (a, b) = (endpoint(false, false), endpoint(false, false));
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (eval, out) = (eval(folder.path()), folder.path().join("quality.json"));
    let out = out.to_str().expect("utf-8");
    let args =
        ["quality", &a.url, &b.url, "--eval", &eval, "-o", out, "--keep-answers", "--repeat", "1", "-q"];
    let ended = plimsoll(&[&args[..], &["--margin", "0.5"]].concat());
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    assert!(ended.stdout.contains("not worse by more than 50.0 points"), "{}", ended.stdout);
    assert!(ended.stdout.contains("sent once at temperature 0"), "{}", ended.stdout);
    let text = std::fs::read_to_string(out).expect("written");
    assert!(text.contains("the capital is Paris"));
    // Twice the same file: a result is never overwritten.
    assert_eq!(plimsoll(&args).code, 2);
    let wrong = folder.path().join("eval.jsonl");
    let ended = plimsoll(&["compare", "--quality", wrong.to_str().expect("utf-8")]);
    assert!(ended.code == 2 && ended.stderr.contains("no results of plimsoll quality"), "{}", ended.stderr);
}

#[test]
fn a_bad_line_is_named_by_its_number() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("eval.jsonl");
    let name = path.to_str().expect("utf-8");
    for (line, said) in [
        (r#"{"prompt": "x""#, "not JSON"),
        (r#"["x"]"#, "an item is a JSON object"),
        (r#"{"promt": "x"}"#, "prompt"),
        (r#"{"id": "x"}"#, "want either \"prompt\" or a non-empty \"messages\""),
        (r#"{"prompt": "x", "max_tokens": 0}"#, "at least 1"),
        (r#"{"prompt": "x", "score": {"kind": "numerc", "answer": 1}}"#, "numeric"),
        (r#"{"prompt": "x", "score": {"kind": "regex", "pattern": "("}}"#, "pattern"),
        (r#"{"prompt": "x", "score": {"kind": "choice", "answer": "E"}}"#, "none of the choices A, B, C, D"),
    ] {
        std::fs::write(&path, format!("{{\"prompt\": \"fine\"}}\n\n{line}\n")).expect("written");
        let ended = plimsoll(&["quality", "http://127.0.0.1:9/v1", "http://127.0.0.1:9/v1", "--eval", name]);
        assert_eq!(ended.code, 2, "{line}: {}", ended.stderr);
        assert!(ended.stderr.contains("line 3") && ended.stderr.contains(said), "{line}: {}", ended.stderr);
        assert_eq!(ended.stderr.lines().count(), 1, "{}", ended.stderr);
    }
    std::fs::write(&path, "\n").expect("written");
    let ended = plimsoll(&["quality", "http://127.0.0.1:9/v1", "http://127.0.0.1:9/v1", "--eval", name]);
    assert!(ended.code == 2 && ended.stderr.contains("no item found"), "{}", ended.stderr);
}

#[test]
fn an_endpoint_that_does_not_answer_is_no_result() {
    let (a, b) = (
        endpoint(false, false),
        Server::start(|first, socket| match first.starts_with("GET") {
            true => reply(socket, "200 OK", "content-type: application/json\r\n", r#"{"data":[{"id":"m"}]}"#),
            false => reply(socket, "500 Internal Server Error", "", "broken"),
        }),
    );
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (eval, out) = (eval(folder.path()), folder.path().join("quality.json"));
    let ended =
        plimsoll(&["quality", &a.url, &b.url, "--eval", &eval, "-o", out.to_str().expect("utf-8"), "-q"]);
    assert_eq!(ended.code, 5, "{}", ended.stdout);
    assert!(ended.stdout.contains("B left 16 requests without an answer (HTTP 500"), "{}", ended.stdout);
}

/// An endpoint that closes the connection in `q3` each time, refuses `q5`, and ends `q6` at the requested limit of tokens.
fn breaks_off() -> Server {
    Server::reading(|first, body, socket| {
        if first.starts_with("GET") {
            return reply(socket, "200 OK", "content-type: application/json\r\n", r#"{"data":[{"id":"m"}]}"#);
        }
        let body: Value = serde_json::from_slice(body).unwrap_or_default();
        let prompt = body["messages"][0]["content"].as_str().unwrap_or_default();
        let Some(row) = TABLE.iter().find(|row| row.0 == prompt) else { return };
        match prompt {
            "q3" => {
                stream_head(socket);
                let event = json!({"choices": [{"index": 0, "delta": {"content": "one two "}}]});
                let _ = write!(socket, "data: {event}\n\n");
                let _ = socket.shutdown(std::net::Shutdown::Both);
            }
            "q5" => reply(socket, "503 Service Unavailable", "", "busy"),
            "q6" => stream_to(socket, row.2, "length"),
            _ => stream(socket, row.2),
        }
    })
}

/// An incomplete answer is neither agreement nor disagreement: it is in no figure, with a note.
/// An answer that was cut at the limit of tokens is compared, with a note.
#[test]
fn answers_that_break_off_count_in_no_figure_and_cut_ones_are_named() {
    let (a, b) = (endpoint(false, false), breaks_off());
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (eval, out) = (eval(folder.path()), folder.path().join("quality.json"));
    let out = out.to_str().expect("utf-8");
    let args = ["quality", &a.url, &b.url, "--eval", &eval, "-o", out, "-q"];
    let ended = plimsoll(&args);
    // Two of eight have no answer, so the answered ones do not represent all.
    assert_eq!(ended.code, 4, "{}{}", ended.stdout, ended.stderr);
    assert!(ended.stdout.contains("B left 4 requests without an answer"), "{}", ended.stdout);
    assert!(ended.stdout.contains("0 of A's and 1 of B's first answers"), "{}", ended.stdout);
    let text = std::fs::read_to_string(out).expect("written");
    let found: Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!((&found["targets"][1]["unanswered"], &found["targets"][1]["cut"]), (&json!(4), &json!(1)));
    let items = found["items"].as_array().expect("items");
    for lost in [3, 5] {
        assert_eq!((&items[lost]["same"], &items[lost]["tokens_b"]), (&Value::Null, &Value::Null));
        assert_eq!(items[lost]["right_b"], Value::Null);
    }
    assert_eq!((&items[6]["cut_b"], &items[6]["same"]), (&json!(true), &json!(false)));
    // q0 and q4 agree, q1 q2 q6 q7 do not: two of six, not of eight.
    assert_eq!(found["agreement"]["between"]["exact"]["n"], 6);
    assert_eq!(found["agreement"]["between"]["exact"]["value"], 2.0 / 6.0);
    // Scored: q0 q1 q2 q4 q7.
    assert_eq!(found["scores"]["difference"]["n"], 5);
}

/// The embedded engine takes temperature 0 at its word: the same prompt, the same answer, on either of two engines.
#[test]
fn the_embedded_engine_repeats_itself_at_temperature_zero() {
    let (a, b) = (Engine::start("demo"), Engine::start("demo"));
    let folder = tempfile::tempdir().expect("a temporary folder");
    let eval = folder.path().join("eval.jsonl");
    let lines: String =
        (0..12).map(|i| format!("{{\"prompt\": \"say {i} things\", \"max_tokens\": 20}}\n")).collect();
    std::fs::write(&eval, lines).expect("written");
    let out = folder.path().join("quality.json");
    let [eval, out] = [&eval, &out].map(|path| path.to_str().expect("utf-8"));
    let ended = plimsoll(&["quality", &a.url, &b.url, "--eval", eval, "-o", out, "--format", "json", "-q"]);
    assert_eq!(ended.code, 0, "{}{}", ended.stdout, ended.stderr);
    let found = ended.json();
    for which in ["between", "a_itself", "b_itself"] {
        assert_eq!(found["agreement"][which]["exact"]["value"], 1.0, "{which}: {found:#}");
    }
    // The answer never ends before the limit, and the output reports it.
    assert_eq!((&found["targets"][0]["cut"], &found["targets"][1]["cut"]), (&json!(12), &json!(12)));
}
