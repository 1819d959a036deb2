//! Recognises OTLP exports by path and headers.

use http::header::{CONTENT_ENCODING, CONTENT_TYPE};
use http::{HeaderMap, Method, Request, StatusCode};
use plimsoll_wire::otlp_metrics;
use plimsoll_wire::trace::export;

use super::answer::{IntakeRefusal, PayloadEncoding};

#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Export {
    Traces,
    Metrics,
}

impl Export {
    fn path(self) -> &'static str {
        match self {
            Export::Traces => export::HTTP_TRACES,
            Export::Metrics => otlp_metrics::HTTP_PATH,
        }
    }

    fn grpc_path(self) -> &'static str {
        match self {
            Export::Metrics => otlp_metrics::GRPC_EXPORT,
            Export::Traces => export::GRPC_EXPORT,
        }
    }

    /// Returns the description of partially rejected items, for the response.
    pub fn rejects(self) -> export::Rejects {
        match self {
            Export::Traces => export::SPANS,
            Export::Metrics => export::POINTS,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Export::Traces => "traces",
            Export::Metrics => "OTLP's metrics",
        }
    }

    /// Returns the protocol of a request; Protobuf, the most common one, without a known content type.
    pub(crate) fn tongue<B>(self, request: &Request<B>) -> PayloadEncoding {
        match kind(request.headers()) {
            kind if kind.starts_with("application/grpc") => PayloadEncoding::Grpc,
            "application/json" => PayloadEncoding::Json,
            _ => PayloadEncoding::Protobuf,
        }
    }

    /// Checks that the request is such an export; returns whether it may be compressed with gzip.
    ///
    /// # Errors
    /// Fails with the reason for the rejection.
    pub fn fits<B>(self, request: &Request<B>, tongue: PayloadEncoding) -> Result<bool, IntakeRefusal> {
        let (path, headers) = (request.uri().path(), request.headers());
        if tongue == PayloadEncoding::Grpc {
            if path != self.grpc_path() {
                return Err(IntakeRefusal::Unknown(format!(
                    "{path}: plimsoll collects {} and nothing else",
                    self.name()
                )));
            }
            return match header(headers, "grpc-encoding") {
                "identity" | "" => Ok(false),
                "gzip" => Ok(true),
                other => Err(IntakeRefusal::Unknown(format!("grpc-encoding {other}: send gzip or identity"))),
            };
        }
        if path != self.path() {
            let (what, path_of_it) = (self.name(), self.path());
            return Err(IntakeRefusal::Unknown(format!("{path}: plimsoll collects {what}, at {path_of_it}")));
        }
        if request.method() != Method::POST {
            return Err(IntakeRefusal::Http(
                StatusCode::METHOD_NOT_ALLOWED,
                "wrong method; send POST".into(),
            ));
        }
        otlp(headers)
    }
}

fn otlp(headers: &HeaderMap) -> Result<bool, IntakeRefusal> {
    let kind = kind(headers);
    if !matches!(kind, "application/x-protobuf" | "application/protobuf" | "application/json") {
        return Err(wrong(format!("content type {kind:?}: send application/x-protobuf or application/json")));
    }
    match header(headers, CONTENT_ENCODING.as_str()) {
        "identity" | "" => Ok(false),
        "gzip" => Ok(true),
        other => Err(wrong(format!("content encoding {other:?}: send gzip or none"))),
    }
}

fn wrong(what: String) -> IntakeRefusal {
    IntakeRefusal::Http(StatusCode::UNSUPPORTED_MEDIA_TYPE, what)
}

fn header<'a>(headers: &'a HeaderMap, name: &str) -> &'a str {
    headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
}

/// Returns the content type without its parameters.
fn kind(headers: &HeaderMap) -> &str {
    header(headers, CONTENT_TYPE.as_str()).split(';').next().unwrap_or_default().trim()
}
