//! Encodes requests as the bytes of one protocol.
//!
//! Bodies are written into one buffer; a `serde_json::Value` was rejected because it copies every prompt again. A streaming
//! request sets `include_usage` and `continuous_usage_stats`. Without the first, no token is counted; without the second
//! (vLLM and relatives), the tokens of an event are unknown. For servers that reject an unknown option, `extra` removes it.

use std::borrow::Cow;
use std::fmt::Write as _;

use bytes::{Bytes, BytesMut};
use plimsoll_model::{Payload, Protocol, Span, Tensor};
use serde_json::{Map, Value};

use crate::kserve::grpc::{InferOptions, Method};
use crate::template::{Template, TemplateValues, escape, flat, messages};
use crate::{kserve, media, messages as anthropic, ollama, scores, transcriptions};

/// Settings that all requests to one target share; `max_tokens` and `id` vary between requests.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct RequestOptions {
    pub protocol: Protocol,
    /// Model name, if the endpoint needs one.
    pub model: Option<String>,
    /// Requested version of the model; `None` for no version (KServe v2).
    pub version: Option<String>,
    /// Whether tensors are sent as raw bytes after a JSON header (KServe v2).
    pub binary: bool,
    /// Priority and timeout in the server's queue (KServe v2).
    pub queue: QueueOptions,
    /// Whether a stream is requested; has no effect on embeddings.
    pub stream: bool,
    /// Requested output tokens; `None` leaves the number to the server.
    pub max_tokens: Option<u32>,
    /// Name of the field that requests this length; `None` for the protocol's field.
    pub length_field: Option<String>,
    /// Whether the length is fixed: the server must not end before `max_tokens`.
    pub ignore_eos: bool,
    /// Sampling temperature; `None` leaves it to the server.
    pub temperature: Option<f64>,
    /// Fields added to the body. An existing field is replaced; `null` removes it.
    pub extra: Map<String, Value>,
    /// The user's body in place of the protocol's. [`Protocol::Http`] without a template uses [`Template::plain`].
    pub template: Option<Template>,
    /// Identity of the request, for `{{id}}`.
    pub id: String,
}

/// The fields that request an output length, in the protocols that have such a field.
const LENGTH_FIELDS: [&str; 3] = ["max_tokens", "max_completion_tokens", "max_output_tokens"];

impl RequestOptions {
    /// Returns the name of the field that requests the output length.
    fn length_name(&self) -> &str {
        self.length_field.as_deref().unwrap_or(match self.protocol {
            Protocol::Responses => "max_output_tokens",
            _ => "max_tokens",
        })
    }

    /// Returns the output length that a request with this drawn length requests: the user's fields win, as in the body. 0 if none is requested.
    pub fn asked_output(&self, drawn: u32) -> u32 {
        let own = || LENGTH_FIELDS.into_iter().chain([self.length_name()]);
        if self.template.is_some() || !own().any(|name| self.extra.contains_key(name)) {
            return drawn;
        }
        let said = own().find_map(|name| self.extra.get(name)?.as_u64());
        match self.extra.contains_key(self.length_name()) {
            true => said.map_or(0, |n| u32::try_from(n).unwrap_or(u32::MAX)),
            false => said.map_or(drawn, |n| drawn.min(u32::try_from(n).unwrap_or(u32::MAX))),
        }
    }
}

/// Options for the queue of a batching server, as Triton's request parameters.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub struct QueueOptions {
    /// `priority`: 1 is the highest; `None` for the server's default.
    pub priority: Option<u32>,
    /// `timeout`: longest wait in the queue; `None` for the server's default.
    pub timeout: Option<Span>,
}

impl QueueOptions {
    /// Returns the timeout in whole microseconds, rounded up because 0 means no limit.
    fn timeout_us(&self) -> Option<u64> {
        self.timeout.map(|wait| (wait.0.max(0) as u64).div_ceil(1_000))
    }

    /// Returns the JSON of the request's `parameters`; `None` without options.
    fn parameters(&self) -> Option<String> {
        let mut fields = Map::new();
        if let Some(level) = self.priority {
            fields.insert("priority".to_owned(), level.into());
        }
        if let Some(us) = self.timeout_us() {
            fields.insert("timeout".to_owned(), us.into());
        }
        (!fields.is_empty()).then(|| Value::Object(fields).to_string())
    }
}

/// A request, ready to be sent by POST.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EncodedRequest {
    /// Path below the endpoint's base URL (`…/v1`); empty under [`Protocol::Http`], which uses the URL unchanged.
    pub path: Cow<'static, str>,
    pub content_type: &'static str,
    /// Length of the JSON part of the body if raw tensors follow: the value of [`crate::kserve::HEADER_LENGTH`].
    pub header_length: Option<usize>,
    pub body: Bytes,
}

/// Returns the path of these requests below the base URL.
pub fn path(options: &RequestOptions) -> Cow<'static, str> {
    match options.protocol.path() {
        Some(path) => path.into(),
        None if options.protocol == Protocol::KserveGrpc => method(options).path().into(),
        None if options.protocol == Protocol::Kserve => {
            kserve::path(options.model.as_deref().unwrap_or_default(), options.version.as_deref()).into()
        }
        None => "".into(),
    }
}

/// Returns the gRPC method that these requests call.
fn method(options: &RequestOptions) -> Method {
    if options.stream { Method::ModelStreamInfer } else { Method::ModelInfer }
}

/// Returns the headers of every request of this protocol.
pub fn headers(protocol: Protocol) -> &'static [(&'static str, &'static str)] {
    match protocol {
        Protocol::KserveGrpc => &[("te", "trailers"), ("grpc-accept-encoding", "identity")],
        Protocol::Messages => &[anthropic::VERSION],
        _ => &[],
    }
}

/// Returns the header that carries the plain key, in addition to `Authorization: Bearer`, which servers of any protocol may require.
pub fn key_header(protocol: Protocol) -> Option<&'static str> {
    (protocol == Protocol::Messages).then_some("x-api-key")
}

pub fn encode(payload: &Payload, options: &RequestOptions) -> EncodedRequest {
    let path = path(options);
    if options.template.is_none()
        && let Payload::Tensors(tensors) = payload
    {
        return match options.protocol {
            Protocol::KserveGrpc => call_of(path, tensors, options),
            _ => tensors_of(path, tensors, options),
        };
    }
    if let Payload::Sound(sound) = payload {
        let fields = transcriptions::FormFields {
            model: options.model.as_deref(),
            temperature: options.temperature,
            stream: options.stream,
            extra: &options.extra,
        };
        let body = Bytes::from(transcriptions::form(sound, &fields));
        return EncodedRequest {
            path,
            content_type: transcriptions::CONTENT_TYPE,
            header_length: None,
            body,
        };
    }
    let (body, json) = match &options.template {
        Some(template) => from_template(template, payload, options),
        None if options.protocol == Protocol::Http => from_template(&Template::plain(), payload, options),
        None => (text(payload, options), true),
    };
    let content_type = if json { "application/json" } else { "text/plain; charset=utf-8" };
    EncodedRequest { path, content_type, header_length: None, body: Bytes::from(body) }
}

fn tensors_of(path: Cow<'static, str>, tensors: &[Tensor], options: &RequestOptions) -> EncodedRequest {
    let text = if options.binary { 128 * tensors.len() } else { kserve::inputs_length(tensors) };
    let mut json = Body::new(&options.extra, text);
    if let Some(parameters) = options.queue.parameters() {
        json.raw("parameters", |out| out.push_str(&parameters));
    }
    if !options.binary {
        json.raw("inputs", |out| kserve::inputs(tensors, out));
        let body = Bytes::from(json.close());
        return EncodedRequest { path, content_type: "application/json", header_length: None, body };
    }
    let (inputs, raw) = kserve::binary(tensors);
    json.raw("inputs", |out| out.push_str(&inputs));
    let header = json.close();
    let mut body = BytesMut::with_capacity(header.len() + raw.len());
    body.extend_from_slice(header.as_bytes());
    body.extend_from_slice(&raw);
    let header_length = Some(header.len());
    EncodedRequest { path, content_type: "application/octet-stream", header_length, body: body.freeze() }
}

fn call_of(path: Cow<'static, str>, tensors: &[Tensor], options: &RequestOptions) -> EncodedRequest {
    let asks = InferOptions {
        model: options.model.as_deref().unwrap_or_default(),
        version: options.version.as_deref().unwrap_or_default(),
        priority: options.queue.priority,
        timeout_us: options.queue.timeout_us(),
        extra: &options.extra,
        stream: options.stream,
    };
    let body = kserve::grpc::infer(tensors, &asks);
    EncodedRequest { path, content_type: kserve::grpc::CONTENT_TYPE, header_length: None, body }
}

fn from_template(template: &Template, payload: &Payload, options: &RequestOptions) -> (String, bool) {
    let mut body = String::with_capacity(256);
    let filling = TemplateValues {
        payload,
        model: options.model.as_deref().unwrap_or_default(),
        max_tokens: options.max_tokens,
        temperature: options.temperature,
        stream: options.stream,
        id: &options.id,
    };
    template.fill(&filling, &mut body);
    (body, template.is_json())
}

fn text(payload: &Payload, options: &RequestOptions) -> String {
    let extra = match options.protocol {
        Protocol::OllamaChat | Protocol::OllamaGenerate => Cow::Owned(ollama::extra(options)),
        _ => Cow::Borrowed(&options.extra),
    };
    let mut body = Body::new(&extra, length(payload));
    if let Some(model) = &options.model {
        body.text("model", model);
    }
    match options.protocol {
        Protocol::Chat => {
            body.raw("messages", |out| messages(payload, options.protocol, out));
            beside_messages(&mut body, payload, options);
        }
        Protocol::Completions => body.text("prompt", &flat(payload)),
        Protocol::Responses => match payload {
            Payload::Text(text) => body.text("input", text),
            _ => body.raw("input", |out| messages(payload, options.protocol, out)),
        },
        Protocol::Messages => anthropic::request(&mut body, payload, options),
        Protocol::OllamaChat | Protocol::OllamaGenerate => {
            ollama::request(&mut body, payload, options);
            return body.close();
        }
        Protocol::Rerank
        | Protocol::Score
        | Protocol::Pooling
        | Protocol::Classify
        | Protocol::Embeddings => {
            scores::request(options.protocol, &mut body, payload);
        }
        Protocol::Images => body.text("prompt", &flat(payload)),
        Protocol::Speech => {
            body.text("input", &flat(payload));
            // Both formats show the length of the audio. Most servers stream only PCM.
            body.text("response_format", if options.stream { "pcm" } else { "wav" });
            if options.stream {
                body.raw("stream", |out| out.push_str("true"));
            }
        }
        Protocol::Transcriptions | Protocol::Kserve | Protocol::KserveGrpc | Protocol::Http => {
            body.text("input", &flat(payload));
        }
    }
    if options.protocol.takes_output_length() {
        generation(&mut body, options);
    }
    body.close()
}

/// Writes the other fields of the user's conversation; the target's temperature takes precedence.
fn beside_messages(body: &mut Body<'_>, payload: &Payload, options: &RequestOptions) {
    let Payload::Messages(all) = payload else { return };
    let written = all.first().and_then(|message| message.written.as_ref());
    for (name, json) in written.iter().flat_map(|written| &written.fields) {
        if name != "temperature" || options.temperature.is_none() {
            body.raw(name, |out| out.push_str(json));
        }
    }
}

fn generation(body: &mut Body<'_>, options: &RequestOptions) {
    // The Messages API has its length already, because it is a required field there.
    if let (true, Some(n)) = (options.protocol != Protocol::Messages, options.max_tokens) {
        body.raw(options.length_name(), |out| push(out, n));
    }
    if let Some(temperature) = options.temperature.filter(|t| t.is_finite()) {
        body.raw("temperature", |out| push(out, temperature));
    }
    if options.ignore_eos {
        body.raw("ignore_eos", |out| out.push_str("true"));
    }
    if options.stream {
        body.raw("stream", |out| out.push_str("true"));
        if !matches!(options.protocol, Protocol::Responses | Protocol::Messages) {
            body.raw("stream_options", |out| {
                out.push_str(r#"{"include_usage":true,"continuous_usage_stats":true}"#);
            });
        }
    }
}

pub(crate) fn push(out: &mut String, number: impl std::fmt::Display) {
    // Writing to a string cannot fail.
    let _ = write!(out, "{number}");
}

/// Returns the bytes of text in a payload.
fn length(payload: &Payload) -> usize {
    match payload {
        Payload::Text(text) => text.len(),
        // Includes the braces and names around each message.
        Payload::Messages(messages) => messages
            .iter()
            .map(|message| message.content.len() + 40 + message.media.iter().map(media::room).sum::<usize>())
            .sum(),
        Payload::Tensors(_) | Payload::Sound(_) => 0,
        Payload::Documents { query, documents } => {
            query.len() + documents.iter().map(|document| document.len() + 4).sum::<usize>()
        }
    }
}

/// Reserved bytes for a body without its text, the model's name and the user's fields.
const FIELDS: usize = 192;

/// A JSON object under construction, in which the user's fields win.
pub(crate) struct Body<'a> {
    out: String,
    extra: &'a Map<String, Value>,
}

impl<'a> Body<'a> {
    /// Creates a body with room for `text` bytes of text, because a growing body is copied each time.
    fn new(extra: &'a Map<String, Value>, text: usize) -> Body<'a> {
        let mut out = String::with_capacity(text + FIELDS);
        out.push('{');
        Body { out, extra }
    }

    fn key(&mut self, name: &str) {
        if self.out.len() > 1 {
            self.out.push(',');
        }
        self.out.push('"');
        escape(name, &mut self.out);
        self.out.push_str("\":");
    }

    pub(crate) fn text(&mut self, name: &str, value: &str) {
        if self.extra.contains_key(name) {
            return;
        }
        self.key(name);
        self.out.reserve(value.len() + 16);
        self.out.push('"');
        escape(value, &mut self.out);
        self.out.push('"');
    }

    pub(crate) fn raw(&mut self, name: &str, json: impl FnOnce(&mut String)) {
        if self.extra.contains_key(name) {
            return;
        }
        self.key(name);
        json(&mut self.out);
    }

    fn close(mut self) -> String {
        for (name, value) in self.extra.iter().filter(|(_, value)| !value.is_null()) {
            self.key(name);
            self.out.push_str(&value.to_string());
        }
        self.out.push('}');
        self.out
    }
}
