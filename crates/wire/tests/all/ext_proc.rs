//! Envoy's external processing. The truth are messages that Envoy 1.40 sent (`fixtures/ext_proc/envoy-1.40`), and what Envoy's own definitions make of each, read and written by
//! Google's codec (`crates/cli/tests/servers/ext_proc.py fixtures`).

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use plimsoll_wire::ext_proc::response::{go_on, immediate};
use plimsoll_wire::ext_proc::{
    Answers, BodyChange, BodyMode, ExtProcError, HeaderLines, HttpMessage, Mutation, ProcessingRequest,
};
use plimsoll_wire::grpc::{CallMessages, FrameError, framed, health, health_asked};
use proptest::prelude::*;
use serde_json::{Value, json};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/ext_proc")
}

fn bytes(name: &str) -> Vec<u8> {
    std::fs::read(folder().join(name)).unwrap_or_else(|e| panic!("{name}: {e}"))
}

fn mode(mode: BodyMode) -> &'static str {
    match mode {
        BodyMode::None => "NONE",
        BodyMode::Streamed => "STREAMED",
        BodyMode::Buffered => "BUFFERED",
        BodyMode::BufferedPartial => "BUFFERED_PARTIAL",
        BodyMode::FullDuplex => "FULL_DUPLEX_STREAMED",
        BodyMode::Other => "GRPC",
    }
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).expect("text")
}

/// Returns the parsed fields of a message, with the names of the truth.
fn held(message: &[u8]) -> BTreeMap<&'static str, Value> {
    let read = ProcessingRequest::read(message).expect("a message");
    let lines = |lines: &HeaderLines<'_>| -> Value {
        lines.iter().map(|(name, value)| json!([text(name), text(value)])).collect()
    };
    let mut found = BTreeMap::from([("observes", json!(read.only_observes))]);
    let kind = match read.said.as_ref().expect("a known one") {
        HttpMessage::RequestHeaders(headers, is_end) | HttpMessage::ResponseHeaders(headers, is_end) => {
            found.insert("headers", lines(headers));
            found.insert("end", json!(is_end));
            if matches!(read.said, Some(HttpMessage::RequestHeaders(..))) {
                "request_headers"
            } else {
                "response_headers"
            }
        }
        HttpMessage::RequestBody(piece) | HttpMessage::ResponseBody(piece) => {
            found.insert("body", json!(text(piece.body)));
            found.insert("end", json!(piece.is_end));
            if matches!(read.said, Some(HttpMessage::RequestBody(_))) {
                "request_body"
            } else {
                "response_body"
            }
        }
        HttpMessage::RequestTrailers => "request_trailers",
        HttpMessage::ResponseTrailers => "response_trailers",
    };
    found.insert("kind", json!(kind));
    if let Some(modes) = read.modes {
        found.insert("modes", json!([mode(modes.request), mode(modes.response)]));
    }
    found.insert("subset", json!(read.subset));
    found.insert("served", json!(read.served));
    found
}

/// Returns the fields of the truth: the two entries of its metadata and the one of its attributes that concern a picker.
fn true_of(said: &Value) -> BTreeMap<&'static str, Value> {
    let mut found = BTreeMap::new();
    for key in ["observes", "headers", "end", "body", "kind", "modes"] {
        if let Some(value) = said.get(key) {
            found.insert(key, value.clone());
        }
    }
    let subset = &said["metadata"]["envoy.lb.subset_hint"]["x-gateway-destination-endpoint-subset"];
    let each = |text: &str| -> Vec<String> {
        text.split(',').map(|one| one.trim().to_owned()).filter(|one| !one.is_empty()).collect()
    };
    let subset: Option<Vec<String>> = match subset {
        Value::Null => None,
        Value::String(text) => Some(each(text)),
        Value::Array(all) => {
            Some(all.iter().flat_map(|one| each(one.as_str().unwrap_or_default())).collect())
        }
        // A hint of another type allows no replica.
        _ => Some(Vec::new()),
    };
    found.insert("subset", json!(subset));
    let served = &said["metadata"]["envoy.lb"]["x-gateway-destination-endpoint-served"];
    let upstream = &said["attributes"]["envoy.filters.http.ext_proc"]["upstream.address"];
    found.insert("served", if served.is_null() { upstream.clone() } else { served.clone() });
    found
}

fn all_held() -> BTreeMap<String, Value> {
    serde_json::from_slice(&bytes("held.json")).expect("JSON")
}

#[test]
fn envoys_messages_are_read_as_envoys_definitions_read_them() {
    let all = all_held();
    assert!(
        all.keys().filter(|name| name.starts_with("envoy-1.40/")).count() >= 12,
        "real ones are among them"
    );
    for (name, said) in &all {
        assert_eq!(held(&bytes(name)), true_of(said), "{name}");
    }
}

#[test]
fn answers_are_the_bytes_that_envoys_definitions_make_of_them() {
    let none = Mutation::default();
    let mut picked = Mutation { remove: vec!["x-b".to_owned()], ..none.clone() };
    let both = "10.0.0.1:8000,10.0.0.2:8000";
    picked.set("x-gateway-destination-endpoint", both.as_bytes());
    let [mut length, mut later] = [none.clone(), none.clone()];
    length.set("content-length", b"3");
    later.set("retry-after", b"7");
    let one = Some("10.0.0.1:8000");
    let keep = BodyChange::Keep;
    for (name, ours) in [
        ("picked", go_on(Answers::RequestHeaders, &picked, keep, Some(both))),
        ("picked-body", go_on(Answers::RequestBody, &length, BodyChange::Replace(b"abc"), one)),
        ("picked-trailers", go_on(Answers::RequestTrailers, &picked, keep, one)),
        ("goes-on-request_headers", go_on(Answers::RequestHeaders, &none, keep, None)),
        ("goes-on-request_body", go_on(Answers::RequestBody, &none, keep, None)),
        ("goes-on-response_headers", go_on(Answers::ResponseHeaders, &none, keep, None)),
        ("goes-on-response_body", go_on(Answers::ResponseBody, &none, keep, None)),
        ("goes-on-response_trailers", go_on(Answers::ResponseTrailers, &none, keep, None)),
        ("streamed", go_on(Answers::ResponseBody, &none, BodyChange::Stream(b"data: x\n\n", false), None)),
        ("streamed-end", go_on(Answers::RequestBody, &none, BodyChange::Stream(&[b'x'; 300], true), None)),
        ("instead", immediate(429, &later, b"{}", "why")),
    ] {
        assert_eq!(ours, bytes(&format!("{name}.response")), "{name}");
    }
}

/// A call that is cut at any byte has equal messages, and an incomplete rest is detected.
#[test]
fn a_call_is_cut_into_its_messages_wherever_it_is_split() {
    let messages: Vec<Vec<u8>> = all_held().keys().map(|name| bytes(name)).collect();
    let call: Vec<u8> = messages.iter().flat_map(|message| framed(message)).collect();
    for at in 0..call.len() {
        let (mut cut, mut found) = (CallMessages::new(1 << 20), Vec::new());
        for part in [&call[..at], &call[at..]] {
            cut.push(part);
            while let Some(message) = cut.take().expect("sound") {
                found.push(message.to_vec());
            }
        }
        assert_eq!(found, messages, "at {at}");
        assert!(cut.is_empty());
    }
}

#[test]
fn what_is_no_frame_is_refused_before_it_is_waited_for() {
    let refused = |head: [u8; 5]| {
        let mut cut = CallMessages::new(100);
        cut.push(&head);
        cut.take().expect_err("refused")
    };
    assert_eq!(refused([0, 0, 0, 0, 101]), FrameError::TooLarge(101));
    assert_eq!(refused([0, 255, 255, 255, 255]), FrameError::TooLarge(u32::MAX));
    assert_eq!(refused([1, 0, 0, 0, 1]), FrameError::Compressed);
    assert_eq!(refused([b'G', b'E', b'T', b' ', b'/']), FrameError::Broken(b'G'));
}

#[test]
fn a_message_of_too_many_lines_or_endpoints_is_refused() {
    let line = |count: usize| {
        // HttpHeaders { headers { headers {} } } of ProcessingRequest's field 2, all lengths of two bytes.
        let inner = [0x0a, 0].repeat(count);
        let size = |len: usize| [(len as u8 & 0x7f) | 0x80, (len >> 7) as u8];
        let map = [&[0x0a][..], &size(inner.len()), &inner].concat();
        [&[0x12][..], &size(map.len()), &map].concat()
    };
    assert!(ProcessingRequest::read(&line(1_000)).is_ok());
    assert_eq!(ProcessingRequest::read(&line(1_001)), Err(ExtProcError::Headers));
}

#[test]
fn health_is_asked_and_told() {
    // HealthCheckRequest{service: "liveness"}; {status: SERVING} and {status: NOT_SERVING}.
    assert_eq!(health_asked(b"\x0a\x08liveness").as_deref(), Ok("liveness"));
    assert_eq!(health_asked(b"").as_deref(), Ok(""));
    assert_eq!((health(true), health(false)), (vec![8, 1], vec![8, 2]));
}

proptest! {
    /// Bytes that are cut off or damaged are an error or another message, and never more than there is.
    #[test]
    fn damaged_messages_do_no_harm(pick in 0usize..100, at in 0usize..1_000, with: u8) {
        let all: Vec<String> = all_held().into_keys().collect();
        let mut message = bytes(&all[pick % all.len()]);
        prop_assume!(!message.is_empty());
        let at = at % message.len();
        let _ = ProcessingRequest::read(&message[..at]);
        message[at] = with;
        let _ = ProcessingRequest::read(&message);
    }
}
