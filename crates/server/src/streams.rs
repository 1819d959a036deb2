//! Serves the streams of an HTTP/2 connection with the front of HTTP/1.1; each stream has its own stamps and end.
//!
//! An event that ends an HTTP/1.1 connection (a reset, a cut) ends only the stream here. The exception is a client that
//! blocks a stream. While bytes wait for its window, hyper does not poll the body, and only closing the connection ends the
//! stream.

use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{Request, Response};
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use hyper::service::Service;
use plimsoll_client::clock;

use crate::body::AnswerBody;
use crate::call;
use crate::front::Call;
use crate::io::Conn;
use crate::shared::Server;
use crate::voice;

/// The error of a stream that a fault of the world ended without a response.
#[derive(Copy, Clone, Debug, thiserror::Error)]
#[error("the stream is reset")]
pub struct Reset;

/// The service of all streams of a connection.
pub struct StreamFront {
    server: Rc<Server>,
    lead: Rc<Conn>,
}

impl StreamFront {
    /// Returns the service for the streams of this connection.
    pub(crate) fn new(server: Rc<Server>, lead: Rc<Conn>) -> StreamFront {
        StreamFront { server, lead }
    }
}

impl Service<Request<Incoming>> for StreamFront {
    type Response = Response<StreamBody>;
    type Error = Reset;
    type Future = PendingResponse;

    fn call(&self, request: Request<Incoming>) -> PendingResponse {
        let conn = Conn::of_stream(&self.lead);
        let held = Open(conn.clone());
        let endpoint = voice::endpoint(request.uri().path());
        let call = Call { server: self.server.clone(), conn, endpoint };
        let work = async move {
            match call::is_call(&request) {
                true => call.called(request),
                false => call.answer(request).await,
            }
        };
        PendingResponse { work: Box::pin(work), held: Some(held) }
    }
}

/// A guard that ends the stream on drop.
struct Open(Rc<Conn>);

impl Drop for Open {
    fn drop(&mut self) {
        self.0.let_go();
        self.0.stream_over();
    }
}

pub struct PendingResponse {
    work: Pin<Box<dyn Future<Output = Response<AnswerBody>>>>,
    held: Option<Open>,
}

impl Future for PendingResponse {
    type Output = Result<Response<StreamBody>, Reset>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Some(held) = &self.held else { return Poll::Ready(Err(Reset)) };
        held.0.remember(cx);
        let polled = self.work.as_mut().poll(cx);
        match (polled, self.held.take()) {
            (_, Some(held)) if held.0.is_killed() => Poll::Ready(Err(Reset)),
            (Poll::Ready(answer), Some(held)) => {
                let (head, inner) = answer.into_parts();
                Poll::Ready(Ok(Response::from_parts(head, StreamBody { inner, held })))
            }
            (_, held) => {
                self.held = held;
                Poll::Pending
            }
        }
    }
}

/// A response body that a fault may end.
pub struct StreamBody {
    inner: AnswerBody,
    held: Open,
}

impl Body for StreamBody {
    type Data = Bytes;
    type Error = Reset;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Reset>>> {
        self.held.0.remember(cx);
        self.held.0.handed_on();
        let frame = Pin::new(&mut self.inner).poll_frame(cx);
        if self.held.0.is_killed() {
            return Poll::Ready(Some(Err(Reset)));
        }
        if frame.is_ready() {
            self.held.0.handed(clock::monotonic_ns());
        }
        frame.map(|frame| frame.map(|frame| frame.map_err(|never| match never {})))
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}
