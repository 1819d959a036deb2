//! Decodes an answer while its bytes arrive.
//!
//! The first bytes decide how the body is parsed, not only the request or the media type. A server may answer a streaming request
//! with one JSON object, or the other way round, under either type. HTML is malformed under every protocol, because a login page or a
//! proxy's error is the usual reason. A compressed body is decompressed ([`crate::unpack`]).
//!
//! An answer is complete in these cases:
//! - `[DONE]` or the closing event of the Responses API arrived; later connection errors do not matter.
//! - Every choice has its finish reason and the body ended cleanly (transformers sends no `[DONE]`).
//! - The body ended cleanly without a single event.
//! - Under [`Protocol::Http`], the body ended cleanly: an unknown protocol has no other sign.
//!
//! A complete answer failed if it reports an error (an object, an event, a finish reason: [`crate::failed`]) or if it is empty
//! ([`Broken::Empty`]). Both are [`How::StreamError`].
//!
//! An unfinished event at a clean end (no blank line) counts if it can be parsed; otherwise the answer is truncated.

use plimsoll_model::outcome::{By, How};
use plimsoll_model::{Answer, Broken, Event, EventKind, MediaCounts, Outcome, Protocol, TokensRule};

use crate::audio::{self, AudioReader};
use crate::decoded::DecodedEvent;
use crate::fault::{BEGINNING, Fault, ProtocolFault};
use crate::head::{self, BodyFormat, Head, bounded};
use crate::kserve;
use crate::kserve::call::CallReading;
use crate::sse::Parser;
use crate::stream::Stream;
use crate::tally::Tally;
use crate::tokens::SilentTokens;
use crate::unpack::Unpacker;
use crate::whole;

/// Longest body of an answer that does not stream, in bytes.
pub const BODY_MAX: usize = 64 << 20;
/// Longest part of an error's body that is parsed, in bytes.
const ERROR_BODY_MAX: usize = 64 << 10;

/// The outcome, the answer and the last event of a decoded response.
#[derive(Clone, PartialEq, Debug)]
pub struct DecodedAnswer {
    /// Outcome, based on the received bytes.
    pub outcome: Outcome,
    pub answer: Answer,
    /// An event that only the end of the body completed; it arrived with the last byte.
    ///
    /// This is the whole body of an answer that does not stream, or a last event without its blank line.
    pub tail: Option<DecodedEvent>,
    /// Images or audio of the response. The audio has 0 ms if its format does not show the length.
    pub generated: MediaCounts,
    /// Events without text that nevertheless carry tokens.
    silent: SilentTokens,
}

impl DecodedAnswer {
    /// Updates the events with the token counts known at the end: one token each under [`TokensRule::UsageTotal`], unknown (0) under
    /// [`TokensRule::Unknown`].
    ///
    /// Events without text that carry a token get the kind of the event before them. Returns whether there are any;
    /// then the first and the last token must be determined again.
    pub fn settle(&self, events: &mut [Event]) -> bool {
        let each = match self.answer.tokens.rule {
            TokensRule::UsageTotal => Some(1),
            TokensRule::Unknown => Some(0),
            TokensRule::UsageRunning | TokensRule::Tokeniser => None,
        };
        let mut kind = EventKind::Content;
        for event in events.iter_mut().filter(|event| event.kind != EventKind::Body) {
            let is_silent = event.tokens > 0
                && match event.kind {
                    EventKind::Empty => self.silent != SilentTokens::None,
                    EventKind::Finish => self.silent == SilentTokens::EmptyAndClosing,
                    _ => false,
                };
            match event.kind.is_token() {
                true => (kind, event.tokens) = (event.kind, each.unwrap_or(event.tokens)),
                false if is_silent => (event.kind, event.tokens) = (kind, 1),
                false => event.tokens = 0,
            }
        }
        self.silent != SilentTokens::None
    }
}

/// The parsing mode of the body.
#[derive(Debug)]
enum BodyReader {
    /// Not decided yet: the first bytes so far, and the media type.
    Unknown(Vec<u8>, BodyFormat),
    Events(Parser),
    /// As the messages of a gRPC call.
    Call(CallReading),
    /// As audio.
    Audio,
    Whole(Vec<u8>),
    /// As the explanation of an error status.
    Refusal(Vec<u8>),
    /// Parsing ended because of this error.
    Stopped(ProtocolFault),
}

/// Decodes one answer. Feed it body bytes without transfer coding; memory stays under [`BODY_MAX`] plus an event.
#[derive(Debug)]
pub struct Decoder {
    protocol: Protocol,
    asks_stream: bool,
    head: Head,
    reading: BodyReader,
    asked_output: Option<u32>,
    ignore_eos: bool,
    results: Option<u32>,
    sound_ms: Option<u64>,
    stream: Stream,
    unpacker: Option<Unpacker>,
    start: Vec<u8>,
    bytes: u64,
}

impl Decoder {
    /// Creates a decoder for an answer with this status and content type.
    ///
    /// `stream` is true if a stream was requested. The received bytes decide instead, except in a gRPC call and in audio, because
    /// their bytes do not show it.
    pub fn new(
        protocol: Protocol,
        stream: bool,
        status: u16,
        content_type: Option<&str>,
        keep_text: bool,
    ) -> Decoder {
        let content_type = content_type.map(|value| bounded(value, 256));
        Decoder::with_head(protocol, stream, Head { status, content_type, ..Head::default() }, keep_text)
    }

    /// Creates a decoder for an answer with this head. The head's `Retry-After`, replica and stage times become part of the answer.
    pub fn with_head(protocol: Protocol, stream: bool, head: Head, keep_text: bool) -> Decoder {
        let reading = if head::outcome(head.status).is_some() {
            BodyReader::Refusal(Vec::new())
        } else if protocol == Protocol::KserveGrpc {
            call(stream, &head)
        } else {
            match head::media(head.content_type.as_deref()) {
                BodyFormat::Lines => BodyReader::Events(Parser::lines()),
                _ if protocol == Protocol::Speech && audio::is_binary(head.content_type.as_deref()) => {
                    BodyReader::Audio
                }
                media => BodyReader::Unknown(Vec::new(), media),
            }
        };
        let mut stream_state = Stream::new(protocol, keep_text);
        if protocol == Protocol::Speech {
            stream_state.tally.audio = AudioReader::new(&head);
        }
        let calls = protocol == Protocol::KserveGrpc;
        let unpacker = (!calls).then(|| Unpacker::new(head.content_encoding.as_deref()));
        Decoder {
            protocol,
            asks_stream: stream,
            head,
            reading,
            asked_output: None,
            ignore_eos: false,
            results: None,
            sound_ms: None,
            stream: stream_state,
            unpacker,
            start: Vec::new(),
            bytes: 0,
        }
    }

    /// Sets the requested output tokens per choice and whether the end was pinned there (`ignore_eos`).
    ///
    /// An answer of another length is then reported: [`Broken::CutShort`], [`Broken::TooLong`]. Only the server's own count decides;
    /// without it, no length error is reported.
    #[must_use]
    pub fn expecting(mut self, output_tokens: Option<u32>, ignore_eos: bool) -> Decoder {
        self.asked_output = output_tokens;
        self.ignore_eos = ignore_eos;
        self
    }

    /// Sets the required number of results; another number is reported as [`Broken::WrongCount`].
    #[must_use]
    pub fn expecting_results(mut self, results: Option<u32>) -> Decoder {
        self.results = results;
        self
    }

    /// Sets the length of the audio that was sent. An answer to another length is reported: [`Broken::CutShort`], [`Broken::TooLong`].
    #[must_use]
    pub fn expecting_sound(mut self, sound_ms: Option<u64>) -> Decoder {
        self.sound_ms = sound_ms;
        self
    }

    /// Parses the next bytes of the body and appends every completed event to `out`, in order.
    pub fn feed(&mut self, bytes: &[u8], out: &mut Vec<DecodedEvent>) {
        let Some(mut unpacker) = self.unpacker.take() else { return self.take(bytes, out) };
        let unpacked = unpacker.push(bytes, &mut |bytes| self.take(bytes, out));
        self.unpacker = Some(unpacker);
        if let Err(why) = unpacked {
            self.reading = BodyReader::Stopped(why.into());
        }
    }

    /// Parses bytes that are not compressed.
    fn take(&mut self, bytes: &[u8], out: &mut Vec<DecodedEvent>) {
        self.bytes += bytes.len() as u64;
        if self.start.len() < BEGINNING {
            let room = BEGINNING - self.start.len();
            self.start.extend_from_slice(&bytes[..bytes.len().min(room)]);
        }
        self.read(bytes, out);
    }

    fn read(&mut self, bytes: &[u8], out: &mut Vec<DecodedEvent>) {
        match &mut self.reading {
            BodyReader::Events(parser) => {
                let stream = &mut self.stream;
                let fed = parser.feed(bytes, &mut |item| stream.item(item, out));
                if let Err(why) = fed {
                    self.reading = BodyReader::Stopped(why.to_string().into());
                } else if let Some(why) = self.stream.malformed.take() {
                    self.reading = BodyReader::Stopped(why);
                }
            }
            BodyReader::Audio => {
                let event = audio::feed(bytes, &mut self.stream.tally);
                if self.asks_stream {
                    out.push(event);
                }
            }
            BodyReader::Call(call) => {
                if let Err(why) = call.feed(bytes, &mut self.stream.tally, out) {
                    self.reading = BodyReader::Stopped(why.into());
                }
            }
            BodyReader::Whole(body) => {
                if body.len() + bytes.len() > BODY_MAX {
                    self.reading = BodyReader::Stopped(
                        format!("a body of more than {BODY_MAX} bytes, which is Plimsoll's limit").into(),
                    );
                } else {
                    body.extend_from_slice(bytes);
                }
            }
            BodyReader::Refusal(body) => {
                let room = ERROR_BODY_MAX.saturating_sub(body.len());
                body.extend_from_slice(&bytes[..bytes.len().min(room)]);
            }
            BodyReader::Unknown(seen, media) => {
                seen.extend_from_slice(bytes);
                if let Some(reading) = sniff(seen, *media, self.protocol, false) {
                    let seen = std::mem::take(seen);
                    self.reread(reading, &seen, out);
                }
            }
            BodyReader::Stopped(_) => {}
        }
    }

    /// Records the trailers, to the extent that a head contains them.
    pub fn trailers(&mut self, trailers: Head) {
        if let BodyReader::Call(call) = &mut self.reading {
            call.status = trailers.call;
        }
    }

    /// Parses the buffered bytes again after the way of parsing is decided.
    fn reread(&mut self, reading: BodyReader, seen: &[u8], out: &mut Vec<DecodedEvent>) {
        self.reading = reading;
        self.read(seen, out);
    }

    /// Returns whether the bytes are malformed, so that further bytes are useless.
    pub fn is_stopped(&self) -> bool {
        matches!(self.reading, BodyReader::Stopped(_))
    }

    /// Returns the number of body bytes so far.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Ends the body. `clean_eof` is true if the body ended as its framing requires, and false if the connection broke.
    pub fn finish(mut self, clean_eof: bool) -> DecodedAnswer {
        let mut tail = Vec::new();
        if let Some(mut unpacker) = self.unpacker.take() {
            unpacker.end(&mut |bytes| self.take(bytes, &mut tail));
        }
        if let BodyReader::Unknown(seen, media) = &mut self.reading {
            let (seen, media) = (std::mem::take(seen), *media);
            let reading =
                sniff(&seen, media, self.protocol, true).unwrap_or_else(|| BodyReader::Whole(Vec::new()));
            self.reread(reading, &seen, &mut tail);
        }
        let reading = std::mem::replace(&mut self.reading, BodyReader::Whole(Vec::new()));
        let (outcome, error) = match reading {
            BodyReader::Refusal(body) => self.refused(&body),
            BodyReader::Stopped(why) => self.malformed(&why),
            BodyReader::Events(parser) => self.ended(parser, clean_eof, &mut tail),
            BodyReader::Audio => self.audio(clean_eof, &mut tail),
            BodyReader::Call(call) => call.ended(clean_eof, self.bytes, &self.stream.tally, &mut tail),
            BodyReader::Whole(body) => self.whole(&body, clean_eof, &mut tail),
            BodyReader::Unknown(..) => (MALFORMED, None),
        };
        self.verdict(outcome, error, tail.pop())
    }

    fn malformed(&self, why: &ProtocolFault) -> (Outcome, Option<String>) {
        (MALFORMED, Some(why.told(self.head.content_type.as_deref(), &self.start)))
    }

    fn verdict(self, outcome: Outcome, error: Option<String>, tail: Option<DecodedEvent>) -> DecodedAnswer {
        let mut tally = self.stream.tally;
        let (tokens, silent) = tally.tokens();
        let mut stages = self.head.stages;
        // Stages of the body replace those of the head, because they come from nearer to the engine.
        stages.retain(|of_head| tally.stages.iter().all(|of_body| of_body.name != of_head.name));
        stages.append(&mut tally.stages);
        stages.truncate(head::STAGES_MAX);
        let broken = outcome
            .is_finished()
            .then(|| broken(self.protocol, &tally, tokens.output, self.asked_output, self.ignore_eos));
        let generated = MediaCounts { audio_ms: tally.audio.length_ms().unwrap_or_default(), ..tally.images };
        let lacks = |asked: u32| tally.results.is_some_and(|came| came != asked);
        let heard = tally.heard_ms.zip(self.sound_ms).and_then(|(heard, sent)| other_length(heard, sent));
        let lacks = self.results.filter(|n| lacks(*n)).map(|_| Broken::WrongCount);
        let broken = broken.and_then(|found| found.or(lacks).or(heard));
        let (outcome, error) = match broken {
            Some(Broken::Empty) => (EMPTY, Some("an answer without anything in it".to_owned())),
            _ => (outcome, error),
        };
        let answer = Answer {
            status: Some(self.head.status),
            finish_reason: tally.finish_reason,
            tokens,
            broken,
            retry_after: self.head.retry_after,
            error,
            replica: self.head.replica,
            stages,
            text: tally.text,
        };
        DecodedAnswer { outcome, answer, tail, generated, silent }
    }

    fn refused(&self, body: &[u8]) -> (Outcome, Option<String>) {
        let outcome = head::outcome(self.head.status).unwrap_or(MALFORMED);
        let mut said = Fault::from_body(body).map(|fault| fault.text);
        if outcome.how == How::Redirected {
            said = self.head.location.as_deref().map(|to| format!("redirected to {to}")).or(said);
        }
        (outcome, said.or_else(|| Some(format!("HTTP status {}", self.head.status))))
    }

    /// Ends a body that was parsed event by event.
    fn ended(
        &mut self,
        mut parser: Parser,
        clean_eof: bool,
        tail: &mut Vec<DecodedEvent>,
    ) -> (Outcome, Option<String>) {
        let mut cut = false;
        if clean_eof && parser.is_pending() {
            let stream = &mut self.stream;
            let fed = parser.feed(b"\n\n", &mut |item| stream.item(item, tail));
            let malformed = self.stream.malformed.take();
            if let Some(why) = malformed.as_ref().filter(|_| self.stream.is_markup) {
                return self.malformed(why);
            }
            cut = fed.is_err() || malformed.is_some();
        }
        if let Some(outcome) = self.told() {
            return outcome;
        }
        let tally = &self.stream.tally;
        let by = if clean_eof { By::Server } else { By::Network };
        if tally.done {
            return (Outcome::FINISHED, None);
        }
        if self.bytes == 0 && !clean_eof {
            return (
                Outcome::new(How::Reset, By::Network, true),
                Some("closed before the body began".into()),
            );
        }
        let whole = self.protocol == Protocol::Http || tally.all_finished() || self.stream.events == 0;
        if clean_eof && !cut && whole {
            return (Outcome::FINISHED, None);
        }
        (Outcome::new(How::Truncated, by, true), Some("the stream ended before its end".into()))
    }

    /// Ends a body of audio, which is one event unless a stream was requested.
    fn audio(&self, clean_eof: bool, tail: &mut Vec<DecodedEvent>) -> (Outcome, Option<String>) {
        if !self.asks_stream && self.bytes > 0 {
            tail.push(DecodedEvent {
                kind: EventKind::Body,
                tokens: 0,
                visible: self.stream.tally.generated,
            });
        }
        let (how, why) = match (clean_eof, self.bytes) {
            (true, _) => return (Outcome::FINISHED, None),
            (false, 0) => (How::Reset, "closed before the body began"),
            (false, _) => (How::Truncated, "the audio ended before its end"),
        };
        (Outcome::new(how, By::Network, true), Some(why.into()))
    }

    fn whole(
        &mut self,
        body: &[u8],
        clean_eof: bool,
        tail: &mut Vec<DecodedEvent>,
    ) -> (Outcome, Option<String>) {
        if !clean_eof {
            return (
                Outcome::new(How::Reset, By::Network, true),
                Some("closed before the body ended".into()),
            );
        }
        // A transcript may be requested as plain text.
        let any = matches!(self.protocol, Protocol::Http | Protocol::Transcriptions);
        let json = head::media(self.head.content_type.as_deref()) == BodyFormat::Json || !any;
        let (body, raw) =
            match self.head.json_length.filter(|_| self.protocol == Protocol::Kserve).map(|n| n as usize) {
                Some(length) if length > body.len() => {
                    let why =
                        format!("the header declares {length} bytes of JSON and {} arrived", body.len());
                    return (MALFORMED, Some(why));
                }
                Some(length) => (&body[..length], body.len() - length),
                None => (body, 0),
            };
        if let Err(why) = whole::read(self.protocol, without_done(body), (json, raw), &mut self.stream.tally)
        {
            return self.malformed(&why);
        }
        if let Some(outcome) = self.told() {
            tail.push(DecodedEvent::of(EventKind::Error));
            return outcome;
        }
        if !body.is_empty() {
            let tokens = self.stream.tally.tokens().0.output.and_then(|n| u16::try_from(n).ok()).unwrap_or(0);
            tail.push(DecodedEvent { kind: EventKind::Body, tokens, visible: self.stream.tally.generated });
        }
        (Outcome::FINISHED, None)
    }

    /// Returns the outcome of an error under a success status, if there is one. It is retryable unless the server attributes
    /// the error to the request.
    fn told(&self) -> Option<(Outcome, Option<String>)> {
        let fault = self.stream.tally.fault()?;
        let retryable = !fault.code.is_some_and(|code| (400..500).contains(&code) && code != 429);
        Some((Outcome::new(How::StreamError, By::Server, retryable), Some(fault.text.clone())))
    }
}

/// Returns the way to parse the body of a call with this head.
fn call(stream: bool, head: &Head) -> BodyReader {
    let kind = head.content_type.as_deref().unwrap_or_default();
    match kind.starts_with(kserve::grpc::CONTENT_TYPE) || head.call.is_some() {
        true => BodyReader::Call(CallReading::new(stream, BODY_MAX, head.call.clone())),
        false => BodyReader::Stopped(format!("answered with {kind:?}, which is no gRPC").into()),
    }
}

const MALFORMED: Outcome = Outcome::new(How::Malformed, By::Server, false);
/// Outcome of an empty answer; it is retryable because nothing was generated.
const EMPTY: Outcome = Outcome::new(How::StreamError, By::Server, true);

/// Returns the fault of a complete answer, the most severe first.
fn broken(
    protocol: Protocol,
    tally: &Tally,
    output: Option<u32>,
    asked: Option<u32>,
    ignore_eos: bool,
) -> Option<Broken> {
    if !tally.generated && output.unwrap_or(0) == 0 {
        return Some(Broken::Empty);
    }
    if protocol.asks_length()
        && let (Some(output), Some(asked)) = (output, asked)
    {
        let asked = u64::from(asked) * u64::from(tally.choice_count());
        if u64::from(output) > asked {
            return Some(Broken::TooLong);
        }
        if ignore_eos && u64::from(output) < asked {
            return Some(Broken::CutShort);
        }
    }
    tally.is_repeated().then_some(Broken::Repeated)
}

/// Returns the fault if the reported audio length differs by more than the server's rounding: a twentieth, and half a second.
fn other_length(heard: u64, sent: u64) -> Option<Broken> {
    let off = heard.abs_diff(sent);
    match off > 500 && off > sent / 20 {
        true if heard < sent => Some(Broken::CutShort),
        true => Some(Broken::TooLong),
        false => None,
    }
}

/// Number of first bytes that decide how a body without another sign is parsed.
const SNIFFED: usize = 4096;

/// Decides by the first bytes; `None` if more bytes are needed. With `end`, the body has no more bytes.
fn sniff(seen: &[u8], media: BodyFormat, protocol: Protocol, end: bool) -> Option<BodyReader> {
    let end = end || seen.len() >= SNIFFED;
    let seen = seen.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(seen).trim_ascii_start();
    let usual = || match media {
        BodyFormat::EventStream => BodyReader::Events(Parser::new()),
        BodyFormat::Html => BodyReader::Stopped("answered with a web page".into()),
        BodyFormat::Other | BodyFormat::Unsaid if protocol == Protocol::Speech => BodyReader::Audio,
        _ => BodyReader::Whole(Vec::new()),
    };
    let fields: [&[u8]; 5] = [b"data:", b"event:", b"id:", b"retry:", b":"];
    match seen.first() {
        None => end.then(usual),
        Some(b'<') if media != BodyFormat::EventStream => {
            Some(BodyReader::Stopped("answered with a web page or other markup".into()))
        }
        Some(b'{') => sniff_json(seen, media, protocol, end),
        _ if fields.iter().any(|field| seen.starts_with(field)) => Some(BodyReader::Events(Parser::new())),
        _ if !end && fields.iter().any(|field| field.starts_with(seen)) => None,
        _ => Some(usual()),
    }
}

/// Decides about a body that starts with a JSON object: a single object, or JSON Lines.
fn sniff_json(seen: &[u8], media: BodyFormat, protocol: Protocol, end: bool) -> Option<BodyReader> {
    let whole = || Some(BodyReader::Whole(Vec::new()));
    let Some(line) = memchr::memchr(b'\n', seen).map(|at| &seen[..at]) else {
        return match media {
            // A complete line is parsed as an event.
            BodyFormat::EventStream if end && seen.len() >= SNIFFED => {
                Some(BodyReader::Events(Parser::new()))
            }
            _ if end => whole(),
            _ => None,
        };
    };
    if serde_json::from_slice::<serde::de::IgnoredAny>(line).is_err() {
        return whole();
    }
    let holds = |words: &[u8]| memchr::memmem::find(line, words).is_some();
    let is_piece = holds(b"\"delta\"") || holds(b".chunk\"");
    match protocol.sends_lines() {
        true if holds(b"\"done\":false") || holds(b"\"done\": false") => {
            Some(BodyReader::Events(Parser::lines()))
        }
        _ if media == BodyFormat::EventStream || is_piece => Some(BodyReader::Events(Parser::new())),
        _ => whole(),
    }
}

/// Returns a complete answer without a byte-order mark, and without the end-of-stream mark that some gateways append.
fn without_done(body: &[u8]) -> &[u8] {
    let body = body.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(body);
    let cut = |body: &[u8]| {
        Some(body.trim_ascii_end().strip_suffix(b"[DONE]")?.trim_ascii_end().strip_suffix(b"data:")?.len())
    };
    cut(body).map_or(body, |end| &body[..end])
}
