//! A target that refuses the requests before the load: a permanent refusal is detected by one request, and no load is sent.

use std::io::Write;
use std::net::TcpStream;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::Value;

use crate::kit::{Ended, Engine, PLIMSOLL, Server, chunk, plimsoll, reply, run_folder, stream_head};

const JSON: &str = "content-type: application/json\r\n";

/// Runs a second of load against a server that lists the model `tiny` and answers with `answer`.
/// Returns the result and the number of requests that the server received.
fn run(more: &[&str], answer: impl Fn(&Value, &mut TcpStream) + Send + Sync + 'static) -> (Ended, usize) {
    let asked = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&asked);
    let server = Server::reading(move |request, body, socket| {
        if request.starts_with("GET") {
            return reply(socket, "200 OK", JSON, r#"{"object":"list","data":[{"id":"tiny"}]}"#);
        }
        counted.fetch_add(1, Ordering::SeqCst);
        answer(&serde_json::from_slice(body).expect("JSON"), socket);
    });
    let (_folder, run) = run_folder();
    let args =
        ["run", &server.url, "--rate", "20/s", "--for", "1s", "--osl", "4", "--isl", "100", "-o", &run];
    let ended = plimsoll(&[&args[..], &["--format", "json"], more].concat());
    (ended, asked.load(Ordering::SeqCst))
}

/// A whole answer whose usage counts `prompt` tokens.
fn answers(prompt: usize, socket: &mut TcpStream) {
    stream_head(socket);
    let usage = format!(r#"{{"choices":[],"usage":{{"prompt_tokens":{prompt},"completion_tokens":1}}}}"#);
    let end = r#"{"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}"#;
    let _ = write!(socket, "{}data: {end}\n\ndata: {usage}\n\ndata: [DONE]\n\n", chunk("one"));
    let _ = socket.shutdown(std::net::Shutdown::Both);
}

fn words(body: &Value) -> usize {
    body["messages"][0]["content"].as_str().expect("text").split_whitespace().count()
}

/// vLLM's own words (fixture `vllm-cpu/error_unknown_model.http` of the wire crate).
fn no_such_model(_: &Value, socket: &mut TcpStream) {
    let body = r#"{"error":{"message":"The model `nope` does not exist. Valid aliases: tiny.","type":"NotFoundError","param":"model","code":404}}"#;
    reply(socket, "404 Not Found", JSON, body);
}

#[test]
fn a_wrong_model_is_a_wrong_flag_and_no_load_is_sent() {
    for more in [&["-m", "nope"][..], &["-m", "nope", "--set", "prompts.words_per_token=1.5"]] {
        let (ended, asked) = run(more, no_such_model);
        assert_eq!(ended.code, 2, "{}", ended.stderr);
        let line = ended.stderr.lines().last().unwrap_or_default();
        assert!(line.contains("--model nope") && line.contains("it lists tiny"), "{line}");
        assert!(asked <= 5, "{asked} requests were sent");
    }
}

#[test]
fn who_insists_gets_the_load() {
    let (ended, asked) = run(&["-m", "nope", "--force"], no_such_model);
    assert!(asked > 5, "{asked} requests: {}", ended.stderr);
    assert_eq!(ended.code, 4, "{}", ended.stderr);
    let run = ended.json();
    let reasons = run["findings"]["validity"]["reasons"].to_string();
    assert!(reasons.contains("the target fails") && !reasons.contains("too few requests"), "{reasons}");
}

#[test]
fn a_load_of_which_nothing_finished_is_said_to_have_failed() {
    let server = Server::start(|request, socket| match request.starts_with("GET") {
        true => reply(socket, "200 OK", JSON, r#"{"object":"list","data":[{"id":"tiny"}]}"#),
        false => reply(socket, "502 Bad Gateway", "", "no upstream"),
    });
    let (_folder, run) = run_folder();
    let load = ["--force", "--rate", "20/s", "--for", "1s", "-q", "-o", &run];
    let ended = plimsoll(&[&["run", &server.url][..], &load].concat());
    let said = ended.words();
    assert!(said.contains("the target fails: none of"), "{}{}", ended.stdout, ended.stderr);
    assert!(
        said.contains("502") && !said.contains("too few requests for any percentile"),
        "{}",
        ended.stdout
    );
}

/// An engine on the same machine takes cores only when it works.
#[test]
fn the_doctor_looks_while_the_endpoint_works() {
    let engine = Engine::start("demo");
    let ended = plimsoll(&["doctor", &engine.url, "--for", "500ms", "--format", "json"]);
    let checks: Vec<String> =
        ended.json().as_array().expect("a list").iter().map(|f| f["check"].to_string()).collect();
    assert!(checks.iter().any(|check| check.contains("pacer under load")), "{checks:?} {}", ended.stderr);
    let ended = plimsoll(&["doctor", "http://127.0.0.1:1/v1"]);
    assert_eq!(ended.code, 5, "{}", ended.stderr);
}

/// The embedded engine reports the configuration of its batcher, and no statistics.
#[test]
fn the_doctor_says_what_it_cannot_know_of_a_batcher() {
    let engine = Engine::start("resnet50-triton@a100");
    let doctor = |more: &[&str]| {
        plimsoll(&[&["doctor", &engine.url, "--protocol", "kserve", "--for", "500ms"][..], more].concat())
    };
    let ended = doctor(&["--compiled-batch", "1,4,8"]);
    for says in ["dynamic batching", "reports no statistics", "the compiled profile has 1 to 8 rows"] {
        assert!(ended.stdout.contains(says), "{says}: {} {}", ended.stdout, ended.stderr);
    }
    for (more, says) in [
        (["--slo", "tpot p99 < 5ms"], "no limit on e2e or ttft"),
        (["--compiled-batch", "8,4,1"], "write MIN,OPT,MAX"),
    ] {
        let ended = doctor(&more);
        assert!(ended.code == 2 && ended.stderr.contains(says), "{}", ended.stderr);
    }
}

#[test]
fn a_target_that_fails_is_a_source_that_is_not_there() {
    let (ended, asked) = run(&[], |_, socket| reply(socket, "502 Bad Gateway", "", "no upstream"));
    assert_eq!(ended.code, 5, "{}", ended.stderr);
    assert!(
        ended.stderr.contains("fails: a first request") && ended.stderr.contains("502"),
        "{}",
        ended.stderr
    );
    assert!(asked <= 5, "{asked} requests were sent");
}

/// OpenAI's newest models refuse an answer of one token.
#[test]
fn a_server_that_refuses_only_the_calibration_is_measured() {
    let (ended, asked) = run(&[], |body, socket| match body.to_string().contains("_tokens\":1,") {
        true => reply(socket, "400 Bad Request", JSON, r#"{"error":{"message":"at least 16"}}"#),
        false => answers(words(body), socket),
    });
    assert!(asked > 5, "{asked} requests: {}", ended.stderr);
    assert!(matches!(ended.code, 0 | 4), "{}", ended.stderr);
}

/// Two failures before an answer are no reason to send no load.
#[test]
fn a_server_that_fails_now_and_then_is_measured() {
    for (status, body) in [
        ("500 Internal Server Error", r#"{"error":{"message":"now and then"}}"#),
        ("200 OK", r#"{"error":{"message":"now and then"}}"#),
    ] {
        let count = AtomicUsize::new(0);
        let (ended, asked) = run(&[], move |body_asked, socket| match count.fetch_add(1, Ordering::SeqCst) {
            0 | 1 => reply(socket, status, JSON, body),
            _ => answers(words(body_asked), socket),
        });
        assert!(asked > 5, "{status}: {asked} requests: {}", ended.stderr);
        assert!(matches!(ended.code, 0 | 4), "{status}: {}", ended.stderr);
    }
}

/// The error is transformers 5.23 serve's.
#[test]
fn a_server_that_knows_no_ignore_eos_is_asked_without_it() {
    let (ended, _) = run(&[], |body, socket| match body.get("ignore_eos").is_some() {
        true => {
            let body = r#"{"detail":"Unexpected fields in the request: {'ignore_eos'}"}"#;
            reply(socket, "422 Unprocessable Entity", JSON, body);
        }
        false => answers(words(body), socket),
    });
    assert!(ended.stderr.contains("rejects ignore_eos"), "{}", ended.stderr);
    let run = ended.json();
    assert_eq!(run["scenario"]["target"]["ignore_eos"], false, "{}", ended.stderr);
    let counts = &run["findings"]["levels"][0]["summary"]["counts"];
    assert_eq!(counts["finished"], counts["requests"], "{counts}");
}

/// The tokeniser makes 1.25 tokens per word, and the chat template adds seven: 100 configured tokens are counted as 100.
#[test]
fn the_chat_template_is_taken_off_what_is_asked() {
    let (ended, _) = run(&[], |body, socket| answers(7 + words(body) * 5 / 4, socket));
    let run = ended.json();
    assert_eq!(run["scenario"]["prompts"]["template_tokens"], 7);
    let deviation = run["findings"]["levels"][0]["summary"]["lengths"]["prompt"]["deviation"].as_f64();
    assert!(deviation.is_some_and(|off| off.abs() < 0.011), "{deviation:?}");
}

/// A closed loop that finds no descriptor used to try 27 000 times a second.
#[test]
fn a_closed_loop_without_descriptors_does_not_spin() {
    let engine = Engine::start("demo");
    let (_folder, run) = run_folder();
    let limited = "ulimit -S -n 60 && ulimit -H -n 60 && exec \"$0\" \"$@\"";
    let ended = Command::new("sh")
        .args([
            "-c",
            limited,
            PLIMSOLL,
            "run",
            &engine.url,
            "--concurrency",
            "90",
            "--for",
            "1s",
            "--osl",
            "8",
        ])
        .args(["--set", "prompts.words_per_token=1.001", "-q", "-o", &run, "--format", "json"])
        .output()
        .expect("it runs");
    let stderr = String::from_utf8_lossy(&ended.stderr);
    let json: Value = serde_json::from_slice(&ended.stdout).unwrap_or_else(|e| panic!("{e}: {stderr}"));
    let refused =
        json["data"]["findings"]["levels"][0]["summary"]["counts"]["by_outcome"]["refused"].as_u64();
    // Twenty a second from one worker, and the waiting ones at the window's end.
    assert!(refused.is_some_and(|n| (1..400).contains(&n)), "{refused:?} {stderr}");
    let said = plimsoll(&["show", &run]).stdout;
    assert!(said.contains("descriptor"), "{said}");
}
