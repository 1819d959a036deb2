//! The endpoint picker: another proxy carries the bytes, and asks here where each request goes.
//!
//! Envoy's external processing (gRPC, one stream a request) as the Gateway API inference extension uses it. A request is read, let in, made to wait and booked by
//! the same code as one that passes here ([`proxy`](crate::proxy)); what differs is who sends it. So nothing is tried again, hedged or kept here: after the answer to a
//! request the proxy goes on alone, and what it shows of the response is counted ([`passing`](crate::passing)). However the stream ends, the load is given back.
//!
//! `call` is one call's messages both ways, `exchange` one request's course, `told` what the proxy is told.

mod call;
mod exchange;
mod told;

use std::convert::Infallible;
use std::rc::Rc;

use http::header::CONTENT_TYPE;
use http::{HeaderValue, Method, Request, Response, StatusCode};
use hyper::body::Incoming;
use plimsoll_wire::ext_proc::{PROCESS, SERVICE};
use plimsoll_wire::grpc::{self, Code, HEALTH_CHECK};

use crate::proxy::Worker;
pub use call::CallBody;
use call::{CallEnd, Inbox, Outbox};

/// What of a message is no body, bytes, beside a head: metadata and attributes.
const MORE_BYTES: usize = 1 << 20;
/// A health check's longest message, bytes.
const HEALTH_BYTES: usize = 4 << 10;
/// Who asks whether the process is alive at all, and who whether it may be asked.
const LIVENESS: &str = "liveness";
const READINESS: [&str; 3] = ["", "readiness", SERVICE];

pub async fn answer(
    worker: Rc<Worker>,
    request: Request<Incoming>,
) -> Result<Response<CallBody>, Infallible> {
    let (parts, body) = request.into_parts();
    let kind = parts.headers.get(CONTENT_TYPE).map_or(&b""[..], HeaderValue::as_bytes);
    if parts.method != Method::POST || !kind.starts_with(b"application/grpc") {
        let mut response = Response::new(CallBody::empty());
        *response.status_mut() = StatusCode::UNSUPPORTED_MEDIA_TYPE;
        return Ok(response);
    }
    let encoding = parts.headers.get("grpc-encoding").map_or(&b"identity"[..], HeaderValue::as_bytes);
    let outbox = Outbox::default();
    let body = match parts.uri.path() {
        _ if encoding != b"identity" => {
            CallBody::ended(CallEnd::new(Code::Unimplemented, "send messages that are not compressed"))
        }
        PROCESS => {
            let limits = &worker.rules.now().limits;
            let inbox = Inbox::new(body, limits.body_bytes + limits.head_bytes + MORE_BYTES);
            CallBody::new(&outbox, exchange::run(worker, inbox, outbox.clone()))
        }
        HEALTH_CHECK => {
            let inbox = Inbox::new(body, HEALTH_BYTES);
            CallBody::new(&outbox, health(worker, inbox, outbox.clone()))
        }
        other => CallBody::ended(CallEnd::new(
            Code::Unimplemented,
            format!("{other}: there are {PROCESS} and {HEALTH_CHECK}"),
        )),
    };
    let mut response = Response::new(body);
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    response.headers_mut().insert("grpc-accept-encoding", HeaderValue::from_static("identity"));
    Ok(response)
}

/// Whether requests may come: while a replica may get some, as `/readyz` says it.
async fn health(worker: Rc<Worker>, mut inbox: Inbox, outbox: Outbox) -> Result<(), CallEnd> {
    let message = inbox.next().await?.unwrap_or_default();
    let wrong = |e| CallEnd::new(Code::InvalidArgument, format!("no HealthCheckRequest: {e}"));
    let service = grpc::health_asked(&message).map_err(wrong)?;
    let serving = match service.as_str() {
        LIVENESS => true,
        of if READINESS.contains(&of) => worker.unready().is_none(),
        other => return Err(CallEnd::new(Code::NotFound, format!("{other}: there is {SERVICE}"))),
    };
    outbox.send(&grpc::health(serving)).await;
    Ok(())
}
