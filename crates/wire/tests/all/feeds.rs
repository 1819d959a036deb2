//! Files that are parsed as their bytes arrive: for every cut, the spans equal the whole file's.
//! The buffer is no larger than necessary.

use plimsoll_model::{AttributeValue, SpanKind, TraceSpan};
use plimsoll_wire::trace::feed::{FeedResult, TraceFeed};
use plimsoll_wire::trace::{TraceError, TraceFormat, otlp, read};
use proptest::collection::vec;
use proptest::prelude::*;

/// Reads `bytes` in pieces of this size. Returns also the spans before an error, and the maximum number of buffered bytes.
fn fed(bytes: &[u8], piece: usize) -> (Result<FeedResult, TraceError>, Vec<TraceSpan>, usize) {
    let (mut feed, mut spans, mut most) = (TraceFeed::default(), Vec::new(), 0);
    for piece in bytes.chunks(piece) {
        if let Err(error) = feed.push(piece, &mut |span| spans.push(span)) {
            return (Err(error), spans, most);
        }
        most = most.max(feed.held());
    }
    let end = feed.end(&mut |span| spans.push(span));
    (end, spans, most)
}

/// Checks that pieces of any size give the result of the whole. Returns the maximum number of buffered bytes with small pieces.
fn same(bytes: &[u8]) -> usize {
    let whole = read(bytes).unwrap_or_else(|e| panic!("{e}"));
    let mut held = 0;
    for piece in [7, 1, 64, 1_000, bytes.len()] {
        let (fed, spans, most) = fed(bytes, piece);
        let fed = fed.unwrap_or_else(|e| panic!("in pieces of {piece}: {e}"));
        assert_eq!((fed.format, fed.notes), (whole.format, whole.notes), "in pieces of {piece}");
        assert_eq!(fed.spans, spans.len() as u64);
        assert!(spans == whole.spans, "in pieces of {piece}: {spans:?}");
        held = if piece == 7 { most } else { held };
    }
    held
}

/// Spans of several services; neighbours share a resource.
fn spans(n: u64) -> Vec<TraceSpan> {
    let one = |i: u64| {
        let mut span = TraceSpan::blank();
        (span.trace, span.id) = (u128::from(i / 5) + 1, i + 1);
        span.parent = (!i.is_multiple_of(5)).then_some(i - i % 5 + 1);
        span.name = format!("step {i} \u{fc} {{[\"");
        span.service = Some(format!("service {}", i / 10));
        span.kind = if i.is_multiple_of(5) { SpanKind::Server } else { SpanKind::Internal };
        span.start_ns = 1_795_000_000_000_000_000 + 1_000 * i as i64;
        span.end_ns = span.start_ns + 500;
        span.attributes = vec![("tokens".into(), AttributeValue::Int(i as i64))];
        span
    };
    (0..n).map(one).collect()
}

/// OTLP's JSON of these spans, one document per ten of them.
fn documents(spans: &[TraceSpan]) -> Vec<String> {
    let one = |span: &TraceSpan| {
        serde_json::json!({
            "traceId": format!("{:032x}", span.trace), "spanId": format!("{:016x}", span.id),
            "parentSpanId": span.parent.map_or(String::new(), |id| format!("{id:016x}")),
            "name": span.name, "kind": span.kind as u8,
            "startTimeUnixNano": span.start_ns.to_string(), "endTimeUnixNano": span.end_ns.to_string(),
            "attributes": [{"key": "tokens", "value": {"intValue": "3"}}],
        })
    };
    let batch = |batch: &[TraceSpan]| {
        let service = batch[0].service.clone();
        let resource =
            serde_json::json!({"attributes": [{"key": "service.name", "value": {"stringValue": service}}]});
        let spans: Vec<serde_json::Value> = batch.iter().map(one).collect();
        serde_json::json!({"resourceSpans": [{"resource": resource, "scopeSpans": [{"spans": spans}]}]})
    };
    spans.chunks(10).map(|spans| batch(spans).to_string()).collect()
}

#[test]
fn documents_one_after_the_other_are_read_one_by_one() {
    let lines = documents(&spans(300));
    let longest = lines.iter().map(String::len).max().expect("lines");
    let pretty: Vec<String> = lines
        .iter()
        .map(|line| serde_json::from_str::<serde_json::Value>(line).expect("JSON"))
        .map(|value| serde_json::to_string_pretty(&value).expect("JSON"))
        .collect();
    for (text, document) in [
        (lines.join("\n"), longest),
        (lines.join("\r\n\r\n") + "\n", longest),
        (lines.concat(), longest),
        (pretty.join("\n"), pretty[0].len() * 2),
    ] {
        let held = same(text.as_bytes());
        assert!(held < document + 64, "{held} held of documents of {document}");
    }
    // A list of them is one document.
    same(format!("[{}]", lines.join(",")).as_bytes());
}

#[test]
fn messages_and_resources_are_read_one_by_one() {
    let spans = spans(300);
    let messages: Vec<Vec<u8>> = spans.chunks(10).map(otlp::encode).collect();
    let longest = messages.iter().map(Vec::len).max().expect("messages");
    let with_lengths: Vec<u8> = messages
        .iter()
        .flat_map(|message| [&(message.len() as u32).to_be_bytes()[..], message].concat())
        .collect();
    // One message is its resources, and so are several in sequence.
    for bytes in [with_lengths, messages.concat(), otlp::encode(&spans)] {
        let held = same(&bytes);
        assert!(held < longest + 64, "{held} held of messages of {longest}");
    }
}

#[test]
fn what_can_be_read_only_whole_is_read_whole() {
    same(include_bytes!("../../fixtures/otlp/vllm_llm_request.json"));
    let event =
        |name: &str, ts: u64| format!(r#"{{"ph":"X","name":"{name}","pid":1,"tid":1,"ts":{ts},"dur":2}}"#);
    let events = [event("a", 1), event("b", 1), event("c", 9)];
    // Events of one profile on separate lines belong together, and a list of them may lack its end.
    same(events.join("\n").as_bytes());
    same(format!("[{}", events.join(",")).as_bytes());
    same(b"\xef\xbb\xbf{\"resourceSpans\":[]}");
    same(b"\n\n {\"resourceSpans\":[]} ");
    // A line that is no trace among others that are.
    let lines = documents(&spans(20));
    same(format!("{{\"level\":\"info\"}}\n{}\n{{}}\n{}", lines[0], lines[1]).as_bytes());
}

#[test]
fn what_breaks_is_said_with_its_place_in_the_file() {
    let lines = documents(&spans(30));
    for text in [
        format!("{}\n{}\n  {{\"resourceSpans\": 7}}\n{}", lines[0], lines[1], lines[2]),
        format!("{} {{\"resourceSpans\":[}}", lines[0]),
        format!("{}\n{}\n{}", lines[0], lines[1], &lines[2][..lines[2].len() / 2]),
        format!("{}\nand then\n", lines[0]),
        "{\"a\":1}\n{\"b\":2}".to_owned(),
        "hello".to_owned(),
        String::new(),
    ] {
        let whole = read(text.as_bytes()).expect_err("broken");
        let (read, ..) = fed(text.as_bytes(), 64);
        let unknown = matches!(whole, TraceError::Unknown { .. });
        match read.expect_err("broken") {
            // Which of the unknown keys are listed is another matter.
            TraceError::Unknown { .. } if unknown => {}
            error => assert_eq!(error, whole, "{text}"),
        }
    }
    let message = otlp::encode(&spans(10));
    let cut = [&(message.len() as u32).to_be_bytes()[..], &message, &[0, 0, 9, 9, 10]].concat();
    let error = fed(&cut, 64).0.expect_err("cut off").to_string();
    assert!(error.contains("expected the rest of a message"), "{error}");
    assert!(fed(&message[..message.len() - 3], 64).0.is_err());
}

proptest! {
    /// Arbitrary bytes cause no panic, and both ways of reading agree.
    #[test]
    fn any_bytes(head in prop::sample::select(vec![&b""[..], b"{", b"[{", b"\x0a", b"\0\0\0\x04\x0a", b"SQLite format 3\0"]), bytes in vec(any::<u8>(), 0..200), piece in 1usize..40) {
        let bytes = [head, &bytes].concat();
        let (read_so, spans, _) = fed(&bytes, piece);
        if let (Ok(fed), Ok(whole)) = (read_so, read(&bytes)) {
            prop_assert_eq!((fed.format, fed.notes), (whole.format, whole.notes));
            prop_assert!(spans == whole.spans);
        }
    }

    /// Documents with any bytes changed.
    #[test]
    fn any_damage(at in 0usize..4_000, with in any::<u8>(), piece in 1usize..400) {
        let mut bytes = documents(&spans(20)).join("\n").into_bytes();
        let at = at % bytes.len();
        bytes[at] = with;
        let (read_so, spans, _) = fed(&bytes, piece);
        if let (Ok(fed), Ok(whole)) = (read_so, read(&bytes)) {
            prop_assert_eq!(fed.format, whole.format);
            prop_assert_eq!(fed.format, TraceFormat::OtlpJson);
            prop_assert!(spans == whole.spans);
        }
    }
}
