//! Ollama's own API, the server's half: lines of JSON, whole answers, errors, and its list of models.

use bytes::{BufMut, Bytes, BytesMut};
use plimsoll_model::Protocol;
use serde_json::{Value, json};

use super::reply::{Reply, StreamEnd, StreamWriter};
use super::request::GenerateRequest;
use super::stream::{put_escaped, words};
use super::timing::ReportedTimings;
use crate::instant::iso;

/// A writer of one answer's lines.
#[derive(Clone, Debug)]
pub struct LineWriter {
    protocol: Protocol,
    model: String,
    created: String,
    prompt_tokens: u32,
    tokens: u32,
    /// Beginning of a line, up to the text of a step.
    open: Vec<u8>,
}

impl LineWriter {
    /// Creates a writer for a stream with `created` in seconds since 1970, which every line repeats.
    pub fn new(asked: &GenerateRequest, created: i64, model: &str) -> LineWriter {
        let created = iso(created);
        let said = match asked.endpoint {
            Protocol::OllamaGenerate => "\"response\":\"",
            _ => "\"message\":{\"role\":\"assistant\",\"content\":\"",
        };
        let open = format!("{{\"model\":{},\"created_at\":\"{created}\",{said}", json!(model));
        LineWriter {
            protocol: asked.endpoint,
            model: model.to_owned(),
            created,
            prompt_tokens: asked.prompt_tokens,
            tokens: 0,
            open: open.into_bytes(),
        }
    }
}

impl StreamWriter for LineWriter {
    fn open(&mut self, _out: &mut BytesMut) -> bool {
        false
    }

    fn token(&mut self, out: &mut BytesMut, text: &str, tokens: u32) {
        self.tokens = self.tokens.saturating_add(tokens);
        out.reserve(self.open.len() + text.len() + 24);
        out.put_slice(&self.open);
        put_escaped(out, text);
        out.put_slice(match self.protocol {
            Protocol::OllamaGenerate => b"\",\"done\":false}\n",
            _ => b"\"},\"done\":false}\n",
        });
    }

    fn close(&mut self, out: &mut BytesMut, end: &StreamEnd) {
        let counts = (self.prompt_tokens, self.tokens);
        let line = whole(self.protocol, (&self.model, &self.created), "", (end.reason, counts), &end.told);
        out.put_slice(format!("{line}\n").as_bytes());
    }

    fn error(&mut self, out: &mut BytesMut, message: &str, _status: u16) {
        out.put_slice(&error(message));
        out.put_slice(b"\n");
    }
}

/// Returns the last line, or the only one. Stage durations are in ns, if the engine has them.
fn whole(
    protocol: Protocol,
    (model, created): (&str, &str),
    text: &str,
    (reason, (prompt, output)): (&str, (u32, u32)),
    told: &ReportedTimings,
) -> Value {
    let mut line = json!({
        "model": model, "created_at": created, "done": true, "done_reason": reason,
        "prompt_eval_count": prompt, "eval_count": output,
    });
    match protocol {
        Protocol::OllamaGenerate => line["response"] = json!(text),
        _ => line["message"] = json!({"role": "assistant", "content": text}),
    }
    if let Some(timing) = &told.timing {
        line["total_duration"] = json!((timing.queue + timing.prefill + timing.decode).0);
        line["load_duration"] = json!(0);
        line["prompt_eval_duration"] = json!(timing.prefill.0);
        line["eval_duration"] = json!(timing.decode.0);
    }
    line
}

pub(super) fn answer(asked: &GenerateRequest, reply: &Reply<'_>) -> Bytes {
    let text = words(reply.first_word, reply.tokens);
    let ended = (reply.reason, (asked.prompt_tokens, reply.tokens));
    Bytes::from(
        whole(asked.endpoint, (reply.model, &iso(reply.created_s)), &text, ended, &reply.told).to_string(),
    )
}

/// Returns an error body, which contains only a text.
pub(super) fn error(message: &str) -> Bytes {
    Bytes::from(json!({"error": message}).to_string())
}

/// Returns the body of `GET /api/tags` with one model and its adapters.
pub fn tags(model: &str, adapters: &[String], created: i64) -> Bytes {
    let card = |name: &str| json!({"name": name, "model": name, "modified_at": iso(created), "size": 0, "digest": ""});
    let all: Vec<Value> =
        std::iter::once(model).chain(adapters.iter().map(String::as_str)).map(card).collect();
    Bytes::from(json!({"models": all}).to_string())
}
