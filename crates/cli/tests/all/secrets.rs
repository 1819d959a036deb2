//! Keys never reach a run folder, a report, the screen or an error.

use std::path::Path;

use crate::kit::{Engine, Server, files, plimsoll_with, reply, run_folder};

const KEY: &str = "sk-plimsoll-0123456789abcdef";

fn leaks(bytes: &[u8]) -> bool {
    bytes.windows(KEY.len()).any(|window| window == KEY.as_bytes())
}

#[test]
fn a_key_leaves_no_trace() {
    let engine = Engine::start("canned");
    let (_folder, run) = run_folder();
    let args = ["run", &engine.url, "--rate", "20/s", "--for", "2s", "--osl", "4", "--key-env", "TEST_KEY"];
    let more = ["-H", "x-team: $TEST_KEY", "--format", "json", "-o", &run];
    let ended = plimsoll_with(&[&args[..], &more[..]].concat(), &[("TEST_KEY", KEY)]);
    assert!(matches!(ended.code, 0 | 4), "{}", ended.stderr);
    assert!(!ended.stdout.contains(KEY) && !ended.stderr.contains(KEY));
    let report = plimsoll_with(&["report", &run], &[("TEST_KEY", KEY)]);
    assert_eq!(report.code, 0, "{}", report.stderr);
    let files = files(Path::new(&run));
    assert!(files.iter().any(|(name, _)| name == "report.html"));
    for (name, bytes) in files {
        assert!(!leaks(&bytes), "{name} holds the key");
    }
    assert!(ended.json()["reproduce"].as_str().expect("text").contains("--key-env TEST_KEY"));
}

#[test]
fn a_server_that_repeats_the_key_in_its_error_is_not_quoted_with_it() {
    let server = Server::start(|_, socket| {
        let body = format!("{{\"error\":{{\"message\":\"invalid key {KEY}\"}}}}");
        reply(socket, "401 Unauthorized", "content-type: application/json\r\n", &body);
    });
    let (_folder, run) = run_folder();
    let args = [
        "run",
        &server.url,
        "--model",
        "m",
        "--rate",
        "20/s",
        "--for",
        "1s",
        "-o",
        &run,
        "--key-env",
        "TEST_KEY",
    ];
    let ended = plimsoll_with(&args, &[("TEST_KEY", KEY)]);
    assert!(!ended.stdout.contains(KEY) && !ended.stderr.contains(KEY), "{}{}", ended.stdout, ended.stderr);
    if Path::new(&run).exists() {
        for (name, bytes) in files(Path::new(&run)) {
            assert!(!leaks(&bytes), "{name} holds the key");
        }
    }
}

#[test]
fn a_missing_key_is_named_and_not_sent() {
    let ended =
        plimsoll_with(&["run", "http://127.0.0.1:9/v1", "--rate", "1/s", "--key-env", "NO_SUCH_KEY"], &[]);
    assert_eq!(ended.code, 2, "{}", ended.stderr);
    assert!(ended.stderr.contains("NO_SUCH_KEY"), "{}", ended.stderr);
}
