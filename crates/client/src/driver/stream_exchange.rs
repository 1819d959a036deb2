//! Makes one attempt over HTTP/2, from its place on a connection to the end of its stream.
//!
//! This is the counterpart of [`crate::driver::exchange`], with the same watch. A stream reset or a GOAWAY before the head is a
//! reset; after the head the body is cut. A stream that the server refused (`REFUSED_STREAM`, `ENHANCE_YOUR_CALM`) was not
//! processed and counts as shed. Requests are never resent here, even if the server reports that it did not process them. A
//! written request is an attempt, and the retry policy decides on a retry.

use std::future::{Future as _, poll_fn};
use std::pin::Pin;
use std::task::{Context, Poll};

use h2::client::ResponseFuture;
use h2::{Reason, RecvStream, SendStream};
use http::HeaderMap;
use plimsoll_model::{By, How, Span};
use plimsoll_wire::Head;

use crate::clock::realtime_ns;
use crate::driver::exchange_watch::{ExchangeWatch, OutgoingRequest, not_connected};
use crate::driver::recording::AttemptEnding;
use crate::http2::streams::{HeldStream, StreamPool};
use crate::http2::{BodySender, fields_len, words};

pub async fn exchange(
    pool: &StreamPool,
    connect: Span,
    request: &OutgoingRequest,
    watch: &impl ExchangeWatch,
) -> AttemptEnding {
    let mut replaced = false;
    loop {
        let held = match pool.take(connect).await {
            Ok(held) => held,
            Err(error) => return not_connected(&error),
        };
        if held.connected().kept && !replaced && !held.link.stands() {
            // The connection ended between taking the place and using it, so no byte of the request was written.
            replaced = true;
            continue;
        }
        watch.connected(&held.connected());
        let Some((head, body)) = request.take().and_then(|request| request.into_http2()) else {
            return AttemptEnding::told(How::Malformed, By::Client, false, "no request to send over HTTP/2");
        };
        let (response, sending) = match held.link.begin((head, body), &held.stamps) {
            Ok(begun) => begun,
            Err(error) => return AttemptEnding::told(How::Reset, By::Server, true, words(&error)),
        };
        watch.sent();
        let mut talk = Talk { held, answer: Answer::Awaited(response), _sending: sending };
        return poll_fn(|cx| talk.poll(cx, watch)).await;
    }
}

/// A request and its response on one stream.
struct Talk {
    held: HeldStream,
    answer: Answer,
    /// Writes the rest of the request as flow control permits; dropping it would cut the request.
    _sending: SendStream<BodySender>,
}

enum Answer {
    Awaited(ResponseFuture),
    Body(RecvStream),
}

impl Talk {
    fn poll(&mut self, cx: &mut Context<'_>, watch: &impl ExchangeWatch) -> Poll<AttemptEnding> {
        loop {
            match &mut self.answer {
                Answer::Awaited(response) => match std::task::ready!(Pin::new(response).poll(cx)) {
                    Ok(response) => {
                        let (head, body) = response.into_parts();
                        self.held.stamps.heard(fields_len(&head.headers) + 7);
                        watch.head(read(head.status.as_u16(), &head.headers));
                        self.answer = Answer::Body(body);
                    }
                    Err(error) => return Poll::Ready(unanswered(&error)),
                },
                Answer::Body(body) => match std::task::ready!(body.poll_data(cx)) {
                    Some(Ok(data)) => {
                        self.held.stamps.heard(data.len());
                        // Releasing capacity fails only on a stream that has ended.
                        let _ = body.flow_control().release_capacity(data.len());
                        if !data.is_empty() && !watch.data(&data) {
                            return Poll::Ready(AttemptEnding::Broken { error: String::new() });
                        }
                    }
                    Some(Err(error)) => return Poll::Ready(broken(&error)),
                    None => return self.ended(cx, watch),
                },
            }
        }
    }

    /// Reads the trailers after the body and returns the ending.
    fn ended(&mut self, cx: &mut Context<'_>, watch: &impl ExchangeWatch) -> Poll<AttemptEnding> {
        let Answer::Body(body) = &mut self.answer else { return Poll::Pending };
        match std::task::ready!(body.poll_trailers(cx)) {
            Ok(trailers) => {
                let trailers = trailers.unwrap_or_default();
                self.held.stamps.heard(fields_len(&trailers));
                if !trailers.is_empty() {
                    watch.trailers(read(200, &trailers));
                }
                Poll::Ready(AttemptEnding::Whole)
            }
            Err(error) => Poll::Ready(broken(&error)),
        }
    }
}

fn read(status: u16, fields: &HeaderMap) -> Head {
    let fields = fields.iter().map(|(name, value)| (name.as_str(), value.as_bytes()));
    Head::read(status, fields, realtime_ns() / 1_000_000_000)
}

/// Returns the ending of a stream that ended before its head.
fn unanswered(error: &h2::Error) -> AttemptEnding {
    let text = words(error);
    let refused = [Reason::REFUSED_STREAM, Reason::ENHANCE_YOUR_CALM];
    match error.reason() {
        None => AttemptEnding::told(How::Reset, By::Network, true, text),
        Some(_) if !error.is_remote() => AttemptEnding::told(How::Malformed, By::Server, false, text),
        Some(reason) if error.is_reset() && refused.contains(&reason) => {
            AttemptEnding::told(How::Shed, By::Server, true, text)
        }
        Some(_) => AttemptEnding::told(How::Reset, By::Server, true, text),
    }
}

/// Returns the ending of a stream that ended within its body.
fn broken(error: &h2::Error) -> AttemptEnding {
    match error.reason() {
        Some(_) if !error.is_remote() => AttemptEnding::told(How::Malformed, By::Server, false, words(error)),
        _ => AttemptEnding::Broken { error: words(error) },
    }
}
