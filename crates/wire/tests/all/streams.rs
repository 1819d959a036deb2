//! Streams without a recording: protocols and quirks, each as literal bytes.

use plimsoll_model::outcome::How;
use plimsoll_model::{Broken, Event, EventKind, Protocol, Span, TokensRule};
use plimsoll_wire::Head;

use crate::support::{Recorded, events, made, read, read_pieces, sse};

use Protocol::{Chat, Completions, Embeddings, Http, Responses};

fn chunk(index: u32, delta: &str, finish: &str) -> String {
    let finish = if finish.is_empty() { "null".to_owned() } else { format!("\"{finish}\"") };
    format!("{{\"choices\":[{{\"index\":{index},\"delta\":{{{delta}}},\"finish_reason\":{finish}}}]}}")
}

fn with_usage(chunk: &str, prompt: u32, output: u32) -> String {
    let open = chunk.strip_suffix('}').expect("an object");
    format!("{open},\"usage\":{{\"prompt_tokens\":{prompt},\"completion_tokens\":{output}}}}}")
}

fn stream(data: &[String]) -> Recorded {
    events(&data.iter().map(String::as_str).collect::<Vec<_>>())
}

fn says(text: &str) -> String {
    chunk(0, &format!("\"content\":\"{text}\""), "")
}

/// llama.cpp, n = 2: interleaved, index 1 first. One usage chunk per choice, which add up; the prompt counts once.
#[test]
fn accounts_of_two_choices_add_up() {
    let usage = |cached: u32| {
        format!(
            "{{\"choices\":[],\"usage\":{{\"completion_tokens\":2,\"prompt_tokens\":17,\
             \"prompt_tokens_details\":{{\"cached_tokens\":{cached}}}}}}}"
        )
    };
    let answer = stream(&[
        chunk(1, "\"content\":\"a\"", ""),
        chunk(0, "\"content\":\"b\"", ""),
        chunk(0, "\"content\":\"c\"", ""),
        chunk(1, "\"content\":\"d\"", ""),
        chunk(1, "", "length"),
        usage(0),
        chunk(0, "", "length"),
        usage(16),
        "[DONE]".into(),
    ]);
    let read = read(Chat, &answer);
    assert_eq!(read.word(), "ccccfufud");
    let tokens = read.verdict.answer.tokens;
    assert_eq!((tokens.prompt, tokens.output, tokens.cached), (Some(17), Some(4), Some(0)));
    assert_eq!(tokens.rule, TokensRule::UsageTotal);
    assert_eq!(read.verdict.answer.text.as_deref(), Some("bc"));
}

/// llama.cpp, completions of several prompts: a single null between events. It is empty, and nevertheless an event.
#[test]
fn a_null_between_events_is_skipped_and_counted() {
    let text = |n: u32| format!("{{\"choices\":[{{\"index\":{n},\"text\":\"a\",\"finish_reason\":null}}]}}");
    let answer = stream(&[
        text(0),
        "null".into(),
        text(1),
        "null".into(),
        "{\"choices\":[{\"index\":0,\"text\":\"\",\"finish_reason\":\"length\"}]}".into(),
        "[DONE]".into(),
    ]);
    let read = read(Completions, &answer);
    assert_eq!(read.word(), "cecefd");
    assert_eq!(read.verdict.outcome.how, How::Finished);
}

/// vLLM, n = 2: one total for both.
#[test]
fn one_account_of_two_choices_is_their_total() {
    let answer = stream(&[
        chunk(0, "\"content\":\"a\"", ""),
        chunk(1, "\"content\":\"b\"", "stop"),
        chunk(0, "\"content\":\"c\"", "length"),
        "{\"choices\":[],\"usage\":{\"completion_tokens\":3,\"prompt_tokens\":9}}".into(),
        "[DONE]".into(),
    ]);
    let tokens = read(Chat, &answer).verdict.answer.tokens;
    assert_eq!((tokens.prompt, tokens.output, tokens.rule), (Some(9), Some(3), TokensRule::UsageTotal));
}

/// vLLM, n = 2, running totals per choice, then the whole.
#[test]
fn running_totals_are_kept_per_choice() {
    let answer = stream(&[
        with_usage(&chunk(0, "\"content\":\"a\"", ""), 9, 2),
        with_usage(&chunk(1, "\"content\":\"b\"", ""), 9, 1),
        with_usage(&chunk(0, "\"content\":\"c\"", "length"), 9, 5),
        with_usage(&chunk(1, "\"content\":\"d\"", "length"), 9, 4),
        "{\"choices\":[],\"usage\":{\"completion_tokens\":9,\"prompt_tokens\":9}}".into(),
        "[DONE]".into(),
    ]);
    let read = read(Chat, &answer);
    assert_eq!(read.tokens(), [2, 1, 3, 3]);
    assert_eq!(read.verdict.answer.tokens.rule, TokensRule::UsageRunning);
    assert_eq!(read.verdict.answer.tokens.output, Some(9));
}

/// llama.cpp, two prompts in one request: each finish chunk has the usage of its prompt; both counts add up.
#[test]
fn accounts_of_two_prompts_add_up() {
    let text = |index: u32, text: &str, rest: &str| {
        format!("{{\"choices\":[{{\"index\":{index},\"text\":\"{text}\",\"finish_reason\":{rest}}}")
    };
    let finish = |index, prompt, output| {
        format!(
            "{}],\"usage\":{{\"prompt_tokens\":{prompt},\"completion_tokens\":{output}}}}}",
            text(index, "", "\"length\"")
        )
    };
    let piece = |index, word: &str| format!("{}]}}", text(index, word, "null"));
    let answer = stream(&[
        piece(0, "a"),
        piece(1, "b"),
        finish(1, 5, 1),
        piece(0, "c"),
        finish(0, 7, 2),
        "[DONE]".into(),
    ]);
    let read = read(Completions, &answer);
    assert_eq!(read.word(), "ccfcfd");
    let tokens = read.verdict.answer.tokens;
    assert_eq!((tokens.prompt, tokens.output, tokens.rule), (Some(12), Some(3), TokensRule::UsageTotal));
}

/// Several tokens per event by the running total; the end-of-text token on the finish chunk is a token too.
#[test]
fn running_totals_say_how_many_tokens_an_event_carries() {
    let answer = stream(&[
        with_usage(&chunk(0, "\"role\":\"assistant\",\"content\":\"\"", ""), 3, 0),
        with_usage(&says("a b"), 3, 2),
        with_usage(&says("c"), 3, 3),
        with_usage(&says(""), 3, 3),
        with_usage(&says("d e f"), 3, 6),
        with_usage(&chunk(0, "\"content\":\"\"", "stop"), 3, 7),
        "{\"choices\":[],\"usage\":{\"completion_tokens\":7,\"prompt_tokens\":3}}".into(),
        "[DONE]".into(),
    ]);
    let read = read(Chat, &answer);
    assert_eq!(read.word(), "Rccecc".to_owned() + "ud");
    assert_eq!(read.tokens(), [2, 1, 3, 1]);
    assert!(!read.events[5].visible);
    assert_eq!(read.verdict.answer.tokens.rule, TokensRule::UsageRunning);
    assert_eq!(read.verdict.answer.finish_reason.as_deref(), Some("stop"));
}

/// The last total contradicts the running ones: then the tokens of single events are unknown.
#[test]
fn totals_that_disagree_leave_the_rule_unknown() {
    let answer = stream(&[
        with_usage(&says("a"), 3, 1),
        with_usage(&says("b"), 3, 2),
        chunk(0, "", "stop"),
        "{\"choices\":[],\"usage\":{\"completion_tokens\":9,\"prompt_tokens\":3}}".into(),
        "[DONE]".into(),
    ]);
    let read = read(Chat, &answer);
    assert_eq!(read.verdict.answer.tokens.rule, TokensRule::Unknown);
    let mut stored: Vec<Event> = read
        .events
        .iter()
        .map(|event| Event {
            offset: Span::ZERO,
            user_delay_ns: 0,
            tokens: event.tokens,
            kind: event.kind,
            coalesced: false,
        })
        .collect();
    assert_eq!(stored[0].tokens, 1);
    read.verdict.settle(&mut stored);
    assert!(stored.iter().all(|event| event.tokens == 0));
}

#[test]
fn a_matching_total_settles_one_token_each() {
    let answer = stream(&[
        says("a"),
        says("b"),
        chunk(0, "", "stop"),
        "{\"choices\":[],\"usage\":{\"completion_tokens\":2}}".into(),
        "[DONE]".into(),
    ]);
    let read = read(Chat, &answer);
    let mut stored = [EventKind::Content, EventKind::Content, EventKind::Finish].map(|kind| Event {
        offset: Span::ZERO,
        user_delay_ns: 0,
        tokens: 0,
        kind,
        coalesced: false,
    });
    read.verdict.settle(&mut stored);
    assert_eq!(stored.map(|event| event.tokens), [1, 1, 0]);
}

#[test]
fn lengths_are_judged_by_the_servers_count() {
    let cases = [
        (8, true, 8, None),
        (8, true, 7, Some(Broken::CutShort)),
        (8, false, 7, None),
        (8, false, 9, Some(Broken::TooLong)),
        (8, true, 9, Some(Broken::TooLong)),
    ];
    for (asked, ignore_eos, got, expected) in cases {
        let answer = stream(&[
            says("a"),
            says("b"),
            chunk(0, "", "stop"),
            format!("{{\"choices\":[],\"usage\":{{\"completion_tokens\":{got}}}}}"),
            "[DONE]".into(),
        ]);
        let read = read_pieces(Chat, &answer.head, [&answer.body[..]], true, (Some(asked), ignore_eos));
        assert_eq!(read.verdict.answer.broken, expected, "{asked} {ignore_eos} {got}");
    }
    // Without a count, there is no verdict.
    let answer = stream(&[says("a"), chunk(0, "", "stop"), "[DONE]".into()]);
    let read = read_pieces(Chat, &answer.head, [&answer.body[..]], true, (Some(8), true));
    assert_eq!(read.verdict.answer.broken, None);
}

#[test]
fn only_one_piece_over_and_over_is_repeated() {
    let broken = |pieces: Vec<&str>| {
        let mut data: Vec<String> = pieces.into_iter().map(says).collect();
        data.extend([chunk(0, "", "stop"), "[DONE]".into()]);
        read(Chat, &stream(&data)).verdict.answer.broken
    };
    assert_eq!(broken(vec![" the"; 16]), Some(Broken::Repeated));
    assert_eq!(broken(vec![" the"; 15]), None);
    let mut mixed = vec![" the"; 100];
    mixed[0] = " a";
    assert_eq!(broken(mixed), None);
    let engine: Vec<&str> = (0..200).map(plimsoll_wire::server::word).collect();
    assert_eq!(broken(engine), None);
    // The words of a whole answer decide.
    let whole = |text: &str| {
        let body = format!("{{\"choices\":[{{\"message\":{{\"content\":\"{text}\"}}}}]}}");
        read(Chat, &made("application/json", body)).verdict.answer.broken
    };
    assert_eq!(whole(&"no ".repeat(16)), Some(Broken::Repeated));
    assert_eq!(whole(&"no yes ".repeat(16)), None);
}

#[test]
fn the_media_type_decides_and_not_the_request() {
    let json = "{\"choices\":[{\"index\":0,\"message\":{\"content\":\"a\"},\"finish_reason\":\"stop\"}],\
                \"usage\":{\"prompt_tokens\":1,\"completion_tokens\":1}}";
    let body = format!("data: {}\n\ndata: [DONE]\n\n", chunk(0, "\"content\":\"a\"", "stop"));
    // The first bytes decide about bodies without a label or with a vague one, at every split.
    for (answer, word) in
        [(made("text/plain", json), "B"), (made("text/plain", body.clone()), "cd"), (sse(body), "cd")]
    {
        for cut in 0..answer.body.len() {
            let pieces = [&answer.body[..cut], &answer.body[cut..]];
            let read = read_pieces(Chat, &answer.head, pieces, true, (None, false));
            assert_eq!((read.word().as_str(), read.verdict.outcome.how), (word, How::Finished));
        }
    }
}

#[test]
fn an_unclosed_last_event_counts_at_a_clean_end() {
    let body = format!("data: {}\n\ndata: [DONE]", chunk(0, "\"content\":\"a\"", "stop"));
    let head = Head { status: 200, content_type: Some("text/event-stream".into()), ..Head::default() };
    let read = read_pieces(Chat, &head, [body.as_bytes()], true, (None, false));
    assert_eq!((read.word().as_str(), read.verdict.outcome.how), ("cd", How::Finished));
    let read = read_pieces(Chat, &head, [body.as_bytes()], false, (None, false));
    assert_eq!((read.word().as_str(), read.verdict.outcome.how), ("c", How::Truncated));
}

#[test]
fn a_clean_end_without_a_finish_is_truncated() {
    let read = read(Chat, &stream(&[chunk(0, "\"role\":\"assistant\"", ""), says("a")]));
    assert_eq!((read.word().as_str(), read.verdict.outcome.how), ("Rc", How::Truncated));
}

#[test]
fn keep_alives_are_empty_events() {
    let body =
        format!(": keep-alive\n\ndata: {}\n\n:\n\ndata: [DONE]\n\n", chunk(0, "\"content\":\"a\"", "stop"));
    assert_eq!(read(Chat, &sse(body)).word(), "eced");
}

#[test]
fn errors_in_a_stream_are_told_in_every_shape() {
    let cases = [
        ("{\"error\":{\"message\":\"m\",\"code\":500}}", "m", true),
        ("{\"error\":\"m\"}", "m", true),
        ("{\"error\":{\"message\":\"m\",\"code\":\"429\"}}", "m", true),
        ("{\"error\":{\"message\":\"m\",\"code\":400}}", "m", false),
        ("{\"detail\":\"m\"}", "m", true),
        ("{\"object\":\"error\",\"message\":\"m\",\"code\":400}", "m", false),
    ];
    for (data, text, retryable) in cases {
        let read = read(Chat, &stream(&[says("a"), data.into(), "[DONE]".into()]));
        assert_eq!(read.word(), "cEd", "{data}");
        assert_eq!(read.verdict.outcome.how, How::StreamError, "{data}");
        assert_eq!(read.verdict.outcome.retryable, retryable, "{data}");
        assert_eq!(read.verdict.answer.error.as_deref(), Some(text), "{data}");
    }
    let named = sse("event: error\ndata: upstream went away\n\n");
    let read = read(Chat, &named);
    assert_eq!((read.word().as_str(), read.verdict.outcome.how), ("E", How::StreamError));
}

#[test]
fn parts_and_refusals_are_text() {
    let answer = stream(&[
        chunk(0, "\"content\":[{\"type\":\"text\",\"text\":\"a\"},{\"type\":\"text\",\"text\":\"b\"}]", ""),
        chunk(0, "\"refusal\":\"no\"", ""),
        chunk(0, "\"function_call\":{\"arguments\":\"{}\"}", ""),
        chunk(0, "\"content\":{\"odd\":1}", ""),
        chunk(0, "", "stop"),
        "[DONE]".into(),
    ]);
    let read = read(Chat, &answer);
    assert_eq!(read.word(), "cctefd");
    assert_eq!(read.verdict.answer.text.as_deref(), Some("abno"));
}

/// Event names and fields as in the OpenAI API reference, "Streaming events".
#[test]
fn responses_stream() {
    let answer = sse(concat!(
        "event: response.created\ndata: {\"type\":\"response.created\",\"response\":{\"status\":\"in_progress\",\"error\":null}}\n\n",
        "event: response.output_item.added\ndata: {\"type\":\"response.output_item.added\",\"item\":{\"type\":\"message\"}}\n\n",
        "event: response.reasoning_summary_text.delta\ndata: {\"type\":\"response.reasoning_summary_text.delta\",\"delta\":\"hm\"}\n\n",
        "event: response.output_text.delta\ndata: {\"type\":\"response.output_text.delta\",\"delta\":\"Hi\"}\n\n",
        "event: response.output_text.delta\ndata: {\"type\":\"response.output_text.delta\",\"delta\":\"\"}\n\n",
        "event: response.function_call_arguments.delta\ndata: {\"type\":\"response.function_call_arguments.delta\",\"delta\":\"{\"}\n\n",
        "event: response.output_text.done\ndata: {\"type\":\"response.output_text.done\",\"text\":\"Hi\"}\n\n",
        "event: response.incomplete\ndata: {\"type\":\"response.incomplete\",\"response\":{\"status\":\"incomplete\",\
         \"incomplete_details\":{\"reason\":\"max_output_tokens\"},\"usage\":{\"input_tokens\":11,\"output_tokens\":3,\
         \"input_tokens_details\":{\"cached_tokens\":4},\"output_tokens_details\":{\"reasoning_tokens\":1}}}}\n\n",
    ));
    let read = read(Responses, &answer);
    assert_eq!(read.word(), "RRrcetef");
    let answer = read.verdict.answer;
    assert_eq!(read.verdict.outcome.how, How::Finished);
    assert_eq!(answer.finish_reason.as_deref(), Some("length"));
    let tokens = answer.tokens;
    assert_eq!(
        (tokens.prompt, tokens.output, tokens.reasoning, tokens.cached, tokens.rule),
        (Some(11), Some(3), Some(1), Some(4), TokensRule::UsageTotal)
    );
    assert_eq!(answer.text.as_deref(), Some("Hi"));
}

#[test]
fn responses_that_fail_or_come_whole() {
    let failed = events(&[
        "{\"type\":\"response.failed\",\"response\":{\"status\":\"failed\",\"error\":{\"code\":\"server_error\",\"message\":\"m\"}}}",
    ]);
    let told = read(Responses, &failed);
    assert_eq!((told.word().as_str(), told.verdict.outcome.how), ("E", How::StreamError));
    assert_eq!(told.verdict.answer.error.as_deref(), Some("m"));
    let cut = events(&["{\"type\":\"response.output_text.delta\",\"delta\":\"Hi\"}"]);
    assert_eq!(read(Responses, &cut).verdict.outcome.how, How::Truncated);
    let whole = made(
        "application/json",
        "{\"object\":\"response\",\"status\":\"completed\",\"error\":null,\"output\":[{\"type\":\"message\",\"content\":\
         [{\"type\":\"output_text\",\"text\":\"Hi there\"}]}],\"usage\":{\"input_tokens\":4,\"output_tokens\":2}}",
    );
    let told = read(Responses, &whole);
    assert_eq!((told.word().as_str(), told.verdict.outcome.how), ("B", How::Finished));
    assert_eq!(told.verdict.answer.text.as_deref(), Some("Hi there"));
    assert_eq!(told.verdict.answer.tokens.output, Some(2));
    assert_eq!(told.verdict.answer.finish_reason.as_deref(), Some("stop"));
}

/// TGI's generate_stream, as in its documentation, and Ollama's newline-delimited answers.
#[test]
fn other_protocols_by_their_fields() {
    let tgi = sse(concat!(
        "data:{\"index\":1,\"token\":{\"id\":1,\"text\":\"Hi\",\"logprob\":-0.1,\"special\":false},\"generated_text\":null,\"details\":null}\n\n",
        "data:{\"index\":2,\"token\":{\"id\":2,\"text\":\"!\",\"logprob\":-0.1,\"special\":false},\"generated_text\":\"Hi!\",\
         \"details\":{\"finish_reason\":\"length\",\"generated_tokens\":2,\"seed\":null}}\n\n",
    ));
    let told = read(Http, &tgi);
    assert_eq!(told.word(), "cc");
    assert_eq!(told.verdict.answer.finish_reason.as_deref(), Some("length"));
    assert_eq!(told.verdict.answer.tokens.rule, TokensRule::UsageTotal);
    let ollama = made(
        "application/x-ndjson",
        "{\"message\":{\"role\":\"assistant\",\"content\":\"Hi\"},\"done\":false}\n\
         {\"message\":{\"role\":\"assistant\",\"content\":\"\"},\"done\":true,\"done_reason\":\"stop\",\"eval_count\":1,\"prompt_eval_count\":5}\n",
    );
    let told = read(Http, &ollama);
    assert_eq!(told.word(), "cf");
    let tokens = told.verdict.answer.tokens;
    assert_eq!((tokens.prompt, tokens.output, tokens.rule), (Some(5), Some(1), TokensRule::UsageTotal));
    // An unknown format, and plain text: generated, without further facts.
    let odd = events(&["{\"y\":[1,2]}", "plain", "[3]"]);
    let told = read(Http, &odd);
    assert_eq!((told.word().as_str(), told.verdict.outcome.how), ("ccc", How::Finished));
}

#[test]
fn server_times_inside_usage_and_time_info() {
    let answer = stream(&[
        says("a"),
        "{\"choices\":[],\"usage\":{\"completion_tokens\":1,\"queue_time\":0.25,\"prompt_time\":0.5},\
         \"time_info\":{\"completion_time\":0.125,\"created\":7}}"
            .into(),
        "[DONE]".into(),
    ]);
    let stages = read(Chat, &answer).verdict.answer.stages;
    let found: Vec<(&str, i64)> = stages.iter().map(|stage| (stage.name.as_str(), stage.took.0)).collect();
    assert_eq!(found, [("queue", 250_000_000), ("prefill", 500_000_000), ("decode", 125_000_000)]);
}

#[test]
fn heads_tell_status_waits_and_redirects() {
    use plimsoll_model::outcome::By;
    use plimsoll_wire::head::{outcome, retry_after};
    let cases = [
        (301, How::Redirected, false),
        (400, How::ClientError, false),
        (408, How::ClientError, true),
        (429, How::Shed, true),
        (500, How::ServerError, true),
        (501, How::ServerError, false),
        (503, How::Shed, true),
        (102, How::Malformed, false),
    ];
    for (status, how, retryable) in cases {
        let outcome = outcome(status).unwrap();
        assert_eq!((outcome.how, outcome.by, outcome.retryable), (how, By::Server, retryable), "{status}");
    }
    assert_eq!(outcome(200), None);
    // Relative to the sender's own clock, if it reports a date.
    let dated = |date: &'static [u8]| {
        let headers: [(&str, &[u8]); 2] = [("Retry-After", b"Sun, 06 Nov 1994 08:49:37 GMT"), ("Date", date)];
        Head::read(429, headers, 1_900_000_000).retry_after
    };
    assert_eq!(dated(b"Sun, 06 Nov 1994 08:49:30 GMT"), Some(Span::from_secs(7)));
    assert_eq!(dated(b"some day"), Some(Span::ZERO));
    assert_eq!(retry_after("2", 0), Some(Span::from_secs(2)));
    assert_eq!(retry_after("0.5", 0), Some(Span::from_millis(500)));
    assert_eq!(retry_after("-1", 0), None);
    assert_eq!(retry_after("soon", 0), None);
    // RFC 9110's own example date is 784111777 in POSIX time (`date -u -d … +%s`).
    assert_eq!(retry_after("Sun, 06 Nov 1994 08:49:37 GMT", 784_111_770), Some(Span::from_secs(7)));
    assert_eq!(retry_after("Sun, 06 Nov 1994 08:49:37 GMT", 784_111_999), Some(Span::ZERO));
    assert_eq!(retry_after("Thu, 29 Feb 2024 12:00:00 GMT", 1_709_208_000 - 1), Some(Span::from_secs(1)));
    let headers: [(&str, &[u8]); 3] = [
        ("Retry-After", b"3"),
        ("Location", b"https://elsewhere.example/"),
        ("Server-Timing", b"db;dur=53, app;dur=47.2"),
    ];
    let head = Head::read(302, headers, 0);
    let read = read(Chat, &Recorded { head, body: Vec::new() });
    assert_eq!(read.verdict.outcome.how, How::Redirected);
    assert_eq!(read.verdict.answer.error.as_deref(), Some("redirected to https://elsewhere.example/"));
    assert_eq!(read.verdict.answer.retry_after, Some(Span::from_secs(3)));
    assert_eq!(read.verdict.answer.stages.len(), 2);
}

#[test]
fn an_embeddings_answer_without_vectors_is_empty() {
    let answer =
        made("application/json", "{\"object\":\"list\",\"data\":[],\"usage\":{\"prompt_tokens\":3}}");
    assert_eq!(read(Embeddings, &answer).verdict.answer.broken, Some(Broken::Empty));
}
