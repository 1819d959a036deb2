//! Endpoint picker: another proxy carries the bytes and queries the gateway for the replica of each request.
//!
//! The protocol is Envoy's external processing (gRPC, one stream per request), as the Gateway API inference extension
//! uses it. Reading, admission, queueing and booking share their code with [`proxy`](crate::proxy); only the transfer
//! differs. The picker therefore does not retry, hedge or cache. After the reply, the proxy continues without the picker, and
//! [`response_observer`](crate::response_observer) accounts for the part of the response that it shows. The load is released however the
//! stream ends.
//!
//! `call` contains the messages of a call, `exchange` the steps of a request, and `reply` the messages to the proxy.

mod call;
mod exchange;
mod reply;

use std::convert::Infallible;
use std::rc::Rc;

use http::header::CONTENT_TYPE;
use http::{HeaderValue, Method, Request, Response, StatusCode};
use hyper::body::Incoming;
use plimsoll_wire::ext_proc::{PROCESS, SERVICE};
use plimsoll_wire::grpc::{self, Code, HEALTH_CHECK};

use crate::proxy::Worker;
pub use call::GrpcStreamBody;
use call::{GrpcCallError, GrpcReplies, GrpcRequests};

/// Limit in bytes on the parts of a message besides head and body: metadata and attributes.
const MORE_BYTES: usize = 1 << 20;
/// Limit on a message of a health check in bytes.
const HEALTH_BYTES: usize = 4 << 10;
/// Service name of a liveness check, and the names of a readiness check.
const LIVENESS: &str = "liveness";
const READINESS: [&str; 3] = ["", "readiness", SERVICE];

pub async fn answer(
    worker: Rc<Worker>,
    request: Request<Incoming>,
) -> Result<Response<GrpcStreamBody>, Infallible> {
    let (parts, body) = request.into_parts();
    let kind = parts.headers.get(CONTENT_TYPE).map_or(&b""[..], HeaderValue::as_bytes);
    if parts.method != Method::POST || !kind.starts_with(b"application/grpc") {
        let mut response = Response::new(GrpcStreamBody::empty());
        *response.status_mut() = StatusCode::UNSUPPORTED_MEDIA_TYPE;
        return Ok(response);
    }
    let encoding = parts.headers.get("grpc-encoding").map_or(&b"identity"[..], HeaderValue::as_bytes);
    let outbox = GrpcReplies::default();
    let body = match parts.uri.path() {
        _ if encoding != b"identity" => GrpcStreamBody::ended(GrpcCallError::new(
            Code::Unimplemented,
            "send messages that are not compressed",
        )),
        PROCESS => {
            let limits = &worker.rules.now().limits;
            let inbox = GrpcRequests::new(body, limits.body_bytes + limits.head_bytes + MORE_BYTES);
            GrpcStreamBody::new(&outbox, exchange::run(worker, inbox, outbox.clone()))
        }
        HEALTH_CHECK => {
            let inbox = GrpcRequests::new(body, HEALTH_BYTES);
            GrpcStreamBody::new(&outbox, health(worker, inbox, outbox.clone()))
        }
        other => GrpcStreamBody::ended(GrpcCallError::new(
            Code::Unimplemented,
            format!("{other}: there are {PROCESS} and {HEALTH_CHECK}"),
        )),
    };
    let mut response = Response::new(body);
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    response.headers_mut().insert("grpc-accept-encoding", HeaderValue::from_static("identity"));
    Ok(response)
}

/// Answers a health check: serving while any replica can get requests, as `/readyz`.
async fn health(
    worker: Rc<Worker>,
    mut inbox: GrpcRequests,
    outbox: GrpcReplies,
) -> Result<(), GrpcCallError> {
    let message = inbox.next().await?.unwrap_or_default();
    let wrong = |e| GrpcCallError::new(Code::InvalidArgument, format!("no HealthCheckRequest: {e}"));
    let service = grpc::health_asked(&message).map_err(wrong)?;
    let serving = match service.as_str() {
        LIVENESS => true,
        of if READINESS.contains(&of) => worker.unready().is_none(),
        other => return Err(GrpcCallError::new(Code::NotFound, format!("{other}: there is {SERVICE}"))),
    };
    outbox.send(&grpc::health(serving)).await;
    Ok(())
}
