//! Answers decode with the client's own decoder, chunk by chunk, and their counts are exact.

use plimsoll_model::{EventKind, Protocol, TokensRule};
use plimsoll_wire::{Decoded, Decoder, Verdict};

use super::http::{Answer, Client, canned, chat, post, start};

fn decode(protocol: Protocol, stream: bool, answer: &Answer) -> (Vec<Decoded>, Verdict) {
    let mut decoder = Decoder::new(protocol, stream, answer.status, answer.header("content-type"), true);
    let mut events = Vec::new();
    answer.chunks.iter().for_each(|chunk| decoder.feed(chunk, &mut events));
    (events, decoder.finish(answer.clean))
}

fn kinds(events: &[Decoded]) -> Vec<EventKind> {
    events.iter().map(|event| event.kind).collect()
}

#[test]
fn a_chat_stream_is_role_tokens_finish_usage_done() {
    let running = start(canned(2.0, 1.0));
    let more = r#","stream":true,"stream_options":{"include_usage":true},"ignore_eos":true"#;
    let answer = post(running.addr(), "/v1/chat/completions", &chat(3, 5, more));
    assert_eq!((answer.status, answer.clean), (200, true));
    assert_eq!(answer.header("content-type"), Some("text/event-stream; charset=utf-8"));
    // Role, five tokens, the end: each step's token is a chunk of its own.
    assert_eq!(answer.chunks.len(), 7);
    let (events, verdict) = decode(Protocol::Chat, true, &answer);
    use EventKind::{Content, Done, Finish, Role, Usage};
    assert_eq!(kinds(&events), [Role, Content, Content, Content, Content, Content, Finish, Usage, Done]);
    assert!(verdict.outcome.is_finished(), "{:?}", verdict.outcome);
    assert_eq!(verdict.answer.finish_reason.as_deref(), Some("length"));
    assert_eq!((verdict.answer.tokens.prompt, verdict.answer.tokens.output), (Some(3), Some(5)));
    let text = verdict.answer.text.unwrap();
    assert_eq!(text.split_ascii_whitespace().count(), 5, "{text:?}");
    assert_eq!(verdict.answer.broken, None);
}

#[test]
fn a_running_usage_is_in_every_chunk_when_asked_for() {
    let running = start(canned(2.0, 1.0));
    let more = r#","stream":true,"stream_options":{"include_usage":true,"continuous_usage_stats":true}"#;
    let answer = post(running.addr(), "/v1/chat/completions", &chat(20, 4, more));
    let (events, verdict) = decode(Protocol::Chat, true, &answer);
    assert_eq!(verdict.answer.tokens.rule, TokensRule::UsageRunning);
    assert_eq!((verdict.answer.tokens.prompt, verdict.answer.tokens.output), (Some(20), Some(4)));
    let tokens: Vec<u16> = events.iter().filter(|e| e.kind == EventKind::Content).map(|e| e.tokens).collect();
    assert_eq!(tokens, [1, 1, 1, 1]);
}

#[test]
fn a_completions_stream_has_no_role() {
    let running = start(canned(2.0, 1.0));
    let body = r#"{"prompt":"a b c d","max_tokens":3,"stream":true}"#;
    let answer = post(running.addr(), "/v1/completions", body);
    let (events, verdict) = decode(Protocol::Completions, true, &answer);
    use EventKind::{Content, Done, Finish};
    assert_eq!(kinds(&events), [Content, Content, Content, Finish, Done]);
    assert!(verdict.outcome.is_finished());
}

#[test]
fn whole_answers_count_the_same() {
    let running = start(canned(2.0, 1.0));
    let answer = post(running.addr(), "/v1/chat/completions", &chat(7, 9, ""));
    let json = answer.json();
    assert_eq!(json["usage"]["prompt_tokens"], 7);
    assert_eq!(json["usage"]["completion_tokens"], 9);
    let text = json["choices"][0]["message"]["content"].as_str().unwrap();
    assert_eq!(text.split_ascii_whitespace().count(), 9);
    let (_, verdict) = decode(Protocol::Chat, false, &answer);
    assert!(verdict.outcome.is_finished());
    // Where no length is asked for it is 128.
    let answer = post(running.addr(), "/v1/completions", r#"{"prompt":"a b"}"#);
    assert_eq!(answer.json()["usage"]["completion_tokens"], 128);
}

#[test]
fn embeddings_are_one_vector_per_input() {
    let running = start(canned(2.0, 1.0));
    let body = r#"{"model":"tiny","input":["one two three","four"],"dimensions":8}"#;
    let json = post(running.addr(), "/v1/embeddings", body).json();
    assert_eq!(json["data"].as_array().unwrap().len(), 2);
    assert_eq!(json["data"][1]["embedding"].as_array().unwrap().len(), 8);
    assert_eq!(json["usage"]["prompt_tokens"], 4);
}

#[test]
fn a_connection_carries_one_answer_after_another() {
    let running = start(canned(1.0, 1.0));
    let mut client = Client::connect(running.addr());
    for turn in 0..5 {
        let more = if turn % 2 == 0 { r#","stream":true"# } else { "" };
        client.post("/v1/chat/completions", "r-0-0-0", &chat(3, 2 + turn, more));
        let answer = client.answer();
        assert!(answer.clean);
        let (_, verdict) = decode(Protocol::Chat, turn % 2 == 0, &answer);
        assert!(verdict.outcome.is_finished(), "{turn}: {:?}", verdict.outcome);
    }
}

#[test]
fn tokens_that_are_due_together_stay_apart() {
    // A nanosecond between tokens: all are due by the time the first is written.
    let running = start(canned(1.0, 0.000_001));
    let answer = post(running.addr(), "/v1/chat/completions", &chat(1, 40, r#","stream":true"#));
    assert_eq!(answer.chunks.len(), 42);
    let (events, _) = decode(Protocol::Chat, true, &answer);
    assert_eq!(events.iter().filter(|e| e.kind == EventKind::Content).count(), 40);
}

#[test]
fn a_request_in_pieces_is_one_request() {
    let running = start(canned(1.0, 1.0));
    let body = chat(2_000, 2, "");
    let mut client = Client::connect(running.addr());
    let head =
        format!("POST /v1/chat/completions HTTP/1.1\r\nhost: t\r\ncontent-length: {}\r\n\r\n", body.len());
    for piece in head.as_bytes().chunks(7).chain(body.as_bytes().chunks(1_000)) {
        client.send(piece);
    }
    assert_eq!(client.answer().json()["usage"]["prompt_tokens"], 2_000);
}
