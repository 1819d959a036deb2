//! The watch's page, figures and rows over HTTP: read-only, a thread for each of few readers.
//!
//! A framework lost: six paths of GET are less code than its set-up, and nothing of a request but its path is used.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use plimsoll_watch::WatchFinding;
use serde::Serialize;

use super::outbox::SinkHealth;
use super::page;
use crate::exit::Stop;

/// Readers at once; the next is told to come back.
const MOST_READERS: usize = 64;
/// Longest head of a request, bytes, and how long it may take to come.
const MOST_HEAD: usize = 8 * 1024;
const PATIENCE: Duration = Duration::from_secs(5);
/// A comment is sent to a silent listener of events after so long, so that a reader who is gone is noticed.
const ALIVE: Duration = Duration::from_secs(15);

/// What is shown now.
#[derive(Default)]
struct Shown {
    number: u64,
    rows: String,
    alerts: String,
    metrics: String,
}

type State = Arc<(Mutex<Shown>, Condvar)>;

/// A listener that serves what is shown.
pub struct Served {
    /// Where.
    pub addr: SocketAddr,
    state: State,
}

impl Served {
    /// Listens. `open`: also on addresses that other machines reach.
    ///
    /// # Errors
    /// The address is not loopback and nobody said that it may be read from outside, or it can't be had.
    pub fn start(addr: SocketAddr, open: bool) -> Result<Served, Stop> {
        if !addr.ip().is_loopback() && !open {
            return Err(Stop::usage(format!(
                "--listen {addr}: other machines could read it; say --listen-open if they may, or listen on 127.0.0.1"
            )));
        }
        let wrong =
            |e: std::io::Error| Stop::usage(format!("--listen {addr}: {e}; name another port, or none"));
        let listener = TcpListener::bind(addr).map_err(wrong)?;
        let addr = listener.local_addr().map_err(wrong)?;
        let state = State::default();
        let shared = Arc::clone(&state);
        std::thread::spawn(move || accept(&listener, &shared));
        Ok(Served { addr, state })
    }

    /// Shows this from now on.
    pub fn show(&self, found: &WatchFinding, sinks: &[SinkHealth]) {
        let rows = serde_json::to_string(&Everything { found, sinks }).unwrap_or_default();
        if let Ok(mut shown) = self.state.0.lock() {
            let alerts = serde_json::to_string(&found.alerts).unwrap_or_default();
            *shown = Shown { number: shown.number + 1, rows, alerts, metrics: page::metrics(found, sinks) };
        }
        self.state.1.notify_all();
    }
}

/// What is known, and whether those who are to be told can be.
#[derive(Serialize)]
struct Everything<'a> {
    #[serde(flatten)]
    found: &'a WatchFinding,
    sinks: &'a [SinkHealth],
}

fn accept(listener: &TcpListener, state: &State) {
    let readers = Arc::new(AtomicUsize::new(0));
    for stream in listener.incoming() {
        let Ok(stream) = stream else { continue };
        if readers.load(Ordering::Relaxed) >= MOST_READERS {
            let _ = answer(&stream, "503 Service Unavailable", "text/plain", "too many readers\n");
            continue;
        }
        let (state, held) = (Arc::clone(state), Arc::clone(&readers));
        held.fetch_add(1, Ordering::Relaxed);
        std::thread::spawn(move || {
            // Whoever goes away in the middle has no answer to get.
            let _ = read(&stream, &state);
            held.fetch_sub(1, Ordering::Relaxed);
        });
    }
}

fn read(mut stream: &TcpStream, state: &State) -> std::io::Result<()> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let (mut head, mut part) = (Vec::new(), [0; 1024]);
    while !head.windows(4).any(|end| end == b"\r\n\r\n") {
        let count = stream.read(&mut part)?;
        if count == 0 || head.len() + count > MOST_HEAD {
            return Err(ErrorKind::InvalidData.into());
        }
        head.extend_from_slice(&part[..count]);
    }
    let head = String::from_utf8_lossy(&head);
    let mut words = head.split_whitespace();
    let (method, path) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    if method != "GET" {
        return answer(
            stream,
            "405 Method Not Allowed",
            "text/plain",
            "only GET: nothing here can be changed\n",
        );
    }
    let shown = |of: fn(&Shown) -> String| state.0.lock().map(|shown| of(&shown)).unwrap_or_default();
    match path.split('?').next().unwrap_or_default() {
        "/" => answer(
            stream,
            "200 OK",
            "text/html; charset=utf-8",
            &page::html(&shown(|shown| shown.rows.clone())),
        ),
        "/v1/rows" => answer(stream, "200 OK", "application/json", &shown(|shown| shown.rows.clone())),
        "/v1/alerts" => answer(stream, "200 OK", "application/json", &shown(|shown| shown.alerts.clone())),
        "/metrics" => answer(
            stream,
            "200 OK",
            plimsoll_wire::prometheus::CONTENT_TYPE,
            &shown(|shown| shown.metrics.clone()),
        ),
        "/healthz" => answer(stream, "200 OK", "text/plain", "ok\n"),
        "/v1/events" => events(stream, state),
        _ => answer(
            stream,
            "404 Not Found",
            "text/plain",
            "there are /, /v1/rows, /v1/alerts, /v1/events, /metrics and /healthz\n",
        ),
    }
}

fn answer(mut stream: &TcpStream, status: &str, kind: &str, body: &str) -> std::io::Result<()> {
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\nCache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\n\
         Content-Security-Policy: default-src 'self' 'unsafe-inline'\r\nConnection: close\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes())?;
    stream.write_all(body.as_bytes())
}

/// Every state as it comes (server-sent events), until the reader is gone.
fn events(mut stream: &TcpStream, (shown, changed): &(Mutex<Shown>, Condvar)) -> std::io::Result<()> {
    stream.write_all(
        b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nCache-Control: no-store\r\nConnection: close\r\n\r\n",
    )?;
    let mut sent = 0;
    loop {
        let Ok(now) = shown.lock() else { return Ok(()) };
        let Ok((now, _)) = changed.wait_timeout_while(now, ALIVE, |now| now.number == sent) else {
            return Ok(());
        };
        let event = match now.number == sent {
            true => ": alive\n\n".to_owned(),
            false => format!("data: {}\n\n", now.rows),
        };
        sent = now.number;
        drop(now);
        stream.write_all(event.as_bytes())?;
    }
}
