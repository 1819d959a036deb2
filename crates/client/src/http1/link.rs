//! Represents one HTTP/1.1 connection: a stamped stream, plain or TLS, and the parser of its responses.
//!
//! The connection is no separate task. The task of a request writes and reads on it, so that the newest read always carried
//! the bytes in process. The client of hyper was rejected on cost (see [`plimsoll_wire::http1`]). A pooled client was also
//! rejected, because an experiment sets and records the age and reuse of connections.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};

use plimsoll_model::{At, Span};
use plimsoll_wire::http1::Reader;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead as _, AsyncWrite as _, ReadBuf};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::http1::request::RequestWriter;
use crate::http1::stamp::{SocketMeter, Stamps};
use crate::http1::tcp::StampedStream;

/// The transport of a connection, plain or TLS.
#[derive(Debug)]
pub enum Transport {
    Plain(StampedStream),
    /// TLS over TCP. Boxed, because its buffers would otherwise be part of every plain stream.
    Tls(Box<TlsStream<StampedStream>>),
}

impl Transport {
    /// Connects by TCP, then by TLS if configured.
    pub(crate) async fn connect(
        route: &Route,
        meter: &Rc<SocketMeter>,
    ) -> Result<(Transport, Rc<Stamps>), ConnectError> {
        let tcp = connect_tcp(route, meter).await?;
        let stamps = Rc::clone(tcp.stamps());
        let transport = match &route.tls {
            None => Transport::Plain(tcp),
            Some((config, name)) => {
                let connector = TlsConnector::from(Arc::clone(config));
                let tls = connector.connect(name.clone(), tcp).await.map_err(ConnectError::Tls)?;
                Transport::Tls(Box::new(tls))
            }
        };
        Ok((transport, stamps))
    }
}

#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The host name does not resolve.
    #[error("cannot find the address of {0}: {1}")]
    Name(String, String),
    #[error("cannot connect to {0}: {1}")]
    Tcp(SocketAddr, #[source] io::Error),
    #[error("TLS handshake failed: {}", crate::tls::tls_words::why(.0))]
    Tls(#[source] io::Error),
    /// The peer does not support HTTP/2.
    #[error("the server does not support HTTP/2: {0}")]
    NotHttp2(String),
    /// This machine has no descriptor, port or memory left for another socket.
    #[error("this machine cannot open another socket: {0}")]
    Local(#[source] io::Error),
}

/// Errors of taking a connection from a pool.
#[derive(Debug, thiserror::Error)]
pub enum TakeError {
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// The connection was not established in time.
    #[error("no connection within {0}")]
    Timeout(Span),
    /// This request waited for a connection that another request failed to open.
    #[error(transparent)]
    Gone(Arc<TakeError>),
}

/// The addresses, host and protocol that connections use.
#[derive(Clone, Debug)]
pub struct Route {
    /// Addresses in order of preference, or the resolver's error.
    pub addrs: Result<Vec<SocketAddr>, String>,
    /// Host as configured, for errors.
    pub host: String,
    /// TLS settings and the name that the certificate must carry; `None` = no TLS.
    pub tls: Option<(Arc<ClientConfig>, ServerName<'static>)>,
    /// Most streams per HTTP/2 connection; `None` = HTTP/1.1.
    pub http2: Option<u32>,
}

pub struct Http1Connection {
    pub number: u32,
    /// Time at which the connection was established (TLS included).
    pub connected: At,
    /// Number of requests that the connection has carried.
    pub carried: u32,
    /// End of the last response; `None` if the connection has carried none.
    pub idle_since: Option<At>,
    pub stamps: Rc<Stamps>,
    pub reader: Reader,
    transport: Transport,
    /// Set if the stream is no longer at the boundary between two responses.
    spoilt: bool,
}

impl std::fmt::Debug for Http1Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Link({}, {} carried)", self.number, self.carried)
    }
}

impl Http1Connection {
    /// Connects by TCP, then by TLS if configured. `number` is the connection's number within the run.
    pub async fn connect(
        route: &Route,
        meter: &Rc<SocketMeter>,
        number: u32,
    ) -> Result<Http1Connection, ConnectError> {
        let (transport, stamps) = Transport::connect(route, meter).await?;
        let connected = meter.clock.now();
        let reader = Reader::default();
        Ok(Http1Connection {
            number,
            connected,
            carried: 0,
            idle_since: None,
            stamps,
            reader,
            transport,
            spoilt: false,
        })
    }

    /// Writes the rest of the request; ready once the kernel has all of it.
    pub fn poll_write(&mut self, cx: &mut Context<'_>, request: &mut RequestWriter) -> Poll<io::Result<()>> {
        while !request.is_written() {
            let rest = request.rest();
            let n = ready!(match &mut self.transport {
                Transport::Plain(tcp) => Pin::new(tcp).poll_write_vectored(cx, &rest),
                Transport::Tls(tls) => Pin::new(tls).poll_write_vectored(cx, &rest),
            })?;
            if n == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            request.wrote(n);
        }
        match &mut self.transport {
            Transport::Plain(_) => Poll::Ready(Ok(())),
            Transport::Tls(tls) => Pin::new(tls).poll_flush(cx),
        }
    }

    /// Reads the available bytes; 0 = the server has closed its side.
    pub fn poll_read(&mut self, cx: &mut Context<'_>, room: &mut [u8]) -> Poll<io::Result<usize>> {
        let n = ready!(match &mut self.transport {
            Transport::Plain(tcp) => tcp.poll_recv(cx, room),
            Transport::Tls(tls) => {
                let mut buf = ReadBuf::new(room);
                let read = ready!(Pin::new(tls).poll_read(cx, &mut buf));
                Poll::Ready(read.map(|()| buf.filled().len()))
            }
        })?;
        if n > 0 {
            self.stamps.answered();
        }
        Poll::Ready(Ok(n))
    }

    /// Marks the connection as unusable for further requests.
    pub fn spoil(&mut self) {
        self.spoilt = true;
    }

    /// Returns whether another request may follow after a complete response.
    pub fn is_reusable(&self) -> bool {
        self.reader.is_reusable() && !self.spoilt
    }

    /// Returns whether the connection has been idle since `from`, or has carried no response yet.
    pub(crate) fn rested(&self, from: At) -> bool {
        self.idle_since.is_none_or(|since| since <= from)
    }

    /// Returns whether the server closed the idle connection or sent unsolicited bytes. Costs one system call.
    pub(crate) fn is_stale(&mut self) -> bool {
        match &mut self.transport {
            Transport::Plain(tcp) => tcp.is_disturbed(),
            // Bytes between responses may belong to TLS itself, so TLS must decode them.
            Transport::Tls(tls) => {
                tls.get_ref().0.look(true);
                let mut byte = [0];
                let mut cx = Context::from_waker(Waker::noop());
                let stale = Pin::new(&mut *tls).poll_read(&mut cx, &mut ReadBuf::new(&mut byte)).is_ready();
                tls.get_ref().0.look(false);
                stale
            }
        }
    }
}

async fn connect_tcp(route: &Route, meter: &Rc<SocketMeter>) -> Result<StampedStream, ConnectError> {
    let addrs = route.addrs.as_ref().map_err(|why| ConnectError::Name(route.host.clone(), why.clone()))?;
    let mut failure = ConnectError::Name(route.host.clone(), "no address".to_owned());
    for &addr in addrs {
        match StampedStream::connect(addr, meter).await {
            Ok(tcp) => return Ok(tcp),
            Err(e) if is_local(&e) => return Err(ConnectError::Local(e)),
            Err(e) => failure = ConnectError::Tcp(addr, e),
        }
    }
    Err(failure)
}

/// Returns whether this machine ran out of resources, as opposed to a rejection by the server.
fn is_local(e: &io::Error) -> bool {
    use nix::errno::Errno;
    let Some(code) = e.raw_os_error() else { return false };
    matches!(
        Errno::from_raw(code),
        Errno::EMFILE | Errno::ENFILE | Errno::EADDRNOTAVAIL | Errno::ENOBUFS | Errno::ENOMEM
    )
}
