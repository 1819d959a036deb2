//! Sends the requests of the object store's library: HTTP/1.1 by hyper over our own TLS, one connection per request.
//!
//! The library's own client was rejected, because it brings a second TLS with a C library. Connections are not kept, because
//! stores close idle connections. An automatic retry of a conditional put after such a close could conflict with its own file.

use std::error::Error;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use http_body_util::BodyExt;
use hyper::client::conn::http1;
use hyper::header::{HOST, HeaderValue, USER_AGENT};
use hyper::{Request, Uri};
use hyper_util::rt::TokioIo;
use object_store::ClientOptions;
use object_store::client::{
    ClientConfigKey, HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse,
    HttpResponseBody, HttpService,
};
use plimsoll_client::tls::{TlsError, TlsTrust, client_config};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::ClientConfig;
use tokio_rustls::rustls::pki_types::ServerName;

/// Time limit for a connection; the library sets a shorter limit for a metadata service.
const CONNECT: Duration = Duration::from_secs(5);
/// Time limit for the start of a response. The request body, a part of at most a few megabytes, is sent within it.
const ANSWER: Duration = Duration::from_secs(60);
/// Time limit for the whole exchange, including the response body.
const WHOLE: Duration = Duration::from_secs(600);

/// HTTP status of the last response, 0 if there was none; the library's errors do not contain it for every request.
pub type LastStatus = Arc<AtomicU16>;

/// A factory of HTTP clients for the library.
#[derive(Debug)]
pub struct Connector {
    tls: Arc<ClientConfig>,
    last: LastStatus,
}

impl Connector {
    /// Returns a connector. `authorities` is a file of certificates that are trusted in addition to the machine's.
    pub fn new(authorities: Option<&str>, last: LastStatus) -> Result<Connector, TlsError> {
        let trust = authorities.map_or(TlsTrust::System, |file| TlsTrust::SystemAnd(file.into()));
        Ok(Connector { tls: client_config(&trust)?, last })
    }
}

impl HttpConnector for Connector {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        let said = |key| options.get_config_value(&key);
        let connect = said(ClientConfigKey::ConnectTimeout).and_then(|text| {
            plimsoll_workload::parse_span(&text).ok().map(plimsoll_model::Span::as_duration)
        });
        Ok(HttpClient::new(Service {
            tls: Arc::clone(&self.tls),
            last: Arc::clone(&self.last),
            connect: connect.unwrap_or(CONNECT).min(CONNECT),
            plain: said(ClientConfigKey::AllowHttp).is_some_and(|text| text == "true"),
        }))
    }
}

#[derive(Debug)]
struct Service {
    tls: Arc<ClientConfig>,
    last: LastStatus,
    connect: Duration,
    /// Whether requests may be sent without TLS.
    plain: bool,
}

type ConnectorFuture<'a> = Pin<Box<dyn Future<Output = Result<HttpResponse, HttpError>> + Send + 'a>>;

impl HttpService for Service {
    fn call<'life0, 'async_trait>(&'life0 self, request: HttpRequest) -> ConnectorFuture<'async_trait>
    where
        'life0: 'async_trait,
        Self: 'async_trait,
    {
        Box::pin(self.exchange(request))
    }
}

impl Service {
    async fn exchange(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        self.last.store(0, Ordering::Relaxed);
        let (mut parts, body) = request.into_parts();
        let uri = std::mem::take(&mut parts.uri);
        let authority = uri.authority().map(|authority| authority.as_str()).unwrap_or_default();
        let host = HeaderValue::from_str(authority).map_err(|e| error(HttpErrorKind::Unknown, e))?;
        parts.headers.entry(HOST).or_insert(host);
        let agent = concat!("plimsoll/", env!("CARGO_PKG_VERSION"));
        parts.headers.entry(USER_AGENT).or_insert(HeaderValue::from_static(agent));
        let path = uri.path_and_query().map_or("/", |path| path.as_str());
        parts.uri = path.parse::<Uri>().map_err(|e| error(HttpErrorKind::Unknown, e))?;
        let io = in_time(self.connect, HttpErrorKind::Connect, "no connection", self.open(&uri)).await?;
        let (mut sender, connection) =
            http1::handshake(io).await.map_err(|e| error(HttpErrorKind::Connect, e))?;
        // The task ends when the response has been read, because no other request uses the connection.
        tokio::spawn(tokio::time::timeout(WHOLE, connection));
        let answer = async {
            let sent = sender.send_request(Request::from_parts(parts, body)).await;
            sent.map_err(|e| error(HttpErrorKind::Interrupted, e))
        };
        let answer = in_time(ANSWER, HttpErrorKind::Timeout, "no answer", answer).await?;
        self.last.store(answer.status().as_u16(), Ordering::Relaxed);
        Ok(answer.map(|body| HttpResponseBody::new(body.map_err(|e| error(HttpErrorKind::Interrupted, e)))))
    }

    async fn open(&self, uri: &Uri) -> Result<TokioIo<Box<dyn Stream>>, HttpError> {
        let host = uri.host().unwrap_or_default().trim_matches(['[', ']']);
        let is_tls = uri.scheme_str() == Some("https");
        if !is_tls && !self.plain {
            return Err(error(HttpErrorKind::Unknown, "http:// where only https:// is safe"));
        }
        let port = uri.port_u16().unwrap_or(if is_tls { 443 } else { 80 });
        let tcp = TcpStream::connect((host, port)).await.map_err(|e| error(HttpErrorKind::Connect, e))?;
        let _ = tcp.set_nodelay(true);
        if !is_tls {
            return Ok(TokioIo::new(Box::new(tcp)));
        }
        let name = ServerName::try_from(host.to_owned()).map_err(|e| error(HttpErrorKind::Unknown, e))?;
        let tls = TlsConnector::from(Arc::clone(&self.tls)).connect(name, tcp).await;
        Ok(TokioIo::new(Box::new(tls.map_err(|e| error(HttpErrorKind::Connect, e))?)))
    }
}

/// A socket, with or without TLS.
trait Stream: tokio::io::AsyncRead + tokio::io::AsyncWrite + Send + Unpin {}

impl<T: tokio::io::AsyncRead + tokio::io::AsyncWrite + Send + Unpin> Stream for T {}

async fn in_time<T>(
    limit: Duration,
    kind: HttpErrorKind,
    what: &str,
    doing: impl Future<Output = Result<T, HttpError>>,
) -> Result<T, HttpError> {
    match tokio::time::timeout(limit, doing).await {
        Ok(done) => done,
        Err(_) => Err(error(kind, format!("{what} within {} s", limit.as_secs()))),
    }
}

fn error(kind: HttpErrorKind, why: impl Into<Box<dyn Error + Send + Sync>>) -> HttpError {
    HttpError::new_boxed(kind, why.into())
}
