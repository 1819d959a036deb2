//! A socket as hyper wants it, after a look at which HTTP it speaks.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use hyper::rt::{Read, ReadBufCursor, Write};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

/// What an HTTP/2 connection begins with.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Bytes read at a time.
const READ_BYTES: usize = 64 << 10;

/// A connection, with the bytes that were looked at still to be read.
pub struct Socket {
    stream: TcpStream,
    seen: Vec<u8>,
    scratch: Box<[u8]>,
}

impl Socket {
    /// Reads until it is known whether HTTP/2 is spoken; true where it is.
    pub async fn begin(stream: TcpStream) -> io::Result<(Socket, bool)> {
        let mut seen = Vec::new();
        let is_http2 = loop {
            let mut buf = [0; PREFACE.len()];
            stream.readable().await?;
            match stream.try_read(&mut buf[seen.len()..]) {
                Ok(0) => break false,
                Ok(n) => {
                    let from = seen.len();
                    seen.extend_from_slice(&buf[from..from + n]);
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => continue,
                Err(e) => return Err(e),
            }
            if !PREFACE.starts_with(&seen) {
                break false;
            }
            if seen.len() == PREFACE.len() {
                break true;
            }
        };
        Ok((Socket { stream, seen, scratch: vec![0; READ_BYTES].into_boxed_slice() }, is_http2))
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
