//! Serves pages of this machine to its own browser, over HTTP/1.1 by hyper.
//!
//! The server listens on loopback only and checks the `Host` header. Without the check, a page of another origin could read
//! runs through a name that resolves to 127.0.0.1. Each page is rendered on a separate thread, because a report of a large
//! run takes seconds and must not delay the list.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use http_body_util::Full;
use hyper::header::{CONTENT_TYPE, HOST, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpListener;

use crate::exit::Stop;

pub struct Page {
    pub status: StatusCode,
    pub kind: &'static str,
    pub body: String,
}

impl Page {
    pub fn html(body: String) -> Page {
        Page { status: StatusCode::OK, kind: "text/html; charset=utf-8", body }
    }

    pub fn json(value: &impl serde::Serialize) -> Page {
        let body = serde_json::to_string(value).unwrap_or_else(|_| "null".into());
        Page { status: StatusCode::OK, kind: "application/json", body }
    }

    pub fn text(status: StatusCode, body: impl Into<String>) -> Page {
        Page { status, kind: "text/plain; charset=utf-8", body: body.into() }
    }
}

/// A request's path and the decoded pairs of its query.
pub struct PageRequest {
    pub path: String,
    query: Vec<(String, String)>,
}

impl PageRequest {
    fn new(uri: &hyper::Uri) -> PageRequest {
        let pairs = uri.query().unwrap_or_default().split('&').filter_map(|pair| pair.split_once('='));
        let query = pairs.map(|(name, value)| (decoded(name), decoded(value))).collect();
        PageRequest { path: uri.path().to_owned(), query }
    }

    pub fn get(&self, name: &str) -> Option<&str> {
        self.query.iter().find(|(found, _)| found == name).map(|(_, value)| value.as_str())
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

/// Serves until Ctrl-C. `ready` gets the address once it listens.
///
/// # Errors
/// The address is not loopback, or cannot be had.
pub fn serve(
    addr: SocketAddr,
    ready: impl FnOnce(SocketAddr),
    answer: impl Fn(&PageRequest) -> Page + Send + Sync + 'static,
) -> Result<(), Stop> {
    if !addr.ip().is_loopback() {
        return Err(Stop::usage(format!(
            "--listen {addr}: pages are served on loopback only; listen on 127.0.0.1, or write one file with --out"
        )));
    }
    let wrong = |e: std::io::Error| Stop::usage(format!("--listen {addr}: {e}; name another port"));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(wrong)?;
    runtime.block_on(async {
        let listener = TcpListener::bind(addr).await.map_err(wrong)?;
        ready(listener.local_addr().map_err(wrong)?);
        let answer = Arc::new(answer);
        loop {
            let accepted = tokio::select! {
                accepted = listener.accept() => accepted,
                _ = tokio::signal::ctrl_c() => return Ok(()),
            };
            let Ok((stream, _)) = accepted else { continue };
            let answer = Arc::clone(&answer);
            tokio::spawn(async move {
                let service = service_fn(|request| one(request, Arc::clone(&answer)));
                let mut connection = http1::Builder::new();
                // A client that leaves in the middle needs no answer.
                let _ =
                    connection.timer(TokioTimer::new()).serve_connection(TokioIo::new(stream), service).await;
            });
        }
    })
}

async fn one<B>(
    request: Request<B>,
    answer: Arc<impl Fn(&PageRequest) -> Page + Send + Sync + 'static>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let page = if request.method() != Method::GET {
        Page::text(StatusCode::METHOD_NOT_ALLOWED, "only GET: nothing here can be changed\n")
    } else if !is_local(request.headers().get(HOST)) {
        Page::text(StatusCode::FORBIDDEN, "open this page by the address that plimsoll printed\n")
    } else {
        let asked = PageRequest::new(request.uri());
        let made = tokio::task::spawn_blocking(move || answer(&asked)).await;
        made.unwrap_or_else(|_| {
            Page::text(StatusCode::INTERNAL_SERVER_ERROR, "this page could not be made\n")
        })
    };
    let mut response = Response::new(Full::new(Bytes::from(page.body)));
    *response.status_mut() = page.status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(page.kind));
    headers.insert("cache-control", HeaderValue::from_static("no-store"));
    headers.insert("x-content-type-options", HeaderValue::from_static("nosniff"));
    Ok(response)
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
        let asked = PageRequest::new(&"/run?at=a%20b%2Fc&x=1+2&bad=%zz".parse().expect("a URI"));
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
