//! Provides a scripted server: one thread per connection, raw bytes, and no HTTP library between test and wire.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use plimsoll_client::clock::monotonic_ns;

/// An action of the server for one request.
pub enum Step {
    Write(Vec<u8>),
    /// Waits until the condition is true.
    Until(Arc<dyn Fn() -> bool + Send + Sync>),
    /// Writes these bytes repeatedly, with this pause in ms, until the client disconnects.
    Forever(Vec<u8>, u64),
    /// Waits for this time, without reading.
    Wait(Duration),
    /// Sends no more bytes until the client disconnects.
    Hold,
    Close,
    Reset,
}

#[derive(Clone, Debug)]
pub struct Seen {
    pub connection: u32,
    /// Number of the request on this connection, from 0.
    pub nth: u32,
    pub head: String,
    #[expect(dead_code, reason = "seen in failures, by Debug")]
    pub body: String,
}

type Script = dyn Fn(&Seen) -> Vec<Step> + Send + Sync;

pub struct Server {
    pub addr: SocketAddr,
    shared: Arc<Shared>,
    acceptor: Option<thread::JoinHandle<()>>,
}

struct Shared {
    script: Box<Script>,
    tls: Option<Arc<rustls::ServerConfig>>,
    over: AtomicBool,
    accepted: AtomicU32,
    seen: Mutex<Vec<Seen>>,
    writes: Mutex<Vec<i64>>,
    open: AtomicU32,
    open_max: AtomicU32,
}

impl Server {
    pub fn plain(script: impl Fn(&Seen) -> Vec<Step> + Send + Sync + 'static) -> Server {
        Server::start(script, None)
    }

    pub fn start(
        script: impl Fn(&Seen) -> Vec<Step> + Send + Sync + 'static,
        tls: Option<Arc<rustls::ServerConfig>>,
    ) -> Server {
        Server::on(TcpListener::bind("127.0.0.1:0").unwrap(), script, tls)
    }

    pub fn on(
        listener: TcpListener,
        script: impl Fn(&Seen) -> Vec<Step> + Send + Sync + 'static,
        tls: Option<Arc<rustls::ServerConfig>>,
    ) -> Server {
        let addr = listener.local_addr().unwrap();
        let shared = Arc::new(Shared {
            script: Box::new(script),
            tls,
            over: AtomicBool::new(false),
            accepted: AtomicU32::new(0),
            seen: Mutex::default(),
            writes: Mutex::default(),
            open: AtomicU32::new(0),
            open_max: AtomicU32::new(0),
        });
        let inner = Arc::clone(&shared);
        let acceptor = thread::spawn(move || {
            for stream in listener.incoming() {
                if inner.over.load(Ordering::SeqCst) {
                    return;
                }
                let Ok(stream) = stream else { continue };
                let number = inner.accepted.fetch_add(1, Ordering::SeqCst);
                let inner = Arc::clone(&inner);
                thread::spawn(move || {
                    let open = inner.open.fetch_add(1, Ordering::SeqCst) + 1;
                    inner.open_max.fetch_max(open, Ordering::SeqCst);
                    inner.converse(stream, number);
                    inner.open.fetch_sub(1, Ordering::SeqCst);
                });
            }
        });
        Server { addr, shared, acceptor: Some(acceptor) }
    }

    pub fn url(&self) -> String {
        format!("http://{}/v1", self.addr)
    }

    pub fn accepted(&self) -> u32 {
        self.shared.accepted.load(Ordering::SeqCst)
    }

    pub fn open_max(&self) -> u32 {
        self.shared.open_max.load(Ordering::SeqCst)
    }

    pub fn seen(&self) -> Vec<Seen> {
        self.shared.seen.lock().unwrap().clone()
    }

    /// Returns CLOCK_MONOTONIC just before each write call.
    pub fn writes(&self) -> Vec<i64> {
        self.shared.writes.lock().unwrap().clone()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.shared.over.store(true, Ordering::SeqCst);
        let _ = TcpStream::connect(self.addr);
        if let Some(acceptor) = self.acceptor.take() {
            let _ = acceptor.join();
        }
    }
}

trait Duplex: Read + Write {}
impl<T: Read + Write> Duplex for T {}

impl Shared {
    fn converse(&self, tcp: TcpStream, connection: u32) {
        let _ = tcp.set_nodelay(true);
        let raw = tcp.try_clone().unwrap();
        let mut stream: Box<dyn Duplex> = match &self.tls {
            None => Box::new(tcp),
            Some(config) => {
                let session = rustls::ServerConnection::new(Arc::clone(config)).unwrap();
                Box::new(rustls::StreamOwned::new(session, tcp))
            }
        };
        for nth in 0.. {
            let Some(seen) = read_request(&mut stream, connection, nth) else { return };
            self.seen.lock().unwrap().push(seen.clone());
            for step in (self.script)(&seen) {
                if !self.play(step, &mut stream, &raw) {
                    let _ = raw.shutdown(std::net::Shutdown::Both);
                    return;
                }
            }
        }
    }

    fn play(&self, step: Step, stream: &mut Box<dyn Duplex>, raw: &TcpStream) -> bool {
        match step {
            Step::Write(bytes) => {
                self.writes.lock().unwrap().push(monotonic_ns());
                stream.write_all(&bytes).and_then(|()| stream.flush()).is_ok()
            }
            Step::Until(condition) => {
                while !condition() && !self.over.load(Ordering::SeqCst) {
                    thread::sleep(Duration::from_micros(200));
                }
                true
            }
            Step::Forever(bytes, every_ms) => {
                while stream.write_all(&bytes).is_ok() && !self.over.load(Ordering::SeqCst) {
                    thread::sleep(Duration::from_millis(every_ms));
                }
                false
            }
            Step::Wait(long) => {
                thread::sleep(long);
                true
            }
            Step::Hold => {
                let mut rest = [0; 64];
                while stream.read(&mut rest).is_ok_and(|n| n > 0) {}
                false
            }
            Step::Close => false,
            Step::Reset => {
                let _ = socket2::SockRef::from(raw).set_linger(Some(Duration::ZERO));
                // Unread bytes turn the close into a reset on every system.
                false
            }
        }
    }
}

fn read_request(stream: &mut dyn Duplex, connection: u32, nth: u32) -> Option<Seen> {
    let mut bytes = Vec::new();
    let mut chunk = [0; 4096];
    loop {
        if let Some(end) = bytes.windows(4).position(|w| w == b"\r\n\r\n") {
            let head = String::from_utf8_lossy(&bytes[..end]).into_owned();
            let length = head
                .lines()
                .find_map(|l| {
                    l.to_ascii_lowercase().strip_prefix("content-length:").map(|v| v.trim().parse().unwrap())
                })
                .unwrap_or(0usize);
            if bytes.len() >= end + 4 + length {
                let body = String::from_utf8_lossy(&bytes[end + 4..end + 4 + length]).into_owned();
                return Some(Seen { connection, nth, head, body });
            }
        }
        match stream.read(&mut chunk) {
            Ok(n) if n > 0 => bytes.extend_from_slice(&chunk[..n]),
            _ => return None,
        }
    }
}

// ---- the bytes of answers ----

pub const SSE_HEAD: &str =
    "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";

pub fn write(text: impl Into<String>) -> Step {
    Step::Write(text.into().into_bytes())
}

pub fn chunked(data: &str) -> String {
    format!("{:x}\r\n{data}\r\n", data.len())
}

pub fn token(text: &str) -> String {
    chunked(&format!("data: {{\"choices\":[{{\"index\":0,\"delta\":{{\"content\":\"{text}\"}}}}]}}\n\n"))
}

pub fn finish() -> String {
    let last = "data: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"length\"}],\
                \"usage\":{\"prompt_tokens\":4,\"completion_tokens\":3}}\n\n";
    chunked(last) + &chunked("data: [DONE]\n\n") + "0\r\n\r\n"
}

/// Returns a complete valid response in one write.
pub fn good() -> Step {
    write(format!("{SSE_HEAD}{}{}{}{}", token("a "), token("b "), token("c "), finish()))
}

pub fn json(status: &str, headers: &str, body: &str) -> Step {
    write(format!(
        "HTTP/1.1 {status}\r\ncontent-type: application/json\r\n{headers}content-length: {}\r\n\r\n{body}",
        body.len()
    ))
}
