//! Encodes one record as the payload of a log frame.
//!
//! Encoding runs on the path of every request under load, so it is optimised for writing. It does not allocate, and the
//! maximum size is known before the first byte. Prefix varints (length in the low bits of the first byte) are stored
//! as one 8-byte word instead of a loop over 7-bit groups. A compact serde format was rejected: less code, but four times
//! the time and an external format. Timestamps are written as differences from `sent` (from `due` if nothing was sent),
//! events as differences from the previous event.
//!
//! The decoder trusts no input: it checks every count against the remaining bytes, and every number against its range.

mod span;

pub use span::{get_span, put_span};

use plimsoll_model::{
    At, Attempt, Broken, By, Event, EventKind, How, MediaCounts, Outcome, Sample, ServerStage, SharedText,
    Span, TokensRule,
};

/// The reason that bytes are not a valid record.
#[derive(Copy, Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum CodeError {
    /// The bytes end before the record.
    #[error("ends early")]
    Short,
    /// The record ends before the bytes.
    #[error("has bytes to spare")]
    Long,
    /// A number is out of range for its field.
    #[error("{0} out of range")]
    Range(&'static str),
    /// A text is not valid UTF-8.
    #[error("text is not UTF-8")]
    Utf8,
}

/// Lists the encoded fields of an attempt in order: the encoding, the presence bit, and the field.
///
/// A bit is assigned only once, because files of older versions contain it. Timestamps are encoded as differences from
/// `sent`.
macro_rules! layout {
    ($one:ident) => {
        $one!(flag 8 kernel_stamps);
        $one!(flag 10 reused);
        $one!(flag 11 outcome.retryable);
        $one!(small 18 answer.broken);
        $one!(number request);
        $one!(number attempt);
        $one!(number level);
        $one!(number turn);
        $one!(number class);
        $one!(maybe 0 session);
        $one!(positive 30 turns);
        $one!(maybe 31 resent);
        $one!(positive 32 target);
        $one!(due due);
        $one!(sent 1 sent);
        $one!(stamp 2 connected);
        $one!(stamp 3 first_byte);
        $one!(stamp 4 first_token);
        $one!(stamp 5 first_visible);
        $one!(stamp 6 last_token);
        $one!(stamp 7 end);
        $one!(number asked_prompt);
        $one!(number asked_output);
        $one!(media 33 media);
        $one!(positive 34 media.documents);
        $one!(number bytes_out);
        $one!(number bytes_in);
        $one!(maybe 9 connection);
        $one!(span 23 tcp.rtt);
        $one!(span 24 tcp.rtt_var);
        $one!(span 25 tcp.rtt_min);
        $one!(maybe 26 tcp.retransmits);
        $one!(maybe 27 tcp.segments_out);
        $one!(maybe 28 tcp.segments_in);
        $one!(maybe 29 tcp.out_of_order);
        $one!(maybe 12 answer.status);
        $one!(maybe 14 answer.tokens.prompt);
        $one!(maybe 15 answer.tokens.output);
        $one!(maybe 16 answer.tokens.reasoning);
        $one!(maybe 17 answer.tokens.cached);
        $one!(maybe 35 answer.tokens.claimed);
        $one!(span 19 answer.retry_after);
        $one!(blocks prompt_blocks);
        $one!(events events);
        $one!(stages answer.stages);
        $one!(text 13 answer.finish_reason);
        $one!(text 20 answer.error);
        $one!(text 21 answer.replica);
        $one!(text 22 answer.text);
    };
}

/// All bits assigned by [`layout`].
const BITS: u64 = (1 << 36) - 1;

/// Longest varint in bytes.
const VARINT_MAX: usize = 9;
/// Most bytes of an attempt outside its lists: 45 numbers and three bytes, rounded up.
const FIXED_MAX: usize = 48 * VARINT_MAX;
/// Most bytes of an event: control byte, offset, tokens, delay.
const EVENT_MAX: usize = 1 + VARINT_MAX + 3 + 5;

/// Appends an encoded attempt to `buf`.
pub fn put_attempt(buf: &mut Vec<u8>, a: &Attempt) {
    let mut pen = RecordEncoder::with_room(buf, attempt_bound(a));
    let shows = MediaCounts { documents: 0, ..a.media } != MediaCounts::default();
    let mut bits = 0u64;
    macro_rules! mark {
        (flag $bit:literal $($f:tt).+) => { bits |= u64::from(a.$($f).+) << $bit };
        (positive $bit:literal $($f:tt).+) => { bits |= u64::from(a.$($f).+ > 0) << $bit };
        (media $bit:literal $f:ident) => { bits |= u64::from(shows) << $bit };
        ($kind:ident $bit:literal $($f:tt).+) => { bits |= u64::from(a.$($f).+.is_some()) << $bit };
        ($kind:ident $($f:tt).+) => {};
    }
    layout!(mark);
    pen.number(bits);
    // Three small enums share one number: how (4 bits), by (2), rule (2), broken (3).
    pen.number(
        a.outcome.how as u64
            | (a.outcome.by as u64) << 4
            | (a.answer.tokens.rule as u64) << 6
            | a.answer.broken.map_or(0, |broken| broken as u64) << 8,
    );
    let base = a.sent.unwrap_or(a.due);
    macro_rules! put {
        (flag $($rest:tt)+) => {};
        (small $($rest:tt)+) => {};
        (number $($f:tt).+) => { pen.number(u64::from(a.$($f).+)) };
        (maybe $bit:literal $($f:tt).+) => { pen.maybe(a.$($f).+.map(u64::from)) };
        (positive $bit:literal $($f:tt).+) => { pen.maybe(Some(u64::from(a.$($f).+)).filter(|n| *n > 0)) };
        (due $f:ident) => { pen.signed(a.$f.0) };
        (sent $bit:literal $f:ident) => { pen.maybe_signed(a.$f.map(|at| at.0.wrapping_sub(a.due.0))) };
        (stamp $bit:literal $f:ident) => { pen.maybe_signed(a.$f.map(|at| at.0.wrapping_sub(base.0))) };
        (span $bit:literal $($f:tt).+) => { pen.maybe_signed(a.$($f).+.map(|span| span.0)) };
        (text $bit:literal $($f:tt).+) => { a.$($f).+.iter().for_each(|text| pen.text(text)) };
        (media $bit:literal $f:ident) => { if shows { pen.media(&a.$f) } };
        ($kind:ident $($f:tt).+) => { pen.$kind(&a.$($f).+) };
    }
    layout!(put);
    pen.finish();
}

/// Returns an upper bound on the encoded size in bytes.
fn attempt_bound(a: &Attempt) -> usize {
    let text = |t: &Option<String>| t.as_ref().map_or(0, |t| VARINT_MAX + t.len());
    let answer = &a.answer;
    FIXED_MAX
        + a.events.len() * EVENT_MAX
        + a.prompt_blocks.len() * 8
        + answer.stages.iter().map(|stage| 2 * VARINT_MAX + stage.name.len()).sum::<usize>()
        + text(&answer.finish_reason)
        + text(&answer.error)
        + text(&answer.replica)
        + text(&answer.text)
}

/// Decodes an attempt, which must use all of the bytes.
pub fn get_attempt(bytes: &[u8]) -> Result<Attempt, CodeError> {
    let mut eye = RecordDecoder { bytes };
    let bits = eye.number()?;
    if bits & !BITS != 0 {
        return Err(CodeError::Range("presence bits"));
    }
    let small = eye.number()?;
    let how = *How::ALL.get((small & 15) as usize).ok_or(CodeError::Range("outcome"))?;
    let mut a = Attempt::new(0, 0, 0, At::ZERO);
    a.outcome = Outcome::new(how, By::ALL[(small >> 4 & 3) as usize], false);
    a.answer.tokens.rule = TokensRule::ALL[(small >> 6 & 3) as usize];
    let broken = Broken::ALL.get((small >> 8 & 7) as usize);
    macro_rules! get {
        (flag $bit:literal $($f:tt).+) => { a.$($f).+ = bits & 1 << $bit != 0 };
        (small $bit:literal $($f:tt).+) => {
            if bits & 1 << $bit != 0 { a.$($f).+ = Some(*broken.ok_or(CodeError::Range("broken"))?) }
        };
        (number $($f:tt).+) => { a.$($f).+ = eye.narrow(stringify!($($f).+))? };
        (positive $bit:literal $($f:tt).+) => {
            if bits & 1 << $bit != 0 { a.$($f).+ = eye.narrow(stringify!($($f).+))? }
        };
        (maybe $bit:literal $($f:tt).+) => {
            if bits & 1 << $bit != 0 { a.$($f).+ = Some(eye.narrow(stringify!($($f).+))?) }
        };
        (due $f:ident) => { a.$f = At(eye.signed()?) };
        (sent $bit:literal $f:ident) => {
            if bits & 1 << $bit != 0 { a.$f = Some(At(a.due.0.wrapping_add(eye.signed()?))) }
        };
        (stamp $bit:literal $f:ident) => {
            if bits & 1 << $bit != 0 { a.$f = Some(At(a.sent.unwrap_or(a.due).0.wrapping_add(eye.signed()?))) }
        };
        (span $bit:literal $($f:tt).+) => {
            if bits & 1 << $bit != 0 { a.$($f).+ = Some(Span(eye.signed()?)) }
        };
        ($kind:ident $bit:literal $($f:tt).+) => {
            if bits & 1 << $bit != 0 { a.$($f).+ = eye.$kind()?.into() }
        };
        ($kind:ident $($f:tt).+) => { a.$($f).+ = eye.$kind()? };
    }
    layout!(get);
    eye.end()?;
    Ok(a)
}

/// Appends an encoded sample to `buf`.
pub fn put_sample(buf: &mut Vec<u8>, s: &Sample) {
    let bound = 5 * VARINT_MAX + 8 + s.source.len() + s.name.len() + s.labels.len();
    let mut pen = RecordEncoder::with_room(buf, bound);
    pen.signed(s.at.0);
    pen.word(s.value.to_bits());
    pen.text(&s.source);
    pen.text(&s.name);
    pen.text(&s.labels);
    pen.finish();
}

/// Number of texts that a reader of a log keeps: more than the series of some replicas.
const TEXTS: usize = 1 << 14;

/// Texts that samples repeat. Equal texts of a log share one copy, because it has millions of samples of few series.
#[derive(Default)]
pub struct RepeatedTexts(Vec<SharedText>);

impl RepeatedTexts {
    fn share(&mut self, text: &str) -> SharedText {
        if self.0.is_empty() {
            self.0 = vec![SharedText::default(); TEXTS];
        }
        // Each text has one place; the last text of a place is kept, which bounds the memory.
        let kept = &mut self.0[crc32fast::hash(text.as_bytes()) as usize % TEXTS];
        if *kept != text {
            *kept = text.into();
        }
        kept.clone()
    }
}

/// Decodes a sample, which must use all of the bytes.
pub fn get_sample(bytes: &[u8], texts: &mut RepeatedTexts) -> Result<Sample, CodeError> {
    let mut eye = RecordDecoder { bytes };
    let at = At(eye.signed()?);
    let value = f64::from_bits(eye.word()?);
    let mut text = || eye.str().map(|text| texts.share(text));
    let sample = Sample { at, value, source: text()?, name: text()?, labels: text()? };
    eye.end()?;
    Ok(sample)
}

/// The encoder. It writes into reserved memory, so that no field reallocates the vector.
struct RecordEncoder<'a> {
    buf: &'a mut Vec<u8>,
    at: usize,
}

impl<'a> RecordEncoder<'a> {
    fn with_room(buf: &'a mut Vec<u8>, bound: usize) -> RecordEncoder<'a> {
        let at = buf.len();
        // Eight more bytes, because every varint stores a whole word.
        buf.resize(at + bound + 8, 0);
        RecordEncoder { buf, at }
    }

    fn finish(self) {
        self.buf.truncate(self.at);
    }

    #[inline]
    fn store(&mut self, word: u64, len: usize) {
        self.buf[self.at..self.at + 8].copy_from_slice(&word.to_le_bytes());
        self.at += len;
    }

    /// Writes a prefix varint: `len − 1` zero bits, a one, then 7 bits of value per byte. A first byte of 0 announces a
    /// whole word.
    #[inline]
    fn number(&mut self, value: u64) {
        let bits = 64 - (value | 1).leading_zeros() as usize;
        let len = bits.div_ceil(7);
        if len <= 8 {
            self.store((value << len) | (1 << (len - 1)), len);
        } else {
            self.store(0, 1);
            self.store(value, 8);
        }
    }

    /// Writes a signed number in zigzag form, so that small values of either sign are short.
    #[inline]
    fn signed(&mut self, value: i64) {
        self.number(((value << 1) ^ (value >> 63)) as u64);
    }

    #[inline]
    fn maybe(&mut self, value: Option<u64>) {
        if let Some(value) = value {
            self.number(value);
        }
    }

    #[inline]
    fn maybe_signed(&mut self, value: Option<i64>) {
        if let Some(value) = value {
            self.signed(value);
        }
    }

    fn media(&mut self, media: &MediaCounts) {
        self.number(u64::from(media.images));
        self.number(media.pixels);
        self.number(media.audio_ms);
    }

    fn blocks(&mut self, blocks: &[u64]) {
        self.number(blocks.len() as u64);
        blocks.iter().for_each(|block| self.word(*block));
    }

    fn events(&mut self, events: &[Event]) {
        self.number(events.len() as u64);
        let mut before = 0i64;
        events.iter().for_each(|event| self.event(event, &mut before));
    }

    fn stages(&mut self, stages: &[ServerStage]) {
        self.number(stages.len() as u64);
        for stage in stages {
            self.text(&stage.name);
            self.signed(stage.took.0);
        }
    }

    fn word(&mut self, value: u64) {
        self.store(value, 8);
    }

    fn text(&mut self, text: &str) {
        self.number(text.len() as u64);
        self.buf[self.at..self.at + text.len()].copy_from_slice(text.as_bytes());
        self.at += text.len();
    }

    /// Writes a control byte (kind 4 bits, coalesced, tokens 0/1/given 2 bits, delay given) and the fields that it
    /// announces.
    #[inline]
    fn event(&mut self, event: &Event, before: &mut i64) {
        let tokens = event.tokens.min(2) as u64;
        let control = event.kind as u64
            | (event.coalesced as u64) << 4
            | tokens << 5
            | ((event.user_delay_ns != 0) as u64) << 7;
        self.store(control, 1);
        self.signed(event.offset.0.wrapping_sub(*before));
        *before = event.offset.0;
        if tokens == 2 {
            self.number(u64::from(event.tokens));
        }
        if event.user_delay_ns != 0 {
            self.number(u64::from(event.user_delay_ns));
        }
    }
}

/// The decoder of a [`RecordEncoder`]'s output.
struct RecordDecoder<'a> {
    bytes: &'a [u8],
}

impl<'a> RecordDecoder<'a> {
    #[inline]
    fn take(&mut self, len: usize) -> Result<&'a [u8], CodeError> {
        let (head, rest) = self.bytes.split_at_checked(len).ok_or(CodeError::Short)?;
        self.bytes = rest;
        Ok(head)
    }

    #[inline]
    fn word(&mut self) -> Result<u64, CodeError> {
        let (head, rest) = self.bytes.split_first_chunk::<8>().ok_or(CodeError::Short)?;
        self.bytes = rest;
        Ok(u64::from_le_bytes(*head))
    }

    #[inline]
    fn number(&mut self) -> Result<u64, CodeError> {
        let first = *self.bytes.first().ok_or(CodeError::Short)?;
        if first == 0 {
            self.bytes = &self.bytes[1..];
            return self.word();
        }
        let len = first.trailing_zeros() as usize + 1;
        let word = match self.bytes.first_chunk::<8>() {
            Some(chunk) => u64::from_le_bytes(*chunk),
            None => {
                let mut chunk = [0; 8];
                chunk[..self.bytes.len()].copy_from_slice(self.bytes);
                u64::from_le_bytes(chunk)
            }
        };
        self.take(len)?;
        // The top bytes belong to the next field; this one has `8 × len` bits, less the prefix.
        let word = if len < 8 { word & ((1 << (8 * len)) - 1) } else { word };
        Ok(word >> len)
    }

    #[inline]
    fn signed(&mut self) -> Result<i64, CodeError> {
        let value = self.number()?;
        Ok((value >> 1) as i64 ^ -((value & 1) as i64))
    }

    fn narrow<T: TryFrom<u64>>(&mut self, what: &'static str) -> Result<T, CodeError> {
        T::try_from(self.number()?).map_err(|_| CodeError::Range(what))
    }

    /// Reads a count of elements with at least `least` bytes each. Fails if the remaining bytes can't contain that many.
    fn count(&mut self, least: usize) -> Result<usize, CodeError> {
        let count = self.number()?;
        if count > (self.bytes.len() / least) as u64 {
            return Err(CodeError::Short);
        }
        Ok(count as usize)
    }

    fn media(&mut self) -> Result<MediaCounts, CodeError> {
        let (images, pixels, audio_ms) = (self.narrow("images")?, self.number()?, self.number()?);
        Ok(MediaCounts { images, pixels, audio_ms, documents: 0 })
    }

    fn blocks(&mut self) -> Result<Vec<u64>, CodeError> {
        (0..self.count(8)?).map(|_| self.word()).collect()
    }

    fn events(&mut self) -> Result<Vec<Event>, CodeError> {
        let count = self.count(2)?;
        let (mut events, mut before) = (Vec::with_capacity(count), 0i64);
        for _ in 0..count {
            events.push(self.event(&mut before)?);
        }
        Ok(events)
    }

    fn stages(&mut self) -> Result<Vec<ServerStage>, CodeError> {
        (0..self.count(2)?)
            .map(|_| Ok(ServerStage { name: self.text()?, took: Span(self.signed()?) }))
            .collect()
    }

    fn text(&mut self) -> Result<String, CodeError> {
        self.str().map(str::to_owned)
    }

    fn str(&mut self) -> Result<&'a str, CodeError> {
        let len = self.count(1)?;
        std::str::from_utf8(self.take(len)?).map_err(|_| CodeError::Utf8)
    }

    #[inline]
    fn event(&mut self, before: &mut i64) -> Result<Event, CodeError> {
        let control = self.take(1)?[0];
        let kind = EventKind::from_u8(control & 15).ok_or(CodeError::Range("event kind"))?;
        *before = before.wrapping_add(self.signed()?);
        let tokens = match control >> 5 & 3 {
            2 => self.narrow("tokens of an event")?,
            3 => return Err(CodeError::Range("event control")),
            few => u16::from(few),
        };
        let user_delay_ns = if control & 128 != 0 { self.narrow("user delay")? } else { 0 };
        Ok(Event { offset: Span(*before), user_delay_ns, tokens, kind, coalesced: control & 16 != 0 })
    }

    fn end(&self) -> Result<(), CodeError> {
        if self.bytes.is_empty() { Ok(()) } else { Err(CodeError::Long) }
    }
}
