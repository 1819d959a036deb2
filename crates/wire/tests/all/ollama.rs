//! Ollama's own API: the figures of its reference, and the engine's half.

use bytes::BytesMut;
use plimsoll_model::outcome::How;
use plimsoll_model::{Broken, Message, Payload, Protocol, Role, Span, TokensRule};
use plimsoll_wire::server::{
    GenerateRequest, Reply, ReportedTimings, StreamEnd, Timing, answer, error, parse, stream_writer, word,
};
use plimsoll_wire::{RequestOptions, encode};
use serde_json::{Value, json};

use crate::support::{Read, Recorded, made, read, read_pieces};

use Protocol::{OllamaChat, OllamaGenerate};

fn lines(lines: &[Value]) -> Recorded {
    let body: String = lines.iter().map(|line| format!("{line}\n")).collect();
    made("application/x-ndjson", body)
}

/// Parses the answer as a whole, at every split into two, and byte by byte, with equal results.
fn every_way(protocol: Protocol, answer: &Recorded) -> Read {
    let whole = read(protocol, answer);
    let same = |pieces: Vec<&[u8]>| {
        assert_eq!(read_pieces(protocol, &answer.head, pieces, true, (None, false)), whole);
    };
    (0..answer.body.len()).for_each(|cut| same(vec![&answer.body[..cut], &answer.body[cut..]]));
    same(answer.body.chunks(1).collect());
    whole
}

fn stages(read: &Read) -> Vec<(&str, i64)> {
    read.verdict.answer.stages.iter().map(|stage| (stage.name.as_str(), stage.took.0)).collect()
}

/// The reference's example of a generated answer (its text shortened to two words), whose model had to be loaded first.
#[test]
fn the_last_line_tells_counts_and_times() {
    let piece = |text: &str| json!({"model": "llama3.2", "created_at": "2023-08-04T08:52:19.385406455-07:00", "response": text, "done": false});
    let end = json!({"model": "llama3.2", "response": "", "done": true, "context": [1, 2, 3],
        "total_duration": 10_706_818_083_i64, "load_duration": 6_338_219_291_i64, "prompt_eval_count": 26,
        "prompt_eval_duration": 130_079_000, "eval_count": 2, "eval_duration": 4_232_710_000_i64});
    let read = every_way(OllamaGenerate, &lines(&[piece("The"), piece(" sky"), end.clone()]));
    assert_eq!(read.word(), "ccf");
    let answer = &read.verdict.answer;
    assert_eq!((answer.tokens.prompt, answer.tokens.output), (Some(26), Some(2)));
    assert_eq!((answer.tokens.rule, answer.finish_reason.as_deref()), (TokensRule::UsageTotal, Some("stop")));
    assert_eq!(answer.text.as_deref(), Some("The sky"));
    assert_eq!(stages(&read), [("load", 6_338_219_291), ("prefill", 130_079_000), ("decode", 4_232_710_000)]);

    let whole = json!({"response": "The sky", "done": true, "done_reason": "length", "eval_count": 2, "prompt_eval_count": 26});
    let read = every_way(OllamaGenerate, &made("application/json; charset=utf-8", whole.to_string()));
    assert_eq!((read.word().as_str(), read.verdict.answer.finish_reason.as_deref()), ("B", Some("length")));
    assert_eq!(read.verdict.answer.tokens.output, Some(2));
}

#[test]
fn thinking_and_tools_are_generated_and_an_end_may_carry_text() {
    let says = |message: Value, done: bool| json!({"message": message, "done": done});
    let call = json!([{"function": {"name": "get_weather", "arguments": {"city": "Paris"}}}]);
    let read = every_way(
        OllamaChat,
        &lines(&[
            says(json!({"role": "assistant", "content": "", "thinking": "hm"}), false),
            says(json!({"role": "assistant", "content": "ä\n"}), false),
            says(json!({"role": "assistant", "content": "", "tool_calls": call}), false),
            says(json!({"role": "assistant", "content": "!"}), true),
        ]),
    );
    assert_eq!(read.word(), "rctc");
    assert_eq!(
        (read.verdict.outcome.how, read.verdict.answer.text.as_deref()),
        (How::Finished, Some("ä\n!"))
    );
    // Older servers don't count a fully cached prompt: unreported is not zero.
    assert_eq!(read.verdict.answer.tokens.prompt, None);
}

#[test]
fn errors_and_half_answers_are_told() {
    let piece = json!({"message": {"role": "assistant", "content": "a"}, "done": false});
    let read = every_way(
        OllamaChat,
        &lines(&[piece.clone(), json!({"error": "an error was encountered while running the model"})]),
    );
    assert_eq!((read.word().as_str(), read.verdict.outcome.how), ("cE", How::StreamError));
    assert_eq!(
        read.verdict.answer.error.as_deref(),
        Some("an error was encountered while running the model")
    );
    let half = every_way(OllamaChat, &lines(&[piece]));
    assert_eq!(half.verdict.outcome.how, How::Truncated);
    let empty = every_way(
        OllamaChat,
        &lines(&[json!({"message": {"content": ""}, "done": true, "done_reason": "load"})]),
    );
    assert_eq!(
        (empty.verdict.answer.broken, empty.verdict.answer.finish_reason.as_deref()),
        (Some(Broken::Empty), Some("load"))
    );
    let odd = every_way(OllamaChat, &made("application/x-ndjson", "{\"message\":\n"));
    assert_eq!(odd.verdict.outcome.how, How::Malformed);
}

#[test]
fn what_is_sent_keeps_the_users_own_options() {
    let talk = Payload::Messages(vec![Message::text(Role::User, "a b c")]);
    let mut options = RequestOptions {
        protocol: OllamaChat,
        model: Some("m".into()),
        stream: true,
        max_tokens: Some(8),
        temperature: Some(0.0),
        ..RequestOptions::default()
    };
    let body = |options: &RequestOptions, payload: &Payload| encode(payload, options).body;
    let json_of = |bytes: &[u8]| serde_json::from_slice::<Value>(bytes).expect("JSON");
    let messages = json!([{"role": "user", "content": "a b c"}]);
    let sent = body(&options, &talk);
    assert_eq!(
        json_of(&sent),
        json!({"model": "m", "messages": messages, "stream": true, "options": {"num_predict": 8, "temperature": 0.0}})
    );
    assert_eq!(encode(&talk, &options).path, "/api/chat");
    let read = parse(OllamaChat, &sent, 1 << 20).expect("good");
    assert_eq!(
        (read.prompt_tokens, read.max_tokens, read.stream, read.greedy.is_some()),
        (3, Some(8), true, true)
    );

    options.extra = json!({"options": {"num_ctx": 8192, "temperature": 1}, "keep_alive": -1})
        .as_object()
        .expect("a map")
        .clone();
    options.stream = false;
    let sent = body(&options, &talk);
    assert_eq!(json_of(&sent)["options"], json!({"num_ctx": 8192, "num_predict": 8, "temperature": 1}));
    assert_eq!((&json_of(&sent)["stream"], &json_of(&sent)["keep_alive"]), (&json!(false), &json!(-1)));
    assert!(!parse(OllamaChat, &sent, 1 << 20).expect("good").stream);

    options = RequestOptions { protocol: OllamaGenerate, ..RequestOptions::default() };
    let sent = body(&options, &Payload::Text("a b".into()));
    assert_eq!(json_of(&sent), json!({"prompt": "a b", "stream": false}));
    // It streams unless `stream` is false, and -1 is not a length.
    let read =
        parse(OllamaGenerate, br#"{"prompt":"a b","system":"c","options":{"num_predict":-1}}"#, 1 << 20)
            .expect("good");
    assert_eq!((read.stream, read.max_tokens, read.prompt_tokens), (true, None, 3));
}

#[test]
fn the_engines_lines_are_decoded_as_they_were_meant() {
    let timing = Timing { queue: Span(3), prefill: Span(1_500_000), decode: Span(39_000_000), tokens: 40 };
    let told = ReportedTimings { timing: Some(timing), cached: None };
    for protocol in [OllamaChat, OllamaGenerate] {
        let asked = GenerateRequest { endpoint: protocol, prompt_tokens: 11, ..GenerateRequest::default() };
        let mut writer = stream_writer(&asked, "x", 1_795_174_765, "a \"model\"");
        let mut out = BytesMut::new();
        assert!(!writer.open(&mut out));
        (0..40).for_each(|n| writer.token(&mut out, word(n), 1));
        writer.close(&mut out, &StreamEnd { reason: "length", first_word: 0, told });
        let last: Value =
            serde_json::from_slice(out[..].split(|b| *b == b'\n').rev().nth(1).expect("a line"))
                .expect("JSON");
        assert_eq!(
            (&last["total_duration"], &last["created_at"]),
            (&json!(40_500_003), &json!("2026-11-20T11:39:25Z"))
        );
        let read = every_way(protocol, &made("application/x-ndjson", out.to_vec()));
        assert_eq!(read.word(), format!("{}f", "c".repeat(40)));
        let tokens = read.verdict.answer.tokens;
        assert_eq!((tokens.prompt, tokens.output, tokens.rule), (Some(11), Some(40), TokensRule::UsageTotal));
        assert_eq!(stages(&read), [("load", 0), ("prefill", 1_500_000), ("decode", 39_000_000)]);
        let reply =
            Reply { id: "x", created_s: 0, model: "m", first_word: 0, tokens: 40, reason: "length", told };
        let whole = every_way(protocol, &made("application/json", answer(&asked, &reply).to_vec()));
        assert_eq!(whole.verdict.answer.text, read.verdict.answer.text);
        assert_eq!(whole.verdict.answer.tokens.output, Some(40));
        out.clear();
        writer.error(&mut out, "the engine \"died\"", 500);
        let read = every_way(protocol, &made("application/x-ndjson", out.to_vec()));
        assert_eq!(read.verdict.answer.error.as_deref(), Some("the engine \"died\""));
        assert_eq!(error(Some(protocol), 404, "no", None).as_ref(), br#"{"error":"no"}"#);
    }
}
