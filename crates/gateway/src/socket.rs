//! Sockets for peers that respond before they have read the complete request.
//!
//! A server that rejects a body closes its connection, and the kernel answers further bytes with a reset.
//! [`EarlyAnswer`] reads the server's response despite the reset. [`LateReader`] is the client side: it continues to
//! read after a rejection by the gateway, so that no reset overtakes the response (nginx's `lingering_close`).

use std::cell::Cell;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use plimsoll_model::Span;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::Sleep;

use crate::timer::soon;

/// Limit on the time that a rejected client may continue to send.
const READS_ON: Span = Span::from_secs(5);

/// A connection to a server. Writes after a write error are discarded, so that the server's response can still be
/// read.
pub struct EarlyAnswer {
    socket: TcpStream,
    is_deaf: bool,
}

impl EarlyAnswer {
    pub fn new(socket: TcpStream) -> EarlyAnswer {
        EarlyAnswer { socket, is_deaf: false }
    }

    /// Turns a failed write into a successful one of `count` bytes. The following read fails if there is no response.
    fn written(&mut self, wrote: Poll<io::Result<usize>>, count: usize) -> Poll<io::Result<usize>> {
        match wrote {
            Poll::Ready(Err(_)) => {
                self.is_deaf = true;
                Poll::Ready(Ok(count))
            }
            wrote => wrote,
        }
    }
}

impl AsyncRead for EarlyAnswer {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        to: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_read(cx, to)
    }
}

impl AsyncWrite for EarlyAnswer {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
        if self.is_deaf {
            return Poll::Ready(Ok(data.len()));
        }
        let wrote = Pin::new(&mut self.socket).poll_write(cx, data);
        self.written(wrote, data.len())
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        data: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let count = data.iter().map(|piece| piece.len()).sum();
        if self.is_deaf {
            return Poll::Ready(Ok(count));
        }
        let wrote = Pin::new(&mut self.socket).poll_write_vectored(cx, data);
        self.written(wrote, count)
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_shutdown(cx)
    }
}

/// A connection of a client. After a rejection before the end of the request, it discards incoming bytes before it
/// closes.
pub struct LateReader<S> {
    socket: S,
    refused: Rc<Cell<bool>>,
    has_shut: bool,
    limit: Option<Pin<Box<Sleep>>>,
}

impl<S> LateReader<S> {
    /// Wraps a connection. `refused` is set when a request is rejected before its end.
    pub fn new(socket: S, refused: Rc<Cell<bool>>) -> LateReader<S> {
        LateReader { socket, refused, has_shut: false, limit: None }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for LateReader<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        to: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_read(cx, to)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for LateReader<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.socket).poll_write(cx, data)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        data: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.socket).poll_write_vectored(cx, data)
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let own = &mut *self;
        if !own.has_shut {
            ready!(Pin::new(&mut own.socket).poll_shutdown(cx))?;
            own.has_shut = true;
        }
        if !own.refused.get() {
            return Poll::Ready(Ok(()));
        }
        let limit = own.limit.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(soon(READS_ON))));
        let mut space = [0; 16 << 10];
        loop {
            if limit.as_mut().poll(cx).is_ready() {
                return Poll::Ready(Ok(()));
            }
            let mut piece = ReadBuf::new(&mut space);
            match ready!(Pin::new(&mut own.socket).poll_read(cx, &mut piece)) {
                Ok(()) if !piece.filled().is_empty() => {}
                Ok(()) | Err(_) => return Poll::Ready(Ok(())),
            }
        }
    }
}
