//! What is counted of an answer as it passes: its first token, the events of its stream, what of its prompt was cached, and its end. Who moves the bytes is another's
//! affair: [`relay`](crate::relay) does, or a proxy that shows them to the [`picker`](crate::picker).

use std::sync::Arc;
use std::sync::atomic::Ordering;

use http::HeaderMap;
use http::header::CONTENT_TYPE;
use memchr::memmem;
use plimsoll_client::Clock;
use plimsoll_model::{At, Protocol};
use plimsoll_wire::{Decoded, Decoder};

use crate::doors::Toll;
use crate::judged::JudgedHead;
use crate::owners::{Looked, MadeObject};
use crate::pool::Booked;
use crate::request::packed;
use crate::stats::{End, RequestStage, Stats};
use crate::traffic::tail::TailReader;
use crate::traffic::{Recording, TryEnd};
use crate::usage::cached_share;

/// How an endpoint's answers are read, by its path.
pub fn protocol(path: &str) -> Protocol {
    Protocol::at(path).unwrap_or(Protocol::Http)
}

/// Returns whether an answer of this kind is generated text, so that one without any is of no use.
pub fn generates(protocol: Protocol) -> bool {
    use Protocol::{Chat, Completions, Messages, OllamaChat, OllamaGenerate, Responses};
    matches!(protocol, Chat | Completions | Messages | OllamaChat | OllamaGenerate | Responses)
}

/// The media type of its streams.
pub(crate) fn stream_type(protocol: Protocol) -> &'static str {
    if protocol.sends_lines() { "application/x-ndjson" } else { "text/event-stream" }
}

/// Returns whether an answer is a stream of events that can be read. The bytes of an encoded one are none: nothing may be written between them.
pub fn is_stream(protocol: Protocol, headers: &HeaderMap) -> bool {
    has_events(protocol, headers) && !packed::is_packed(headers)
}

/// Returns whether an answer holds events, whatever its bytes are encoded in.
pub(crate) fn has_events(protocol: Protocol, headers: &HeaderMap) -> bool {
    let kind = headers.get(CONTENT_TYPE);
    kind.is_some_and(|kind| kind.as_bytes().starts_with(stream_type(protocol).as_bytes()))
}

/// An answer whose head has come.
pub struct BegunAnswer {
    /// When the request's head came, and the answer's.
    pub came: At,
    /// See `came`.
    pub head: At,
    pub booked: Booked,
    pub judged: JudgedHead,
    pub toll: Option<Toll>,
    pub recording: Option<Recording>,
    pub ends: Arc<Stats>,
    /// Looks for the object that the replica made and keeps.
    pub made: Option<MadeObject>,
}

/// See the module. Dropped before its end, its client went away.
pub struct PassingAnswer {
    booked: Option<Booked>,
    judged: JudgedHead,
    tail: TailReader,
    is_success: bool,
    stats: Arc<Stats>,
    ends: Arc<Stats>,
    clock: Clock,
    came: At,
    head: At,
    events: Option<Events>,
    toll: Option<Toll>,
    recording: Option<Recording>,
    made: Option<MadeObject>,
}

/// What is known of a stream of events.
struct Events {
    protocol: Protocol,
    /// The last five bytes: an event may be cut anywhere.
    tail: [u8; 5],
    /// Is one that was counted under way?
    open: bool,
    /// Looks for the first token, until it has come.
    before: Option<Box<Decoder>>,
    decoded: Vec<Decoded>,
}

impl Events {
    fn new(protocol: Protocol) -> Events {
        let decoder = Decoder::new(protocol, true, 200, Some(stream_type(protocol)), false);
        Events {
            protocol,
            tail: *b"\n\n\n\n\n",
            open: false,
            before: Some(Box::new(decoder)),
            decoded: Vec::new(),
        }
    }

    /// The first token, if it is among these bytes, and whether it is of an event that began before them (where one `was_open`). Many servers open a stream with an event
    /// that says who speaks, long before.
    fn first(&mut self, data: &[u8], was_open: bool) -> (Option<Decoded>, bool) {
        let Some(decoder) = &mut self.before else { return (None, false) };
        self.decoded.clear();
        decoder.feed(data, &mut self.decoded);
        let place = self.decoded.iter().position(|one| one.kind.is_token());
        // What can't be decoded is passed on all the same; nothing more is learnt of it.
        if place.is_some() || decoder.is_stopped() {
            self.before = None;
        }
        (place.map(|place| self.decoded[place]), was_open && place == Some(0))
    }

    /// How many begin in these bytes, or with them: what an event begins with may be cut too. The second is whether one that was counted is still under way where they begin.
    fn count(&mut self, data: &[u8]) -> (u32, bool) {
        let tail = self.tail;
        let kept = data.len().min(tail.len());
        self.tail.rotate_left(kept);
        self.tail[tail.len() - kept..].copy_from_slice(&data[data.len() - kept..]);
        if self.protocol.sends_lines() {
            // Counted by their ends.
            return (memchr::memchr_iter(b'\n', data).count() as u32, false);
        }
        let at_line_start = |place: usize| match place {
            0 => tail[4] == b'\n',
            place => data[place - 1] == b'\n',
        };
        let whole = memmem::find_iter(data, b"data:").filter(|&place| at_line_start(place)).count() as u32;
        let seam = [&tail[..], &data[..data.len().min(4)]].concat();
        // Its line's end before it and its first letter are in the tail, its last in the data.
        let is_cut = (0..4).any(|place| seam.get(place..place + 6) == Some(b"\ndata:"));
        let begun = whole + u32::from(is_cut);
        let was_open = self.open;
        self.open = (was_open || begun > 0) && !self.is_between();
        (begun, was_open)
    }

    /// Does what has come end where an event does?
    fn is_between(&self) -> bool {
        self.tail.ends_with(b"\n\n") || self.tail.ends_with(b"\n\r\n")
    }
}

impl PassingAnswer {
    /// Counts it from here on. `stream`: how its events are read, where it is a stream of them.
    pub fn new(
        mut begun: BegunAnswer,
        stream: Option<Protocol>,
        stats: Arc<Stats>,
        clock: Clock,
    ) -> PassingAnswer {
        if stream.is_some() {
            begun.recording.iter_mut().for_each(|recording| recording.of_try(|one| one.streams = true));
        }
        let mut tail = TailReader::default();
        tail.set_unread(begun.judged.is_unread);
        PassingAnswer {
            booked: Some(begun.booked),
            judged: begun.judged,
            tail,
            is_success: false,
            stats,
            ends: begun.ends,
            clock,
            came: begun.came,
            head: begun.head,
            events: stream.map(Events::new),
            toll: begun.toll,
            recording: begun.recording,
            made: begun.made,
        }
    }

    /// How its events are read; `None` = it is no stream.
    pub fn stream(&self) -> Option<Protocol> {
        self.events.as_ref().map(|events| events.protocol)
    }

    /// Is it a stream that stands between two events?
    pub(crate) fn is_between_events(&self) -> bool {
        self.events.as_ref().is_some_and(Events::is_between)
    }

    /// Counts what came of it.
    pub fn passes(&mut self, data: &[u8], now: At) {
        self.recording.iter_mut().for_each(|recording| recording.piece(data.len()));
        self.tail.push(data, now);
        self.looks(data, false);
        if let (Some(booked), Some(share)) = (&self.booked, cached_share(data)) {
            booked.cached(share);
        }
        match (&self.events, &mut self.toll) {
            (Some(_), _) => self.note(data, now),
            (None, Some(toll)) => toll.passes(data.len()),
            (None, None) => {}
        }
    }

    /// Looks for the object that the replica made.
    fn looks(&mut self, data: &[u8], is_end: bool) {
        let (Some(made), Some(booked)) = (&mut self.made, &self.booked) else { return };
        if let Looked::Over(object) = made.passes(data, is_end) {
            object.into_iter().for_each(|object| booked.made(object));
            self.made = None;
        }
    }

    /// Counts what came of a stream.
    fn note(&mut self, data: &[u8], now: At) {
        let (Some(events), Some(booked)) = (&mut self.events, &mut self.booked) else { return };
        let (begun, was_open) = events.count(data);
        let (first, is_of_before) = events.first(data, was_open);
        if begun == 0 && first.is_none() {
            return;
        }
        self.stats.events.fetch_add(u64::from(begun), Ordering::Relaxed);
        // From its first token on, also where that one's event began in the frame before.
        let count = begun + u32::from(is_of_before);
        if first.is_some() {
            self.stats.took(RequestStage::FirstToken, now - self.head);
            self.stats.took(RequestStage::Ttft, now - self.came);
            self.stats.took(RequestStage::TtftExpected, booked.expected());
            booked.begin(now);
        }
        booked.moved(count, now);
        self.toll.iter_mut().for_each(|toll| toll.answered(u64::from(begun)));
        self.recording.iter_mut().for_each(|recording| recording.events(count, first, now));
    }

    /// It ended: all of it came, or it broke off. A second end changes nothing.
    pub fn end(&mut self, whole: bool) {
        self.looks(b"", true);
        let Some(booked) = self.booked.take() else { return };
        self.ends.took(RequestStage::Total, self.clock.now() - self.came);
        let (verdict, end, output) = self.judged.whole(&self.tail, whole);
        if let Some(mut toll) = self.toll.take() {
            output.into_iter().for_each(|tokens| toll.reports(tokens));
        }
        self.is_success = end == End::Answered;
        self.records(Some(if whole { TryEnd::Whole } else { TryEnd::Cut }));
        booked.end(verdict);
        self.ends.end(end);
    }

    /// Returns whether it has ended, and was of use.
    pub(crate) fn is_success(&self) -> bool {
        self.is_success
    }

    fn records(&mut self, end: Option<TryEnd>) {
        if let Some(mut recording) = self.recording.take() {
            recording.tail(std::mem::take(&mut self.tail));
            end.into_iter().for_each(|end| recording.ends(end));
        }
    }
}

impl Drop for PassingAnswer {
    fn drop(&mut self) {
        if self.booked.is_some() {
            self.records(None);
            self.ends.end(End::Cancelled);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// However a stream is cut into frames, it has the same events, and as many of them from its first token on.
    #[test]
    fn events_are_counted_wherever_frames_are_cut() {
        let text = b"data: {\"choices\":[{\"delta\":{\"role\":\"assistant\"}}]}\n\ndata: {\"choices\":[{\"delta\":{\"content\":\"a data: b\"}}]}\n\ndata: {\"choices\":[{\"delta\":{\"content\":\"c\"}}]}\n\ndata: [DONE]\n\n";
        for size in 1..text.len() {
            let mut events = Events::new(Protocol::at("/v1/chat/completions").expect("known"));
            let (mut all, mut since, mut has_first) = (0, 0, false);
            for data in text.chunks(size) {
                let (begun, was_open) = events.count(data);
                let (first, is_of_before) = events.first(data, was_open);
                all += begun;
                has_first |= first.is_some();
                since += if has_first { begun + u32::from(is_of_before) } else { 0 };
            }
            assert_eq!(all, 4, "in frames of {size}");
            // A frame that holds the end of the first event and the whole next one counts from its own first one on.
            assert!(has_first && (3..=4).contains(&since), "{since} in frames of {size}");
        }
    }
}
