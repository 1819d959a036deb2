//! What a proxy is told: where a request goes, what of it is another on the way there, or what its client is answered instead.

use bytes::Bytes;
use http::header::{AUTHORIZATION, CONNECTION, CONTENT_ENCODING, CONTENT_LENGTH};
use http::{HeaderMap, HeaderName, HeaderValue, Response, Uri};
use http_body_util::BodyExt;
use plimsoll_wire::ext_proc::response::{go_on, immediate};
use plimsoll_wire::ext_proc::{Answers, BodyChange, ENDPOINT, HeaderLines, Mutation};

use super::call::Outbox;
use crate::doors;
use crate::pool::Booked;
use crate::proxy::{Call, EXPLAIN, REQUEST_ID};
use crate::replica::Replica;
use crate::reply::Out;

/// Bytes of a body that go back at a time: some proxies refuse more than 64 KiB of them.
const PIECE: usize = 60 << 10;

/// What Envoy's access log says of an answer that no replica gave (`%RESPONSE_CODE_DETAILS%`).
const DETAILS: &str = "plimsoll_picker";

/// Headers as they came, less those that are no fields (`:path`). `None` = a name or a value is none.
pub fn headers(lines: &HeaderLines<'_>) -> Option<HeaderMap> {
    let mut headers = HeaderMap::with_capacity(lines.len());
    for (name, value) in lines.iter().filter(|(name, _)| !name.starts_with(b":")) {
        let value = HeaderValue::from_bytes(value).ok()?;
        headers.append(HeaderName::from_bytes(name).ok()?, value);
    }
    Some(headers)
}

/// One of those that are no fields.
pub fn pseudo<'a>(lines: &HeaderLines<'a>, name: &str) -> Option<&'a [u8]> {
    lines.iter().find(|(of, _)| *of == name.as_bytes()).map(|(_, value)| *value)
}

/// Where a request goes: the replica that it is booked on, and behind it those that may have it instead.
pub fn endpoints<'a>(booked: &'a Booked, further: impl Iterator<Item = &'a Replica>) -> String {
    let each = std::iter::once(&**booked.replica()).chain(further);
    let each: Vec<String> = each.filter_map(|one| Some(one.place.endpoint()?.to_string())).collect();
    each.join(",")
}

/// What of a request's headers is another for its replica. `path`, `body`: where they are others.
pub(crate) fn for_replica(
    call: &Call,
    booked: &Booked,
    endpoints: &str,
    (path, body): (Option<&Uri>, Option<&Bytes>),
) -> Mutation {
    let mut told = Mutation::default();
    told.set(ENDPOINT, endpoints.as_bytes());
    if let Some(id) = call.message.headers.get(REQUEST_ID) {
        told.set(REQUEST_ID.as_str(), id.as_bytes());
    }
    told.remove.push(EXPLAIN.as_str().to_owned());
    if call.toll.is_some() && !call.rules.forward_keys {
        told.remove.extend(doors::IN.iter().map(|name| name.as_str().to_owned()));
    }
    if let Some(bearer) = call.rules.bearer(&booked.replica().name) {
        told.remove.retain(|name| name != AUTHORIZATION.as_str());
        told.set(AUTHORIZATION.as_str(), bearer.as_bytes());
    }
    let mut traced = HeaderMap::new();
    call.context.iter().for_each(|context| context.write(0, &mut traced));
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

/// These headers, set.
pub fn set(headers: &HeaderMap) -> Mutation {
    let mut told = Mutation::default();
    headers.iter().for_each(|(name, value)| told.set(name.as_str(), value.as_bytes()));
    told
}

/// An answer of the gateway's own, for the client.
pub async fn instead(response: Response<Out>) -> Vec<u8> {
    let (parts, body) = response.into_parts();
    // It is of one piece, and there.
    let body = body.collect().await.map(|body| body.to_bytes()).unwrap_or_default();
    let mut headers = parts.headers;
    // What it says of a connection is of none here.
    headers.remove(CONNECTION);
    immediate(parts.status.as_u16(), &set(&headers), &body, DETAILS)
}

/// Sends a body back in a full-duplex stream; `is_end`: nothing comes behind it.
pub async fn back(outbox: &Outbox, to: Answers, body: &[u8], is_end: bool) {
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
