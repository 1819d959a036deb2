//! Parses the JSON of stream chunks and whole answers into borrowed structs.
//!
//! The parser is lenient where servers differ: a missing field, a null, a list of parts in place of a text. It is strict
//! where leniency would invent a measurement: JSON must be JSON. A `serde_json::Value` per chunk was rejected: it is shorter but
//! costs five times as much, because of allocations that no caller reads.

use std::borrow::Cow;
use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, SeqAccess, Visitor};
use serde_json::value::RawValue;

/// A text that may be missing, null, or of another type (which counts as missing).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Text<'a>(pub Option<Cow<'a, str>>);

impl Text<'_> {
    /// Returns the text; a missing text is empty.
    pub fn get(&self) -> &str {
        self.0.as_deref().unwrap_or_default()
    }

    /// Returns whether the field was a text, possibly empty.
    pub fn is_named(&self) -> bool {
        self.0.is_some()
    }

    pub fn is_empty(&self) -> bool {
        self.get().is_empty()
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Text<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let MessageContent { text, thinking } =
            MessageContent::of(<&'de RawValue>::deserialize(deserializer)?.get());
        Ok(match (text.0, thinking.0) {
            (Some(text), Some(thinking)) => Text(Some(text + thinking)),
            (text, thinking) => Text(text.or(thinking)),
        })
    }
}

/// The content of a message: a text, a list of parts, one part, or nothing.
///
/// Only the fields with text are parsed, and a part of an unknown kind is skipped.
/// So a picture, a signature or a citation next to the text can't break an answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct MessageContent<'a> {
    pub text: Text<'a>,
    /// The text of the reasoning parts.
    pub thinking: Text<'a>,
}

impl<'de: 'a, 'a> Deserialize<'de> for MessageContent<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(MessageContent::of(<&'de RawValue>::deserialize(deserializer)?.get()))
    }
}

impl<'a> MessageContent<'a> {
    fn of(raw: &'a str) -> MessageContent<'a> {
        match raw.as_bytes().first() {
            Some(b'"') => MessageContent { text: Text(Some(unquoted(raw))), ..MessageContent::default() },
            Some(b'{') => MessageContent::part(raw),
            Some(b'[') => {
                let parts: Vec<&'a RawValue> = serde_json::from_str(raw).unwrap_or_default();
                parts.iter().fold(MessageContent::default(), |all, part| {
                    // A nested list is not parsed, because the sender chooses its depth.
                    let part = if part.get().starts_with('[') {
                        MessageContent::default()
                    } else {
                        MessageContent::of(part.get())
                    };
                    all.and(part)
                })
            }
            _ => MessageContent::default(),
        }
    }

    /// Parses one object of a list of parts, by its type or by its fields.
    fn part(raw: &'a str) -> MessageContent<'a> {
        let Ok(part) = serde_json::from_str::<Part<'a>>(raw) else { return MessageContent::default() };
        let kind = part.kind.map_or(Cow::Borrowed(""), |raw| words(raw).0.unwrap_or_default());
        let thoughts = [part.thinking, part.reasoning];
        let thinks = ["think", "reason", "thought"].iter().any(|word| kind.contains(word));
        let first = |fields: &[Option<&'a RawValue>]| {
            let texts = fields.iter().flatten().map(|raw| words(raw));
            Text(texts.filter_map(|text| text.0).reduce(|a, b| if a.is_empty() { b } else { a }))
        };
        match thinks || (part.text.is_none() && thoughts.iter().any(Option::is_some)) {
            true => MessageContent {
                thinking: first(&[part.thinking, part.reasoning, part.text, part.summary, part.content]),
                ..MessageContent::default()
            },
            false => MessageContent { text: first(&[part.text, part.refusal]), ..MessageContent::default() },
        }
    }

    fn and(self, other: MessageContent<'a>) -> MessageContent<'a> {
        let join = |a: Text<'a>, b: Text<'a>| match (a.0, b.0) {
            (Some(a), Some(b)) => Text(Some(a + b)),
            (a, b) => Text(a.or(b)),
        };
        MessageContent { text: join(self.text, other.text), thinking: join(self.thinking, other.thinking) }
    }
}

#[derive(Deserialize)]
struct Part<'a> {
    #[serde(borrow, rename = "type")]
    kind: Option<&'a RawValue>,
    #[serde(borrow)]
    text: Option<&'a RawValue>,
    #[serde(borrow)]
    refusal: Option<&'a RawValue>,
    #[serde(borrow)]
    thinking: Option<&'a RawValue>,
    #[serde(borrow)]
    reasoning: Option<&'a RawValue>,
    #[serde(borrow)]
    summary: Option<&'a RawValue>,
    #[serde(borrow)]
    content: Option<&'a RawValue>,
}

/// Returns a text, or the joined texts of a list of texts and of objects with a text. Any other value has no text.
fn words(raw: &RawValue) -> Text<'_> {
    #[derive(Deserialize)]
    struct Inner<'a> {
        #[serde(borrow)]
        text: Option<&'a RawValue>,
    }
    let raw = raw.get();
    match raw.as_bytes().first() {
        Some(b'"') => Text(Some(unquoted(raw))),
        Some(b'[') => {
            let parts: Vec<&RawValue> = serde_json::from_str(raw).unwrap_or_default();
            let texts = parts.iter().filter_map(|part| match part.get().as_bytes().first() {
                Some(b'"') => Some(unquoted(part.get())),
                _ => {
                    let text = serde_json::from_str::<Inner<'_>>(part.get()).ok()?.text?.get();
                    text.starts_with('"').then(|| unquoted(text))
                }
            });
            Text(texts.reduce(|a, b| a + b))
        }
        _ => Text(None),
    }
}

/// Returns the text of a quoted JSON string. A surrogate without its partner becomes U+FFFD, because JavaScript cuts texts inside of a character.
fn unquoted(quoted: &str) -> Cow<'_, str> {
    let inside = quoted.get(1..quoted.len().saturating_sub(1)).unwrap_or_default();
    match inside.contains('\\') {
        false => Cow::Borrowed(inside),
        true => Cow::Owned(
            serde_json::from_str(quoted)
                .or_else(|_| serde_json::from_str(&paired(quoted)))
                .unwrap_or_else(|_| inside.to_owned()),
        ),
    }
}

/// Returns the string with the escape of each unpaired surrogate replaced.
fn paired(quoted: &str) -> String {
    let escape = |at: usize| {
        let hex = quoted.get(at..at + 6)?.strip_prefix("\\u")?;
        u16::from_str_radix(hex, 16).ok()
    };
    let mut out = String::with_capacity(quoted.len());
    let mut at = 0;
    while let Some(next) = quoted[at..].find('\\') {
        out.push_str(&quoted[at..at + next]);
        at += next;
        let long = match (escape(at), escape(at + 6)) {
            (Some(0xd800..=0xdbff), Some(0xdc00..=0xdfff)) => 12,
            (Some(0xd800..=0xdfff), _) => {
                out.push_str("\\ufffd");
                at += 6;
                continue;
            }
            (Some(_), _) => 6,
            (None, _) => 2,
        };
        let end = (at + long).min(quoted.len());
        out.push_str(quoted.get(at..end).unwrap_or_default());
        at = end;
    }
    out.push_str(&quoted[at..]);
    out
}

/// Deserializes a field if it has the usual type, and treats it as missing otherwise.
pub(crate) fn loose<'de, D: Deserializer<'de>, T: Deserialize<'de>>(
    deserializer: D,
) -> Result<Option<T>, D::Error> {
    let raw = <&'de RawValue>::deserialize(deserializer)?;
    Ok(serde_json::from_str(raw.get()).ok())
}

/// Returns whether an `error` field contains an error: some servers send the field with every chunk, empty.
pub(crate) fn is_error(raw: Option<&RawValue>) -> bool {
    raw.is_some_and(|raw| !matches!(raw.get(), "null" | "false" | "0" | "\"\"" | "{}" | "[]"))
}

/// A count; `None` if the field is missing, null or not a count. A float is accepted.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Count(pub Option<u32>);

impl<'de> Deserialize<'de> for Count {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let raw = <&'de RawValue>::deserialize(deserializer)?.get();
        let number = serde_json::from_str::<f64>(raw).ok().filter(|n| *n >= 0.0);
        Ok(Count(number.map(|n| n as u32)))
    }
}

/// The choices of a chunk. A single choice, the usual case, needs no allocation.
#[derive(Debug, Default)]
pub(crate) struct Choices<'a> {
    pub first: Option<Choice<'a>>,
    pub more: Vec<Choice<'a>>,
    /// Whether the chunk had a list of choices, possibly empty.
    pub named: bool,
}

impl<'a> Choices<'a> {
    pub fn iter(&self) -> impl Iterator<Item = &Choice<'a>> {
        self.first.iter().chain(&self.more)
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Choices<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ChoicesVisitor;
        impl<'de> Visitor<'de> for ChoicesVisitor {
            type Value = Choices<'de>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of choices")
            }
            fn visit_unit<E>(self) -> Result<Choices<'de>, E> {
                Ok(Choices::default())
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Choices<'de>, A::Error> {
                let first = seq.next_element()?;
                let mut more = Vec::new();
                while let Some(choice) = seq.next_element()? {
                    more.push(choice);
                }
                Ok(Choices { first, more, named: true })
            }
        }
        deserializer.deserialize_any(ChoicesVisitor)
    }
}

#[derive(Debug, Default, Deserialize)]
pub(crate) struct Choice<'a> {
    #[serde(default)]
    pub index: Count,
    #[serde(borrow)]
    pub delta: Option<Delta<'a>>,
    #[serde(borrow)]
    pub message: Option<Box<Delta<'a>>>,
    #[serde(borrow, default)]
    pub text: Text<'a>,
    #[serde(borrow, default)]
    pub finish_reason: Text<'a>,
    /// Token usage in Moonshot's place.
    #[serde(default, deserialize_with = "loose")]
    pub usage: Option<Box<RawUsage>>,
    /// Error of the upstream, in OpenRouter's place.
    #[serde(borrow)]
    pub error: Option<&'a RawValue>,
}

impl Choice<'_> {
    /// Returns whether the choice is a complete message, not a part of one.
    pub(crate) fn closes_whole(&self) -> bool {
        self.delta.is_none() && self.message.is_some() && !self.finish_reason.is_empty()
    }
}

#[derive(Debug, Default, Deserialize)]
pub(crate) struct Delta<'a> {
    #[serde(borrow, default)]
    pub role: Text<'a>,
    #[serde(borrow, default)]
    pub content: MessageContent<'a>,
    #[serde(borrow, default)]
    pub reasoning: Text<'a>,
    #[serde(borrow, default)]
    pub reasoning_content: Text<'a>,
    /// Reasoning under Ollama's field name.
    #[serde(borrow, default)]
    pub thinking: Text<'a>,
    #[serde(borrow, default)]
    pub reasoning_text: Text<'a>,
    /// Reasoning in the list that OpenRouter sends.
    #[serde(borrow, default)]
    pub reasoning_details: Text<'a>,
    /// Reasoning in the list that LiteLLM sends.
    #[serde(borrow, default)]
    pub thinking_blocks: Text<'a>,
    #[serde(borrow, default)]
    pub refusal: Text<'a>,
    #[serde(borrow, default, deserialize_with = "loose")]
    pub tool_calls: Option<Vec<ToolCall<'a>>>,
    #[serde(borrow, default, deserialize_with = "loose")]
    pub function_call: Option<Box<Function<'a>>>,
}

impl<'a> Delta<'a> {
    /// Returns the reasoning under each of its field names.
    fn thoughts(&self) -> [&Text<'a>; 7] {
        [
            &self.reasoning,
            &self.reasoning_content,
            &self.content.thinking,
            &self.thinking,
            &self.reasoning_text,
            &self.reasoning_details,
            &self.thinking_blocks,
        ]
    }

    /// Returns every text that the message may contain.
    pub fn texts(&self) -> impl Iterator<Item = &Text<'a>> {
        self.thoughts().into_iter().chain([&self.content.text, &self.refusal])
    }

    pub fn reasons(&self) -> &str {
        self.thoughts().into_iter().map(Text::get).find(|text| !text.is_empty()).unwrap_or_default()
    }

    /// Returns whether the message has a reasoning field, possibly empty.
    pub(crate) fn names_reasoning(&self) -> bool {
        self.thoughts().into_iter().any(Text::is_named)
    }

    pub fn says(&self) -> &str {
        if self.content.text.is_empty() { self.refusal.get() } else { self.content.text.get() }
    }

    pub fn functions(&self) -> impl Iterator<Item = &Function<'_>> {
        self.tool_calls
            .iter()
            .flatten()
            .filter_map(|call| call.function.as_ref())
            .chain(self.function_call.as_deref())
    }
}

#[derive(Debug, Default, Deserialize)]
pub(crate) struct ToolCall<'a> {
    #[serde(borrow)]
    pub function: Option<Function<'a>>,
}

#[derive(Debug, Default, Deserialize)]
pub(crate) struct Function<'a> {
    #[serde(borrow, default)]
    pub name: Text<'a>,
    #[serde(borrow, default)]
    pub arguments: Text<'a>,
}

impl Function<'_> {
    pub fn is_empty(&self) -> bool {
        self.name.is_empty() && self.arguments.is_empty()
    }
}

/// Token usage, with the field names of chat completions and of the Responses API.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct RawUsage {
    prompt_tokens: Count,
    completion_tokens: Count,
    input_tokens: Count,
    output_tokens: Count,
    total_tokens: Count,
    reasoning_tokens: Count,
    cached_tokens: Count,
    #[serde(deserialize_with = "loose")]
    prompt_tokens_details: Option<Details>,
    #[serde(deserialize_with = "loose")]
    completion_tokens_details: Option<Details>,
    #[serde(deserialize_with = "loose")]
    input_tokens_details: Option<Details>,
    #[serde(deserialize_with = "loose")]
    output_tokens_details: Option<Details>,
    // Groq reports its stage times here, in seconds.
    #[serde(deserialize_with = "loose")]
    queue_time: Option<f64>,
    #[serde(deserialize_with = "loose")]
    prompt_time: Option<f64>,
    #[serde(deserialize_with = "loose")]
    completion_time: Option<f64>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Details {
    cached_tokens: Count,
    reasoning_tokens: Count,
}

/// Token usage, independent of the field names.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Usage {
    pub prompt: Option<u32>,
    pub output: Option<u32>,
    pub cached: Option<u32>,
    pub reasoning: Option<u32>,
    pub total: Option<u32>,
}

impl RawUsage {
    pub fn usage(&self) -> Usage {
        let detail = |a: &Option<Details>, b: &Option<Details>, pick: fn(&Details) -> Option<u32>| {
            a.as_ref().and_then(pick).or(b.as_ref().and_then(pick))
        };
        let cached = detail(&self.prompt_tokens_details, &self.input_tokens_details, |d| d.cached_tokens.0);
        let reasoning =
            detail(&self.completion_tokens_details, &self.output_tokens_details, |d| d.reasoning_tokens.0);
        Usage {
            prompt: self.prompt_tokens.0.or(self.input_tokens.0),
            output: self.completion_tokens.0.or(self.output_tokens.0),
            cached: cached.or(self.cached_tokens.0),
            reasoning: reasoning.or(self.reasoning_tokens.0),
            total: self.total_tokens.0,
        }
    }

    /// Returns the stage times inside the usage, as (name, milliseconds).
    pub fn stages(&self) -> impl Iterator<Item = (&'static str, f64)> {
        [("queue", self.queue_time), ("prompt", self.prompt_time), ("completion", self.completion_time)]
            .into_iter()
            .filter_map(|(name, s)| Some((name, s? * 1e3)))
    }
}

/// A chunk or a whole answer of chat completions, completions or embeddings.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct Chunk<'a> {
    #[serde(borrow, default)]
    pub choices: Choices<'a>,
    #[serde(default, deserialize_with = "loose")]
    usage: Option<Box<RawUsage>>,
    /// Groq's place for the token usage of a stream.
    #[serde(default, deserialize_with = "loose")]
    x_groq: Option<Nest>,
    #[serde(borrow)]
    pub error: Option<&'a RawValue>,
    #[serde(borrow)]
    pub timings: Option<&'a RawValue>,
    #[serde(borrow)]
    pub time_info: Option<&'a RawValue>,
    /// Per-request metrics of vLLM.
    #[serde(borrow)]
    pub metrics: Option<&'a RawValue>,
    #[serde(borrow)]
    detail: Option<&'a RawValue>,
    #[serde(borrow)]
    message: Option<&'a RawValue>,
    #[serde(borrow)]
    errors: Option<&'a RawValue>,
    #[serde(borrow)]
    msg: Option<&'a RawValue>,
    #[serde(borrow)]
    error_msg: Option<&'a RawValue>,
}

#[derive(Debug, Default, Deserialize)]
struct Nest {
    #[serde(default, deserialize_with = "loose")]
    usage: Option<Box<RawUsage>>,
}

impl<'a> Chunk<'a> {
    /// Returns the error of the chunk: next to an answer, in a choice, or as a text if there is no answer.
    pub(crate) fn complaint(&self) -> Option<&'a RawValue> {
        let own = self.choices.iter().map(|choice| choice.error);
        let error = [self.error].into_iter().chain(own).flatten().find(|raw| is_error(Some(raw)));
        let words = [self.detail, self.message, self.errors, self.msg, self.error_msg];
        let answers = self.choices.named || self.usage.is_some();
        error.or_else(|| words.into_iter().flatten().find(|raw| !answers && is_error(Some(raw))))
    }

    /// Returns the token usage, from any of its places.
    pub fn usage(&self) -> Option<&RawUsage> {
        let nested = || self.x_groq.as_ref().and_then(|nest| nest.usage.as_deref());
        self.usage.as_deref().or_else(nested)
    }

    /// Returns whether some of the usage is in a place that the stream's form does not cover.
    pub(crate) fn nests_usage(&self) -> bool {
        self.x_groq.is_some() || self.choices.iter().any(|choice| choice.usage.is_some())
    }
}

/// The parts of answers of other kinds that are parsed: Triton and KServe generate, TGI, llama.cpp's own completion, Ollama.
///
/// Any other field is ignored.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct Other<'a> {
    #[serde(borrow, default)]
    pub text_output: Text<'a>,
    #[serde(borrow)]
    pub token: Option<TokenPart<'a>>,
    #[serde(borrow, default)]
    pub content: Text<'a>,
    #[serde(borrow, default)]
    pub text: Text<'a>,
    #[serde(borrow, default)]
    pub response: Text<'a>,
    #[serde(borrow, default)]
    pub generated_text: Text<'a>,
    #[serde(borrow, default, deserialize_with = "loose")]
    pub message: Option<Delta<'a>>,
    #[serde(borrow, default, deserialize_with = "loose")]
    pub details: Option<TgiDetails<'a>>,
    #[serde(borrow, default)]
    pub done_reason: Text<'a>,
    #[serde(borrow, default)]
    pub stop_type: Text<'a>,
    pub done: Option<Flag>,
    pub stop: Option<Flag>,
    #[serde(default)]
    pub tokens_predicted: Count,
    #[serde(default)]
    pub tokens_evaluated: Count,
    #[serde(default)]
    pub eval_count: Count,
    #[serde(default)]
    pub prompt_eval_count: Count,
}

/// The closing details of TGI's stream.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct TgiDetails<'a> {
    #[serde(borrow, default)]
    pub finish_reason: Text<'a>,
    #[serde(default)]
    pub generated_tokens: Count,
}

/// Whether the field is `true`; any other value is false.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) struct Flag(pub bool);

impl<'de> Deserialize<'de> for Flag {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(Flag(<&RawValue>::deserialize(deserializer)?.get() == "true"))
    }
}

#[derive(Debug, Default)]
pub(crate) struct TokenPart<'a>(pub Text<'a>);

impl<'de: 'a, 'a> Deserialize<'de> for TokenPart<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Text::deserialize(deserializer).map(TokenPart)
    }
}

/// One event of the responses protocol.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct ResponseEvent<'a> {
    #[serde(borrow, default, rename = "type")]
    pub kind: Text<'a>,
    #[serde(borrow, default)]
    pub delta: Text<'a>,
    #[serde(borrow)]
    pub response: Option<&'a RawValue>,
    /// Output of a response object; an event has no such field.
    #[serde(borrow)]
    pub output: Option<&'a RawValue>,
    #[serde(borrow)]
    pub error: Option<&'a RawValue>,
}

/// A response object: the whole answer, or the one inside the closing event.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct Response<'a> {
    #[serde(borrow, default)]
    pub status: Text<'a>,
    #[serde(default, deserialize_with = "loose")]
    pub usage: Option<RawUsage>,
    #[serde(borrow)]
    pub error: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "loose")]
    pub incomplete_details: Option<Incomplete<'a>>,
    #[serde(borrow)]
    pub output: Option<Vec<OutputItem<'a>>>,
}

#[derive(Debug, Default, Deserialize)]
pub(crate) struct Incomplete<'a> {
    #[serde(borrow, default)]
    pub reason: Text<'a>,
}

#[derive(Debug, Default, Deserialize)]
pub(crate) struct OutputItem<'a> {
    #[serde(borrow, default, rename = "type")]
    pub kind: Text<'a>,
    #[serde(borrow, default)]
    pub content: Text<'a>,
    #[serde(borrow, default)]
    pub arguments: Text<'a>,
    #[serde(borrow, default)]
    pub name: Text<'a>,
}
