//! Encodes and decodes the responses of an OTLP receiver.
//!
//! The response decides whether a sender keeps spans:
//!
//! - `RESOURCE_EXHAUSTED` with a `RetryInfo` (over HTTP: 429 with `Retry-After`) means "retry later".
//! - An error without `RetryInfo` means "never retry".
//! - A partial success means that the receiver rejected the given number of spans and kept the rest.
//!
//! Source: OpenTelemetry Protocol Specification 1.x, "OTLP/gRPC Response", "OTLP/HTTP Response"; gRPC over HTTP/2.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;

use crate::grpc::Code;
use crate::protobuf::{Fields, ProtobufWriter};

/// Path of the only gRPC method.
pub const GRPC_EXPORT: &str = "/opentelemetry.proto.collector.trace.v1.TraceService/Export";
/// Path for senders over HTTP.
pub const HTTP_TRACES: &str = "/v1/traces";

/// The rejected items of a request: their name in JSON, and the reason.
pub type Rejects = (&'static str, &'static str);

pub const SPANS: Rejects = ("rejectedSpans", "spans without a valid trace id or span id");
pub const POINTS: Rejects =
    ("rejectedDataPoints", "points whose buckets do not add up, or that go below zero");

/// Encodes `ExportTraceServiceResponse`, or the equivalent for metrics; empty if all was accepted.
pub fn response(rejected: u64, (_, why): Rejects) -> Vec<u8> {
    let mut bytes = Vec::new();
    if rejected > 0 {
        ProtobufWriter(&mut bytes).message(1, |pen| {
            pen.number(1, rejected);
            pen.bytes(2, why.as_bytes());
        });
    }
    bytes
}

/// Parses the number of spans that a receiver rejected; 0 if the bytes are not a response.
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

/// Encodes `google.rpc.Status`, with a `RetryInfo` if a retry is allowed after `retry_s` seconds.
pub fn status(code: Code, message: &str, retry_s: Option<u64>) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut pen = ProtobufWriter(&mut bytes);
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

/// Encodes the status as JSON, without details.
pub fn status_json(code: Code, message: &str) -> Vec<u8> {
    serde_json::json!({"code": code as u8, "message": message}).to_string().into_bytes()
}

/// Returns the value of `grpc-status-details-bin`.
pub fn details(status: &[u8]) -> String {
    STANDARD_NO_PAD.encode(status)
}
