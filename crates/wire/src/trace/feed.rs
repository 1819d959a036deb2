//! Traces read as their bytes come, so that a file need not be in memory to be read.
//!
//! What can be taken apart is: JSON documents that follow each other (JSON lines, whatever their layout), protobuf messages with their
//! lengths before them, and the resources of one protobuf message. Of these a piece at a time is held. Whatever else it is (a single document, a
//! profiler's timeline, SQLite) is held until its end and read then, by [`read`](super::read_each).

use plimsoll_model::TraceSpan;

use super::document::{self, DocumentNotes};
use super::scan::Scan;
use super::{Format, Notes, TraceError, otlp, read_each};

/// Longest message that is waited for to see whether its file is one of messages with their lengths, bytes. Exporters' are some MiB.
const MESSAGE_MAX: usize = 256 << 20;
/// Bytes after which a format shows itself: a length, a tag and the first of what they announce.
const TELLING: usize = 16;

/// What a file was.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Fed {
    pub format: Format,
    pub spans: u64,
    /// What was not taken as it stood.
    pub notes: Notes,
}

/// How what is held is taken apart.
#[derive(Debug)]
enum Mode {
    Open,
    /// JSON documents, one after the other; how far the first that is held was looked at.
    Documents(Scan),
    /// Protobuf messages, each with four bytes of length before it.
    Messages,
    /// One protobuf message, resource by resource.
    Resources,
    Whole,
}

/// Bytes of traces, as they come.
#[derive(Debug)]
pub struct TraceFeed {
    /// What came and is not read yet.
    held: Vec<u8>,
    mode: Mode,
    /// Where what is held begins: line, and column in it, from 0.
    place: (usize, usize),
    format: Option<Format>,
    spans: u64,
    notes: Notes,
    /// What the first document was that is nothing known.
    words: Option<String>,
}

impl Default for TraceFeed {
    fn default() -> TraceFeed {
        let (held, words) = (Vec::new(), None);
        TraceFeed {
            held,
            mode: Mode::Open,
            place: (0, 0),
            format: None,
            spans: 0,
            notes: Notes::default(),
            words,
        }
    }
}

impl TraceFeed {
    /// Bytes that are held because they can't be read yet.
    pub fn held(&self) -> usize {
        self.held.len()
    }

    /// Takes the next bytes and hands on the spans that they complete.
    ///
    /// # Errors
    /// [`TraceError`]: they break in the middle; spans that were handed on before stay so.
    pub fn push(&mut self, bytes: &[u8], each: &mut dyn FnMut(TraceSpan)) -> Result<(), TraceError> {
        self.held.extend_from_slice(bytes);
        if matches!(self.mode, Mode::Open) {
            self.mode = begun(&self.held);
        }
        let mut spans = 0;
        let mut counted = |span| {
            spans += 1;
            each(span);
        };
        let taken = match &self.mode {
            Mode::Open | Mode::Whole => Ok(()),
            Mode::Documents(_) => self.documents(&mut counted),
            Mode::Messages => self.messages(&mut counted),
            Mode::Resources => self.resources(&mut counted),
        };
        self.spans += spans;
        taken
    }

    /// There is no more: reads what is left.
    ///
    /// # Errors
    /// [`TraceError`]: it is no trace, or breaks in the middle.
    pub fn end(mut self, each: &mut dyn FnMut(TraceSpan)) -> Result<Fed, TraceError> {
        let left = self.held.iter().any(|b| !b.is_ascii_whitespace());
        let began = self.format.is_some() || self.words.is_some();
        let mut spans = 0;
        let mut counted = |span| {
            spans += 1;
            each(span);
        };
        match &self.mode {
            Mode::Messages | Mode::Resources if !self.held.is_empty() => {
                return Err(TraceError::Protobuf { at: self.held.len(), expected: "the rest of a message" });
            }
            Mode::Messages | Mode::Resources => {}
            Mode::Documents(_) | Mode::Whole if began && left => {
                let held = std::mem::take(&mut self.held);
                let told = document::read(&held, &mut counted).map_err(|error| self.later(error))?;
                self.learn(told);
            }
            Mode::Documents(_) | Mode::Whole if began => {}
            _ => {
                let read = read_each(&self.held, &mut counted)?;
                (self.format, self.notes) = (Some(read.0), read.1);
            }
        }
        self.spans += spans;
        match self.format {
            Some(format) => Ok(Fed { format, spans: self.spans, notes: self.notes }),
            None => Err(TraceError::Unknown { found: self.words.unwrap_or_default() }),
        }
    }

    fn documents(&mut self, each: &mut dyn FnMut(TraceSpan)) -> Result<(), TraceError> {
        let mut from = 0;
        let mut taken = Ok(());
        loop {
            let rest = &self.held[from..];
            let Some(begun) = rest.iter().position(|b| !b.is_ascii_whitespace()) else { break };
            let Mode::Documents(scan) = &mut self.mode else { break };
            let Some(end) = scan.end(&rest[begun..]) else {
                // The scan counts from the document's first byte.
                self.pass(from + begun);
                return taken;
            };
            *scan = Scan::default();
            let document = from + begun..from + begun + end;
            match document::read_one(&self.held[document.clone()], each) {
                Ok(Some(told)) => self.learn(told),
                Ok(None) => {
                    self.mode = Mode::Whole;
                    break;
                }
                Err(error) => {
                    taken = Err(self.later(document::later(error, &self.held[..document.start])));
                    break;
                }
            }
            from = document.end;
        }
        self.pass(from);
        taken
    }

    fn messages(&mut self, each: &mut dyn FnMut(TraceSpan)) -> Result<(), TraceError> {
        let mut from = 0;
        while let Some((message, end)) = message(&self.held[from..]) {
            self.notes.add(otlp::decode_each(message, each)?);
            from += end;
        }
        self.format = Some(Format::OtlpProtobuf);
        self.pass(from);
        Ok(())
    }

    fn resources(&mut self, each: &mut dyn FnMut(TraceSpan)) -> Result<(), TraceError> {
        let mut from = 0;
        while let Some(end) = resource(&self.held[from..]) {
            self.notes.add(otlp::decode_each(&self.held[from..from + end], each)?);
            from += end;
        }
        self.format = Some(Format::OtlpProtobuf);
        if self.held.get(from).is_some_and(|first| *first != 0x0a) {
            return Err(TraceError::Protobuf { at: from, expected: "a resource and its spans" });
        }
        self.pass(from);
        Ok(())
    }

    fn learn(&mut self, told: DocumentNotes) {
        match told.format {
            Some(format) => _ = self.format.get_or_insert(format),
            None => _ = self.words.get_or_insert(told.words),
        }
        self.notes.add(told.notes);
    }

    /// Forgets so many bytes.
    fn pass(&mut self, bytes: usize) {
        let gone = &self.held[..bytes];
        match gone.iter().rposition(|b| *b == b'\n') {
            Some(last) => {
                let lines = gone.iter().filter(|b| **b == b'\n').count();
                self.place = (self.place.0 + lines, bytes - last - 1);
            }
            None => self.place.1 += bytes,
        }
        self.held.drain(..bytes);
    }

    /// The error with its place in all that came.
    fn later(&self, error: TraceError) -> TraceError {
        match error {
            TraceError::Json { line, column, what } => {
                let column = if line == 1 { column + self.place.1 } else { column };
                TraceError::Json { line: line + self.place.0, column, what }
            }
            other => other,
        }
    }
}

/// What these bytes are the beginning of.
fn begun(held: &[u8]) -> Mode {
    let has_spans = |message: &[u8]| {
        let mut any = false;
        otlp::decode_each(message, &mut |_| any = true).is_ok() && any
    };
    if held.len() < TELLING {
        return Mode::Open;
    }
    // A protobuf message may begin like a blank line of JSON, or of a text.
    if held[0] == 0x0a
        && let Some(end) = resource(held)
        && has_spans(&held[..end])
    {
        return Mode::Resources;
    }
    if let Some((message, _)) = message(held)
        && has_spans(message)
    {
        return Mode::Messages;
    }
    let text = held.strip_prefix(b"\xef\xbb\xbf").unwrap_or(held);
    match text.iter().find(|b| !b.is_ascii_whitespace()) {
        Some(b'{' | b'[') if text.len() == held.len() && held[0] != 0x0a => Mode::Documents(Scan::default()),
        _ if waits(held) => Mode::Open,
        _ => Mode::Whole,
    }
}

/// May more bytes make a message of it?
fn waits(held: &[u8]) -> bool {
    let long = held.first_chunk::<4>().map_or(0, |len| u32::from_be_bytes(*len) as usize);
    held[0] == 0x0a || (long > 0 && long <= MESSAGE_MAX && held.len() < 4 + long)
}

/// The message behind its four bytes of length, and where it ends.
fn message(bytes: &[u8]) -> Option<(&[u8], usize)> {
    let (len, rest) = bytes.split_first_chunk::<4>()?;
    let len = u32::from_be_bytes(*len) as usize;
    let message = rest.get(..len).filter(|message| otlp::looks_like(message))?;
    Some((message, 4 + len))
}

/// Where the resource ends (field 1, by its length) that the bytes begin with.
fn resource(bytes: &[u8]) -> Option<usize> {
    let rest = bytes.strip_prefix(b"\x0a")?;
    let last = rest.iter().take(10).position(|b| *b < 0x80)?;
    let long = rest[..=last].iter().rev().fold(0_u64, |n, b| n << 7 | u64::from(b & 0x7f));
    let end = usize::try_from(long).ok()?.checked_add(2 + last)?;
    (end <= bytes.len()).then_some(end)
}
