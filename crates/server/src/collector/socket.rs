//! A socket as hyper wants it, after a look at which HTTP it speaks.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use hyper::rt::{Read, ReadBufCursor, Write};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

/// What an HTTP/2 connection begins with.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// What a TLS connection begins with: a handshake record of any version 3.
const TLS: &[u8] = &[0x16, 0x03];
/// Bytes read at a time.
const READ_BYTES: usize = 64 << 10;

/// What a connection speaks, by its first bytes.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Speaks {
    /// HTTP/1, or nothing that is known.
    Http1,
    /// HTTP/2, begun as gRPC begins it.
    Http2,
    /// TLS, which is not spoken here.
    Tls,
}

/// A connection, with the bytes that were looked at still to be read.
pub struct Socket {
    stream: TcpStream,
    seen: Vec<u8>,
    scratch: Box<[u8]>,
}

impl Socket {
    /// Reads until it is known what is spoken.
    pub async fn begin(stream: TcpStream) -> io::Result<(Socket, Speaks)> {
        let mut seen = Vec::new();
        let speaks = loop {
            let mut buf = [0; PREFACE.len()];
            stream.readable().await?;
            match stream.try_read(&mut buf[seen.len()..]) {
                Ok(0) => break Speaks::Http1,
                Ok(n) => {
                    let from = seen.len();
                    seen.extend_from_slice(&buf[from..from + n]);
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => continue,
                Err(e) => return Err(e),
            }
            if seen.starts_with(TLS) {
                break Speaks::Tls;
            }
            if !PREFACE.starts_with(&seen) && !TLS.starts_with(&seen) {
                break Speaks::Http1;
            }
            if seen.len() == PREFACE.len() {
                break Speaks::Http2;
            }
        };
        Ok((Socket { stream, seen, scratch: vec![0; READ_BYTES].into_boxed_slice() }, speaks))
    }
}

impl Read for Socket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        mut buf: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if !this.seen.is_empty() {
            let n = this.seen.len().min(buf.remaining());
            buf.put_slice(&this.seen[..n]);
            this.seen.drain(..n);
            return Poll::Ready(Ok(()));
        }
        let room = buf.remaining().min(this.scratch.len());
        let mut read = ReadBuf::new(&mut this.scratch[..room]);
        ready!(Pin::new(&mut this.stream).poll_read(cx, &mut read))?;
        buf.put_slice(read.filled());
        Poll::Ready(Ok(()))
    }
}

impl Write for Socket {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
