//! What a watch knows, over HTTP: read-only, a thread for each of few readers.
//!
//! A framework lost: a few paths of GET are less code than its set-up, and nothing of a request but its path is used.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use plimsoll_client::Secret;
use plimsoll_server::collector::Bearer;

use crate::exit::Stop;
use crate::flags::ReadersArgs;

/// Readers at once; the next is told to come back.
const MOST_READERS: usize = 64;
/// Longest head of a request, bytes, and how long it may take to come.
const MOST_HEAD: usize = 8 * 1024;
const PATIENCE: Duration = Duration::from_secs(5);
/// A comment is sent to a silent listener of events after so long, so that a reader who is gone is noticed.
const ALIVE: Duration = Duration::from_secs(15);

/// What stands at a path.
pub struct Body {
    /// The path, or what comes before its query.
    pub path: &'static str,
    pub kind: &'static str,
    /// What is there, or what it is made of when somebody asks.
    pub text: String,
    pub make: fn(&str) -> String,
}

impl Body {
    /// A text as it is.
    pub fn new(path: &'static str, kind: &'static str, text: String) -> Body {
        Body { path, kind, text, make: str::to_owned }
    }
}

/// What is shown now, and what is sent to those who listen to changes.
#[derive(Default)]
struct Shown {
    number: u64,
    bodies: Vec<Body>,
    event: String,
}

type State = Arc<(Mutex<Shown>, Condvar)>;

/// Who may read.
#[derive(Clone)]
struct Readers {
    key: Option<Bearer>,
}

impl Readers {
    /// As it was asked.
    ///
    /// # Errors
    /// The key can't be had, or the address is not loopback and nobody said that it may be read from outside.
    fn asked(args: &ReadersArgs, addr: SocketAddr) -> Result<Readers, Stop> {
        let key = args.listen_key_env.as_ref().map(|name| Secret::from_env(name)).transpose();
        let key = key.map_err(|e| Stop::usage(format!("--listen-key-env: {e}")))?;
        if !addr.ip().is_loopback() && !args.listen_open && key.is_none() {
            return Err(Stop::usage(format!(
                "--listen {addr}: other machines could read it; name the key that readers show with --listen-key-env, say --listen-open if all may, or listen on 127.0.0.1"
            )));
        }
        Ok(Readers { key: key.map(|key| key.with_bytes(Bearer::new)) })
    }

    /// Does this head show the key, where there is one? A browser sends it as the password of whoever it asked.
    fn are_let_in(&self, head: &str) -> bool {
        let Some(key) = &self.key else { return true };
        let shown = head.lines().filter_map(|line| line.split_once(':'));
        let mut shown = shown.filter(|(name, _)| name.trim().eq_ignore_ascii_case("authorization"));
        shown.any(|(_, said)| {
            let said = said.trim();
            key.is(said.as_bytes()) || password(said).is_some_and(|password| key.is_token(&password))
        })
    }
}

/// The password of HTTP's basic authentication (RFC 7617).
fn password(said: &str) -> Option<Vec<u8>> {
    let (scheme, pair) = said.split_once(' ')?;
    let pair = BASE64_STANDARD.decode(pair.trim()).ok().filter(|_| scheme.eq_ignore_ascii_case("basic"))?;
    let colon = pair.iter().position(|byte| *byte == b':')?;
    Some(pair[colon + 1..].to_vec())
}

/// A listener that serves what is shown.
pub struct StatusServer {
    pub addr: SocketAddr,
    state: State,
}

impl StatusServer {
    /// Listens, and shows this first.
    ///
    /// # Errors
    /// The address is not loopback and nobody said who may read it from outside, or it can't be had.
    pub fn start(addr: SocketAddr, readers: &ReadersArgs, first: Vec<Body>) -> Result<StatusServer, Stop> {
        let readers = Readers::asked(readers, addr)?;
        let wrong =
            |e: std::io::Error| Stop::usage(format!("--listen {addr}: {e}; name another port, or none"));
        let listener = TcpListener::bind(addr).map_err(wrong)?;
        let addr = listener.local_addr().map_err(wrong)?;
        let state: State = Arc::default();
        if let Ok(mut shown) = state.0.lock() {
            shown.bodies = first;
        }
        let shared = Arc::clone(&state);
        std::thread::spawn(move || accept(&listener, (&shared, &readers)));
        Ok(StatusServer { addr, state })
    }

    pub fn show(&self, bodies: Vec<Body>, event: String) {
        if let Ok(mut shown) = self.state.0.lock() {
            *shown = Shown { number: shown.number + 1, bodies, event };
        }
        self.state.1.notify_all();
    }
}

fn accept(listener: &TcpListener, (state, readers): (&State, &Readers)) {
    let reading = Arc::new(AtomicUsize::new(0));
    for stream in listener.incoming() {
        let Ok(stream) = stream else { continue };
        if reading.load(Ordering::Relaxed) >= MOST_READERS {
            let _ = answer(&stream, "503 Service Unavailable", "text/plain", "too many readers\n");
            continue;
        }
        let (state, held, readers) = (Arc::clone(state), Arc::clone(&reading), readers.clone());
        held.fetch_add(1, Ordering::Relaxed);
        std::thread::spawn(move || {
            // Whoever goes away in the middle has no answer to get.
            let _ = read(&stream, (&state, &readers));
            held.fetch_sub(1, Ordering::Relaxed);
        });
    }
}

fn read(mut stream: &TcpStream, (state, readers): (&State, &Readers)) -> std::io::Result<()> {
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
    let path = path.split('?').next().unwrap_or_default();
    match path {
        "/healthz" => return answer(stream, "200 OK", "text/plain", "ok\n"),
        _ if !readers.are_let_in(&head) => return refuse(stream),
        "/v1/events" => return events(stream, state),
        _ => {}
    }
    let found = state.0.lock().map(|shown| {
        let of = shown.bodies.iter().find(|body| body.path == path);
        let paths: Vec<&str> = shown.bodies.iter().map(|body| body.path).collect();
        of.map(|body| (body.kind, body.text.clone(), body.make)).ok_or(paths.join(", "))
    });
    match found.unwrap_or_else(|_| Err(String::new())) {
        Ok((kind, text, make)) => answer(stream, "200 OK", kind, &make(&text)),
        Err(paths) => answer(
            stream,
            "404 Not Found",
            "text/plain",
            &format!("there are {paths}, /v1/events and /healthz\n"),
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

fn refuse(mut stream: &TcpStream) -> std::io::Result<()> {
    let said = "show the key of --listen-key-env: Authorization: Bearer KEY, or as a password\n";
    let head = format!(
        "HTTP/1.1 401 Unauthorized\r\nWWW-Authenticate: Basic realm=\"plimsoll\"\r\nContent-Type: text/plain\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        said.len()
    );
    stream.write_all(head.as_bytes())?;
    stream.write_all(said.as_bytes())
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
            false => format!("data: {}\n\n", now.event),
        };
        sent = now.number;
        drop(now);
        stream.write_all(event.as_bytes())?;
    }
}
