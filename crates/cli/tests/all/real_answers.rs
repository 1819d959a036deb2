//! `--real-answers`: prompts of later turns contain the server's answers, by the server's own record, and no file contains them.

use std::collections::HashMap;
use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};

use crate::agents::growing;
use crate::kit::{Server, plimsoll};

/// The messages and the answer of each request, in order.
type Told = Arc<Mutex<Vec<(Vec<Value>, String)>>>;

/// A server whose answers are all different, whole or in two pieces as requested.
fn server(told: &Told) -> Server {
    let told = Arc::clone(told);
    Server::reading(move |_, body, socket| {
        let body: Value = serde_json::from_slice(body).unwrap_or_default();
        let messages = body["messages"].as_array().cloned().unwrap_or_default();
        let answer = {
            let mut told = told.lock().expect("not poisoned");
            let answer = format!("Answer-{} «ja»", told.len());
            told.push((messages, answer.clone()));
            answer
        };
        let usage = json!({"prompt_tokens": 8, "completion_tokens": 3, "total_tokens": 11});
        let reply = if body["stream"] == true {
            let (a, b) = answer.split_at(8);
            let piece = |text: &str| json!({"choices": [{"index": 0, "delta": {"content": text}}]});
            let end =
                json!({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}], "usage": usage});
            let events: String =
                [piece(a), piece(b), end].iter().map(|event| format!("data: {event}\n\n")).collect();
            let body = format!("{events}data: [DONE]\n\n");
            format!("content-type: text/event-stream\r\ncontent-length: {}\r\n\r\n{body}", body.len())
        } else {
            let body =
                json!({"choices": [{"message": {"content": answer}, "finish_reason": "stop"}], "usage": usage}).to_string();
            format!("content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}", body.len())
        };
        let _ = socket.write_all(format!("HTTP/1.1 200 OK\r\n{reply}").as_bytes());
    })
}

/// Sends a load; returns the server's record and the run's folder.
fn sent(place: &Path, load: &[&str]) -> Vec<(Vec<Value>, String)> {
    let told: Told = Arc::default();
    let server = server(&told);
    let run = place.join("run").display().to_string();
    let rest =
        ["--model", "m", "--scrape", "off", "--set", "prompts.words_per_token=1.0001", "-q", "-o", &run];
    let ended = plimsoll(&[&["run", &server.url][..], load, &rest].concat());
    assert!(matches!(ended.code, 0 | 4), "{}", ended.stderr);
    let all = told.lock().expect("not poisoned");
    all.clone()
}

/// Returns the number of answers in prompts; each must be the answer to the previous prompt.
fn held(told: &[(Vec<Value>, String)]) -> usize {
    let given: HashMap<String, &String> =
        told.iter().map(|(messages, answer)| (json!(messages).to_string(), answer)).collect();
    let mut held = 0;
    for (messages, _) in told {
        for (place, message) in messages.iter().enumerate().filter(|(_, one)| one["role"] == "assistant") {
            let before = json!(messages[..place]).to_string();
            assert_eq!(
                message["content"].as_str(),
                given.get(&before).map(|answer| answer.as_str()),
                "{before}"
            );
            held += 1;
        }
    }
    held
}

fn nothing_is_written(place: &Path) {
    let rows = plimsoll_store::open(&place.join("run")).expect("a run").attempts;
    assert!(!rows.is_empty() && rows.iter().all(|row| row.answer.text.is_none()));
    for file in fs::read_dir(place.join("run")).expect("a folder") {
        let bytes = fs::read(file.expect("a file").path()).unwrap_or_default();
        assert!(!bytes.windows(7).any(|window| window == b"Answer-"));
    }
}

#[test]
fn prompts_of_agents_hold_the_answers_that_came() {
    let place = tempfile::tempdir().expect("a folder");
    let trace = place.path().join("agents.jsonl").display().to_string();
    fs::write(&trace, growing()).expect("written");
    let load = ["--trace", &trace, "--speed", "20"];
    for more in [&["--real-answers"][..], &["--real-answers", "--no-stream"]] {
        let told = sent(place.path(), &[&load[..], more].concat());
        // One in the second call and two in the fourth, of thirty sessions.
        assert_eq!(held(&told), 90);
        nothing_is_written(place.path());
        fs::remove_dir_all(place.path().join("run")).expect("removed");
    }
    let told = sent(place.path(), &load);
    let made_up = told.iter().flat_map(|(messages, _)| messages);
    assert!(made_up.clone().any(|one| one["role"] == "assistant"));
    assert!(made_up.into_iter().all(|one| !one["content"].to_string().contains("Answer-")));
}

#[test]
fn conversations_hold_them_too() {
    let place = tempfile::tempdir().expect("a folder");
    let load = [
        "--sessions",
        "3,10ms",
        "--rate",
        "60/s",
        "--for",
        "2s",
        "--isl",
        "20",
        "--osl",
        "3",
        "--real-answers",
    ];
    let told = sent(place.path(), &load);
    let turns = |n: usize| told.iter().filter(|(messages, _)| messages.len() == n).count();
    assert!(turns(5) > 10, "{} third turns", turns(5));
    assert_eq!(held(&told), turns(3) + 2 * turns(5));
    nothing_is_written(place.path());
}

#[test]
fn answers_without_sessions_are_refused() {
    let server = server(&Arc::default());
    let ended =
        plimsoll(&["run", &server.url, "--model", "m", "--rate", "5/s", "--for", "1s", "--real-answers"]);
    assert_eq!(ended.code, 2, "{}", ended.stderr);
    assert!(
        ended.stderr.contains("prompts.answers: there are no sessions whose prompts could contain answers"),
        "{}",
        ended.stderr
    );
}
