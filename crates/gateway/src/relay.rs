//! An answer on its way from a replica to a client: frame by frame, counted, never held.
//!
//! The next frame is asked for when the client has taken the one before, so a slow reader slows its replica down and nothing gathers here.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body as _, Frame, SizeHint};
use hyper::body::Incoming;
use plimsoll_client::Clock;
use plimsoll_model::{At, Protocol, Span};
use tokio::time::Sleep;

use crate::passing::{BegunAnswer, PassingAnswer};
use crate::reply::{RelayEnd, broken_stream};
use crate::stats::Stats;
use crate::upstream::Lent;

/// What keeps a silent stream's connection open: a comment, which readers of events skip.
const COMMENT: &[u8] = b": keep-alive\n\n";

/// See the module.
pub struct Relay {
    answer: Incoming,
    /// What came of it before it was clear that it is passed on, and when.
    held: VecDeque<(At, Bytes)>,
    lent: Option<Lent>,
    passing: PassingAnswer,
    clock: Clock,
    /// Runs out in a silent stream.
    quiet: Option<Pin<Box<Sleep>>>,
    /// Silence after which a comment is sent; zero = never.
    limit: Duration,
    /// When something of it came last.
    last: At,
    ended: bool,
    is_whole: bool,
}

/// An answer as its relay needs it.
pub struct RelayedAnswer {
    /// What is counted.
    pub begun: BegunAnswer,
    /// What came of it since its head, and when.
    pub held: VecDeque<(At, Bytes)>,
    /// The connection.
    pub lent: Lent,
    /// Silence after which a comment is sent; zero = never.
    pub keep_alive: Duration,
}

impl Relay {
    /// An answer whose head has come. `stream`: how its events are read, where it is a stream of them.
    pub fn new(
        answer: Incoming,
        relayed: RelayedAnswer,
        stream: Option<Protocol>,
        stats: Arc<Stats>,
        clock: Clock,
    ) -> Relay {
        let RelayedAnswer { begun, held, lent, keep_alive } = relayed;
        let last = begun.head;
        let mut relay = Relay {
            answer,
            held,
            lent: Some(lent),
            passing: PassingAnswer::new(begun, stream, stats, clock),
            clock,
            quiet: None,
            limit: keep_alive,
            last,
            ended: false,
            is_whole: false,
        };
        // Nobody asks for the frames of a body that has none.
        if relay.is_end() {
            relay.end(true);
        }
        relay
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
                match self.passing.stream() {
                    Some(protocol) => {
                        let end = Bytes::from_static(broken_stream(protocol));
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

    /// Did all of it come, and was it of use?
    pub fn is_success(&self) -> bool {
        self.is_whole && self.passing.is_success()
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
        self.last = now;
        self.passing.passes(data, now);
    }

    /// A comment where a stream has been silent for long, between two events only.
    fn keep_alive(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, RelayEnd>>> {
        // Lines of JSON have no comments.
        let has_comments = self.passing.stream().is_some_and(|protocol| !protocol.sends_lines());
        if self.limit.is_zero() || !has_comments {
            return Poll::Pending;
        }
        let limit = Span(self.limit.as_nanos() as i64);
        loop {
            let due = self.last + limit - self.clock.now();
            let quiet =
                self.quiet.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(crate::timer::soon(due))));
            ready!(quiet.as_mut().poll(cx));
            self.quiet = None;
            let now = self.clock.now();
            if now - self.last < limit {
                continue;
            }
            self.last = now;
            if self.passing.is_between_events() {
                return Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(COMMENT)))));
            }
        }
    }

    fn end(&mut self, whole: bool) {
        (self.ended, self.is_whole) = (true, whole);
        let lent = self.lent.take();
        self.passing.end(whole);
        // What is dropped instead closes the replica's connection, which is how it hears of it.
        if whole {
            lent.into_iter().for_each(Lent::give_back);
        }
    }
}
