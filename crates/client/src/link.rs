//! One HTTP/1.1 connection: hyper's connection future and its request handle over a stamped stream, plain or TLS.
//!
//! The connection is no task of its own. Whoever has a request on it polls the connection and the answer together, so
//! that the newest read is always the one that carried the frame in hand. hyper-util's pooled client lost for that
//! reason, and because age and reuse of a connection are things an experiment sets and a record tells.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body_util::Full;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use plimsoll_model::At;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::relay::Relay;
use crate::stamp::{Meter, Stamps};
use crate::tcp::StampedStream;

/// Most bytes of an answer's head; a head past it is no HTTP answer worth reading. (Its lines are bounded by hyper's own
/// hundred: another number is taken from the heap for every answer.)
const HEAD_MAX: usize = 64 * 1024;

/// Plain or TLS.
#[derive(Debug)]
pub enum Transport {
    /// TCP as it is.
    Plain(StampedStream),
    /// TLS over it. Boxed: its buffers would otherwise be paid for by every plain stream.
    Tls(Box<TlsStream<StampedStream>>),
}

impl Transport {
    fn tcp(&self) -> &StampedStream {
        match self {
            Transport::Plain(tcp) => tcp,
            Transport::Tls(tls) => tls.get_ref().0,
        }
    }
}

/// Why no connection could be made.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The name has no address.
    #[error("cannot find the address of {0}: {1}")]
    Name(String, String),
    /// Nothing answered at any address.
    #[error("cannot connect to {0}: {1}")]
    Tcp(SocketAddr, #[source] io::Error),
    /// The TLS handshake failed.
    #[error("TLS handshake failed: {0}")]
    Tls(#[source] io::Error),
    /// This machine has no descriptor, port or memory left for another socket.
    #[error("this machine cannot open another socket: {0}")]
    Local(#[source] io::Error),
    /// hyper refused the connection.
    #[error("cannot begin HTTP: {0}")]
    Http(#[source] hyper::Error),
}

/// Where connections go.
#[derive(Clone, Debug)]
pub struct Route {
    /// Addresses, tried in order; or why there are none.
    pub addrs: Result<Vec<SocketAddr>, String>,
    /// The host as named, for errors.
    pub host: String,
    /// TLS and the name the certificate must carry.
    pub tls: Option<(Arc<ClientConfig>, ServerName<'static>)>,
}

/// A connection that stands.
pub struct Link {
    /// Its number within the run.
    pub number: u32,
    /// When it stood (TLS included).
    pub connected: At,
    /// How many requests it has carried.
    pub carried: u32,
    /// What its socket has seen.
    pub stamps: Rc<Stamps>,
    /// hyper's request handle.
    pub sender: http1::SendRequest<Full<Bytes>>,
    /// hyper's connection, polled by whoever uses the link.
    pub conn: http1::Connection<Wired, Full<Bytes>>,
    /// Under which both are polled.
    pub relay: Relay,
    wire: Rc<Shared>,
}

impl std::fmt::Debug for Link {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Link({}, {} carried)", self.number, self.carried)
    }
}

/// The transport, reachable beside hyper: hyper owns the only other handle.
#[derive(Debug)]
struct Shared(std::cell::RefCell<Transport>);

/// What hyper reads from and writes to.
pub type Wired = TokioIo<Handle>;

/// A handle on the transport for hyper.
#[derive(Debug)]
pub struct Handle(Rc<Shared>);

impl AsyncRead for Handle {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let transport = &mut *self.0.0.borrow_mut();
        let polled = match transport {
            Transport::Plain(io) => Pin::new(io).poll_read(cx, buf),
            Transport::Tls(io) => Pin::new(io).poll_read(cx, buf),
        };
        if buf.filled().len() > before {
            transport.tcp().stamps().answered();
        }
        polled
    }
}

impl AsyncWrite for Handle {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        match &mut *self.0.0.borrow_mut() {
            Transport::Plain(io) => Pin::new(io).poll_write(cx, buf),
            Transport::Tls(io) => Pin::new(io).poll_write(cx, buf),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match &mut *self.0.0.borrow_mut() {
            Transport::Plain(io) => Pin::new(io).poll_write_vectored(cx, bufs),
            Transport::Tls(io) => Pin::new(io).poll_write_vectored(cx, bufs),
        }
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut *self.0.0.borrow_mut() {
            Transport::Plain(io) => Pin::new(io).poll_flush(cx),
            Transport::Tls(io) => Pin::new(io).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut *self.0.0.borrow_mut() {
            Transport::Plain(io) => Pin::new(io).poll_shutdown(cx),
            Transport::Tls(io) => Pin::new(io).poll_shutdown(cx),
        }
    }
}

impl Link {
    /// Connects: TCP, then TLS where asked. `number` gives the connection its number once TCP stands.
    pub async fn connect(route: &Route, meter: &Rc<Meter>, number: u32) -> Result<Link, ConnectError> {
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
        let connected = meter.clock.now();
        let wire = Rc::new(Shared(std::cell::RefCell::new(transport)));
        let (sender, conn) = http1::Builder::new()
            .max_header_size(HEAD_MAX)
            .max_buf_size(HEAD_MAX.max(256 * 1024))
            .handshake(TokioIo::new(Handle(Rc::clone(&wire))))
            .await
            .map_err(ConnectError::Http)?;
        Ok(Link { number, connected, carried: 0, stamps, sender, conn, relay: Relay::default(), wire })
    }

    /// Has the server closed the connection while nobody used it?
    pub fn is_stale(&self) -> bool {
        self.sender.is_closed() || self.wire.0.borrow().tcp().peer_closed()
    }
}

async fn connect_tcp(route: &Route, meter: &Rc<Meter>) -> Result<StampedStream, ConnectError> {
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

/// Is it this machine that ran out, and not the server that refused?
fn is_local(e: &io::Error) -> bool {
    use nix::errno::Errno;
    let Some(code) = e.raw_os_error() else { return false };
    matches!(
        Errno::from_raw(code),
        Errno::EMFILE | Errno::ENFILE | Errno::EADDRNOTAVAIL | Errno::ENOBUFS | Errno::ENOMEM
    )
}
