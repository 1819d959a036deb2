//! The log: frames of `length, CRC-32, kind, payload`, appended and never changed.
//!
//! Each record has its own frame and its own checksum, though one checksum per batch would be a few nanoseconds
//! cheaper: a torn write then costs the record it tore and not the batch before it. The length counts kind and
//! payload; both header numbers are little-endian `u32`. Reading ends at the first frame that is cut short or does
//! not match its checksum, and says which of the two it was: cut short is what a kill leaves, a mismatch is damage.
//! A frame that is good and not understood is counted and passed over; what follows it is as good as before.

use std::io::{self, Read};

use plimsoll_model::{Attempt, Level, Manifest, Sample, TraceSpan};

use crate::code::{self, CodeError};

/// First bytes of a log, with the version of its layout.
pub const MAGIC: [u8; 8] = *b"PLIMLOG1";

const HEADER: usize = 8;

/// What a frame holds.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum FrameKind {
    /// An [`Attempt`], in this crate's encoding.
    Attempt = 1,
    /// A [`Sample`], in this crate's encoding.
    Sample = 2,
    /// A [`Level`], as JSON.
    Level = 3,
    /// The whole [`Manifest`], as JSON; the last one counts.
    Manifest = 4,
    /// An [`Attempt`] as it was when it was begun, in this crate's encoding; the attempt itself comes when it has ended.
    Begun = 5,
    /// A [`TraceSpan`], in this crate's encoding.
    Span = 6,
}

#[derive(Debug)]
pub enum LogRecord {
    Attempt(Attempt),
    /// One point of a time series.
    Sample(Sample),
    /// One level, written when it had ended.
    Level(Box<Level>),
    /// The manifest as it then was.
    Manifest(Box<Manifest>),
    /// One attempt as it was when it was begun.
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
    // Payloads are bounded far below 4 GiB where they are made (lines, bodies and texts have limits).
    let len = u32::try_from(buf.len() - body).expect("a record is smaller than 4 GiB");
    let sum = crc32fast::hash(&buf[body..]);
    buf[start..start + 4].copy_from_slice(&len.to_le_bytes());
    buf[start + 4..body].copy_from_slice(&sum.to_le_bytes());
}

/// Bytes of the whole frames at the head of `bytes`, and how many there are. `bytes` is our own buffer, so
/// lengths are believed.
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
    /// Bytes of good frames, the magic included.
    pub good: u64,
    pub dropped: u64,
    /// True when the first dropped frame is there in full and wrong: damage, not a write that was cut off.
    pub damaged: bool,
    /// Good frames whose content this version does not understand; they were passed over.
    pub unread: u64,
}

/// Reads frames from `source`, which holds `len` bytes, and hands each record to `each` until that fails or the
/// log ends. Memory is bounded by the longest good frame.
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

/// The same from a frame's beginning on: what is `dropped` at first is there to be read.
pub(crate) fn frames<R: Read, E: From<io::Error>>(
    source: &mut R,
    mut tail: LogEnd,
    each: &mut impl FnMut(LogRecord) -> Result<(), E>,
) -> Result<LogEnd, E> {
    let mut body = Vec::new();
    loop {
        let mut head = [0; HEADER];
        if !fill(source, &mut head)? {
            return Ok(tail);
        }
        let size = u32::from_le_bytes([head[0], head[1], head[2], head[3]]);
        let sum = u32::from_le_bytes([head[4], head[5], head[6], head[7]]);
        let frame = HEADER as u64 + u64::from(size);
        if size == 0 {
            // A file that was made longer and not yet written (power loss) reads as zeros.
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
        match decode(&body) {
            Ok(record) => each(record)?,
            Err(_) => tail.unread += 1,
        }
        tail.good += frame;
        tail.dropped -= frame;
    }
}

/// Fills `buf`, or says that the source ended first.
fn fill(source: &mut impl Read, buf: &mut [u8]) -> io::Result<bool> {
    match source.read_exact(buf) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
        Err(error) => Err(error),
    }
}

fn decode(body: &[u8]) -> Result<LogRecord, CodeError> {
    let json = |_: serde_json::Error| CodeError::Range("JSON");
    let (kind, payload) = body.split_first().ok_or(CodeError::Short)?;
    match *kind {
        1 => code::get_attempt(payload).map(LogRecord::Attempt),
        2 => code::get_sample(payload).map(LogRecord::Sample),
        3 => serde_json::from_slice(payload).map(|level| LogRecord::Level(Box::new(level))).map_err(json),
        4 => serde_json::from_slice(payload)
            .map(|manifest| LogRecord::Manifest(Box::new(manifest)))
            .map_err(json),
        5 => code::get_attempt(payload).map(LogRecord::Begun),
        6 => code::get_span(payload).map(|span| LogRecord::Span(Box::new(span))),
        _ => Err(CodeError::Range("kind of a frame")),
    }
}
