//! Parses LiteLLM's `standard_logging_object`, which a callback writes at the end of a request.
//!
//! Times are float seconds. A failure has no tokens: its lengths are unknown, not zero. `trace_id` is the client's session if it named one,
//! otherwise LiteLLM's id of this call.

use plimsoll_model::{How, LoggedRequest};
use plimsoll_wire::instant::iso_ns;

use super::{Line, hashed, of_status, tokens, word};
use crate::results::json::Json;

/// Calls that generate: `acompletion`, `text_completion`, `aresponses`, `anthropic_messages`, `agenerate_content`.
const GENERATES: [&str; 4] = ["completion", "responses", "messages", "generate"];

pub(super) fn line(at: u64, root: &Json<'_>) -> Line {
    let start = root.get("startTime");
    let Some(came) = start.seconds_ns().or_else(|| start.text().and_then(iso_ns)) else {
        return Line::Unread("startTime, in seconds");
    };
    let call = root.get("call_type").text().unwrap_or_default();
    if !GENERATES.iter().any(|known| call.contains(known)) {
        return Line::Other(Some("a call that generates nothing"));
    }
    if root.get("cache_hit") == &Json::Flag(true) {
        return Line::Other(Some("answered from LiteLLM's own cache, so that no server got it"));
    }
    let mut one = LoggedRequest::new(at, came);
    one.prompt = tokens(root.get("prompt_tokens"));
    one.output = tokens(root.get("completion_tokens"));
    let usage = root.at(&["metadata", "usage_object"]);
    let cached = usage.at(&["prompt_tokens_details", "cached_tokens"]).count();
    one.cached = cached.or_else(|| usage.get("cache_read_input_tokens").count());
    let own = [root.get("id"), root.get("litellm_call_id")];
    let session = word(root.get("trace_id")).filter(|trace| !own.iter().any(|id| id.text() == Some(*trace)));
    one.session = session.map(hashed);
    one.model = word(root.get("model_group")).or(word(root.get("model"))).map(str::to_owned);
    if root.get("status").text() == Some("failure") {
        let code = root.at(&["error_information", "error_code"]).finite();
        one.how = match code {
            Some(code) if code >= 400.0 => of_status(Some(code as u32)),
            _ => How::ServerError,
        };
    }
    Line::of(one)
}
