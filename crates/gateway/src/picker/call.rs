//! One gRPC call: messages in, messages out, and an end with a code.
//!
//! The work on a call is a future inside the answer's body: whoever drops the body (the proxy reset the stream, its connection broke) drops the work, and with it what
//! it holds of a replica. So nothing has to be told that nobody listens any more.

use std::cell::Cell;
use std::collections::VecDeque;
use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue};
use http_body::{Body, Frame};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use plimsoll_wire::grpc::{self, CallMessages, Code, FrameError};

/// Messages that are kept while the work looks elsewhere.
const MOST_AHEAD: usize = 16;

/// How a call ends that does not end well.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CallEnd {
    code: Code,
    why: String,
}

impl CallEnd {
    /// With a code and a sentence.
    pub fn new(code: Code, why: impl Into<String>) -> CallEnd {
        CallEnd { code, why: why.into() }
    }

    /// Was a message longer than may be?
    pub(crate) fn is_too_large(&self) -> bool {
        self.code == Code::ResourceExhausted
    }
}

impl From<FrameError> for CallEnd {
    fn from(error: FrameError) -> CallEnd {
        let code = match error {
            FrameError::TooLarge(_) => Code::ResourceExhausted,
            FrameError::Compressed => Code::Unimplemented,
            FrameError::Broken(_) => Code::InvalidArgument,
        };
        CallEnd::new(code, error.to_string())
    }
}

/// What the caller sends.
pub struct Inbox {
    body: Incoming,
    pieces: CallMessages,
    ahead: VecDeque<Bytes>,
}

impl Inbox {
    /// Nothing of it was read. `most`: bytes that a message may have.
    pub fn new(body: Incoming, most: usize) -> Inbox {
        Inbox { body, pieces: CallMessages::new(most), ahead: VecDeque::new() }
    }

    /// The next message; `None` = the caller has said all. May be dropped and asked again.
    ///
    /// # Errors
    /// The frame breaks, or the caller has gone.
    pub async fn next(&mut self) -> Result<Option<Bytes>, CallEnd> {
        match self.ahead.pop_front() {
            Some(message) => Ok(Some(message)),
            None => self.read().await,
        }
    }

    async fn read(&mut self) -> Result<Option<Bytes>, CallEnd> {
        loop {
            if let Some(message) = self.pieces.take()? {
                return Ok(Some(message));
            }
            match self.body.frame().await {
                Some(Ok(frame)) => frame.data_ref().into_iter().for_each(|data| self.pieces.push(data)),
                Some(Err(_)) => return Err(CallEnd::new(Code::Unavailable, "the caller has gone")),
                None if self.pieces.is_empty() => return Ok(None),
                None => return Err(CallEnd::new(Code::InvalidArgument, "the call ends within a message")),
            }
        }
    }

    /// Until the caller has said all or has gone; what it says until then is kept, to a bound.
    pub async fn ended(&mut self) {
        while self.ahead.len() < MOST_AHEAD {
            match self.read().await {
                Ok(Some(message)) => self.ahead.push_back(message),
                Ok(None) | Err(_) => return,
            }
        }
        std::future::pending().await
    }
}

/// Where the work puts messages for the caller: one at a time, taken when the connection has room.
#[derive(Clone, Default)]
pub struct Outbox(Rc<Cell<Option<Bytes>>>);

impl Outbox {
    /// Sends a message, when the one before it has been taken.
    pub async fn send(&self, message: &[u8]) {
        let mut framed = Some(Bytes::from(grpc::framed(message)));
        // Whoever takes the one before polls the work again.
        poll_fn(|_| match self.0.take() {
            None => {
                self.0.set(framed.take());
                Poll::Ready(())
            }
            before => {
                self.0.set(before);
                Poll::Pending
            }
        })
        .await;
    }
}

/// What answers a call.
type Work = Pin<Box<dyn Future<Output = Result<(), CallEnd>>>>;

/// The answer to a call, with the work on it inside.
pub struct CallBody {
    work: Option<Work>,
    outbox: Outbox,
    trailers: Option<HeaderMap>,
}

impl CallBody {
    /// What this work sends to its end.
    pub fn new(outbox: &Outbox, work: impl Future<Output = Result<(), CallEnd>> + 'static) -> CallBody {
        CallBody { work: Some(Box::pin(work)), outbox: outbox.clone(), trailers: None }
    }

    /// Nothing but this end.
    pub fn ended(end: CallEnd) -> CallBody {
        CallBody { work: None, outbox: Outbox::default(), trailers: Some(trailers(Err(end))) }
    }

    /// Nothing: it is no call.
    pub fn empty() -> CallBody {
        CallBody { work: None, outbox: Outbox::default(), trailers: None }
    }
}

impl Body for CallBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if let Some(work) = &mut self.work
            && let Poll::Ready(end) = work.as_mut().poll(cx)
        {
            self.work = None;
            self.trailers = Some(trailers(end));
        }
        if let Some(message) = self.outbox.0.take() {
            return Poll::Ready(Some(Ok(Frame::data(message))));
        }
        match self.trailers.take() {
            Some(trailers) => Poll::Ready(Some(Ok(Frame::trailers(trailers)))),
            None if self.work.is_some() => Poll::Pending,
            None => Poll::Ready(None),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.work.is_none() && self.trailers.is_none()
    }
}

fn trailers(end: Result<(), CallEnd>) -> HeaderMap {
    let mut trailers = HeaderMap::new();
    let code = end.as_ref().err().map_or(Code::Ok, |end| end.code);
    trailers.insert("grpc-status", HeaderValue::from(code as u16));
    let why = end.err().and_then(|end| HeaderValue::try_from(grpc::message(&end.why)).ok());
    why.into_iter().for_each(|why| drop(trailers.insert("grpc-message", why)));
    trailers
}
