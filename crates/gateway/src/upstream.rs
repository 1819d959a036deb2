//! Connections to replicas: each thread has its own pool, and a connection carries one request at a time.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::header::{AUTHORIZATION, CONTENT_TYPE, HOST};
use http::{HeaderValue, Method, Request, Response, Uri};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::client::conn::http1::{Builder, SendRequest};
use hyper_util::rt::TokioIo;
use plimsoll_client::Clock;
use plimsoll_model::{At, Span};
use rustls::pki_types::ServerName;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::active_config::ConfigHandle;
use crate::replica::{ConnectionUse, Replica};
use crate::socket::EarlyAnswer;
use crate::spec::ReplicaAddress;

/// Limit on the idle time of a reused connection. Engines on uvicorn close connections after 5 s, and a request that
/// coincides with the close is lost.
const IDLE: Span = Span::from_secs(4);
/// Limit on idle connections per replica and thread.
const KEPT: usize = 256;
/// Time limit for opening a connection to a replica.
const CONNECT: Duration = Duration::from_secs(3);

/// Timeout of the check whether a replica still listens.
const LOOKS: Duration = Duration::from_millis(250);

/// Number of connections made by all threads, used to number them.
static CONNECTIONS: AtomicU32 = AtomicU32::new(0);

struct Sender {
    http: SendRequest<Full<Bytes>>,
    made: At,
    number: u32,
}

pub struct Upstreams {
    clock: Clock,
    rules: Arc<ConfigHandle>,
    http: Builder,
    /// Idle connections by the id of their replica.
    idle: RefCell<HashMap<u64, Idle>>,
    /// Number of replicas with idle connections at the last cleanup.
    swept: Cell<usize>,
}

/// The idle connections of a replica, with the start of their idle time.
struct Idle {
    replica: Arc<Replica>,
    senders: Vec<(Sender, At)>,
}

/// An attempt without a response.
#[derive(Debug)]
pub enum UpstreamError {
    /// The connection could not be established; the replica never received the request.
    NotSent(String),
    /// The connection broke before the response head.
    Broken(String),
    /// The connection broke and no new one can be established. The request may have crashed the replica's process.
    Died(String),
    /// The replica is lost: none of its requests makes progress.
    Lost,
}

impl UpstreamError {
    pub fn why(&self) -> &str {
        match self {
            UpstreamError::NotSent(why) | UpstreamError::Broken(why) | UpstreamError::Died(why) => why,
            UpstreamError::Lost => "the replica answered none of its requests",
        }
    }
}

/// A failure of a request that the gateway sends itself.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum InternalRequestError {
    /// The connection could not be established, or broke.
    Failed,
    /// The request was sent, but the response did not arrive in time.
    Late,
}

/// A connection that returns to the pool after a complete response.
pub struct PooledConnection {
    from: Rc<Upstreams>,
    replica: Arc<Replica>,
    sender: Option<Sender>,
    pub way: ConnectionUse,
}

impl PooledConnection {
    /// Returns the connection to the pool after a complete response.
    pub(crate) fn give_back(mut self) {
        let Some(sender) = self.sender.take() else { return };
        if sender.http.is_closed() || self.replica.is_gone() {
            return;
        }
        self.from.keep(&self.replica, sender);
    }
}

/// A request of the gateway itself.
pub struct InternalRequest<'a> {
    pub method: Method,
    /// Path, appended to the path of the server's URL.
    pub path: &'a str,
    /// Body: JSON for a POST.
    pub body: &'a str,
    /// `Authorization` value; `None` without a key.
    pub bearer: Option<&'a HeaderValue>,
}

impl InternalRequest<'_> {
    fn to(&self, place: &ReplicaAddress) -> Option<Request<Full<Bytes>>> {
        let mut request = Request::new(Full::new(Bytes::copy_from_slice(self.body.as_bytes())));
        *request.method_mut() = self.method.clone();
        *request.uri_mut() = format!("{}{}", place.base, self.path).parse::<Uri>().ok()?;
        let headers = request.headers_mut();
        headers.insert(HOST, place.authority.as_str().parse().ok()?);
        if self.method == Method::POST {
            headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        }
        self.bearer.iter().for_each(|bearer| drop(headers.insert(AUTHORIZATION, (*bearer).clone())));
        Some(request)
    }
}

impl Upstreams {
    /// Returns an empty pool. `most_bytes` limits the bytes read ahead of a slow client.
    pub fn new(clock: Clock, rules: Arc<ConfigHandle>, most_bytes: usize) -> Upstreams {
        let mut http = Builder::new();
        http.max_buf_size(most_bytes.max(8 << 10)).preserve_header_case(false);
        Upstreams { clock, rules, http, idle: RefCell::default(), swept: Cell::new(0) }
    }

    fn keep(&self, replica: &Arc<Replica>, sender: Sender) {
        let mut idle = self.idle.borrow_mut();
        let fresh = || Idle { replica: Arc::clone(replica), senders: Vec::new() };
        let own = &mut idle.entry(replica.id).or_insert_with(fresh).senders;
        if own.len() < KEPT {
            own.push((sender, self.clock.now()));
        }
        // Removed replicas are cleaned up whenever a new one appears.
        if self.swept.replace(idle.len()) < idle.len() {
            idle.retain(|_, idle| !idle.replica.is_gone());
            self.swept.set(idle.len());
        }
    }

    /// Sends a request to a replica. If the replica closed a pooled connection in the meantime, a new one replaces
    /// it. With `may_reuse` false, a new connection is used, because the request must not be sent twice.
    pub async fn send(
        self: &Rc<Upstreams>,
        replica: &Arc<Replica>,
        may_reuse: bool,
        request: impl Fn() -> Request<Full<Bytes>>,
    ) -> Result<(Response<Incoming>, PooledConnection), UpstreamError> {
        let mut broke = None;
        if let Some(sender) = self.kept(replica).filter(|_| may_reuse) {
            match self.on((replica, true), sender, request()).await {
                // The connection was closed before the request was sent.
                Err(error) if error.is_canceled() => {}
                // The connection closed before the first byte of a response. Either it was idle too long, or the
                // request crashed the process.
                Err(error) if error.is_incomplete_message() => broke = Some(error.to_string()),
                Err(error) => return Err(self.broken(replica, error.to_string()).await),
                Ok(answered) => return Ok(answered),
            }
        }
        let sender = match (self.connect(replica).await, broke) {
            (Ok(sender), _) => sender,
            (Err(why), None) => return Err(UpstreamError::NotSent(why)),
            (Err(_), Some(why)) => return Err(UpstreamError::Died(why)),
        };
        match self.on((replica, false), sender, request()).await {
            Ok(answered) => Ok(answered),
            Err(error) => Err(self.broken(replica, error.to_string()).await),
        }
    }

    /// Checks whether the process died with its connection.
    async fn broken(&self, replica: &Replica, why: String) -> UpstreamError {
        let place = &replica.place;
        let connecting = TcpStream::connect((place.host.as_str(), place.port));
        match tokio::time::timeout(LOOKS, connecting).await {
            Ok(Err(_)) => UpstreamError::Died(why),
            Ok(Ok(_)) | Err(_) => UpstreamError::Broken(why),
        }
    }

    /// Sends a request of the gateway, which is not counted as a client's. Returns the status, and the body if it is
    /// complete and within `most` bytes.
    pub async fn ask(
        self: &Rc<Upstreams>,
        replica: &Arc<Replica>,
        request: &InternalRequest<'_>,
        bounds: (Duration, usize),
    ) -> Option<(u16, Option<Bytes>)> {
        self.asked(replica, request, bounds).await.ok()
    }

    /// Sends a request of the gateway, as [`Upstreams::ask`] does. Fails with the kind of failure.
    pub async fn asked(
        self: &Rc<Upstreams>,
        replica: &Arc<Replica>,
        request: &InternalRequest<'_>,
        (within, most): (Duration, usize),
    ) -> Result<(u16, Option<Bytes>), InternalRequestError> {
        let request = request.to(&replica.place).ok_or(InternalRequestError::Failed)?;
        let is_sent = Cell::new(false);
        let asking = async {
            let request = || {
                is_sent.set(true);
                request.clone()
            };
            let (response, lent) =
                self.send(replica, true, request).await.map_err(|_| InternalRequestError::Failed)?;
            let status = response.status().as_u16();
            let page =
                Limited::new(response.into_body(), most).collect().await.ok().map(|page| page.to_bytes());
            if page.is_some() {
                lent.give_back();
            }
            Ok((status, page))
        };
        let late = |_| if is_sent.get() { InternalRequestError::Late } else { InternalRequestError::Failed };
        tokio::time::timeout(within, asking).await.map_err(late)?
    }

    async fn on(
        self: &Rc<Upstreams>,
        (replica, reused): (&Arc<Replica>, bool),
        mut sender: Sender,
        request: Request<Full<Bytes>>,
    ) -> Result<(Response<Incoming>, PooledConnection), hyper::Error> {
        let sent = self.clock.now();
        let way = ConnectionUse { connected: sender.made, sent, connection: sender.number, reused };
        match sender.http.send_request(request).await {
            Ok(response) => {
                let (from, replica) = (Rc::clone(self), Arc::clone(replica));
                Ok((response, PooledConnection { from, replica, sender: Some(sender), way }))
            }
            Err(error) => Err(error),
        }
    }

    /// Returns the most recently used connection, if it is fresh enough.
    fn kept(&self, replica: &Replica) -> Option<Sender> {
        let now = self.clock.now();
        let mut idle = self.idle.borrow_mut();
        let idle = &mut idle.get_mut(&replica.id)?.senders;
        while let Some((sender, since)) = idle.pop() {
            if now - since > IDLE {
                idle.clear();
                return None;
            }
            if sender.http.is_ready() {
                return Some(sender);
            }
        }
        None
    }

    async fn connect(&self, replica: &Replica) -> Result<Sender, String> {
        let http = self.handshake(replica).await?;
        let number = CONNECTIONS.fetch_add(1, Ordering::Relaxed);
        Ok(Sender { http, made: self.clock.now(), number })
    }

    async fn handshake(&self, replica: &Replica) -> Result<SendRequest<Full<Bytes>>, String> {
        let place = &replica.place;
        let connecting = async {
            let socket =
                TcpStream::connect((place.host.as_str(), place.port)).await.map_err(|e| e.to_string())?;
            socket.set_nodelay(true).map_err(|e| e.to_string())?;
            let socket = EarlyAnswer::new(socket);
            let Some(config) = self.rules.now().tls.replicas.clone().filter(|_| place.tls) else {
                let (sender, connection) =
                    self.http.handshake(TokioIo::new(socket)).await.map_err(|e| e.to_string())?;
                // Connection errors also reach the request, so they are ignored here.
                tokio::task::spawn_local(async move {
                    let _ = connection.await;
                });
                return Ok(sender);
            };
            let name = ServerName::try_from(place.host.clone()).map_err(|e| e.to_string())?;
            let connector = TlsConnector::from(config);
            let socket = connector.connect(name, socket).await.map_err(|e| e.to_string())?;
            let (sender, connection) =
                self.http.handshake(TokioIo::new(socket)).await.map_err(|e| e.to_string())?;
            tokio::task::spawn_local(async move {
                let _ = connection.await;
            });
            Ok(sender)
        };
        let slow = |_| format!("no connection within {} s", CONNECT.as_secs());
        tokio::time::timeout(CONNECT, connecting).await.map_err(slow)?
    }
}
