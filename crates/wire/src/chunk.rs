//! The JSON of stream chunks and whole answers, read into borrowed structs.
//!
//! Reading is lenient where servers differ (a missing field, a null, a list of parts where a text is usual) and strict
//! where leniency would invent a measurement: JSON must be JSON. A `serde_json::Value` per chunk would be shorter and cost
//! five times as much; the time goes into allocations that nobody reads.

use std::borrow::Cow;
use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

use crate::trace::attributes::Scalar;

/// A text that may be missing, null, or something else altogether (then it counts as missing).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Text<'a>(pub Option<Cow<'a, str>>);

impl Text<'_> {
    /// The text; missing reads as empty.
    pub fn get(&self) -> &str {
        self.0.as_deref().unwrap_or_default()
    }

    /// Was there a text, if only an empty one?
    pub fn is_named(&self) -> bool {
        self.0.is_some()
    }

    pub fn is_empty(&self) -> bool {
        self.get().is_empty()
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Text<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(TextVisitor)
    }
}

struct TextVisitor;

impl<'de> Visitor<'de> for TextVisitor {
    type Value = Text<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a text")
    }
    fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Text<'de>, E> {
        Ok(Text(Some(Cow::Borrowed(text))))
    }
    fn visit_str<E>(self, text: &str) -> Result<Text<'de>, E> {
        Ok(Text(Some(Cow::Owned(text.to_owned()))))
    }
    fn visit_unit<E>(self) -> Result<Text<'de>, E> {
        Ok(Text(None))
    }
    fn visit_bool<E>(self, _: bool) -> Result<Text<'de>, E> {
        Ok(Text(None))
    }
    fn visit_i64<E>(self, _: i64) -> Result<Text<'de>, E> {
        Ok(Text(None))
    }
    fn visit_u64<E>(self, _: u64) -> Result<Text<'de>, E> {
        Ok(Text(None))
    }
    fn visit_f64<E>(self, _: f64) -> Result<Text<'de>, E> {
        Ok(Text(None))
    }
    /// Content as a list of parts, each with a `text`.
    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Text<'de>, A::Error> {
        let mut all: Option<String> = None;
        while let Some(part) = seq.next_element::<Part<'de>>()? {
            all.get_or_insert_default().push_str(part.0.get());
        }
        Ok(Text(all.map(Cow::Owned)))
    }
    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Text<'de>, A::Error> {
        while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(Text(None))
    }
}

/// One part of a list of parts: an object's `text` (or `refusal`), or a bare text.
struct Part<'a>(Text<'a>);

impl<'de: 'a, 'a> Deserialize<'de> for Part<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        struct Fields<'a> {
            #[serde(borrow)]
            text: Option<Plain<'a>>,
            #[serde(borrow)]
            refusal: Option<Plain<'a>>,
        }
        let raw = <&'de RawValue>::deserialize(deserializer)?.get();
        // A nested list is not descended into: depth is the sender's choice.
        let text = match raw.starts_with('{') {
            true => serde_json::from_str(raw).map(|part: Fields<'de>| part.text.or(part.refusal)),
            false => serde_json::from_str(raw).map(Some),
        };
        Ok(Part(text.map_err(serde::de::Error::custom)?.map_or(Text(None), |plain| plain.0)))
    }
}

/// A text or nothing; lists and objects are skipped.
struct Plain<'a>(Text<'a>);

impl<'de: 'a, 'a> Deserialize<'de> for Plain<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let raw = <&'de RawValue>::deserialize(deserializer)?;
        if !raw.get().starts_with('"') {
            return Ok(Plain(Text(None)));
        }
        serde_json::from_str(raw.get()).map(Plain).map_err(serde::de::Error::custom)
    }
}

/// A count that may be missing, null, a float, or nonsense (then missing).
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Count(pub Option<u32>);

impl<'de> Deserialize<'de> for Count {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(Count(match Scalar::deserialize(deserializer)? {
            Scalar::Int(n) => u64::try_from(n).ok().map(|n| u32::try_from(n).unwrap_or(u32::MAX)),
            Scalar::Real(n) => (n >= 0.0).then_some(n as u32),
            Scalar::Nothing | Scalar::Flag(_) | Scalar::Text(_) => None,
        }))
    }
}

/// The choices of a chunk. Nearly always one, which then needs no allocation.
#[derive(Debug, Default)]
pub(crate) struct Choices<'a> {
    pub first: Option<Choice<'a>>,
    pub more: Vec<Choice<'a>>,
    /// Was there a list at all, if only an empty one?
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
}

#[derive(Debug, Default, Deserialize)]
pub(crate) struct Delta<'a> {
    #[serde(borrow, default)]
    pub role: Text<'a>,
    #[serde(borrow, default)]
    pub content: Text<'a>,
    #[serde(borrow, default)]
    pub reasoning: Text<'a>,
    #[serde(borrow, default)]
    pub reasoning_content: Text<'a>,
    #[serde(borrow, default)]
    pub refusal: Text<'a>,
    #[serde(borrow)]
    pub tool_calls: Option<Vec<ToolCall<'a>>>,
    #[serde(borrow)]
    pub function_call: Option<Box<Function<'a>>>,
}

impl Delta<'_> {
    pub fn reasons(&self) -> &str {
        if self.reasoning.is_empty() { self.reasoning_content.get() } else { self.reasoning.get() }
    }

    pub fn says(&self) -> &str {
        if self.content.is_empty() { self.refusal.get() } else { self.content.get() }
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

/// Token accounting, in the words of chat completions and of responses.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct RawUsage {
    #[serde(default)]
    prompt_tokens: Count,
    #[serde(default)]
    completion_tokens: Count,
    #[serde(default)]
    input_tokens: Count,
    #[serde(default)]
    output_tokens: Count,
    prompt_tokens_details: Option<Details>,
    completion_tokens_details: Option<Details>,
    input_tokens_details: Option<Details>,
    output_tokens_details: Option<Details>,
    // Groq tells its stage times here, in seconds.
    queue_time: Option<f64>,
    prompt_time: Option<f64>,
    completion_time: Option<f64>,
}

#[derive(Debug, Default, Deserialize)]
struct Details {
    #[serde(default)]
    cached_tokens: Count,
    #[serde(default)]
    reasoning_tokens: Count,
}

/// Token accounting, whatever it was called.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Usage {
    pub prompt: Option<u32>,
    pub output: Option<u32>,
    pub cached: Option<u32>,
    pub reasoning: Option<u32>,
}

impl RawUsage {
    pub fn usage(&self) -> Usage {
        let detail = |a: &Option<Details>, b: &Option<Details>, pick: fn(&Details) -> Option<u32>| {
            a.as_ref().and_then(pick).or(b.as_ref().and_then(pick))
        };
        Usage {
            prompt: self.prompt_tokens.0.or(self.input_tokens.0),
            output: self.completion_tokens.0.or(self.output_tokens.0),
            cached: detail(&self.prompt_tokens_details, &self.input_tokens_details, |d| d.cached_tokens.0),
            reasoning: detail(&self.completion_tokens_details, &self.output_tokens_details, |d| {
                d.reasoning_tokens.0
            }),
        }
    }

    /// Stage times told inside the accounting, as (name, milliseconds).
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
    pub usage: Option<Box<RawUsage>>,
    #[serde(borrow)]
    pub error: Option<&'a RawValue>,
    #[serde(borrow)]
    pub timings: Option<&'a RawValue>,
    #[serde(borrow)]
    pub time_info: Option<&'a RawValue>,
    /// vLLM's per-request metrics.
    #[serde(borrow)]
    pub metrics: Option<&'a RawValue>,
    detail: Option<IgnoredAny>,
    message: Option<IgnoredAny>,
}

impl Chunk<'_> {
    /// Is it an error in one of the shapes that errors have? (`detail` and `message` count only where no answer is.)
    pub fn complains(&self) -> bool {
        let answers = self.choices.named || self.usage.is_some();
        self.error.is_some() || (!answers && (self.detail.is_some() || self.message.is_some()))
    }
}

/// The parts of an answer of another kind that are looked for: Triton and KServe generate, TGI, llama.cpp's own
/// completion, Ollama; anything else passes through untouched.
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
    #[serde(borrow)]
    pub message: Option<Delta<'a>>,
    #[serde(borrow)]
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

/// The closing words of TGI's stream.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct TgiDetails<'a> {
    #[serde(borrow, default)]
    pub finish_reason: Text<'a>,
    #[serde(default)]
    pub generated_tokens: Count,
}

/// True, or anything else.
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
        Part::deserialize(deserializer).map(|part| TokenPart(part.0))
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
    #[serde(borrow)]
    pub error: Option<&'a RawValue>,
}

/// A response object: the whole answer, or the one inside the closing event.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct Response<'a> {
    #[serde(borrow, default)]
    pub status: Text<'a>,
    pub usage: Option<RawUsage>,
    #[serde(borrow)]
    pub error: Option<&'a RawValue>,
    #[serde(borrow)]
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
