//! Parses JSON access logs of the Envoy AI gateway and of nginx.
//!
//! Users choose the field names. The parser accepts the names of the documentation (Envoy) and of nginx's variables. Tokens may be
//! numbers, texts or null. nginx stamps the *end* of a request and has only bytes. `$upstream_status` "502, 200" is one request that
//! was sent twice.

use plimsoll_model::{How, LoggedRequest};
use plimsoll_wire::instant::decimal_ns;
use plimsoll_wire::instant::iso_ns;

use super::{Line, generates, hashed, of_status, tokens, word};
use crate::results::json::Json;

/// Returns whether the line is in the combined format:
/// `… [23/Nov/2026:03:43:43 +0000] "POST /v1/chat/completions HTTP/1.1" 200 …`
pub(super) fn is_combined(line: &str) -> bool {
    let stamp = line.split_once('[').and_then(|(_, rest)| rest.split_once(']')).map(|(stamp, _)| stamp);
    stamp.is_some_and(|stamp| stamp.len() >= 20 && stamp.matches('/').count() == 2) && line.contains("HTTP/")
}

pub(super) fn envoy(at: u64, root: &Json<'_>) -> Line {
    let Some(came) = root.get("start_time").text().and_then(iso_ns) else {
        return Line::Unread("start_time, such as 2025-08-30T16:51:37.894Z");
    };
    let said = |name: &str| root.get(&format!("gen_ai.{name}"));
    let model = word(said("request.model"));
    let paths = ["x-envoy-origin-path", ":path", "path"];
    let path = paths.iter().find_map(|name| word(root.get(name)));
    if !path.map_or(model.is_some(), generates) {
        return Line::Other(Some("no request for tokens (another path, or an MCP call)"));
    }
    let mut one = LoggedRequest::new(at, came);
    one.prompt = tokens(said("usage.input_tokens"));
    one.output = tokens(said("usage.output_tokens"));
    let cached =
        ["usage.cached_input_tokens", "usage.cache_read.input_tokens", "usage.cache_read_input_tokens"];
    one.cached = cached.iter().find_map(|name| said(name).finite()).map(|n| n as u32);
    one.session = word(root.get("session.id")).or(word(said("conversation.id"))).map(hashed);
    one.model = model.map(str::to_owned);
    one.how = of_status(root.get("response_code").finite().map(|code| code as u32));
    if root.get("response_flags").text().is_some_and(|flags| flags.split(',').any(|flag| flag == "DC")) {
        one.how = How::Cancelled;
    }
    Line::of(one)
}

pub(super) fn nginx(at: u64, root: &Json<'_>) -> Line {
    let names = ["ts", "msec", "time_msec", "timestamp", "time", "time_iso8601", "@timestamp"];
    let end = names.iter().find_map(|name| instant(root.get(name)));
    let took = instant_s(root.get("request_time"));
    let (Some(end), Some(took)) = (end, took) else {
        return Line::Unread("the time of the end ($msec, as ts or msec) and request_time");
    };
    let request = word(root.get("request")).and_then(|line| line.split(' ').nth(1));
    let path = word(root.get("uri")).or(word(root.get("request_uri"))).or(word(root.get("path"))).or(request);
    if !path.is_some_and(generates) {
        return Line::Other(Some("another path than one that generates tokens"));
    }
    let mut one = LoggedRequest::new(at, end.saturating_sub(took));
    one.how = of_status(root.get("status").finite().map(|code| code as u32));
    let tries = root.get("upstream_status").text().map_or(1, |all| all.split(',').count());
    one.tries = tries as u32;
    Line::of(one)
}

/// Parses seconds of the Unix epoch, as a number or a text, or an ISO date.
fn instant(json: &Json<'_>) -> Option<i64> {
    instant_s(json).filter(|ns| *ns > 1_000_000_000_000_000_000).or_else(|| json.text().and_then(iso_ns))
}

fn instant_s(json: &Json<'_>) -> Option<i64> {
    json.seconds_ns().or_else(|| json.text().and_then(|text| decimal_ns(text.trim()))).filter(|ns| *ns >= 0)
}
