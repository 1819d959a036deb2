//! Anthropic Messages, the client's half: requests, events and whole answers.
//!
//! A stream is `message_start`, then per block `content_block_start`, deltas and `content_block_stop`, then `message_delta`
//! with the reason and the usage, and `message_stop`. `ping` can occur anywhere, `error` under a 200; there is no `[DONE]`. Only a
//! delta has tokens: the opening precedes any generation (Anthropic sends it immediately, vLLM with its first chunk).
//!
//! **Usage.** `input_tokens` excludes tokens that were read from the cache or written to it; the prompt is the sum of the three.
//! Both `message_start` and `message_delta` report usage as running totals. A later figure replaces an earlier one, unless all of its
//! input is zero. Proxies that learn the input at the end open with zeros, and older servers close without input.

use plimsoll_model::{EventKind, Message, Payload, Role};
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::chunk::{Count, Text, Usage, is_error, loose};
use crate::decoded::DecodedEvent;
use crate::encode::{Body, RequestOptions, push};
use crate::fault::Fault;
use crate::tally::{Tally, View};
use crate::template;

/// The only value of `anthropic-version`.
pub(crate) const VERSION: (&str, &str) = ("anthropic-version", "2023-06-01");

/// Default length, because the protocol requires one.
const MAX_TOKENS: u32 = 4096;

/// Writes the fields of a request that differ from other protocols.
pub(crate) fn request(body: &mut Body<'_>, payload: &Payload, options: &RequestOptions) {
    let all = match payload {
        Payload::Messages(all) => all.as_slice(),
        _ => &[],
    };
    let is_system = |message: &&Message| message.role == Role::System;
    let system: Vec<&str> = all.iter().filter(is_system).map(|message| message.content.as_str()).collect();
    if !system.is_empty() {
        body.text("system", &system.join("\n\n"));
    }
    body.raw("messages", |out| match payload {
        Payload::Messages(all) => {
            template::talk(all.iter().filter(|message| !is_system(message)), options.protocol, out)
        }
        other => template::messages(other, options.protocol, out),
    });
    body.raw("max_tokens", |out| push(out, options.max_tokens.unwrap_or(MAX_TOKENS)));
}

/// The running usage of one answer.
#[derive(Debug, Default)]
pub(crate) struct Account {
    input: Option<u32>,
    cache_read: Option<u32>,
    cache_written: Option<u32>,
    output: Option<u32>,
    thinking: Option<u32>,
}

impl Account {
    fn take(&mut self, usage: &RawUsage) {
        let told =
            [usage.input_tokens.0, usage.cache_read_input_tokens.0, usage.cache_creation_input_tokens.0];
        if told.iter().flatten().any(|tokens| *tokens > 0) {
            self.input = told[0].or(self.input);
            self.cache_read = told[1].or(self.cache_read);
            self.cache_written = told[2].or(self.cache_written);
        }
        self.output = usage.output_tokens.0.or(self.output);
        let thinking = usage.output_tokens_details.as_ref().and_then(|details| details.thinking_tokens.0);
        self.thinking = thinking.or(self.thinking);
    }

    fn usage(&self) -> Usage {
        let beside = self.cache_read.unwrap_or(0).saturating_add(self.cache_written.unwrap_or(0));
        Usage {
            prompt: self.input.map(|input| input.saturating_add(beside)),
            output: self.output,
            cached: self.cache_read,
            reasoning: self.thinking,
            total: None,
        }
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct RawUsage {
    input_tokens: Count,
    cache_read_input_tokens: Count,
    cache_creation_input_tokens: Count,
    output_tokens: Count,
    #[serde(deserialize_with = "loose")]
    output_tokens_details: Option<Details>,
}

#[derive(Debug, Default, Deserialize)]
struct Details {
    #[serde(default)]
    thinking_tokens: Count,
}

#[derive(Debug, Default, Deserialize)]
struct Event<'a> {
    #[serde(borrow, default, rename = "type")]
    kind: Text<'a>,
    #[serde(borrow)]
    delta: Option<Piece<'a>>,
    #[serde(borrow)]
    content_block: Option<Piece<'a>>,
    #[serde(borrow)]
    message: Option<&'a RawValue>,
    #[serde(default, deserialize_with = "loose")]
    usage: Option<RawUsage>,
    #[serde(borrow)]
    error: Option<&'a RawValue>,
}

/// A block of the content, a delta of a block, or a delta of the message.
#[derive(Debug, Default, Deserialize)]
struct Piece<'a> {
    #[serde(borrow, default, rename = "type")]
    kind: Text<'a>,
    #[serde(borrow, default)]
    text: Text<'a>,
    #[serde(borrow, default)]
    thinking: Text<'a>,
    #[serde(borrow, default)]
    partial_json: Text<'a>,
    #[serde(borrow)]
    input: Option<&'a RawValue>,
    #[serde(borrow, default)]
    stop_reason: Text<'a>,
}

#[derive(Debug, Default, Deserialize)]
struct Whole<'a> {
    #[serde(borrow)]
    content: Option<Vec<Piece<'a>>>,
    #[serde(borrow, default)]
    stop_reason: Text<'a>,
    #[serde(default, deserialize_with = "loose")]
    usage: Option<RawUsage>,
    #[serde(borrow)]
    error: Option<&'a RawValue>,
    #[serde(borrow)]
    detail: Option<&'a RawValue>,
}

impl<'a> Piece<'a> {
    /// Returns the kind and the text of the generated part. A signature is not generated, because it is derived from the thinking before it.
    fn generated(&self) -> (EventKind, &Text<'a>) {
        if !self.text.is_empty() {
            (EventKind::Content, &self.text)
        } else if !self.thinking.is_empty() {
            (EventKind::Reasoning, &self.thinking)
        } else {
            (EventKind::ToolCall, &self.partial_json)
        }
    }
}

/// Parses one event. Also returns its text if it has only one text and that is borrowed from `data`.
pub(crate) fn event<'a>(
    data: &'a str,
    account: &mut Account,
    tally: &mut Tally,
) -> Result<(DecodedEvent, Option<&'a str>), serde_json::Error> {
    let event: Event<'a> = serde_json::from_str(data)?;
    if is_error(event.error) {
        tally.error.get_or_insert_with(|| Fault::from_json(data));
        return Ok((DecodedEvent::of(EventKind::Error), None));
    }
    let kind = match event.kind.get() {
        "message_start" => {
            let message: Whole<'_> =
                event.message.map_or(Ok(Whole::default()), |raw| serde_json::from_str(raw.get()))?;
            if let Some(usage) = &message.usage {
                account.take(usage);
                tally.only_usage(account.usage());
            }
            EventKind::Role
        }
        "content_block_start" | "content_block_delta" => {
            let piece = event.delta.or(event.content_block).unwrap_or_default();
            let (kind, text) = piece.generated();
            if !text.is_empty() {
                let view = View { kind: Some(kind), text: text.get(), ..View::default() };
                let borrowed = match text {
                    Text(Some(std::borrow::Cow::Borrowed(only))) => Some(*only),
                    _ => None,
                };
                return Ok((tally.choice(0, &view, None), borrowed));
            }
            let adds = [&piece.text, &piece.thinking, &piece.partial_json].into_iter().any(Text::is_named);
            if adds && event.kind.get() == "content_block_delta" {
                return Ok((tally.choice(0, &View { named: Some(kind), ..View::default() }, None), None));
            }
            EventKind::Empty
        }
        "message_delta" => {
            if let Some(usage) = &event.usage {
                account.take(usage);
                tally.only_usage(account.usage());
            }
            let delta = event.delta.unwrap_or_default();
            match reason(delta.stop_reason.get()) {
                "" if event.usage.is_some() => EventKind::Usage,
                "" => EventKind::Empty,
                finish => return Ok((tally.choice(0, &View { finish, ..View::default() }, None), None)),
            }
        }
        "message_stop" => {
            tally.done = true;
            EventKind::Done
        }
        // A whole answer.
        "message" => EventKind::Body,
        // Pings, ends of blocks, and unknown events, which the protocol requires clients to skip.
        _ => EventKind::Empty,
    };
    Ok((DecodedEvent::of(kind), None))
}

pub(crate) fn whole(text: &str, tally: &mut Tally) -> Result<(), serde_json::Error> {
    let answer: Whole<'_> = serde_json::from_str(text)?;
    if is_error(answer.error) || (answer.content.is_none() && answer.detail.is_some()) {
        tally.error = Some(Fault::from_json(text));
        return Ok(());
    }
    for piece in answer.content.iter().flatten() {
        let (kind, said) = match (piece.kind.get(), piece.input) {
            ("tool_use", Some(input)) => (EventKind::ToolCall, input.get()),
            _ => {
                let (kind, text) = piece.generated();
                (kind, text.get())
            }
        };
        tally.generated |= !said.is_empty();
        tally.words(said);
        if kind == EventKind::Content {
            tally.keep(said);
        }
    }
    tally.finish(reason(answer.stop_reason.get()));
    if let Some(usage) = &answer.usage {
        let mut account = Account::default();
        account.take(usage);
        tally.only_usage(account.usage());
    }
    Ok(())
}

/// Returns the finish reason in the terms of chat completions, so that a reason has one meaning under every protocol.
///
/// Reasons without an equivalent (`refusal`, `pause_turn`, …) are unchanged.
fn reason(said: &str) -> &str {
    match said {
        "end_turn" | "stop_sequence" => "stop",
        "max_tokens" => "length",
        "tool_use" => "tool_calls",
        other => other,
    }
}
