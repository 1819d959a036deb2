//! Transcriptions (`/v1/audio/transcriptions`), the client's half: a form that holds a sound, and the text of what was said in it.
//!
//! The sound is noise ([`crate::media`]) in which nobody speaks: an answer without a word is a good one. What streams comes as OpenAI's events
//! (`transcript.text.delta`, `transcript.text.done`) or as vLLM's chunks, and a server that knows no streams answers whole: `text`, beside it in
//! `verbose_json` (OpenAI's, vLLM's, whisper.cpp's) the length of what it heard. A server that heard another length than was sent has left
//! something out, which is fast and wrong.

use plimsoll_model::{EventKind, Media};
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use crate::chunk::{Chunk, RawUsage, Text, is_error, loose};
use crate::decoded::Decoded;
use crate::fault::Fault;
use crate::media;
use crate::tally::{Tally, View};

/// What stands between the parts of a form (RFC 7578). One for all: no sound's noise holds it but by a chance of 2⁻¹⁹².
const BOUNDARY: &str = "plimsoll-5b7e1fd0c2a94e86";

/// The form's media type.
pub(crate) const CONTENT_TYPE: &str = "multipart/form-data; boundary=plimsoll-5b7e1fd0c2a94e86";

/// What a form says beside its sound.
pub(crate) struct FormFields<'a> {
    pub model: Option<&'a str>,
    pub temperature: Option<f64>,
    pub stream: bool,
    /// The user's own.
    pub extra: &'a Map<String, Value>,
}

/// Writes a request's form: its fields, then the sound.
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
        // vLLM's, flat because a form has no objects.
        form.field("stream_include_usage", "true");
        form.field("stream_continuous_usage_stats", "true");
    }
    for (name, value) in fields.extra {
        // A list is the field once for each of its values (`timestamp_granularities[]`).
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
    /// A field, unless the user's own of that name wins.
    fn field(&mut self, name: &str, value: &str) {
        if !self.extra.contains_key(name) {
            self.named(name, value);
        }
    }

    /// A field of the user's own; `null` takes it out.
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
struct Told<'a> {
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

impl Told<'_> {
    fn complains(&self) -> bool {
        is_error(self.error) || (!self.text.is_named() && (self.detail.is_some() || self.message.is_some()))
    }

    /// Counts of tokens, where they are told: a server may count seconds.
    fn usage(&self, tally: &mut Tally) {
        let usage = self.usage.as_ref().map(RawUsage::usage);
        if let Some(usage) = usage.filter(|usage| usage.prompt.or(usage.output).is_some()) {
            tally.only_usage(usage);
        }
    }
}

/// Reads a whole answer.
pub(crate) fn whole(text: &str, tally: &mut Tally) -> Result<(), serde_json::Error> {
    let told: Told<'_> = serde_json::from_str(text)?;
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

/// Reads an event of a stream.
pub(crate) fn event(data: &str, tally: &mut Tally) -> Result<Decoded, serde_json::Error> {
    let told: Told<'_> = serde_json::from_str(data)?;
    if told.complains() {
        tally.error.get_or_insert_with(|| Fault::from_json(data));
        return Ok(Decoded::of(EventKind::Error));
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
            Ok(Decoded::of(EventKind::Finish))
        }
        "" => {
            let chunk: Chunk<'_> = serde_json::from_str(data)?;
            let decoded = tally.chunk(&chunk);
            tally.generated |= tally.all_finished();
            Ok(decoded)
        }
        _ => Ok(Decoded::of(EventKind::Empty)),
    }
}
