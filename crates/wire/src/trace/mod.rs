//! Parses traces of other tools: bytes of any known format to [`TraceSpan`]s, and the reverse for OTLP's protobuf.
//!
//! The bytes of a file decide its format, never its name: see [`read`]. Omitted and changed parts
//! are counted in [`Notes`], because a silent guess would hide errors. Foreign bytes never cause a panic. Lengths in them count only
//! up to the available bytes. Memory is linear in the input, because attributes of a resource are cut to 256 bytes
//! before they are copied into each span.
//!
//! Reading order:
//!
//! - [`feed`], files while their bytes arrive
//! - [`mod@otlp`] on the crate's `protobuf`: OTLP in both directions
//! - `document`: any JSON, on `scan`; `loose`: a span as an object; `attributes`
//! - `chrome` and [`nsys`] on `timeline`: slices of threads become nested spans
//! - [`export`], responses of a receiver; [`client`]: Plimsoll's attempts as spans
//! - `id` and `origin`: small helpers

pub(crate) mod attributes;
mod chrome;
pub mod client;
mod document;
pub mod export;
pub mod feed;
pub(crate) mod id;
mod looks;
mod loose;
pub mod nsys;
mod origin;
pub mod otlp;
mod scan;
mod timeline;

use plimsoll_model::TraceSpan;

use crate::protobuf::ProtobufError;

/// Attribute for the name of the instrumentation scope, by OpenTelemetry's rules for formats without scopes.
pub(crate) const SCOPE: &str = "otel.scope.name";
/// Attribute for the message of a status, by these rules.
pub(crate) const STATUS_MESSAGE: &str = "otel.status_description";

plimsoll_model::named! {
    #[derive(Copy, Clone, PartialEq, Eq, Debug)]
    pub enum TraceFormat {
        /// OTLP `ExportTraceServiceRequest`, a single one, or several with length prefixes.
        OtlpProtobuf => "OTLP protobuf",
        /// OTLP as JSON: one document, a list, or one per line.
        OtlpJson => "OTLP JSON",
        /// Download from Jaeger's API or UI.
        Jaeger => "Jaeger JSON",
        /// Trace Event Format: Chrome, Perfetto's JSON, PyTorch's profiler (Kineto).
        Chrome => "Chrome trace",
        /// Tables of Nsight Systems (`nsys export`).
        Nsys => "Nsight Systems",
    }
}

/// Counts of changed or omitted parts of traces.
#[derive(Copy, Clone, PartialEq, Eq, Default, Debug)]
pub struct Notes {
    /// Number of omitted spans without a valid trace id, span id or start.
    pub refused: u64,
    /// Number of spans without an end: they end at their start.
    pub unended: u64,
    /// Number of spans with an end before their start: they end at their start.
    pub backwards: u64,
    /// Number of events of a Chrome trace that are not spans (counters, instants, flows).
    pub unused: u64,
    /// Whether times count from the start of the session, because no wall clock was recorded.
    pub unanchored: bool,
    /// Whether the file ends in an unclosed list, which the format allows.
    pub cut_off: bool,
}

impl Notes {
    /// Adds the counts of another part.
    pub fn add(&mut self, other: Notes) {
        self.refused += other.refused;
        self.unended += other.unended;
        self.backwards += other.backwards;
        self.unused += other.unused;
        self.cut_off |= other.cut_off;
        self.unanchored |= other.unanchored;
    }
}

#[derive(Clone, PartialEq, Debug)]
pub struct ParsedTrace {
    pub format: TraceFormat,
    /// Spans in the order of the file.
    pub spans: Vec<TraceSpan>,
    /// Counts of changed or omitted parts.
    pub notes: Notes,
}

#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum TraceError {
    /// The bytes begin as JSON and are malformed.
    #[error("JSON that breaks at line {line}, column {column}: {what}")]
    Json {
        /// Line of the error, from 1.
        line: usize,
        /// Column of the error, from 1.
        column: usize,
        what: String,
    },
    #[error("not OTLP protobuf: expected {expected} at byte {at} of a message")]
    Protobuf {
        /// Offset in bytes from the beginning of the (inner) message.
        at: usize,
        expected: &'static str,
    },
    /// The JSON has fields that are not OTLP's.
    #[error("not OTLP as JSON: {what}")]
    Field {
        /// Field name, and its error.
        what: String,
    },
    #[error(
        "no traces in it: expected OTLP (protobuf or JSON), Jaeger, Chrome/Kineto JSON or an Nsight Systems export, found {found}"
    )]
    Unknown {
        /// Description of the bytes at the start.
        found: String,
    },
    /// The bytes are JSON, but not OTLP's.
    #[error("no OTLP request: expected an object with resourceSpans, found {found}")]
    NotOtlp {
        /// Description of the document that was found.
        found: String,
    },
}

impl From<ProtobufError> for TraceError {
    fn from(ProtobufError { at, expected }: ProtobufError) -> TraceError {
        TraceError::Protobuf { at, expected }
    }
}

/// Parses traces of any format, which the bytes decide. The caller must decompress a file first.
///
/// # Errors
/// Fails with [`TraceError`] if the bytes are not traces, or malformed.
pub fn read(bytes: &[u8]) -> Result<ParsedTrace, TraceError> {
    let mut spans = Vec::new();
    let (format, notes) = read_each(bytes, &mut |span| spans.push(span))?;
    Ok(ParsedTrace { format, spans, notes })
}

/// Parses traces and passes on each span. Spans of a profiler's timeline follow at its end.
///
/// # Errors
/// Fails like [`read`]; spans that were passed on before remain valid.
pub(crate) fn read_each(
    bytes: &[u8],
    each: &mut dyn FnMut(TraceSpan),
) -> Result<(TraceFormat, Notes), TraceError> {
    if otlp::looks_like(bytes) {
        return protobuf(&[bytes], each);
    }
    if let Some(messages) = with_lengths(bytes) {
        return protobuf(&messages, each);
    }
    let bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
    match bytes.iter().find(|b| !b.is_ascii_whitespace()) {
        Some(b'{' | b'[') => known(document::read(bytes, each)?),
        // It begins like OTLP: the parse error is more useful than "unknown".
        Some(_) if bytes[0] == 0x0a => {
            otlp::decode(bytes, &mut Vec::new()).map(|notes| (TraceFormat::OtlpProtobuf, notes))
        }
        Some(_) => Err(TraceError::Unknown { found: looks::like(bytes) }),
        None => Err(TraceError::Unknown { found: "nothing: it is empty".into() }),
    }
}

/// Parses OTLP's JSON (an `ExportTraceServiceRequest`) and no other format.
///
/// # Errors
/// Fails with [`TraceError`] if the bytes are not JSON, or not OTLP's.
pub fn read_otlp_json(bytes: &[u8]) -> Result<ParsedTrace, TraceError> {
    let mut spans = Vec::new();
    match known(document::read_otlp(bytes, &mut |span| spans.push(span))?) {
        Ok((TraceFormat::OtlpJson, notes)) => Ok(ParsedTrace { format: TraceFormat::OtlpJson, spans, notes }),
        Ok((format, _)) => Err(TraceError::NotOtlp { found: format.name().into() }),
        Err(TraceError::Unknown { found }) => Err(TraceError::NotOtlp { found }),
        Err(other) => Err(other),
    }
}

fn known(told: document::DocumentNotes) -> Result<(TraceFormat, Notes), TraceError> {
    match told.format {
        Some(format) => Ok((format, told.notes)),
        None => Err(TraceError::Unknown { found: told.words }),
    }
}

fn protobuf(messages: &[&[u8]], each: &mut dyn FnMut(TraceSpan)) -> Result<(TraceFormat, Notes), TraceError> {
    let mut notes = Notes::default();
    for message in messages {
        notes.add(otlp::decode_each(message, each)?);
    }
    Ok((TraceFormat::OtlpProtobuf, notes))
}

/// Splits a file with four bytes of length (big-endian) before each message, as the OpenTelemetry collector's file
/// exporter writes it. `None` if it is not such a file.
fn with_lengths(mut bytes: &[u8]) -> Option<Vec<&[u8]>> {
    let mut messages = Vec::new();
    while let Some((len, rest)) = bytes.split_first_chunk::<4>() {
        let (message, rest) = rest.split_at_checked(u32::from_be_bytes(*len) as usize)?;
        if !otlp::looks_like(message) {
            return None;
        }
        messages.push(message);
        bytes = rest;
    }
    (bytes.is_empty() && !messages.is_empty()).then_some(messages)
}

/// Returns serde_json's message without the position, which the error has as fields.
fn plain(error: &serde_json::Error) -> String {
    if error.is_eof() {
        return "it ends here in the middle: cut off, or still being written".into();
    }
    let text = error.to_string();
    text.rsplit_once(" at line ").map_or(text.clone(), |(what, _)| what.to_owned())
}

/// Returns 64 bits that distinguish files: FNV-1a over the length, the head and the tail.
fn digest(bytes: &[u8]) -> u64 {
    const PART: usize = 64 << 10;
    let head = &bytes[..bytes.len().min(PART)];
    let tail = &bytes[bytes.len().saturating_sub(PART)..];
    fnv(&[&(bytes.len() as u64).to_le_bytes(), head, tail])
}

/// Returns the FNV-1a hash, 64 bits. Source: <http://www.isthe.com/chongo/tech/comp/fnv/>.
fn fnv(parts: &[&[u8]]) -> u64 {
    let all = parts.iter().flat_map(|part| part.iter());
    all.fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}
