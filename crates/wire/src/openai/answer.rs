//! Whole answers: generated text, embeddings, models, errors.

use bytes::Bytes;
use plimsoll_model::Protocol;
use serde_json::json;

use super::request::Asked;
use super::stream::word;

/// The whole answer to a chat, completions or responses request: `tokens` words of the engine's vocabulary from word
/// `first_word` on, ended by `reason` (`stop` or `length`). `created` in seconds since 1970.
pub fn answer(
    asked: &Asked,
    id: &str,
    created: i64,
    model: &str,
    first_word: u64,
    tokens: u32,
    reason: &str,
) -> Bytes {
    let text: String = (0..u64::from(tokens)).map(|n| word(first_word.wrapping_add(n))).collect();
    let prompt = asked.prompt_tokens;
    let total = prompt.saturating_add(tokens);
    let usage = json!({"prompt_tokens": prompt, "total_tokens": total, "completion_tokens": tokens});
    let body = match asked.endpoint {
        Protocol::Chat => json!({
            "id": id, "object": "chat.completion", "created": created, "model": model,
            "choices": [{"index": 0, "message": {"role": "assistant", "content": text}, "logprobs": null,
                "finish_reason": reason}],
            "usage": usage,
        }),
        Protocol::Responses => json!({
            "id": id, "object": "response", "created_at": created, "model": model,
            "status": if reason == "length" { "incomplete" } else { "completed" },
            "incomplete_details": (reason == "length").then(|| json!({"reason": "max_output_tokens"})),
            "output": [{"type": "message", "role": "assistant", "status": "completed",
                "content": [{"type": "output_text", "text": text, "annotations": []}]}],
            "usage": {"input_tokens": prompt, "output_tokens": tokens, "total_tokens": total},
        }),
        Protocol::Completions | Protocol::Embeddings | Protocol::Http => json!({
            "id": id, "object": "text_completion", "created": created, "model": model,
            "choices": [{"index": 0, "text": text, "logprobs": null, "finish_reason": reason}],
            "usage": usage,
        }),
    };
    Bytes::from(body.to_string())
}

/// How embeddings are written.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum EmbeddingsFormat {
    /// Lists of numbers.
    Float,
    /// Little-endian 32-bit floats in base64.
    Base64,
}

/// An embeddings answer: one vector per input, `dimensions` long, of unit length and of no meaning.
pub fn embeddings(asked: &Asked, model: &str, dimensions: u32) -> Bytes {
    let dimensions = asked.dimensions.unwrap_or(dimensions).clamp(1, 4096);
    let format = if asked.base64 { EmbeddingsFormat::Base64 } else { EmbeddingsFormat::Float };
    let entry = 1.0 / f64::from(dimensions).sqrt();
    let value = match format {
        EmbeddingsFormat::Float => json!(vec![entry; dimensions as usize]),
        EmbeddingsFormat::Base64 => {
            let bytes: Vec<u8> = (entry as f32).to_le_bytes().repeat(dimensions as usize);
            json!(base64(&bytes))
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

/// `GET /v1/models` with one model. `max_model_len` in tokens.
pub fn models(model: &str, created: i64, max_model_len: Option<u32>) -> Bytes {
    let body = json!({"object": "list", "data": [{
        "id": model, "object": "model", "created": created, "owned_by": "plimsoll", "root": model,
        "max_model_len": max_model_len,
    }]});
    Bytes::from(body.to_string())
}

/// An error body in the shape of OpenAI and vLLM.
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

/// RFC 4648 base64 with padding; twenty lines against a dependency for one rarely asked format.
fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut out = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for group in bytes.chunks(3) {
        let n = group.iter().fold(0_u32, |n, b| n << 8 | u32::from(*b)) << (8 * (3 - group.len()));
        for i in 0..4 {
            let digit = DIGITS[(n >> (18 - 6 * i) & 63) as usize];
            out.push(if i <= group.len() { digit as char } else { '=' });
        }
    }
    out
}
