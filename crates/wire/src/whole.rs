//! Parses answers in one piece, per protocol.

use plimsoll_model::{EventKind, Protocol};
use serde::Deserialize;
use serde::de::IgnoredAny;

use crate::chunk::{Chunk, Other, RawUsage, Response, Usage, is_error};
use crate::fault::{Fault, ProtocolFault};
use crate::head::push_stage;
use crate::tally::Tally;
use crate::{images, kserve, messages, ollama, scores, transcriptions};

/// Parses a whole body into the tally; returns the error if it cannot be parsed. With `json`, it must be JSON;
/// `raw` bytes of tensors follow it.
pub(crate) fn read(
    protocol: Protocol,
    body: &[u8],
    (json, raw): (bool, usize),
    tally: &mut Tally,
) -> Result<(), ProtocolFault> {
    if body.trim_ascii().is_empty() {
        return Ok(());
    }
    let text = match std::str::from_utf8(body) {
        Ok(text) => text,
        Err(_) if json => return Err("a body that is not UTF-8".into()),
        Err(_) => {
            tally.generated = true;
            return Ok(());
        }
    };
    let read = match protocol {
        Protocol::Chat | Protocol::Completions => chat(text, tally),
        Protocol::Responses => responses(text, tally),
        Protocol::Embeddings => embeddings(text, tally),
        Protocol::Messages => messages::whole(text, tally),
        Protocol::OllamaChat | Protocol::OllamaGenerate => ollama::whole(text, tally),
        Protocol::Rerank | Protocol::Score | Protocol::Pooling | Protocol::Classify => {
            scores::whole(protocol, text, tally)
        }
        Protocol::Transcriptions => transcriptions::whole(text, tally),
        Protocol::Images => images::whole(text, tally),
        Protocol::Kserve | Protocol::KserveGrpc => kserve::answer::read(text, raw, tally),
        Protocol::Http | Protocol::Speech => other(text, tally),
    };
    match read {
        Err(why) if json => Err(ProtocolFault::json("a body", text, &why)),
        Err(_) => {
            tally.generated = true;
            tally.words(text);
            tally.keep(text);
            Ok(())
        }
        Ok(()) => Ok(()),
    }
}

fn chat(text: &str, tally: &mut Tally) -> Result<(), serde_json::Error> {
    let chunk: Chunk<'_> = serde_json::from_str(text)?;
    if chunk.complaint().is_some() {
        tally.error = Some(Fault::from_json(text));
        return Ok(());
    }
    tally.whole(&chunk);
    Ok(())
}

/// Returns whether the text is `{"detail": …}` under a success status.
fn is_complaint(text: &str) -> bool {
    #[derive(Deserialize)]
    struct Complaint {
        detail: Option<IgnoredAny>,
    }
    serde_json::from_str::<Complaint>(text).is_ok_and(|complaint| complaint.detail.is_some())
}

fn responses(text: &str, tally: &mut Tally) -> Result<(), serde_json::Error> {
    let response: Response<'_> = serde_json::from_str(text)?;
    if is_error(response.error) || is_complaint(text) {
        tally.error = Some(Fault::from_json(text));
        return Ok(());
    }
    for item in response.output.iter().flatten() {
        let (said, kind) = match item.kind.get() {
            "function_call" => (item.arguments.get(), EventKind::ToolCall),
            "reasoning" => (item.content.get(), EventKind::Reasoning),
            _ => (item.content.get(), EventKind::Content),
        };
        tally.generated |= !said.is_empty() || !item.name.is_empty();
        tally.words(said);
        if kind == EventKind::Content {
            tally.keep(said);
        }
    }
    close_response(&response, tally);
    Ok(())
}

/// Records the finish reason and the usage of a response object. `completed` becomes `stop`, so that a reason has one meaning
/// under every protocol; `max_output_tokens` becomes `length`.
pub(crate) fn close_response(response: &Response<'_>, tally: &mut Tally) {
    let reason =
        response.incomplete_details.as_ref().map(|details| details.reason.get()).filter(|r| !r.is_empty());
    let reason = reason.unwrap_or(response.status.get());
    let reason = match reason {
        "" | "completed" => "stop",
        "max_output_tokens" => "length",
        other => other,
    };
    tally.finish(reason);
    if let Some(usage) = &response.usage {
        tally.bare_usage(usage.usage());
        for (name, ms) in usage.stages() {
            push_stage(&mut tally.stages, name, ms);
        }
    }
}

fn embeddings(text: &str, tally: &mut Tally) -> Result<(), serde_json::Error> {
    #[derive(Deserialize, Default)]
    #[serde(default)]
    struct Embeddings {
        data: Option<Vec<IgnoredAny>>,
    }
    let chunk: Chunk<'_> = serde_json::from_str(text)?;
    if chunk.complaint().is_some() {
        tally.error = Some(Fault::from_json(text));
        return Ok(());
    }
    let found: Embeddings = serde_json::from_str(text)?;
    let count = found.data.map_or(0, |data| data.len());
    tally.generated = count > 0;
    tally.results = Some(u32::try_from(count).unwrap_or(u32::MAX));
    tally.whole(&chunk);
    Ok(())
}

fn other(text: &str, tally: &mut Tally) -> Result<(), serde_json::Error> {
    // Any JSON is an answer; an object of a known format is parsed.
    serde_json::from_str::<IgnoredAny>(text)?;
    tally.generated = true;
    let Ok(chunk) = serde_json::from_str::<Chunk<'_>>(text) else { return Ok(()) };
    if is_error(chunk.error) {
        tally.error = Some(Fault::from_json(text));
        return Ok(());
    }
    if chunk.choices.named {
        tally.generated = false;
        tally.whole(&chunk);
        return Ok(());
    }
    let found: Other<'_> = serde_json::from_str(text).unwrap_or_default();
    if let Some(raw) = chunk.timings {
        tally.timings(raw.get());
    }
    if let Some(usage) = other_usage(&found, chunk.usage().map(RawUsage::usage)) {
        tally.bare_usage(usage);
    }
    if let Some(said) = other_text(&found) {
        tally.generated = !said.is_empty();
        tally.words(said);
        tally.keep(said);
    }
    Ok(())
}

/// Returns the generated text of an answer of another kind, from the first present field.
pub(crate) fn other_text<'a>(other: &'a Other<'_>) -> Option<&'a str> {
    let token = other.token.as_ref().map(|token| token.0.get());
    let token = token.or(other.message.as_ref().map(|message| message.says()));
    let fields = [&other.text_output, &other.content, &other.text, &other.response, &other.generated_text];
    token.or_else(|| fields.into_iter().find(|field| field.is_named()).map(|field| field.get()))
}

/// Returns its usage: llama.cpp's `tokens_predicted`, Ollama's `eval_count`, TGI's `details.generated_tokens`.
pub(crate) fn other_usage(other: &Other<'_>, usage: Option<Usage>) -> Option<Usage> {
    let told = other.details.as_ref().and_then(|details| details.generated_tokens.0);
    let output = other.tokens_predicted.0.or(other.eval_count.0).or(told);
    usage.or(output.map(|n| Usage {
        prompt: other.tokens_evaluated.0.or(other.prompt_eval_count.0),
        output: Some(n),
        ..Usage::default()
    }))
}
