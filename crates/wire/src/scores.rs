//! Rerank, score, pooling and classify, the client's half: one question, and one result per document.
//!
//! Cohere, Jina, vLLM and infinity answer a rerank with `results`, vLLM the others with `data`, TEI with a bare list. A result
//! counts if it contains the requested value: a number as its score, a vector, probabilities. The number of results is checked
//! ([`plimsoll_model::Broken::WrongCount`]), because an answer without some of them is complete and still wrong.

use plimsoll_model::{Payload, Protocol};
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::chunk::{Count, Usage, is_error, loose};
use crate::encode::Body;
use crate::fault::Fault;
use crate::tally::Tally;
use crate::template::{escape, flat};

pub(crate) fn request(protocol: Protocol, body: &mut Body<'_>, payload: &Payload) {
    let Payload::Documents { query, documents } = payload else {
        return body.text("input", &flat(payload));
    };
    let (one, many) = match protocol {
        Protocol::Score => (Some("text_1"), "text_2"),
        Protocol::Rerank => (Some("query"), "documents"),
        _ => (None, "input"),
    };
    if let Some(one) = one {
        body.text(one, query);
    }
    body.raw(many, |out| {
        out.push('[');
        for (i, document) in documents.iter().enumerate() {
            out.push_str(if i > 0 { ",\"" } else { "\"" });
            escape(document, out);
            out.push('"');
        }
        out.push(']');
    });
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Answer<'a> {
    #[serde(borrow)]
    results: Option<Vec<ScoredItem<'a>>>,
    #[serde(borrow)]
    data: Option<Vec<ScoredItem<'a>>>,
    #[serde(deserialize_with = "loose")]
    usage: Option<RawUsage>,
    #[serde(deserialize_with = "loose")]
    meta: Option<Meta>,
    #[serde(borrow)]
    error: Option<&'a RawValue>,
    #[serde(borrow)]
    detail: Option<&'a RawValue>,
    #[serde(borrow)]
    message: Option<&'a RawValue>,
}

/// One result. A document that the server sends with it is not read.
#[derive(Deserialize, Default)]
#[serde(default)]
struct ScoredItem<'a> {
    #[serde(borrow)]
    relevance_score: Option<&'a RawValue>,
    #[serde(borrow)]
    score: Option<&'a RawValue>,
    #[serde(borrow)]
    data: Option<&'a RawValue>,
    #[serde(borrow)]
    probs: Option<&'a RawValue>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct RawUsage {
    prompt_tokens: Count,
    total_tokens: Count,
}

/// Counts in Cohere's place, which LiteLLM uses for all its upstreams.
#[derive(Deserialize, Default)]
#[serde(default)]
struct Meta {
    tokens: Option<MetaTokens>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct MetaTokens {
    input_tokens: Count,
}

pub(crate) fn whole(protocol: Protocol, text: &str, tally: &mut Tally) -> Result<(), serde_json::Error> {
    let bare = text.trim_start().starts_with('[');
    let answer = match bare {
        true => Answer { data: Some(serde_json::from_str(text)?), ..Answer::default() },
        false => serde_json::from_str(text)?,
    };
    let results = answer.results.or(answer.data);
    let complains = answer.detail.is_some() || answer.message.is_some();
    if is_error(answer.error) || (results.is_none() && complains) {
        tally.error = Some(Fault::from_json(text));
        return Ok(());
    }
    let count = results.iter().flatten().filter(|result| holds(protocol, result)).count();
    tally.results = Some(u32::try_from(count).unwrap_or(u32::MAX));
    tally.generated = count > 0;
    // No tokens are generated, so a single total is the prompt's.
    let usage = answer.usage.and_then(|usage| usage.prompt_tokens.0.or(usage.total_tokens.0));
    let prompt = usage.or(answer.meta.and_then(|meta| meta.tokens).and_then(|tokens| tokens.input_tokens.0));
    if prompt.is_some() {
        tally.only_usage(Usage { prompt, ..Usage::default() });
    }
    Ok(())
}

/// Returns whether a result contains the requested value.
fn holds(protocol: Protocol, result: &ScoredItem<'_>) -> bool {
    let begins = |raw: Option<&RawValue>, with: &dyn Fn(char) -> bool| {
        raw.is_some_and(|raw| raw.get().starts_with(with))
    };
    let number = |raw| begins(raw, &|c| c == '-' || c.is_ascii_digit());
    let list = |raw: Option<&RawValue>| {
        raw.is_some_and(|raw| {
            raw.get().strip_prefix('[').is_some_and(|rest| !rest.trim_start().starts_with(']'))
        })
    };
    match protocol {
        Protocol::Pooling => list(result.data) || begins(result.data, &|c| c == '"'),
        Protocol::Classify => list(result.probs),
        _ => number(result.relevance_score) || number(result.score),
    }
}
