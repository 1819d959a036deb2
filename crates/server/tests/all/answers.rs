//! Checks that the client's decoder decodes responses chunk by chunk, with exact counts.

use plimsoll_model::{EventKind, Protocol, TokensRule};
use plimsoll_wire::{DecodedAnswer, DecodedEvent, Decoder};

use super::http::{Answer, Client, canned, chat, post, start};

fn decode(protocol: Protocol, stream: bool, answer: &Answer) -> (Vec<DecodedEvent>, DecodedAnswer) {
    let mut decoder = Decoder::new(protocol, stream, answer.status, answer.header("content-type"), true);
    let mut events = Vec::new();
    answer.chunks.iter().for_each(|chunk| decoder.feed(chunk, &mut events));
    (events, decoder.finish(answer.clean))
}

fn kinds(events: &[DecodedEvent]) -> Vec<EventKind> {
    events.iter().map(|event| event.kind).collect()
}

#[test]
fn a_chat_stream_is_role_tokens_finish_usage_done() {
    let running = start(canned(2.0, 1.0));
    let more = r#","stream":true,"stream_options":{"include_usage":true},"ignore_eos":true"#;
    let answer = post(running.addr(), "/v1/chat/completions", &chat(3, 5, more));
    assert_eq!((answer.status, answer.clean), (200, true));
    assert_eq!(answer.header("content-type"), Some("text/event-stream; charset=utf-8"));
    // Role, five tokens, the end: each step's token is a separate chunk.
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

/// Order and fields follow OpenAI's reference for streamed responses: each event named twice and numbered, the text in
/// deltas and then whole, no `[DONE]`.
#[test]
fn a_response_is_an_object_that_grows() {
    let running = start(canned(2.0, 1.0));
    let ask = |more: &str| format!(r#"{{"input":"a b c","max_output_tokens":4{more}}}"#);
    let answer = post(running.addr(), "/v1/responses", &ask(r#","stream":true"#));
    assert_eq!((answer.status, answer.clean), (200, true));
    let text = answer.text();
    let mut named = Vec::new();
    for (n, event) in text.split_terminator("\n\n").enumerate() {
        let (name, data) = event.strip_prefix("event: ").unwrap().split_once("\ndata: ").unwrap();
        let data: serde_json::Value = serde_json::from_str(data).unwrap();
        assert_eq!((&data["type"], &data["sequence_number"]), (&name.into(), &n.into()));
        named.push((name.to_owned(), data));
    }
    let names: Vec<&str> = named.iter().map(|(name, _)| name.strip_prefix("response.").unwrap()).collect();
    let delta = "output_text.delta";
    let opening = ["created", "in_progress", "output_item.added", "content_part.added"];
    let closing = ["output_text.done", "content_part.done", "output_item.done", "incomplete"];
    assert_eq!(names, [&opening[..], &[delta; 4], &closing].concat());
    let said: String = named[4..8].iter().map(|(_, data)| data["delta"].as_str().unwrap()).collect();
    assert_eq!(named[8].1["text"], said.as_str());
    let whole = &named[11].1["response"];
    assert_eq!(whole["output"][0]["content"][0]["text"], said.as_str());
    assert_eq!(whole["output"][0]["id"], named[4].1["item_id"]);
    assert_eq!(whole["incomplete_details"]["reason"], "max_output_tokens");
    assert_eq!((&whole["usage"]["input_tokens"], &whole["usage"]["output_tokens"]), (&3.into(), &4.into()));

    let (events, verdict) = decode(Protocol::Responses, true, &answer);
    use EventKind::{Content, Empty, Finish, Role};
    assert_eq!(
        kinds(&events),
        [Role, Role, Role, Empty, Content, Content, Content, Content, Empty, Empty, Empty, Finish]
    );
    assert!(verdict.outcome.is_finished(), "{:?}", verdict.outcome);
    assert_eq!(verdict.answer.finish_reason.as_deref(), Some("length"));
    assert_eq!((verdict.answer.tokens.prompt, verdict.answer.tokens.output), (Some(3), Some(4)));
    assert_eq!(verdict.answer.tokens.rule, TokensRule::UsageTotal);
    assert_eq!(verdict.answer.text.as_deref(), Some(said.as_str()));

    let answer = post(running.addr(), "/v1/responses", &ask(""));
    let (_, verdict) = decode(Protocol::Responses, false, &answer);
    assert!(verdict.outcome.is_finished());
    assert_eq!((verdict.answer.tokens.prompt, verdict.answer.tokens.output), (Some(3), Some(4)));
    assert_eq!(verdict.answer.text.unwrap().split_ascii_whitespace().count(), 4);
    let answer = post(running.addr(), "/v1/responses", r#"{"input":[]}"#);
    let answer_without = post(running.addr(), "/v1/responses", "{}");
    assert_eq!((answer.status, answer_without.status), (200, 400));
    assert_eq!(answer_without.json()["error"]["param"], "input");
}

/// A batch that fails after tokens have left sends an `error` event as its last one.
#[test]
fn a_response_that_fails_says_so_in_an_event() {
    let asked =
        plimsoll_wire::server::GenerateRequest { endpoint: Protocol::Responses, ..Default::default() };
    let mut writer = plimsoll_wire::server::stream_writer(&asked, "resp_1", 0, "m");
    let mut out = bytes::BytesMut::new();
    writer.open(&mut out);
    writer.token(&mut out, " \"a\"", 1);
    writer.error(&mut out, "the engine is dead", 500);
    let answer = Answer {
        status: 200,
        headers: vec![("content-type".into(), "text/event-stream".into())],
        chunks: vec![out.to_vec()],
        clean: true,
    };
    let (events, verdict) = decode(Protocol::Responses, true, &answer);
    assert_eq!(kinds(&events).last(), Some(&EventKind::Error));
    assert_eq!(verdict.outcome.how, plimsoll_model::How::StreamError);
    assert_eq!(verdict.answer.error.as_deref(), Some("the engine is dead"));
    assert_eq!(verdict.answer.text.as_deref(), Some(" \"a\""));
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
    // The default length is 128.
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
    // A nanosecond between tokens, so that all are due when the first is written.
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

/// At temperature 0 the answer depends only on the prompt, streamed or whole; otherwise it is drawn for each request.
#[test]
fn temperature_zero_says_the_same_again() {
    let running = start(canned(2.0, 1.0));
    let said = |prompt: &str, more: &str| {
        let body = format!(r#"{{"messages":[{{"role":"user","content":"{prompt}"}}],"max_tokens":9{more}}}"#);
        let answer = post(running.addr(), "/v1/chat/completions", &body);
        let stream = more.contains("stream");
        decode(Protocol::Chat, stream, &answer).1.answer.text.expect("a text")
    };
    let zero = r#","temperature":0"#;
    let first = said("name a ship", zero);
    assert_eq!(said("name a ship", zero), first);
    assert_eq!(said("name a ship", r#","temperature":0.0,"stream":true"#), first);
    // The vocabulary has 32 words, so it is very unlikely that eight other prompts all begin alike.
    assert!((0..8).any(|i| said(&format!("name ship {i}"), zero) != first));
    for open in ["", r#","temperature":0.7"#] {
        assert_ne!(said("name a ship", open), said("name a ship", open), "{open}");
    }
}
