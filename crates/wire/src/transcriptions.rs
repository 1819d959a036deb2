//! Transcriptions (`/v1/audio/transcriptions`), the client's half: a form with audio, and the transcribed text.
//!
//! The audio is noise ([`crate::media`]) without speech, so an answer without a word is valid. A stream arrives as OpenAI's events
//! (`transcript.text.delta`, `transcript.text.done`) or as vLLM's chunks. A server without streams answers whole: `text`, and in
//! `verbose_json` (OpenAI's, vLLM's, whisper.cpp's) also the length of the processed audio. A length other than the sent one
//! means that the server omitted something, which is fast and wrong.

use plimsoll_model::{EventKind, Media};
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use crate::chunk::{Chunk, RawUsage, Text, is_error, loose};
use crate::decoded::DecodedEvent;
use crate::fault::Fault;
use crate::media;
use crate::tally::{Tally, View};

/// Boundary between the parts of a form (RFC 7578). It is constant, because noise contains it only with probability 2⁻¹⁹².
const BOUNDARY: &str = "plimsoll-5b7e1fd0c2a94e86";

/// Media type of the form.
pub(crate) const CONTENT_TYPE: &str = "multipart/form-data; boundary=plimsoll-5b7e1fd0c2a94e86";

/// The fields of a form without its audio.
pub(crate) struct FormFields<'a> {
    pub model: Option<&'a str>,
    pub temperature: Option<f64>,
    pub stream: bool,
    /// Additional fields of the user.
    pub extra: &'a Map<String, Value>,
}

/// Writes a request's form: its fields, then the audio.
pub(crate) fn form(sound: &Media, fields: &FormFields<'_>) -> Vec<u8> {
    let file = media::file(sound);
    let mut form = Form { out: Vec::with_capacity(file.len() + 1024), extra: fields.extra };
    if let Some(model) = fields.model {
        form.field("model", model);
    }
    form.field("response_format", "json");
    if let Some(temperature) = fields.temperature.filter(|t| t.is_finite()) {
        form.field("temperature", &temperature.to_string());
    }
    if fields.stream {
        form.field("stream", "true");
        // vLLM's field, flat because a form has no objects.
        form.field("stream_include_usage", "true");
        form.field("stream_continuous_usage_stats", "true");
    }
    for (name, value) in fields.extra {
        // A list is one field per value (`timestamp_granularities[]`).
        match value {
            Value::Array(all) => all.iter().for_each(|value| form.own(name, value)),
            value => form.own(name, value),
        }
    }
    let kind = media::media_type(sound);
    form.part(&format!("name=\"file\"; filename=\"sound.wav\"\r\nContent-Type: {kind}"), &file);
    form.out.extend_from_slice(format!("--{BOUNDARY}--\r\n").as_bytes());
    form.out
}

struct Form<'a> {
    out: Vec<u8>,
    extra: &'a Map<String, Value>,
}

impl Form<'_> {
    /// Writes a field, unless the user has a field of that name.
    fn field(&mut self, name: &str, value: &str) {
        if !self.extra.contains_key(name) {
            self.named(name, value);
        }
    }

    /// Writes a field of the user; `null` removes it.
    fn own(&mut self, name: &str, value: &Value) {
        match value {
            Value::Null => {}
            Value::String(text) => self.named(name, text),
            other => self.named(name, &other.to_string()),
        }
    }

    fn named(&mut self, name: &str, value: &str) {
        // As browsers write them (WHATWG, "multipart/form-data encoding algorithm").
        let name = name.replace('\r', "%0D").replace('\n', "%0A").replace('"', "%22");
        self.part(&format!("name=\"{name}\""), value.as_bytes());
    }

    fn part(&mut self, head: &str, body: &[u8]) {
        let head = format!("--{BOUNDARY}\r\nContent-Disposition: form-data; {head}\r\n\r\n");
        self.out.extend_from_slice(head.as_bytes());
        self.out.extend_from_slice(body);
        self.out.extend_from_slice(b"\r\n");
    }
}

/// An answer, or an event of one.
#[derive(Deserialize, Default)]
struct TranscriptionMessage<'a> {
    #[serde(borrow, rename = "type", default)]
    kind: Text<'a>,
    #[serde(borrow, default)]
    delta: Text<'a>,
    #[serde(borrow, default)]
    text: Text<'a>,
    /// Seconds, as a number or (vLLM's) as a text.
    #[serde(borrow)]
    duration: Option<&'a RawValue>,
    #[serde(default, deserialize_with = "loose")]
    usage: Option<RawUsage>,
    #[serde(borrow)]
    error: Option<&'a RawValue>,
    #[serde(borrow)]
    detail: Option<&'a RawValue>,
    #[serde(borrow)]
    message: Option<&'a RawValue>,
}

impl TranscriptionMessage<'_> {
    fn complains(&self) -> bool {
        is_error(self.error) || (!self.text.is_named() && (self.detail.is_some() || self.message.is_some()))
    }

    /// Records token counts, if reported: a server may count seconds instead.
    fn usage(&self, tally: &mut Tally) {
        let usage = self.usage.as_ref().map(RawUsage::usage);
        if let Some(usage) = usage.filter(|usage| usage.prompt.or(usage.output).is_some()) {
            tally.only_usage(usage);
        }
    }
}

pub(crate) fn whole(text: &str, tally: &mut Tally) -> Result<(), serde_json::Error> {
    let told: TranscriptionMessage<'_> = serde_json::from_str(text)?;
    if told.complains() {
        tally.error = Some(Fault::from_json(text));
        return Ok(());
    }
    let seconds = told.duration.and_then(|raw| raw.get().trim_matches('"').parse().ok());
    tally.heard_ms = seconds.filter(|s: &f64| (0.0..1e9).contains(s)).map(|s| (1e3 * s) as u64);
    tally.generated = told.text.is_named();
    tally.words(told.text.get());
    tally.keep(told.text.get());
    told.usage(tally);
    Ok(())
}

/// Parses an event of a stream.
pub(crate) fn event(data: &str, tally: &mut Tally) -> Result<DecodedEvent, serde_json::Error> {
    let told: TranscriptionMessage<'_> = serde_json::from_str(data)?;
    if told.complains() {
        tally.error.get_or_insert_with(|| Fault::from_json(data));
        return Ok(DecodedEvent::of(EventKind::Error));
    }
    match told.kind.get() {
        "transcript.text.delta" => {
            let text = told.delta.get();
            let kind = (!text.is_empty()).then_some(EventKind::Content);
            let view = View { kind, text, named: Some(EventKind::Content), ..View::default() };
            Ok(tally.choice(0, &view, None))
        }
        "transcript.text.done" => {
            told.usage(tally);
            (tally.generated, tally.done) = (true, true);
            Ok(DecodedEvent::of(EventKind::Finish))
        }
        "" => {
            let chunk: Chunk<'_> = serde_json::from_str(data)?;
            let decoded = tally.chunk(&chunk);
            tally.generated |= tally.all_finished();
            Ok(decoded)
        }
        _ => Ok(DecodedEvent::of(EventKind::Empty)),
    }
}
