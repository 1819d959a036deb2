//! Anthropic Messages: the event orders of its reference, servers' usage reports, and the engine's half.

use bytes::BytesMut;
use plimsoll_model::outcome::How;
use plimsoll_model::{Broken, Message, Payload, Protocol, Role, TokensRule};
use plimsoll_wire::server::{
    GenerateRequest, Reply, ReportedTimings, StreamEnd, answer, error, parse, stream_writer, word,
};
use plimsoll_wire::{Head, RequestOptions, encode};
use serde_json::{Value, json};

use crate::support::{Read, Recorded, made, read, read_pieces, sse};

use Protocol::Messages;

/// Returns events in their wire format: each has its name twice.
fn stream(events: &[Value]) -> Recorded {
    let one =
        |event: &Value| format!("event: {}\ndata: {event}\n\n", event["type"].as_str().expect("a type"));
    sse(events.iter().map(one).collect::<String>())
}

/// Parses the answer as a whole and byte by byte, with equal results.
fn every_way(answer: &Recorded) -> Read {
    let whole = read(Messages, answer);
    let bytes = read_pieces(Messages, &answer.head, answer.body.chunks(1), true, (None, false));
    assert_eq!(bytes, whole);
    whole
}

fn start(usage: Value) -> Value {
    json!({"type": "message_start", "message": {"id": "msg_1", "type": "message", "role": "assistant", "content": [],
        "stop_reason": null, "usage": usage}})
}

fn delta(index: u32, delta: Value) -> Value {
    json!({"type": "content_block_delta", "index": index, "delta": delta})
}

fn says(text: &str) -> Value {
    delta(0, json!({"type": "text_delta", "text": text}))
}

fn ends(reason: &str, usage: Value) -> [Value; 2] {
    let delta = json!({"stop_reason": reason, "stop_sequence": null});
    [json!({"type": "message_delta", "delta": delta, "usage": usage}), json!({"type": "message_stop"})]
}

/// The reference's examples of thinking and of a tool, in sequence.
///
/// A signature, an empty piece of JSON, a ping and an unknown event are not tokens.
#[test]
fn thinking_tools_and_pings() {
    let tool = json!({"type": "tool_use", "id": "toolu_1", "name": "get_weather", "input": {}});
    let json_of = |text: &str| delta(2, json!({"type": "input_json_delta", "partial_json": text}));
    let mut events = vec![
        start(json!({"input_tokens": 472, "output_tokens": 2})),
        json!({"type": "content_block_start", "index": 0, "content_block": {"type": "thinking", "thinking": "", "signature": ""}}),
        json!({"type": "ping"}),
        delta(0, json!({"type": "thinking_delta", "thinking": "I need the GCD"})),
        delta(0, json!({"type": "thinking_delta", "thinking": " of 1071 and 462"})),
        delta(0, json!({"type": "signature_delta", "signature": "EqQBCgIYAhIM1gbcDa9GJwZA2b3h"})),
        json!({"type": "content_block_stop", "index": 0}),
        json!({"type": "content_block_start", "index": 1, "content_block": {"type": "text", "text": ""}}),
        delta(1, json!({"type": "text_delta", "text": "It is \"21\"."})),
        json!({"type": "content_block_stop", "index": 1}),
        json!({"type": "content_block_start", "index": 2, "content_block": tool}),
        json_of(""),
        json_of("{\"location\":"),
        json_of(" \"San Francisco\"}"),
        json!({"type": "content_block_stop", "index": 2}),
        json!({"type": "something_new", "delta": {"text": 3}}),
    ];
    events.extend(ends("tool_use", json!({"output_tokens": 89})));
    let read = every_way(&stream(&events));
    assert_eq!(read.word(), "Reerreeecee".to_owned() + "ettee" + "fd");
    let answer = read.verdict.answer;
    assert_eq!((answer.tokens.prompt, answer.tokens.output), (Some(472), Some(89)));
    assert_eq!(answer.finish_reason.as_deref(), Some("tool_calls"));
    assert_eq!(answer.text.as_deref(), Some("It is \"21\"."));
    let visible = read.events.iter().filter(|event| event.visible).count();
    assert_eq!(visible, 3, "thinking is not seen");
}

/// The prompt is the sum of computed tokens, cache reads and cache writes.
#[test]
fn cached_tokens_are_part_of_the_prompt() {
    let cases = [
        // The reference's own figures: the whole book is written to the cache, then read from it.
        (
            json!({"input_tokens": 21, "cache_creation_input_tokens": 188_086, "cache_read_input_tokens": 0, "output_tokens": 1}),
            json!({"output_tokens": 2}),
            (188_107, Some(0)),
        ),
        (
            json!({"input_tokens": 21, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 188_086, "output_tokens": 1}),
            json!({"output_tokens": 2}),
            (188_107, Some(188_086)),
        ),
        // Repeated at the end, as running totals.
        (
            json!({"input_tokens": 21, "cache_read_input_tokens": 60, "output_tokens": 1}),
            json!({"input_tokens": 21, "cache_read_input_tokens": 60, "output_tokens": 2}),
            (81, Some(60)),
        ),
        // Known only at the end, or divided there.
        (
            json!({"input_tokens": 0, "output_tokens": 0, "cache_read_input_tokens": 0}),
            json!({"input_tokens": 81, "output_tokens": 2}),
            (81, None),
        ),
        (
            json!({"input_tokens": 81, "output_tokens": 0}),
            json!({"input_tokens": 21, "cache_read_input_tokens": 60, "output_tokens": 2}),
            (81, Some(60)),
        ),
        // Known only at the start.
        (
            json!({"input_tokens": 81, "output_tokens": 0}),
            json!({"input_tokens": 0, "output_tokens": 2}),
            (81, None),
        ),
        (
            json!({"input_tokens": 81, "output_tokens": 0}),
            json!({"input_tokens": null, "cache_read_input_tokens": null, "output_tokens": 2}),
            (81, None),
        ),
    ];
    for (first, last, (prompt, cached)) in cases {
        let mut events = vec![start(first.clone()), says("a"), says("b")];
        events.extend(ends("end_turn", last));
        let answer = every_way(&stream(&events)).verdict.answer;
        assert_eq!((answer.tokens.prompt, answer.tokens.cached), (Some(prompt), cached), "{first}");
        assert_eq!((answer.tokens.output, answer.tokens.rule), (Some(2), TokensRule::UsageTotal));
        assert_eq!(answer.finish_reason.as_deref(), Some("stop"));
    }
    let details = json!({"output_tokens": 7, "output_tokens_details": {"thinking_tokens": 5}});
    let mut events = vec![start(json!({"input_tokens": 3})), says("a")];
    events.extend(ends("max_tokens", details));
    let tokens = every_way(&stream(&events)).verdict.answer.tokens;
    assert_eq!((tokens.output, tokens.reasoning), (Some(7), Some(5)));
}

#[test]
fn errors_in_the_middle_are_told_and_say_whether_to_try_again() {
    let failed =
        |kind: &str, message: &str| json!({"type": "error", "error": {"type": kind, "message": message}});
    for (kind, again) in [
        ("overloaded_error", true),
        ("api_error", true),
        ("rate_limit_error", true),
        ("invalid_request_error", false),
    ] {
        let read =
            every_way(&stream(&[start(json!({"input_tokens": 3})), says("a"), failed(kind, "Overloaded")]));
        assert_eq!(read.word(), "RcE");
        assert_eq!(
            (read.verdict.outcome.how, read.verdict.outcome.retryable),
            (How::StreamError, again),
            "{kind}"
        );
        assert_eq!(read.verdict.answer.error.as_deref(), Some("Overloaded"));
        // Without its name too.
        let bare = sse(format!("data: {}\n\n", failed(kind, "no")));
        assert_eq!(every_way(&bare).verdict.outcome.how, How::StreamError);
    }
    let head = Head { status: 529, content_type: Some("application/json".into()), ..Head::default() };
    let body = failed("overloaded_error", "Overloaded").to_string().into_bytes();
    let read = read(Messages, &Recorded { head, body });
    assert_eq!(
        (read.verdict.outcome.how, read.verdict.answer.error.as_deref()),
        (How::Shed, Some("Overloaded"))
    );
}

#[test]
fn a_stream_without_its_end_is_truncated_and_one_without_tokens_is_empty() {
    let read = every_way(&stream(&[start(json!({"input_tokens": 3})), says("a")]));
    assert_eq!(read.verdict.outcome.how, How::Truncated);
    let mut events = vec![start(json!({"input_tokens": 3}))];
    events.extend(ends("end_turn", json!({"output_tokens": 0})));
    assert_eq!(every_way(&stream(&events)).verdict.answer.broken, Some(Broken::Empty));
}

fn asked(options: &RequestOptions) -> (Value, GenerateRequest) {
    let of = |role, content: &str| Message::text(role, content);
    let talk = Payload::Messages(vec![
        of(Role::System, "one two"),
        of(Role::User, "three"),
        of(Role::Assistant, "four"),
    ]);
    let body = encode(&talk, options).body;
    (serde_json::from_slice(&body).expect("JSON"), parse(Messages, &body, 1 << 20).expect("a good request"))
}

#[test]
fn what_is_sent_is_what_the_reference_asks_for() {
    let options = RequestOptions {
        protocol: Messages,
        model: Some("m".into()),
        stream: true,
        temperature: Some(0.5),
        ..RequestOptions::default()
    };
    let messages = json!([{"role": "user", "content": "three"}, {"role": "assistant", "content": "four"}]);
    let want = json!({"model": "m", "system": "one two", "messages": messages, "max_tokens": 4096, "temperature": 0.5,
        "stream": true});
    let (sent, read) = asked(&options);
    assert_eq!(sent, want);
    assert_eq!((read.prompt_tokens, read.max_tokens, read.stream), (4, Some(4096), true));
    let (sent, read) = asked(&RequestOptions { max_tokens: Some(8), stream: false, ..options });
    assert_eq!((&sent["max_tokens"], sent.get("stream"), read.max_tokens), (&json!(8), None, Some(8)));
    for (body, param) in [
        (r#"{"messages":[{"role":"user","content":"a"}]}"#, "max_tokens"),
        (r#"{"max_tokens":3}"#, "messages"),
        (r#"{"max_tokens":3,"messages":[{"role":"user","content":"a"}],"system":3}"#, "system"),
    ] {
        assert_eq!(parse(Messages, body.as_bytes(), 1 << 20).unwrap_err().param, Some(param));
    }
    let blocks =
        br#"{"max_tokens":3,"system":[{"type":"text","text":"a b"}],"messages":[{"role":"user","content":[
        {"type":"text","text":"c"},{"type":"image","source":{}}]}]}"#;
    assert_eq!(parse(Messages, blocks, 1 << 20).unwrap().prompt_tokens, 3);
}

#[test]
fn the_engines_messages_are_decoded_as_they_were_meant() {
    let asked = GenerateRequest { endpoint: Messages, prompt_tokens: 11, ..GenerateRequest::default() };
    for (cached, told) in [(None, None), (Some(4), Some(4))] {
        let told_of = ReportedTimings { timing: None, cached };
        let mut writer = stream_writer(&asked, "msg_1", 0, "a \"model\"");
        let mut out = BytesMut::new();
        assert!(writer.open(&mut out));
        (0..40).for_each(|n| writer.token(&mut out, word(n), 1));
        writer.close(&mut out, &StreamEnd { reason: "length", first_word: 0, told: told_of });
        let read = every_way(&sse(out.to_vec()));
        assert_eq!(read.word(), format!("Ree{}efd", "c".repeat(40)));
        let tokens = read.verdict.answer.tokens;
        assert_eq!((tokens.prompt, tokens.output, tokens.cached), (Some(11), Some(40), told));
        assert_eq!((tokens.rule, read.verdict.answer.broken), (TokensRule::UsageTotal, None));
        let reply = Reply {
            id: "x",
            created_s: 0,
            model: "m",
            first_word: 0,
            tokens: 40,
            reason: "length",
            told: told_of,
        };
        let whole = every_way(&made("application/json", answer(&asked, &reply).to_vec())).verdict.answer;
        assert_eq!(
            (whole.tokens.prompt, whole.tokens.output, whole.tokens.cached),
            (Some(11), Some(40), told)
        );
        assert_eq!(whole.text, read.verdict.answer.text);
        assert_eq!(whole.finish_reason.as_deref(), Some("length"));
    }
    let mut writer = stream_writer(&asked, "msg_1", 0, "m");
    let mut out = BytesMut::new();
    writer.error(&mut out, "the engine \"died\"", 503);
    let read = every_way(&sse(out.to_vec()));
    assert_eq!((read.word().as_str(), read.verdict.outcome.retryable), ("E", true));
    assert_eq!(read.verdict.answer.error.as_deref(), Some("the engine \"died\""));
    let body: Value = serde_json::from_slice(&error(Some(Messages), 404, "no such model", None)).unwrap();
    assert_eq!(
        body,
        json!({"type": "error", "error": {"type": "not_found_error", "message": "no such model"}})
    );
}
