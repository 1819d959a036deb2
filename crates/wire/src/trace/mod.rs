//! Traces of others: bytes of any known format to [`TraceSpan`]s, and OTLP's protobuf back.
//!
//! What a file is, is found in its bytes, never in its name: see [`read`]. Nothing is guessed in silence: what could not be
//! taken and what had to be changed is counted in [`Notes`]. Foreign bytes never panic, lengths in them are believed only as
//! far as there are bytes, and memory stays linear in the input: what a resource says of many spans is cut to 256 bytes
//! before it is copied into each.
//!
//! Reading order: [`feed`] (files as their bytes come), [`mod@otlp`] on the crate's `protobuf` (and back), `document` (any JSON, on `scan`) with `loose` (a span as an object) and
//! `attributes`, `chrome` on `timeline` (slices of
//! threads become nested spans), [`export`] (what
//! a receiver answers), [`client`] (our own attempts as spans), then the small things: `id`, `origin`.

pub(crate) mod attributes;
mod chrome;
pub mod client;
mod document;
pub mod export;
pub mod feed;
pub(crate) mod id;
mod looks;
mod loose;
mod origin;
pub mod otlp;
mod scan;
mod timeline;

use plimsoll_model::TraceSpan;

use crate::protobuf::ProtobufError;

/// Attribute that holds the name of the instrumentation scope, by OpenTelemetry's rules for formats without scopes.
pub(crate) const SCOPE: &str = "otel.scope.name";
/// Attribute that holds the message of a status, by the same rules.
pub(crate) const STATUS_MESSAGE: &str = "otel.status_description";

plimsoll_model::named! {
    /// A format of traces.
    #[derive(Copy, Clone, PartialEq, Eq, Debug)]
    pub enum Format {
        /// OTLP `ExportTraceServiceRequest`, one, or several with their lengths before them.
        OtlpProtobuf => "OTLP protobuf",
        /// The same as JSON: one, a list, or one a line.
        OtlpJson => "OTLP JSON",
        /// Jaeger's API or UI download.
        Jaeger => "Jaeger JSON",
        /// Trace Event Format: Chrome, Perfetto's JSON, PyTorch's profiler (Kineto).
        Chrome => "Chrome trace",
    }
}

/// What was not taken as it stood.
#[derive(Copy, Clone, PartialEq, Eq, Default, Debug)]
pub struct Notes {
    /// Spans left out: no valid trace id, span id or start.
    pub refused: u64,
    /// Spans that had no end: they end where they began.
    pub unended: u64,
    /// Spans that ended before they began: they end where they began.
    pub backwards: u64,
    /// Events of a Chrome trace that are no spans (counters, instants, flows).
    pub unused: u64,
    /// Times count from the start of the session: no wall clock was recorded.
    pub unanchored: bool,
    /// The file ends in the middle of a list that may end so.
    pub cut_off: bool,
}

impl Notes {
    /// Adds what another part said.
    pub fn add(&mut self, other: Notes) {
        self.refused += other.refused;
        self.unended += other.unended;
        self.backwards += other.backwards;
        self.unused += other.unused;
        self.cut_off |= other.cut_off;
        self.unanchored |= other.unanchored;
    }
}

/// What was read.
#[derive(Clone, PartialEq, Debug)]
pub struct Parsed {
    pub format: Format,
    /// The spans, in the order of the file.
    pub spans: Vec<TraceSpan>,
    /// What was not taken as it stood.
    pub notes: Notes,
}

/// Why bytes are no traces.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum TraceError {
    /// They begin as JSON and break.
    #[error("JSON that breaks at line {line}, column {column}: {what}")]
    Json {
        /// Counted from 1.
        line: usize,
        /// Counted from 1.
        column: usize,
        /// What the reader says of it.
        what: String,
    },
    #[error("not OTLP protobuf: expected {expected} at byte {at} of a message")]
    Protobuf {
        /// Bytes from the beginning of the (inner) message.
        at: usize,
        /// What should have been there.
        expected: &'static str,
    },
    /// They are JSON whose fields are not OTLP's.
    #[error("not OTLP as JSON: {what}")]
    Field {
        /// Which field, and what is wrong with it.
        what: String,
    },
    #[error("no traces in it: expected OTLP (protobuf or JSON), Jaeger or Chrome/Kineto JSON, found {found}")]
    Unknown {
        /// What they look like.
        found: String,
    },
    /// They are JSON, where OTLP's is wanted.
    #[error("no OTLP request: expected an object with resourceSpans, found {found}")]
    NotOtlp {
        /// What it is instead.
        found: String,
    },
}

impl From<ProtobufError> for TraceError {
    fn from(ProtobufError { at, expected }: ProtobufError) -> TraceError {
        TraceError::Protobuf { at, expected }
    }
}

/// Reads traces of any format, which the bytes tell. Not compressed: whoever has the file inflates it.
///
/// # Errors
/// [`TraceError`]: they are no traces, or break in the middle.
pub fn read(bytes: &[u8]) -> Result<Parsed, TraceError> {
    let mut spans = Vec::new();
    let (format, notes) = read_each(bytes, &mut |span| spans.push(span))?;
    Ok(Parsed { format, spans, notes })
}

/// The same, with each span handed on. Those of a profiler's timeline come at its end.
///
/// # Errors
/// As [`read`]; spans that were handed on before stay so.
pub(crate) fn read_each(
    bytes: &[u8],
    each: &mut dyn FnMut(TraceSpan),
) -> Result<(Format, Notes), TraceError> {
    if otlp::looks_like(bytes) {
        return protobuf(&[bytes], each);
    }
    if let Some(messages) = with_lengths(bytes) {
        return protobuf(&messages, each);
    }
    let bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
    match bytes.iter().find(|b| !b.is_ascii_whitespace()) {
        Some(b'{' | b'[') => known(document::read(bytes, each)?),
        // Begun like OTLP: what breaks it is more use than "unknown".
        Some(_) if bytes[0] == 0x0a => {
            otlp::decode(bytes, &mut Vec::new()).map(|notes| (Format::OtlpProtobuf, notes))
        }
        Some(_) => Err(TraceError::Unknown { found: looks::like(bytes) }),
        None => Err(TraceError::Unknown { found: "nothing: it is empty".into() }),
    }
}

/// Reads OTLP's JSON (an `ExportTraceServiceRequest`) and nothing else.
///
/// # Errors
/// [`TraceError`]: it is no JSON, or none of OTLP.
pub fn read_otlp_json(bytes: &[u8]) -> Result<Parsed, TraceError> {
    let mut spans = Vec::new();
    match known(document::read_otlp(bytes, &mut |span| spans.push(span))?) {
        Ok((Format::OtlpJson, notes)) => Ok(Parsed { format: Format::OtlpJson, spans, notes }),
        Ok((format, _)) => Err(TraceError::NotOtlp { found: format.name().into() }),
        Err(TraceError::Unknown { found }) => Err(TraceError::NotOtlp { found }),
        Err(other) => Err(other),
    }
}

fn known(told: document::DocumentNotes) -> Result<(Format, Notes), TraceError> {
    match told.format {
        Some(format) => Ok((format, told.notes)),
        None => Err(TraceError::Unknown { found: told.words }),
    }
}

fn protobuf(messages: &[&[u8]], each: &mut dyn FnMut(TraceSpan)) -> Result<(Format, Notes), TraceError> {
    let mut notes = Notes::default();
    for message in messages {
        notes.add(otlp::decode_each(message, each)?);
    }
    Ok((Format::OtlpProtobuf, notes))
}

/// The messages of a file that has four bytes of length (big-endian) before each, as the OpenTelemetry collector's file
/// exporter writes them. `None` = it is no such file.
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

/// serde_json's message without the place, which the error has fields for.
fn plain(error: &serde_json::Error) -> String {
    if error.is_eof() {
        return "it ends here in the middle: cut off, or still being written".into();
    }
    let text = error.to_string();
    text.rsplit_once(" at line ").map_or(text.clone(), |(what, _)| what.to_owned())
}

/// 64 bits that tell files apart: FNV-1a over the length, the head and the tail.
fn digest(bytes: &[u8]) -> u64 {
    const PART: usize = 64 << 10;
    let head = &bytes[..bytes.len().min(PART)];
    let tail = &bytes[bytes.len().saturating_sub(PART)..];
    fnv(&[&(bytes.len() as u64).to_le_bytes(), head, tail])
}

/// FNV-1a, 64 bits. Source: <http://www.isthe.com/chongo/tech/comp/fnv/>.
fn fnv(parts: &[&[u8]]) -> u64 {
    let all = parts.iter().flat_map(|part| part.iter());
    all.fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}
