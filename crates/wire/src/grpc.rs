//! gRPC over HTTP/2: the frame around each message, how a call ends, and the health service that probes ask.
//!
//! Source: gRPC over HTTP/2 (`doc/PROTOCOL-HTTP2.md` of grpc/grpc); gRPC Health Checking Protocol (`grpc.health.v1`).

use bytes::{Buf, Bytes, BytesMut};
use percent_encoding::percent_decode_str;
use plimsoll_model::Outcome;
use plimsoll_model::outcome::{By, How};

use crate::head::bounded;
use crate::protobuf::{Fields, Pen, ProtobufError};

/// Codes of `google.rpc.Code` by which calls end.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Code {
    Ok = 0,
    /// It breaks: never again.
    InvalidArgument = 3,
    /// What was to come did not in time.
    DeadlineExceeded = 4,
    NotFound = 5,
    /// Too much: with a time, later; without, never.
    ResourceExhausted = 8,
    /// Not as the caller is set up.
    FailedPrecondition = 9,
    Unimplemented = 12,
    Internal = 13,
    /// Can't be kept now.
    Unavailable = 14,
    Unauthenticated = 16,
}

/// The names of all codes, by number.
const NAMES: [&str; 17] = [
    "OK",
    "CANCELLED",
    "UNKNOWN",
    "INVALID_ARGUMENT",
    "DEADLINE_EXCEEDED",
    "NOT_FOUND",
    "ALREADY_EXISTS",
    "PERMISSION_DENIED",
    "RESOURCE_EXHAUSTED",
    "FAILED_PRECONDITION",
    "ABORTED",
    "OUT_OF_RANGE",
    "UNIMPLEMENTED",
    "INTERNAL",
    "UNAVAILABLE",
    "DATA_LOSS",
    "UNAUTHENTICATED",
];

/// Longest message of a status that is kept, in bytes.
const MESSAGE_MAX: usize = 512;

/// How a server says that a call ended.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct CallStatus {
    /// `grpc-status`.
    pub code: u32,
    /// `grpc-message`, decoded.
    pub message: String,
}

impl CallStatus {
    /// Reads `grpc-status`. What is no number is `UNKNOWN`, as in gRPC's own clients.
    pub(crate) fn read(value: &str) -> CallStatus {
        CallStatus { code: value.trim().parse().unwrap_or(2), message: String::new() }
    }

    /// Reads `grpc-message`.
    pub(crate) fn message(value: &str) -> String {
        bounded(&percent_decode_str(&bounded(value, 4 * MESSAGE_MAX)).decode_utf8_lossy(), MESSAGE_MAX)
    }

    /// For people: `UNAVAILABLE: no more room`.
    pub fn text(&self) -> String {
        let name =
            NAMES.get(self.code as usize).map_or_else(|| format!("status {}", self.code), |n| (*n).into());
        if self.message.is_empty() { name } else { format!("{name}: {}", self.message) }
    }

    /// How the attempt ended; `None` where the status is OK. Retryable is what gRPC's own retry guide names, and what HTTP calls a 5xx.
    pub fn outcome(&self) -> Option<Outcome> {
        let (how, retryable) = match self.code {
            0 => return None,
            8 | 14 => (How::Shed, true),
            4 => (How::Timeout, true),
            10 => (How::ClientError, true),
            3 | 5 | 6 | 7 | 9 | 11 | 12 | 16 => (How::ClientError, false),
            _ => (How::ServerError, true),
        };
        Some(Outcome::new(how, By::Server, retryable))
    }
}

/// The value of `grpc-message`: what is not printable ASCII is percent-encoded.
pub fn message(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b' '..=b'~' if byte != b'%' => encoded.push(byte as char),
            _ => encoded.push_str(&format!("%{byte:02X}")),
        }
    }
    encoded
}

/// Bytes before each message: whether it is compressed, and its length.
pub(crate) const HEAD: usize = 5;

/// The one message of a unary gRPC request, and whether it is compressed. `None` = the frame breaks.
pub fn unframed(body: &[u8]) -> Option<(&[u8], bool)> {
    let (head, message) = body.split_first_chunk::<HEAD>()?;
    let len = u32::from_be_bytes([head[1], head[2], head[3], head[4]]) as usize;
    (head[0] <= 1 && message.len() == len).then_some((message, head[0] == 1))
}

/// A message in gRPC's frame, not compressed.
pub fn framed(message: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(message.len() + HEAD);
    bytes.push(0);
    bytes.extend_from_slice(&(message.len() as u32).to_be_bytes());
    bytes.extend_from_slice(message);
    bytes
}

/// Why the bytes of a call hold no further message.
#[derive(Copy, Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum FrameError {
    /// It is compressed, which nobody offered.
    #[error("a compressed message, where grpc-accept-encoding is identity")]
    Compressed,
    #[error("a message of {0} bytes, which is more than allowed")]
    TooLarge(u32),
    /// Its first byte is none of a frame's.
    #[error("no gRPC frame: it begins with {0}")]
    Broken(u8),
}

/// Cuts the bytes of a call into its messages, in whatever pieces they come.
#[derive(Debug)]
pub struct CallMessages {
    bytes: BytesMut,
    most: usize,
}

impl CallMessages {
    /// None yet. `most`: bytes that a message may have.
    pub fn new(most: usize) -> CallMessages {
        CallMessages { bytes: BytesMut::new(), most }
    }

    /// More bytes came. What is kept is bounded by the largest message and one piece, as long as all messages are taken between two pieces.
    pub fn push(&mut self, data: &[u8]) {
        self.bytes.extend_from_slice(data);
    }

    /// The next whole message; `None` = more has to come.
    ///
    /// # Errors
    /// There will be none: see [`FrameError`]. The length is looked at before its bytes are waited for.
    pub fn take(&mut self) -> Result<Option<Bytes>, FrameError> {
        let Some((head, rest)) = self.bytes.split_first_chunk::<HEAD>() else { return Ok(None) };
        let len = u32::from_be_bytes([head[1], head[2], head[3], head[4]]);
        match head[0] {
            0 => {}
            1 => return Err(FrameError::Compressed),
            other => return Err(FrameError::Broken(other)),
        }
        if len as usize > self.most {
            return Err(FrameError::TooLarge(len));
        }
        if rest.len() < len as usize {
            return Ok(None);
        }
        self.bytes.advance(HEAD);
        Ok(Some(self.bytes.split_to(len as usize).freeze()))
    }

    /// Is nothing left of a message that is not whole?
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }
}

/// The path of the health service's question.
pub const HEALTH_CHECK: &str = "/grpc.health.v1.Health/Check";

/// The service that a `HealthCheckRequest` asks after; empty = the server.
pub fn health_asked(message: &[u8]) -> Result<String, ProtobufError> {
    let mut service = String::new();
    let mut fields = Fields::of(message);
    while let Some((field, value)) = fields.next()? {
        if field == 1 {
            service = String::from_utf8_lossy(value.bytes()).into_owned();
        }
    }
    Ok(service)
}

/// A `HealthCheckResponse`.
pub fn health(serving: bool) -> Vec<u8> {
    let mut bytes = Vec::new();
    Pen(&mut bytes).number(1, if serving { 1 } else { 2 });
    bytes
}
