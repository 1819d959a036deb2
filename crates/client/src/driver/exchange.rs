//! Makes one attempt from connection to last byte over HTTP/1.1. (Over HTTP/2: [`crate::driver::stream_exchange`].)
//!
//! One task moves request and response, so that the stamps belong to the bytes: see [`crate::http1::stamp`]. A response may arrive
//! before the request is fully written and is read then too, because a server may reject a long prompt early.

use std::future::poll_fn;
use std::io;
use std::task::{Context, Poll};

use plimsoll_model::{At, By, How, KEPT_CONNECTION, Span};
use plimsoll_wire::http1::{HttpFault, ResponsePart};

use crate::clock::realtime_ns;
use crate::driver::exchange_watch::{ExchangeWatch, OutgoingRequest, not_connected};
use crate::driver::recording::AttemptEnding;
use crate::driver::stream_exchange;
use crate::http1::landing::ReadBuffer;
use crate::http1::link::Http1Connection;
use crate::http1::pool::ConnectionPool;
use crate::tls::tls_words;

/// Makes the attempt. Every case has an ending, and a reusable connection returns to the pool.
pub async fn exchange(
    pool: &ConnectionPool,
    connect: Span,
    request: &OutgoingRequest,
    watch: &impl ExchangeWatch,
) -> AttemptEnding {
    if let Some(streams) = pool.streams() {
        // Boxed, because every attempt would otherwise pay for the larger state of HTTP/2.
        return Box::pin(stream_exchange::exchange(&streams, connect, request, watch)).await;
    }
    let mut held = match pool.take(connect).await {
        Ok(held) => held,
        Err(error) => return not_connected(&error),
    };
    let mut replaced = false;
    loop {
        watch.connected(&held.connected());
        held.link.carried += 1;
        held.link.reader.begin();
        let mut talk = Talk::default();
        match poll_fn(|cx| talk.poll(cx, &mut held.link, request, watch)).await {
            Some(ending) => {
                match (&ending, talk.unheard) {
                    (AttemptEnding::Whole, _) => pool.give(held),
                    (_, Some(sent)) => pool.keeping.lost(held.link.idle_since, sent),
                    _ => {}
                }
                return ending;
            }
            None if held.kept && !replaced => {
                replaced = true;
                held = match pool.replace(held, connect).await {
                    Ok(held) => held,
                    Err(error) => return not_connected(&error),
                };
            }
            None => {
                return AttemptEnding::told(
                    How::Reset,
                    By::Server,
                    true,
                    "closed before the request was written",
                );
            }
        }
    }
}

/// A request and its response on one connection.
#[derive(Debug, Default)]
struct Talk {
    /// Set after part of the request was written.
    sent: bool,
    written: bool,
    /// Error of the write that failed.
    failed: Option<io::Error>,
    headed: bool,
    /// Write time on a reused connection that then ended without a response byte.
    unheard: Option<At>,
}

impl Talk {
    /// Makes progress; `None` = no byte of the request was written, and the request is back in its place.
    fn poll(
        &mut self,
        cx: &mut Context<'_>,
        link: &mut Http1Connection,
        request: &OutgoingRequest,
        watch: &impl ExchangeWatch,
    ) -> Poll<Option<AttemptEnding>> {
        if !self.written && self.failed.is_none() && !self.write(cx, link, request, watch) {
            return Poll::Ready(None);
        }
        let mut landing = ReadBuffer::take();
        loop {
            let read = match link.poll_read(cx, landing.room()) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Ok(0)) => return Poll::Ready(Some(self.closed(link))),
                Poll::Ready(Ok(n)) => self.take(link, landing.read(n), watch),
                Poll::Ready(Err(error)) => Some(self.broken(link, &error)),
            };
            if read.is_some() {
                return Poll::Ready(read);
            }
        }
    }

    /// Writes as much as possible; false if nothing was written and no more can be.
    fn write(
        &mut self,
        cx: &mut Context<'_>,
        link: &mut Http1Connection,
        outgoing: &OutgoingRequest,
        watch: &impl ExchangeWatch,
    ) -> bool {
        let Some(mut request) = outgoing.take() else { return false };
        let polled = link.poll_write(cx, &mut request);
        if !self.sent && link.stamps.last_write().is_some() {
            self.sent = true;
            watch.sent();
        }
        match polled {
            Poll::Ready(Ok(())) => self.written = true,
            Poll::Pending => outgoing.set(Some(request)),
            Poll::Ready(Err(_)) if link.stamps.bytes_out() == 0 => {
                outgoing.set(Some(request));
                return false;
            }
            // The server may have sent the reason before it closed.
            Poll::Ready(Err(error)) => self.failed = Some(error),
        }
        true
    }

    /// Processes the bytes of a read; returns the ending once it is reached.
    fn take(
        &mut self,
        link: &mut Http1Connection,
        bytes: &[u8],
        watch: &impl ExchangeWatch,
    ) -> Option<AttemptEnding> {
        let mut rest = bytes;
        loop {
            match link.reader.next(&mut rest, || realtime_ns() / 1_000_000_000) {
                Ok(None) => return None,
                Ok(Some(ResponsePart::Head(head))) => {
                    self.headed = true;
                    watch.head(head);
                }
                Ok(Some(ResponsePart::Data(data))) => {
                    if !watch.data(data) {
                        return Some(AttemptEnding::Broken { error: String::new() });
                    }
                }
                Ok(Some(ResponsePart::End)) => {
                    if !rest.is_empty() || !self.written {
                        link.spoil();
                    }
                    return Some(AttemptEnding::Whole);
                }
                Err(fault) => return Some(malformed(&fault)),
            }
        }
    }

    /// Returns the ending after the server closed its side.
    fn closed(&mut self, link: &mut Http1Connection) -> AttemptEnding {
        match link.reader.ended() {
            Ok(true) => AttemptEnding::Whole,
            Err(fault) => malformed(&fault),
            Ok(false) if self.headed => {
                AttemptEnding::Broken { error: "the connection was closed before the body's end".to_owned() }
            }
            Ok(false) => match self.failed.take() {
                Some(error) => self.broken(link, &error),
                None if self.is_unheard(link) => {
                    let text = "the kept connection was closed before an answer";
                    AttemptEnding::told(How::Reset, By::Server, true, text)
                }
                None => {
                    let text = "the connection was closed before an answer";
                    AttemptEnding::told(How::Reset, By::Server, true, text)
                }
            },
        }
    }

    fn broken(&mut self, link: &Http1Connection, error: &io::Error) -> AttemptEnding {
        // In TLS 1.3 a server verifies the client's certificate after the handshake has ended for the client.
        let error = if tls_words::told(error).is_some() { tls_words::why(error) } else { error.to_string() };
        match self.headed {
            true => AttemptEnding::Broken { error: format!("connection error: {error}") },
            false => {
                let which = if self.is_unheard(link) { KEPT_CONNECTION } else { "connection error" };
                AttemptEnding::told(How::Reset, By::Network, true, format!("{which}: {error}"))
            }
        }
    }

    /// Returns whether a reused connection ended without a response byte to this request.
    ///
    /// Either the server had already closed the idle connection or it dropped this request; HTTP does not distinguish the
    /// two.
    fn is_unheard(&mut self, link: &Http1Connection) -> bool {
        if link.carried > 1 && link.stamps.first_read().is_none() {
            self.unheard = link.stamps.last_write();
        }
        self.unheard.is_some()
    }
}

fn malformed(fault: &HttpFault) -> AttemptEnding {
    AttemptEnding::told(How::Malformed, By::Server, false, fault.to_string())
}
