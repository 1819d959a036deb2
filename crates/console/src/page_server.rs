//! Serves the pages of a command over HTTP/1.1: the list of `browse`, and the status page of a watch.
//!
//! HTTP is hyper's. Each page is made on a separate thread, because a report of a large run takes seconds and must not delay
//! the others. A connection serves one request and is closed at a time limit, so that a client that stops reading cannot keep
//! a place. A client of an event stream that does not read is closed too.

#![expect(clippy::disallowed_methods, reason = "pages need no exact time")]

use std::convert::Infallible;
use std::net::{SocketAddr, TcpListener};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use hyper::body::{Body, Frame};
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HOST, HeaderName, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::sync::{Notify, mpsc, watch};

use crate::exit::Stop;

/// Maximum number of concurrent readers; further readers get an error and retry.
const MOST_READERS: usize = 64;
/// Maximum size of a request head in bytes, its read timeout, and the time in which a client must take an event.
const MOST_HEAD: usize = 8 * 1024;
const PATIENCE: Duration = Duration::from_secs(5);
/// Longest time of a connection that is no event stream.
const LONGEST: Duration = Duration::from_secs(60);
/// Interval of comments to a silent event subscriber, so that a closed connection is noticed.
const ALIVE: Duration = Duration::from_secs(15);

/// The content of a response.
pub enum PageBody {
    Whole(String),
    /// Server-sent events: each value of the channel is the data of one event.
    Events(watch::Receiver<String>),
}

pub struct Page {
    pub status: StatusCode,
    pub kind: &'static str,
    pub body: PageBody,
    /// Further headers.
    pub headers: Vec<(HeaderName, &'static str)>,
}

impl Page {
    /// Returns a page with this content type and the status 200.
    pub fn of(kind: &'static str, body: String) -> Page {
        Page { status: StatusCode::OK, kind, body: PageBody::Whole(body), headers: Vec::new() }
    }

    pub fn html(body: String) -> Page {
        Page::of("text/html; charset=utf-8", body)
    }

    pub fn json(value: &impl serde::Serialize) -> Page {
        Page::of("application/json", serde_json::to_string(value).unwrap_or_else(|_| "null".into()))
    }

    pub fn text(status: StatusCode, body: impl Into<String>) -> Page {
        Page { status, ..Page::of("text/plain; charset=utf-8", body.into()) }
    }

    /// Returns a stream of server-sent events.
    pub fn events(of: watch::Receiver<String>) -> Page {
        Page { body: PageBody::Events(of), ..Page::of("text/event-stream", String::new()) }
    }
}

/// A request: its path, the decoded pairs of its query, and the headers that decide access.
pub struct PageRequest {
    pub path: String,
    query: Vec<(String, String)>,
    /// Value of `authorization`.
    pub authorization: Option<String>,
    host: Option<HeaderValue>,
}

impl PageRequest {
    fn new(uri: &hyper::Uri, headers: &hyper::HeaderMap) -> PageRequest {
        let pairs = uri.query().unwrap_or_default().split('&').filter_map(|pair| pair.split_once('='));
        let query = pairs.map(|(name, value)| (decoded(name), decoded(value))).collect();
        let authorization =
            headers.get(AUTHORIZATION).and_then(|value| value.to_str().ok()).map(str::to_owned);
        let host = headers.get(HOST).cloned();
        PageRequest { path: uri.path().to_owned(), query, authorization, host }
    }

    pub fn get(&self, name: &str) -> Option<&str> {
        self.query.iter().find(|(found, _)| found == name).map(|(_, value)| value.as_str())
    }

    /// Returns whether the request names this machine. A page of another origin could otherwise read the pages through a name
    /// that resolves to 127.0.0.1.
    pub fn is_local(&self) -> bool {
        is_local(self.host.as_ref())
    }
}

/// Percent-decoding (RFC 3986); a bad escape stays unchanged.
fn decoded(text: &str) -> String {
    let bytes = text.as_bytes();
    let (mut out, mut at) = (Vec::with_capacity(bytes.len()), 0);
    while let Some(&byte) = bytes.get(at) {
        let escape = text.get(at + 1..at + 3).filter(|_| byte == b'%');
        match escape.and_then(|hex| u8::from_str_radix(hex, 16).ok()) {
            Some(value) => (out.push(value), at += 3).1,
            None => (out.push(if byte == b'+' { b' ' } else { byte }), at += 1).1,
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

/// Starts a server of pages on its own thread, and returns its address. It ends with the process.
///
/// # Errors
/// The address can't be bound.
pub fn start(
    addr: SocketAddr,
    answer: impl Fn(&PageRequest) -> Page + Send + Sync + 'static,
) -> Result<SocketAddr, Stop> {
    let wrong = |e: std::io::Error| Stop::usage(format!("--listen {addr}: {e}; name another port, or none"));
    let listener = TcpListener::bind(addr).map_err(wrong)?;
    listener.set_nonblocking(true).map_err(wrong)?;
    let bound = listener.local_addr().map_err(wrong)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(wrong)?;
    std::thread::Builder::new()
        .name("pages".into())
        .spawn(move || runtime.block_on(accept(listener, Arc::new(answer))))
        .map_err(wrong)?;
    Ok(bound)
}

/// Waits for Ctrl-C.
///
/// # Errors
/// The signal can't be caught.
pub fn wait_for_interrupt() -> Result<(), Stop> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let caught = runtime.and_then(|runtime| runtime.block_on(tokio::signal::ctrl_c()));
    caught.map_err(|e| Stop::invalid(format!("Ctrl-C can't be caught: {e}")))
}

async fn accept(listener: TcpListener, answer: Arc<impl Fn(&PageRequest) -> Page + Send + Sync + 'static>) {
    let Ok(listener) = tokio::net::TcpListener::from_std(listener) else { return };
    let reading = Arc::new(AtomicUsize::new(0));
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            // Without free descriptors the next accept fails at once too.
            tokio::time::sleep(Duration::from_millis(50)).await;
            continue;
        };
        let is_full = reading.fetch_add(1, Ordering::Relaxed) >= MOST_READERS;
        let (answer, held, gone) = (Arc::clone(&answer), Arc::clone(&reading), Arc::new(Notify::new()));
        tokio::spawn(async move {
            let service = service_fn(|request| one(request, Arc::clone(&answer), is_full, Arc::clone(&gone)));
            let mut http = http1::Builder::new();
            http.timer(TokioTimer::new())
                .header_read_timeout(PATIENCE)
                .keep_alive(false)
                .max_buf_size(MOST_HEAD);
            // An error means that the client disconnected, so no response is needed.
            tokio::select! {
                _ = http.serve_connection(TokioIo::new(stream), service) => {}
                () = gone.notified() => {}
            }
            held.fetch_sub(1, Ordering::Relaxed);
        });
    }
}

async fn one<B>(
    request: Request<B>,
    answer: Arc<impl Fn(&PageRequest) -> Page + Send + Sync + 'static>,
    is_full: bool,
    gone: Arc<Notify>,
) -> Result<Response<PageStream>, Infallible> {
    let page = if is_full {
        Page::text(StatusCode::SERVICE_UNAVAILABLE, "too many readers\n")
    } else if request.method() != Method::GET {
        Page::text(StatusCode::METHOD_NOT_ALLOWED, "only GET: nothing here can be changed\n")
    } else {
        let asked = PageRequest::new(request.uri(), request.headers());
        let made = tokio::task::spawn_blocking(move || answer(&asked)).await;
        made.unwrap_or_else(|_| {
            Page::text(StatusCode::INTERNAL_SERVER_ERROR, "this page could not be made\n")
        })
    };
    let body = match page.body {
        PageBody::Whole(text) => {
            let gone = Arc::clone(&gone);
            tokio::spawn(async move {
                tokio::time::sleep(LONGEST).await;
                gone.notify_one();
            });
            PageStream::Whole(Some(text.into()))
        }
        PageBody::Events(of) => {
            let (sends, body) = mpsc::channel(1);
            tokio::spawn(events(of, sends, gone));
            PageStream::Events(body)
        }
    };
    let mut response = Response::new(body);
    *response.status_mut() = page.status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(page.kind));
    headers.insert("cache-control", HeaderValue::from_static("no-store"));
    headers.insert("x-content-type-options", HeaderValue::from_static("nosniff"));
    for (name, value) in page.headers {
        headers.insert(name, HeaderValue::from_static(value));
    }
    Ok(response)
}

/// Sends each value as an event, until the client disconnects or does not read.
async fn events(mut of: watch::Receiver<String>, sends: mpsc::Sender<Bytes>, gone: Arc<Notify>) {
    of.mark_changed();
    loop {
        let event = tokio::select! {
            changed = of.changed() => match (changed, of.borrow_and_update().as_str()) {
                (Err(_), _) => return,
                // Before the first event.
                (Ok(()), "") => continue,
                (Ok(()), event) => format!("data: {event}\n\n"),
            },
            () = tokio::time::sleep(ALIVE) => ": alive\n\n".to_owned(),
            () = sends.closed() => return,
        };
        if sends.send_timeout(event.into(), PATIENCE).await.is_err() {
            return gone.notify_one();
        }
    }
}

/// The body of a response.
enum PageStream {
    Whole(Option<Bytes>),
    Events(mpsc::Receiver<Bytes>),
}

impl Body for PageStream {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let next = match &mut *self {
            PageStream::Whole(text) => Poll::Ready(text.take()),
            PageStream::Events(coming) => coming.poll_recv(context),
        };
        next.map(|bytes| bytes.map(|bytes| Ok(Frame::data(bytes))))
    }

    fn size_hint(&self) -> hyper::body::SizeHint {
        match self {
            PageStream::Whole(text) => {
                hyper::body::SizeHint::with_exact(text.as_ref().map_or(0, |text| text.len() as u64))
            }
            PageStream::Events(_) => hyper::body::SizeHint::default(),
        }
    }
}

fn is_local(host: Option<&HeaderValue>) -> bool {
    let Some(host) = host.and_then(|host| host.to_str().ok()) else { return false };
    let name =
        host.rsplit_once(':').filter(|(_, port)| port.parse::<u16>().is_ok()).map_or(host, |(name, _)| name);
    matches!(name, "127.0.0.1" | "localhost" | "[::1]")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_is_decoded() {
        let asked = PageRequest::new(
            &"/run?at=a%20b%2Fc&x=1+2&bad=%zz".parse().expect("a URI"),
            &hyper::HeaderMap::new(),
        );
        assert_eq!(
            (asked.path.as_str(), asked.get("at"), asked.get("x"), asked.get("bad"), asked.get("y")),
            ("/run", Some("a b/c"), Some("1 2"), Some("%zz"), None)
        );
    }

    #[test]
    fn another_host_is_not_answered() {
        let is = |host: &str| is_local(Some(&HeaderValue::from_str(host).expect("a header")));
        assert!(is("127.0.0.1:8080") && is("localhost") && is("[::1]:80"));
        assert!(!is("evil.example:8080") && !is("127.0.0.1.evil.example") && !is_local(None));
    }
}
