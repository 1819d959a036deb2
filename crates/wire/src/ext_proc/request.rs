//! Parses a `ProcessingRequest` of Envoy. Unknown fields are skipped, as protobuf demands.

use super::{NAMESPACE, SERVED, SUBSET, UPSTREAM};
use crate::protobuf::{Fields, ProtobufError, Value};

/// Limit of header lines per message, and of endpoints per subset: a gateway's own limits are below both.
const MOST_HEADERS: usize = 1_000;
const MOST_ENDPOINTS: usize = 10_000;

#[derive(Copy, Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ExtProcError {
    #[error("not a ProcessingRequest: {0}")]
    Protobuf(#[from] ProtobufError),
    /// The message has more header lines than any request.
    #[error("more than 1000 header lines")]
    Headers,
    /// The message has more endpoints than any pool.
    #[error("more than 10000 endpoints in the subset")]
    Subset,
}

/// The parts of a body that Envoy sends, and whether it waits for a reply.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub enum BodyMode {
    #[default]
    None,
    /// In chunks; Envoy waits for a reply to each.
    Streamed,
    /// The whole body, after the reply to the headers.
    Buffered,
    /// The whole body, or its beginning if it is too long.
    BufferedPartial,
    /// In chunks without waiting; the replies form the forwarded body.
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

/// The modes of both directions, from the first message of a stream.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub struct BodyModes {
    pub request: BodyMode,
    pub response: BodyMode,
}

/// Headers in their order: names in lower case, as received, and values.
pub type HeaderLines<'a> = Vec<(&'a [u8], &'a [u8])>;

#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub struct HttpPiece<'a> {
    pub body: &'a [u8],
    /// Whether the chunk is the last one, without trailers after it.
    pub is_end: bool,
}

/// The part of an HTTP exchange in a message.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum HttpMessage<'a> {
    /// Request headers; `true` if there is no body.
    RequestHeaders(HeaderLines<'a>, bool),
    RequestBody(HttpPiece<'a>),
    RequestTrailers,
    /// Response headers; `true` if there is no body.
    ResponseHeaders(HeaderLines<'a>, bool),
    ResponseBody(HttpPiece<'a>),
    ResponseTrailers,
}

#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ProcessingRequest<'a> {
    /// Content of the message; `None` if it is of an unknown kind.
    pub said: Option<HttpMessage<'a>>,
    /// Modes of the stream, if the message sets them.
    pub modes: Option<BodyModes>,
    pub only_observes: bool,
    /// Endpoints that may be chosen: `ip:port`, or an `ip` for all its ports; `None` for no restriction.
    pub subset: Option<Vec<String>>,
    /// Endpoint that served the request, `ip:port`; `None` if it is not reported.
    pub served: Option<String>,
}

impl<'a> ProcessingRequest<'a> {
    /// Parses a message.
    ///
    /// # Errors
    /// Fails with [`ExtProcError`] if the message is malformed or too large.
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
                2 => read.said = Some(headers(bytes, HttpMessage::RequestHeaders)?),
                3 => read.said = Some(headers(bytes, HttpMessage::ResponseHeaders)?),
                4 => read.said = Some(HttpMessage::RequestBody(piece(bytes)?)),
                5 => read.said = Some(HttpMessage::ResponseBody(piece(bytes)?)),
                6 => read.said = Some(HttpMessage::RequestTrailers),
                7 => read.said = Some(HttpMessage::ResponseTrailers),
                8 => read.metadata(bytes)?,
                9 => attributes = upstream(bytes)?.or(attributes),
                11 => read.modes = Some(modes(bytes)?),
                _ => {}
            }
        }
        // The field of the endpoint picker protocol takes precedence over Envoy's attribute.
        read.served = read.served.or(attributes);
        Ok(read)
    }

    /// Parses `config.core.v3.Metadata`: two entries of its `filter_metadata`, a map of structs, are for a picker.
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
    said: fn(HeaderLines<'a>, bool) -> HttpMessage<'a>,
) -> Result<HttpMessage<'a>, ExtProcError> {
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

/// Parses a `HeaderValue`: Envoy sends the value as bytes, other clients as text.
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

/// Returns the address of the serving endpoint, from an entry of `attributes`, a map of structs.
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

/// Calls back with each value of a field of messages.
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

/// Returns the key and the value of a map entry.
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

/// Returns the text of a `google.protobuf.Value`, if it is a text.
fn text(value: &[u8]) -> Result<Option<String>, ProtobufError> {
    let mut text = None;
    let mut fields = Fields::of(value);
    while let Some((field, value)) = fields.next()? {
        text = (field == 3).then(|| String::from_utf8_lossy(value.bytes()).into_owned());
    }
    Ok(text)
}

/// Returns the endpoints of a `google.protobuf.Value`.
///
/// The protocol uses a list of texts; Envoy's own filters turn a header into one text with commas.
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
