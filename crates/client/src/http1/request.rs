//! Builds a request as the bytes to send.
//!
//! The part that all requests of a level share is built once ([`RequestOpening`]). Each request copies it and appends its lengths
//! and its name. A header map was rejected, because every request would copy, fill and serialise it.

use std::fmt;
use std::io::{IoSlice, Write as _};
use std::sync::Arc;

use bytes::Bytes;
use http::header::{CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, HOST};
use http::{HeaderMap, HeaderName, HeaderValue, Method};
use plimsoll_model::MediaCounts;
use plimsoll_wire::kserve::HEADER_LENGTH;
use plimsoll_wire::kserve::grpc::CONTENT_TYPE as CALL_TYPE;

use crate::auth::secret::Key;
use crate::http1::header_template::{HeaderTemplate, RequestNames};
use crate::target::{EncodedBody, REQUEST_ID};

/// Request number and attempt number, which identify an attempt within a level.
pub type AttemptKey = (u64, u16);

/// The content of a request, ready to send.
#[derive(Clone, Debug)]
pub struct PreparedRequest {
    pub body: EncodedBody,
    /// Keyed hashes of the prompt's blocks.
    pub blocks: Vec<u64>,
    /// Images and audio of the prompt.
    pub media: MediaCounts,
}

/// Largest body in bytes that is appended to its head. One `send` is faster than `writev` of two buffers, and TLS needs one
/// record.
const JOIN_MAX: usize = 4096;

/// Bytes reserved for the lines that a request appends to its opening.
const OWN: usize = 192;

/// The shared start of similar requests: the request line and the constant headers.
#[derive(Clone)]
pub struct RequestOpening {
    bytes: Vec<u8>,
    own: Vec<HeaderTemplate>,
    key: Option<KeyHeaders>,
    /// Head for HTTP/2; `None` over HTTP/1.1.
    http2: Option<Arc<http::Request<()>>>,
}

/// The headers with the key, whose value is read for each request.
#[derive(Clone, Debug)]
pub(crate) struct KeyHeaders {
    pub key: Key,
    /// Set to send the key as `Authorization: Bearer`.
    pub bearer: bool,
    /// Header whose whole value is the key; `None` = no such header.
    pub bare: Option<HeaderName>,
}

impl KeyHeaders {
    fn write(&self, head: &mut Vec<u8>) {
        let key = self.key.get();
        let mut line = |parts: [&[u8]; 3]| {
            parts.iter().for_each(|part| head.extend_from_slice(part));
            head.extend_from_slice(b"\r\n");
        };
        if self.bearer {
            line([b"authorization: Bearer ", key.text().as_bytes(), b""]);
        }
        if let Some(name) = &self.bare {
            line([name.as_str().as_bytes(), b": ", key.text().as_bytes()]);
        }
    }
}

impl fmt::Debug for RequestOpening {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Omits the bytes, because they may contain a key.
        write!(f, "Opening({} bytes)", self.bytes.len())
    }
}

impl RequestOpening {
    /// Returns an opening of `method path` with these headers, without the headers that each request sets.
    pub fn new(method: &str, path: &http::Uri, headers: &HeaderMap) -> RequestOpening {
        let mut bytes = format!("{method} {path} HTTP/1.1\r\n").into_bytes();
        for (name, value) in headers {
            if ![CONTENT_LENGTH, CONTENT_TYPE, REQUEST_ID].contains(name) {
                bytes.extend_from_slice(name.as_str().as_bytes());
                bytes.extend_from_slice(b": ");
                bytes.extend_from_slice(value.as_bytes());
                bytes.extend_from_slice(b"\r\n");
            }
        }
        RequestOpening { bytes, own: Vec::new(), key: None, http2: None }
    }

    /// Adds the HTTP/2 head: `method uri` with these headers, except those specific to HTTP/1.1.
    #[must_use]
    pub(crate) fn over_http2(self, method: Method, uri: http::Uri, headers: &HeaderMap) -> RequestOpening {
        let mut request = http::Request::new(());
        (*request.method_mut(), *request.uri_mut(), *request.headers_mut()) = (method, uri, headers.clone());
        // The URI contains the host in HTTP/2.
        for name in [HOST, CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, REQUEST_ID] {
            request.headers_mut().remove(name);
        }
        RequestOpening { http2: Some(Arc::new(request)), ..self }
    }

    /// Adds the headers with the key.
    #[must_use]
    pub(crate) fn with_key(self, key: Option<&KeyHeaders>) -> RequestOpening {
        RequestOpening { key: key.cloned(), ..self }
    }

    /// Adds headers that each request fills.
    #[must_use]
    pub(crate) fn with_own(self, own: &[HeaderTemplate]) -> RequestOpening {
        RequestOpening { own: own.to_vec(), ..self }
    }

    /// Returns a request without a body.
    pub fn bare(&self) -> RequestWriter {
        if let Some(opening) = &self.http2 {
            let mut lines = Vec::new();
            self.key.iter().for_each(|key| key.write(&mut lines));
            return RequestWriter::from((filled(opening, &lines), Bytes::new()));
        }
        let mut head = self.bytes.clone();
        self.key.iter().for_each(|key| key.write(&mut head));
        head.extend_from_slice(b"\r\n");
        RequestWriter { head, body: Bytes::new(), written: 0, http2: None }
    }

    /// Returns a request with this body and these names. `close` marks the last request on its connection.
    pub fn with(&self, body: &EncodedBody, names: RequestNames<'_>, close: bool) -> RequestWriter {
        if let Some(opening) = &self.http2 {
            return RequestWriter::from((self.stream(opening, body, names), body.bytes.clone()));
        }
        let length = body.bytes.len();
        let joins = length <= JOIN_MAX;
        let mut head = Vec::with_capacity(self.bytes.len() + OWN + if joins { length } else { 0 });
        head.extend_from_slice(&self.bytes);
        // Writing to a vector can't fail.
        let _ = write!(
            head,
            "content-type: {}\r\ncontent-length: {length}\r\nx-request-id: {}\r\n",
            body.content_type, names.attempt
        );
        self.key.iter().for_each(|key| key.write(&mut head));
        self.own.iter().for_each(|own| own.write(&mut head, names));
        if let Some(json) = body.header_length {
            let _ = write!(head, "{HEADER_LENGTH}: {json}\r\n");
        }
        if close {
            head.extend_from_slice(b"connection: close\r\n");
        }
        head.extend_from_slice(b"\r\n");
        if joins {
            head.extend_from_slice(&body.bytes);
        }
        RequestWriter {
            head,
            body: if joins { Bytes::new() } else { body.bytes.clone() },
            written: 0,
            http2: None,
        }
    }

    /// Returns the head of a request over HTTP/2.
    fn stream(
        &self,
        opening: &http::Request<()>,
        body: &EncodedBody,
        names: RequestNames<'_>,
    ) -> http::Request<()> {
        let mut lines = Vec::with_capacity(OWN);
        // Writing to a vector can't fail.
        let _ = write!(lines, "content-type: {}\r\nx-request-id: {}\r\n", body.content_type, names.attempt);
        self.key.iter().for_each(|key| key.write(&mut lines));
        self.own.iter().for_each(|own| own.write(&mut lines, names));
        if let Some(json) = body.header_length {
            let _ = write!(lines, "{HEADER_LENGTH}: {json}\r\n");
        }
        // The frame of a gRPC message contains its length.
        if body.content_type != CALL_TYPE {
            let _ = write!(lines, "content-length: {}\r\n", body.bytes.len());
        }
        filled(opening, &lines)
    }
}

/// Returns `opening` with the headers of these HTTP/1.1 lines, so that one place writes each header.
fn filled(opening: &http::Request<()>, lines: &[u8]) -> http::Request<()> {
    let mut request = opening.clone();
    for line in lines.split(|byte| *byte == b'\n') {
        let Some(at) = line.iter().position(|byte| *byte == b':') else { continue };
        let (name, value) = (&line[..at], line[at + 1..].trim_ascii());
        if let (Ok(name), Ok(mut value)) = (HeaderName::from_bytes(name), HeaderValue::from_bytes(value)) {
            // Values that change per request would waste the connection's header table, and a key must not enter it.
            value.set_sensitive(true);
            request.headers_mut().append(name, value);
        }
    }
    request
}

/// A request and the position up to which it is written.
pub struct RequestWriter {
    /// Head, with a small body appended.
    head: Vec<u8>,
    body: Bytes,
    written: usize,
    /// Head for HTTP/2. Boxed, because it is large and most requests have none.
    http2: Option<Box<http::Request<()>>>,
}

impl From<(http::Request<()>, Bytes)> for RequestWriter {
    fn from((head, body): (http::Request<()>, Bytes)) -> RequestWriter {
        RequestWriter { head: Vec::new(), body, written: 0, http2: Some(Box::new(head)) }
    }
}

impl fmt::Debug for RequestWriter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Request({} of {} bytes written)", self.written, self.head.len() + self.body.len())
    }
}

impl RequestWriter {
    /// Returns head and body for HTTP/2; `None` if the request is for HTTP/1.1.
    pub(crate) fn into_http2(self) -> Option<(http::Request<()>, Bytes)> {
        Some((*self.http2?, self.body))
    }

    pub fn rest(&self) -> [IoSlice<'_>; 2] {
        let head = self.written.min(self.head.len());
        [IoSlice::new(&self.head[head..]), IoSlice::new(&self.body[self.written - head..])]
    }

    /// Advances the position by `n` written bytes.
    pub fn wrote(&mut self, n: usize) {
        self.written = (self.written + n).min(self.head.len() + self.body.len());
    }

    pub fn is_written(&self) -> bool {
        self.written == self.head.len() + self.body.len()
    }
}
