//! Requests: what is asked, as the bytes of one protocol.
//!
//! Bodies are written straight into one buffer; a `serde_json::Value` would copy every prompt once more. A streaming
//! request asks for `include_usage` and `continuous_usage_stats`: without the first no token is counted, without the second
//! (vLLM and relatives) no event's tokens are known. Servers that refuse an unknown option get it taken out by `extra`.

use bytes::Bytes;
use plimsoll_model::{Payload, Protocol};
use serde_json::{Map, Value};

use crate::template::{Filling, Template, escape, flat, messages};

/// What every request of one target shares, and what varies between two of them (`max_tokens`, `id`).
#[derive(Clone, PartialEq, Debug, Default)]
pub struct RequestOptions {
    /// How the endpoint is spoken to.
    pub protocol: Protocol,
    /// Model name, where the endpoint wants one.
    pub model: Option<String>,
    /// Ask for a stream? Means nothing to embeddings.
    pub stream: bool,
    /// Output tokens asked for; `None` leaves it to the server.
    pub max_tokens: Option<u32>,
    /// Pin the length: no end before `max_tokens`.
    pub ignore_eos: bool,
    /// Sampling temperature; `None` leaves it to the server.
    pub temperature: Option<f64>,
    /// Fields added to the body. One that is there already is replaced; `null` takes it out.
    pub extra: Map<String, Value>,
    /// A body of the user's own, in place of the protocol's. [`Protocol::Http`] without one uses [`Template::plain`].
    pub template: Option<Template>,
    /// The request's identity, for `{{id}}`.
    pub id: String,
}

/// A request, ready to be sent by POST.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Encoded {
    /// Path below the endpoint's base URL (`…/v1`); empty under [`Protocol::Http`], where the URL is taken as it is.
    pub path: String,
    /// `Content-Type`.
    pub content_type: &'static str,
    /// The body.
    pub body: Bytes,
}

/// The path of a protocol below the base URL.
pub fn path(protocol: Protocol) -> &'static str {
    match protocol {
        Protocol::Chat => "/chat/completions",
        Protocol::Completions => "/completions",
        Protocol::Responses => "/responses",
        Protocol::Embeddings => "/embeddings",
        Protocol::Http => "",
    }
}

/// Encodes one request.
pub fn encode(payload: &Payload, options: &RequestOptions) -> Encoded {
    let path = path(options.protocol).to_owned();
    let (body, json) = match &options.template {
        Some(template) => from_template(template, payload, options),
        None if options.protocol == Protocol::Http => from_template(&Template::plain(), payload, options),
        None => (openai(payload, options), true),
    };
    let content_type = if json { "application/json" } else { "text/plain; charset=utf-8" };
    Encoded { path, content_type, body: Bytes::from(body) }
}

fn from_template(template: &Template, payload: &Payload, options: &RequestOptions) -> (String, bool) {
    let mut body = String::with_capacity(256);
    let filling = Filling {
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

fn openai(payload: &Payload, options: &RequestOptions) -> String {
    let mut body = Body::new(&options.extra);
    if let Some(model) = &options.model {
        body.text("model", model);
    }
    match options.protocol {
        Protocol::Chat => body.raw("messages", || messages(payload)),
        Protocol::Completions => body.text("prompt", &flat(payload)),
        Protocol::Responses => match payload {
            Payload::Text(text) => body.text("input", text),
            Payload::Messages(_) => body.raw("input", || messages(payload)),
        },
        Protocol::Embeddings | Protocol::Http => body.text("input", &flat(payload)),
    }
    if options.protocol != Protocol::Embeddings {
        generation(&mut body, options);
    }
    body.close()
}

fn generation(body: &mut Body<'_>, options: &RequestOptions) {
    let responses = options.protocol == Protocol::Responses;
    if let Some(n) = options.max_tokens {
        body.raw(if responses { "max_output_tokens" } else { "max_tokens" }, || n.to_string());
    }
    if let Some(temperature) = options.temperature.filter(|t| t.is_finite()) {
        body.raw("temperature", || temperature.to_string());
    }
    if options.ignore_eos {
        body.raw("ignore_eos", || "true".into());
    }
    if options.stream {
        body.raw("stream", || "true".into());
        if !responses {
            body.raw("stream_options", || r#"{"include_usage":true,"continuous_usage_stats":true}"#.into());
        }
    }
}

/// A JSON object under construction, in which the user's own fields win.
struct Body<'a> {
    out: String,
    extra: &'a Map<String, Value>,
}

impl<'a> Body<'a> {
    fn new(extra: &'a Map<String, Value>) -> Body<'a> {
        Body { out: String::from("{"), extra }
    }

    fn key(&mut self, name: &str) {
        if self.out.len() > 1 {
            self.out.push(',');
        }
        self.out.push('"');
        escape(name, &mut self.out);
        self.out.push_str("\":");
    }

    fn text(&mut self, name: &str, value: &str) {
        if self.extra.contains_key(name) {
            return;
        }
        self.key(name);
        self.out.reserve(value.len() + 16);
        self.out.push('"');
        escape(value, &mut self.out);
        self.out.push('"');
    }

    fn raw(&mut self, name: &str, json: impl FnOnce() -> String) {
        if self.extra.contains_key(name) {
            return;
        }
        self.key(name);
        self.out.push_str(&json());
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
