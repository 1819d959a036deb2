//! An answer on its way from a replica to a client: frame by frame, counted, never held.
//!
//! The next frame is asked for when the client has taken the one before, so a slow reader slows its replica down and nothing gathers here.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body as _, Frame, SizeHint};
use hyper::body::Incoming;
use memchr::memmem;
use plimsoll_model::{At, Protocol, Span};
use plimsoll_policy::ReplicaOutcome;
use plimsoll_wire::{Decoded, Decoder};
use tokio::time::Sleep;

use crate::doors::Toll;
use crate::join::UnderWay;
use crate::pool::Booked;
use crate::reply::{RelayEnd, broken_stream};
use crate::stats::{End, EndCount, RequestStage, Stats};
use crate::traffic::{Recording, TryEnd};
use crate::upstream::Lent;
use crate::usage::cached_share;

/// What keeps a silent stream's connection open: a comment, which readers of events skip.
const COMMENT: &[u8] = b": keep-alive\n\n";

/// See the module.
pub struct Relay {
    answer: Incoming,
    /// What came of it before it was clear that it is passed on, and when.
    held: VecDeque<(At, Bytes)>,
    lent: Option<Lent>,
    booked: Option<Booked>,
    /// What became of the attempt if its answer comes whole, and of the request.
    whole: (ReplicaOutcome, End),
    stats: Arc<Stats>,
    ends: EndCount,
    clock: plimsoll_client::Clock,
    came: At,
    head: At,
    /// Is it a stream of events?
    events: Option<Events>,
    toll: Option<Toll>,
    recording: Option<Recording>,
    under_way: Option<UnderWay>,
    ended: bool,
    is_whole: bool,
}

/// What is known of a stream of events.
struct Events {
    protocol: Protocol,
    /// The last two bytes.
    tail: [u8; 2],
    /// Looks for the first token, until it has come.
    before: Option<Box<Decoder>>,
    decoded: Vec<Decoded>,
    quiet: Option<Pin<Box<Sleep>>>,
    limit: Duration,
    last: At,
}

impl Events {
    /// The first token, if it is among these bytes. Many servers open a stream with an event that says who speaks, long before.
    fn first(&mut self, data: &[u8]) -> Option<Decoded> {
        let decoder = self.before.as_mut()?;
        self.decoded.clear();
        decoder.feed(data, &mut self.decoded);
        let first = self.decoded.iter().find(|one| one.kind.is_token()).copied();
        // What can't be decoded is passed on all the same; nothing more is learnt of it.
        if first.is_some() || decoder.is_stopped() {
            self.before = None;
        }
        first
    }
}

/// How an endpoint's answers are read, by its path.
pub fn protocol(path: &str) -> Protocol {
    Protocol::at(path).unwrap_or(Protocol::Http)
}

/// The media type of its streams.
pub fn stream_type(protocol: Protocol) -> &'static str {
    if protocol.sends_lines() { "application/x-ndjson" } else { "text/event-stream" }
}

/// A request as its answer's relay needs it.
pub struct RelayedRequest {
    /// When the request's head came, and the answer's.
    pub came: At,
    /// See `came`.
    pub head: At,
    /// What came of the answer since, and when.
    pub held: VecDeque<(At, Bytes)>,
    /// The connection.
    pub lent: Lent,
    /// The replica.
    pub booked: Booked,
    /// What became of the attempt if its answer comes whole, and of the request.
    pub whole: (ReplicaOutcome, End),
    /// Silence after which a comment is sent; zero = never.
    pub keep_alive: Duration,
    /// What its key was charged.
    pub toll: Option<Toll>,
    /// Where it is recorded.
    pub recording: Option<Recording>,
    /// Who hears how it ended.
    pub ends: EndCount,
    /// Whose turn it is after it.
    pub under_way: Option<UnderWay>,
}

impl Relay {
    /// An answer whose head has come. `is_stream`: of events; `path`: what was asked.
    pub fn new(
        answer: Incoming,
        mut begun: RelayedRequest,
        (is_stream, path): (bool, &str),
        stats: Arc<Stats>,
        clock: plimsoll_client::Clock,
    ) -> Relay {
        if is_stream {
            begun.booked.streams(begun.head);
            begun.recording.iter_mut().for_each(|recording| recording.of_try(|one| one.streams = true));
        }
        let protocol = protocol(path);
        let events = is_stream.then(|| Events {
            protocol,
            tail: *b"\n\n",
            before: Some(Box::new(Decoder::new(protocol, true, 200, Some(stream_type(protocol)), false))),
            decoded: Vec::new(),
            quiet: None,
            limit: begun.keep_alive,
            last: begun.head,
        });
        Relay {
            answer,
            held: begun.held,
            lent: Some(begun.lent),
            booked: Some(begun.booked),
            whole: begun.whole,
            stats,
            ends: begun.ends,
            clock,
            came: begun.came,
            head: begun.head,
            events,
            toll: begun.toll,
            recording: begun.recording,
            under_way: begun.under_way,
            ended: false,
            is_whole: false,
        }
    }

    /// The next frame.
    pub fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, RelayEnd>>> {
        if self.ended {
            return Poll::Ready(None);
        }
        if let Some((at, data)) = self.held.pop_front() {
            self.passes(&data, at);
            return Poll::Ready(Some(Ok(Frame::data(data))));
        }
        match Pin::new(&mut self.answer).poll_frame(cx) {
            Poll::Ready(Some(Ok(frame))) => {
                if let Some(data) = frame.data_ref().cloned() {
                    self.passes(&data, self.clock.now());
                }
                if self.answer.is_end_stream() {
                    self.end(true);
                }
                Poll::Ready(Some(Ok(frame)))
            }
            Poll::Ready(None) => {
                self.end(true);
                Poll::Ready(None)
            }
            Poll::Ready(Some(Err(error))) => {
                self.end(false);
                match &self.events {
                    Some(events) => {
                        let end = Bytes::from_static(broken_stream(events.protocol));
                        Poll::Ready(Some(Ok(Frame::data(end))))
                    }
                    None => Poll::Ready(Some(Err(error.into()))),
                }
            }
            Poll::Pending => self.keep_alive(cx),
        }
    }

    /// Is nothing to come?
    pub fn is_end(&self) -> bool {
        self.ended || self.held.is_empty() && self.answer.is_end_stream()
    }

    /// Did all of it come?
    pub fn came_whole(&self) -> bool {
        self.is_whole
    }

    /// How much is to come, where it is known.
    pub fn size_hint(&self) -> SizeHint {
        match self.ended {
            true => SizeHint::with_exact(0),
            false if self.held.is_empty() => self.answer.size_hint(),
            false => SizeHint::default(),
        }
    }

    /// Counts what came of the answer.
    fn passes(&mut self, data: &[u8], now: At) {
        self.recording.iter_mut().for_each(|recording| recording.piece(data, now));
        if let (Some(booked), Some(share)) = (&self.booked, cached_share(data)) {
            booked.cached(share);
        }
        match (&self.events, &mut self.toll) {
            (Some(_), _) => self.note(data, now),
            (None, Some(toll)) => toll.passes(data.len()),
            (None, None) => {}
        }
    }

    /// Counts what came of a stream.
    fn note(&mut self, data: &[u8], now: At) {
        let (Some(events), Some(booked)) = (&mut self.events, &mut self.booked) else { return };
        events.last = now;
        let at_line_start = |place: usize| match place {
            0 => events.tail[1] == b'\n',
            place => data[place - 1] == b'\n',
        };
        let count = match events.protocol.sends_lines() {
            true => memchr::memchr_iter(b'\n', data).count() as u32,
            false => memmem::find_iter(data, b"data:").filter(|&place| at_line_start(place)).count() as u32,
        };
        match data {
            [.., before, last] => events.tail = [*before, *last],
            [last] => events.tail = [events.tail[1], *last],
            [] => {}
        }
        if count == 0 {
            return;
        }
        self.stats.events.fetch_add(u64::from(count), Ordering::Relaxed);
        let first = events.first(data);
        if first.is_some() {
            self.stats.took(RequestStage::FirstToken, now - self.head);
            self.stats.took(RequestStage::Ttft, now - self.came);
            self.stats.took(RequestStage::TtftExpected, booked.expected());
            booked.begin(now);
        }
        booked.moved(count, now);
        self.toll.iter_mut().for_each(|toll| toll.answered(u64::from(count)));
        self.recording.iter_mut().for_each(|recording| recording.events(count, first, now));
    }

    /// A comment where a stream has been silent for long, between two events only.
    fn keep_alive(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, RelayEnd>>> {
        let Some(events) = &mut self.events else { return Poll::Pending };
        // Lines of JSON have no comments.
        if events.limit.is_zero() || events.protocol.sends_lines() {
            return Poll::Pending;
        }
        let limit = Span(events.limit.as_nanos() as i64);
        loop {
            let due = events.last + limit - self.clock.now();
            let quiet = events
                .quiet
                .get_or_insert_with(|| Box::pin(tokio::time::sleep_until(crate::timer::soon(due))));
            ready!(quiet.as_mut().poll(cx));
            events.quiet = None;
            let now = self.clock.now();
            if now - events.last < limit {
                continue;
            }
            events.last = now;
            if &events.tail == b"\n\n" {
                return Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(COMMENT)))));
            }
        }
    }

    fn end(&mut self, whole: bool) {
        (self.ended, self.is_whole) = (true, whole);
        let Some(booked) = self.booked.take() else { return };
        let lent = self.lent.take();
        self.toll = None;
        self.ends.took(self.clock.now() - self.came);
        if let Some(mut recording) = self.recording.take() {
            recording.ends(if whole { TryEnd::Whole } else { TryEnd::Cut });
        }
        if whole {
            booked.end(self.whole.0);
            self.ends.end(self.whole.1);
            lent.into_iter().for_each(Lent::give_back);
        } else {
            booked.end(ReplicaOutcome::Failed);
            self.ends.end(End::Broken);
        }
        self.under_way = None;
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        if self.booked.is_some() {
            // The client went away; dropping the answer closes the replica's connection, which is how it hears of it.
            self.ends.end(End::Cancelled);
        }
    }
}
