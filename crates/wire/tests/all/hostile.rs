//! Bytes that mean harm, or nothing.

use plimsoll_model::outcome::{By, How};
use plimsoll_model::{Broken, Protocol};
use plimsoll_wire::sse::{EVENT_MAX, LINE_MAX, Parser, SseItem};
use plimsoll_wire::{Decoder, Head};
use proptest::prelude::*;

use crate::support::{events, made, read, read_pieces, sse};

use Protocol::{Chat, Http};

fn how(protocol: Protocol, content_type: &str, body: &[u8]) -> How {
    read(protocol, &made(content_type, body)).verdict.outcome.how
}

#[test]
fn a_line_of_two_gibibytes_is_malformed_after_the_bound() {
    for content_type in ["text/event-stream", "application/x-ndjson"] {
        let mut decoder = Decoder::new(Chat, true, 200, Some(content_type), false);
        let mut out = Vec::new();
        decoder.feed(b"data: {\"choices\":[", &mut out);
        let piece = vec![b'x'; 64 << 10];
        let mut fed = 0_u64;
        while !decoder.is_stopped() {
            decoder.feed(&piece, &mut out);
            fed += piece.len() as u64;
            assert!(fed <= (LINE_MAX + piece.len()) as u64);
        }
        while decoder.bytes() < 2 << 30 {
            decoder.feed(&piece, &mut out);
        }
        assert!(out.is_empty());
        let verdict = decoder.finish(true);
        assert_eq!((verdict.outcome.how, verdict.outcome.by), (How::Malformed, By::Server));
    }
}

#[test]
fn an_event_without_end_is_malformed_after_the_bound() {
    let mut decoder = Decoder::new(Chat, true, 200, Some("text/event-stream"), false);
    let line = format!("data: {}\n", "y".repeat(LINE_MAX / 2));
    for _ in 0..2 + 2 * EVENT_MAX / LINE_MAX {
        decoder.feed(line.as_bytes(), &mut Vec::new());
    }
    assert!(decoder.is_stopped());
}

#[test]
fn a_body_without_end_is_malformed_after_the_bound() {
    let mut decoder = Decoder::new(Chat, false, 200, Some("application/json"), false);
    let piece = vec![b' '; 1 << 20];
    for _ in 0..65 {
        decoder.feed(&piece, &mut Vec::new());
    }
    assert!(decoder.is_stopped());
    assert_eq!(decoder.finish(true).outcome.how, How::Malformed);
    // An error's body is parsed up to a limit and then only counted.
    let mut decoder = Decoder::new(Chat, true, 500, None, false);
    for _ in 0..65 {
        decoder.feed(&piece, &mut Vec::new());
    }
    assert_eq!(decoder.finish(true).outcome.how, How::ServerError);
}

#[test]
fn half_a_character_at_the_end_is_truncated() {
    let whole = "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"ä\"}}]}";
    let cut = whole.find('ä').unwrap() + 1;
    for clean in [true, false] {
        let head = Head { status: 200, content_type: Some("text/event-stream".into()), ..Head::default() };
        let read = read_pieces(Chat, &head, [&whole.as_bytes()[..cut]], clean, (None, false));
        assert_eq!(read.verdict.outcome.how, How::Truncated);
        assert_eq!(read.verdict.outcome.by, if clean { By::Server } else { By::Network });
        assert_eq!(read.word(), "");
    }
    // In the middle of a stream it is broken bytes.
    let mut body = whole.as_bytes()[..cut].to_vec();
    body.extend_from_slice(b"\"}}]}\n\n");
    assert_eq!(how(Chat, "text/event-stream", &body), How::Malformed);
    assert_eq!(how(Chat, "application/json", &whole.as_bytes()[6..cut]), How::Malformed);
}

#[test]
fn web_pages_are_malformed_however_they_are_labelled() {
    let page = b"<!doctype html><html><body>Sign in</body></html>";
    for content_type in
        ["text/html; charset=utf-8", "text/plain", "", "text/event-stream", "application/json"]
    {
        for protocol in Protocol::ALL {
            if protocol == Http && content_type == "application/json" {
                continue;
            }
            assert_eq!(how(protocol, content_type, page), How::Malformed, "{protocol:?} {content_type}");
        }
    }
}

#[test]
fn bare_json_errors_inside_an_event_stream_are_seen() {
    let read = read(Chat, &sse("{\"error\":{\"message\":\"no such model\",\"code\":404}}\n"));
    assert_eq!((read.word().as_str(), read.verdict.outcome.how), ("E", How::StreamError));
    assert!(!read.verdict.outcome.retryable);
    assert_eq!(read.verdict.answer.error.as_deref(), Some("no such model"));
}

#[test]
fn nonsense_in_an_event_is_malformed_and_stops() {
    for data in ["hello", "{", "3", "{\"choices\":7}", "nul"] {
        let read = read(Chat, &events(&[data, "[DONE]"]));
        assert_eq!((read.word().as_str(), read.verdict.outcome.how), ("", How::Malformed), "{data}");
        assert!(read.verdict.answer.error.is_some());
    }
}

#[test]
fn an_empty_answer_failed() {
    for (content_type, body) in
        [("text/event-stream", ""), ("application/json", ""), ("text/event-stream", ": ping\n\n"), ("", "")]
    {
        let verdict = read(Chat, &made(content_type, body)).verdict;
        assert_eq!(verdict.outcome.how, How::StreamError, "{content_type}");
        assert_eq!(verdict.answer.broken, Some(Broken::Empty), "{content_type}");
    }
    // But not where the connection broke.
    let head = Head { status: 200, content_type: Some("text/event-stream".into()), ..Head::default() };
    assert_eq!(read_pieces(Chat, &head, [], false, (None, false)).verdict.outcome.how, How::Reset);
}

#[test]
fn many_choices_are_bounded() {
    let data: Vec<String> = (0..5_000)
        .map(|i| format!("{{\"choices\":[{{\"index\":{i},\"delta\":{{\"content\":\"x{i}\"}}}}],\"usage\":{{\"completion_tokens\":1}}}}"))
        .collect();
    let data: Vec<&str> = data.iter().map(String::as_str).collect();
    assert_eq!(read(Chat, &events(&data)).word().len(), 5_000);
}

#[test]
fn deep_nesting_does_not_overflow() {
    let deep = "[".repeat(200_000);
    for body in
        [deep.clone(), format!("{{\"x\":{deep}"), format!("{{\"choices\":[{{\"delta\":{{\"content\":{deep}")]
    {
        assert_eq!(how(Chat, "application/json", body.as_bytes()), How::Malformed);
        assert_eq!(how(Chat, "text/event-stream", format!("data: {body}\n\n").as_bytes()), How::Malformed);
        assert_eq!(how(Http, "application/json", body.as_bytes()), How::Malformed);
    }
    let error = format!("{{\"error\":{}1{}}}", "[".repeat(100_000), "]".repeat(100_000));
    let read = read(Chat, &events(&[&error]));
    assert_eq!(read.verdict.outcome.how, How::StreamError);
    assert!(read.verdict.answer.error.is_some_and(|text| text.len() <= 512));
}

/// The grammar's corners, from the examples of the WHATWG standard, section 9.2.6, and their line-ending variants.
#[test]
fn the_grammar_of_event_streams() {
    fn items(bytes: &[u8], step: usize) -> Vec<(String, String)> {
        let mut parser = Parser::new();
        let mut all = Vec::new();
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        for piece in bytes.chunks(step) {
            parser
                .feed(piece, &mut |item| match item {
                    SseItem::Event { name, data } => all.push((text(name), text(data))),
                    SseItem::Comment => all.push(("#".into(), String::new())),
                    SseItem::Stray(line) => all.push(("?".into(), text(line))),
                })
                .unwrap();
        }
        all
    }
    let e = |name: &str, data: &str| (name.to_owned(), data.to_owned());
    let cases: Vec<(&str, Vec<(String, String)>)> = vec![
        ("data: YHOO\ndata: +2\ndata: 10\n\n", vec![e("", "YHOO\n+2\n10")]),
        (
            ": test stream\n\ndata: first event\nid: 1\n\ndata:second event\nid\n\ndata:  third event\n\n",
            vec![e("#", ""), e("", "first event"), e("", "second event"), e("", " third event")],
        ),
        ("data\n\ndata\ndata\n\ndata:", vec![e("", ""), e("", "\n")]),
        ("data:test\n\ndata: test\n\n", vec![e("", "test"), e("", "test")]),
        ("event: error\ndata: x\n\ndata: y\n\n", vec![e("error", "x"), e("", "y")]),
        ("event: lone\n\ndata: y\n\n", vec![e("", "y")]),
        ("\u{feff}data: marked\n\n", vec![e("", "marked")]),
        ("\n\n\ndata: a\n\n\n\n", vec![e("", "a")]),
        ("retry: 10\nnonsense\n{\"x\":1}\n", vec![e("?", "{\"x\":1}")]),
    ];
    for (text, expected) in cases {
        for ending in ["\n", "\r\n", "\r"] {
            let bytes = text.replace('\n', ending).into_bytes();
            for step in 1..=bytes.len() {
                assert_eq!(items(&bytes, step), expected, "{bytes:?} by {step}");
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn garbage_never_panics_and_reads_alike_at_every_split(
        protocol in 0..5_usize,
        content_type in prop::sample::select(vec!["text/event-stream", "application/json", "application/x-ndjson", "text/plain", ""]),
        status in prop::sample::select(vec![200_u16, 204, 302, 404, 429, 500, 999]),
        body in prop_oneof![
            prop::collection::vec(any::<u8>(), 0..200),
            prop::collection::vec(prop::sample::select(b"data: {}[]\":,\n\r\\cho0iuse1tx\xc3\xa4".to_vec()), 0..200),
            "(data: ?(\\{\"choices\":\\[\\{\"index\":[0-9],\"delta\":\\{\"(content|reasoning|role)\":(\"[a-z]?\"|null|1|\\[\\])\\}(,\"finish_reason\":\"stop\")?\\}\\](,\"usage\":\\{\"completion_tokens\":[0-9]\\})?\\}|\\[DONE\\]|)\r?\n\n?|:\n){0,12}".prop_map(String::into_bytes),
        ],
        clean in any::<bool>(),
        cut in 0.0..1.0_f64,
    ) {
        let protocol = Protocol::ALL[protocol];
        let head = Head { status, content_type: Some(content_type.into()), ..Head::default() };
        let whole = read_pieces(protocol, &head, [&body[..]], clean, (Some(4), true));
        let cut = (cut * body.len() as f64) as usize;
        let halves = read_pieces(protocol, &head, [&body[..cut], &body[cut..]], clean, (Some(4), true));
        let bytes = read_pieces(protocol, &head, body.chunks(1), clean, (Some(4), true));
        prop_assert_eq!(&halves, &whole);
        prop_assert_eq!(&bytes, &whole);
    }
}
