//! Transcriptions, the server's half, in OpenAI's formats. The text is meaningless, with the length of speech in that time.

use bytes::{BufMut, Bytes, BytesMut};
use plimsoll_model::Protocol;
use serde_json::{Value, json};

use super::form;
use super::reply::{Reply, StreamEnd, StreamWriter};
use super::request::{BadRequest, GenerateRequest, TranscriptFormat, bad, media_tokens};
use super::stream::{put_escaped, words};
use crate::media;

/// Words per minute of speech: the pace of audiobooks.
const WORDS_PER_MINUTE: u64 = 150;

/// Parses the form of a request.
pub fn parse_form(content_type: &str, body: &[u8], body_max: usize) -> Result<GenerateRequest, BadRequest> {
    if body.len() > body_max {
        let message = format!("request body of {} bytes is over the limit of {body_max}", body.len());
        return Err(BadRequest { status: 413, message, param: None });
    }
    let parts = form::parts(content_type, body)?;
    let text = |name: &'static str| -> Result<Option<&str>, BadRequest> {
        let part = parts.iter().find(|part| part.name == name);
        let read = part.map(|part| std::str::from_utf8(part.body).map(str::trim));
        read.transpose().map_err(|_| bad(name, format!("{name} is not a text")))
    };
    let file =
        parts.iter().find(|part| part.name == "file").ok_or_else(|| bad("file", "file is required"))?;
    let sound =
        media::read_wav(file.body).ok_or_else(|| bad("file", "the file is no WAV; only WAV is supported"))?;
    let stream = text("stream")?.is_some_and(|text| text.eq_ignore_ascii_case("true") || text == "1");
    let mut asked = GenerateRequest {
        endpoint: Protocol::Transcriptions,
        model: text("model")?.unwrap_or_default().to_owned(),
        stream,
        inputs: 1,
        format: match text("response_format")? {
            None | Some("json") => TranscriptFormat::Json,
            Some("verbose_json") => TranscriptFormat::VerboseJson,
            Some("text") => TranscriptFormat::Text,
            Some(_) => {
                return Err(bad("response_format", "response_format must be json, verbose_json or text"));
            }
        },
        ..GenerateRequest::default()
    };
    asked.media.add(&sound);
    let spoken = (asked.media.audio_ms * WORDS_PER_MINUTE).div_ceil(60_000).max(1);
    asked.max_tokens = Some(u32::try_from(spoken).unwrap_or(u32::MAX));
    asked.prompt_tokens = media_tokens(&sound);
    asked.media_tokens = asked.prompt_tokens;
    Ok(asked)
}

fn usage(prompt: u32, tokens: u32) -> Value {
    json!({
        "type": "tokens", "input_tokens": prompt, "input_token_details": {"text_tokens": 0, "audio_tokens": prompt},
        "output_tokens": tokens, "total_tokens": prompt.saturating_add(tokens),
    })
}

pub(super) fn answer(asked: &GenerateRequest, reply: &Reply<'_>) -> Bytes {
    let text = words(reply.first_word, reply.tokens);
    let seconds = asked.media.audio_ms as f64 / 1e3;
    let body = match asked.format {
        TranscriptFormat::Text => return Bytes::from(text + "\n"),
        TranscriptFormat::Json => json!({"text": text, "usage": usage(asked.prompt_tokens, reply.tokens)}),
        TranscriptFormat::VerboseJson => json!({
            "task": "transcribe", "language": "english", "duration": seconds, "text": text,
            "usage": {"type": "duration", "seconds": seconds.ceil() as u64},
            "segments": [{
                "id": 0, "seek": 0, "start": 0.0, "end": seconds, "text": text, "tokens": [], "temperature": 0.0,
                "avg_logprob": 0.0, "compression_ratio": 1.0, "no_speech_prob": 0.0,
            }],
        }),
    };
    Bytes::from(body.to_string())
}

/// A writer of one transcript's events.
#[derive(Clone, Debug)]
pub struct TranscriptWriter {
    prompt_tokens: u32,
    tokens: u32,
}

impl TranscriptWriter {
    /// Creates a writer for the answer to this request.
    pub fn new(asked: &GenerateRequest) -> TranscriptWriter {
        TranscriptWriter { prompt_tokens: asked.prompt_tokens, tokens: 0 }
    }
}

impl StreamWriter for TranscriptWriter {
    fn open(&mut self, _out: &mut BytesMut) -> bool {
        false
    }

    fn token(&mut self, out: &mut BytesMut, text: &str, tokens: u32) {
        self.tokens = self.tokens.saturating_add(tokens);
        out.put_slice(b"data: {\"type\":\"transcript.text.delta\",\"delta\":\"");
        put_escaped(out, text);
        out.put_slice(b"\"}\n\n");
    }

    fn close(&mut self, out: &mut BytesMut, end: &StreamEnd) {
        let text = words(end.first_word, self.tokens);
        let usage = usage(self.prompt_tokens, self.tokens);
        let done = json!({"type": "transcript.text.done", "text": text, "usage": usage});
        out.put_slice(format!("data: {done}\n\n").as_bytes());
    }

    fn error(&mut self, out: &mut BytesMut, message: &str, status: u16) {
        let error = json!({"error": {"message": message, "type": "server_error", "code": status}});
        out.put_slice(format!("data: {error}\n\n").as_bytes());
    }
}
