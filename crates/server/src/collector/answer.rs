//! Builds the response to a sender, in the sender's protocol.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::header::{CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderMap, HeaderValue, Response, StatusCode};
use http_body::{Body, Frame, SizeHint};
use plimsoll_wire::grpc::{self, Code};
use plimsoll_wire::trace::export::{self, Rejects};

use super::intake::IntakeEnd;

/// Seconds after which a rejected sender may retry.
const RETRY_S: u64 = 1;

#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum PayloadEncoding {
    Grpc,
    Protobuf,
    Json,
}

/// A response body in one frame, with trailers for gRPC.
#[derive(Default)]
pub struct IntakeReply {
    data: Option<Bytes>,
    trailers: Option<HeaderMap>,
}

impl Body for IntakeReply {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if let Some(data) = self.data.take() {
            return Poll::Ready(Some(Ok(Frame::data(data))));
        }
        Poll::Ready(self.trailers.take().map(|trailers| Ok(Frame::trailers(trailers))))
    }

    fn is_end_stream(&self) -> bool {
        self.data.is_none() && self.trailers.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.data.as_ref().map_or(0, |data| data.len() as u64))
    }
}

/// The reason that a request is rejected.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum IntakeRefusal {
    /// The limit of pending bytes is reached; the sender may retry.
    Busy,
    /// The collector is stopping or its disk is full; the sender may retry elsewhere.
    Unavailable(String),
    /// The token is wrong; a retry is useless.
    Denied,
    /// The request is too large; a retry is useless.
    TooLarge,
    /// The request is malformed; a retry is useless.
    Malformed(String),
    /// The service or path does not exist.
    Unknown(String),
    /// An HTTP error with this status.
    Http(StatusCode, String),
}

/// Returns the response to a processed request.
pub fn done(tongue: PayloadEncoding, rejects: Rejects, done: IntakeEnd) -> Response<IntakeReply> {
    match done {
        IntakeEnd::Kept { rejected } => kept(tongue, rejects, rejected),
        IntakeEnd::Malformed(why) => refused(tongue, IntakeRefusal::Malformed(why)),
        IntakeEnd::TooLarge => refused(tongue, IntakeRefusal::TooLarge),
        IntakeEnd::Unkept(why) => refused(tongue, IntakeRefusal::Unavailable(why)),
    }
}

fn kept(tongue: PayloadEncoding, rejects: Rejects, rejected: u64) -> Response<IntakeReply> {
    let (kind, data, trailers) = match tongue {
        PayloadEncoding::Grpc => {
            let mut trailers = HeaderMap::new();
            trailers.insert("grpc-status", HeaderValue::from_static("0"));
            let data = grpc::framed(&export::response(rejected, rejects));
            ("application/grpc", data, Some(trailers))
        }
        PayloadEncoding::Protobuf => ("application/x-protobuf", export::response(rejected, rejects), None),
        PayloadEncoding::Json => ("application/json", export::response_json(rejected, rejects), None),
    };
    let mut response = Response::new(IntakeReply { data: Some(data.into()), trailers });
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}

/// Returns the response to a rejected request.
pub fn refused(tongue: PayloadEncoding, why: IntakeRefusal) -> Response<IntakeReply> {
    let (code, status, message, retry) = match why {
        IntakeRefusal::Busy => {
            let message = "too many requests in flight; retry in one second".to_owned();
            (Code::ResourceExhausted, StatusCode::TOO_MANY_REQUESTS, message, Some(RETRY_S))
        }
        IntakeRefusal::Denied => {
            let message = "the bearer token is missing or wrong".to_owned();
            (Code::Unauthenticated, StatusCode::UNAUTHORIZED, message, None)
        }
        IntakeRefusal::Unavailable(why) => {
            (Code::Unavailable, StatusCode::SERVICE_UNAVAILABLE, why, Some(RETRY_S))
        }
        IntakeRefusal::TooLarge => {
            let message = "the request is larger than allowed; send smaller batches".to_owned();
            (Code::ResourceExhausted, StatusCode::PAYLOAD_TOO_LARGE, message, None)
        }
        IntakeRefusal::Malformed(why) => (Code::InvalidArgument, StatusCode::BAD_REQUEST, why, None),
        IntakeRefusal::Unknown(why) => (Code::Unimplemented, StatusCode::NOT_FOUND, why, None),
        IntakeRefusal::Http(status, why) => (Code::InvalidArgument, status, why, None),
    };
    if tongue == PayloadEncoding::Grpc {
        in_grpc(code, &message, retry)
    } else {
        plain(tongue, code, status, &message, retry)
    }
}

/// Returns a gRPC error. It consists of headers only, and its HTTP status is 200.
fn in_grpc(code: Code, message: &str, retry_s: Option<u64>) -> Response<IntakeReply> {
    let mut response = Response::new(IntakeReply::default());
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    headers.insert("grpc-status", HeaderValue::from(code as u16));
    let mut put = |name: &'static str, value: String| {
        if let Ok(value) = HeaderValue::from_str(&value) {
            headers.insert(name, value);
        }
    };
    put("grpc-message", grpc::message(message));
    put("grpc-status-details-bin", export::details(&export::status(code, message, retry_s)));
    response
}

fn plain(
    tongue: PayloadEncoding,
    code: Code,
    status: StatusCode,
    message: &str,
    retry_s: Option<u64>,
) -> Response<IntakeReply> {
    let (kind, data) = match tongue {
        PayloadEncoding::Json => ("application/json", export::status_json(code, message)),
        _ => ("application/x-protobuf", export::status(code, message, retry_s)),
    };
    let mut response = Response::new(IntakeReply { data: Some(data.into()), trailers: None });
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    if let Some(seconds) = retry_s {
        response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(seconds));
    }
    response
}
