//! Encodes whole answers: generated text, embeddings, models, errors.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use plimsoll_model::Protocol;
use serde_json::{Value, json};

use super::reply::Reply;
use super::request::GenerateRequest;
use super::stream::words;

/// Returns the whole answer to a chat or completions request.
pub fn answer(asked: &GenerateRequest, reply: &Reply<'_>) -> Bytes {
    let Reply { id, created_s: created, model, first_word, tokens, reason, told } = *reply;
    let text = words(first_word, tokens);
    let prompt = asked.prompt_tokens;
    let total = prompt.saturating_add(tokens);
    let mut usage = json!({"prompt_tokens": prompt, "total_tokens": total, "completion_tokens": tokens});
    if let Some(cached) = told.cached {
        usage["prompt_tokens_details"] = json!({"cached_tokens": cached});
    }
    let mut body = match asked.endpoint {
        Protocol::Chat => json!({
            "id": id, "object": "chat.completion", "created": created, "model": model,
            "choices": [{"index": 0, "message": {"role": "assistant", "content": text}, "logprobs": null,
                "finish_reason": reason}],
            "usage": usage,
        }),
        _ => json!({
            "id": id, "object": "text_completion", "created": created, "model": model,
            "choices": [{"index": 0, "text": text, "logprobs": null, "finish_reason": reason}],
            "usage": usage,
        }),
    };
    if let Some(metrics) = told.timing.and_then(|timing| serde_json::from_str(&timing.json()).ok()) {
        let metrics: serde_json::Value = metrics;
        body["metrics"] = metrics;
    }
    Bytes::from(body.to_string())
}

#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum EmbeddingsFormat {
    Float,
    /// Little-endian 32-bit floats in base64.
    Base64,
}

/// Returns an embeddings answer: one vector per input, `dimensions` long, of unit length and without meaning.
pub fn embeddings(asked: &GenerateRequest, model: &str, dimensions: u32) -> Bytes {
    let dimensions = asked.dimensions.unwrap_or(dimensions).clamp(1, 4096);
    let format = if asked.base64 { EmbeddingsFormat::Base64 } else { EmbeddingsFormat::Float };
    let entry = 1.0 / f64::from(dimensions).sqrt();
    let value = match format {
        EmbeddingsFormat::Float => json!(vec![entry; dimensions as usize]),
        EmbeddingsFormat::Base64 => {
            let bytes: Vec<u8> = (entry as f32).to_le_bytes().repeat(dimensions as usize);
            json!(STANDARD.encode(bytes))
        }
    };
    let vector = value.to_string();
    let mut out = String::with_capacity((vector.len() + 64) * asked.inputs as usize + 128);
    out.push_str(r#"{"object":"list","data":["#);
    for index in 0..asked.inputs {
        if index > 0 {
            out.push(',');
        }
        out.push_str(&format!(r#"{{"object":"embedding","index":{index},"embedding":{vector}}}"#));
    }
    let usage = json!({"prompt_tokens": asked.prompt_tokens, "total_tokens": asked.prompt_tokens});
    out.push_str(&format!(r#"],"model":{},"usage":{usage}}}"#, json!(model)));
    Bytes::from(out)
}

/// Returns the body of `GET /v1/models` with one model. `max_model_len` is in tokens.
pub fn models(model: &str, adapters: &[String], created: i64, max_model_len: Option<u32>) -> Bytes {
    let adapters = adapters.iter().map(|adapter| card((adapter, Some(model)), created, max_model_len));
    let data: Vec<_> = std::iter::once(card((model, None), created, max_model_len)).chain(adapters).collect();
    Bytes::from(json!({"object": "list", "data": data}).to_string())
}

/// Returns the body of `GET /v1/models/{id}`: one entry of the list, by its name and, for an adapter, its parent's.
pub fn model(named: (&str, Option<&str>), created: i64, max_model_len: Option<u32>) -> Bytes {
    Bytes::from(card(named, created, max_model_len).to_string())
}

/// Returns a list entry in vLLM's format: an adapter names its base model as its parent.
fn card((id, parent): (&str, Option<&str>), created: i64, max_model_len: Option<u32>) -> Value {
    json!({
        "id": id, "object": "model", "created": created, "owned_by": "plimsoll", "root": id, "parent": parent,
        "max_model_len": max_model_len,
    })
}

/// Returns an error body in the format of OpenAI and vLLM.
pub fn error(status: u16, message: &str, param: Option<&str>) -> Bytes {
    let kind = match status {
        404 => "NotFoundError",
        429 | 503 => "OverloadedError",
        400..=499 => "BadRequestError",
        _ => "InternalServerError",
    };
    Bytes::from(
        json!({"error": {"message": message, "type": kind, "param": param, "code": status}}).to_string(),
    )
}
