//! Encodes the chunks of a streamed answer.
//!
//! The shared part of all chunks of a stream is formatted once, at the beginning of the stream. A token's chunk is then a copy of about
//! 200 bytes with its text inserted, without a JSON writer and without allocation.

use bytes::{BufMut, BytesMut};
use plimsoll_model::Protocol;

use super::answer;
use super::reply::{StreamEnd, StreamWriter};
use super::request::GenerateRequest;
use super::timing::ReportedTimings;
use crate::template::escape;

/// A writer of one stream's chunks that appends complete events to the caller's buffer.
#[derive(Clone, Debug)]
pub struct ChunkWriter {
    chat: bool,
    /// Beginning of a chunk: `data: {"id":…,"choices":[`
    open: Vec<u8>,
    prompt_tokens: u32,
    tokens: u32,
    include_usage: bool,
    continuous_usage: bool,
}

impl ChunkWriter {
    /// Creates a writer for a stream with this id (`chatcmpl-…`, made by the caller), `created` in seconds since 1970.
    ///
    /// Every endpoint except chat uses the completions format.
    pub fn new(asked: &GenerateRequest, id: &str, created: i64, model: &str) -> ChunkWriter {
        let chat = asked.endpoint == Protocol::Chat;
        let object = if chat { "chat.completion.chunk" } else { "text_completion" };
        let mut open = String::with_capacity(128 + id.len() + model.len());
        open.push_str("data: {\"id\":\"");
        escape(id, &mut open);
        open.push_str("\",\"object\":\"");
        open.push_str(object);
        open.push_str("\",\"created\":");
        open.push_str(&created.to_string());
        open.push_str(",\"model\":\"");
        escape(model, &mut open);
        open.push_str("\",\"choices\":[");
        ChunkWriter {
            chat,
            open: open.into_bytes(),
            prompt_tokens: asked.prompt_tokens,
            tokens: 0,
            include_usage: asked.include_usage,
            continuous_usage: asked.continuous_usage,
        }
    }

    /// Returns the number of tokens so far.
    pub fn tokens(&self) -> u32 {
        self.tokens
    }

    /// Writes the chunk with the role; completions have none.
    pub fn role(&self, out: &mut BytesMut) {
        if self.chat {
            self.chunk(
                out,
                br#"{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}"#,
            );
        }
    }

    /// Writes a chunk with the text of `tokens` tokens.
    pub fn token(&mut self, out: &mut BytesMut, text: &str, tokens: u32) {
        self.tokens = self.tokens.saturating_add(tokens);
        out.reserve(self.open.len() + text.len() + 192);
        out.put_slice(&self.open);
        out.put_slice(if self.chat {
            br#"{"index":0,"delta":{"content":""#
        } else {
            br#"{"index":0,"text":""#
        });
        put_escaped(out, text);
        out.put_slice(if self.chat {
            br#""},"logprobs":null,"finish_reason":null}]"#
        } else {
            br#"","logprobs":null,"finish_reason":null}]"#
        });
        self.running(out);
        out.put_slice(b"}\n\n");
    }

    /// Writes the chunk with the finish reason: `stop`, `length`, …
    pub fn finish(&self, out: &mut BytesMut, reason: &str) {
        let mut choice = String::with_capacity(96);
        choice.push_str(if self.chat { r#"{"index":0,"delta":{}"# } else { r#"{"index":0,"text":"""# });
        choice.push_str(r#","logprobs":null,"finish_reason":""#);
        escape(reason, &mut choice);
        choice.push_str("\"}");
        self.chunk(out, choice.as_bytes());
    }

    /// Writes the usage chunk, if it was requested, with the engine's timings, and `[DONE]`.
    pub fn end(&self, out: &mut BytesMut, told: &ReportedTimings) {
        if self.include_usage {
            out.put_slice(&self.open);
            out.put_slice(b"]");
            self.usage_with(out, told.cached);
            if let Some(timing) = &told.timing {
                out.put_slice(b",\"metrics\":");
                out.put_slice(timing.json().as_bytes());
            }
            out.put_slice(b"}\n\n");
        }
        out.put_slice(b"data: [DONE]\n\n");
    }

    fn chunk(&self, out: &mut BytesMut, choice: &[u8]) {
        out.reserve(self.open.len() + choice.len() + 128);
        out.put_slice(&self.open);
        out.put_slice(choice);
        out.put_slice(b"]");
        self.running(out);
        out.put_slice(b"}\n\n");
    }

    fn running(&self, out: &mut BytesMut) {
        if self.continuous_usage {
            self.usage(out);
        }
    }

    fn usage(&self, out: &mut BytesMut) {
        self.usage_with(out, None);
    }

    fn usage_with(&self, out: &mut BytesMut, cached: Option<u32>) {
        let mut digits = [0_u8; 10];
        out.put_slice(b",\"usage\":{\"prompt_tokens\":");
        out.put_slice(decimal(self.prompt_tokens, &mut digits));
        out.put_slice(b",\"total_tokens\":");
        out.put_slice(decimal(self.prompt_tokens.saturating_add(self.tokens), &mut digits));
        out.put_slice(b",\"completion_tokens\":");
        out.put_slice(decimal(self.tokens, &mut digits));
        if let Some(cached) = cached {
            out.put_slice(b",\"prompt_tokens_details\":{\"cached_tokens\":");
            out.put_slice(decimal(cached, &mut digits));
            out.put_slice(b"}");
        }
        out.put_slice(b"}");
    }
}

impl StreamWriter for ChunkWriter {
    fn open(&mut self, out: &mut BytesMut) -> bool {
        self.role(out);
        self.chat
    }

    fn token(&mut self, out: &mut BytesMut, text: &str, tokens: u32) {
        ChunkWriter::token(self, out, text, tokens);
    }

    fn close(&mut self, out: &mut BytesMut, end: &StreamEnd) {
        self.finish(out, end.reason);
        self.end(out, &end.told);
    }

    fn error(&mut self, out: &mut BytesMut, message: &str, status: u16) {
        out.put_slice(b"data: ");
        out.put_slice(&answer::error(status, message, None));
        out.put_slice(b"\n\n");
    }
}

pub(super) fn put_escaped(out: &mut BytesMut, text: &str) {
    if text.bytes().all(|b| b >= 0x20 && b != b'"' && b != b'\\') {
        out.put_slice(text.as_bytes());
        return;
    }
    let mut escaped = String::with_capacity(text.len() + 8);
    escape(text, &mut escaped);
    out.put_slice(escaped.as_bytes());
}

/// Returns the decimal digits of `n`, written at the end of `digits`.
fn decimal(mut n: u32, digits: &mut [u8; 10]) -> &[u8] {
    let mut at = digits.len();
    loop {
        at -= 1;
        digits[at] = b'0' + (n % 10) as u8;
        n /= 10;
        if n == 0 {
            return &digits[at..];
        }
    }
}

/// Returns word `n` of the engine's vocabulary, an endless text, with the preceding blank.
///
/// A text of `n` words counts `n` tokens. Two consecutive words always differ.
pub fn word(n: u64) -> &'static str {
    const WORDS: [&str; 32] = [
        " load", " line", " draft", " keel", " water", " winter", " summer", " fresh", " salt", " tide",
        " hull", " deck", " mast", " sail", " stern", " bow", " port", " ballast", " cargo", " harbour",
        " anchor", " rope", " wind", " wave", " storm", " calm", " chart", " compass", " pilot", " watch",
        " bell", " log",
    ];
    WORDS[(n % WORDS.len() as u64) as usize]
}

/// Returns `n` words of that text, from index `from`.
pub fn words(from: u64, n: u32) -> String {
    (0..u64::from(n)).map(|i| word(from.wrapping_add(i))).collect()
}
