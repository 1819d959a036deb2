//! Adapts a socket for hyper after detecting its version of HTTP.

use std::io::{self, Cursor};

use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite};
use tokio::net::TcpStream;

/// First bytes of an HTTP/2 connection.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// First bytes of a TLS connection: a handshake record of any version 3.
const TLS: &[u8] = &[0x16, 0x03];

/// The protocol of a connection, detected from its first bytes.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum DetectedProtocol {
    /// HTTP/1, or an unknown protocol.
    Http1,
    /// HTTP/2 with the preface that gRPC sends.
    Http2,
    /// TLS, which is not supported.
    Tls,
}

/// Detects the protocol. Returns it with the connection, whose inspected bytes are still to be read.
pub async fn begin(
    stream: TcpStream,
) -> io::Result<(TokioIo<impl AsyncRead + AsyncWrite + Unpin + Send>, DetectedProtocol)> {
    let mut seen = Vec::new();
    let speaks = loop {
        let mut buf = [0; PREFACE.len()];
        stream.readable().await?;
        match stream.try_read(&mut buf[seen.len()..]) {
            Ok(0) => break DetectedProtocol::Http1,
            Ok(n) => {
                let from = seen.len();
                seen.extend_from_slice(&buf[from..from + n]);
            }
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => continue,
            Err(e) => return Err(e),
        }
        if seen.starts_with(TLS) {
            break DetectedProtocol::Tls;
        }
        if !PREFACE.starts_with(&seen) && !TLS.starts_with(&seen) {
            break DetectedProtocol::Http1;
        }
        if seen.len() == PREFACE.len() {
            break DetectedProtocol::Http2;
        }
    };
    let (read, write) = stream.into_split();
    Ok((TokioIo::new(tokio::io::join(Cursor::new(seen).chain(read), write)), speaks))
}
