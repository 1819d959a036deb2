//! Rerank, score, pooling and classify, the server's half, in vLLM's formats. There is one result per document, without meaning.

use bytes::Bytes;
use plimsoll_model::Protocol;
use serde_json::{Value, json};

use super::reply::Reply;
use super::request::GenerateRequest;

/// Numbers of a pooled vector, and number of classes.
const WIDTH: usize = 2;

pub(super) fn answer(asked: &GenerateRequest, reply: &Reply<'_>) -> Bytes {
    let usage = json!({"prompt_tokens": asked.prompt_tokens, "total_tokens": asked.prompt_tokens});
    // The first is the best, as in a sorted rerank.
    let score = |index: u32| 1.0 / f64::from(index.saturating_add(1));
    let all = |of: &dyn Fn(u32) -> Value| (0..asked.inputs).map(of).collect::<Vec<Value>>();
    let (id, model) = (reply.id, reply.model);
    let body = match asked.endpoint {
        Protocol::Rerank => json!({
            "id": id, "model": model, "usage": usage,
            "results": all(&|index| json!({"index": index, "relevance_score": score(index)})),
        }),
        Protocol::Score => json!({
            "id": id, "object": "list", "created": reply.created_s, "model": model, "usage": usage,
            "data": all(&|index| json!({"index": index, "object": "score", "score": score(index)})),
        }),
        Protocol::Classify => json!({
            "id": id, "object": "list", "created": reply.created_s, "model": model, "usage": usage,
            "data": all(&|index| json!({"index": index, "label": "LABEL_0", "probs": vec![0.5; WIDTH], "num_classes": WIDTH})),
        }),
        _ => json!({
            "id": id, "object": "list", "created": reply.created_s, "model": model, "usage": usage,
            "data": all(&|index| json!({"index": index, "object": "pooling", "data": vec![0.5; WIDTH]})),
        }),
    };
    Bytes::from(body.to_string())
}
