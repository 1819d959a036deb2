//! Parses server-sent events from bytes in pieces of any size.
//!
//! The parser follows the event-stream grammar of the WHATWG HTML standard, section 9.2.6:
//!
//! - CR, LF and CRLF end lines.
//! - LF joins several `data` lines.
//! - One space after the colon is dropped.
//! - A byte-order mark at the start is skipped.
//! - A blank line dispatches an event.
//!
//! Two rules are Plimsoll's. Comments are reported, because a keep-alive is received data. A stray line that starts with `{` or `<`
//! is reported too. Otherwise a proxy's bare JSON or HTML error under an event-stream header would be an empty stream.
//!
//! An event in one piece of input is returned as a slice of it; only an event across two reads is copied. A
//! regular expression or a codec over `BytesMut` was rejected: it is shorter, but copies every event.

use memchr::memchr2;

/// Longest line, in bytes: a picture in an answer takes some megabytes. A longer line is treated as an attack or a bug.
pub const LINE_MAX: usize = 8 << 20;

/// Longest event: all its `data` lines together, in bytes.
pub const EVENT_MAX: usize = 2 * LINE_MAX;

/// A parsed item of the input.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum SseItem<'a> {
    Event {
        /// Value of the `event` field; empty without one.
        name: &'a [u8],
        /// Data of its `data` lines, joined by LF.
        data: &'a [u8],
    },
    /// A comment, usually a keep-alive.
    Comment,
    /// A line that is not a field and starts like bare JSON or HTML.
    Stray(&'a [u8]),
}

/// Error of a line or an event over its limit.
#[derive(Copy, Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "a line of more than {LINE_MAX} bytes or an event of more than {EVENT_MAX}, which is Plimsoll's limit"
)]
pub struct TooLong;

#[derive(Copy, Clone, PartialEq, Eq, Debug)]
enum Framing {
    Events,
    Lines,
}

/// The parser's state between two pieces of input: at most one unfinished line and one unfinished event.
#[derive(Clone, Debug)]
pub struct Parser {
    framing: Framing,
    held: Vec<u8>,
    data: Vec<u8>,
    /// Whether the unfinished event has a data line.
    has_data: bool,
    name: Vec<u8>,
    /// Whether the last byte was a CR that ended a line: an LF right after it belongs to it.
    after_cr: bool,
    /// Whether the first line is complete, after which there can be no byte-order mark.
    begun: bool,
}

impl Default for Parser {
    fn default() -> Parser {
        Parser::new()
    }
}

impl Parser {
    pub fn new() -> Parser {
        Parser {
            framing: Framing::Events,
            held: Vec::new(),
            data: Vec::new(),
            has_data: false,
            name: Vec::new(),
            after_cr: false,
            begun: false,
        }
    }

    /// Creates a parser of newline-delimited JSON: every non-empty line is the data of an event without a name.
    pub fn lines() -> Parser {
        Parser { framing: Framing::Lines, ..Parser::new() }
    }

    /// Parses the next bytes and passes every completed item to `sink`, in order.
    ///
    /// The cost is linear in the bytes for pieces of any size. After [`TooLong`] the parser is unusable.
    pub fn feed(&mut self, bytes: &[u8], sink: &mut impl FnMut(SseItem<'_>)) -> Result<(), TooLong> {
        let mut rest = bytes;
        if self.after_cr && !rest.is_empty() {
            self.after_cr = false;
            rest = rest.strip_prefix(b"\n").unwrap_or(rest);
        }
        while !rest.is_empty() {
            let Some(end) = memchr2(b'\n', b'\r', rest) else {
                return self.hold(rest);
            };
            let line = &rest[..end];
            rest = self.past_terminator(&rest[end..]);
            if !self.held.is_empty() {
                self.hold(line)?;
                let whole = std::mem::take(&mut self.held);
                let result = self.line(&whole, sink);
                self.held = whole;
                self.held.clear();
                result?;
                continue;
            }
            if line.len() > LINE_MAX {
                return Err(TooLong);
            }
            // The common case: a single data line with its blank line in one piece, which needs no copy.
            if self.begun
                && matches!(rest.first(), Some(b'\n' | b'\r'))
                && !self.has_data
                && self.name.is_empty()
                && self.framing == Framing::Events
                && let Some(value) = line.strip_prefix(b"data:")
            {
                rest = self.past_terminator(rest);
                sink(SseItem::Event { name: b"", data: value.strip_prefix(b" ").unwrap_or(value) });
                continue;
            }
            self.line(line, sink)?;
        }
        Ok(())
    }

    /// Returns whether there is an unfinished line or event.
    pub fn is_pending(&self) -> bool {
        !self.held.is_empty() || self.has_data
    }

    /// Returns the number of buffered bytes.
    pub fn held(&self) -> usize {
        self.held.len() + self.data.len() + self.name.len()
    }

    /// Drops one line terminator from the front of `bytes`, which must start with one.
    fn past_terminator<'a>(&mut self, bytes: &'a [u8]) -> &'a [u8] {
        match bytes {
            [b'\r', b'\n', rest @ ..] => rest,
            [b'\r'] => {
                self.after_cr = true;
                &[]
            }
            [_, rest @ ..] => rest,
            [] => &[],
        }
    }

    fn hold(&mut self, bytes: &[u8]) -> Result<(), TooLong> {
        if self.held.len() + bytes.len() > LINE_MAX {
            return Err(TooLong);
        }
        self.held.extend_from_slice(bytes);
        Ok(())
    }

    /// Parses one complete line, without its terminator.
    fn line(&mut self, line: &[u8], sink: &mut impl FnMut(SseItem<'_>)) -> Result<(), TooLong> {
        let line = if self.begun { line } else { line.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(line) };
        self.begun = true;
        if self.framing == Framing::Lines {
            if !line.trim_ascii().is_empty() {
                sink(SseItem::Event { name: b"", data: line });
            }
            return Ok(());
        }
        if line.is_empty() {
            if self.has_data {
                sink(SseItem::Event { name: &self.name, data: &self.data });
            }
            self.data.clear();
            self.name.clear();
            self.has_data = false;
            return Ok(());
        }
        let (field, value) = match memchr::memchr(b':', line) {
            Some(colon) => (&line[..colon], &line[colon + 1..]),
            None => (line, &[][..]),
        };
        let value = value.strip_prefix(b" ").unwrap_or(value);
        match field {
            b"" => sink(SseItem::Comment),
            b"data" => {
                if self.data.len() + value.len() + 1 > EVENT_MAX {
                    return Err(TooLong);
                }
                if self.has_data {
                    self.data.push(b'\n');
                }
                self.has_data = true;
                self.data.extend_from_slice(value);
            }
            b"event" => {
                self.name.clear();
                self.name.extend_from_slice(value);
            }
            _ if matches!(line[0], b'{' | b'<') => sink(SseItem::Stray(line)),
            _ => {}
        }
        Ok(())
    }
}
