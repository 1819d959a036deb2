//! Ollama's own API, the client's half: chat and generate, answered line by line.
//!
//! Each line is an object with a piece of text. The last one has `done`, the reason, and the tokens and nanoseconds of prompt and
//! answer. An error after the head is also a line. Lengths and temperature are in `options`. The user's own options
//! (`num_ctx`, …) are merged into it, so that neither replaces the other.

use plimsoll_model::{EventKind, Payload, Protocol};
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use crate::chunk::{Count, Flag, Text, ToolCall, Usage, is_error, loose};
use crate::decoded::DecodedEvent;
use crate::encode::{Body, RequestOptions};
use crate::fault::Fault;
use crate::head::push_stage;
use crate::tally::{Tally, View};
use crate::template;

const OPTIONS: &str = "options";

/// Returns the user's fields, merged with the requested lengths.
pub(crate) fn extra(options: &RequestOptions) -> Map<String, Value> {
    let mut asked = Map::new();
    if let Some(n) = options.max_tokens {
        asked.insert("num_predict".to_owned(), n.into());
    }
    if let Some(temperature) = options.temperature.filter(|t| t.is_finite()) {
        asked.insert("temperature".to_owned(), temperature.into());
    }
    let mut extra = options.extra.clone();
    match extra.get_mut(OPTIONS) {
        None if asked.is_empty() => {}
        None => {
            extra.insert(OPTIONS.to_owned(), Value::Object(asked));
        }
        Some(Value::Object(own)) => {
            for (name, value) in asked {
                own.entry(name).or_insert(value);
            }
        }
        // `null` removes the field; another value is left for the server to reject.
        Some(_) => {}
    }
    extra
}

/// Writes a request without the fields of [`extra`]. It streams unless `stream` is false.
pub(crate) fn request(body: &mut Body<'_>, payload: &Payload, options: &RequestOptions) {
    match options.protocol {
        Protocol::OllamaGenerate => body.text("prompt", &template::flat(payload)),
        _ => body.raw("messages", |out| template::messages(payload, options.protocol, out)),
    }
    body.raw("stream", |out| out.push_str(if options.stream { "true" } else { "false" }));
}

/// One line, or the whole answer.
#[derive(Debug, Default, Deserialize)]
struct Line<'a> {
    #[serde(borrow)]
    message: Option<Message<'a>>,
    #[serde(borrow, default)]
    response: Text<'a>,
    #[serde(borrow, default)]
    thinking: Text<'a>,
    done: Option<Flag>,
    #[serde(borrow, default)]
    done_reason: Text<'a>,
    #[serde(borrow)]
    error: Option<&'a RawValue>,
    #[serde(default)]
    prompt_eval_count: Count,
    #[serde(default)]
    eval_count: Count,
    #[serde(default, deserialize_with = "loose")]
    load_duration: Option<f64>,
    #[serde(default, deserialize_with = "loose")]
    prompt_eval_duration: Option<f64>,
    #[serde(default, deserialize_with = "loose")]
    eval_duration: Option<f64>,
}

#[derive(Debug, Default, Deserialize)]
struct Message<'a> {
    #[serde(borrow, default)]
    content: Text<'a>,
    #[serde(borrow, default)]
    thinking: Text<'a>,
    #[serde(borrow, default, deserialize_with = "loose")]
    tool_calls: Option<Vec<ToolCall<'a>>>,
}

impl Line<'_> {
    /// Returns the kind and the text of the generated part. A tool call arrives whole.
    fn generated(&self) -> (Option<EventKind>, &str) {
        let (content, thinking) = match &self.message {
            Some(message) => (message.content.get(), message.thinking.get()),
            None => (self.response.get(), self.thinking.get()),
        };
        let call = self.message.iter().flat_map(|message| message.tool_calls.iter().flatten());
        let call = call.filter_map(|call| call.function.as_ref()).map(|function| function.name.get()).next();
        match (content, thinking, call) {
            ("", "", Some(name)) => (Some(EventKind::ToolCall), name),
            ("", "", None) => (None, ""),
            ("", thinking, _) => (Some(EventKind::Reasoning), thinking),
            (content, ..) => (Some(EventKind::Content), content),
        }
    }

    fn is_done(&self) -> bool {
        self.done == Some(Flag(true))
    }

    /// Records the figures of the last line.
    fn close(&self, tally: &mut Tally) {
        // Loading comes first: 0 if the model was loaded, and otherwise the cause of a cold start.
        for (name, ns) in [
            ("load", self.load_duration),
            ("prefill", self.prompt_eval_duration),
            ("decode", self.eval_duration),
        ] {
            if let Some(ns) = ns {
                push_stage(&mut tally.stages, name, ns / 1e6);
            }
        }
        let (prompt, output) = (self.prompt_eval_count.0, self.eval_count.0);
        if prompt.is_some() || output.is_some() {
            tally.only_usage(Usage { prompt, output, ..Usage::default() });
        }
    }

    fn finish(&self) -> &str {
        match (self.is_done(), self.done_reason.get()) {
            (false, _) => "",
            (true, "") => "stop",
            (true, reason) => reason,
        }
    }
}

pub(crate) fn line(data: &str, tally: &mut Tally) -> Result<DecodedEvent, serde_json::Error> {
    let line: Line<'_> = serde_json::from_str(data)?;
    if is_error(line.error) {
        tally.error.get_or_insert_with(|| Fault::from_json(data));
        return Ok(DecodedEvent::of(EventKind::Error));
    }
    let (kind, text) = line.generated();
    let view = View { kind, text, finish: line.finish(), ..View::default() };
    let decoded = tally.choice(0, &view, None);
    if line.is_done() {
        line.close(tally);
        tally.done = true;
    }
    Ok(decoded)
}

pub(crate) fn whole(text: &str, tally: &mut Tally) -> Result<(), serde_json::Error> {
    let line: Line<'_> = serde_json::from_str(text)?;
    if is_error(line.error) {
        tally.error = Some(Fault::from_json(text));
        return Ok(());
    }
    let (kind, said) = line.generated();
    tally.generated |= kind.is_some();
    tally.words(said);
    if kind == Some(EventKind::Content) {
        tally.keep(said);
    }
    tally.finish(line.finish());
    line.close(tally);
    Ok(())
}
