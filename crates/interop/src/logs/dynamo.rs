//! Parses Dynamo's request trace (`dynamo.request.trace.v1`): one `request_end` per line, and the tool calls between requests.
//!
//! `input_sequence_hashes` are of full blocks, each with its whole prefix. Dynamo writes with best effort, so the file lacks dropped requests.

use plimsoll_model::{How, LoggedRequest};

use super::{Line, hashed, tokens, word};
use crate::results::json::Json;

pub(super) fn line(at: u64, root: &Json<'_>, block_tokens: &mut u32) -> Line {
    match root.get("event_type").text() {
        Some("request_end") => {}
        Some(_) => return Line::Other(None),
        None => return Line::Unread("event_type"),
    }
    let request = root.get("request");
    let Some(ms) = request.get("request_received_ms").int() else {
        return Line::Unread("request.request_received_ms");
    };
    let mut one = LoggedRequest::new(at, ms.saturating_mul(1_000_000));
    let replay = request.get("replay");
    one.prompt = tokens(request.get("input_tokens")).or_else(|| tokens(replay.get("input_length")));
    one.output = tokens(request.get("output_tokens"));
    one.cached = request.get("cached_tokens").count();
    one.model = word(request.get("model")).map(str::to_owned);
    let agent = root.get("agent_context");
    let session = word(agent.get("trajectory_id")).or(word(agent.get("session_id")));
    one.session = session.map(hashed);
    if word(request.at(&["finish_reason_metadata", "finish_reason"])) == Some("error") {
        one.how = How::ServerError;
    }
    if let Some(size) = replay.get("trace_block_size").count().filter(|size| *size > 0) {
        if *block_tokens != 0 && *block_tokens != size {
            return Line::Unread("one trace_block_size throughout");
        }
        *block_tokens = size;
        let hashes = replay.get("input_sequence_hashes").items();
        one.blocks = hashes.iter().filter_map(whole).collect();
    }
    Line::of(one)
}

/// A hash takes all 64 bits.
fn whole(json: &Json<'_>) -> Option<u64> {
    match json {
        Json::Number(digits) => {
            digits.parse().ok().or_else(|| digits.parse::<i64>().ok().map(i64::cast_unsigned))
        }
        _ => None,
    }
}
