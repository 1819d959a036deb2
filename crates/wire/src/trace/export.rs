//! The answers of an OTLP receiver: bytes both ways.
//!
//! What is said to a sender decides whether spans are lost: `RESOURCE_EXHAUSTED` with a `RetryInfo` (over HTTP: 429 with
//! `Retry-After`) means "later", an error without one means "never", and a partial success "the rest is kept, these were wrong".
//! Source: OpenTelemetry Protocol Specification 1.x, "OTLP/gRPC Response", "OTLP/HTTP Response"; gRPC over HTTP/2.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;

use crate::grpc::Code;
use crate::protobuf::{Fields, Pen};

/// The path of gRPC's one method.
pub const GRPC_EXPORT: &str = "/opentelemetry.proto.collector.trace.v1.TraceService/Export";
/// The path over HTTP.
pub const HTTP_TRACES: &str = "/v1/traces";

/// What of a request was left out: its name in JSON, and why.
pub type Rejects = (&'static str, &'static str);

pub const SPANS: Rejects = ("rejectedSpans", "spans without a valid trace id or span id");
pub const POINTS: Rejects =
    ("rejectedDataPoints", "points whose buckets do not add up, or that go below zero");

/// `ExportTraceServiceResponse`, or that of metrics, which is the same but for names: empty where all was taken.
pub fn response(rejected: u64, (_, why): Rejects) -> Vec<u8> {
    let mut bytes = Vec::new();
    if rejected > 0 {
        Pen(&mut bytes).message(1, |pen| {
            pen.number(1, rejected);
            pen.bytes(2, why.as_bytes());
        });
    }
    bytes
}

/// How many spans a receiver says that it left out; 0 of what is no such answer, because then it says nothing of them.
pub fn rejected(response: &[u8]) -> u64 {
    let mut rejected = 0;
    let mut fields = Fields::of(response);
    while let Ok(Some((field, value))) = fields.next() {
        let mut inner = Fields::of(if field == 1 { value.bytes() } else { &[] });
        while let Ok(Some((field, value))) = inner.next() {
            if field == 1 {
                rejected = value.number();
            }
        }
    }
    rejected
}

pub fn response_json(rejected: u64, (name, why): Rejects) -> Vec<u8> {
    if rejected == 0 {
        return b"{}".to_vec();
    }
    // Protobuf's JSON writes 64-bit numbers as texts.
    let partial = serde_json::json!({name: rejected.to_string(), "errorMessage": why});
    serde_json::json!({ "partialSuccess": partial }).to_string().into_bytes()
}

/// `google.rpc.Status`, with a `RetryInfo` where it may be tried again after so many seconds.
pub fn status(code: Code, message: &str, retry_s: Option<u64>) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut pen = Pen(&mut bytes);
    pen.number(1, code as u64);
    pen.bytes(2, message.as_bytes());
    if let Some(seconds) = retry_s {
        pen.message(3, |pen| {
            pen.bytes(1, b"type.googleapis.com/google.rpc.RetryInfo");
            pen.message(2, |pen| pen.message(1, |pen| pen.number(1, seconds)));
        });
    }
    bytes
}

/// The same as JSON, without details.
pub fn status_json(code: Code, message: &str) -> Vec<u8> {
    serde_json::json!({"code": code as u8, "message": message}).to_string().into_bytes()
}

/// The value of `grpc-status-details-bin`.
pub fn details(status: &[u8]) -> String {
    STANDARD_NO_PAD.encode(status)
}
