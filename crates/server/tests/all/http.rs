//! Provides a small blocking HTTP client that separates the chunks of a chunked body, and engine specs for tests.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use plimsoll_server::{EngineServerConfig, ServerHandle, serve};
use plimsoll_sim::{CannedSpec, EngineSpec, LawSpec, ModeSpec, QueueSpec};

/// Generous limit, which only ends a hanging test.
const PATIENCE: Duration = Duration::from_secs(20);

pub fn canned(ttft_ms: f64, gap_ms: f64) -> EngineSpec {
    let law = |ms| LawSpec::Deterministic { ms };
    let mode = ModeSpec::Canned(CannedSpec { ttft: law(ttft_ms), gap: law(gap_ms) });
    EngineSpec { name: "test".to_owned(), mode }
}

/// Returns a server that takes an hour per request, with room for one waiting request.
pub fn stuck() -> EngineSpec {
    let service = LawSpec::Deterministic { ms: 3_600_000.0 };
    let mode = ModeSpec::Queue(QueueSpec { servers: 1, service, queue_limit: Some(1) });
    EngineSpec { name: "test".to_owned(), mode }
}

pub fn config(engine: EngineSpec) -> EngineServerConfig {
    let mut config = EngineServerConfig::new(([127, 0, 0, 1], 0).into(), engine);
    config.model = "tiny".to_owned();
    config
}

pub fn start(engine: EngineSpec) -> ServerHandle {
    serve(config(engine)).unwrap()
}

#[derive(Debug, Default)]
pub struct Answer {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    /// One entry per chunk; a single one for a body with a length.
    pub chunks: Vec<Vec<u8>>,
    /// Set if the body ended as its framing declared.
    pub clean: bool,
}

impl Answer {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    pub fn text(&self) -> String {
        String::from_utf8(self.chunks.concat()).unwrap()
    }

    pub fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.text()).unwrap()
    }
}

pub struct Client {
    pub socket: BufReader<TcpStream>,
}

impl Client {
    pub fn connect(addr: SocketAddr) -> Client {
        let socket = TcpStream::connect(addr).unwrap();
        socket.set_nodelay(true).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        Client { socket: BufReader::new(socket) }
    }

    pub fn send(&mut self, bytes: &[u8]) {
        self.socket.get_mut().write_all(bytes).unwrap();
    }

    pub fn post(&mut self, path: &str, id: &str, body: &str) {
        let head = format!(
            "POST {path} HTTP/1.1\r\nhost: test\r\ncontent-type: application/json\r\nx-request-id: {id}\r\n\
             content-length: {}\r\n\r\n{body}",
            body.len()
        );
        self.send(head.as_bytes());
    }

    fn line(&mut self) -> Option<String> {
        let mut line = String::new();
        match self.socket.read_line(&mut line) {
            Ok(0) | Err(_) => None,
            Ok(_) => Some(line.trim_end().to_owned()),
        }
    }

    pub fn head(&mut self) -> Option<Answer> {
        let status = self.line()?;
        let mut answer = Answer { status: status.split(' ').nth(1)?.parse().ok()?, ..Answer::default() };
        loop {
            let line = self.line()?;
            let Some((name, value)) = line.split_once(':') else { return Some(answer) };
            answer.headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
        }
    }

    /// Reads the next chunk; `None` at the end or after a broken connection.
    pub fn chunk(&mut self) -> Option<Vec<u8>> {
        let size = usize::from_str_radix(&self.line()?, 16).ok()?;
        let mut bytes = vec![0; size + 2];
        self.socket.read_exact(&mut bytes).ok()?;
        bytes.truncate(size);
        Some(bytes)
    }

    pub fn answer(&mut self) -> Answer {
        let mut answer = self.head().unwrap();
        if let Some(length) = answer.header("content-length") {
            let mut bytes = vec![0; length.parse().unwrap()];
            answer.clean = self.socket.read_exact(&mut bytes).is_ok();
            answer.chunks.push(bytes);
            return answer;
        }
        while let Some(chunk) = self.chunk() {
            if chunk.is_empty() {
                answer.clean = true;
                break;
            }
            answer.chunks.push(chunk);
        }
        answer
    }
}

pub fn post(addr: SocketAddr, path: &str, body: &str) -> Answer {
    let mut client = Client::connect(addr);
    client.post(path, "r-0-0-0", body);
    client.answer()
}

pub fn get(addr: SocketAddr, path: &str) -> Answer {
    let mut client = Client::connect(addr);
    client.send(format!("GET {path} HTTP/1.1\r\nhost: test\r\n\r\n").as_bytes());
    client.answer()
}

/// Returns the value of a sample of the metrics endpoint; `sample` is its name with labels.
pub fn metric(addr: SocketAddr, sample: &str) -> f64 {
    let page = get(addr, "/metrics").text();
    let line = page.lines().find(|line| line.strip_prefix(sample).is_some_and(|rest| rest.starts_with(' ')));
    line.unwrap_or_else(|| panic!("no {sample} on the page")).rsplit(' ').next().unwrap().parse().unwrap()
}

/// Scrapes until a sample has the wanted value, because the end of another connection is not immediately visible.
pub fn until_metric(addr: SocketAddr, sample: &str, wanted: f64) {
    until_line(addr, &format!("{sample} {wanted}"), |line| line == format!("{sample} {wanted}"));
}

/// Scrapes until a line of the exposition starts and ends with these texts.
pub fn until_any(addr: SocketAddr, begins: &str, ends: &str) {
    until_line(addr, &format!("{begins}…{ends}"), |line| line.starts_with(begins) && line.ends_with(ends));
}

fn until_line(addr: SocketAddr, what: &str, is: impl Fn(&str) -> bool) {
    let mut client = Client::connect(addr);
    for _ in 0..20_000 {
        client.send(b"GET /metrics HTTP/1.1\r\nhost: test\r\n\r\n");
        let page = client.answer().text();
        if page.lines().any(&is) {
            return;
        }
    }
    panic!("{what} never came");
}

pub fn chat(words: usize, max_tokens: u32, more: &str) -> String {
    let prompt = vec!["word"; words].join(" ");
    format!(
        r#"{{"model":"tiny","messages":[{{"role":"user","content":"{prompt}"}}],"max_tokens":{max_tokens}{more}}}"#
    )
}
