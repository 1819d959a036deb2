//! Parses traces while their bytes arrive, so that a file need not fit in memory.
//!
//! Three formats are divisible: consecutive JSON documents (JSON lines in any layout),
//! length-prefixed protobuf messages, and the resources of one protobuf message. Only one piece of them is buffered. Any other format (a single document, a
//! profiler's timeline, SQLite) is buffered to its end and then parsed by [`read`](super::read_each).

use plimsoll_model::TraceSpan;

use super::document::{self, DocumentNotes};
use super::scan::Scan;
use super::{Notes, TraceError, TraceFormat, otlp, read_each};

/// Longest message that is buffered to detect a file of length-prefixed messages, bytes. Exporters' messages have some MiB.
const MESSAGE_MAX: usize = 256 << 20;
/// Bytes that decide the format: a length, a tag and the first announced bytes.
const TELLING: usize = 16;

/// The summary of a parsed file.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct FeedResult {
    pub format: TraceFormat,
    pub spans: u64,
    /// Counts of changed or omitted parts.
    pub notes: Notes,
}

/// The way to split the buffered bytes.
#[derive(Debug)]
enum Mode {
    Open,
    /// Consecutive JSON documents; the scan position in the first buffered one.
    Documents(Scan),
    /// Protobuf messages, each with four bytes of length before it.
    Messages,
    /// One protobuf message, resource by resource.
    Resources,
    Whole,
}

#[derive(Debug)]
pub struct TraceFeed {
    /// Buffered bytes that are not parsed yet.
    held: Vec<u8>,
    mode: Mode,
    /// Line and column of the first buffered byte, from 0.
    place: (usize, usize),
    format: Option<TraceFormat>,
    spans: u64,
    notes: Notes,
    /// Description of the first unknown document.
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
    /// Returns the number of buffered bytes.
    pub fn held(&self) -> usize {
        self.held.len()
    }

    /// Parses the next bytes and passes on the spans that they complete.
    ///
    /// # Errors
    /// Fails with [`TraceError`] if the bytes are malformed; spans that were passed on before remain valid.
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

    /// Ends the file and parses the rest.
    ///
    /// # Errors
    /// Fails with [`TraceError`] if the file is not a trace, or malformed.
    pub fn end(mut self, each: &mut dyn FnMut(TraceSpan)) -> Result<FeedResult, TraceError> {
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
            Some(format) => Ok(FeedResult { format, spans: self.spans, notes: self.notes }),
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
        self.format = Some(TraceFormat::OtlpProtobuf);
        self.pass(from);
        Ok(())
    }

    fn resources(&mut self, each: &mut dyn FnMut(TraceSpan)) -> Result<(), TraceError> {
        let mut from = 0;
        while let Some(end) = resource(&self.held[from..]) {
            self.notes.add(otlp::decode_each(&self.held[from..from + end], each)?);
            from += end;
        }
        self.format = Some(TraceFormat::OtlpProtobuf);
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

    /// Removes bytes from the front of the buffer.
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

    /// Returns the error with its position in the whole file.
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

/// Detects the format from the first bytes.
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

/// Returns whether more bytes can complete a message.
fn waits(held: &[u8]) -> bool {
    let long = held.first_chunk::<4>().map_or(0, |len| u32::from_be_bytes(*len) as usize);
    held[0] == 0x0a || (long > 0 && long <= MESSAGE_MAX && held.len() < 4 + long)
}

/// Returns the message after its four bytes of length, and its end.
fn message(bytes: &[u8]) -> Option<(&[u8], usize)> {
    let (len, rest) = bytes.split_first_chunk::<4>()?;
    let len = u32::from_be_bytes(*len) as usize;
    let message = rest.get(..len).filter(|message| otlp::looks_like(message))?;
    Some((message, 4 + len))
}

/// Returns the end of the first resource (field 1, by its length).
fn resource(bytes: &[u8]) -> Option<usize> {
    let rest = bytes.strip_prefix(b"\x0a")?;
    let last = rest.iter().take(10).position(|b| *b < 0x80)?;
    let long = rest[..=last].iter().rev().fold(0_u64, |n, b| n << 7 | u64::from(b & 0x7f));
    let end = usize::try_from(long).ok()?.checked_add(2 + last)?;
    (end <= bytes.len()).then_some(end)
}
