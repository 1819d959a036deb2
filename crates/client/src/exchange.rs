//! One attempt from connection to last byte over HTTP/1.1, read top to bottom. (Over HTTP/2: [`crate::stream_exchange`].)
//!
//! Request and answer are moved in this one task: see [`crate::stamp`] for why that is what makes the stamps belong to the
//! bytes. An answer may come before the request is written whole, and is read then too: a server that refuses a long
//! prompt says so before it has read it.

use std::future::poll_fn;
use std::io;
use std::task::{Context, Poll};

use plimsoll_model::{At, By, How, KEPT_CONNECTION, Span};
use plimsoll_wire::http1::{AnswerPart, HttpFault};

use crate::clock::realtime_ns;
use crate::exchange_watch::{ExchangeWatch, Outgoing, not_connected};
use crate::landing::Landing;
use crate::link::Link;
use crate::pool::ConnectionPool;
use crate::recording::Ending;
use crate::stream_exchange;
use crate::tls_words;

/// Makes the attempt. Whatever happens has an ending; a connection that can carry another request goes back.
pub async fn exchange(
    pool: &ConnectionPool,
    connect: Span,
    request: &Outgoing,
    watch: &impl ExchangeWatch,
) -> Ending {
    if let Some(streams) = pool.streams() {
        // Boxed: what one version needs would otherwise be paid for by every attempt of the other.
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
                    (Ending::Whole, _) => pool.give(held),
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
                return Ending::told(How::Reset, By::Server, true, "closed before the request was written");
            }
        }
    }
}

/// One request and its answer on one connection.
#[derive(Debug, Default)]
struct Talk {
    /// Some of the request was written.
    sent: bool,
    written: bool,
    /// It could not be written to its end.
    failed: Option<io::Error>,
    headed: bool,
    /// It was written at this instant on a connection that had carried others, and the connection ended without a byte in answer.
    unheard: Option<At>,
}

impl Talk {
    /// `None` = not one byte of the request was written, and it is back in its place.
    fn poll(
        &mut self,
        cx: &mut Context<'_>,
        link: &mut Link,
        request: &Outgoing,
        watch: &impl ExchangeWatch,
    ) -> Poll<Option<Ending>> {
        if !self.written && self.failed.is_none() && !self.write(cx, link, request, watch) {
            return Poll::Ready(None);
        }
        let mut landing = Landing::take();
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

    /// Writes what can be written; false when nothing was and nothing will be.
    fn write(
        &mut self,
        cx: &mut Context<'_>,
        link: &mut Link,
        outgoing: &Outgoing,
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
            // The server may have said why it closed.
            Poll::Ready(Err(error)) => self.failed = Some(error),
        }
        true
    }

    /// Looks at what a read brought; the ending, once it has come to it.
    fn take(&mut self, link: &mut Link, bytes: &[u8], watch: &impl ExchangeWatch) -> Option<Ending> {
        let mut rest = bytes;
        loop {
            match link.reader.next(&mut rest, || realtime_ns() / 1_000_000_000) {
                Ok(None) => return None,
                Ok(Some(AnswerPart::Head(head))) => {
                    self.headed = true;
                    watch.head(head);
                }
                Ok(Some(AnswerPart::Data(data))) => {
                    if !watch.data(data) {
                        return Some(Ending::Broken { error: String::new() });
                    }
                }
                Ok(Some(AnswerPart::End)) => {
                    if !rest.is_empty() || !self.written {
                        link.spoil();
                    }
                    return Some(Ending::Whole);
                }
                Err(fault) => return Some(malformed(&fault)),
            }
        }
    }

    /// The server has closed its side.
    fn closed(&mut self, link: &mut Link) -> Ending {
        match link.reader.ended() {
            Ok(true) => Ending::Whole,
            Err(fault) => malformed(&fault),
            Ok(false) if self.headed => {
                Ending::Broken { error: "the connection was closed before the body's end".to_owned() }
            }
            Ok(false) => match self.failed.take() {
                Some(error) => self.broken(link, &error),
                None if self.is_unheard(link) => {
                    let text = "the kept connection was closed before an answer";
                    Ending::told(How::Reset, By::Server, true, text)
                }
                None => {
                    let text = "the connection was closed before an answer";
                    Ending::told(How::Reset, By::Server, true, text)
                }
            },
        }
    }

    fn broken(&mut self, link: &Link, error: &io::Error) -> Ending {
        // In TLS 1.3 a server judges the client's certificate after the handshake has ended for the client.
        let error = if tls_words::told(error).is_some() { tls_words::why(error) } else { error.to_string() };
        match self.headed {
            true => Ending::Broken { error: format!("connection error: {error}") },
            false => {
                let which = if self.is_unheard(link) { KEPT_CONNECTION } else { "connection error" };
                Ending::told(How::Reset, By::Network, true, format!("{which}: {error}"))
            }
        }
    }

    /// Did a connection that had carried other requests end without a byte in answer to this one? Then either the server had not
    /// kept it, or it gave this request up: which of both, HTTP does not tell.
    fn is_unheard(&mut self, link: &Link) -> bool {
        if link.carried > 1 && link.stamps.first_read().is_none() {
            self.unheard = link.stamps.last_write();
        }
        self.unheard.is_some()
    }
}

fn malformed(fault: &HttpFault) -> Ending {
    Ending::told(How::Malformed, By::Server, false, fault.to_string())
}
