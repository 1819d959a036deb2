//! Scripted replicas on threads and plain sockets, and a client that shows every byte.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::sleep;
use std::time::{Duration, Instant};

use plimsoll_client::Clock;
use plimsoll_gateway::traffic::TrafficRecorder;
use plimsoll_gateway::{Gateway, GatewaySpec, ReplicaSpec};

/// The scripted behaviour of a replica.
#[derive(Clone, Debug)]
pub enum Act {
    /// 200 with a small JSON body.
    Answer,
    /// 200 with a usage object that reports this many of 1 000 prompt tokens as cached.
    Cached(u32),
    /// 200 with the request's body.
    Echo,
    /// 200 with this text.
    Text(String),
    /// A metrics page with this many running and waiting requests of others; its progress counter grows with each
    /// scrape.
    Metrics(u32, u32),
    /// This status with these header lines, each with its line end.
    Status(u16, &'static str),
    /// Closes the connection without a response.
    Hang,
    /// A complete stream with this many events at this interval.
    Stream(usize, Duration),
    /// A stream head and one event, then silence until the client disconnects.
    Wedge,
    /// A stream head, then silence until the client disconnects.
    Head,
    /// Two and a half events of a stream, then a closed connection.
    Cut,
    /// A stream of this many events of 64 KiB, as fast as they are read.
    Flood(usize),
    /// Silence until the client disconnects.
    Silence,
    /// A complete message that the function makes from the request's body.
    Says(fn(&str) -> String),
    /// These bytes at this interval, then a closed connection.
    Pieces(Vec<Vec<u8>>, Duration),
    /// Another behaviour after a delay.
    Late(Duration, Box<Act>),
}

pub struct Mock {
    pub addr: SocketAddr,
    pub act: Arc<Mutex<Act>>,
    /// Number of requests, except to the health endpoint.
    pub requests: Arc<AtomicUsize>,
    /// Response of the model list; `None` for 404.
    pub models: Arc<Mutex<Option<String>>>,
    /// Behaviour of the metrics endpoint, and its number of scrapes.
    pub metrics: Arc<Mutex<Act>>,
    pub pages: Arc<AtomicUsize>,
    /// Number of requests in progress.
    busy: Arc<AtomicUsize>,
    /// Bytes of the last request.
    pub last: Arc<Mutex<Vec<u8>>>,
    /// Number of flood bytes that were read.
    pub flooded: Arc<AtomicUsize>,
    /// Number of requests whose client disconnected.
    pub gone: Arc<AtomicUsize>,
    stop: Arc<AtomicBool>,
}

impl Mock {
    pub fn new(act: Act) -> Mock {
        Mock::at(SocketAddr::from(([127, 0, 0, 1], 0)), act)
    }

    pub fn at(addr: SocketAddr, act: Act) -> Mock {
        let listener = TcpListener::bind(addr).expect("a free port");
        listener.set_nonblocking(true).expect("a plain socket");
        let mock = Mock {
            addr: listener.local_addr().expect("it listens"),
            act: Arc::new(Mutex::new(act)),
            requests: Arc::default(),
            models: Arc::default(),
            metrics: Arc::new(Mutex::new(Act::Status(404, ""))),
            pages: Arc::default(),
            busy: Arc::default(),
            last: Arc::default(),
            flooded: Arc::default(),
            gone: Arc::default(),
            stop: Arc::default(),
        };
        let seen = mock.handle();
        std::thread::spawn(move || {
            while !seen.stop.load(Ordering::Relaxed) {
                match listener.accept() {
                    Ok((socket, _)) => {
                        let seen = seen.handle();
                        std::thread::spawn(move || seen.serve(socket));
                    }
                    Err(_) => sleep(Duration::from_millis(1)),
                }
            }
        });
        mock
    }

    fn handle(&self) -> Mock {
        Mock {
            addr: self.addr,
            act: self.act.clone(),
            requests: self.requests.clone(),
            models: self.models.clone(),
            metrics: self.metrics.clone(),
            busy: self.busy.clone(),
            pages: self.pages.clone(),
            last: self.last.clone(),
            flooded: self.flooded.clone(),
            gone: self.gone.clone(),
            stop: self.stop.clone(),
        }
    }

    /// Stops listening; further connections are refused.
    pub fn leave(&self) {
        self.stop.store(true, Ordering::Relaxed);
        sleep(Duration::from_millis(50));
    }

    /// Returns a replica with a model list.
    pub fn serving(act: Act, models: &[&str]) -> Mock {
        let entries: Vec<String> = models
            .iter()
            .map(|model| format!("{{\"id\":\"{model}\",\"object\":\"model\",\"max_model_len\":4096}}"))
            .collect();
        let mock = Mock::new(act);
        let page = format!("{{\"object\":\"list\",\"data\":[{}]}}", entries.join(","));
        *mock.models.lock().expect("nobody panicked") = Some(page);
        mock
    }

    pub fn set(&self, act: Act) {
        *self.act.lock().expect("nobody panicked") = act;
    }

    /// Sets the behaviour of the metrics endpoint.
    pub fn shows(&self, act: Act) {
        *self.metrics.lock().expect("nobody panicked") = act;
    }

    pub fn count(&self) -> usize {
        self.requests.load(Ordering::SeqCst)
    }

    fn serve(&self, mut socket: TcpStream) {
        let _ = socket.set_nodelay(true);
        let _ = socket.set_nonblocking(false);
        while let Some(request) = read_message(&mut socket) {
            if self.stop.load(Ordering::Relaxed) {
                return;
            }
            if request.starts_with(b"GET /health ") {
                if socket.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").is_err() {
                    return;
                }
                continue;
            }
            if request.starts_with(b"GET /v1/models ") {
                let models = self.models.lock().expect("nobody panicked").clone();
                let (status, body) = models.map_or((404, String::new()), |models| (200, models));
                let head = format!("HTTP/1.1 {status} X\r\ncontent-length: {}\r\n\r\n{body}", body.len());
                if socket.write_all(head.as_bytes()).is_err() {
                    return;
                }
                continue;
            }
            if request.starts_with(b"GET /metrics ") {
                self.pages.fetch_add(1, Ordering::SeqCst);
                let act = self.metrics.lock().expect("nobody panicked").clone();
                if self.do_as(&mut socket, &act, &request).is_none() {
                    return;
                }
                continue;
            }
            self.requests.fetch_add(1, Ordering::SeqCst);
            *self.last.lock().expect("nobody panicked") = request.clone();
            let act = self.act.lock().expect("nobody panicked").clone();
            self.busy.fetch_add(1, Ordering::SeqCst);
            let done = self.do_as(&mut socket, &act, &request);
            self.busy.fetch_sub(1, Ordering::SeqCst);
            if done.is_none() {
                return;
            }
        }
    }

    fn do_as(&self, socket: &mut TcpStream, act: &Act, request: &[u8]) -> Option<()> {
        let chunk = |socket: &mut TcpStream, text: &[u8]| -> Option<()> {
            socket.write_all(format!("{:x}\r\n", text.len()).as_bytes()).ok()?;
            socket.write_all(text).ok()?;
            socket.write_all(b"\r\n").ok()
        };
        const STREAM: &[u8] =
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";
        match act {
            Act::Answer => {
                let body = b"{\"object\": \"text_completion\",\n \"odd\":1}";
                let head = format!(
                    "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nkeep-alive: timeout=5\r\nx-own: 7\r\ncontent-length: {}\r\n\r\n",
                    body.len()
                );
                socket.write_all(head.as_bytes()).ok()?;
                socket.write_all(body).ok()
            }
            Act::Cached(tokens) => {
                let body = format!(
                    "{{\"usage\":{{\"prompt_tokens\":1000,\"prompt_tokens_details\":{{\"cached_tokens\":{tokens}}}}}}}"
                );
                let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}", body.len());
                socket.write_all(head.as_bytes()).ok()
            }
            Act::Echo => {
                let body = request.windows(4).position(|end| end == b"\r\n\r\n").map_or(0, |end| end + 4);
                let body = &request[body..];
                let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", body.len());
                socket.write_all(&[head.as_bytes(), body].concat()).ok()
            }
            Act::Text(text) => {
                let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{text}", text.len());
                socket.write_all(head.as_bytes()).ok()
            }
            Act::Metrics(running, waiting) => {
                let tokens = self.pages.load(Ordering::SeqCst);
                let running = *running as usize + self.busy.load(Ordering::SeqCst);
                let text = format!(
                    "vllm:num_requests_running{{engine=\"0\"}} {running}\nvllm:num_requests_waiting{{engine=\"0\"}} {waiting}\nvllm:kv_cache_usage_perc{{engine=\"0\"}} 0.5\nvllm:generation_tokens_total{{engine=\"0\"}} {tokens}\n"
                );
                self.do_as(socket, &Act::Text(text), request)
            }
            Act::Status(status, headers) => {
                let head = format!("HTTP/1.1 {status} X\r\n{headers}content-length: 2\r\n\r\nno");
                socket.write_all(head.as_bytes()).ok()
            }
            Act::Hang => None,
            Act::Stream(events, apart) => {
                socket.write_all(STREAM).ok()?;
                for _ in 0..*events {
                    chunk(socket, EVENT)?;
                    sleep(*apart);
                }
                chunk(socket, b"data: [DONE]\n\n")?;
                socket.write_all(b"0\r\n\r\n").ok()
            }
            Act::Wedge => {
                socket.write_all(STREAM).ok()?;
                chunk(socket, EVENT)?;
                self.until_gone(socket)
            }
            Act::Head => {
                socket.write_all(STREAM).ok()?;
                self.until_gone(socket)
            }
            Act::Cut => {
                socket.write_all(STREAM).ok()?;
                chunk(socket, EVENT)?;
                chunk(socket, EVENT)?;
                chunk(socket, &EVENT[..20])?;
                None
            }
            Act::Flood(most) => {
                socket.write_all(STREAM).ok()?;
                let big = [b"data: ".as_slice(), &[b'x'; 65_000], b"\n\n"].concat();
                for _ in 0..*most {
                    chunk(socket, &big)?;
                    self.flooded.fetch_add(big.len(), Ordering::SeqCst);
                }
                socket.write_all(b"0\r\n\r\n").ok()
            }
            Act::Silence => self.until_gone(socket),
            Act::Says(says) => {
                let body = request.windows(4).position(|end| end == b"\r\n\r\n").map_or(0, |end| end + 4);
                socket.write_all(says(&String::from_utf8_lossy(&request[body..])).as_bytes()).ok()
            }
            Act::Pieces(pieces, apart) => {
                for piece in pieces {
                    socket.write_all(piece).ok()?;
                    sleep(*apart);
                }
                None
            }
            Act::Late(after, act) => {
                sleep(*after);
                self.do_as(socket, act, request)
            }
        }
    }

    fn until_gone(&self, socket: &mut TcpStream) -> Option<()> {
        let _ = socket.set_read_timeout(Some(Duration::from_millis(5)));
        let mut byte = [0; 16];
        while !self.stop.load(Ordering::Relaxed) {
            match socket.read(&mut byte) {
                Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
                _ => {
                    self.gone.fetch_add(1, Ordering::SeqCst);
                    return None;
                }
            }
        }
        None
    }
}

impl Drop for Mock {
    fn drop(&mut self) {
        // The threads drop their handles frequently; the replica ends only with the last other holder.
        if Arc::strong_count(&self.stop) <= 2 {
            self.stop.store(true, Ordering::Relaxed);
        }
    }
}

pub const EVENT: &[u8] = b"data: {\"choices\":[{\"index\":0,\"text\":\" word\"}]}\n\n";

/// Reads a complete message: head, and a body of the stated length.
fn read_message(socket: &mut TcpStream) -> Option<Vec<u8>> {
    let (mut all, mut part) = (Vec::new(), [0; 65_536]);
    loop {
        if let Some(end) = all.windows(4).position(|end| end == b"\r\n\r\n") {
            let head = String::from_utf8_lossy(&all[..end]).to_lowercase();
            let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
            let length: usize = length.map_or(0, |text| text.trim().parse().expect("a length"));
            while all.len() < end + 4 + length {
                match socket.read(&mut part).ok()? {
                    0 => return None,
                    count => all.extend_from_slice(&part[..count]),
                }
            }
            return Some(all);
        }
        match socket.read(&mut part).ok()? {
            0 => return None,
            count => all.extend_from_slice(&part[..count]),
        }
    }
}

/// Starts a gateway in front of these replicas, and waits until all of them are up.
pub fn gateway(mocks: &[&Mock], change: impl FnOnce(&mut GatewaySpec)) -> Gateway {
    recorded(mocks, None, change)
}

/// Starts a gateway as [`gateway`] does, with recording.
pub fn recorded(
    mocks: &[&Mock],
    traffic: Option<Arc<TrafficRecorder>>,
    change: impl FnOnce(&mut GatewaySpec),
) -> Gateway {
    started(mocks, Clock::start(), traffic, change)
}

/// Starts a gateway as [`gateway`] does, with recording and this clock.
pub fn started(
    mocks: &[&Mock],
    clock: Clock,
    traffic: Option<Arc<TrafficRecorder>>,
    change: impl FnOnce(&mut GatewaySpec),
) -> Gateway {
    let mut spec = GatewaySpec {
        listen: SocketAddr::from(([127, 0, 0, 1], 0)),
        replicas: mocks
            .iter()
            .enumerate()
            .map(|(number, mock)| {
                ReplicaSpec::new(format!("http://{}", mock.addr), Some(format!("r{number}")))
            })
            .collect(),
        name_replicas: true,
        threads: 1,
        ..GatewaySpec::default()
    };
    spec.health.every_s = 0.25;
    change(&mut spec);
    let gateway = Gateway::recording(&spec, clock, traffic.as_ref()).expect("a sound spec");
    until("all replicas answer", || {
        gateway.pool.replicas().iter().all(|replica| gateway.pool.is_up(replica.number))
    });
    gateway
}

pub fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let began = Instant::now();
    while !holds() {
        assert!(began.elapsed() < Duration::from_secs(60), "not within 60 s: {what}");
        sleep(Duration::from_millis(2));
    }
}

#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub head: String,
    pub body: Vec<u8>,
}

impl Answer {
    pub fn header(&self, name: &str) -> Option<&str> {
        let line = self.head.lines().find(|line| line.to_lowercase().starts_with(&format!("{name}: ")))?;
        Some(line[name.len() + 2..].trim())
    }

    /// Returns the body as text, without chunked framing.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.bytes()).into_owned()
    }

    /// Returns the body as bytes, without chunked framing.
    pub fn bytes(&self) -> Vec<u8> {
        if self.header("transfer-encoding").is_none() {
            return self.body.clone();
        }
        let (mut rest, mut text) = (&self.body[..], Vec::new());
        while let Some(end) = rest.windows(2).position(|end| end == b"\r\n") {
            let size =
                std::str::from_utf8(&rest[..end]).ok().and_then(|hex| usize::from_str_radix(hex, 16).ok());
            let size = size.expect("a chunk's size");
            text.extend_from_slice(&rest[end + 2..end + 2 + size]);
            rest = &rest[end + 4 + size..];
        }
        text
    }

    /// Returns whether the body is complete according to its framing.
    pub fn is_whole(&self) -> bool {
        self.header("transfer-encoding").is_none() || self.body.ends_with(b"0\r\n\r\n")
    }
}

/// Sends bytes and reads until the connection closes.
pub fn send(addr: SocketAddr, bytes: &[u8]) -> Option<Answer> {
    let mut socket = TcpStream::connect(addr).ok()?;
    socket.set_read_timeout(Some(Duration::from_secs(30))).ok()?;
    // The server may respond and close before it has read everything.
    let _ = socket.write_all(bytes);
    let mut all = Vec::new();
    let _ = socket.read_to_end(&mut all);
    let end = all.windows(4).position(|end| end == b"\r\n\r\n")?;
    let head = String::from_utf8_lossy(&all[..end]).into_owned();
    let status = head.split_whitespace().nth(1)?.parse().ok()?;
    Some(Answer { status, head, body: all[end + 4..].to_vec() })
}

/// Returns the bytes of a request. `header` contains additional lines, each with its line end.
pub fn message(path: &str, header: &str, body: &str) -> Vec<u8> {
    let head = format!("POST {path} HTTP/1.1\r\nHost: gateway\r\nConnection: close\r\n{header}");
    format!("{head}Content-Length: {}\r\n\r\n{body}", body.len()).into_bytes()
}

pub fn request(body: &str) -> Vec<u8> {
    message("/v1/completions", "Content-Type: application/json\r\n", body)
}

pub fn post(addr: SocketAddr, header: &str, body: &str) -> Answer {
    send(addr, &message("/v1/completions", header, body)).expect("an answer")
}

/// Sends a GET request to the gateway or to its admin API.
pub fn get(addr: SocketAddr, path: &str, header: &str) -> Answer {
    let text = format!("GET {path} HTTP/1.1\r\nHost: gateway\r\nConnection: close\r\n{header}\r\n");
    send(addr, text.as_bytes()).expect("an answer")
}

pub const ASK: &str = r#"{"model": "m", "prompt": "hello", "stream": true,   "unknown": [1, {"a": null}]}"#;

pub fn ask(gateway: &Gateway) -> Answer {
    send(gateway.addr, &request(ASK)).expect("an answer")
}

/// Waits until no load is booked any more, so that every end of a request released its load.
pub fn is_empty(gateway: &Gateway) {
    until("all loads are given back", || {
        gateway.pool.shown().0.iter().all(|shown| shown.load == plimsoll_policy::ReplicaLoad::default())
    });
}
