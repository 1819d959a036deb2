//! The gateway's own responses, with errors in OpenAI's format, because clients can already parse it.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::header::{CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderValue, Response, StatusCode};
use http_body::{Body, Frame, SizeHint};
use http_body_util::Full;
use plimsoll_model::{Protocol, Span};
use plimsoll_policy::Refusal;

use crate::cache::flight::ResponseReader;
use crate::relay::Relay;
use crate::stats::RequestEnd;

pub enum ReplyBody {
    /// Bytes of the gateway, or of a buffered response.
    Own(Full<Bytes>),
    /// A replica's response that is forwarded as it arrives.
    Relayed(Box<Relay>),
    /// A response shared with other requests, or cached.
    Shared(ResponseReader),
}

impl ReplyBody {
    /// Returns whether the finished response was successful.
    pub(crate) fn is_success(&self) -> bool {
        match self {
            // A buffered response of a replica is a failure that no other replica improved.
            ReplyBody::Own(_) => false,
            ReplyBody::Shared(_) => true,
            ReplyBody::Relayed(relay) => relay.is_success(),
        }
    }

    /// Returns whether the finished response is complete.
    pub(crate) fn is_complete(&self) -> bool {
        match self {
            ReplyBody::Own(_) | ReplyBody::Shared(_) => true,
            ReplyBody::Relayed(relay) => relay.is_complete(),
        }
    }
}

/// Returns a JSON response of the gateway.
pub fn json(body: String) -> Response<ReplyBody> {
    let mut response = Response::new(ReplyBody::Own(Full::new(Bytes::from(body))));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// The error that ends an incomplete response.
pub type RelayError = Box<dyn std::error::Error + Send + Sync>;

impl Body for ReplyBody {
    type Data = Bytes;
    type Error = RelayError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, RelayError>>> {
        match self.get_mut() {
            ReplyBody::Own(body) => Pin::new(body).poll_frame(cx).map_err(|never| match never {}),
            ReplyBody::Relayed(relay) => relay.poll(cx),
            ReplyBody::Shared(reader) => reader.poll(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            ReplyBody::Own(body) => body.is_end_stream(),
            ReplyBody::Relayed(relay) => relay.is_end(),
            ReplyBody::Shared(reader) => reader.is_end(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            ReplyBody::Own(body) => body.size_hint(),
            ReplyBody::Relayed(relay) => relay.size_hint(),
            ReplyBody::Shared(_) => SizeHint::default(),
        }
    }
}

/// Returns an error response. `code` is machine-readable; `retry_s` sets `Retry-After`.
pub fn error(status: StatusCode, code: &str, message: &str, retry_s: Option<u64>) -> Response<ReplyBody> {
    let mut response = json(error_body(status, code, message));
    *response.status_mut() = status;
    if let Some(seconds) = retry_s {
        response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(seconds));
    }
    response
}

/// Returns the response to a rejected request, and its outcome.
pub fn refused(refusal: Refusal) -> (Response<ReplyBody>, RequestEnd) {
    let seconds = |span: Span| Some(span.as_secs_f64().ceil() as u64);
    let (status, code, why, after, end) = match refusal {
        Refusal::Late(after) => (
            StatusCode::TOO_MANY_REQUESTS,
            "would_be_late",
            "The queue is too long: the first token would come after this request's time limit. Retry later.",
            seconds(after),
            RequestEnd::Overloaded,
        ),
        Refusal::Full(after) => (
            StatusCode::TOO_MANY_REQUESTS,
            "queue_full",
            "The queue is full. Retry later.",
            seconds(after),
            RequestEnd::Overloaded,
        ),
        Refusal::HeldBack(after) => (
            StatusCode::TOO_MANY_REQUESTS,
            "held_back",
            "The budget is broken, so requests of this class are rejected. Retry later.",
            seconds(after),
            RequestEnd::HeldBack,
        ),
        Refusal::Expired => (
            StatusCode::GATEWAY_TIMEOUT,
            "queue_timeout",
            "The request's time ran out while it waited for a replica.",
            None,
            RequestEnd::Expired,
        ),
        Refusal::NoReplica => (
            StatusCode::SERVICE_UNAVAILABLE,
            "no_replica",
            "No replica answers.",
            Some(1),
            RequestEnd::NoReplica,
        ),
    };
    (error(status, code, why, after), end)
}

pub fn error_body(status: StatusCode, code: &str, message: &str) -> String {
    let kind = match status.as_u16() {
        429 => "rate_limit_error",
        400..=499 => "invalid_request_error",
        _ => "server_error",
    };
    let body = serde_json::json!({
        "error": {"message": message, "type": kind, "param": null, "code": code}
    });
    body.to_string()
}

/// Returns the end of a broken stream: an error event that clients of this protocol raise. It starts with an end of
/// event, because the break may be inside an event.
pub(crate) fn broken_stream(protocol: Protocol) -> &'static [u8] {
    match protocol {
        // Clients of this protocol skip events without a name.
        Protocol::Messages => BROKEN_MESSAGE,
        Protocol::OllamaChat | Protocol::OllamaGenerate => BROKEN_LINES,
        _ => BROKEN_STREAM,
    }
}

const BROKEN_MESSAGE: &[u8] = b"\n\nevent: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"api_error\",\"message\":\"The replica's stream broke before its end; the answer is incomplete.\"}}\n\n";

const BROKEN_LINES: &[u8] =
    b"\n{\"error\":\"The replica's stream broke before its end; the answer is incomplete.\"}\n";

const BROKEN_STREAM: &[u8] = b"\n\ndata: {\"error\":{\"message\":\"The replica's stream broke before its end; the answer is incomplete.\",\"type\":\"server_error\",\"param\":null,\"code\":\"stream_broken\"}}\n\n";
