//! One record as bytes: the encoding inside the log's frames.
//!
//! It lies on the path of every request under load, so it is made for writing: no allocation, a bound on the size
//! known before the first byte, and prefix varints (the length is in the low bits of the first byte) that are
//! stored as one 8-byte word instead of a loop over 7-bit groups. serde with a compact format was the alternative:
//! smaller code, four times the time and a format owned by somebody else. Stamps are written as differences from
//! `sent` (from `due` where nothing was sent), events as differences from the event before.
//!
//! Reading trusts nothing: every count is checked against the bytes that are left, every number against its range.

mod span;
mod tcp;

pub use span::{get_span, put_span};

use plimsoll_model::{
    Answer, At, Attempt, Broken, By, Event, EventKind, How, MediaCounts, Outcome, Sample, ServerStage, Span,
    Tokens, TokensRule,
};

/// Why bytes are not a record.
#[derive(Copy, Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum CodeError {
    /// The bytes end before the record does.
    #[error("ends early")]
    Short,
    /// The record ends before the bytes do.
    #[error("has bytes to spare")]
    Long,
    /// A number is outside what its field can hold.
    #[error("{0} out of range")]
    Range(&'static str),
    /// Text is not UTF-8.
    #[error("text is not UTF-8")]
    Utf8,
}

/// Which optional parts of an attempt are there; one bit each.
mod has {
    pub const SESSION: u64 = 1;
    pub const SENT: u64 = 1 << 1;
    pub const CONNECTED: u64 = 1 << 2;
    pub const FIRST_BYTE: u64 = 1 << 3;
    pub const FIRST_TOKEN: u64 = 1 << 4;
    pub const FIRST_VISIBLE: u64 = 1 << 5;
    pub const LAST_TOKEN: u64 = 1 << 6;
    pub const END: u64 = 1 << 7;
    pub const KERNEL_STAMPS: u64 = 1 << 8;
    pub const CONNECTION: u64 = 1 << 9;
    pub const REUSED: u64 = 1 << 10;
    pub const RETRYABLE: u64 = 1 << 11;
    pub const STATUS: u64 = 1 << 12;
    pub const FINISH_REASON: u64 = 1 << 13;
    pub const PROMPT: u64 = 1 << 14;
    pub const OUTPUT: u64 = 1 << 15;
    pub const REASONING: u64 = 1 << 16;
    pub const CACHED: u64 = 1 << 17;
    pub const BROKEN: u64 = 1 << 18;
    pub const RETRY_AFTER: u64 = 1 << 19;
    pub const ERROR: u64 = 1 << 20;
    pub const REPLICA: u64 = 1 << 21;
    pub const TEXT: u64 = 1 << 22;
    pub const TCP_RTT: u64 = 1 << 23;
    pub const TCP_RTT_VAR: u64 = 1 << 24;
    pub const TCP_RTT_MIN: u64 = 1 << 25;
    pub const TCP_RETRANSMITS: u64 = 1 << 26;
    pub const TCP_SEGMENTS_OUT: u64 = 1 << 27;
    pub const TCP_SEGMENTS_IN: u64 = 1 << 28;
    pub const TCP_OUT_OF_ORDER: u64 = 1 << 29;
    pub const TURNS: u64 = 1 << 30;
    pub const RESENT: u64 = 1 << 31;
    pub const TARGET: u64 = 1 << 32;
    pub const MEDIA: u64 = 1 << 33;
    pub const DOCUMENTS: u64 = 1 << 34;
    pub const ALL: u64 = (1 << 35) - 1;
}

/// Longest a varint gets.
const VARINT_MAX: usize = 9;
/// Numbers in an attempt outside its lists: 44 of them and three bytes, rounded up.
const FIXED_MAX: usize = 48 * VARINT_MAX;
/// Control byte, offset, tokens, delay.
const EVENT_MAX: usize = 1 + VARINT_MAX + 3 + 5;

/// Appends an attempt to `buf`.
pub fn put_attempt(buf: &mut Vec<u8>, a: &Attempt) {
    let mut pen = Pen::with_room(buf, attempt_bound(a));
    let answer = &a.answer;
    let tokens = &answer.tokens;
    let bit = |on: bool, bit: u64| if on { bit } else { 0 };
    let shows = MediaCounts { documents: 0, ..a.media } != MediaCounts::default();
    pen.number(
        bit(a.session.is_some(), has::SESSION)
            | bit(a.sent.is_some(), has::SENT)
            | bit(a.connected.is_some(), has::CONNECTED)
            | bit(a.first_byte.is_some(), has::FIRST_BYTE)
            | bit(a.first_token.is_some(), has::FIRST_TOKEN)
            | bit(a.first_visible.is_some(), has::FIRST_VISIBLE)
            | bit(a.last_token.is_some(), has::LAST_TOKEN)
            | bit(a.end.is_some(), has::END)
            | bit(a.kernel_stamps, has::KERNEL_STAMPS)
            | bit(a.connection.is_some(), has::CONNECTION)
            | bit(a.reused, has::REUSED)
            | bit(a.outcome.retryable, has::RETRYABLE)
            | bit(answer.status.is_some(), has::STATUS)
            | bit(answer.finish_reason.is_some(), has::FINISH_REASON)
            | bit(tokens.prompt.is_some(), has::PROMPT)
            | bit(tokens.output.is_some(), has::OUTPUT)
            | bit(tokens.reasoning.is_some(), has::REASONING)
            | bit(tokens.cached.is_some(), has::CACHED)
            | bit(answer.broken.is_some(), has::BROKEN)
            | bit(answer.retry_after.is_some(), has::RETRY_AFTER)
            | bit(answer.error.is_some(), has::ERROR)
            | bit(answer.replica.is_some(), has::REPLICA)
            | bit(answer.text.is_some(), has::TEXT)
            | bit(a.turns > 0, has::TURNS)
            | bit(a.resent.is_some(), has::RESENT)
            | bit(a.target > 0, has::TARGET)
            | bit(shows, has::MEDIA)
            | bit(a.media.documents > 0, has::DOCUMENTS)
            | tcp::bits(&a.tcp),
    );
    // Four small enums share one number: how (4 bits), by (2), rule (2), broken (what is left).
    pen.number(
        a.outcome.how as u64
            | (a.outcome.by as u64) << 4
            | (tokens.rule as u64) << 6
            | answer.broken.map_or(0, |broken| broken as u64) << 8,
    );
    pen.number(a.request);
    pen.number(u64::from(a.attempt));
    pen.number(u64::from(a.level));
    pen.number(u64::from(a.turn));
    pen.number(u64::from(a.class));
    pen.maybe(a.session);
    pen.maybe((a.turns > 0).then_some(u64::from(a.turns)));
    pen.maybe(a.resent.map(u64::from));
    pen.maybe((a.target > 0).then_some(u64::from(a.target)));
    pen.signed(a.due.0);
    let base = a.sent.unwrap_or(a.due);
    if let Some(sent) = a.sent {
        pen.signed(sent.0.wrapping_sub(a.due.0));
    }
    for stamp in
        [a.connected, a.first_byte, a.first_token, a.first_visible, a.last_token, a.end].into_iter().flatten()
    {
        pen.signed(stamp.0.wrapping_sub(base.0));
    }
    pen.number(u64::from(a.asked_prompt));
    pen.number(u64::from(a.asked_output));
    if shows {
        pen.number(u64::from(a.media.images));
        pen.number(a.media.pixels);
        pen.number(a.media.audio_ms);
    }
    pen.maybe((a.media.documents > 0).then_some(u64::from(a.media.documents)));
    pen.number(a.bytes_out);
    pen.number(a.bytes_in);
    pen.maybe(a.connection.map(u64::from));
    tcp::put(&mut pen, &a.tcp);
    pen.maybe(answer.status.map(u64::from));
    for count in [tokens.prompt, tokens.output, tokens.reasoning, tokens.cached] {
        pen.maybe(count.map(u64::from));
    }
    if let Some(wait) = answer.retry_after {
        pen.signed(wait.0);
    }
    pen.number(a.prompt_blocks.len() as u64);
    for block in &a.prompt_blocks {
        pen.word(*block);
    }
    pen.number(a.events.len() as u64);
    let mut before = 0i64;
    for event in &a.events {
        pen.event(event, &mut before);
    }
    pen.number(answer.stages.len() as u64);
    for stage in &answer.stages {
        pen.text(&stage.name);
        pen.signed(stage.took.0);
    }
    for text in [&answer.finish_reason, &answer.error, &answer.replica, &answer.text].into_iter().flatten() {
        pen.text(text);
    }
    pen.finish();
}

/// An upper bound on the encoded size, in bytes.
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

/// Reads an attempt back from exactly these bytes.
pub fn get_attempt(bytes: &[u8]) -> Result<Attempt, CodeError> {
    let mut eye = Eye { bytes };
    let bits = eye.number()?;
    if bits & !has::ALL != 0 {
        return Err(CodeError::Range("presence bits"));
    }
    let on = |bit: u64| bits & bit != 0;
    let small = eye.number()?;
    let how = *How::ALL.get((small & 15) as usize).ok_or(CodeError::Range("outcome"))?;
    let by = By::ALL[(small >> 4 & 3) as usize];
    let rule = TokensRule::ALL[(small >> 6 & 3) as usize];
    let broken = match on(has::BROKEN) {
        true => Some(*Broken::ALL.get((small >> 8) as usize).ok_or(CodeError::Range("broken"))?),
        false => None,
    };
    let request = eye.number()?;
    let attempt = eye.narrow("attempt")?;
    let level = eye.narrow("level")?;
    let turn = eye.narrow("turn")?;
    let class = eye.narrow("class")?;
    let session = if on(has::SESSION) { Some(eye.number()?) } else { None };
    let turns = if on(has::TURNS) { eye.narrow("turns")? } else { 0 };
    let resent = if on(has::RESENT) { Some(eye.narrow("resent")?) } else { None };
    let target = if on(has::TARGET) { eye.narrow("target")? } else { 0 };
    let due = At(eye.signed()?);
    let sent = if on(has::SENT) { Some(At(due.0.wrapping_add(eye.signed()?))) } else { None };
    let base = sent.unwrap_or(due);
    let mut stamp = |bit: u64| -> Result<Option<At>, CodeError> {
        if on(bit) { Ok(Some(At(base.0.wrapping_add(eye.signed()?)))) } else { Ok(None) }
    };
    let connected = stamp(has::CONNECTED)?;
    let first_byte = stamp(has::FIRST_BYTE)?;
    let first_token = stamp(has::FIRST_TOKEN)?;
    let first_visible = stamp(has::FIRST_VISIBLE)?;
    let last_token = stamp(has::LAST_TOKEN)?;
    let end = stamp(has::END)?;
    let asked_prompt = eye.narrow("asked prompt tokens")?;
    let asked_output = eye.narrow("asked output tokens")?;
    let mut media = MediaCounts::default();
    if on(has::MEDIA) {
        (media.images, media.pixels, media.audio_ms) = (eye.narrow("images")?, eye.number()?, eye.number()?);
    }
    if on(has::DOCUMENTS) {
        media.documents = eye.narrow("documents")?;
    }
    let bytes_out = eye.number()?;
    let bytes_in = eye.number()?;
    let connection = if on(has::CONNECTION) { Some(eye.narrow("connection")?) } else { None };
    let tcp = tcp::get(&mut eye, bits)?;
    let status = if on(has::STATUS) { Some(eye.narrow("status")?) } else { None };
    let mut count = |bit: u64| -> Result<Option<u32>, CodeError> {
        if on(bit) { Ok(Some(eye.narrow("token count")?)) } else { Ok(None) }
    };
    let tokens = Tokens {
        prompt: count(has::PROMPT)?,
        output: count(has::OUTPUT)?,
        reasoning: count(has::REASONING)?,
        cached: count(has::CACHED)?,
        rule,
    };
    let retry_after = if on(has::RETRY_AFTER) { Some(Span(eye.signed()?)) } else { None };
    let blocks = eye.count(8)?;
    let prompt_blocks = (0..blocks).map(|_| eye.word()).collect::<Result<_, _>>()?;
    let count = eye.count(2)?;
    let mut events = Vec::with_capacity(count);
    let mut before = 0i64;
    for _ in 0..count {
        events.push(eye.event(&mut before)?);
    }
    let stages = (0..eye.count(2)?)
        .map(|_| Ok(ServerStage { name: eye.text()?, took: Span(eye.signed()?) }))
        .collect::<Result<_, CodeError>>()?;
    let mut text = |bit: u64| -> Result<Option<String>, CodeError> {
        if on(bit) { Ok(Some(eye.text()?)) } else { Ok(None) }
    };
    let finish_reason = text(has::FINISH_REASON)?;
    let error = text(has::ERROR)?;
    let replica = text(has::REPLICA)?;
    let text = text(has::TEXT)?;
    eye.end()?;
    Ok(Attempt {
        request,
        attempt,
        level,
        session,
        turn,
        turns,
        class,
        target,
        due,
        sent,
        connected,
        first_byte,
        first_token,
        first_visible,
        last_token,
        end,
        events,
        kernel_stamps: on(has::KERNEL_STAMPS),
        asked_prompt,
        resent,
        asked_output,
        prompt_blocks,
        media,
        bytes_out,
        bytes_in,
        connection,
        reused: on(has::REUSED),
        tcp,
        outcome: Outcome::new(how, by, on(has::RETRYABLE)),
        answer: Answer { status, finish_reason, tokens, broken, retry_after, error, replica, stages, text },
    })
}

/// Appends a sample to `buf`.
pub fn put_sample(buf: &mut Vec<u8>, s: &Sample) {
    let bound = 5 * VARINT_MAX + 8 + s.source.len() + s.name.len() + s.labels.len();
    let mut pen = Pen::with_room(buf, bound);
    pen.signed(s.at.0);
    pen.word(s.value.to_bits());
    pen.text(&s.source);
    pen.text(&s.name);
    pen.text(&s.labels);
    pen.finish();
}

/// Reads a sample back from exactly these bytes.
pub fn get_sample(bytes: &[u8]) -> Result<Sample, CodeError> {
    let mut eye = Eye { bytes };
    let at = At(eye.signed()?);
    let value = f64::from_bits(eye.word()?);
    let sample = Sample { at, value, source: eye.text()?, name: eye.text()?, labels: eye.text()? };
    eye.end()?;
    Ok(sample)
}

/// Writes into room that was made beforehand, so that no field asks the vector to grow.
struct Pen<'a> {
    buf: &'a mut Vec<u8>,
    at: usize,
}

impl<'a> Pen<'a> {
    fn with_room(buf: &'a mut Vec<u8>, bound: usize) -> Pen<'a> {
        let at = buf.len();
        // Eight bytes of slack: every varint stores a whole word.
        buf.resize(at + bound + 8, 0);
        Pen { buf, at }
    }

    fn finish(self) {
        self.buf.truncate(self.at);
    }

    #[inline]
    fn store(&mut self, word: u64, len: usize) {
        self.buf[self.at..self.at + 8].copy_from_slice(&word.to_le_bytes());
        self.at += len;
    }

    /// A prefix varint: `len − 1` zero bits, a one, then 7 bits of value per byte; a first byte of 0 announces a
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

    /// Signed, so that small values of either sign stay short (zigzag).
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

    fn word(&mut self, value: u64) {
        self.store(value, 8);
    }

    fn text(&mut self, text: &str) {
        self.number(text.len() as u64);
        self.buf[self.at..self.at + text.len()].copy_from_slice(text.as_bytes());
        self.at += text.len();
    }

    /// Control byte (kind 4 bits, coalesced, tokens 0/1/given 2 bits, delay given), then what it announces.
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

/// Reads what a [`Pen`] wrote.
struct Eye<'a> {
    bytes: &'a [u8],
}

impl<'a> Eye<'a> {
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
        // The top bytes belong to what follows; `8 × len` bits, less the prefix, are ours.
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

    /// A count of things that take at least `least` bytes each: never more than can still follow.
    fn count(&mut self, least: usize) -> Result<usize, CodeError> {
        let count = self.number()?;
        if count > (self.bytes.len() / least) as u64 {
            return Err(CodeError::Short);
        }
        Ok(count as usize)
    }

    fn text(&mut self) -> Result<String, CodeError> {
        let len = self.count(1)?;
        let text = std::str::from_utf8(self.take(len)?).map_err(|_| CodeError::Utf8)?;
        Ok(text.to_owned())
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
