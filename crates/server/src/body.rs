//! Implements response bodies: complete bodies, and streams of one frame per engine step.
//!
//! A stream passes a frame to hyper only when the kernel has the previous one, so that each frame leaves in a separate
//! write. The frame's text is written at that moment into a buffer that all streams share. A client disconnect reaches the
//! engine as the drop of a body before its end.

use std::cell::RefCell;
use std::convert::Infallible;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, HeaderValue};
use http_body::{Body, Frame, SizeHint};
use plimsoll_sim::Failure;
use plimsoll_wire::grpc::{self, Code};
use plimsoll_wire::server::ReportedTimings;
use tokio::sync::mpsc;

use crate::engine::EngineDriver;
use crate::io::{Conn, FrameContent};
use crate::stream::EngineStream;
use crate::voice::AnswerWriter;

/// Bytes of a frame buffer; it is reused once it is full and all its frames are dropped.
const PAGE_BYTES: usize = 64 * 1024;
/// Bytes that one frame may need before the buffer is renewed.
const FRAME_BYTES: usize = 4 * 1024;

/// A handle of a request in the engine. Dropping it early cancels the request.
pub struct HeldRequest {
    stream: Rc<EngineStream>,
    engine: Rc<EngineDriver>,
    over: bool,
}

impl HeldRequest {
    pub fn new(stream: Rc<EngineStream>, engine: Rc<EngineDriver>) -> HeldRequest {
        HeldRequest { stream, engine, over: false }
    }

    /// Returns the failure of the request, if the engine failed it.
    pub fn failure(&self) -> Option<Failure> {
        self.stream.failure()
    }

    /// Returns whether the request failed before its first token.
    pub(crate) fn has_failed_unsaid(&self) -> bool {
        self.stream.failure().is_some() && !self.stream.has_due()
    }

    pub fn conn(&self) -> &Rc<Conn> {
        self.stream.conn()
    }

    /// Returns the replica of the request; `None` before a router placed it.
    pub fn replica(&self) -> Option<u32> {
        self.stream.replica()
    }

    /// Returns the timings that the engine reports after the last token.
    pub fn told(&self) -> ReportedTimings {
        self.stream.told()
    }

    /// Resolves when a router has placed the request, or the engine has finished it.
    pub async fn placed(&self) {
        std::future::poll_fn(|cx| {
            self.stream.watch(cx);
            if self.stream.is_ended() || self.stream.replica().is_some() {
                Poll::Ready(())
            } else {
                Poll::Pending
            }
        })
        .await;
    }

    /// Resolves when a token is ready, or the engine has finished the request.
    pub async fn begun(&self) {
        std::future::poll_fn(|cx| {
            self.stream.watch(cx);
            if self.stream.is_ended() || self.stream.has_due() { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }

    /// Resolves when the engine has finished the request.
    pub async fn ended(&self) {
        std::future::poll_fn(|cx| {
            self.stream.watch(cx);
            if self.stream.is_ended() { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }
}

impl Drop for HeldRequest {
    fn drop(&mut self) {
        if !self.over {
            self.engine.cancel(self.stream.id);
        }
    }
}

/// The buffer that frames are written to.
pub type FramePage = Rc<RefCell<BytesMut>>;

/// Returns a buffer for the streams of one server.
pub fn page() -> FramePage {
    Rc::new(RefCell::new(BytesMut::with_capacity(PAGE_BYTES)))
}

pub enum AnswerBody {
    Whole(WholeBody),
    Stream(Box<StreamedBody>),
    /// The messages of a gRPC call.
    Call(CallBody),
}

pub struct WholeBody {
    bytes: Option<Bytes>,
    conn: Rc<Conn>,
    held: Option<HeldRequest>,
}

/// A body that is produced while the engine runs.
pub struct StreamedBody {
    held: HeldRequest,
    voice: AnswerWriter,
    page: FramePage,
    part: Part,
}

#[derive(Copy, Clone, PartialEq, Eq)]
enum Part {
    Opening,
    Tokens,
    Over,
}

impl AnswerBody {
    /// Returns a complete body, with its request if the engine processed one.
    pub fn whole(bytes: Bytes, conn: &Rc<Conn>, held: Option<HeldRequest>) -> AnswerBody {
        AnswerBody::Whole(WholeBody { bytes: Some(bytes), conn: conn.clone(), held })
    }

    /// Returns a body that follows the engine's steps.
    pub fn stream(held: HeldRequest, voice: AnswerWriter, page: &FramePage) -> AnswerBody {
        AnswerBody::Stream(Box::new(StreamedBody { held, voice, page: page.clone(), part: Part::Opening }))
    }
}

impl Body for AnswerBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let frame = match &mut *self {
            AnswerBody::Call(call) => return call.pop(cx).map(|frame| frame.map(Ok)),
            AnswerBody::Whole(whole) => Poll::Ready(whole.pop()),
            AnswerBody::Stream(streamed) => streamed.pop(cx),
        };
        frame.map(|frame| frame.map(|bytes| Ok(Frame::data(bytes))))
    }

    fn is_end_stream(&self) -> bool {
        match self {
            AnswerBody::Whole(whole) => whole.bytes.is_none(),
            AnswerBody::Stream(streamed) => streamed.part == Part::Over,
            AnswerBody::Call(call) => call.over,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            AnswerBody::Whole(whole) => {
                SizeHint::with_exact(whole.bytes.as_ref().map_or(0, |b| b.len() as u64))
            }
            AnswerBody::Stream(_) | AnswerBody::Call(_) => SizeHint::default(),
        }
    }
}

/// One item of a gRPC response.
pub enum CallReply {
    /// A message, and the request that it answers.
    Message(Bytes, Option<HeldRequest>),
    /// The status of a failed call, which ends it.
    Failed(Code, String),
}

/// The response to a gRPC call: the messages of a channel, then the status.
pub struct CallBody {
    said: mpsc::Receiver<CallReply>,
    conn: Rc<Conn>,
    over: bool,
}

impl CallBody {
    /// Returns a body that ends when all senders of the channel are dropped.
    pub fn new(said: mpsc::Receiver<CallReply>, conn: &Rc<Conn>) -> CallBody {
        CallBody { said, conn: conn.clone(), over: false }
    }

    fn pop(&mut self, cx: &mut Context<'_>) -> Poll<Option<Frame<Bytes>>> {
        if self.over {
            return Poll::Ready(None);
        }
        let (code, why) = match ready!(self.said.poll_recv(cx)) {
            Some(CallReply::Message(message, mut held)) => {
                let stream = held.as_mut().map(|held| {
                    held.over = true;
                    &held.stream
                });
                self.conn.popped(FrameContent::Tail, stream);
                return Poll::Ready(Some(Frame::data(message)));
            }
            Some(CallReply::Failed(code, why)) => (code, why),
            None => (Code::Ok, String::new()),
        };
        self.over = true;
        let mut trailers = HeaderMap::new();
        trailers.insert("grpc-status", HeaderValue::from(code as u16));
        if let Ok(why) = HeaderValue::try_from(grpc::message(&why)) {
            trailers.insert("grpc-message", why);
        }
        Poll::Ready(Some(Frame::trailers(trailers)))
    }
}

impl WholeBody {
    fn pop(&mut self) -> Option<Bytes> {
        let bytes = self.bytes.take()?;
        let stream = self.held.as_mut().map(|held| {
            held.over = true;
            &held.stream
        });
        self.conn.popped(FrameContent::Tail, stream);
        Some(bytes)
    }
}

impl Drop for WholeBody {
    fn drop(&mut self) {
        if self.bytes.is_some() {
            self.conn.not_busy();
        }
    }
}

impl StreamedBody {
    fn pop(&mut self, cx: &Context<'_>) -> Poll<Option<Bytes>> {
        if self.part == Part::Over {
            return Poll::Ready(None);
        }
        let stream = &self.held.stream;
        let conn = stream.conn();
        if !conn.may_pop() {
            stream.watch(cx);
            return Poll::Pending;
        }
        let mut page = self.page.borrow_mut();
        page.reserve(FRAME_BYTES);
        if self.part == Part::Opening {
            self.part = Part::Tokens;
            if self.voice.open(&mut page) {
                conn.popped(FrameContent::Plain, Some(stream));
                return Poll::Ready(Some(page.split().freeze()));
            }
        }
        if let Some(due) = stream.pop(cx) {
            self.voice.tokens(&mut page, due.tokens);
            conn.popped(FrameContent::Tokens(due.step_end_ns), Some(stream));
        } else if let Some(failure) = stream.failure() {
            match failure {
                Failure::Status { status, why } => {
                    self.voice.break_off(&mut page, status, why);
                    conn.popped(FrameContent::Tail, Some(stream));
                    self.part = Part::Over;
                    self.held.over = true;
                }
                Failure::Reset => {
                    conn.reset();
                    return Poll::Pending;
                }
                Failure::Cut => {
                    conn.kill();
                    return Poll::Pending;
                }
            }
        } else if stream.is_ended() {
            self.voice.close(&mut page, &stream.told());
            conn.popped(FrameContent::Tail, Some(stream));
            self.part = Part::Over;
            self.held.over = true;
        } else {
            return Poll::Pending;
        }
        Poll::Ready(Some(page.split().freeze()))
    }
}
