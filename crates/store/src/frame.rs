//! Defines the log: frames of `length, CRC-32, kind, payload`, appended and never changed.
//!
//! Each record has its own frame and checksum, so that a torn write costs one record. A checksum per batch was rejected: it
//! saves a few nanoseconds but loses the batch. The length counts kind and payload; both header numbers are little-endian
//! `u32`. Reading ends at the first truncated frame or wrong checksum and reports which one: a kill truncates, a mismatch
//! is damage. A valid frame of unknown content is counted and skipped, because the frames after it are unaffected.

use std::io::{self, Read};

use plimsoll_model::{Attempt, Level, Manifest, Sample, TraceSpan};

use crate::code::{self, CodeError, RepeatedTexts};

/// First bytes of a log, with the format version.
pub const MAGIC: [u8; 8] = *b"PLIMLOG1";

const HEADER: usize = 8;

#[derive(Copy, Clone, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum FrameKind {
    /// An [`Attempt`], in this crate's encoding.
    Attempt = 1,
    /// A [`Sample`], in this crate's encoding.
    Sample = 2,
    /// A [`Level`], as JSON.
    Level = 3,
    /// The whole [`Manifest`], as JSON; the last one applies.
    Manifest = 4,
    /// An [`Attempt`] at its start, in this crate's encoding. A frame with the complete attempt follows after its end.
    Begun = 5,
    /// A [`TraceSpan`], in this crate's encoding.
    Span = 6,
}

#[derive(Debug)]
pub enum LogRecord {
    Attempt(Attempt),
    /// A point of a time series.
    Sample(Sample),
    /// A level, written after its end.
    Level(Box<Level>),
    /// The manifest at that time.
    Manifest(Box<Manifest>),
    /// An attempt at its start.
    Begun(Attempt),
    Span(Box<TraceSpan>),
}

/// Appends one frame whose payload `fill` appends.
#[inline]
pub fn append(buf: &mut Vec<u8>, kind: FrameKind, fill: impl FnOnce(&mut Vec<u8>)) {
    let start = buf.len();
    buf.extend_from_slice(&[0, 0, 0, 0, 0, 0, 0, 0, kind as u8]);
    fill(buf);
    let body = start + HEADER;
    // Lines, bodies and texts have limits at their source, so payloads are far below 4 GiB.
    let len = u32::try_from(buf.len() - body).expect("a record is smaller than 4 GiB");
    let sum = crc32fast::hash(&buf[body..]);
    buf[start..start + 4].copy_from_slice(&len.to_le_bytes());
    buf[start + 4..body].copy_from_slice(&sum.to_le_bytes());
}

/// Returns the size in bytes and the number of complete frames at the start of `bytes`. Lengths are trusted, because
/// `bytes` is a buffer of this crate.
pub fn whole(bytes: &[u8]) -> (usize, u64) {
    let (mut at, mut count) = (0, 0);
    while let Some(head) = bytes.get(at..at + 4) {
        let len = u32::from_le_bytes([head[0], head[1], head[2], head[3]]) as usize;
        if bytes.len() - at < HEADER + len {
            break;
        }
        at += HEADER + len;
        count += 1;
    }
    (at, count)
}

#[derive(Copy, Clone, PartialEq, Eq, Default, Debug)]
pub struct LogEnd {
    /// Bytes of valid frames, the magic included.
    pub good: u64,
    pub dropped: u64,
    /// Set if the first dropped frame is complete but wrong: damage, not a truncated write.
    pub damaged: bool,
    /// Valid frames with content that this version does not support; they were skipped.
    pub unread: u64,
}

/// Reads frames from `source` with `len` bytes and passes each record to `each`, until that fails or the log ends. The
/// longest valid frame bounds the memory.
pub fn read<R: Read, E: From<io::Error>>(
    source: R,
    len: u64,
    mut each: impl FnMut(LogRecord) -> Result<(), E>,
) -> Result<LogEnd, E> {
    let mut source = io::BufReader::with_capacity(1 << 20, source);
    let mut magic = [0; MAGIC.len()];
    let mut tail = LogEnd { dropped: len, ..LogEnd::default() };
    if !fill(&mut source, &mut magic)? {
        return Ok(tail);
    }
    if magic != MAGIC {
        tail.damaged = magic != [0; MAGIC.len()];
        return Ok(tail);
    }
    tail.good = magic.len() as u64;
    tail.dropped -= tail.good;
    frames(&mut source, tail, &mut each)
}

/// Reads frames from the boundary of a frame. The initial value of `dropped` is the number of bytes to read.
pub(crate) fn frames<R: Read, E: From<io::Error>>(
    source: &mut R,
    mut tail: LogEnd,
    each: &mut impl FnMut(LogRecord) -> Result<(), E>,
) -> Result<LogEnd, E> {
    let (mut body, mut texts) = (Vec::new(), RepeatedTexts::default());
    loop {
        let mut head = [0; HEADER];
        if !fill(source, &mut head)? {
            return Ok(tail);
        }
        let size = u32::from_le_bytes([head[0], head[1], head[2], head[3]]);
        let sum = u32::from_le_bytes([head[4], head[5], head[6], head[7]]);
        let frame = HEADER as u64 + u64::from(size);
        if size == 0 {
            // After a power failure, allocated but unwritten bytes of a file read as zeros.
            tail.damaged = sum != 0;
            return Ok(tail);
        }
        if frame > tail.dropped {
            return Ok(tail);
        }
        body.resize(size as usize, 0);
        if !fill(source, &mut body)? {
            return Ok(tail);
        }
        if crc32fast::hash(&body) != sum {
            tail.damaged = true;
            return Ok(tail);
        }
        match decode(&body, &mut texts) {
            Ok(record) => each(record)?,
            Err(_) => tail.unread += 1,
        }
        tail.good += frame;
        tail.dropped -= frame;
    }
}

/// Fills `buf`; returns false if the source ends first.
fn fill(source: &mut impl Read, buf: &mut [u8]) -> io::Result<bool> {
    match source.read_exact(buf) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
        Err(error) => Err(error),
    }
}

fn decode(body: &[u8], texts: &mut RepeatedTexts) -> Result<LogRecord, CodeError> {
    let json = |_: serde_json::Error| CodeError::Range("JSON");
    let (kind, payload) = body.split_first().ok_or(CodeError::Short)?;
    match *kind {
        1 => code::get_attempt(payload).map(LogRecord::Attempt),
        2 => code::get_sample(payload, texts).map(LogRecord::Sample),
        3 => serde_json::from_slice(payload).map(|level| LogRecord::Level(Box::new(level))).map_err(json),
        4 => serde_json::from_slice(payload)
            .map(|manifest| LogRecord::Manifest(Box::new(manifest)))
            .map_err(json),
        5 => code::get_attempt(payload).map(LogRecord::Begun),
        6 => code::get_span(payload).map(|span| LogRecord::Span(Box::new(span))),
        _ => Err(CodeError::Range("kind of a frame")),
    }
}
