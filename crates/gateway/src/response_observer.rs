//! Accounting of a response while it passes: first token, stream events, cached prompt share and end. The bytes are
//! moved elsewhere: by `relay`, or by an external proxy that reports them to the `picker`.

use std::sync::atomic::Ordering;
use std::sync::{Arc, LazyLock};

use http::HeaderMap;
use http::header::CONTENT_TYPE;
use memchr::memmem::{self, Finder};
use plimsoll_client::Clock;
use plimsoll_model::{At, Protocol};
use plimsoll_wire::{DecodedEvent, Decoder};

use crate::auth::RateCharge;
use crate::head_verdict::HeadVerdict;
use crate::owners::{MadeObject, ObjectSearch};
use crate::pool::ReplicaLease;
use crate::request::packed;
use crate::stats::{EndCounter, RequestEnd, RequestStage, Stats};
use crate::traffic::tail::TailReader;
use crate::traffic::{RequestRecord, TryEnd};

/// Returns the protocol of the responses of a path.
pub fn protocol(path: &str) -> Protocol {
    Protocol::at(path).unwrap_or(Protocol::Http)
}

/// Returns whether responses of this protocol are generated text. An empty response is a failure then.
pub fn generates(protocol: Protocol) -> bool {
    use Protocol::{Chat, Completions, Messages, OllamaChat, OllamaGenerate, Responses};
    matches!(protocol, Chat | Completions | Messages | OllamaChat | OllamaGenerate | Responses)
}

/// Returns the media type of the protocol's streams.
pub(crate) fn stream_type(protocol: Protocol) -> &'static str {
    if protocol.sends_lines() { "application/x-ndjson" } else { "text/event-stream" }
}

/// Returns whether a response is a readable event stream. A compressed stream is not, because nothing may be inserted
/// between its bytes.
pub fn is_stream(protocol: Protocol, headers: &HeaderMap) -> bool {
    has_events(protocol, headers) && !packed::is_packed(headers)
}

/// Returns whether a response contains events, independent of its content coding.
pub(crate) fn has_events(protocol: Protocol, headers: &HeaderMap) -> bool {
    let kind = headers.get(CONTENT_TYPE);
    kind.is_some_and(|kind| kind.as_bytes().starts_with(stream_type(protocol).as_bytes()))
}

/// A response whose head has arrived.
pub(crate) struct StartedResponse {
    /// Arrival time of the request head.
    pub arrived: At,
    /// Arrival time of the response head.
    pub head: At,
    pub lease: ReplicaLease,
    pub verdict: HeadVerdict,
    pub charge: Option<RateCharge>,
    pub record: Option<RequestRecord>,
    pub end: EndCounter,
    /// Parser that finds a stored object in the response; `None` if the path creates none.
    pub made: Option<MadeObject>,
}

/// The accounting state of a response. A drop before the end means that the client disconnected.
pub struct ResponseObserver {
    lease: Option<ReplicaLease>,
    verdict: HeadVerdict,
    tail: TailReader,
    is_success: bool,
    stats: Arc<Stats>,
    end: EndCounter,
    clock: Clock,
    arrived: At,
    head: At,
    events: Option<EventCounter>,
    charge: Option<RateCharge>,
    record: Option<RequestRecord>,
    made: Option<MadeObject>,
}

/// The counting state of an event stream.
struct EventCounter {
    protocol: Protocol,
    /// The last five bytes, because a frame can end anywhere in an event.
    tail: [u8; 5],
    /// Set while a counted event is incomplete.
    open: bool,
    /// Decoder that searches for the first token; `None` once found.
    before: Option<Box<Decoder>>,
    decoded: Vec<DecodedEvent>,
}

impl EventCounter {
    fn new(protocol: Protocol) -> EventCounter {
        let decoder = Decoder::new(protocol, true, 200, Some(stream_type(protocol)), false);
        EventCounter {
            protocol,
            tail: *b"\n\n\n\n\n",
            open: false,
            before: Some(Box::new(decoder)),
            decoded: Vec::new(),
        }
    }

    /// Returns the first token in these bytes. The flag is set if its event began earlier (`was_open`). Many servers
    /// send a role event long before the first token.
    fn first(&mut self, data: &[u8], was_open: bool) -> (Option<DecodedEvent>, bool) {
        let Some(decoder) = &mut self.before else { return (None, false) };
        self.decoded.clear();
        decoder.feed(data, &mut self.decoded);
        let place = self.decoded.iter().position(|one| one.kind.is_token());
        // An undecodable stream is forwarded anyway, but the gateway learns nothing more from it.
        if place.is_some() || decoder.is_stopped() {
            self.before = None;
        }
        (place.map(|place| self.decoded[place]), was_open && place == Some(0))
    }

    /// Counts the events that begin in these bytes, including a split event prefix. The flag is set if a counted
    /// event was incomplete before.
    fn count(&mut self, data: &[u8]) -> (u32, bool) {
        let tail = self.tail;
        let kept = data.len().min(tail.len());
        self.tail.rotate_left(kept);
        self.tail[tail.len() - kept..].copy_from_slice(&data[data.len() - kept..]);
        if self.protocol.sends_lines() {
            // Line protocols are counted by line ends.
            return (memchr::memchr_iter(b'\n', data).count() as u32, false);
        }
        let at_line_start = |place: usize| match place {
            0 => tail[4] == b'\n',
            place => data[place - 1] == b'\n',
        };
        let whole = memmem::find_iter(data, b"data:").filter(|&place| at_line_start(place)).count() as u32;
        let seam = [&tail[..], &data[..data.len().min(4)]].concat();
        // The preceding line end and the first letter are in the tail, the last letter is in the data.
        let is_cut = (0..4).any(|place| seam.get(place..place + 6) == Some(b"\ndata:"));
        let begun = whole + u32::from(is_cut);
        let was_open = self.open;
        self.open = (was_open || begun > 0) && !self.is_between();
        (begun, was_open)
    }

    /// Returns whether the received bytes end between two events.
    fn is_between(&self) -> bool {
        self.tail.ends_with(b"\n\n") || self.tail.ends_with(b"\n\r\n")
    }
}

impl ResponseObserver {
    /// Starts the accounting. `stream` is the protocol of an event stream, `None` for other responses.
    pub(crate) fn new(
        started: StartedResponse,
        stream: Option<Protocol>,
        stats: Arc<Stats>,
        clock: Clock,
    ) -> ResponseObserver {
        let StartedResponse { arrived, head, lease, verdict, charge, mut record, end, made } = started;
        if stream.is_some() {
            record.iter_mut().for_each(|record| record.of_try(|one| one.streams = true));
        }
        let mut tail = TailReader::default();
        tail.set_unread(verdict.is_unread);
        let (lease, events) = (Some(lease), stream.map(EventCounter::new));
        let is_success = false;
        ResponseObserver {
            lease,
            verdict,
            tail,
            is_success,
            stats,
            end,
            clock,
            arrived,
            head,
            events,
            charge,
            record,
            made,
        }
    }

    /// Returns the protocol of an event stream, or `None` for other responses.
    pub fn stream(&self) -> Option<Protocol> {
        self.events.as_ref().map(|events| events.protocol)
    }

    /// Returns whether the response is a stream that is between two events.
    pub(crate) fn is_between_events(&self) -> bool {
        self.events.as_ref().is_some_and(EventCounter::is_between)
    }

    /// Counts the bytes of a frame.
    pub fn passes(&mut self, data: &[u8], now: At) {
        self.record.iter_mut().for_each(|record| record.piece(data.len()));
        self.tail.push(data, now);
        self.looks(data, false);
        if let (Some(lease), Some(share)) = (&self.lease, cached_share(data)) {
            lease.cached(share);
        }
        match (&self.events, &mut self.charge) {
            (Some(_), _) => self.note(data, now),
            (None, Some(charge)) => charge.passes(data.len()),
            (None, None) => {}
        }
    }

    /// Searches the bytes for the object that the replica created.
    fn looks(&mut self, data: &[u8], is_end: bool) {
        let (Some(made), Some(lease)) = (&mut self.made, &self.lease) else { return };
        if let ObjectSearch::Over(object) = made.passes(data, is_end) {
            object.into_iter().for_each(|object| lease.made(object));
            self.made = None;
        }
    }

    /// Counts the events of a frame.
    fn note(&mut self, data: &[u8], now: At) {
        let (Some(events), Some(lease)) = (&mut self.events, &mut self.lease) else { return };
        let (begun, was_open) = events.count(data);
        let (first, is_of_before) = events.first(data, was_open);
        if begun == 0 && first.is_none() {
            return;
        }
        self.stats.events.fetch_add(u64::from(begun), Ordering::Relaxed);
        // EventCounter count from the first token on, even if its event began in the previous frame.
        let count = begun + u32::from(is_of_before);
        if first.is_some() {
            self.stats.took(RequestStage::FirstToken, now - self.head);
            self.stats.took(RequestStage::Ttft, now - self.arrived);
            self.stats.took(RequestStage::TtftExpected, lease.expected());
            lease.begin(now);
        }
        lease.moved(count, now);
        self.charge.iter_mut().for_each(|charge| charge.answered(u64::from(begun)));
        self.record.iter_mut().for_each(|record| record.events(count, first, now));
    }

    /// Records the end of the response: complete or broken. A second call has no effect.
    pub fn end(&mut self, whole: bool) {
        self.looks(b"", true);
        let Some(lease) = self.lease.take() else { return };
        self.stats.took(RequestStage::Total, self.clock.now() - self.arrived);
        let (verdict, end, output) = self.verdict.whole(&self.tail, whole);
        if let Some(mut charge) = self.charge.take() {
            output.into_iter().for_each(|tokens| charge.reports(tokens));
        }
        self.is_success = end == RequestEnd::Answered;
        self.records(Some(if whole { TryEnd::Whole } else { TryEnd::Cut }));
        lease.end(verdict);
        self.end.count(end);
    }

    /// Returns whether the response has ended successfully.
    pub(crate) fn is_success(&self) -> bool {
        self.is_success
    }

    fn records(&mut self, end: Option<TryEnd>) {
        if let Some(mut record) = self.record.take() {
            record.tail(std::mem::take(&mut self.tail));
            end.into_iter().for_each(|end| record.ends(end));
        }
    }
}

impl Drop for ResponseObserver {
    fn drop(&mut self) {
        if self.lease.is_some() {
            self.records(None);
        }
    }
}

static CACHED: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(b"\"cached_tokens\":"));

static CACHE_READ: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(b"\"cache_read_input_tokens\":"));

/// Returns the cached share of the prompt if the bytes contain a `usage` object with
/// `prompt_tokens_details.cached_tokens`. OpenAI defines this field; vLLM, SGLang and llama.cpp use it too. Generated
/// text cannot imitate it, because quotes in the text are escaped.
///
/// Anthropic's `input_tokens` excludes cached tokens.
pub fn cached_share(data: &[u8]) -> Option<f64> {
    if let Some(at) = CACHE_READ.find(data) {
        let cached = number(&data[at + CACHE_READ.needle().len()..])?;
        let of = |name: &[u8]| number(&data[memmem::find(data, name)? + name.len()..]);
        let written = of(b"\"cache_creation_input_tokens\":").unwrap_or(0);
        let prompt = of(b"\"input_tokens\":")?.saturating_add(cached).saturating_add(written);
        return (prompt > 0).then(|| cached as f64 / prompt as f64);
    }
    let at = CACHED.find(data)?;
    let cached = number(&data[at + CACHED.needle().len()..])?;
    let name = b"\"prompt_tokens\":";
    let prompt = number(&data[memmem::find(data, name)? + name.len()..])?;
    (prompt > 0 && cached <= prompt).then(|| cached as f64 / prompt as f64)
}

fn number(text: &[u8]) -> Option<u64> {
    let text = text.trim_ascii_start();
    let digits = text.iter().take_while(|byte| byte.is_ascii_digit()).count();
    std::str::from_utf8(&text[..digits]).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_share_is_read_where_it_stands_and_nowhere_else() {
        // llama.cpp's last chunk, shortened.
        let chunk = br#"data: {"choices":[],"usage":{"completion_tokens":8,"prompt_tokens":40,"total_tokens":48,"prompt_tokens_details":{"cached_tokens":30}}}"#;
        assert_eq!(cached_share(chunk), Some(0.75));
        assert_eq!(
            cached_share(
                br#"{"usage": {"prompt_tokens": 4, "prompt_tokens_details": {"cached_tokens": 0}}}"#
            ),
            Some(0.0)
        );
        let told =
            br#"data: {"choices":[{"delta":{"content":"{\"prompt_tokens\": 4, \"cached_tokens\": 4}"}}]}"#;
        assert_eq!(cached_share(told), None);
        // The example of Anthropic's reference for prompt caching, shortened: 188 086 of 188 107 tokens were cached.
        let delta = br#"data: {"type":"message_delta","usage":{"cache_creation_input_tokens":0,"cache_read_input_tokens":188086,"input_tokens":21,"output_tokens":393}}"#;
        assert_eq!(cached_share(delta), Some(188_086.0 / 188_107.0));
        assert_eq!(cached_share(br#"{"usage":{"cache_read_input_tokens":null,"input_tokens":3}}"#), None);
        let odd: [&[u8]; 4] = [
            b"\"cached_tokens\":",
            b"\"cached_tokens\":7",
            b"\"cached_tokens\":7,\"prompt_tokens\":0",
            b"\"cached_tokens\":null,\"prompt_tokens\":9",
        ];
        odd.iter().for_each(|data| assert_eq!(cached_share(data), None));
        assert_eq!(cached_share(b"\"prompt_tokens\":9,\"cached_tokens\":99999999999999999999999"), None);
    }

    /// The event count does not depend on the frame boundaries, neither in total nor from the first token on.
    #[test]
    fn events_are_counted_wherever_frames_are_cut() {
        let text = b"data: {\"choices\":[{\"delta\":{\"role\":\"assistant\"}}]}\n\ndata: {\"choices\":[{\"delta\":{\"content\":\"a data: b\"}}]}\n\ndata: {\"choices\":[{\"delta\":{\"content\":\"c\"}}]}\n\ndata: [DONE]\n\n";
        for size in 1..text.len() {
            let mut events = EventCounter::new(Protocol::at("/v1/chat/completions").expect("known"));
            let (mut all, mut since, mut has_first) = (0, 0, false);
            for data in text.chunks(size) {
                let (begun, was_open) = events.count(data);
                let (first, is_of_before) = events.first(data, was_open);
                all += begun;
                has_first |= first.is_some();
                since += if has_first { begun + u32::from(is_of_before) } else { 0 };
            }
            assert_eq!(all, 4, "in frames of {size}");
            // A frame with the end of the first event and the complete next one counts from the next one on.
            assert!(has_first && (3..=4).contains(&since), "{since} in frames of {size}");
        }
    }
}
