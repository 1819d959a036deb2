//! The reference server of the self-test. It follows a script and logs the time of each step.
//!
//! It shares no code with the client or the embedded engine except the machine's clock. It uses blocking
//! sockets, a thread per connection and its own HTTP parser, because a shared error would stay undetected.
//!
//! The number of a request determines the response, so that checks can derive the expected outcome
//! afterwards.

use std::collections::HashMap;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use plimsoll_client::clock::monotonic_ns;
use serde_json::{Value, json};

/// Number of tokens in a complete answer.
pub const TOKENS: usize = 16;
/// Header with the name of a request.
pub const HEADER: &str = "x-selftest";
/// Duration of a stall, ns.
pub const STOP_NS: i64 = 1_000_000_000;

/// The scripted outcome of a request.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum WitnessedOutcome {
    Whole,
    /// HTTP status 500.
    Error,
    /// The server closes the connection without a response.
    Reset,
    /// The stream ends after a few tokens.
    Cut,
}

impl WitnessedOutcome {
    /// Returns the outcome of a request by its number, if some requests must fail.
    pub fn of(number: u64, some_fail: bool) -> WitnessedOutcome {
        match number % 60 {
            _ if !some_fail => WitnessedOutcome::Whole,
            17 => WitnessedOutcome::Error,
            33 => WitnessedOutcome::Reset,
            51 => WitnessedOutcome::Cut,
            _ => WitnessedOutcome::Whole,
        }
    }
}

/// Bounds of an event's time, ns of the monotonic clock: not before the first, not after the second.
pub type TimeBracket = (i64, i64);

/// The log entry of one request.
#[derive(Clone, Debug)]
pub struct WitnessedRequest {
    /// Name from the header, with level and number.
    pub name: String,
    /// Time of the first byte, ns.
    pub came: i64,
    /// Number of words in the prompt.
    pub words: usize,
    /// Requested number of tokens.
    pub asked: u64,
    /// Hash of the prompt text.
    pub prompt: u64,
    /// Write time of each token.
    pub tokens: Vec<TimeBracket>,
    /// Write time of the last byte; `None` before the end.
    pub end: Option<TimeBracket>,
}

#[derive(Default)]
struct WitnessState {
    seen: Mutex<Vec<WitnessedRequest>>,
    /// End of the current stall, ns.
    stopped_until: AtomicI64,
    in_flight: AtomicU32,
    most_in_flight: AtomicU32,
    some_fail: AtomicBool,
    over: AtomicBool,
}

pub struct WitnessServer {
    shared: Arc<WitnessState>,
    pub addr: SocketAddr,
}

impl WitnessServer {
    /// Starts the server on a free loopback port.
    pub fn start() -> io::Result<WitnessServer> {
        let listener = TcpListener::bind(("127.0.0.1", 0))?;
        let (addr, shared) = (listener.local_addr()?, Arc::new(WitnessState::default()));
        let own = Arc::clone(&shared);
        std::thread::Builder::new().name("witness".into()).spawn(move || {
            for socket in listener.incoming().flatten() {
                if own.over.load(Ordering::Relaxed) {
                    return;
                }
                let own = Arc::clone(&own);
                // A client that disconnects ends its connection.
                let _ = std::thread::Builder::new().spawn(move || drop(serve(&own, socket)));
            }
        })?;
        Ok(WitnessServer { shared, addr })
    }

    /// Enables scripted failures ([`WitnessedOutcome::of`]).
    pub fn fail_some(&self) {
        self.shared.some_fail.store(true, Ordering::SeqCst);
    }

    /// Stalls all responses for [`STOP_NS`]; requests are still read.
    pub fn stop_for_a_while(&self) {
        self.shared.stopped_until.store(monotonic_ns() + STOP_NS, Ordering::SeqCst);
    }

    /// Returns the number of requests so far.
    pub fn count(&self) -> usize {
        self.shared.seen.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// Returns the log since the last call, and the maximum number of concurrent requests.
    pub fn take(&self) -> (Vec<WitnessedRequest>, u32) {
        let seen = std::mem::take(&mut *self.shared.seen.lock().unwrap_or_else(PoisonError::into_inner));
        (seen, self.shared.most_in_flight.swap(0, Ordering::SeqCst))
    }
}

impl Drop for WitnessServer {
    fn drop(&mut self) {
        self.shared.over.store(true, Ordering::SeqCst);
        // A connection wakes the accepting thread.
        let _ = TcpStream::connect(self.addr);
    }
}

/// A parsed request: head and body.
struct Read1 {
    is_post: bool,
    path: String,
    headers: HashMap<String, String>,
    body: Vec<u8>,
    came: i64,
}

fn serve(shared: &WitnessState, socket: TcpStream) -> io::Result<()> {
    socket.set_nodelay(true)?;
    let mut reader = BufReader::new(socket.try_clone()?);
    let mut writer = socket;
    while let Some(request) = read(&mut reader)? {
        if !request.is_post {
            let found = request.path == "/v1/models";
            let body = if found { json!({"object": "list", "data": [{"id": "witness"}]}) } else { json!({}) };
            plain(&mut writer, if found { "200 OK" } else { "404 Not Found" }, &body)?;
            continue;
        }
        let most = shared.in_flight.fetch_add(1, Ordering::SeqCst) + 1;
        let kept = answer(shared, &mut writer, &request);
        shared.in_flight.fetch_sub(1, Ordering::SeqCst);
        if request.headers.contains_key(HEADER) {
            shared.most_in_flight.fetch_max(most, Ordering::SeqCst);
        }
        if !kept? {
            return Ok(());
        }
    }
    Ok(())
}

fn read(from: &mut BufReader<TcpStream>) -> io::Result<Option<Read1>> {
    if from.fill_buf()?.is_empty() {
        return Ok(None);
    }
    let came = monotonic_ns();
    let (mut first, mut headers) = (String::new(), HashMap::new());
    from.read_line(&mut first)?;
    loop {
        let mut line = String::new();
        if from.read_line(&mut line)? == 0 {
            return Ok(None);
        }
        match line.trim_end().split_once(':') {
            Some((name, value)) => drop(headers.insert(name.to_lowercase(), value.trim().to_owned())),
            None => break,
        }
    }
    let length = headers.get("content-length").and_then(|text| text.parse().ok()).unwrap_or(0);
    let mut body = vec![0; length];
    from.read_exact(&mut body)?;
    let mut words = first.split(' ');
    let is_post = words.next() == Some("POST");
    Ok(Some(Read1 { is_post, path: words.next().unwrap_or_default().to_owned(), headers, body, came }))
}

/// Sends the scripted response. Returns whether the connection stays open.
fn answer(shared: &WitnessState, to: &mut TcpStream, request: &Read1) -> io::Result<bool> {
    let body: Value = serde_json::from_slice(&request.body).unwrap_or_default();
    let prompt = body["messages"][0]["content"].as_str().unwrap_or_default();
    let words = prompt.split_whitespace().count();
    let asked = body["max_completion_tokens"].as_u64().or(body["max_tokens"].as_u64()).unwrap_or(0);
    let name = request.headers.get(HEADER).cloned().unwrap_or_default();
    // Probes that the client sends before its load are not part of the script.
    let number = number_of(&name).filter(|_| level_of(&name) == Some(0));
    let place = {
        let mut seen = shared.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.push(WitnessedRequest {
            name,
            came: request.came,
            words,
            asked,
            prompt: hashed(prompt),
            tokens: Vec::new(),
            end: None,
        });
        seen.len() - 1
    };
    let fate = number.map_or(WitnessedOutcome::Whole, |number| {
        WitnessedOutcome::of(number, shared.some_fail.load(Ordering::SeqCst))
    });
    match fate {
        WitnessedOutcome::Error => {
            plain(to, "500 Internal Server Error", &json!({"error": {"message": "scripted error"}}))?;
            return Ok(true);
        }
        WitnessedOutcome::Reset => return Ok(false),
        WitnessedOutcome::Whole | WitnessedOutcome::Cut => {}
    }
    let usage =
        json!({"prompt_tokens": words, "completion_tokens": asked, "total_tokens": words as u64 + asked});
    if body["stream"] != json!(true) {
        let text = vec!["word"; asked as usize].join(" ");
        let choice =
            json!({"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "length"});
        plain(to, "200 OK", &json!({"object": "chat.completion", "choices": [choice], "usage": usage}))?;
        return Ok(true);
    }
    let n = number.unwrap_or(0);
    let (first_ms, gap_ms) = (20 + n * 37 % 60, 4 + n % 5);
    let mut due = request.came + first_ms as i64 * 1_000_000;
    to.write_all(
        b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n",
    )?;
    let (mut tokens, most) = (Vec::new(), if fate == WitnessedOutcome::Cut { 3 } else { asked });
    let mut left = true;
    for token in 0..most {
        wait_until(due.max(shared.stopped_until.load(Ordering::SeqCst)));
        due += gap_ms as i64 * 1_000_000;
        let finish = (token + 1 == asked).then_some("length");
        let event =
            json!({"choices": [{"index": 0, "delta": {"content": "word "}, "finish_reason": finish}]});
        let (before, wrote) = (monotonic_ns(), chunk(to, &format!("data: {event}\n\n")));
        if wrote.is_err() {
            left = false;
            break;
        }
        tokens.push((before, monotonic_ns()));
    }
    let mut end = None;
    if left && fate == WitnessedOutcome::Whole {
        let event = json!({"choices": [], "usage": usage});
        let before = monotonic_ns();
        chunk(to, &format!("data: {event}\n\ndata: [DONE]\n\n"))?;
        to.write_all(b"0\r\n\r\n")?;
        end = Some((before, monotonic_ns()));
    }
    let mut seen = shared.seen.lock().unwrap_or_else(PoisonError::into_inner);
    // If the log was taken meanwhile, the later data of this request is dropped.
    if let Some(own) = seen.get_mut(place) {
        (own.tokens, own.end) = (tokens, end);
    }
    Ok(fate == WitnessedOutcome::Whole && left)
}

/// Returns the number in `run-level-number-attempt`.
pub fn number_of(name: &str) -> Option<u64> {
    name.rsplit('-').nth(1)?.parse().ok()
}

pub fn level_of(name: &str) -> Option<u32> {
    name.rsplit('-').nth(2)?.parse().ok()
}

fn wait_until(ns: i64) {
    // A sleep is late by some 60 µs. This does not matter, because the log records the time of the write.
    while let Ok(left @ 1..) = u64::try_from(ns - monotonic_ns()) {
        std::thread::sleep(Duration::from_nanos(left));
    }
}

fn chunk(to: &mut TcpStream, text: &str) -> io::Result<()> {
    to.write_all(format!("{:x}\r\n{text}\r\n", text.len()).as_bytes())
}

fn plain(to: &mut TcpStream, status: &str, body: &Value) -> io::Result<()> {
    let body = body.to_string();
    let head = format!(
        "HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    to.write_all((head + &body).as_bytes())
}

fn hashed(text: &str) -> u64 {
    use std::hash::{DefaultHasher, Hash, Hasher};
    let mut hasher = DefaultHasher::new();
    text.hash(&mut hasher);
    hasher.finish()
}
