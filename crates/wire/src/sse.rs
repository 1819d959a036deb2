//! Server-sent events, cut out of bytes that arrive in any pieces.
//!
//! Follows the event-stream grammar of the WHATWG HTML standard, section 9.2.6: CR, LF and CRLF end lines, several
//! `data` lines are joined by LF, one space after the colon is dropped, a byte-order mark at the start is skipped, an
//! event is dispatched by its blank line. Two things are ours: comments are reported, because a keep-alive is something
//! that arrived, and a stray line that starts with `{` or `<` is reported, because a proxy's bare JSON or HTML error
//! under an event-stream header would else look like an empty stream.
//!
//! An event that lies in one piece of input is handed out as a slice of it; only what straddles two reads is copied. A
//! regular expression or a codec over `BytesMut` would be shorter and copy every event.

use memchr::memchr2;

/// Longest line, in bytes: a picture in an answer takes some megabytes. What is longer is taken for an attack or a bug.
pub const LINE_MAX: usize = 8 << 20;

/// Longest event: all its `data` lines together, in bytes.
pub const EVENT_MAX: usize = 2 * LINE_MAX;

/// What a stretch of input held.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Item<'a> {
    Event {
        /// Its `event` field; empty where there is none.
        name: &'a [u8],
        /// Its `data` lines, joined by LF.
        data: &'a [u8],
    },
    /// A comment line: a keep-alive.
    Comment,
    /// A line that is no field and looks like bare JSON or HTML.
    Stray(&'a [u8]),
}

/// A line or an event passed its bound.
#[derive(Copy, Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "a line of more than {LINE_MAX} bytes or an event of more than {EVENT_MAX}, which is Plimsoll's limit"
)]
pub struct TooLong;

/// How the input is cut.
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
    /// Data of the unfinished event.
    data: Vec<u8>,
    /// Has the unfinished event a data line?
    has_data: bool,
    /// Name of the unfinished event.
    name: Vec<u8>,
    /// The last byte seen was a CR that ended a line: an LF right after it belongs to it.
    after_cr: bool,
    /// The first line is past, and with it the place where a byte-order mark may stand.
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

    /// Cuts newline-delimited JSON: every line that is not empty is the data of a nameless event.
    pub fn lines() -> Parser {
        Parser { framing: Framing::Lines, ..Parser::new() }
    }

    /// Takes the next bytes and hands every item completed by them to `sink`, in order.
    ///
    /// Cost is linear in the bytes, whatever the pieces. After [`TooLong`] the parser is of no more use.
    pub fn feed(&mut self, bytes: &[u8], sink: &mut impl FnMut(Item<'_>)) -> Result<(), TooLong> {
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
            // The common case: a lone data line with its blank line in the same piece. Nothing is copied.
            if self.begun
                && matches!(rest.first(), Some(b'\n' | b'\r'))
                && !self.has_data
                && self.name.is_empty()
                && self.framing == Framing::Events
                && let Some(value) = line.strip_prefix(b"data:")
            {
                rest = self.past_terminator(rest);
                sink(Item::Event { name: b"", data: value.strip_prefix(b" ").unwrap_or(value) });
                continue;
            }
            self.line(line, sink)?;
        }
        Ok(())
    }

    /// Is there an unfinished line or event?
    pub fn is_pending(&self) -> bool {
        !self.held.is_empty() || self.has_data
    }

    /// Bytes held back.
    pub fn held(&self) -> usize {
        self.held.len() + self.data.len() + self.name.len()
    }

    /// Drops one line terminator from the front of `bytes`, which starts with one.
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

    /// Reads one whole line, without its terminator.
    fn line(&mut self, line: &[u8], sink: &mut impl FnMut(Item<'_>)) -> Result<(), TooLong> {
        let line = if self.begun { line } else { line.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(line) };
        self.begun = true;
        if self.framing == Framing::Lines {
            if !line.trim_ascii().is_empty() {
                sink(Item::Event { name: b"", data: line });
            }
            return Ok(());
        }
        if line.is_empty() {
            if self.has_data {
                sink(Item::Event { name: &self.name, data: &self.data });
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
            b"" => sink(Item::Comment),
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
            _ if matches!(line[0], b'{' | b'<') => sink(Item::Stray(line)),
            _ => {}
        }
        Ok(())
    }
}
