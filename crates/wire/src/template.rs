//! Body templates: `{"text_input": "{{prompt}}", "parameters": {"max_tokens": {{max_tokens}}}}`.
//!
//! A template is parsed once and checked with sample values. So a body that could never be valid JSON is rejected
//! before the run, not by the server at the first request. In a JSON template, a placeholder inside quotes is replaced by
//! the escaped text, one outside by a whole JSON value. A general template language was rejected, because both could
//! then be wrong.

use std::fmt::Write as _;
use std::sync::Arc;

use plimsoll_model::{Message, Payload, Protocol};

use crate::parts;

#[derive(Copy, Clone, PartialEq, Eq, Debug)]
enum Name {
    Prompt,
    Messages,
    Model,
    MaxTokens,
    Temperature,
    Stream,
    Id,
}

pub const PLACEHOLDERS: [&str; 7] =
    ["prompt", "messages", "model", "max_tokens", "temperature", "stream", "id"];

const NAMES: [Name; 7] =
    [Name::Prompt, Name::Messages, Name::Model, Name::MaxTokens, Name::Temperature, Name::Stream, Name::Id];

#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum TemplateError {
    /// A placeholder that does not exist.
    #[error("unknown placeholder {{{{{name}}}}}; known are: {}", PLACEHOLDERS.join(", "))]
    Unknown {
        /// Name in the template that is unknown.
        name: String,
    },
    #[error("placeholder opened at byte {at} is never closed")]
    Unclosed {
        /// Byte offset of the `{{`.
        at: usize,
    },
    /// The body begins like JSON, but is not JSON after filling.
    #[error("the body is not JSON once filled in: {what}")]
    NotJson {
        /// Message of the JSON parser about the template.
        what: String,
    },
}

/// A parsed template; cheap to clone.
#[derive(Clone, PartialEq, Debug)]
pub struct Template {
    parts: Arc<[Part]>,
    json: bool,
}

#[derive(Clone, PartialEq, Debug)]
enum Part {
    Literal(String),
    Hole { name: Name, quoted: bool },
}

/// The values of one request for a template.
#[derive(Copy, Clone, Debug)]
pub struct TemplateValues<'a> {
    pub payload: &'a Payload,
    /// Model name; empty if none is set.
    pub model: &'a str,
    /// Requested output tokens; `None` for no limit.
    pub max_tokens: Option<u32>,
    pub temperature: Option<f64>,
    pub stream: bool,
    pub id: &'a str,
}

impl Template {
    pub fn parse(text: &str) -> Result<Template, TemplateError> {
        let json = matches!(text.trim_start().as_bytes().first(), Some(b'{' | b'[' | b'"'));
        let mut parts = Vec::new();
        let mut quotes = Quotes::default();
        let mut rest = text;
        // `{{` can only be a placeholder: no JSON has it outside quotes.
        while let Some(open) = rest.find("{{") {
            let at = text.len() - rest.len() + open;
            let close = rest[open..].find("}}").ok_or(TemplateError::Unclosed { at })? + open;
            let spelled = rest[open + 2..close].trim();
            let index = PLACEHOLDERS.iter().position(|name| *name == spelled);
            let name =
                index.map(|i| NAMES[i]).ok_or_else(|| TemplateError::Unknown { name: spelled.into() })?;
            quotes.pass(&rest[..open]);
            parts.push(Part::Literal(rest[..open].into()));
            parts.push(Part::Hole { name, quoted: json && quotes.inside });
            rest = &rest[close + 2..];
        }
        parts.push(Part::Literal(rest.into()));
        let template = Template { parts: parts.into(), json };
        template.check()?;
        Ok(template)
    }

    /// Returns the default body for [`Protocol::Http`](plimsoll_model::Protocol::Http):
    /// `{"prompt": "{{prompt}}", "max_tokens": {{max_tokens}}}`.
    pub fn plain() -> Template {
        let hole = |name, quoted| Part::Hole { name, quoted };
        let literal = |text: &str| Part::Literal(text.into());
        let parts = vec![
            literal("{\"prompt\": \""),
            hole(Name::Prompt, true),
            literal("\", \"max_tokens\": "),
            hole(Name::MaxTokens, false),
            literal("}"),
        ];
        Template { parts: parts.into(), json: true }
    }

    pub fn is_json(&self) -> bool {
        self.json
    }

    /// Appends the filled template to `out`.
    pub fn fill(&self, filling: &TemplateValues<'_>, out: &mut String) {
        for part in self.parts.iter() {
            match part {
                Part::Literal(text) => out.push_str(text),
                Part::Hole { name, quoted } => self.hole(*name, *quoted, filling, out),
            }
        }
    }

    fn hole(&self, name: Name, quoted: bool, filling: &TemplateValues<'_>, out: &mut String) {
        let in_text = quoted || !self.json;
        let text: std::borrow::Cow<'_, str> = match name {
            Name::Prompt => flat(filling.payload),
            Name::Model => filling.model.into(),
            Name::Id => filling.id.into(),
            Name::Messages => {
                let mut all = String::new();
                messages(filling.payload, Protocol::Chat, &mut all);
                all.into()
            }
            Name::MaxTokens => bare(filling.max_tokens, in_text).into(),
            Name::Temperature => bare(filling.temperature, in_text).into(),
            Name::Stream => filling.stream.to_string().into(),
        };
        let is_text = matches!(name, Name::Prompt | Name::Model | Name::Id);
        match (self.json, quoted) {
            (false, _) => out.push_str(&text),
            (true, true) => escape(&text, out),
            (true, false) if is_text => {
                out.push('"');
                escape(&text, out);
                out.push('"');
            }
            (true, false) => out.push_str(&text),
        }
    }

    /// Fills in difficult sample values and parses the result.
    fn check(&self) -> Result<(), TemplateError> {
        if !self.json {
            return Ok(());
        }
        let payload = Payload::Text("a \"quoted\" text\nwith \\ two lines".into());
        for (max_tokens, temperature) in [(Some(1), Some(0.5)), (None, None)] {
            let filling = TemplateValues {
                payload: &payload,
                model: "m",
                max_tokens,
                temperature,
                stream: true,
                id: "r-1",
            };
            let mut body = String::new();
            self.fill(&filling, &mut body);
            serde_json::from_str::<serde::de::IgnoredAny>(&body)
                .map_err(|why| TemplateError::NotJson { what: why.to_string() })?;
        }
        Ok(())
    }
}

/// Returns the number; if it is missing, an empty text inside quotes and `null` outside.
fn bare<T: ToString>(value: Option<T>, in_text: bool) -> String {
    match value {
        Some(value) => value.to_string(),
        None if in_text => String::new(),
        None => "null".into(),
    }
}

/// Tracks whether a position in a JSON text is inside quotes.
#[derive(Default)]
struct Quotes {
    inside: bool,
}

impl Quotes {
    fn pass(&mut self, text: &str) {
        let mut escaped = false;
        for byte in text.bytes() {
            match byte {
                b'"' if !escaped => self.inside = !self.inside,
                b'\\' if !escaped && self.inside => {
                    escaped = true;
                    continue;
                }
                _ => {}
            }
            escaped = false;
        }
    }
}

/// Returns the payload as one text: messages in sequence, with an empty line between; tensors have no text.
pub(crate) fn flat(payload: &Payload) -> std::borrow::Cow<'_, str> {
    match payload {
        Payload::Text(text) => text.into(),
        Payload::Tensors(_) | Payload::Sound(_) => "".into(),
        Payload::Documents { query, documents } if query.is_empty() => documents.join("\n").into(),
        Payload::Documents { query, .. } => query.into(),
        Payload::Messages(messages) => match &messages[..] {
            [only] => only.content.as_str().into(),
            all => all.iter().map(|message| message.content.as_str()).collect::<Vec<_>>().join("\n\n").into(),
        },
    }
}

/// Appends the payload as a JSON list of messages; a plain text is one message of the user.
pub(crate) fn messages(payload: &Payload, protocol: Protocol, out: &mut String) {
    match payload {
        Payload::Text(text) => {
            out.push_str("[{\"role\":\"user\",\"content\":\"");
            escape(text, out);
            out.push_str("\"}]");
        }
        Payload::Tensors(_) | Payload::Documents { .. } | Payload::Sound(_) => out.push_str("[]"),
        Payload::Messages(all) => talk(all.iter(), protocol, out),
    }
}

/// Appends these messages as a JSON list.
pub(crate) fn talk<'a>(messages: impl Iterator<Item = &'a Message>, protocol: Protocol, out: &mut String) {
    out.push('[');
    for (i, message) in messages.enumerate() {
        let Message { role, content, media, written } = message;
        let role = match role {
            plimsoll_model::Role::System => "system",
            plimsoll_model::Role::User => "user",
            plimsoll_model::Role::Assistant => "assistant",
        };
        let comma = if i > 0 { "," } else { "" };
        out.push_str(comma);
        if let Some(written) = written {
            out.push_str(&written.json);
            continue;
        }
        out.push_str("{\"role\":\"");
        out.push_str(role);
        out.push_str("\",\"content\":");
        match media.is_empty() {
            true => quoted(content, out),
            false => parts::content(message, protocol, out),
        }
        out.push('}');
    }
    out.push(']');
}

/// Appends `text` as a JSON string.
pub(crate) fn quoted(text: &str, out: &mut String) {
    out.push('"');
    escape(text, out);
    out.push('"');
}

/// Appends `text` as the inside of a JSON string (RFC 8259, section 7).
pub(crate) fn escape(text: &str, out: &mut String) {
    // Most text needs no escapes; a check without early exit processes many bytes at a time.
    if text.bytes().fold(true, |plain, b| plain & (b >= 0x20) & (b != b'"') & (b != b'\\')) {
        return out.push_str(text);
    }
    let mut from = 0;
    for (at, byte) in text.bytes().enumerate() {
        if byte >= 0x20 && byte != b'"' && byte != b'\\' {
            continue;
        }
        out.push_str(&text[from..at]);
        from = at + 1;
        match byte {
            b'"' => out.push_str("\\\""),
            b'\\' => out.push_str("\\\\"),
            b'\n' => out.push_str("\\n"),
            b'\r' => out.push_str("\\r"),
            b'\t' => out.push_str("\\t"),
            other => {
                let _ = write!(out, "\\u{other:04x}");
            }
        }
    }
    out.push_str(&text[from..]);
}
