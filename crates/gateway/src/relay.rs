//! Response relay from a replica to a client: frame by frame, accounted and never buffered as a whole.
//!
//! The next frame is read when the client has taken the previous one. A slow client therefore slows down the replica
//! instead of filling the gateway's memory.

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

use crate::reply::{RelayError, broken_stream};
use crate::response_observer::{ResponseObserver, StartedResponse};
use crate::stats::Stats;
use crate::upstream::PooledConnection;

/// Comment that keeps a silent stream's connection open. Readers of event streams skip comments.
const COMMENT: &[u8] = b": keep-alive\n\n";
/// Limit on the buffered part of an incomplete line, in bytes.
const MOST_HALF: usize = 64 << 10;

pub struct Relay {
    answer: Incoming,
    /// Frames received before the decision to forward the response, with their arrival times.
    frames: VecDeque<(At, Bytes)>,
    /// Start of an incomplete line of a stream. It is buffered, because a truncated line would be read as an event.
    half: Bytes,
    /// Set if the start of an incomplete line was forwarded because the line is long.
    is_in_line: bool,
    /// Set if data lines of an event were forwarded but not the end of the event.
    is_in_data: bool,
    /// Trailers that follow the buffered data.
    trailers: Option<Frame<Bytes>>,
    connection: Option<PooledConnection>,
    observer: ResponseObserver,
    clock: Clock,
    /// Timer of the keep-alive comment.
    quiet: Option<Pin<Box<Sleep>>>,
    /// Silence before a keep-alive comment; zero disables it.
    limit: Duration,
    /// Arrival time of the last data.
    last: At,
    ended: bool,
    is_whole: bool,
}

/// The parts that a relay starts from.
pub(crate) struct RelayInput {
    pub started: StartedResponse,
    /// Frames received since the head, with their arrival times.
    pub frames: VecDeque<(At, Bytes)>,
    pub connection: PooledConnection,
    /// Silence before a keep-alive comment; zero disables it.
    pub keep_alive: Duration,
}

impl Relay {
    /// Returns the relay of a response. `stream` is the protocol of an event stream, `None` for other responses.
    pub(crate) fn new(
        answer: Incoming,
        input: RelayInput,
        stream: Option<Protocol>,
        stats: Arc<Stats>,
        clock: Clock,
    ) -> Relay {
        let RelayInput { started, frames, connection, keep_alive } = input;
        let last = started.head;
        let mut relay = Relay {
            answer,
            frames,
            half: Bytes::new(),
            is_in_line: false,
            is_in_data: false,
            trailers: None,
            connection: Some(connection),
            observer: ResponseObserver::new(started, stream, stats, clock),
            clock,
            quiet: None,
            limit: keep_alive,
            last,
            ended: false,
            is_whole: false,
        };
        // An empty body ends here, because hyper does not poll its frames.
        if relay.is_end() {
            relay.end(true);
        }
        relay
    }

    pub fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, RelayError>>> {
        if let Some(trailers) = self.trailers.take() {
            return Poll::Ready(Some(Ok(trailers)));
        }
        while !self.ended {
            let (at, data) = match self.frames.pop_front() {
                Some(frame) => frame,
                None => match Pin::new(&mut self.answer).poll_frame(cx) {
                    Poll::Ready(Some(Ok(frame))) => match frame.into_data() {
                        Ok(data) => (self.clock.now(), data),
                        Err(trailers) => return Poll::Ready(Some(Ok(self.ends_with(trailers)))),
                    },
                    Poll::Ready(None) => {
                        self.end(true);
                        return Poll::Ready(self.rest().map(Ok));
                    }
                    Poll::Ready(Some(Err(error))) => return Poll::Ready(Some(self.breaks(error))),
                    Poll::Pending => return self.keep_alive(cx),
                },
            };
            self.passes(&data, at);
            let is_last = self.frames.is_empty() && self.answer.is_end_stream();
            if is_last {
                self.end(true);
            }
            if let Some(lines) = self.lines(data, is_last) {
                return Poll::Ready(Some(Ok(Frame::data(lines))));
            }
        }
        Poll::Ready(None)
    }

    /// Returns the part of a frame that may be forwarded: everything, or the complete lines of a stream.
    fn lines(&mut self, data: Bytes, is_last: bool) -> Option<Bytes> {
        let was_in_line = self.is_in_line;
        let lines = self.whole_lines(data, is_last)?;
        if self.observer.stream().is_some_and(|protocol| !protocol.sends_lines()) {
            self.is_in_data = ends_in_data(&lines, was_in_line || self.is_in_data);
        }
        Some(lines)
    }

    fn whole_lines(&mut self, data: Bytes, is_last: bool) -> Option<Bytes> {
        let ends_line = matches!(data.last(), Some(b'\n' | b'\r') | None);
        if self.observer.stream().is_none() || self.half.is_empty() && (ends_line || is_last) {
            self.is_in_line = false;
            return Some(data);
        }
        let mut text = match self.half.is_empty() {
            true => data,
            false => Bytes::from([&self.half[..], &data[..]].concat()),
        };
        let end = memchr::memrchr2(b'\n', b'\r', &text).map_or(0, |at| at + 1);
        if is_last || self.is_in_line || text.len() - end > MOST_HALF {
            self.is_in_line = end < text.len();
            self.half = Bytes::new();
            return Some(text);
        }
        self.half = text.split_off(end);
        (!text.is_empty()).then_some(text)
    }

    /// Returns the buffered incomplete line.
    fn rest(&mut self) -> Option<Frame<Bytes>> {
        let half = std::mem::take(&mut self.half);
        (!half.is_empty()).then(|| Frame::data(half))
    }

    /// Ends the response with trailers, after any buffered data.
    fn ends_with(&mut self, trailers: Frame<Bytes>) -> Frame<Bytes> {
        self.end(true);
        match self.rest() {
            Some(rest) => {
                self.trailers = Some(trailers);
                rest
            }
            None => trailers,
        }
    }

    /// Handles a broken response. A stream ends with an error event. If an event is incomplete or the response is no
    /// stream, the connection closes instead.
    fn breaks(&mut self, error: hyper::Error) -> Result<Frame<Bytes>, RelayError> {
        self.end(false);
        match self.observer.stream().filter(|_| !self.is_in_line && !self.is_in_data) {
            Some(protocol) => Ok(Frame::data(Bytes::from_static(broken_stream(protocol)))),
            None => Err(error.into()),
        }
    }

    pub fn is_end(&self) -> bool {
        let has_more = self.trailers.is_some() || !self.half.is_empty() || !self.frames.is_empty();
        self.ended && self.trailers.is_none() || !has_more && self.answer.is_end_stream()
    }

    /// Returns whether the complete response arrived.
    pub(crate) fn is_complete(&self) -> bool {
        self.is_whole
    }

    /// Returns whether the complete response arrived and was successful.
    pub(crate) fn is_success(&self) -> bool {
        self.is_whole && self.observer.is_success()
    }

    /// Returns the remaining size if known.
    pub fn size_hint(&self) -> SizeHint {
        match self.ended {
            true => SizeHint::with_exact(0),
            false if self.frames.is_empty() && self.half.is_empty() => self.answer.size_hint(),
            false => SizeHint::default(),
        }
    }

    fn passes(&mut self, data: &[u8], now: At) {
        self.last = now;
        self.observer.passes(data, now);
    }

    /// Returns a keep-alive comment after a long silence, if the stream is between two events.
    fn keep_alive(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, RelayError>>> {
        // Streams of JSON lines have no comments.
        let has_comments = self.observer.stream().is_some_and(|protocol| !protocol.sends_lines());
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
            if self.observer.is_between_events() {
                return Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(COMMENT)))));
            }
        }
    }

    fn end(&mut self, whole: bool) {
        (self.ended, self.is_whole) = (true, whole);
        let connection = self.connection.take();
        self.observer.end(whole);
        // Otherwise the drop closes the replica's connection, which cancels its request.
        if whole {
            connection.into_iter().for_each(PooledConnection::give_back);
        }
    }
}

/// Returns whether the lines end inside an event with data. `was` is that state at their start.
fn ends_in_data(lines: &[u8], was: bool) -> bool {
    if lines.ends_with(b"\n\n") || lines.ends_with(b"\n\r\n") {
        return false;
    }
    let (mut is_in_data, mut rest) = (was, lines);
    while let Some(end) = memchr::memchr(b'\n', rest) {
        match rest[..end].trim_ascii_end() {
            b"" => is_in_data = false,
            line => is_in_data |= line.starts_with(b"data"),
        }
        rest = &rest[end + 1..];
    }
    is_in_data
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_open_from_its_data_to_the_empty_line() {
        for (lines, was, is_open) in [
            ("data: {}\n\n", false, false),
            ("data: {}\r\n\r\n", true, false),
            ("data: {}\n", false, true),
            ("\n", true, false),
            ("\r\n", true, false),
            ("event: a\n", false, false),
            ("id: 1\n", true, true),
            ("event: a\ndata: {\n", false, true),
            ("data: {}\n\nevent: b\n", false, false),
            ("data: {}\n\n: ping\n", true, false),
            ("", true, true),
        ] {
            assert_eq!(ends_in_data(lines.as_bytes(), was), is_open, "{lines:?}");
        }
    }
}
