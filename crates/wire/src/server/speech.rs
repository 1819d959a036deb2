//! Speech, the server's half, in OpenAI's format: a text as audio, whole, streamed as bytes, or streamed as events.
//!
//! The audio is silence of a true length. A character takes 1/15 s, the pace of audiobooks, and a second takes 25 decode
//! steps, as in language models of audio codecs.

use std::borrow::Cow;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::{BufMut, Bytes, BytesMut};
use plimsoll_model::{Media, Protocol};
use serde::Deserialize;
use serde_json::json;

use super::reply::{Reply, StreamEnd, StreamWriter};
use super::request::{BadRequest, GenerateRequest, GeneratedMedia, Words, bad, parse_json};
use crate::media;

/// Characters of text per second of speech.
const CHARACTERS_PER_S: u64 = 15;
/// Decode steps per second of speech.
const STEPS_PER_S: u64 = 25;
/// Samples per second of speech.
const RATE: u32 = 24_000;
/// Samples per decode step.
const STEP_SAMPLES: u32 = RATE / STEPS_PER_S as u32;
/// Bytes per sample: 16 bits, one channel.
const SAMPLE_BYTES: u32 = 2;

/// The format of the audio.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum AudioFormat {
    Wav,
    /// Samples without a header.
    Pcm,
}

impl AudioFormat {
    fn parse(name: Option<&str>) -> Result<AudioFormat, BadRequest> {
        match name {
            None | Some("wav") => Ok(AudioFormat::Wav),
            Some("pcm") => Ok(AudioFormat::Pcm),
            Some(_) => Err(bad("response_format", "response_format must be wav or pcm")),
        }
    }

    pub(super) fn content_type(self) -> &'static str {
        match self {
            AudioFormat::Wav => "audio/wav",
            AudioFormat::Pcm => "audio/pcm",
        }
    }
}

#[derive(Deserialize)]
struct SpeechBody<'a> {
    #[serde(borrow, default)]
    model: Cow<'a, str>,
    #[serde(borrow)]
    input: Cow<'a, str>,
    #[serde(borrow, default)]
    response_format: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    stream_format: Option<Cow<'a, str>>,
    #[serde(default)]
    stream: bool,
}

pub(super) fn parse(body: &[u8]) -> Result<GenerateRequest, BadRequest> {
    let body: SpeechBody<'_> = parse_json(body)?;
    let events = match body.stream_format.as_deref() {
        None | Some("audio") => false,
        Some("sse") => true,
        Some(_) => return Err(bad("stream_format", "stream_format must be audio or sse")),
    };
    let characters = body.input.chars().count() as u64;
    if characters == 0 {
        return Err(bad("input", "input must not be empty"));
    }
    let steps = u32::try_from((characters * STEPS_PER_S).div_ceil(CHARACTERS_PER_S)).unwrap_or(u32::MAX);
    let mut asked = GenerateRequest {
        endpoint: Protocol::Speech,
        stream: body.stream || body.stream_format.is_some(),
        max_tokens: Some(steps),
        inputs: 1,
        generated: GeneratedMedia::Speech {
            format: AudioFormat::parse(body.response_format.as_deref())?,
            events,
        },
        ..GenerateRequest::of_text(body.model.into_owned(), Words::of(&body.input))
    };
    asked.media.add(&audio(steps));
    Ok(asked)
}

/// Returns the audio of these decode steps.
fn audio(steps: u32) -> Media {
    Media::Audio { samples: steps.saturating_mul(STEP_SAMPLES), rate: RATE, key: 0 }
}

fn silence(steps: u32) -> usize {
    steps as usize * (STEP_SAMPLES * SAMPLE_BYTES) as usize
}

/// Returns the header of a WAV with this many bytes of samples.
fn header(bytes: u32) -> Vec<u8> {
    let mut head = media::file(&Media::Audio { samples: 0, rate: RATE, key: 0 });
    let after_riff = bytes.saturating_add(head.len() as u32 - 8);
    for (at, length) in [(4, after_riff), (40, bytes)] {
        head[at..at + 4].copy_from_slice(&length.to_le_bytes());
    }
    head
}

pub(super) fn answer(format: AudioFormat, reply: &Reply<'_>) -> Bytes {
    let bytes = silence(reply.tokens);
    let mut out = BytesMut::with_capacity(bytes + 64);
    if format == AudioFormat::Wav {
        out.put_slice(&header(u32::try_from(bytes).unwrap_or(u32::MAX)));
    }
    out.put_bytes(0, bytes);
    out.freeze()
}

/// A writer of streamed audio.
pub(super) struct SpeechWriter {
    format: AudioFormat,
    events: bool,
    prompt_tokens: u32,
    tokens: u32,
}

impl SpeechWriter {
    pub fn new(format: AudioFormat, events: bool, prompt_tokens: u32) -> SpeechWriter {
        SpeechWriter { format, events, prompt_tokens, tokens: 0 }
    }

    fn put(&self, out: &mut BytesMut, audio: &[u8]) {
        if self.events {
            let event = json!({"type": "speech.audio.delta", "audio": STANDARD.encode(audio)});
            out.put_slice(format!("data: {event}\n\n").as_bytes());
        } else {
            out.put_slice(audio);
        }
    }
}

impl StreamWriter for SpeechWriter {
    /// Writes the header of a WAV, whose length is unknown yet and therefore the largest.
    fn open(&mut self, out: &mut BytesMut) -> bool {
        if self.format == AudioFormat::Wav {
            self.put(out, &header(u32::MAX));
        }
        self.format == AudioFormat::Wav
    }

    fn token(&mut self, out: &mut BytesMut, _text: &str, tokens: u32) {
        self.tokens = self.tokens.saturating_add(tokens);
        self.put(out, &vec![0; silence(tokens)]);
    }

    fn close(&mut self, out: &mut BytesMut, _end: &StreamEnd) {
        if self.events {
            let (input, output) = (self.prompt_tokens, self.tokens);
            let usage =
                json!({"input_tokens": input, "output_tokens": output, "total_tokens": input + output});
            let done = json!({"type": "speech.audio.done", "usage": usage});
            out.put_slice(format!("data: {done}\n\n").as_bytes());
        }
    }

    /// Writes an error event; bytes of audio have no place for an error.
    fn error(&mut self, out: &mut BytesMut, message: &str, status: u16) {
        if self.events {
            let error = json!({"error": {"message": message, "type": "server_error", "code": status}});
            out.put_slice(format!("data: {error}\n\n").as_bytes());
        }
    }
}
