//! One attempt from connection to last byte, read top to bottom.
//!
//! Connection and answer are polled together in this one task: see [`crate::stamp`] for why that is what makes the
//! stamps belong to the bytes.

use std::cell::Cell;
use std::error::Error as _;
use std::future::{Future as _, poll_fn};
use std::pin::{Pin, pin};
use std::task::Poll;

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body as _;
use http_body_util::Full;
use hyper::body::Incoming;
use plimsoll_model::{By, How, Span};

use crate::link::{ConnectError, Link};
use crate::pool::{Held, Pool, TakeError};
use crate::recording::Ending;

/// What an exchange tells whoever records it, as it happens.
pub trait Watch {
    /// A connection is in hand.
    fn connected(&self, held: &Held);
    /// The request's bytes were handed to the kernel.
    fn sent(&self);
    /// The head arrived.
    fn head(&self, response: &Response<Incoming>);
    /// Bytes of the body arrived. False: reading on is of no use.
    fn data(&self, bytes: &[u8]) -> bool;
}

/// The request until it is sent. It stays where it is instead of in the future: an async function keeps an argument, and
/// every function that it hands it on to keeps it again.
pub type Outgoing = Cell<Option<Request<Full<Bytes>>>>;

/// Makes the attempt. Whatever happens has an ending; a connection that can carry another request goes back.
pub async fn exchange(pool: &Pool, connect: Span, request: &Outgoing, watch: &impl Watch) -> Ending {
    let mut held = match pool.take(connect).await {
        Ok(held) => held,
        Err(error) => return not_connected(&error),
    };
    let mut replaced = false;
    let (response, done) = loop {
        watch.connected(&held);
        match ask(&mut held.link, request, watch).await {
            Asked::Answered(response, done) => break (response, done),
            Asked::Unwritten if held.kept && !replaced => {
                replaced = true;
                held = match pool.replace(held, connect).await {
                    Ok(held) => held,
                    Err(error) => return not_connected(&error),
                };
            }
            Asked::Unwritten => {
                return Ending::told(How::Reset, By::Server, true, "closed before the request was written");
            }
            Asked::Failed(error) => return no_answer(&error),
        }
    };
    watch.head(&response);
    let ending = read_body(&mut held.link, response, done, watch).await;
    if matches!(ending, Ending::Whole) {
        settle(&mut held.link).await;
        pool.give(held);
    }
    ending
}

enum Asked {
    /// With a head; true when the connection has ended already.
    Answered(Response<Incoming>, bool),
    /// The connection was closed before a byte of the request was written, which is back in its place.
    Unwritten,
    Failed(hyper::Error),
}

async fn ask(link: &mut Link, request: &Outgoing, watch: &impl Watch) -> Asked {
    let Some(outgoing) = request.take() else { return Asked::Unwritten };
    link.carried += 1;
    let Link { sender, conn, relay, stamps, .. } = link;
    let mut response = pin!(sender.try_send_request(outgoing));
    let (mut done, mut sent) = (false, false);
    let answered = poll_fn(|cx| {
        relay.poll(cx, |cx| {
            if !done {
                // Its error, if any, comes out of the response as well.
                done = Pin::new(&mut *conn).poll(cx).is_ready();
            }
            if !sent && stamps.last_write().is_some() {
                sent = true;
                watch.sent();
            }
            response.as_mut().poll(cx)
        })
    })
    .await;
    match answered {
        Ok(response) => Asked::Answered(response, done),
        Err(mut error) => match error.take_message() {
            Some(back) if stamps.bytes_out() == 0 => {
                request.set(Some(back));
                Asked::Unwritten
            }
            _ => Asked::Failed(error.into_error()),
        },
    }
}

async fn read_body(link: &mut Link, response: Response<Incoming>, done: bool, watch: &impl Watch) -> Ending {
    let mut body = response.into_body();
    let mut done = done;
    loop {
        let Link { conn, relay, .. } = &mut *link;
        let frame = poll_fn(|cx| {
            relay.poll(cx, |cx| {
                if !done {
                    done = Pin::new(&mut *conn).poll(cx).is_ready();
                }
                match Pin::new(&mut body).poll_frame(cx) {
                    Poll::Pending if done => Poll::Ready(None),
                    polled => polled,
                }
            })
        })
        .await;
        match frame {
            None => return Ending::Whole,
            Some(Ok(frame)) => {
                if let Ok(bytes) = frame.into_data()
                    && !watch.data(&bytes)
                {
                    return Ending::Broken { error: String::new() };
                }
            }
            Some(Err(error)) if error.is_parse() || is_bad_framing(&error) => {
                return Ending::told(How::Malformed, By::Server, false, chain(&error));
            }
            Some(Err(error)) => return Ending::Broken { error: chain(&error) },
        }
    }
}

/// Lets the connection come to rest after the last byte, so that it can say whether it may be used again.
async fn settle(link: &mut Link) {
    let Link { sender, conn, relay, .. } = link;
    let mut passes = 0;
    poll_fn(|cx| {
        relay.poll(cx, |cx| {
            passes += 1;
            if sender.is_ready() || sender.is_closed() || passes > 2 {
                return Poll::Ready(());
            }
            match Pin::new(&mut *conn).poll(cx) {
                Poll::Ready(_) => Poll::Ready(()),
                Poll::Pending if sender.is_ready() => Poll::Ready(()),
                Poll::Pending => {
                    cx.waker().wake_by_ref();
                    Poll::Pending
                }
            }
        })
    })
    .await;
}

/// The ending of an attempt that got no connection.
fn not_connected(error: &TakeError) -> Ending {
    match error {
        TakeError::Timeout(_) => Ending::told(How::Timeout, By::Client, true, error.to_string()),
        TakeError::Connect(ConnectError::Local(_)) => {
            Ending::told(How::Refused, By::Client, false, error.to_string())
        }
        TakeError::Connect(ConnectError::Name(..)) => {
            Ending::told(How::Refused, By::Network, false, error.to_string())
        }
        TakeError::Connect(_) => Ending::told(How::Refused, By::Network, true, error.to_string()),
    }
}

/// The ending of an attempt whose connection failed before a head had come.
fn no_answer(error: &hyper::Error) -> Ending {
    let text = chain(error);
    if error.is_parse() || error.is_parse_too_large() {
        Ending::told(How::Malformed, By::Server, false, text)
    } else if error.is_incomplete_message() || error.is_canceled() || error.is_closed() {
        Ending::told(How::Reset, By::Server, true, text)
    } else {
        Ending::told(How::Reset, By::Network, true, text)
    }
}

/// Broken transfer coding (a chunk size that is none) comes as an I/O error of the "invalid" kinds.
fn is_bad_framing(error: &hyper::Error) -> bool {
    let io = error.source().and_then(|source| source.downcast_ref::<std::io::Error>());
    io.is_some_and(|io| {
        matches!(io.kind(), std::io::ErrorKind::InvalidInput | std::io::ErrorKind::InvalidData)
            && io.raw_os_error().is_none()
    })
}

/// An error with its causes on one line.
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        let said = inner.to_string();
        if !text.contains(&said) {
            text = format!("{text}: {said}");
        }
        cause = inner.source();
    }
    text
}
