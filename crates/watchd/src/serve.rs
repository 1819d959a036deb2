//! The HTTP server of a watch. It is read-only and uses one thread per reader, for few readers.
//!
//! A framework was rejected because a few GET paths take less code than its set-up. The server uses only the
//! path of a request.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use plimsoll_client::Secret;
use plimsoll_server::collector::Bearer;

use plimsoll_console::exit::Stop;

/// Maximum number of concurrent readers; further readers get an error and retry.
const MOST_READERS: usize = 64;
/// Maximum size of a request head in bytes, and its read timeout.
const MOST_HEAD: usize = 8 * 1024;
const PATIENCE: Duration = Duration::from_secs(5);
/// Interval of comments to a silent event subscriber, so that a closed connection is noticed.
const ALIVE: Duration = Duration::from_secs(15);

pub struct ServedContent {
    /// The path, without its query.
    pub path: &'static str,
    pub kind: &'static str,
    /// The content, or the input of `make`, which runs on each request.
    pub text: String,
    pub make: fn(&str) -> String,
}

impl ServedContent {
    /// Returns a body that is served unchanged.
    pub fn new(path: &'static str, kind: &'static str, text: String) -> ServedContent {
        ServedContent { path, kind, text, make: str::to_owned }
    }
}

/// The current content, and the event for subscribers.
#[derive(Default)]
struct ServedState {
    number: u64,
    bodies: Vec<ServedContent>,
    event: String,
}

type State = Arc<(Mutex<ServedState>, Condvar)>;

/// Access to the pages from other machines, as configured.
#[derive(Clone, Default, Debug)]
pub struct ReadersSpec {
    /// Access without a key.
    pub open: bool,
    /// Environment variable of the access key.
    pub key_env: Option<String>,
}

/// Access control for readers.
#[derive(Clone)]
struct Readers {
    key: Option<Bearer>,
}

impl Readers {
    /// Returns the access control from the settings.
    ///
    /// # Errors
    /// Fails if the key can't be read, or if the address is not loopback and outside access is not permitted.
    fn asked(spec: &ReadersSpec, addr: SocketAddr) -> Result<Readers, Stop> {
        let key = spec.key_env.as_ref().map(|name| Secret::from_env(name)).transpose();
        let key = key.map_err(|e| Stop::usage(format!("--listen-key-env: {e}")))?;
        if !addr.ip().is_loopback() && !spec.open && key.is_none() {
            return Err(Stop::usage(format!(
                "--listen {addr}: other machines could read it; set a key with --listen-key-env, allow all with --listen-open, or listen on 127.0.0.1"
            )));
        }
        Ok(Readers { key: key.map(|key| key.with_bytes(Bearer::new)) })
    }

    /// Returns whether the request head contains the key, if a key is required. A browser sends the key as
    /// the password of basic authentication.
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

/// Returns the password of HTTP basic authentication (RFC 7617).
fn password(said: &str) -> Option<Vec<u8>> {
    let (scheme, pair) = said.split_once(' ')?;
    let pair = BASE64_STANDARD.decode(pair.trim()).ok().filter(|_| scheme.eq_ignore_ascii_case("basic"))?;
    let colon = pair.iter().position(|byte| *byte == b':')?;
    Some(pair[colon + 1..].to_vec())
}

/// The HTTP server of a watch.
pub struct StatusServer {
    pub addr: SocketAddr,
    state: State,
}

impl StatusServer {
    /// Starts the server with its first content.
    ///
    /// # Errors
    /// Fails if the address can't be bound, or if it is not loopback and outside access is not permitted.
    pub fn start(
        addr: SocketAddr,
        readers: &ReadersSpec,
        first: Vec<ServedContent>,
    ) -> Result<StatusServer, Stop> {
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

    pub fn show(&self, bodies: Vec<ServedContent>, event: String) {
        if let Ok(mut shown) = self.state.0.lock() {
            *shown = ServedState { number: shown.number + 1, bodies, event };
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
            // An error means that the client disconnected, so no response is needed.
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

/// Sends every state as a server-sent event until the client disconnects.
fn events(mut stream: &TcpStream, (shown, changed): &(Mutex<ServedState>, Condvar)) -> std::io::Result<()> {
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
