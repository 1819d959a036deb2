//! Represents one HTTP/2 connection: a stamped stream that carries the frames of many requests.
//!
//! `h2` implements HPACK, flow control and the protocol's rules. It leaves two points open that the stamps depend on.
//!
//! **One read at a time.** `h2` reads until the socket is empty and then wakes the receiving tasks, so a task can't know
//! which read carried its data. The connection therefore gets one read per turn, and its next turn queues behind the tasks
//! that this read woke. Each task handles its frames while the read that carried them is still the newest, because the
//! runtime's queue is first in, first out.
//!
//! **Requests are written where they begin.** As over HTTP/1.1, the task that makes a request also writes it, instead of
//! leaving it to the connection's next turn.

pub mod streams;

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::io;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use bytes::{Buf, Bytes};
use h2::client::{Builder, Connection, ResponseFuture, SendRequest};
use h2::{Reason, SendStream};
use plimsoll_model::At;
use plimsoll_wire::http1::HEAD_MAX;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::http1::link::{ConnectError, Route, Transport};
use crate::http1::stamp::{SocketMeter, Stamps};
use crate::tls::tls_words;

/// Receive window of a stream in bytes. The protocol's default of 64 KiB would delay long responses by a round trip each,
/// which would be measured as server latency.
const STREAM_WINDOW: u32 = 1 << 20;

/// Receive window of a connection in bytes. All data is consumed on reading, so this window bounds only data in transit.
const CONNECTION_WINDOW: u32 = 16 << 20;

/// Callback for the end of a connection.
pub type CloseCallback = Box<dyn Fn(&Rc<Http2Connection>)>;

pub struct Http2Connection {
    pub number: u32,
    /// Time at which the server's settings arrived.
    pub connected: At,
    pub stamps: Rc<Stamps>,
    /// Number of requests that the connection has carried.
    pub carried: Cell<u32>,
    /// Requests in flight on the connection.
    pub in_use: Cell<u32>,
    ended: CloseCallback,
    send: SendRequest<BodySender>,
    connection: RefCell<Option<Connection<GatedTransport, BodySender>>>,
    gate: Rc<Gate>,
    /// Waker of the connection's task; `None` before its first turn.
    waker: RefCell<Option<Waker>>,
    /// Requests whose bytes are not fully written.
    writing: RefCell<Vec<Rc<WriteProgress>>>,
}

impl std::fmt::Debug for Http2Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Http2Link({}, {} carried)", self.number, self.carried.get())
    }
}

impl Http2Connection {
    /// Connects, waits for the server's settings, and starts the connection's task.
    pub async fn connect(
        route: &Route,
        meter: &Rc<SocketMeter>,
        number: u32,
        ended: CloseCallback,
    ) -> Result<Rc<Http2Connection>, ConnectError> {
        let (transport, stamps) = Transport::connect(route, meter).await?;
        if let Transport::Tls(tls) = &transport
            && tls.get_ref().1.alpn_protocol() != Some(b"h2")
        {
            return Err(ConnectError::NotHttp2("it does not choose h2 in the TLS handshake".to_owned()));
        }
        let gate = Rc::new(Gate::default());
        let io = GatedTransport { transport, gate: Rc::clone(&gate), unwritten: None };
        let handshake = Builder::new()
            .enable_push(false)
            .initial_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .max_header_list_size(HEAD_MAX as u32)
            // Zero, because the server has not yet announced its limit.
            .initial_max_send_streams(0)
            .handshake(io);
        let (send, mut connection) = handshake.await.map_err(|e| not_begun(&e, &gate))?;
        settled(&send, &mut connection, &gate).await?;
        let link = Rc::new(Http2Connection {
            number,
            connected: meter.clock.now(),
            stamps,
            carried: Cell::new(0),
            in_use: Cell::new(0),
            ended,
            send,
            connection: RefCell::new(Some(connection)),
            gate,
            waker: RefCell::default(),
            writing: RefCell::default(),
        });
        tokio::task::spawn_local(Turns(Rc::clone(&link)));
        Ok(link)
    }

    /// Returns how many more requests fit, with at most `most` in flight; zero once the connection is ending.
    pub fn room(&self, most: u32) -> u32 {
        if self.stands() { self.limit(most).saturating_sub(self.in_use.get()) } else { 0 }
    }

    /// Returns whether the connection accepts another request, which is false after its end or a GOAWAY.
    pub fn stands(&self) -> bool {
        let mut cx = Context::from_waker(Waker::noop());
        self.connection.try_borrow().is_ok_and(|connection| connection.is_some())
            && matches!(self.send.clone().poll_ready(&mut cx), Poll::Ready(Ok(())))
    }

    /// Returns the number of concurrent streams that the server permits, at most `most`.
    pub fn limit(&self, most: u32) -> u32 {
        most.min(u32::try_from(self.send.current_max_send_streams()).unwrap_or(u32::MAX))
    }

    /// Starts a request on a new stream and writes as much of it as possible.
    pub fn begin(
        &self,
        (head, body): (http::Request<()>, Bytes),
        stamps: &Rc<Stamps>,
    ) -> Result<(ResponseFuture, SendStream<BodySender>), h2::Error> {
        let fields = fields_len(head.headers());
        let is_empty = body.is_empty();
        let writing = Rc::new(WriteProgress {
            left: Cell::new(body.len()),
            whole: body.len(),
            stamps: Rc::clone(stamps),
        });
        let (response, mut stream) = self.send.clone().send_request(head, is_empty)?;
        if !is_empty {
            self.writing.borrow_mut().push(Rc::clone(&writing));
            stream.send_data(BodySender { bytes: body, writing }, true)?;
        }
        self.flush();
        stamps.spoke(fields);
        Ok((response, stream))
    }

    /// Writes as much as possible, in the turn of the calling task.
    fn flush(&self) {
        let waker = self.waker.borrow().clone();
        // There is no waker before the connection's first turn.
        let _ = self.turn(&mut Context::from_waker(waker.as_ref().unwrap_or(Waker::noop())), false);
    }

    /// Polls the connection once; ready after the connection has ended.
    fn turn(&self, cx: &mut Context<'_>, reads: bool) -> Poll<()> {
        let mut slot = self.connection.borrow_mut();
        let Some(connection) = &mut *slot else { return Poll::Ready(()) };
        self.gate.open.set(reads);
        let polled = Pin::new(connection).poll(cx);
        self.gate.open.set(false);
        self.wrote();
        if polled.is_pending() {
            return Poll::Pending;
        }
        let ended = slot.take();
        drop(slot);
        drop(ended);
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
        Poll::Ready(())
    }

    /// Stamps the requests whose last bytes were just written.
    fn wrote(&self) {
        self.writing.borrow_mut().retain(|writing| {
            let is_open = writing.left.get() > 0;
            if !is_open {
                writing.stamps.spoke(writing.whole);
            }
            // A request that ended before its last byte was written has dropped its bytes.
            is_open && Rc::strong_count(writing) > 1
        });
    }

    /// Closes the connection and wakes its task.
    pub fn close(&self) {
        let ended = self.connection.try_borrow_mut().ok().and_then(|mut connection| connection.take());
        drop(ended);
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }
}

/// Waits until the server has sent its settings.
async fn settled(
    send: &SendRequest<BodySender>,
    connection: &mut Connection<GatedTransport, BodySender>,
    gate: &Gate,
) -> Result<(), ConnectError> {
    poll_fn(|cx| {
        gate.open.set(true);
        let polled = pin!(&mut *connection).poll(cx);
        gate.open.set(false);
        let again = gate.read.take();
        match polled {
            Poll::Ready(ended) => {
                let closed = || ConnectError::NotHttp2("it closed the connection".to_owned());
                Poll::Ready(Err(ended.err().map_or_else(closed, |e| not_begun(&e, gate))))
            }
            Poll::Pending if send.current_max_send_streams() > 0 => Poll::Ready(Ok(())),
            Poll::Pending => {
                if again {
                    cx.waker().wake_by_ref();
                }
                Poll::Pending
            }
        }
    })
    .await
}

/// The future that drives a connection until its end.
struct Turns(Rc<Http2Connection>);

impl Future for Turns {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let link = &self.0;
        {
            let mut waker = link.waker.borrow_mut();
            if !waker.as_ref().is_some_and(|known| known.will_wake(cx.waker())) {
                *waker = Some(cx.waker().clone());
            }
        }
        let turned = link.turn(cx, true);
        match turned {
            Poll::Ready(()) => {
                (link.ended)(link);
            }
            // Queues behind the tasks that this read has woken.
            Poll::Pending if link.gate.read.take() => cx.waker().wake_by_ref(),
            Poll::Pending => {}
        }
        turned
    }
}

/// The gate that lets one read through at a time.
#[derive(Debug, Default)]
struct Gate {
    open: Cell<bool>,
    /// Set after a read since the last check.
    read: Cell<bool>,
    /// TLS error of the connection, kept here because `h2` keeps only the text of an I/O error.
    refused: RefCell<Option<rustls::Error>>,
}

/// A transport that reads only when the gate is open.
#[derive(Debug)]
struct GatedTransport {
    transport: Transport,
    gate: Rc<Gate>,
    /// Error of a failed write, while the bytes that the server sent earlier are read.
    unwritten: Option<io::Error>,
}

impl AsyncRead for GatedTransport {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if !self.gate.open.get() {
            return Poll::Pending;
        }
        let polled = match &mut self.transport {
            Transport::Plain(tcp) => Pin::new(tcp).poll_read(cx, buf),
            Transport::Tls(tls) => Pin::new(tls).poll_read(cx, buf),
        };
        if let Poll::Ready(Err(error)) = &polled {
            *self.gate.refused.borrow_mut() = tls_words::told(error).cloned();
        }
        if polled.is_ready() {
            self.gate.open.set(false);
            self.gate.read.set(true);
        }
        polled
    }
}

impl GatedTransport {
    /// Returns the result of a write.
    ///
    /// A TLS write error is delayed until the remaining bytes are read, because they may contain the server's reason, such
    /// as a missing client certificate.
    fn written<T>(&mut self, cx: &mut Context<'_>, polled: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        match (polled, &self.transport) {
            (Poll::Ready(Err(error)), Transport::Tls(_)) => {
                self.unwritten = Some(error);
                self.last_words(cx).map(Err)
            }
            (polled, _) => polled,
        }
    }

    /// Reads to the end and returns the reason that no more can be written.
    fn last_words(&mut self, cx: &mut Context<'_>) -> Poll<io::Error> {
        let mut bytes = [0; 256];
        while let Transport::Tls(tls) = &mut self.transport {
            let mut buf = ReadBuf::new(&mut bytes);
            match std::task::ready!(Pin::new(tls).poll_read(cx, &mut buf)) {
                Ok(()) if buf.filled().is_empty() => break,
                Ok(()) => {}
                Err(error) => {
                    if let Some(told) = tls_words::told(&error) {
                        *self.gate.refused.borrow_mut() = Some(told.clone());
                    }
                    break;
                }
            }
        }
        Poll::Ready(self.unwritten.take().unwrap_or_else(|| io::ErrorKind::BrokenPipe.into()))
    }
}

impl AsyncWrite for GatedTransport {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        if self.unwritten.is_some() {
            return self.last_words(cx).map(Err);
        }
        let polled = match &mut self.transport {
            Transport::Plain(tcp) => Pin::new(tcp).poll_write(cx, buf),
            Transport::Tls(tls) => Pin::new(tls).poll_write(cx, buf),
        };
        self.written(cx, polled)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        if self.unwritten.is_some() {
            return self.last_words(cx).map(Err);
        }
        let polled = match &mut self.transport {
            Transport::Plain(tcp) => Pin::new(tcp).poll_write_vectored(cx, bufs),
            Transport::Tls(tls) => Pin::new(tls).poll_write_vectored(cx, bufs),
        };
        self.written(cx, polled)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.unwritten.is_some() {
            return self.last_words(cx).map(Err);
        }
        let polled = match &mut self.transport {
            Transport::Plain(tcp) => Pin::new(tcp).poll_flush(cx),
            Transport::Tls(tls) => Pin::new(tls).poll_flush(cx),
        };
        self.written(cx, polled)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.transport {
            Transport::Plain(tcp) => Pin::new(tcp).poll_shutdown(cx),
            Transport::Tls(tls) => Pin::new(tls).poll_shutdown(cx),
        }
    }
}

/// The write progress of a request's body.
struct WriteProgress {
    left: Cell<usize>,
    whole: usize,
    stamps: Rc<Stamps>,
}

/// A request body that is being framed.
pub struct BodySender {
    bytes: Bytes,
    writing: Rc<WriteProgress>,
}

impl Buf for BodySender {
    fn remaining(&self) -> usize {
        self.bytes.remaining()
    }

    fn chunk(&self) -> &[u8] {
        self.bytes.chunk()
    }

    fn advance(&mut self, n: usize) {
        self.bytes.advance(n);
        self.writing.left.set(self.bytes.remaining());
    }
}

/// Returns the size of header fields in bytes, before compression.
pub(crate) fn fields_len(fields: &http::HeaderMap) -> usize {
    fields.iter().map(|(name, value)| name.as_str().len() + value.len()).sum()
}

/// Returns the error of a connection that got no settings. In TLS 1.3 a server verifies the client's certificate after the
/// handshake has ended for the client.
fn not_begun(error: &h2::Error, gate: &Gate) -> ConnectError {
    match gate.refused.take() {
        Some(refused) => ConnectError::Tls(io::Error::other(refused)),
        None => ConnectError::NotHttp2(words(error)),
    }
}

/// Returns an HTTP/2 error as text for users.
pub(crate) fn words(error: &h2::Error) -> String {
    match (error.get_io(), error.reason()) {
        (Some(io), _) => format!("connection error: {io}"),
        (None, Some(reason)) => {
            let what = match (error.is_go_away(), error.is_remote()) {
                (true, true) => "the server ended the connection (GOAWAY",
                (false, true) => "the server reset the stream (RST_STREAM",
                (_, false) => "the server broke the rules of HTTP/2 (",
            };
            let space = if error.is_remote() { ", " } else { "" };
            format!("{what}{space}{})", name(reason))
        }
        _ => error.to_string(),
    }
}

/// Returns the code's name in RFC 9113.
fn name(reason: Reason) -> String {
    // `h2` exposes the name only through `Debug`.
    format!("{reason:?}")
}
