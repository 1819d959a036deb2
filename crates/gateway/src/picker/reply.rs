//! Messages to the proxy: the chosen replica, changes of the request, or an immediate response to the client.

use bytes::Bytes;
use http::header::{AUTHORIZATION, CONNECTION, CONTENT_ENCODING, CONTENT_LENGTH};
use http::{HeaderMap, HeaderName, HeaderValue, Response, Uri};
use http_body_util::BodyExt;
use plimsoll_wire::ext_proc::response::{go_on, immediate};
use plimsoll_wire::ext_proc::{Answers, BodyChange, ENDPOINT, HeaderLines, Mutation};

use super::call::GrpcReplies;
use crate::auth;
use crate::pool::ReplicaLease;
use crate::proxy::{EXPLAIN, REQUEST_ID, RequestContext};
use crate::replica::Replica;
use crate::reply::ReplyBody;

/// Limit on the bytes of a body per message, because some proxies reject more than 64 KiB.
const PIECE: usize = 60 << 10;

/// Text in Envoy's access log for responses without a replica (`%RESPONSE_CODE_DETAILS%`).
const DETAILS: &str = "plimsoll_picker";

/// Returns the headers without pseudo-headers (`:path`), or `None` if a name or value is invalid.
pub fn headers(lines: &HeaderLines<'_>) -> Option<HeaderMap> {
    let mut headers = HeaderMap::with_capacity(lines.len());
    for (name, value) in lines.iter().filter(|(name, _)| !name.starts_with(b":")) {
        let value = HeaderValue::from_bytes(value).ok()?;
        headers.append(HeaderName::from_bytes(name).ok()?, value);
    }
    Some(headers)
}

/// Returns the value of a pseudo-header such as `:path`.
pub fn pseudo<'a>(lines: &HeaderLines<'a>, name: &str) -> Option<&'a [u8]> {
    lines.iter().find(|(of, _)| *of == name.as_bytes()).map(|(_, value)| *value)
}

/// Returns the addresses of the booked replica and of its fallbacks, separated by commas.
pub fn endpoints<'a>(booked: &'a ReplicaLease, further: impl Iterator<Item = &'a Replica>) -> String {
    let each = std::iter::once(&**booked.replica()).chain(further);
    let each: Vec<String> = each.filter_map(|one| Some(one.place.endpoint()?.to_string())).collect();
    each.join(",")
}

/// Returns the header changes for a replica. `path` and `body` are `None` if unchanged.
pub(crate) fn for_replica(
    context: &RequestContext,
    booked: &ReplicaLease,
    endpoints: &str,
    (path, body): (Option<&Uri>, Option<&Bytes>),
) -> Mutation {
    let mut told = Mutation::default();
    told.set(ENDPOINT, endpoints.as_bytes());
    if let Some(id) = context.request.headers.get(REQUEST_ID) {
        told.set(REQUEST_ID.as_str(), id.as_bytes());
    }
    told.remove.push(EXPLAIN.as_str().to_owned());
    if context.charge.is_some() && !context.rules.forward_keys {
        told.remove.extend(auth::IN.iter().map(|name| name.as_str().to_owned()));
    }
    if let Some(bearer) = context.rules.bearer(&booked.replica().name) {
        told.remove.retain(|name| name != AUTHORIZATION.as_str());
        told.set(AUTHORIZATION.as_str(), bearer.as_bytes());
    }
    let mut traced = HeaderMap::new();
    context.trace.iter().for_each(|trace| trace.write(0, &mut traced));
    traced.iter().for_each(|(name, value)| told.set(name.as_str(), value.as_bytes()));
    if let Some(path) = path {
        told.set(":path", path.to_string().as_bytes());
    }
    if let Some(body) = body {
        told.remove.push(CONTENT_ENCODING.as_str().to_owned());
        told.set(CONTENT_LENGTH.as_str(), body.len().to_string().as_bytes());
    }
    told
}

/// Returns a mutation that sets these headers.
pub fn set(headers: &HeaderMap) -> Mutation {
    let mut told = Mutation::default();
    headers.iter().for_each(|(name, value)| told.set(name.as_str(), value.as_bytes()));
    told
}

/// Returns an immediate response of the gateway to the client.
pub async fn instead(response: Response<ReplyBody>) -> Vec<u8> {
    let (parts, body) = response.into_parts();
    // The body is already complete in memory.
    let body = body.collect().await.map(|body| body.to_bytes()).unwrap_or_default();
    let mut headers = parts.headers;
    // Connection headers do not apply to the client's connection.
    headers.remove(CONNECTION);
    immediate(parts.status.as_u16(), &set(&headers), &body, DETAILS)
}

/// Returns a body to the proxy in a full-duplex stream. `is_end` is set if nothing follows.
pub async fn back(outbox: &GrpcReplies, to: Answers, body: &[u8], is_end: bool) {
    let mut left = body;
    loop {
        let (piece, rest) = left.split_at(left.len().min(PIECE));
        let change = BodyChange::Stream(piece, is_end && rest.is_empty());
        outbox.send(&go_on(to, &Mutation::default(), change, None)).await;
        if rest.is_empty() {
            return;
        }
        left = rest;
    }
}
