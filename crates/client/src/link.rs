//! One HTTP/1.1 connection: a stamped stream, plain or TLS, and what reads its answers.
//!
//! The connection is no task of its own. Whoever has a request on it writes and reads in one task, so that the newest read
//! is always the one that carried the bytes in hand. hyper's client lost on cost (see [`plimsoll_wire::http1`]); a pooled
//! client would lose besides because age and reuse of a connection are things an experiment sets and a record tells.

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

use crate::request::Request;
use crate::stamp::{Meter, Stamps};
use crate::tcp::StampedStream;

/// Plain or TLS.
#[derive(Debug)]
pub enum Transport {
    /// TCP as it is.
    Plain(StampedStream),
    /// TLS over it. Boxed: its buffers would otherwise be paid for by every plain stream.
    Tls(Box<TlsStream<StampedStream>>),
}

impl Transport {
    /// Connects: TCP, then TLS where asked.
    pub(crate) async fn connect(
        route: &Route,
        meter: &Rc<Meter>,
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

/// Why no connection could be made.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The name has no address.
    #[error("cannot find the address of {0}: {1}")]
    Name(String, String),
    #[error("cannot connect to {0}: {1}")]
    Tcp(SocketAddr, #[source] io::Error),
    /// The TLS handshake failed.
    #[error("TLS handshake failed: {}", crate::tls_words::why(.0))]
    Tls(#[source] io::Error),
    /// What answers does not speak HTTP/2.
    #[error("it does not speak HTTP/2: {0}")]
    NotHttp2(String),
    /// This machine has no descriptor, port or memory left for another socket.
    #[error("this machine cannot open another socket: {0}")]
    Local(#[source] io::Error),
}

/// Why no connection could be had from a pool.
#[derive(Debug, thiserror::Error)]
pub enum TakeError {
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// It did not stand in time.
    #[error("no connection within {0}")]
    Timeout(Span),
    /// Another request made the connection that this one waited for, and could not.
    #[error(transparent)]
    Gone(Arc<TakeError>),
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
    /// HTTP/2 is spoken, with so many streams on a connection at the most; `None` = HTTP/1.1.
    pub http2: Option<u32>,
}

/// A connection that stands.
pub struct Link {
    pub number: u32,
    /// When it stood (TLS included).
    pub connected: At,
    /// How many requests it has carried.
    pub carried: u32,
    /// When the last answer that it carried was read to its end.
    pub idle_since: Option<At>,
    pub stamps: Rc<Stamps>,
    pub reader: Reader,
    transport: Transport,
    /// Its bytes no longer stand where one answer ends and the next begins.
    spoilt: bool,
}

impl std::fmt::Debug for Link {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Link({}, {} carried)", self.number, self.carried)
    }
}

impl Link {
    /// Connects: TCP, then TLS where asked. `number` gives the connection its number once TCP stands.
    pub async fn connect(route: &Route, meter: &Rc<Meter>, number: u32) -> Result<Link, ConnectError> {
        let (transport, stamps) = Transport::connect(route, meter).await?;
        let connected = meter.clock.now();
        let reader = Reader::default();
        Ok(Link { number, connected, carried: 0, idle_since: None, stamps, reader, transport, spoilt: false })
    }

    /// Writes what is left of the request; ready once all of it is handed to the kernel.
    pub fn poll_write(&mut self, cx: &mut Context<'_>, request: &mut Request) -> Poll<io::Result<()>> {
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

    /// Reads what is there; 0 = the server has closed its side.
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

    /// No other request may follow on this connection.
    pub fn spoil(&mut self) {
        self.spoilt = true;
    }

    /// May another request follow, now that an answer has ended?
    pub fn is_reusable(&self) -> bool {
        self.reader.is_reusable() && !self.spoilt
    }

    /// Has it been idle from `from` on, or carried no answer yet?
    pub(crate) fn rested(&self, from: At) -> bool {
        self.idle_since.is_none_or(|since| since <= from)
    }

    /// Has the server closed the connection while nobody used it, or said something unasked? One system call.
    pub(crate) fn is_stale(&mut self) -> bool {
        match &mut self.transport {
            Transport::Plain(tcp) => tcp.is_disturbed(),
            // What comes between answers may be TLS's own business: only it can tell.
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
