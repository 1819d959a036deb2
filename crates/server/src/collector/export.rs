//! What a sender may push, by its path and headers.

use http::header::{CONTENT_ENCODING, CONTENT_TYPE};
use http::{HeaderMap, Method, Request, StatusCode};
use plimsoll_wire::trace::export;
use plimsoll_wire::{otlp_metrics, remote_write};

use super::answer::{IntakeRefusal, Tongue};

/// One kind of it.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Export {
    /// OTLP's traces.
    Traces,
    /// The same where they stay bytes: as JSON they have none to be passed on.
    PassingTraces,
    /// OTLP's metrics.
    Metrics,
    /// Prometheus' remote write 1.0.
    RemoteWrite,
}

impl Export {
    fn path(self) -> &'static str {
        match self {
            Export::Traces | Export::PassingTraces => export::HTTP_TRACES,
            Export::Metrics => otlp_metrics::HTTP_PATH,
            Export::RemoteWrite => remote_write::PATH,
        }
    }

    fn grpc_path(self) -> &'static str {
        match self {
            Export::Metrics => otlp_metrics::GRPC_EXPORT,
            Export::Traces | Export::PassingTraces | Export::RemoteWrite => export::GRPC_EXPORT,
        }
    }

    /// What of a request can be left out, with why.
    pub fn rejects(self) -> export::Rejects {
        match self {
            Export::Traces | Export::PassingTraces | Export::RemoteWrite => export::SPANS,
            Export::Metrics => export::POINTS,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Export::Traces | Export::PassingTraces => "traces",
            Export::Metrics => "OTLP's metrics",
            Export::RemoteWrite => "Prometheus' remote write",
        }
    }

    /// How a request is spoken; where it does not say, as most do.
    pub fn tongue<B>(self, request: &Request<B>) -> Tongue {
        match (self, kind(request.headers())) {
            (Export::RemoteWrite, _) => Tongue::Plain,
            (_, kind) if kind.starts_with("application/grpc") => Tongue::Grpc,
            (_, "application/json") => Tongue::Json,
            _ => Tongue::Protobuf,
        }
    }

    /// Is it such an export? Whether gzip is (or may be) around it, else why it is refused.
    pub fn fits<B>(self, request: &Request<B>, tongue: Tongue) -> Result<bool, IntakeRefusal> {
        let (path, headers) = (request.uri().path(), request.headers());
        if tongue == Tongue::Grpc {
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
            return Err(IntakeRefusal::Http(StatusCode::METHOD_NOT_ALLOWED, "POST is wanted here".into()));
        }
        match self {
            Export::RemoteWrite => written(headers).map(|()| false),
            Export::Traces | Export::PassingTraces | Export::Metrics => otlp(headers),
        }
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

/// Is it remote write 1.0? What is not is refused for good: no sender becomes another by trying again.
fn written(headers: &HeaderMap) -> Result<(), IntakeRefusal> {
    let kind = header(headers, CONTENT_TYPE.as_str());
    if kind.contains("io.prometheus.write.v2") {
        let what = "remote write 2.0: send 1.0 (Prometheus: protobuf_message: prometheus.WriteRequest)";
        return Err(wrong(what.to_owned()));
    }
    if !matches!(self::kind(headers), "application/x-protobuf" | "") {
        return Err(wrong(format!("content type {kind:?}: send application/x-protobuf")));
    }
    let encoding = header(headers, CONTENT_ENCODING.as_str());
    if !matches!(encoding, "snappy" | "") {
        return Err(wrong(format!("content encoding {encoding:?}: send snappy")));
    }
    let version = header(headers, "x-prometheus-remote-write-version");
    match version.is_empty() || version.starts_with("0.1") {
        true => Ok(()),
        false => Err(IntakeRefusal::Malformed(format!("remote write version {version:?}: send 0.1.0"))),
    }
}

fn wrong(what: String) -> IntakeRefusal {
    IntakeRefusal::Http(StatusCode::UNSUPPORTED_MEDIA_TYPE, what)
}

fn header<'a>(headers: &'a HeaderMap, name: &str) -> &'a str {
    headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
}

/// The content type without its parameters.
fn kind(headers: &HeaderMap) -> &str {
    header(headers, CONTENT_TYPE.as_str()).split(';').next().unwrap_or_default().trim()
}
