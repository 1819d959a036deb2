//! What hyper reads and writes: a socket, or TLS over one. The stamps lie below TLS, where bytes meet the kernel.

use std::cell::RefCell;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_util::rt::TokioIo;
use rustls::ServerConfig;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_rustls::server::TlsStream;
use tokio_rustls::{Accept, TlsAcceptor};

use crate::io::{Conn, Io};

/// Bytes that one read of a TLS connection may bring: a record of it holds no more.
const RECORD_BYTES: usize = 16 * 1024;

/// TLS over a socket.
type Sealed = TlsStream<TokioIo<Io>>;

/// Takes connections in TLS.
#[derive(Clone)]
pub struct TlsDoor {
    acceptor: TlsAcceptor,
    /// What was read and opened; reads never overlap, so one buffer serves all connections.
    opened: Rc<RefCell<Box<[u8]>>>,
}

pub enum Transport {
    Plain(Io),
    /// Boxed: its buffers would otherwise be paid for by every plain connection.
    Tls(Box<Sealed>, Rc<Conn>, TlsDoor),
}

/// A handshake that is going on.
pub(crate) struct Handshake {
    shaking: Accept<TokioIo<Io>>,
    conn: Rc<Conn>,
    door: TlsDoor,
}

impl TlsDoor {
    /// With this certificate, and whoever it lets in.
    pub fn new(config: Arc<ServerConfig>) -> TlsDoor {
        let opened = Rc::new(RefCell::new(vec![0; RECORD_BYTES].into_boxed_slice()));
        TlsDoor { acceptor: TlsAcceptor::from(config), opened }
    }

    /// Begins the handshake.
    pub(crate) fn shake(&self, io: Io, conn: &Rc<Conn>) -> Handshake {
        conn.handshake_begins();
        let shaking = self.acceptor.accept(TokioIo::new(io.sealed()));
        Handshake { shaking, conn: conn.clone(), door: self.clone() }
    }
}

impl Handshake {
    /// The connection once it is made, and whether HTTP/2 was chosen on it (ALPN); `None` where it could not be made.
    pub fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<(Transport, bool)>> {
        let shaken = ready!(Pin::new(&mut self.shaking).poll(cx));
        self.conn.handshake_is_over();
        Poll::Ready(shaken.ok().map(|stream| {
            let many = stream.get_ref().1.alpn_protocol() == Some(b"h2");
            (Transport::Tls(Box::new(stream), self.conn.clone(), self.door.clone()), many)
        }))
    }
}

impl Read for Transport {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        mut buf: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        match &mut *self {
            Transport::Plain(io) => Pin::new(io).poll_read(cx, buf),
            Transport::Tls(tls, conn, door) => {
                let mut opened = door.opened.borrow_mut();
                let limit = buf.remaining().min(RECORD_BYTES);
                let mut read = ReadBuf::new(&mut opened[..limit]);
                ready!(Pin::new(&mut **tls).poll_read(cx, &mut read))?;
                if !read.filled().is_empty() {
                    conn.received(read.filled());
                    buf.put_slice(read.filled());
                }
                Poll::Ready(Ok(()))
            }
        }
    }
}

impl Write for Transport {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match &mut *self {
            Transport::Plain(io) => Pin::new(io).poll_write(cx, bytes),
            Transport::Tls(tls, ..) => Pin::new(&mut **tls).poll_write(cx, bytes),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut *self {
            Transport::Plain(io) => Pin::new(io).poll_flush(cx),
            Transport::Tls(tls, ..) => Pin::new(&mut **tls).poll_flush(cx),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut *self {
            Transport::Plain(io) => Pin::new(io).poll_shutdown(cx),
            Transport::Tls(tls, ..) => Pin::new(&mut **tls).poll_shutdown(cx),
        }
    }
}
