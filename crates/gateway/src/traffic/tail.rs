//! The tail of a response, which contains its outcome and token counts: the last kilobytes with the arrival time of
//! each piece.
//!
//! [`TailReader::read`] is the only definition of a failed response with a success status. Metrics, recording,
//! circuit breaker, cache, retries, canary trials and learnt speeds use its outcome. A second definition, from status
//! and framing only, lost, because replicas that failed fast seemed fast.

use crate::response_observer::{generates, stream_type};
use plimsoll_model::outcome::{By, How};
use plimsoll_model::{At, Broken, EventKind, Outcome, Protocol};
use plimsoll_wire::failed::is_failure;
use plimsoll_wire::{DecodedAnswer, DecodedEvent, Decoder, Head};

/// Kept bytes: several events, or the usage object at the end of a JSON body.
const KEPT: usize = 4_096;

#[derive(Default, Debug)]
pub struct TailReader {
    bytes: Vec<u8>,
    /// Start of each piece in `bytes`, and its arrival time.
    pieces: Vec<(usize, At)>,
    /// Set if earlier bytes were dropped.
    cut: bool,
    /// Set if the bytes are compressed or not shown, so that they cannot be parsed.
    unread: bool,
}

/// Outcome of a response that reports a failure or is empty.
const USELESS: Outcome = Outcome::new(How::StreamError, By::Server, true);

/// The content of a response's tail.
#[derive(Debug)]
pub struct AnswerEnd {
    /// Outcome and token counts. Event counts cover the tail only.
    pub verdict: DecodedAnswer,
    /// Arrival time of the last token; `None` if it is not in the tail.
    pub last_token: Option<At>,
    /// Number of events in the tail without a token.
    pub without_token: u32,
    /// Set if the events contain only a role and an end marker.
    is_bare: bool,
}

impl TailReader {
    /// Returns whether only the tail of the response is available.
    pub fn is_cut(&self) -> bool {
        self.cut
    }

    /// Sets whether the bytes are unreadable.
    pub(crate) fn set_unread(&mut self, unread: bool) {
        self.unread = unread;
    }

    /// Appends a piece of the response.
    pub fn push(&mut self, data: &[u8], at: At) {
        let from = data.len().saturating_sub(KEPT);
        self.cut |= from > 0;
        if self.bytes.len() + (data.len() - from) > 2 * KEPT {
            self.forget();
        }
        self.pieces.push((self.bytes.len(), at));
        self.bytes.extend_from_slice(&data[from..]);
    }

    /// Drops all but the last [`KEPT`] bytes, and the pieces before them.
    fn forget(&mut self) {
        let gone = self.bytes.len().saturating_sub(KEPT);
        self.bytes.drain(..gone);
        self.cut |= gone > 0;
        let first = self.pieces.partition_point(|(from, _)| *from <= gone).saturating_sub(1);
        self.pieces.drain(..first);
        for (from, _) in &mut self.pieces {
            *from = from.saturating_sub(gone);
        }
    }

    /// Parses the tail of a response with this head, and evaluates the response.
    pub fn read(&self, protocol: Protocol, (status, is_stream): (u16, bool), whole: bool) -> AnswerEnd {
        // Of unreadable bytes, and of a long body that is not a stream, only the framing is known.
        if whole && (self.unread || !is_stream && self.cut) {
            let mut end = self.decode(protocol, (status, is_stream), whole);
            (end.verdict.outcome, end.verdict.answer.error) = (Outcome::FINISHED, None);
            return end;
        }
        let mut end = self.decode(protocol, (status, is_stream), whole);
        // Emptiness is checked below, because only a request for generated text must return some.
        if whole && end.verdict.answer.broken == Some(Broken::Empty) {
            (end.verdict.outcome, end.verdict.answer.error) = (Outcome::FINISHED, None);
        }
        if !end.verdict.outcome.is_finished() {
            return end;
        }
        let why = match end.verdict.answer.finish_reason.as_deref() {
            Some(reason) if is_failure(reason) => format!("finish reason {reason:?}"),
            None if generates(protocol) && status != 204 && self.is_empty(is_stream, &end) => {
                "an empty answer".to_owned()
            }
            _ => return end,
        };
        end.verdict.answer.error = Some(why);
        end.verdict.outcome = USELESS;
        end
    }

    /// Returns whether the response to a request for generated text is empty.
    fn is_empty(&self, is_stream: bool, end: &AnswerEnd) -> bool {
        let text = self.bytes.trim_ascii();
        let says_nothing = end.verdict.answer.broken == Some(Broken::Empty);
        let has_choices = || memchr::memmem::find(text, b"\"choices\"").is_some();
        match is_stream {
            true => !self.cut && end.is_bare,
            false => matches!(text, b"" | b"{}" | b"[]" | b"null") || says_nothing && has_choices(),
        }
    }

    fn decode(&self, protocol: Protocol, (status, is_stream): (u16, bool), whole: bool) -> AnswerEnd {
        let kind = if is_stream { stream_type(protocol) } else { "application/json" };
        let head = Head { status, content_type: Some(kind.to_owned()), ..Head::default() };
        let mut decoder = Decoder::with_head(protocol, is_stream, head, false);
        if !is_stream {
            let mut none = Vec::new();
            match self.cut {
                false => decoder.feed(&self.bytes, &mut none),
                // Of a long body, the usage object is sufficient; without it in the tail, nothing is known.
                true => decoder.feed(&usage(&self.bytes).unwrap_or_default(), &mut none),
            }
            let verdict = decoder.finish(whole);
            return AnswerEnd { verdict, last_token: None, without_token: 0, is_bare: false };
        }
        let start = if self.cut { self.first_event(protocol.sends_lines()) } else { 0 };
        let (mut last_token, mut without_token, mut is_bare) = (None, 0, true);
        let mut decoded: Vec<DecodedEvent> = Vec::new();
        let ends = self.pieces.iter().skip(1).map(|(from, _)| *from).chain([self.bytes.len()]);
        for (&(from, at), end) in self.pieces.iter().zip(ends) {
            let from = from.max(start);
            if from >= end {
                continue;
            }
            decoded.clear();
            decoder.feed(&self.bytes[from..end], &mut decoded);
            for one in &decoded {
                is_bare &= matches!(one.kind, EventKind::Empty | EventKind::Role | EventKind::Done);
                match one.kind.is_token() {
                    true => last_token = Some(at),
                    false => without_token += 1,
                }
            }
        }
        AnswerEnd { verdict: decoder.finish(whole), last_token, without_token, is_bare }
    }

    /// Returns the start of the first complete event in the buffer.
    fn first_event(&self, lines: bool) -> usize {
        let after = |end: &[u8]| memchr::memmem::find(&self.bytes, end).map(|at| at + end.len());
        let ends = if lines { [after(b"\n"), None] } else { [after(b"\n\n"), after(b"\r\n\r\n")] };
        ends.into_iter().flatten().min().unwrap_or(self.bytes.len())
    }

    /// Returns the arrival time of the last piece.
    pub fn last(&self) -> Option<At> {
        self.pieces.last().map(|(_, at)| *at)
    }
}

/// Returns a body that contains only the usage object of a longer body.
fn usage(end: &[u8]) -> Option<Vec<u8>> {
    let at = memchr::memmem::rfind(end, b"\"usage\"")?;
    let value = end.get(at + b"\"usage\"".len()..)?;
    let value = value.get(value.iter().position(|byte| *byte == b'{')?..)?;
    let mut values = serde_json::Deserializer::from_slice(value).into_iter::<serde::de::IgnoredAny>();
    values.next()?.ok()?;
    let value = value.get(..values.byte_offset())?;
    Some([b"{\"choices\":[],\"usage\":", value, b"}"].concat())
}
