//! Checks that invalid requests get errors in OpenAI's format and affect no other request.

use super::http::{Client, canned, chat, config, get, metric, post, start, stuck, until_metric};
use plimsoll_model::Span;
use plimsoll_server::serve;

const CHAT: &str = "/v1/chat/completions";

#[test]
fn wrong_requests_are_told_what_is_wrong() {
    let running = start(canned(1.0, 1.0));
    let addr = running.addr();
    let cases: &[(&str, &str, u16)] = &[
        (CHAT, "{", 400),
        (CHAT, "", 400),
        (CHAT, "[]", 400),
        (CHAT, "\u{feff}nonsense", 400),
        (CHAT, r#"{"model":"tiny"}"#, 400),
        (CHAT, r#"{"model":"tiny","messages":[]}"#, 400),
        (CHAT, r#"{"model":"tiny","messages":"hello"}"#, 400),
        (CHAT, r#"{"messages":[{"role":"user","content":"a"}],"max_tokens":-5}"#, 400),
        (CHAT, r#"{"messages":[{"role":"user","content":"a"}],"max_tokens":99999999}"#, 400),
        (CHAT, r#"{"messages":[{"role":"user","content":"a"}],"n":2}"#, 400),
        (CHAT, r#"{"model":"other","messages":[{"role":"user","content":"a"}]}"#, 404),
        ("/v1/completions", r#"{"prompt":7}"#, 400),
        ("/v1/embeddings", r#"{"input":[]}"#, 400),
        ("/v1/nothing", "{}", 404),
    ];
    for (path, body, status) in cases {
        let answer = post(addr, path, body);
        assert_eq!(answer.status, *status, "{path} {body}");
        let error = &answer.json()["error"];
        assert!(error["message"].as_str().is_some_and(|m| !m.is_empty()), "{path} {body}");
        assert_eq!(error["code"], *status);
    }
    assert_eq!(get(addr, CHAT).status, 405);
    assert_eq!(get(addr, CHAT).header("allow"), Some("POST"));
    assert_eq!(post(addr, "/health", "").status, 405);
    assert_eq!(get(addr, "/").status, 404);
    // The server still works.
    assert_eq!(post(addr, CHAT, &chat(1, 1, "")).status, 200);
}

#[test]
fn too_much_is_refused_unread() {
    let mut config = config(canned(1.0, 1.0));
    config.limits.body_bytes = 1_000;
    let running = serve(config).unwrap();
    assert_eq!(post(running.addr(), CHAT, &chat(400, 1, "")).status, 413);
    // A body without a length is counted while it arrives.
    let mut client = Client::connect(running.addr());
    client.send(b"POST /v1/completions HTTP/1.1\r\nhost: t\r\ntransfer-encoding: chunked\r\n\r\n");
    let piece = format!("190\r\n{}\r\n", "x".repeat(400));
    (0..3).for_each(|_| client.send(piece.as_bytes()));
    assert_eq!(client.answer().status, 413);
    // A head without end.
    let mut client = Client::connect(running.addr());
    let head = format!("GET /health HTTP/1.1\r\nhost: t\r\nx: {}\r\n\r\n", "y".repeat(100_000));
    client.send(head.as_bytes());
    assert_eq!(client.head().map(|answer| answer.status), Some(431));
    assert_eq!(get(running.addr(), "/health").status, 200);
}

#[test]
fn a_full_queue_is_429_with_retry_after() {
    let running = start(stuck());
    let addr = running.addr();
    let mut first = Client::connect(addr);
    first.post(CHAT, "r-0-0-0", &chat(1, 4, r#","stream":true"#));
    assert_eq!(first.head().unwrap().status, 200);
    let mut second = Client::connect(addr);
    second.post(CHAT, "r-0-1-0", &chat(1, 4, r#","stream":true"#));
    assert_eq!(second.head().unwrap().status, 200);
    let third = post(addr, CHAT, &chat(1, 4, r#","stream":true"#));
    assert_eq!(third.status, 429);
    assert_eq!(third.header("retry-after"), Some("1"));
    assert_eq!(third.json()["error"]["code"], 429);
    assert_eq!(
        metric(addr, r#"vllm:admission_rejections_total{model_name="tiny",reason="max_num_queued_reqs"}"#),
        1.0
    );
}

#[test]
fn a_client_that_leaves_frees_its_place() {
    let running = start(stuck());
    let addr = running.addr();
    let waiting = r#"vllm:num_requests_waiting{engine="0",model_name="tiny"}"#;
    let aborted = r#"vllm:request_success_total{engine="0",model_name="tiny",finished_reason="abort"}"#;
    let mut first = Client::connect(addr);
    first.post(CHAT, "r-0-0-0", &chat(1, 4, r#","stream":true"#));
    first.head().unwrap();
    let mut second = Client::connect(addr);
    second.post(CHAT, "r-0-1-0", &chat(1, 4, ""));
    until_metric(addr, waiting, 1.0);
    drop(first);
    until_metric(addr, waiting, 0.0);
    assert_eq!(metric(addr, aborted), 1.0);
    // The other client has no response head yet; its disconnect is detected too.
    drop(second);
    until_metric(addr, aborted, 2.0);
    assert_eq!(metric(addr, r#"vllm:num_requests_running{engine="0",model_name="tiny"}"#), 0.0);
}

#[test]
fn a_slow_request_is_cut_off() {
    let mut config = config(canned(1.0, 1.0));
    config.limits.request_read = Span::from_millis(1);
    let running = serve(config).unwrap();
    let mut client = Client::connect(running.addr());
    client.send(b"POST /v1/completions HTTP/1.1\r\nhost: t\r\ncontent-len");
    assert!(client.head().is_none());
    assert!(metric(running.addr(), "plimsoll_engine_connections_timed_out_total") >= 1.0);
}
