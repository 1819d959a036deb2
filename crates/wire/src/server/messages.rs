//! Anthropic Messages, the server's half: a stream of named events, whole answers, errors.
//!
//! The opening reports the whole prompt as `input_tokens`, because the cached part is known only after the request is scheduled.
//! The `message_delta` before the end divides it, and replaces the opening.

use bytes::{BufMut, Bytes, BytesMut};
use serde_json::{Value, json};

use super::reply::{Reply, StreamEnd, StreamWriter};
use super::request::GenerateRequest;
use super::stream::{put_escaped, words};

/// An `event: …` up to the text of a step: all deltas of all streams share it.
const DELTA: &[u8] = b"event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":0,\
                       \"delta\":{\"type\":\"text_delta\",\"text\":\"";

/// A writer of one message's events.
#[derive(Clone, Debug)]
pub struct MessageWriter {
    id: String,
    model: String,
    prompt_tokens: u32,
    tokens: u32,
}

impl MessageWriter {
    /// Creates a writer for a stream with this id (`msg_…`, made by the caller).
    pub fn new(asked: &GenerateRequest, id: &str, model: &str) -> MessageWriter {
        let (id, model) = (id.to_owned(), model.to_owned());
        MessageWriter { id, model, prompt_tokens: asked.prompt_tokens, tokens: 0 }
    }
}

impl StreamWriter for MessageWriter {
    fn open(&mut self, out: &mut BytesMut) -> bool {
        let usage = json!({"input_tokens": self.prompt_tokens, "output_tokens": 0});
        let message = message(&self.id, &self.model, json!([]), (Value::Null, usage));
        event(out, "message_start", json!({"message": message}));
        let block = json!({"index": 0, "content_block": {"type": "text", "text": ""}});
        event(out, "content_block_start", block);
        event(out, "ping", json!({}));
        true
    }

    fn token(&mut self, out: &mut BytesMut, text: &str, tokens: u32) {
        self.tokens = self.tokens.saturating_add(tokens);
        out.reserve(DELTA.len() + text.len() + 8);
        out.put_slice(DELTA);
        put_escaped(out, text);
        out.put_slice(b"\"}}\n\n");
    }

    fn close(&mut self, out: &mut BytesMut, end: &StreamEnd) {
        event(out, "content_block_stop", json!({"index": 0}));
        let delta = json!({"stop_reason": reason(end.reason), "stop_sequence": null});
        let usage = usage(self.prompt_tokens, self.tokens, end.told.cached);
        event(out, "message_delta", json!({"delta": delta, "usage": usage}));
        event(out, "message_stop", json!({}));
    }

    fn error(&mut self, out: &mut BytesMut, message: &str, status: u16) {
        out.put_slice(b"event: error\ndata: ");
        out.put_slice(&error(status, message));
        out.put_slice(b"\n\n");
    }
}

fn event(out: &mut BytesMut, kind: &str, mut body: Value) {
    body["type"] = json!(kind);
    out.put_slice(format!("event: {kind}\ndata: {body}\n\n").as_bytes());
}

fn message(id: &str, model: &str, content: Value, (stop_reason, usage): (Value, Value)) -> Value {
    json!({
        "id": id, "type": "message", "role": "assistant", "model": model, "content": content,
        "stop_reason": stop_reason, "stop_sequence": null, "usage": usage,
    })
}

/// Returns the usage: cached tokens are not `input_tokens`. An engine without a cache reports no cached tokens.
fn usage(prompt: u32, output: u32, cached: Option<u32>) -> Value {
    let mut usage = json!({"input_tokens": prompt, "output_tokens": output});
    if let Some(cached) = cached.map(|cached| cached.min(prompt)) {
        usage["input_tokens"] = json!(prompt - cached);
        usage["cache_read_input_tokens"] = json!(cached);
        usage["cache_creation_input_tokens"] = json!(0);
    }
    usage
}

fn reason(reason: &str) -> &str {
    match reason {
        "length" => "max_tokens",
        _ => "end_turn",
    }
}

pub(super) fn answer(asked: &GenerateRequest, reply: &Reply<'_>) -> Bytes {
    let text = words(reply.first_word, reply.tokens);
    let usage = usage(asked.prompt_tokens, reply.tokens, reply.told.cached);
    let content = json!([{"type": "text", "text": text}]);
    let ended = (json!(reason(reply.reason)), usage);
    Bytes::from(message(reply.id, reply.model, content, ended).to_string())
}

/// Returns an error body, with Anthropic's error type for each status.
pub(super) fn error(status: u16, message: &str) -> Bytes {
    let kind = match status {
        401 => "authentication_error",
        403 => "permission_error",
        404 => "not_found_error",
        413 => "request_too_large",
        429 => "rate_limit_error",
        400..=499 => "invalid_request_error",
        503 | 529 => "overloaded_error",
        504 => "timeout_error",
        _ => "api_error",
    };
    Bytes::from(json!({"type": "error", "error": {"type": kind, "message": message}}).to_string())
}
