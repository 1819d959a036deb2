//! Encodes the events of a streamed response in OpenAI's Responses API, where an answer is an object that grows.
//!
//! A stream has an opening of four events, one event for each step's text, and a closing of five that repeat the whole text.
//! Each event has a number; there is no `[DONE]`. As with chunks, the shared part of all text events is formatted once.

use bytes::{BufMut, Bytes, BytesMut};
use serde_json::{Value, json};

use super::reply::{Reply, StreamEnd, StreamWriter};
use super::request::GenerateRequest;
use super::stream::{put_escaped, words};

/// A writer of one response's events that appends complete events to the caller's buffer.
#[derive(Clone, Debug)]
pub struct EventWriter {
    id: String,
    created_s: i64,
    model: String,
    prompt_tokens: u32,
    tokens: u32,
    number: u32,
    /// An `event: …` up to the text of a step.
    open: Vec<u8>,
}

impl EventWriter {
    /// Creates a writer for a stream with this id (`resp_…`, made by the caller); `created` in seconds since 1970.
    pub fn new(asked: &GenerateRequest, id: &str, created: i64, model: &str) -> EventWriter {
        let open = format!(
            "event: response.output_text.delta\ndata: {{\"type\":\"response.output_text.delta\",\"item_id\":{},\
             \"output_index\":0,\"content_index\":0,\"logprobs\":[],\"delta\":\"",
            json!(item_id(id))
        );
        EventWriter {
            id: id.to_owned(),
            created_s: created,
            model: model.to_owned(),
            prompt_tokens: asked.prompt_tokens,
            tokens: 0,
            number: 0,
            open: open.into_bytes(),
        }
    }

    fn event(&mut self, out: &mut BytesMut, kind: &str, mut body: Value) {
        body["type"] = json!(kind);
        body["sequence_number"] = json!(self.number);
        self.number += 1;
        out.put_slice(format!("event: {kind}\ndata: {body}\n\n").as_bytes());
    }

    fn response(&self, status: &str, output: Value) -> Value {
        json!({
            "id": self.id, "object": "response", "created_at": self.created_s, "model": self.model, "status": status,
            "error": null, "incomplete_details": null, "output": output, "usage": null,
        })
    }

    fn item(&self, status: &str, content: Value) -> Value {
        message(&self.id, status, content)
    }
}

impl StreamWriter for EventWriter {
    fn open(&mut self, out: &mut BytesMut) -> bool {
        let response = self.response("in_progress", json!([]));
        self.event(out, "response.created", json!({"response": response}));
        self.event(out, "response.in_progress", json!({"response": response}));
        let item = self.item("in_progress", json!([]));
        self.event(out, "response.output_item.added", json!({"output_index": 0, "item": item}));
        let part =
            json!({"item_id": item_id(&self.id), "output_index": 0, "content_index": 0, "part": part("")});
        self.event(out, "response.content_part.added", part);
        true
    }

    fn token(&mut self, out: &mut BytesMut, text: &str, tokens: u32) {
        self.tokens = self.tokens.saturating_add(tokens);
        out.reserve(self.open.len() + text.len() + 48);
        out.put_slice(&self.open);
        put_escaped(out, text);
        out.put_slice(b"\",\"sequence_number\":");
        out.put_slice(self.number.to_string().as_bytes());
        out.put_slice(b"}\n\n");
        self.number += 1;
    }

    /// Writes the end with the whole text and the usage. An answer that stops at the requested length is `incomplete`.
    fn close(&mut self, out: &mut BytesMut, end: &StreamEnd) {
        let text = words(end.first_word, self.tokens);
        let place = || json!({"item_id": item_id(&self.id), "output_index": 0, "content_index": 0});
        let with = |mut value: Value, key: &str, what: Value| {
            value[key] = what;
            value
        };
        let text_done = with(place(), "text", json!(text));
        let part_done = with(place(), "part", part(&text));
        let item = self.item("completed", json!([part(&text)]));
        self.event(out, "response.output_text.done", text_done);
        self.event(out, "response.content_part.done", part_done);
        self.event(out, "response.output_item.done", json!({"output_index": 0, "item": item}));
        let status = status(end.reason);
        let mut response = self.response(status, json!([item]));
        response["incomplete_details"] = incomplete(end.reason);
        response["usage"] = usage(self.prompt_tokens, self.tokens, end.told.cached);
        self.event(out, &format!("response.{status}"), json!({"response": response}));
    }

    fn error(&mut self, out: &mut BytesMut, message: &str, status: u16) {
        self.event(out, "error", json!({"code": status.to_string(), "message": message, "param": null}));
    }
}

/// Returns the whole answer to a request of the Responses API. It has no field for the engine's times.
pub(super) fn answer(asked: &GenerateRequest, reply: &Reply<'_>) -> Bytes {
    let text = words(reply.first_word, reply.tokens);
    let body = json!({
        "id": reply.id, "object": "response", "created_at": reply.created_s, "model": reply.model,
        "status": status(reply.reason), "error": null, "incomplete_details": incomplete(reply.reason),
        "output": [message(reply.id, "completed", json!([part(&text)]))],
        "usage": usage(asked.prompt_tokens, reply.tokens, reply.told.cached),
    });
    Bytes::from(body.to_string())
}

/// Returns the only message of a response.
fn message(id: &str, status: &str, content: Value) -> Value {
    json!({"id": item_id(id), "type": "message", "role": "assistant", "status": status, "content": content})
}

/// Returns the only part of a message.
fn part(text: &str) -> Value {
    json!({"type": "output_text", "text": text, "annotations": []})
}

/// Returns the response status for a finish reason.
fn status(reason: &str) -> &'static str {
    if reason == "length" { "incomplete" } else { "completed" }
}

/// Returns the details of an incomplete response; null if it is complete.
fn incomplete(reason: &str) -> Value {
    if reason == "length" { json!({"reason": "max_output_tokens"}) } else { Value::Null }
}

/// Returns the usage. Unknown cached tokens are 0, because the protocol has no value for unknown.
fn usage(prompt: u32, tokens: u32, cached: Option<u32>) -> Value {
    json!({
        "input_tokens": prompt, "input_tokens_details": {"cached_tokens": cached.unwrap_or(0)},
        "output_tokens": tokens, "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": prompt.saturating_add(tokens),
    })
}

fn item_id(id: &str) -> String {
    format!("msg_{}", id.strip_prefix("resp_").unwrap_or(id))
}
