//! Provides the transport that hyper reads and writes: a socket, or TLS over one. Stamps are taken below TLS, at the
//! kernel.

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

/// Most bytes of one read of a TLS connection, the size of a record.
const RECORD_BYTES: usize = 16 * 1024;

type ServerTlsStream = TlsStream<TokioIo<Io>>;

#[derive(Clone)]
pub struct TlsListener {
    acceptor: TlsAcceptor,
    /// Buffer for decrypted bytes. Reads never overlap, so one buffer serves all connections.
    opened: Rc<RefCell<Box<[u8]>>>,
}

pub enum ServerTransport {
    Plain(Io),
    /// Boxed, because its buffers would otherwise be part of every plain connection.
    Tls(Box<ServerTlsStream>, Rc<Conn>, TlsListener),
}

pub(crate) struct Handshake {
    shaking: Accept<TokioIo<Io>>,
    conn: Rc<Conn>,
    door: TlsListener,
}

impl TlsListener {
    /// Returns an acceptor with this certificate and client authentication.
    pub fn new(config: Arc<ServerConfig>) -> TlsListener {
        let opened = Rc::new(RefCell::new(vec![0; RECORD_BYTES].into_boxed_slice()));
        TlsListener { acceptor: TlsAcceptor::from(config), opened }
    }

    pub(crate) fn shake(&self, io: Io, conn: &Rc<Conn>) -> Handshake {
        conn.handshake_begins();
        let shaking = self.acceptor.accept(TokioIo::new(io.sealed()));
        Handshake { shaking, conn: conn.clone(), door: self.clone() }
    }
}

impl Handshake {
    /// Returns the connection after the handshake, and whether it negotiated HTTP/2 (ALPN); `None` if the handshake failed.
    pub fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<(ServerTransport, bool)>> {
        let shaken = ready!(Pin::new(&mut self.shaking).poll(cx));
        self.conn.handshake_is_over();
        Poll::Ready(shaken.ok().map(|stream| {
            let many = stream.get_ref().1.alpn_protocol() == Some(b"h2");
            (ServerTransport::Tls(Box::new(stream), self.conn.clone(), self.door.clone()), many)
        }))
    }
}

impl Read for ServerTransport {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        mut buf: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        match &mut *self {
            ServerTransport::Plain(io) => Pin::new(io).poll_read(cx, buf),
            ServerTransport::Tls(tls, conn, door) => {
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

impl Write for ServerTransport {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match &mut *self {
            ServerTransport::Plain(io) => Pin::new(io).poll_write(cx, bytes),
            ServerTransport::Tls(tls, ..) => Pin::new(&mut **tls).poll_write(cx, bytes),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut *self {
            ServerTransport::Plain(io) => Pin::new(io).poll_flush(cx),
            ServerTransport::Tls(tls, ..) => Pin::new(&mut **tls).poll_flush(cx),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut *self {
            ServerTransport::Plain(io) => Pin::new(io).poll_shutdown(cx),
            ServerTransport::Tls(tls, ..) => Pin::new(&mut **tls).poll_shutdown(cx),
        }
    }
}
