//! Every protocol of text from end to end: what the client measured of the embedded engine, against what the engine wrote
//! down of itself.

use std::collections::HashMap;
use std::path::Path;

use plimsoll_model::Attempt;
use serde_json::Value;

use crate::kit::{Engine, plimsoll, plimsoll_with, run_folder};

/// The engine's record of each request, by the name that the client gave it.
fn truth(log: &Path) -> HashMap<String, Value> {
    let text = std::fs::read_to_string(log).expect("a truth log");
    let rows = text.lines().skip(1).map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
    rows.filter_map(|row| Some((row["id"].as_str()?.to_owned(), row))).collect()
}

/// The rows of a run of its one level, with the engine's of the same request.
fn measured(base: &str, more: &[&str]) -> (Vec<(Attempt, Value)>, Value) {
    let folder = tempfile::tempdir().expect("a folder");
    let log = folder.path().join("truth.jsonl");
    let engine = Engine::start_with("demo", &["--truth-log", log.to_str().expect("utf-8")]);
    let url = engine.url.trim_end_matches("/v1").to_owned() + base;
    let (_kept, run) = run_folder();
    let load = ["run", &url, "--rate", "60/s", "--for", "2s", "-q", "-o", &run, "--format", "json"];
    let ended = plimsoll(&[&load[..], more].concat());
    assert!(matches!(ended.code, 0 | 4), "{}", ended.stderr);
    engine.stop();
    let truth = truth(&log);
    let opened = plimsoll_store::open(Path::new(&run)).expect("a run");
    let id = &opened.manifest.id;
    let level = opened.manifest.levels.iter().find(|level| level.purpose == "run").expect("a level").id;
    let rows: Vec<(Attempt, Value)> = opened
        .attempts
        .into_iter()
        .filter(|row| row.level == level)
        .map(|row| {
            let name = format!("{id}-{}-{}-{}", row.level, row.request, row.attempt);
            let known = truth.get(&name).unwrap_or_else(|| panic!("the engine knows no {name}")).clone();
            (row, known)
        })
        .collect();
    assert!(rows.len() > 60, "{} requests", rows.len());
    (rows, ended.json())
}

/// Prompts, tokens and first tokens are the engine's, with the wire between them.
fn agrees(base: &str, route: &str, more: &[&str]) {
    let (rows, _) = measured(base, &[more, &["--isl", "40", "--osl", "12"]].concat());
    let mut late = Vec::new();
    for (row, known) in &rows {
        let answer = &row.answer;
        assert!(row.outcome.is_finished() && answer.broken.is_none(), "{:?}", row.outcome);
        assert_eq!(known["path"], route);
        assert_eq!(answer.tokens.prompt.map(Value::from), Some(known["prompt_tokens"].clone()));
        assert_eq!(answer.tokens.output, Some(12));
        assert_eq!(answer.finish_reason.as_deref(), Some("length"));
        assert_eq!(row.events.iter().filter(|event| event.kind.is_token()).count(), 12);
        let served = known["writes_ns"][0].as_i64().expect("a write")
            - known["arrival_ns"].as_i64().expect("an arrival");
        let seen = (row.first_token.expect("a token") - row.sent.expect("sent")).0;
        late.push((seen - served) as f64 / 1e6);
    }
    late.sort_by(f64::total_cmp);
    let median = late[late.len() / 2];
    assert!((0.0..1.0).contains(&median), "first tokens are {median} ms after the engine wrote them");
}

#[test]
fn messages_are_measured_as_the_engine_sent_them() {
    agrees("/v1", "/v1/messages", &["--api", "messages"]);
}

#[test]
fn ollamas_chat_is_measured_as_the_engine_sent_it() {
    agrees("", "/api/chat", &["--api", "ollama"]);
}

#[test]
fn ollamas_generate_is_measured_as_the_engine_sent_it() {
    agrees("", "/api/generate", &["--api", "ollama_generate"]);
}

/// Answers are complete, with a result for each document. Prompts have the configured length: the query with each document.
#[test]
fn ranks_scores_and_pools_are_measured_as_the_engine_sent_them() {
    for (base, route, api, more) in [
        ("/v1", "/v1/rerank", "rerank", &["--documents", "7"][..]),
        ("/v1", "/v1/score", "score", &[]),
        ("", "/pooling", "pooling", &[]),
        ("", "/classify", "classify", &[]),
    ] {
        let (rows, json) = measured(base, &[&["--api", api, "--isl", "90"], more].concat());
        for (row, known) in &rows {
            assert!(row.outcome.is_finished() && row.answer.broken.is_none(), "{api}: {:?}", row.answer);
            assert_eq!((&known["path"], &known["prompt_tokens"]), (&Value::from(route), &Value::from(90)));
            assert_eq!((row.answer.tokens.prompt, row.first_token), (Some(90), None));
        }
        let documents = match api {
            "rerank" => Some("7"),
            "score" => Some("10"),
            _ => None,
        };
        assert_eq!(json["scenario"]["target"]["documents"].as_str(), documents, "{api}");
    }
}

/// Documents have drawn numbers and lengths: the engine counts the same documents and tokens as the rows, and each token costs time.
#[test]
fn documents_of_drawn_lengths_are_what_the_engine_reads() {
    for (base, api) in
        [("/v1", "rerank"), ("/v1", "score"), ("", "pooling"), ("", "classify"), ("/v1", "embeddings")]
    {
        let (rows, json) =
            measured(base, &["--api", api, "--documents", "uniform:2,9*uniform:10,30", "--isl", "5"]);
        let query = if ["rerank", "score"].contains(&api) { 5 } else { 0 };
        for (row, known) in &rows {
            assert!(row.outcome.is_finished() && row.answer.broken.is_none(), "{api}: {:?}", row.answer);
            let (documents, asked) = (row.media.documents, row.asked_prompt);
            assert_eq!(known["media"]["documents"], documents, "{api}");
            assert_eq!(
                (&known["prompt_tokens"], row.answer.tokens.prompt),
                (&Value::from(asked), Some(asked))
            );
            assert!((2..=9).contains(&documents), "{api}: {documents}");
            assert!((documents * (10 + query)..=documents * (30 + query)).contains(&asked), "{api}: {asked}");
        }
        let rates = &json["findings"]["levels"][0]["summary"]["rates"];
        assert!(rates["documents_per_s"]["value"].as_f64().is_some_and(|rate| rate > 60.0), "{api}: {rates}");
    }
}

/// The URL goes to stdout for scripts, progress messages go to stderr for users.
#[test]
fn an_engine_can_be_quiet() {
    let serve = ["engine", "--listen", "127.0.0.1:0", "--until-stdin-ends"];
    let (talks, quiet) = (plimsoll(&serve), plimsoll(&[&serve[..], &["-q"]].concat()));
    assert_eq!((talks.code, quiet.code), (0, 0), "{}{}", talks.words(), quiet.words());
    assert!(talks.stderr.contains("serving profile demo") && quiet.stderr.is_empty(), "{}", quiet.stderr);
    assert!(quiet.stdout.starts_with("http://127.0.0.1:") && quiet.stdout.lines().count() == 1);
}

/// A server that drops a document returns a complete but wrong response: the record marks it, and the run warns.
#[test]
fn a_rank_that_lacks_a_document_is_broken() {
    use crate::kit::{Server, reply};
    let server = Server::start(|first, socket| {
        let body = match first.starts_with("POST") {
            true => r#"{"results":[{"index":0,"relevance_score":0.5},{"index":1,"relevance_score":0.4}]}"#,
            false => r#"{"data":[{"id":"m"}]}"#,
        };
        reply(socket, "200 OK", "content-type: application/json\r\n", body);
    });
    let (_folder, run) = run_folder();
    let args =
        ["run", &server.url, "--api", "rerank", "--documents", "3", "--concurrency", "1", "--requests", "4"];
    let ended = plimsoll(&[&args[..], &["-q", "-o", &run]].concat());
    assert!(matches!(ended.code, 0 | 4), "{}", ended.stderr);
    let rows = plimsoll_store::open(Path::new(&run)).expect("a run").attempts;
    assert!(rows.iter().all(|row| row.answer.broken == Some(plimsoll_model::Broken::WrongCount)), "{rows:?}");

    let ended = plimsoll(&["run", &server.url, "--documents", "3", "--rate", "1/s"]);
    assert_eq!(ended.code, 2);
    assert!(
        ended.stderr.contains(
            "--documents: only --protocol rerank, score, pooling, classify and embeddings send documents"
        ),
        "{}",
        ended.stderr
    );
    let ended = plimsoll(&["run", &server.url, "--api", "rerank", "--documents", "0", "--rate", "1/s"]);
    assert_eq!(ended.code, 2);
    assert!(ended.stderr.contains("target.documents"), "{}", ended.stderr);
}

/// A key is sent as each kind of server wants it, and is nowhere in the run.
#[test]
fn messages_carry_the_key_and_the_version() {
    use crate::kit::{Server, reply};
    let seen = std::sync::Arc::new(std::sync::Mutex::new(String::new()));
    let heads = std::sync::Arc::clone(&seen);
    let server = Server::whole(move |head, _, socket| {
        if head.starts_with("POST") {
            *heads.lock().expect("held") = head.to_ascii_lowercase();
            let body = r#"{"type":"message","content":[{"type":"text","text":"a"}],"stop_reason":"max_tokens","usage":{"input_tokens":4,"output_tokens":1}}"#;
            return reply(socket, "200 OK", "content-type: application/json\r\n", body);
        }
        reply(socket, "200 OK", "content-type: application/json\r\n", r#"{"data":[{"id":"m"}]}"#);
    });
    let (folder, run) = run_folder();
    let args = ["run", &server.url, "--protocol", "anthropic", "--key-env", "ANT_KEY", "--no-stream"];
    let load = ["--concurrency", "1", "--requests", "2", "--osl", "1", "-q", "-o", &run];
    let ended = plimsoll_with(&[&args[..], &load].concat(), &[("ANT_KEY", "sk-ant-7f3a")]);
    assert!(matches!(ended.code, 0 | 4), "{}", ended.stderr);
    let head = seen.lock().expect("held").clone();
    for want in [
        "post /v1/messages ",
        "x-api-key: sk-ant-7f3a",
        "authorization: bearer sk-ant-7f3a",
        "anthropic-version: 2023-06-01",
    ] {
        assert!(head.contains(want), "{want} is not in\n{head}");
    }
    for (name, bytes) in crate::kit::files(folder.path()) {
        assert!(!bytes.windows(11).any(|part| part == b"sk-ant-7f3a"), "the key is in {name}");
    }
}
