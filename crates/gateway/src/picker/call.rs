//! A gRPC call: incoming messages, outgoing messages, and a status at the end.
//!
//! The call's future lives inside the response body. If the proxy resets the stream or its connection breaks, the
//! body is dropped, and with it the future and its booking on a replica. An explicit notification of a disconnect is
//! therefore not needed.

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

/// Limit on messages buffered while the call waits for something else.
const MOST_AHEAD: usize = 16;

/// An unsuccessful end of a call.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GrpcCallError {
    code: Code,
    why: String,
}

impl GrpcCallError {
    /// Returns an end with a status code and a message.
    pub fn new(code: Code, why: impl Into<String>) -> GrpcCallError {
        GrpcCallError { code, why: why.into() }
    }

    /// Returns whether a message exceeded the size limit.
    pub(crate) fn is_too_large(&self) -> bool {
        self.code == Code::ResourceExhausted
    }
}

impl From<FrameError> for GrpcCallError {
    fn from(error: FrameError) -> GrpcCallError {
        let code = match error {
            FrameError::TooLarge(_) => Code::ResourceExhausted,
            FrameError::Compressed => Code::Unimplemented,
            FrameError::Broken(_) => Code::InvalidArgument,
        };
        GrpcCallError::new(code, error.to_string())
    }
}

pub struct GrpcRequests {
    body: Incoming,
    pieces: CallMessages,
    ahead: VecDeque<Bytes>,
}

impl GrpcRequests {
    /// Returns the unread inbox of a call. `most` limits a message in bytes.
    pub fn new(body: Incoming, most: usize) -> GrpcRequests {
        GrpcRequests { body, pieces: CallMessages::new(most), ahead: VecDeque::new() }
    }

    /// Returns the next message, or `None` after the last. The future is cancel-safe.
    ///
    /// # Errors
    /// Fails if the framing is invalid or the caller disconnected.
    pub async fn next(&mut self) -> Result<Option<Bytes>, GrpcCallError> {
        match self.ahead.pop_front() {
            Some(message) => Ok(Some(message)),
            None => self.read().await,
        }
    }

    async fn read(&mut self) -> Result<Option<Bytes>, GrpcCallError> {
        loop {
            if let Some(message) = self.pieces.take()? {
                return Ok(Some(message));
            }
            match self.body.frame().await {
                Some(Ok(frame)) => frame.data_ref().into_iter().for_each(|data| self.pieces.push(data)),
                Some(Err(_)) => return Err(GrpcCallError::new(Code::Unavailable, "the caller disconnected")),
                None if self.pieces.is_empty() => return Ok(None),
                None => {
                    return Err(GrpcCallError::new(Code::InvalidArgument, "the call ends within a message"));
                }
            }
        }
    }

    /// Waits until the caller has finished or disconnected. Messages received in the meantime are buffered up to a
    /// limit.
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

/// The messages to the caller: one slot that is emptied when the connection has capacity.
#[derive(Clone, Default)]
pub struct GrpcReplies(Rc<Cell<Option<Bytes>>>);

impl GrpcReplies {
    /// Sends a message once the slot is empty.
    pub async fn send(&self, message: &[u8]) {
        let mut framed = Some(Bytes::from(grpc::framed(message)));
        // No waker is needed, because the body polls the call again after it takes a message.
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

/// The future that handles a call.
type CallFuture = Pin<Box<dyn Future<Output = Result<(), GrpcCallError>>>>;

/// The response body of a call, which contains and polls the call's future.
pub struct GrpcStreamBody {
    work: Option<CallFuture>,
    outbox: GrpcReplies,
    trailers: Option<HeaderMap>,
}

impl GrpcStreamBody {
    /// Returns the body that runs a call.
    pub fn new(
        outbox: &GrpcReplies,
        work: impl Future<Output = Result<(), GrpcCallError>> + 'static,
    ) -> GrpcStreamBody {
        GrpcStreamBody { work: Some(Box::pin(work)), outbox: outbox.clone(), trailers: None }
    }

    /// Returns a body with only a status.
    pub fn ended(end: GrpcCallError) -> GrpcStreamBody {
        GrpcStreamBody { work: None, outbox: GrpcReplies::default(), trailers: Some(trailers(Err(end))) }
    }

    /// Returns an empty body for a request that is not a gRPC call.
    pub fn empty() -> GrpcStreamBody {
        GrpcStreamBody { work: None, outbox: GrpcReplies::default(), trailers: None }
    }
}

impl Body for GrpcStreamBody {
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

fn trailers(end: Result<(), GrpcCallError>) -> HeaderMap {
    let mut trailers = HeaderMap::new();
    let code = end.as_ref().err().map_or(Code::Ok, |end| end.code);
    trailers.insert("grpc-status", HeaderValue::from(code as u16));
    let why = end.err().and_then(|end| HeaderValue::try_from(grpc::message(&end.why)).ok());
    why.into_iter().for_each(|why| drop(trailers.insert("grpc-message", why)));
    trailers
}
