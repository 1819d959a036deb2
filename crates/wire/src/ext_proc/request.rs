//! A `ProcessingRequest`: bytes → what Envoy says. What is not known is passed over, as protobuf demands.

use super::{NAMESPACE, SERVED, SUBSET, UPSTREAM};
use crate::protobuf::{Fields, ProtobufError, Value};

/// Header lines of one message, and endpoints of a subset, that are read at most: a gateway's own bounds are below both.
const MOST_HEADERS: usize = 1_000;
const MOST_ENDPOINTS: usize = 10_000;

/// Why a message is none.
#[derive(Copy, Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ExtProcError {
    #[error("not a ProcessingRequest: {0}")]
    Protobuf(#[from] ProtobufError),
    /// It has more header lines than any request.
    #[error("more than 1000 header lines")]
    Headers,
    /// It names more endpoints than any pool has.
    #[error("more than 10000 endpoints in the subset")]
    Subset,
}

/// How much of a body Envoy sends, and whether it waits for an answer.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub enum BodyMode {
    #[default]
    None,
    /// In pieces, each of which waits for its answer.
    Streamed,
    /// All at once, after the answer to the headers.
    Buffered,
    /// The same, or its beginning where it is too long.
    BufferedPartial,
    /// In pieces that wait for nothing; what goes on is what comes back.
    FullDuplex,
    /// gRPC messages, or a mode of a later version.
    Other,
}

impl BodyMode {
    fn of(number: u64) -> BodyMode {
        match number {
            0 => BodyMode::None,
            1 => BodyMode::Streamed,
            2 => BodyMode::Buffered,
            3 => BodyMode::BufferedPartial,
            4 => BodyMode::FullDuplex,
            _ => BodyMode::Other,
        }
    }
}

/// The modes of both directions, which come with the first message of a stream.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub struct BodyModes {
    pub request: BodyMode,
    pub response: BodyMode,
}

/// Headers in their order: names as they come, in lower case, and values.
pub type HeaderLines<'a> = Vec<(&'a [u8], &'a [u8])>;

#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub struct HttpPiece<'a> {
    pub body: &'a [u8],
    /// Is it the last one, with no trailers behind it?
    pub is_end: bool,
}

/// What of an HTTP exchange a message tells.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Said<'a> {
    /// The request's headers; `true` = it has no body.
    RequestHeaders(HeaderLines<'a>, bool),
    RequestBody(HttpPiece<'a>),
    RequestTrailers,
    /// The response's headers; `true` = it has no body.
    ResponseHeaders(HeaderLines<'a>, bool),
    ResponseBody(HttpPiece<'a>),
    ResponseTrailers,
}

/// A message.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ProcessingRequest<'a> {
    /// What it tells; `None` = nothing that is known.
    pub said: Option<Said<'a>>,
    /// The stream's modes, where it says them.
    pub modes: Option<BodyModes>,
    pub only_observes: bool,
    /// The endpoints that may be chosen, where that is bounded: `ip:port`, or an `ip` for all its ports.
    pub subset: Option<Vec<String>>,
    /// Who served the request, `ip:port`, where that is said.
    pub served: Option<String>,
}

impl<'a> ProcessingRequest<'a> {
    /// Reads a message.
    ///
    /// # Errors
    /// [`ExtProcError`].
    pub fn read(message: &'a [u8]) -> Result<ProcessingRequest<'a>, ExtProcError> {
        let mut read = ProcessingRequest::default();
        let mut attributes = None;
        let mut fields = Fields::of(message);
        while let Some((field, value)) = fields.next()? {
            let Value::Bytes(bytes) = value else {
                if field == 10 {
                    read.only_observes = value.number() != 0;
                }
                continue;
            };
            match field {
                2 => read.said = Some(headers(bytes, Said::RequestHeaders)?),
                3 => read.said = Some(headers(bytes, Said::ResponseHeaders)?),
                4 => read.said = Some(Said::RequestBody(piece(bytes)?)),
                5 => read.said = Some(Said::ResponseBody(piece(bytes)?)),
                6 => read.said = Some(Said::RequestTrailers),
                7 => read.said = Some(Said::ResponseTrailers),
                8 => read.metadata(bytes)?,
                9 => attributes = upstream(bytes)?.or(attributes),
                11 => read.modes = Some(modes(bytes)?),
                _ => {}
            }
        }
        // What the endpoint picker protocol has for it goes before what Envoy alone says.
        read.served = read.served.or(attributes);
        Ok(read)
    }

    /// `config.core.v3.Metadata`: of its `filter_metadata`, a map of structs, the two entries that are for a picker.
    fn metadata(&mut self, bytes: &'a [u8]) -> Result<(), ExtProcError> {
        each(bytes, 1, |entry| {
            let (namespace, fields) = entry_of(entry)?;
            each(fields, 1, |field| {
                let (key, value) = entry_of(field)?;
                if (namespace, key) == (SUBSET.0.as_bytes(), SUBSET.1.as_bytes()) {
                    self.subset = Some(endpoints(value)?);
                } else if (namespace, key) == (NAMESPACE.as_bytes(), SERVED.as_bytes()) {
                    self.served = text(value)?.or(self.served.take());
                }
                Ok(())
            })
        })
    }
}

fn headers<'a>(
    bytes: &'a [u8],
    said: fn(HeaderLines<'a>, bool) -> Said<'a>,
) -> Result<Said<'a>, ExtProcError> {
    let (mut lines, mut is_end) = (Vec::new(), false);
    let mut fields = Fields::of(bytes);
    while let Some((field, value)) = fields.next()? {
        match field {
            1 => each(value.bytes(), 1, |line| {
                if lines.len() == MOST_HEADERS {
                    return Err(ExtProcError::Headers);
                }
                lines.push(header(line)?);
                Ok(())
            })?,
            3 => is_end = value.number() != 0,
            _ => {}
        }
    }
    Ok(said(lines, is_end))
}

/// `HeaderValue`: Envoy has the value as bytes, others have it as text.
fn header(bytes: &[u8]) -> Result<(&[u8], &[u8]), ProtobufError> {
    let (mut key, mut text, mut raw): (&[u8], &[u8], &[u8]) = (&[], &[], &[]);
    let mut fields = Fields::of(bytes);
    while let Some((field, value)) = fields.next()? {
        match field {
            1 => key = value.bytes(),
            2 => text = value.bytes(),
            3 => raw = value.bytes(),
            _ => {}
        }
    }
    Ok((key, if raw.is_empty() { text } else { raw }))
}

fn piece(bytes: &[u8]) -> Result<HttpPiece<'_>, ProtobufError> {
    let mut piece = HttpPiece::default();
    let mut fields = Fields::of(bytes);
    while let Some((field, value)) = fields.next()? {
        match field {
            1 => piece.body = value.bytes(),
            2 => piece.is_end = value.number() != 0,
            _ => {}
        }
    }
    Ok(piece)
}

fn modes(bytes: &[u8]) -> Result<BodyModes, ProtobufError> {
    let mut modes = BodyModes::default();
    let mut fields = Fields::of(bytes);
    while let Some((field, value)) = fields.next()? {
        match field {
            1 => modes.request = BodyMode::of(value.number()),
            2 => modes.response = BodyMode::of(value.number()),
            _ => {}
        }
    }
    Ok(modes)
}

/// The address of who served it, in an entry of `attributes`, a map of structs.
fn upstream(entry: &[u8]) -> Result<Option<String>, ExtProcError> {
    let mut found = None;
    let (_, fields) = entry_of(entry)?;
    each(fields, 1, |field| {
        let (key, value) = entry_of(field)?;
        if key == UPSTREAM.as_bytes() {
            found = text(value)?;
        }
        Ok(())
    })?;
    Ok(found)
}

/// Calls back with each value of a field that holds messages.
fn each<'a>(
    bytes: &'a [u8],
    field: u32,
    mut call: impl FnMut(&'a [u8]) -> Result<(), ExtProcError>,
) -> Result<(), ExtProcError> {
    let mut fields = Fields::of(bytes);
    while let Some((found, value)) = fields.next()? {
        if let (true, Value::Bytes(bytes)) = (found == field, value) {
            call(bytes)?;
        }
    }
    Ok(())
}

/// Key and value of an entry of a map.
fn entry_of(bytes: &[u8]) -> Result<(&[u8], &[u8]), ProtobufError> {
    let (mut key, mut held): (&[u8], &[u8]) = (&[], &[]);
    let mut fields = Fields::of(bytes);
    while let Some((field, value)) = fields.next()? {
        match field {
            1 => key = value.bytes(),
            2 => held = value.bytes(),
            _ => {}
        }
    }
    Ok((key, held))
}

/// The text of a `google.protobuf.Value` that is one.
fn text(value: &[u8]) -> Result<Option<String>, ProtobufError> {
    let mut text = None;
    let mut fields = Fields::of(value);
    while let Some((field, value)) = fields.next()? {
        text = (field == 3).then(|| String::from_utf8_lossy(value.bytes()).into_owned());
    }
    Ok(text)
}

/// The endpoints of a `google.protobuf.Value`: a list of texts, as the protocol has it, or one text with commas, as Envoy's own filters make it of a header.
fn endpoints(value: &[u8]) -> Result<Vec<String>, ExtProcError> {
    let mut all = Vec::new();
    let mut add = |said: Option<String>| {
        let said = said.unwrap_or_default();
        let each = said.split(',').map(str::trim).filter(|one| !one.is_empty());
        all.extend(each.take(MOST_ENDPOINTS + 1).map(str::to_owned));
        if all.len() > MOST_ENDPOINTS { Err(ExtProcError::Subset) } else { Ok(()) }
    };
    add(text(value)?)?;
    each(value, 6, |list| each(list, 1, |one| add(text(one)?)))?;
    Ok(all)
}
