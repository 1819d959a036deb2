//! Defects of streams in public bug reports, and neighbours of each: one test per kind.

use plimsoll_model::outcome::How;
use plimsoll_model::{Broken, Event, EventKind, Protocol, Span, Tokens, TokensRule};
use plimsoll_wire::Head;
use plimsoll_wire::sse::LINE_MAX;

use crate::support::{Read, Recorded, capture, events, made, read, read_pieces, sse};

use Protocol::{Chat, Completions, Messages, OllamaChat, Responses};
use TokensRule::{Unknown, UsageTotal};

fn chunk(delta: &str, finish: &str) -> String {
    let finish = if finish.is_empty() { "null".to_owned() } else { format!("\"{finish}\"") };
    format!("{{\"choices\":[{{\"index\":0,\"delta\":{{{delta}}},\"finish_reason\":{finish}}}]}}")
}

fn says(text: &str) -> String {
    chunk(&format!("\"content\":\"{text}\""), "")
}

fn usage(fields: &str) -> String {
    format!("{{\"choices\":[],\"usage\":{{\"prompt_tokens\":7,{fields}}}}}")
}

fn of(data: &[String]) -> Read {
    read(Chat, &events(&data.iter().map(String::as_str).collect::<Vec<_>>()))
}

fn tokens(read: &Read) -> Tokens {
    read.verdict.answer.tokens
}

/// The kinds of the events once the end is known, a letter each, with their tokens.
fn settled(read: &Read) -> String {
    let event = |one: &plimsoll_wire::DecodedEvent| Event {
        offset: Span(0),
        user_delay_ns: 0,
        tokens: one.tokens,
        kind: one.kind,
        coalesced: false,
    };
    let mut stored: Vec<Event> = read.events.iter().map(event).collect();
    read.verdict.settle(&mut stored);
    stored.iter().map(|event| format!("{}{} ", event.kind.name(), event.tokens)).collect()
}

#[test]
fn empty_events_become_tokens_where_they_make_the_total() {
    let mut data = vec![chunk("\"role\":\"assistant\",\"content\":\"\"", ""), says("a"), says("b")];
    data.extend([says(""), says(""), chunk("\"content\":\"\"", "length")]);
    let total =
        |n: u32| [data.clone(), vec![usage(&format!("\"completion_tokens\":{n}")), "[DONE]".into()]].concat();
    let read = of(&total(4));
    assert_eq!((tokens(&read).output, tokens(&read).rule), (Some(4), UsageTotal));
    assert_eq!(settled(&read), "role0 content1 content1 content1 content1 finish0 usage0 done0 ");
    // The last came with the finish reason.
    assert!(settled(&of(&total(5))).contains("content1 content1 content1 content1 content1 usage0"));
    // Neither: the texts are all, or it is unknown which.
    assert_eq!(settled(&of(&total(2))), "role0 content1 content1 empty0 empty0 finish0 usage0 done0 ");
    assert_eq!((tokens(&of(&total(9))).output, tokens(&of(&total(9))).claimed), (None, Some(9)));
}

#[test]
fn keep_alives_are_no_tokens() {
    let body = format!(
        ": ping\n\ndata: {}\n\n: ping\n\ndata: null\n\ndata: {}\n\ndata: {}\n\ndata: [DONE]\n\n",
        says("a"),
        chunk("", "stop"),
        usage("\"completion_tokens\":4")
    );
    let read = read(Chat, &sse(body));
    assert_eq!((tokens(&read).output, tokens(&read).rule), (Some(4), Unknown));
}

#[test]
fn counts_stand_wherever_servers_put_them() {
    let account = "\"usage\":{\"prompt_tokens\":7,\"completion_tokens\":2,\"total_tokens\":9}";
    let last = chunk("", "stop");
    let in_choice = last.replace("\"finish_reason\"", &format!("{account},\"finish_reason\""));
    let on_top = last.replace("\"choices\"", &format!("{account},\"choices\""));
    let groq = last.replace("\"choices\"", &format!("\"x_groq\":{{\"id\":\"r\",{account}}},\"choices\""));
    let alone = format!("{{\"choices\":[],{account}}}");
    for ends in [
        vec![in_choice],
        vec![on_top],
        vec![groq],
        vec![last.clone(), alone.clone()],
        vec![last, alone.clone(), alone],
    ] {
        let read = of(&[vec![says("a"), says("b")], ends.clone(), vec!["[DONE]".into()]].concat());
        let tokens = tokens(&read);
        assert_eq!((tokens.prompt, tokens.output, tokens.rule), (Some(7), Some(2), UsageTotal), "{ends:?}");
    }
}

#[test]
fn wrong_counts_are_unknown_and_kept() {
    let texts: Vec<String> = (0..10).map(|n| says(&format!("w{n} "))).collect();
    let with = |account: &str| {
        of(&[texts.clone(), vec![chunk("", "stop"), usage(account), "[DONE]".into()]].concat())
    };
    for claimed in [0, 1, 5, 8] {
        let read = with(&format!("\"completion_tokens\":{claimed}"));
        assert_eq!((tokens(&read).output, tokens(&read).claimed), (None, Some(claimed)));
        assert_eq!(read.verdict.answer.broken, None, "an unknown length is neither too short nor too long");
    }
    for account in [
        "\"completion_tokens\":null",
        "\"completion_tokens\":\"many\"",
        "\"completion_tokens\":1e999",
        "\"x\":1",
    ] {
        assert_eq!(
            (tokens(&with(account)).output, tokens(&with(account)).claimed),
            (None, None),
            "{account}"
        );
    }
    // A place holder in every chunk, the total at the end.
    let zeros = texts.iter().map(|text| text.replacen('{', "{\"usage\":{\"completion_tokens\":0},", 1));
    let read = of(&zeros.chain([chunk("", "stop"), usage("\"completion_tokens\":10")]).collect::<Vec<_>>());
    assert_eq!((tokens(&read).output, tokens(&read).rule), (Some(10), UsageTotal));
    // The total in every chunk.
    let totals = texts.iter().map(|text| text.replacen('{', "{\"usage\":{\"completion_tokens\":10},", 1));
    let read = of(&totals.chain([chunk("", "stop")]).collect::<Vec<_>>());
    assert_eq!((tokens(&read).output, tokens(&read).rule), (Some(10), UsageTotal));
}

#[test]
fn reasoning_beside_the_completion_is_added() {
    let reasons = |n: u32| chunk(&format!("\"reasoning_content\":\"r{n} \""), "");
    let data: Vec<String> = (0..6).map(reasons).chain((0..2).map(|n| says(&format!("w{n} ")))).collect();
    let account =
        "\"completion_tokens\":2,\"total_tokens\":15,\"completion_tokens_details\":{\"reasoning_tokens\":6}";
    let read = of(&[data, vec![chunk("", "stop"), usage(account)]].concat());
    assert_eq!((read.word().as_str(), tokens(&read).output), ("rrrrrrccfu", Some(8)));
    assert_eq!(tokens(&read).rule, UsageTotal);
}

#[test]
fn content_is_a_text_a_list_of_parts_or_nothing() {
    let thinks = r#""content":[{"type":"thinking","thinking":[{"type":"text","text":"t"}]}]"#;
    for (delta, letter) in [
        (thinks, 'r'),
        (r#""content":[{"type":"thinking","thinking":"t"}]"#, 'r'),
        (r#""content":[{"type":"reasoning","text":"t"}]"#, 'r'),
        (r#""content":[{"type":"reasoning","summary":[{"type":"summary_text","text":"t"}]}]"#, 'r'),
        (r#""reasoning":"t""#, 'r'),
        (r#""reasoning_content":"t","content":null"#, 'r'),
        (r#""thinking":"t","content":"""#, 'r'),
        (r#""reasoning_text":"t""#, 'r'),
        (r#""reasoning":"","reasoning_details":[{"type":"reasoning.text","text":"t"}]"#, 'r'),
        (r#""content":[{"type":"text","text":"t"}]"#, 'c'),
        (r#""content":[{"type":"refusal","refusal":"no"}]"#, 'c'),
        (r#""content":{"type":"text","text":"t"}"#, 'c'),
        (r#""content":["t"]"#, 'c'),
        (r#""content":[{"type":"text","text":"t"},{"type":"thinking","thinking":"u"}]"#, 'c'),
        (r#""content":[{"type":"image_url","image_url":{"url":"x"}}]"#, 'e'),
        (r#""content":[{"type":7},null,3,[["t"]]]"#, 'e'),
        (r#""content":null"#, 'e'),
    ] {
        let read = of(&[says("a"), chunk(delta, ""), chunk("", "stop")]);
        assert_eq!(read.word(), format!("c{letter}f"), "{delta}");
    }
}

#[test]
fn fields_that_nobody_reads_break_nothing() {
    let deep = format!("{}1{}", "[".repeat(50_000), "]".repeat(50_000));
    for odd in [r#""\ud83d""#, "1e99999", &deep, r#"{"\ud83d":"\udead"}"#, "-0.0", "\"\\u0000\""] {
        let more = format!("\"content\":\"a\",\"images\":{odd}");
        let data = chunk(&more, "").replacen('{', &format!("{{\"padding\":{odd},"), 1);
        let read = of(&[data, chunk("", "stop")]);
        assert_eq!((read.word().as_str(), read.verdict.outcome.how), ("cf", How::Finished), "{:.40}", odd);
    }
    // Known fields with a value of a wrong type.
    for (from, to) in
        [("\"finish_reason\":null", "\"finish_reason\":7"), ("\"delta\"", "\"usage\":[3],\"delta\"")]
    {
        let read = of(&[says("a").replace(from, to), chunk("\"tool_calls\":\"none\"", "stop")]);
        assert_eq!((read.word().as_str(), read.verdict.outcome.how), ("cf", How::Finished), "{to}");
    }
}

#[test]
fn a_lone_surrogate_is_a_replacement_character() {
    let read = of(&[
        says("a"),
        says("\\ud83d"),
        says("\\ude00"),
        says("\\ud83d\\ude00 \\ud83dx\\n"),
        chunk("", "stop"),
    ]);
    assert_eq!((read.word().as_str(), read.verdict.outcome.how), ("ccccf", How::Finished));
    assert_eq!(read.verdict.answer.text.as_deref(), Some("a\u{fffd}\u{fffd}\u{1f600} \u{fffd}x\n"));
    let whole = r#"{"choices":[{"message":{"content":"\udc00 a"},"finish_reason":"stop"}]}"#;
    let whole = crate::support::read(Chat, &made("application/json", whole));
    assert_eq!(whole.verdict.answer.text.as_deref(), Some("\u{fffd} a"));
}

#[test]
fn a_failed_finish_is_a_failure() {
    let how = |protocol, answer: &Recorded| {
        let verdict = read(protocol, answer).verdict;
        (verdict.outcome.how, verdict.answer.error.unwrap_or_default())
    };
    for reason in ["error", "abort", "ABORTED", "network_error", "timeout"] {
        let failed = how(Chat, &events(&[&says("a"), &chunk("\"content\":\"\"", reason), "[DONE]"]));
        assert!(failed.0 == How::StreamError && failed.1.contains(reason), "{failed:?}");
    }
    for data in [
        r#"{"choices":[{"index":0,"delta":{},"error":{"message":"upstream","code":502}}]}"#,
        r#"{"error":{"message":"upstream"},"choices":[{"index":0,"delta":{"content":""},"finish_reason":"error"}]}"#,
        r#"{"success":false,"errors":[{"message":"upstream"}]}"#,
        r#"{"code":1213,"msg":"upstream"}"#,
        r#"{"object":"error","message":"upstream","code":500}"#,
    ] {
        let failed = how(Chat, &events(&[&says("a"), data, "[DONE]"]));
        assert_eq!(failed, (How::StreamError, "upstream".to_owned()), "{data}");
    }
    // An error field without an error.
    for none in ["null", "\"\"", "{}", "[]", "false"] {
        let fine = says("a").replacen('{', &format!("{{\"error\":{none},"), 1);
        assert_eq!(how(Chat, &events(&[&fine, &chunk("", "stop")])).0, How::Finished, "{none}");
    }
    let line = |done: &str| {
        format!("{{\"message\":{{\"content\":\"a\"}},\"done\":true,\"done_reason\":\"{done}\"}}\n")
    };
    let lines = |done: &str| made("application/x-ndjson", line(done));
    assert_eq!(how(OllamaChat, &lines("error")).0, How::StreamError);
    assert_eq!(how(OllamaChat, &lines("stop")).0, How::Finished);
    let closes = r#"{"type":"message_delta","delta":{"stop_reason":"error"},"usage":{"output_tokens":1}}"#;
    let text = r#"{"type":"content_block_delta","delta":{"type":"text_delta","text":"a"}}"#;
    assert_eq!(how(Messages, &events(&[text, closes, r#"{"type":"message_stop"}"#])).0, How::StreamError);
    let cancelled = r#"{"type":"response.cancelled","response":{"status":"cancelled"}}"#;
    let delta = r#"{"type":"response.output_text.delta","delta":"a"}"#;
    assert_eq!(how(Responses, &events(&[delta, cancelled])).0, How::StreamError);
    let whole = r#"{"choices":[{"text":"a","finish_reason":"abort"}]}"#;
    assert_eq!(how(Completions, &made("application/json", whole)).0, How::StreamError);
}

#[test]
fn ends_are_written_in_several_ways() {
    for end in ["[DONE]", "\"[DONE]\"", "'[DONE]'", "[done]", " [DONE] "] {
        let read = of(&[says("a"), end.into()]);
        assert_eq!((read.word().as_str(), read.verdict.outcome.how), ("cd", How::Finished), "{end}");
    }
}

#[test]
fn first_bytes_stand_over_the_media_type() {
    let body = format!("data: {}\n\ndata: {}\n\ndata: [DONE]\n\n", says("a"), chunk("", "stop"));
    for media in
        ["application/json", "text/plain", "text/html", "application/octet-stream", "text/event-stream"]
    {
        assert_eq!(read(Chat, &made(media, body.clone())).word(), "cfd", "{media}");
    }
    let lines = format!("{}\n{}\n", says("a"), chunk("", "stop"));
    for media in ["application/json", "text/event-stream", "application/x-ndjson"] {
        assert_eq!(read(Chat, &made(media, lines.clone())).word(), "cf", "{media}");
    }
}

#[test]
fn a_whole_answer_is_one_body_under_every_media_type() {
    let chat = r#"{"id":"c","choices":[{"message":{"content":"w0 w1"},"finish_reason":"stop"}],"usage":{"completion_tokens":2}}"#;
    let pretty = chat.replace(',', ",\n  ");
    let messages = r#"{"type":"message","content":[{"type":"text","text":"w0 w1"}],"stop_reason":"end_turn","usage":{"output_tokens":2}}"#;
    let responses = r#"{"object":"response","status":"completed","output":[{"type":"message","content":[{"type":"output_text","text":"w0 w1"}]}],"usage":{"output_tokens":2}}"#;
    for (protocol, json) in
        [(Chat, chat), (Chat, pretty.as_str()), (Messages, messages), (Responses, responses)]
    {
        for media in ["application/json", "text/event-stream", "text/html", ""] {
            for body in [
                json.to_owned(),
                format!("{json}\n"),
                format!("{json}\ndata: [DONE]\n\n"),
                format!("data: {}\n\n", json.replace('\n', "")),
            ] {
                let read = read(protocol, &made(media, body.clone()));
                let word = read.word();
                assert_eq!(word.trim_end_matches('d'), "B", "{protocol:?} {media} {body}");
                assert_eq!(
                    (read.verdict.outcome.how, tokens(&read).output),
                    (How::Finished, Some(2)),
                    "{media} {body}"
                );
                assert_eq!(read.verdict.answer.text.as_deref(), Some("w0 w1"), "{media} {body}");
            }
        }
    }
    // A final event that repeats the streamed text (MiniMax) adds nothing.
    let read = of(&[says("w0"), says("w1"), chat.into()]);
    assert_eq!((read.word().as_str(), read.verdict.answer.text.as_deref()), ("ccf", Some("w0w1")));
}

#[test]
fn compressed_answers_are_unpacked() {
    use std::io::Write as _;
    let plain = capture("vllm-h100/chat_stream_usage");
    let zlib = {
        let mut packer = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::fast());
        packer.write_all(&plain.body).and_then(|()| packer.finish()).unwrap()
    };
    let raw = zlib[2..zlib.len() - 4].to_vec();
    let gzip = {
        let mut packer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        packer.write_all(&plain.body).and_then(|()| packer.finish()).unwrap()
    };
    let want = read(Chat, &plain);
    let plain_body = plain.body.clone();
    for (coding, body) in [
        ("gzip", &gzip),
        ("X-GZIP", &gzip),
        ("", &gzip),
        ("deflate", &zlib),
        ("deflate", &raw),
        ("gzip", &plain_body),
        ("br", &plain_body),
        ("identity", &plain_body),
    ] {
        let head = Head { content_encoding: Some(coding.into()), ..plain.head.clone() };
        for size in [1, 7, body.len()] {
            let got = read_pieces(Chat, &head, body.chunks(size), true, (None, false));
            assert_eq!(got, want, "{coding} in pieces of {size}");
        }
    }
    let head = Head { content_encoding: Some("br".into()), ..plain.head };
    let error = read_pieces(Chat, &head, [&b"\x8b\x02\x80ab"[..]], true, (None, false)).verdict.answer.error;
    assert!(error.unwrap().contains("\"br\""));
}

#[test]
fn an_unpacked_body_is_bounded() {
    use std::io::Write as _;
    let mut packer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
    let blanks = vec![b'\n'; 1 << 20];
    (0..80).for_each(|_| packer.write_all(&blanks).unwrap());
    let bomb = packer.finish().unwrap();
    let head = Head { status: 200, content_type: Some("text/event-stream".into()), ..Head::default() };
    let verdict = read_pieces(Chat, &head, [&bomb[..]], true, (None, false)).verdict;
    assert_eq!(verdict.outcome.how, How::Malformed);
    assert!(verdict.answer.error.unwrap().contains("Plimsoll's limit"));
}

#[test]
fn large_events_are_read_and_the_limit_has_an_owner() {
    let big = |bytes: usize| chunk(&format!("\"content\":\"a\",\"images\":[\"{}\"]", "A".repeat(bytes)), "");
    assert_eq!(of(&[big(1_500_000), chunk("", "stop")]).word(), "cf");
    let verdict = of(&[big(LINE_MAX), chunk("", "stop")]).verdict;
    assert!(verdict.answer.error.unwrap().contains("Plimsoll's limit"));
}

#[test]
fn malformed_text_is_quoted_with_its_media_type() {
    for (media, body, begins) in [
        ("text/event-stream", "data: upstream is down\n\n", "upstream is down"),
        ("application/json", "upstream is down", "upstream is down"),
        ("text/html", "<html><h1>502</h1>", "<html><h1>502"),
        ("text/html", "upstream is down", "upstream is down"),
    ] {
        let verdict = read(Chat, &made(media, body)).verdict;
        let error = verdict.answer.error.unwrap();
        assert!(error.contains(begins) && error.contains(media), "{error}");
        assert_eq!(verdict.outcome.how, How::Malformed);
    }
}

#[test]
fn answers_of_hidden_reasoning_alone_are_not_empty() {
    let account = "\"completion_tokens\":64,\"completion_tokens_details\":{\"reasoning_tokens\":64}";
    let read =
        of(&[chunk("\"role\":\"assistant\"", ""), chunk("", "length"), usage(account), "[DONE]".into()]);
    assert_eq!((read.verdict.outcome.how, read.verdict.answer.broken), (How::Finished, None));
    let empty = of(&[chunk("\"role\":\"assistant\"", ""), chunk("", "stop"), "[DONE]".into()]);
    assert_eq!(
        (empty.verdict.outcome.how, empty.verdict.answer.broken),
        (How::StreamError, Some(Broken::Empty))
    );
    assert_eq!(empty.events.iter().filter(|event| event.kind == EventKind::Finish).count(), 1);
}
