//! The engine's half: it parses encoded requests, and its answers decode to their meaning.

use bytes::BytesMut;
use plimsoll_model::outcome::How;
use plimsoll_model::{Message, Payload, Protocol, Role, Span, TokensRule};
use plimsoll_wire::prometheus::PrometheusPage;
use plimsoll_wire::server::{
    ChunkWriter, GenerateRequest, Reply, ReportedTimings, StreamWriter as _, Timing, answer, embeddings,
    error, models, parse, word,
};
use plimsoll_wire::{Head, RequestOptions, encode};
use serde_json::{Value, json};

use crate::support::{Recorded, made, read, sse};

use Protocol::{Chat, Completions, Embeddings, Responses};

const BODY_MAX: usize = 1 << 20;

fn asked(protocol: Protocol, payload: &Payload) -> GenerateRequest {
    let options = RequestOptions {
        protocol,
        model: Some("m".into()),
        stream: true,
        max_tokens: Some(8),
        ignore_eos: true,
        ..RequestOptions::default()
    };
    parse(protocol, &encode(payload, &options).body, BODY_MAX).expect("a good request")
}

#[test]
fn what_is_encoded_is_what_is_asked() {
    let talk = Payload::Messages(vec![
        Message::text(Role::System, "one two"),
        Message::text(Role::User, "three\n four \"five\""),
    ]);
    for protocol in [Chat, Completions, Responses, Embeddings] {
        let asked = asked(protocol, &talk);
        assert_eq!((asked.endpoint, asked.prompt_tokens, asked.model.as_str()), (protocol, 5, "m"));
        let generates = protocol != Embeddings;
        assert_eq!((asked.stream, asked.ignore_eos), (generates, generates));
        assert_eq!(asked.max_tokens, generates.then_some(8));
        let options = matches!(protocol, Chat | Completions);
        assert_eq!((asked.include_usage, asked.continuous_usage), (options, options));
    }
    let many =
        parse(Embeddings, br#"{"input":["a b","c"],"encoding_format":"base64","dimensions":4}"#, BODY_MAX)
            .unwrap();
    assert_eq!((many.inputs, many.prompt_tokens, many.base64, many.dimensions), (2, 3, true, Some(4)));
    let parts =
        br#"{"messages":[{"content":[{"type":"text","text":"a b"},{"type":"image_url"}]},{"content":null}]}"#;
    assert_eq!(parse(Chat, parts, BODY_MAX).unwrap().prompt_tokens, 2);
}

#[test]
fn blocks_are_equal_as_far_as_prompts_are() {
    let words = |from: u64, n: u64| (from..from + n).map(|i| format!("w{i} ")).collect::<String>();
    let blocks = |text: String| asked(Chat, &Payload::Text(text)).blocks;
    let (a, b) = (blocks(words(0, 50)), blocks(words(0, 32) + &words(100, 18)));
    assert_eq!((a.len(), b.len()), (3, 3));
    assert_eq!(a[..2], b[..2]);
    assert_ne!(a[2], b[2]);
    let other = blocks(words(1, 16) + &words(16, 34));
    assert!(other.iter().zip(&a).all(|(x, y)| x != y), "a block counts only after an equal prefix");
}

#[test]
fn bad_requests_name_the_field() {
    let cases: [(Protocol, &[u8], u16, Option<&str>); 9] = [
        (Chat, b"{", 400, None),
        (Chat, b"[]", 400, None),
        (Chat, b"{}", 400, Some("messages")),
        (Chat, br#"{"messages":[]}"#, 400, Some("messages")),
        (Chat, br#"{"messages":[{"content":3}]}"#, 400, Some("messages")),
        (Chat, br#"{"messages":[{"content":"a"}],"max_tokens":-5}"#, 400, Some("max_tokens")),
        (Chat, br#"{"messages":[{"content":"a"}],"n":2}"#, 400, Some("n")),
        (Completions, b"{}", 400, Some("prompt")),
        (Embeddings, br#"{"input":[]}"#, 400, Some("input")),
    ];
    for (endpoint, body, status, param) in cases {
        let refused = parse(endpoint, body, BODY_MAX).unwrap_err();
        assert_eq!((refused.status, refused.param), (status, param), "{}", String::from_utf8_lossy(body));
    }
    assert_eq!(parse(Chat, &[b' '; 100], 99).unwrap_err().status, 413);
}

fn streamed(protocol: Protocol, usage: bool, running: bool) -> Recorded {
    let asked = GenerateRequest {
        endpoint: protocol,
        prompt_tokens: 11,
        include_usage: usage,
        continuous_usage: running,
        ..GenerateRequest::default()
    };
    let mut writer = ChunkWriter::new(&asked, "chatcmpl-0123456789abcdef", 1_795_174_765, "a \"model\"");
    let mut out = BytesMut::new();
    writer.role(&mut out);
    for n in 0..40 {
        writer.token(&mut out, word(n), 1);
    }
    writer.token(&mut out, " two \"words\"", 2);
    writer.finish(&mut out, "length");
    writer.end(&mut out, &ReportedTimings::default());
    sse(out.to_vec())
}

#[test]
fn streams_are_decoded_as_they_were_meant() {
    for protocol in [Chat, Completions] {
        for (usage, running, rule) in [
            (true, true, TokensRule::UsageRunning),
            (true, false, TokensRule::Unknown),
            (false, false, TokensRule::Unknown),
        ] {
            let read = read(protocol, &streamed(protocol, usage, running));
            let role = if protocol == Chat { "R" } else { "" };
            let end = if usage { "fud" } else { "fd" };
            assert_eq!(read.word(), format!("{role}{}{end}", "c".repeat(41)));
            let tokens = read.verdict.answer.tokens;
            assert_eq!(tokens.output, usage.then_some(42));
            assert_eq!(tokens.prompt, usage.then_some(11));
            assert_eq!(tokens.rule, rule);
            assert_eq!(read.verdict.answer.broken, None);
            let text = read.verdict.answer.text.unwrap();
            assert_eq!(text.split_whitespace().count(), 42);
            assert!(
                text.ends_with(" log load line draft keel water winter summer fresh two \"words\""),
                "{text}"
            );
        }
    }
}

/// Every chunk is an object that an independent parser accepts, with the fields of the OpenAI reference.
#[test]
fn chunks_are_json_with_the_usual_fields() {
    let body = String::from_utf8(streamed(Chat, true, true).body).unwrap();
    let mut lengths = Vec::new();
    for event in body.split_terminator("\n\n") {
        let data = event.strip_prefix("data: ").unwrap();
        if data == "[DONE]" {
            continue;
        }
        let chunk: Value = serde_json::from_str(data).unwrap();
        assert_eq!(chunk["object"], json!("chat.completion.chunk"));
        assert_eq!(chunk["model"], json!("a \"model\""));
        assert_eq!(chunk["created"], json!(1_795_174_765));
        assert!(chunk["usage"]["total_tokens"].as_u64() >= Some(11));
        lengths.push(event.len() + 2);
    }
    assert!(lengths.iter().all(|n| (200..300).contains(n)), "{lengths:?}");
}

const REPLY: Reply<'static> =
    Reply { id: "x", created_s: 0, model: "m", first_word: 7, tokens: 20, reason: "length", told: TOLD };
const TOLD: ReportedTimings = ReportedTimings { timing: None, cached: None };

/// The known answer of vLLM's own tests (its `PerRequestTimingMetrics`): queued at 1.0 s, scheduled at 1.5, first token at
/// 2.0, last at 3.0, ten tokens.
#[test]
fn stage_times_are_told_as_vllm_tells_them() {
    let timing = Timing {
        queue: Span::from_millis(500),
        prefill: Span::from_millis(500),
        decode: Span::from_millis(1000),
        tokens: 10,
    };
    let near = |value: &Value, want: f64| assert!((value.as_f64().unwrap() - want).abs() < 1e-9, "{value}");
    let told: Value = serde_json::from_str(&timing.json()).unwrap();
    assert_eq!(told.as_object().unwrap().len(), 5, "{told}");
    near(&told["time_to_first_token_ms"], 500.0);
    near(&told["generation_time_ms"], 1000.0);
    near(&told["queue_time_ms"], 500.0);
    near(&told["mean_itl_ms"], 1000.0 / 9.0);
    near(&told["tokens_per_second"], 10.0 / 1.5);
    // One token has no gap.
    let one: Value = serde_json::from_str(&Timing { tokens: 1, ..timing }.json()).unwrap();
    assert_eq!(one.get("mean_itl_ms"), None);

    let want = [("queue", 500), ("prefill", 500), ("decode", 1000)];
    let spans = |read: crate::support::Read| {
        let stages = read.verdict.answer.stages.into_iter();
        stages.map(|stage| (stage.name, stage.took)).collect::<Vec<_>>()
    };
    let told = ReportedTimings { timing: Some(timing), cached: Some(16) };
    let want: Vec<_> = want.iter().map(|(name, ms)| ((*name).to_owned(), Span::from_millis(*ms))).collect();
    for protocol in [Chat, Completions] {
        let asked = GenerateRequest { endpoint: protocol, include_usage: true, ..GenerateRequest::default() };
        let mut writer = ChunkWriter::new(&asked, "x", 0, "m");
        let mut out = BytesMut::new();
        (0..10).for_each(|n| writer.token(&mut out, word(n), 1));
        writer.finish(&mut out, "length");
        writer.end(&mut out, &told);
        assert_eq!(out.windows(9).filter(|bytes| bytes == b"\"metrics\"").count(), 1);
        let read_back = read(protocol, &sse(out.to_vec()));
        assert_eq!(read_back.word(), format!("{}fud", "c".repeat(10)));
        assert_eq!(read_back.verdict.answer.tokens.cached, Some(16));
        assert_eq!(spans(read_back), want);
        let whole =
            read(protocol, &made("application/json", answer(&asked, &Reply { told, ..REPLY }).to_vec()));
        assert_eq!(whole.verdict.answer.tokens.cached, Some(16));
        assert_eq!(spans(whole), want);
    }
}

#[test]
fn stream_errors_and_whole_bodies() {
    let mut writer =
        ChunkWriter::new(&GenerateRequest { endpoint: Chat, ..GenerateRequest::default() }, "x", 0, "m");
    let mut out = BytesMut::new();
    writer.error(&mut out, "the engine \"died\"", 500);
    let told = read(Chat, &sse(out.to_vec()));
    assert_eq!((told.word().as_str(), told.verdict.outcome.how), ("E", How::StreamError));
    assert_eq!(told.verdict.answer.error.as_deref(), Some("the engine \"died\""));

    for protocol in [Chat, Completions, Responses] {
        let asked = GenerateRequest { endpoint: protocol, prompt_tokens: 3, ..GenerateRequest::default() };
        let told = read(protocol, &made("application/json", answer(&asked, &REPLY).to_vec()));
        assert_eq!((told.word().as_str(), told.verdict.outcome.how), ("B", How::Finished));
        let found = told.verdict.answer;
        assert_eq!((found.tokens.prompt, found.tokens.output), (Some(3), Some(20)));
        assert_eq!(found.finish_reason.as_deref(), Some("length"));
        assert_eq!(found.text.unwrap().split_whitespace().count(), 20);
    }
    let asked =
        GenerateRequest { endpoint: Embeddings, prompt_tokens: 3, inputs: 2, ..GenerateRequest::default() };
    let floats: Value = serde_json::from_slice(&embeddings(&asked, "m", 16)).unwrap();
    assert_eq!(floats["data"][1]["embedding"], json!(vec![0.25; 16]));
    let base64: Value =
        serde_json::from_slice(&embeddings(&GenerateRequest { base64: true, ..asked }, "m", 1)).unwrap();
    // 1.0f32 is 00 00 80 3f, little-endian.
    assert_eq!(base64["data"][0]["embedding"], json!("AACAPw=="));

    let head = Head { status: 404, content_type: Some("application/json".into()), ..Head::default() };
    let told =
        read(Chat, &Recorded { head, body: error(Some(Chat), 404, "no such model", Some("model")).to_vec() });
    assert_eq!(told.verdict.outcome.how, How::ClientError);
    assert_eq!(told.verdict.answer.error.as_deref(), Some("no such model"));
    let list: Value = serde_json::from_slice(&models("m", &[], 5, Some(4096))).unwrap();
    assert_eq!((&list["data"][0]["id"], &list["data"][0]["max_model_len"]), (&json!("m"), &json!(4096)));
}

#[test]
fn neighbouring_words_differ() {
    assert!((0..200).all(|n| word(n) != word(n + 1)));
    assert!((0..200).all(|n| word(n).split_whitespace().count() == 1 && word(n).starts_with(' ')));
}

/// The format's own example values and escapes (prometheus.io, "Exposition formats").
#[test]
fn metrics_pages() {
    let mut page = PrometheusPage::new();
    page.counter(
        "http_requests_total",
        "The total number\nof \\ requests.",
        [([("method", "post"), ("code", "200")], 1027.0), ([("method", "post"), ("code", "400")], 3.0)],
    );
    page.gauge(
        "g",
        "A gauge.",
        [([("path", "C:\\DIR\\FILE.TXT"), ("error", "Cannot find:\n\"FILE\"")], 1.458_255_915e9)],
    );
    page.gauge("odd", "Odd values.", [(&[][..], f64::NAN), (&[("a", "b")], f64::NEG_INFINITY)]);
    let counts = [24_054, 9_390, 96_000];
    page.histograms("h_seconds", "A histogram.", &[0.05, 0.1, 1.0], [([("m", "x")], counts, 53_423.0)]);
    let expected = r#"# HELP http_requests_total The total number\nof \\ requests.
# TYPE http_requests_total counter
http_requests_total{method="post",code="200"} 1027
http_requests_total{method="post",code="400"} 3
# HELP g A gauge.
# TYPE g gauge
g{path="C:\\DIR\\FILE.TXT",error="Cannot find:\n\"FILE\""} 1458255915
# HELP odd Odd values.
# TYPE odd gauge
odd NaN
odd{a="b"} -Inf
# HELP h_seconds A histogram.
# TYPE h_seconds histogram
h_seconds_bucket{m="x",le="0.05"} 24054
h_seconds_bucket{m="x",le="0.1"} 33444
h_seconds_bucket{m="x",le="1"} 129444
h_seconds_bucket{m="x",le="+Inf"} 129444
h_seconds_sum{m="x"} 53423
h_seconds_count{m="x"} 129444
"#;
    assert_eq!(page.finish(), expected);
}
