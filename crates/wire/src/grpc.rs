//! gRPC over HTTP/2: the frame around each message, the status of a call, and the health service for probes.
//!
//! Source: gRPC over HTTP/2 (`doc/PROTOCOL-HTTP2.md` of grpc/grpc); gRPC Health Checking Protocol (`grpc.health.v1`).

use bytes::{Buf, Bytes, BytesMut};
use percent_encoding::percent_decode_str;
use plimsoll_model::Outcome;
use plimsoll_model::outcome::{By, How};

use crate::head::bounded;
use crate::protobuf::{Fields, ProtobufError, ProtobufWriter};

/// Status codes of calls, from `google.rpc.Code`.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Code {
    Ok = 0,
    /// The request is malformed; a retry can't succeed.
    InvalidArgument = 3,
    /// The deadline passed before the response.
    DeadlineExceeded = 4,
    NotFound = 5,
    /// A limit is reached; with a wait time, a retry can succeed.
    ResourceExhausted = 8,
    /// The caller's configuration does not match.
    FailedPrecondition = 9,
    Unimplemented = 12,
    Internal = 13,
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

/// Longest kept message of a status, in bytes.
const MESSAGE_MAX: usize = 512;

/// The status of a call, as the server reports it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct CallStatus {
    /// Code of `grpc-status`.
    pub code: u32,
    /// Decoded text of `grpc-message`.
    pub message: String,
}

impl CallStatus {
    /// Parses `grpc-status`. An invalid number is `UNKNOWN`, as in gRPC's own clients.
    pub(crate) fn read(value: &str) -> CallStatus {
        CallStatus { code: value.trim().parse().unwrap_or(2), message: String::new() }
    }

    /// Decodes the value of `grpc-message`.
    pub(crate) fn message(value: &str) -> String {
        bounded(&percent_decode_str(&bounded(value, 4 * MESSAGE_MAX)).decode_utf8_lossy(), MESSAGE_MAX)
    }

    /// Returns the text for users: `UNAVAILABLE: no more room`.
    pub fn text(&self) -> String {
        let name =
            NAMES.get(self.code as usize).map_or_else(|| format!("status {}", self.code), |n| (*n).into());
        if self.message.is_empty() { name } else { format!("{name}: {}", self.message) }
    }

    /// Returns the outcome of the attempt; `None` if the status is OK. Retryable are the codes of gRPC's own retry guide, and the equivalents of HTTP 5xx.
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

/// Encodes the value of `grpc-message`: bytes other than printable ASCII are percent-encoded.
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

/// Bytes before each message: a compression flag, and the length.
pub(crate) const HEAD: usize = 5;

/// Returns the only message of a unary gRPC request, and whether it is compressed. `None` if the frame is malformed.
pub fn unframed(body: &[u8]) -> Option<(&[u8], bool)> {
    let (head, message) = body.split_first_chunk::<HEAD>()?;
    let len = u32::from_be_bytes([head[1], head[2], head[3], head[4]]) as usize;
    (head[0] <= 1 && message.len() == len).then_some((message, head[0] == 1))
}

/// Returns an uncompressed message in gRPC's frame.
pub fn framed(message: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(message.len() + HEAD);
    bytes.push(0);
    bytes.extend_from_slice(&(message.len() as u32).to_be_bytes());
    bytes.extend_from_slice(message);
    bytes
}

/// Errors of the frames of a call.
#[derive(Copy, Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum FrameError {
    /// The message is compressed, although no encoding was offered.
    #[error("a compressed message, where grpc-accept-encoding is identity")]
    Compressed,
    #[error("a message of {0} bytes, which is more than allowed")]
    TooLarge(u32),
    /// The first byte of the frame is invalid.
    #[error("no gRPC frame: it begins with {0}")]
    Broken(u8),
}

/// Splits the bytes of a call into its messages, for pieces of any size.
#[derive(Debug)]
pub struct CallMessages {
    bytes: BytesMut,
    most: usize,
}

impl CallMessages {
    /// Creates an empty buffer. `most`: largest message in bytes.
    pub fn new(most: usize) -> CallMessages {
        CallMessages { bytes: BytesMut::new(), most }
    }

    /// Appends bytes. If all messages are taken between two calls, the buffer is bounded by the largest message and one piece.
    pub fn push(&mut self, data: &[u8]) {
        self.bytes.extend_from_slice(data);
    }

    /// Returns the next complete message; `None` if more bytes are needed.
    ///
    /// # Errors
    /// Fails with [`FrameError`]; no further message follows. The length is checked before its bytes are buffered.
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

    /// Returns whether no part of an incomplete message is buffered.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }
}

pub const HEALTH_CHECK: &str = "/grpc.health.v1.Health/Check";

/// Parses the service of a `HealthCheckRequest`; empty for the whole server.
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

/// Encodes a `HealthCheckResponse`.
pub fn health(serving: bool) -> Vec<u8> {
    let mut bytes = Vec::new();
    ProtobufWriter(&mut bytes).number(1, if serving { 1 } else { 2 });
    bytes
}
