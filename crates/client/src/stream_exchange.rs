//! One attempt over HTTP/2, from its place on a connection to the end of its stream, read top to bottom.
//!
//! The counterpart of [`crate::exchange`], told to the same watch. What an end means: a stream that the server resets, and a connection
//! that it ends (GOAWAY), before the head is a reset; after it the body is cut. A stream that the server refused
//! (`REFUSED_STREAM`, `ENHANCE_YOUR_CALM`) it did not serve, and said so: that is shed. Nothing is sent again here, also where the server says
//! that it has not looked at a request: what was written is an attempt, and a retry is the retry policy's to make.

use std::future::{Future as _, poll_fn};
use std::pin::Pin;
use std::task::{Context, Poll};

use h2::client::ResponseFuture;
use h2::{Reason, RecvStream, SendStream};
use http::HeaderMap;
use plimsoll_model::{By, How, Span};
use plimsoll_wire::Head;

use crate::clock::realtime_ns;
use crate::exchange_watch::{ExchangeWatch, Outgoing, not_connected};
use crate::http2::{Outflow, fields_len, words};
use crate::recording::Ending;
use crate::streams::{HeldStream, StreamPool};

/// Makes the attempt; see [`crate::exchange::exchange`].
pub async fn exchange(
    pool: &StreamPool,
    connect: Span,
    request: &Outgoing,
    watch: &impl ExchangeWatch,
) -> Ending {
    let mut replaced = false;
    loop {
        let held = match pool.take(connect).await {
            Ok(held) => held,
            Err(error) => return not_connected(&error),
        };
        if held.connected().kept && !replaced && !held.link.stands() {
            // It ended between the place and its use: not one byte of the request was written.
            replaced = true;
            continue;
        }
        watch.connected(&held.connected());
        let Some((head, body)) = request.take().and_then(|request| request.into_http2()) else {
            return Ending::told(How::Malformed, By::Client, false, "no request to send over HTTP/2");
        };
        let (response, sending) = match held.link.begin((head, body), &held.stamps) {
            Ok(begun) => begun,
            Err(error) => return Ending::told(How::Reset, By::Server, true, words(&error)),
        };
        watch.sent();
        let mut talk = Talk { held, answer: Answer::Awaited(response), _sending: sending };
        return poll_fn(|cx| talk.poll(cx, watch)).await;
    }
}

/// A request and its answer on one stream.
struct Talk {
    held: HeldStream,
    answer: Answer,
    /// What is left of the request is written as the server allows; dropped before, it would be cut off.
    _sending: SendStream<Outflow>,
}

enum Answer {
    Awaited(ResponseFuture),
    Body(RecvStream),
}

impl Talk {
    fn poll(&mut self, cx: &mut Context<'_>, watch: &impl ExchangeWatch) -> Poll<Ending> {
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
                        // Room that can't be given back is that of a stream that has ended.
                        let _ = body.flow_control().release_capacity(data.len());
                        if !data.is_empty() && !watch.data(&data) {
                            return Poll::Ready(Ending::Broken { error: String::new() });
                        }
                    }
                    Some(Err(error)) => return Poll::Ready(broken(&error)),
                    None => return self.ended(cx, watch),
                },
            }
        }
    }

    /// The body is over: what stands behind it.
    fn ended(&mut self, cx: &mut Context<'_>, watch: &impl ExchangeWatch) -> Poll<Ending> {
        let Answer::Body(body) = &mut self.answer else { return Poll::Pending };
        match std::task::ready!(body.poll_trailers(cx)) {
            Ok(trailers) => {
                let trailers = trailers.unwrap_or_default();
                self.held.stamps.heard(fields_len(&trailers));
                if !trailers.is_empty() {
                    watch.trailers(read(200, &trailers));
                }
                Poll::Ready(Ending::Whole)
            }
            Err(error) => Poll::Ready(broken(&error)),
        }
    }
}

fn read(status: u16, fields: &HeaderMap) -> Head {
    let fields = fields.iter().map(|(name, value)| (name.as_str(), value.as_bytes()));
    Head::read(status, fields, realtime_ns() / 1_000_000_000)
}

/// It ended before its head.
fn unanswered(error: &h2::Error) -> Ending {
    let text = words(error);
    let refused = [Reason::REFUSED_STREAM, Reason::ENHANCE_YOUR_CALM];
    match error.reason() {
        None => Ending::told(How::Reset, By::Network, true, text),
        Some(_) if !error.is_remote() => Ending::told(How::Malformed, By::Server, false, text),
        Some(reason) if error.is_reset() && refused.contains(&reason) => {
            Ending::told(How::Shed, By::Server, true, text)
        }
        Some(_) => Ending::told(How::Reset, By::Server, true, text),
    }
}

/// It ended inside of its body.
fn broken(error: &h2::Error) -> Ending {
    match error.reason() {
        Some(_) if !error.is_remote() => Ending::told(How::Malformed, By::Server, false, words(error)),
        _ => Ending::Broken { error: words(error) },
    }
}
