//! Builds the one row of an attempt: stamps and decoded events in, an [`Attempt`] out.
//!
//! This module has no clock and no socket. Every event arrives with its stamps, so all rules on stamps are in one place and
//! are testable without waiting.

use std::rc::Rc;

use plimsoll_model::{Answer, At, Attempt, By, Event, EventKind, How, Outcome, Protocol, Span};
use plimsoll_wire::{DecodedEvent, Decoder, Head};

use crate::http1::stamp::Stamps;

/// Most events for which memory is reserved before a response; longer responses grow.
const EVENTS_AHEAD: usize = 2048;
/// Most characters of an error text.
const ERROR_MAX: usize = 300;

#[derive(Debug)]
pub enum AttemptEnding {
    /// The body ended as its framing declared; the bytes decide the outcome.
    Whole,
    /// The connection broke or was closed within the body; the bytes decide the outcome unless they are complete.
    Broken {
        /// Connection error; empty if the client closed the connection.
        error: String,
    },
    /// The body did not begin, or the client gave up.
    Told {
        outcome: Outcome,
        /// Reason as text for users.
        error: Option<String>,
    },
}

impl AttemptEnding {
    /// Returns an outcome with its reason.
    pub fn told(how: How, by: By, retryable: bool, error: impl Into<String>) -> AttemptEnding {
        AttemptEnding::Told { outcome: Outcome::new(how, by, retryable), error: Some(error.into()) }
    }

    /// Returns whether this machine had no socket for the attempt. The client itself rejects no other attempts.
    pub(crate) fn lacks_socket(&self) -> bool {
        matches!(self, AttemptEnding::Told { outcome, .. } if (outcome.how, outcome.by) == (How::Refused, By::Client))
    }
}

/// The events that a chunk of bytes contained.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub struct ReadProgress {
    /// Set if the chunk contained the first generated token.
    pub first_token: bool,
    /// Token-bearing events in the chunk.
    pub token_events: u32,
    /// Tokens in the chunk; an event of unknown size counts as one.
    pub tokens: u64,
}

/// The unfinished row of an attempt.
#[derive(Debug)]
pub struct Recording {
    attempt: Attempt,
    stamps: Option<Rc<Stamps>>,
    /// Boxed, because a flight would otherwise be too large for the allocator's fast lists.
    decoder: Option<Box<Decoder>>,
    /// Number of the read that carried the newest event.
    newest_read: u64,
    protocol: Protocol,
    stream: bool,
    ignore_eos: bool,
    results: Option<u32>,
    sound_ms: Option<u64>,
    keep_text: bool,
    /// Set if the status already decided the outcome.
    refusal: bool,
    token_events: u64,
    coalesced: u64,
}

/// The settings for decoding a response.
#[derive(Copy, Clone, Debug)]
pub struct AnswerReading {
    pub protocol: Protocol,
    pub stream: bool,
    /// Set if the request disables the end-of-sequence token, so that the output has the requested length.
    pub ignore_eos: bool,
    /// Number of results that the response must have; `None` without a result per document.
    pub results: Option<u32>,
    /// Duration in ms of the audio that was sent.
    pub sound_ms: Option<u64>,
    pub keep_text: bool,
}

impl Recording {
    /// Begins a row. `attempt` has the fields that are known before sending.
    pub fn new(attempt: Attempt, reading: AnswerReading) -> Recording {
        Recording {
            attempt,
            stamps: None,
            decoder: None,
            newest_read: 0,
            protocol: reading.protocol,
            stream: reading.stream,
            ignore_eos: reading.ignore_eos,
            results: reading.results,
            sound_ms: reading.sound_ms,
            keep_text: reading.keep_text,
            refusal: false,
            token_events: 0,
            coalesced: 0,
        }
    }

    /// Records the connection of the attempt; reads and writes from here on belong to this attempt.
    pub fn connected(&mut self, number: u32, reused: bool, at: At, stamps: &Rc<Stamps>) {
        stamps.begin();
        self.attempt.connection = Some(number);
        self.attempt.reused = reused;
        self.attempt.connected = Some(at);
        self.stamps = Some(Rc::clone(stamps));
    }

    /// Records status and fields of the response head.
    pub fn head(&mut self, head: Head) {
        self.refusal = plimsoll_wire::head::outcome(head.status).is_some();
        let asked = (self.attempt.asked_output > 0).then_some(self.attempt.asked_output);
        self.decoder = Some(Box::new(
            Decoder::with_head(self.protocol, self.stream, head, self.keep_text)
                .expecting(asked, self.ignore_eos)
                .expecting_results(self.results)
                .expecting_sound(self.sound_ms),
        ));
        if let Some(stamps) = &self.stamps {
            self.attempt.sent = stamps.last_write();
            self.attempt.first_byte = stamps.first_read();
        }
    }

    /// Records the trailers of the response.
    pub fn trailers(&mut self, trailers: Head) {
        if let Some(decoder) = &mut self.decoder {
            decoder.trailers(trailers);
        }
    }

    /// Returns the time at which the request was written; `None` before that.
    pub fn sent(&self) -> Option<At> {
        self.attempt.sent.or_else(|| self.stamps.as_ref()?.last_write())
    }

    pub fn attempt(&self) -> &Attempt {
        &self.attempt
    }

    /// Decodes bytes of the body, with the stamps of the read that carried them. `scratch` is left empty.
    pub fn data(&mut self, bytes: &[u8], scratch: &mut Vec<DecodedEvent>) -> ReadProgress {
        let mut progress = ReadProgress::default();
        let Some(decoder) = &mut self.decoder else { return progress };
        decoder.feed(bytes, scratch);
        if scratch.is_empty() {
            return progress;
        }
        if self.attempt.events.capacity() == 0 && self.stream {
            self.attempt.events.reserve_exact((self.attempt.asked_output as usize + 4).min(EVENTS_AHEAD));
        }
        for decoded in scratch.drain(..) {
            self.event(decoded, &mut progress);
        }
        progress
    }

    fn event(&mut self, decoded: DecodedEvent, progress: &mut ReadProgress) {
        let Some(stamps) = &self.stamps else { return };
        let (read, arrival) = (stamps.reads(), stamps.arrival());
        let is_audio = self.protocol == Protocol::Speech && decoded.kind == EventKind::Content;
        let last = self.attempt.events.last().filter(|_| self.newest_read == read);
        if is_audio && last.is_some_and(|last| last.kind == EventKind::Content) {
            // Audio of one read is one piece, whether it comes as bytes or as events.
            return;
        }
        if self.newest_read == read
            && let Some(earlier) = self.attempt.events.last_mut()
            && !earlier.coalesced
        {
            earlier.coalesced = true;
            self.coalesced += u64::from(earlier.kind.is_token());
        }
        self.newest_read = read;
        let sent = self.attempt.sent.unwrap_or(arrival);
        if self.attempt.events.capacity() == 0 {
            // A complete response without a stream is one event.
            self.attempt.events.reserve_exact(1);
        }
        self.attempt.events.push(Event {
            offset: arrival - sent,
            user_delay_ns: u32::try_from(stamps.user_delay().0.max(0)).unwrap_or(u32::MAX),
            tokens: decoded.tokens,
            kind: decoded.kind,
            coalesced: false,
        });
        if decoded.kind.is_token() {
            self.token_events += 1;
            progress.token_events += 1;
            progress.tokens += u64::from(decoded.tokens.max(1));
            if self.attempt.first_token.is_none() {
                self.attempt.first_token = Some(arrival);
                progress.first_token = true;
            }
            self.attempt.last_token = Some(arrival);
        }
        if decoded.visible && decoded.kind != EventKind::Body && self.attempt.first_visible.is_none() {
            self.attempt.first_visible = Some(arrival);
        }
    }

    /// Finds the first and the last token again, because some token events turned out to have no text.
    fn look_again(&mut self) {
        let a = &mut self.attempt;
        let Some(sent) = a.sent else { return };
        let tokens = || a.events.iter().filter(|event| event.kind.is_token());
        let at = |event: Option<&Event>| event.map(|event| sent + event.offset);
        let (first, last) = (at(tokens().next()), at(tokens().next_back()));
        self.token_events = tokens().count() as u64;
        self.coalesced = tokens().filter(|event| event.coalesced).count() as u64;
        (a.first_token, a.last_token) = (first, last);
    }

    /// Returns whether the bytes are malformed, so that the rest need not be read.
    pub fn is_stopped(&self) -> bool {
        self.decoder.as_ref().is_some_and(|decoder| decoder.is_stopped())
    }

    /// Returns whether this is an error body longer than `bytes`.
    pub(crate) fn is_refusal_past(&self, bytes: u64) -> bool {
        self.refusal && self.decoder.as_ref().is_some_and(|decoder| decoder.bytes() > bytes)
    }

    /// Returns the user-space stamp of the newest read.
    pub(crate) fn newest_user_stamp(&self) -> Option<At> {
        self.stamps.as_ref().map(|stamps| stamps.user())
    }

    /// Closes the row and returns it with its token events and the number of coalesced ones.
    ///
    /// `now` is the end of an attempt that did not reach its last byte. `scrub` removes keys from texts of the server or a
    /// library.
    pub fn finish(
        mut self,
        ending: AttemptEnding,
        now: At,
        scrub: impl Fn(&str) -> String,
    ) -> (Attempt, u64, u64) {
        let sent = self.sent();
        let clean = matches!(ending, AttemptEnding::Whole);
        let verdict = self.decoder.take().map(|decoder| decoder.finish(clean));
        let mut answer = Answer::default();
        let mut outcome = Outcome::new(How::Reset, By::Network, true);
        if let Some(verdict) = verdict {
            let (tail, settled) = (verdict.tail, clean || verdict.outcome.is_finished());
            if settled && let Some(tail) = tail {
                self.event(tail, &mut ReadProgress::default());
            }
            if verdict.settle(&mut self.attempt.events) {
                self.look_again();
            }
            if !verdict.generated.is_none() {
                self.attempt.media = verdict.generated;
            }
            (outcome, answer) = (verdict.outcome, verdict.answer);
        }
        match ending {
            AttemptEnding::Whole => {}
            AttemptEnding::Broken { error } if !outcome.is_finished() && !error.is_empty() => {
                answer.error = Some(match answer.error.take() {
                    Some(first) => format!("{first} ({error})"),
                    None => error,
                });
            }
            AttemptEnding::Broken { .. } => {}
            AttemptEnding::Told { outcome: told, error } => {
                outcome = told;
                answer.error = error;
                answer.broken = None;
            }
        }
        let a = &mut self.attempt;
        answer.error = answer.error.map(|text| bounded(&scrub(&text)));
        answer.text = answer.text.map(|text| scrub(&text));
        a.sent = sent;
        a.end = Some(now);
        if let Some(stamps) = &self.stamps {
            a.bytes_out = stamps.bytes_out();
            a.bytes_in = stamps.bytes_in();
            a.tcp = stamps.tcp();
            a.kernel_stamps = a.bytes_in > 0 && stamps.all_kernel();
            if a.bytes_in > 0 && (clean || outcome.is_finished()) {
                a.end = Some(stamps.arrival());
            }
        }
        a.outcome = outcome;
        a.answer = answer;
        (self.attempt, self.token_events, self.coalesced)
    }
}

/// Returns the row of a request that was due but never sent.
pub fn never_sent(mut attempt: Attempt, by: By) -> Attempt {
    attempt.outcome = Outcome::new(How::NeverSent, by, false);
    attempt
}

fn bounded(text: &str) -> String {
    let mut end = text.len().min(ERROR_MAX);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text[..end].to_owned()
}

/// Returns the generator's part of `sent − due`: the time before the attempt began, and from the ready connection to the
/// write. The wait for a connection belongs to the target or the policy.
pub(crate) fn own_lag(due: At, begun: At, connection_ready: At, sent: At) -> Span {
    (begun - due) + (sent - connection_ready.max(begun))
}
