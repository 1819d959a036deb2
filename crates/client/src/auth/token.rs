//! Obtains a token from a token server by OAuth 2.0 client credentials (RFC 6749, section 4.4).
//!
//! Each request is blocking and opens a connection, because requests are rare. The driver's connections were rejected: they
//! need an event loop, and the caller may already run inside one.

use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::Uri;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use plimsoll_wire::http1::{Reader, ResponsePart};
use plimsoll_workload::{TargetSpec, TokenAuth, TokenSpec};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, StreamOwned};
use serde_json::Value;

use crate::auth::secret::{Secret, SecretError};
use crate::clock::monotonic_ns;
use crate::tls::{TlsTrust, client_config};

/// Longest wait for a connection, and then for the whole exchange on it.
const PATIENCE: Duration = Duration::from_secs(10);

/// Most bytes of a response that are read.
const ANSWER_MAX: usize = 64 << 10;

/// Share of a token's lifetime after which the next one is requested.
const RENEW_AT: f64 = 0.8;

/// An access token as the token server issued it.
#[derive(Debug)]
pub struct Token {
    /// Text that is sent as the key.
    pub key: Secret,
    /// Lifetime; `None` if the server does not report it.
    lives: Option<Duration>,
}

impl Token {
    /// Returns the time to request the next token, for a request at `asked_ns` (CLOCK_MONOTONIC, ns).
    pub fn renew_at(&self, asked_ns: i64) -> Option<i64> {
        self.lives.map(|lives| asked_ns + lives.mul_f64(RENEW_AT).as_nanos() as i64)
    }
}

/// A token server and the request to it.
pub struct TokenServer {
    token: TokenSpec,
    uri: Uri,
    tls: Option<(Arc<ClientConfig>, ServerName<'static>)>,
}

impl TokenServer {
    /// Builds a token server from a target's settings; its certificate is verified like the target's.
    ///
    /// # Errors
    /// Fails if the URL or the file of authorities can't be used.
    pub fn new(target: &TargetSpec, token: &TokenSpec) -> Result<TokenServer, SecretError> {
        let failed = |why: &dyn ToString| failed(token, &why.to_string());
        let uri: Uri = token.url.parse().map_err(|e: http::uri::InvalidUri| failed(&e))?;
        let host = uri.host().ok_or_else(|| failed(&"it names no host"))?;
        let trust = match (&target.ca_file, target.tls_verify) {
            (_, false) => TlsTrust::Anything,
            (Some(file), true) => TlsTrust::SystemAnd(PathBuf::from(file)),
            (None, true) => TlsTrust::System,
        };
        let tls = match uri.scheme_str() {
            Some("http") => None,
            Some("https") => {
                let name =
                    ServerName::try_from(host.trim_matches(['[', ']']).to_owned()).map_err(|e| failed(&e))?;
                Some((client_config(&trust).map_err(|e| failed(&e))?, name))
            }
            _ => return Err(failed(&"it must begin with http:// or https://")),
        };
        Ok(TokenServer { token: token.clone(), uri, tls })
    }

    /// Requests a token. Blocks for some tens of seconds at most.
    pub fn ask(&self) -> Result<Token, SecretError> {
        let secret = match (&self.token.secret_env, &self.token.secret_file) {
            (Some(name), _) => Secret::from_env(name)?,
            (None, Some(file)) => Secret::from_file(Path::new(file))?,
            (None, None) => return Err(failed(&self.token, "no secret is named")),
        };
        let stream = self.connect().map_err(|e| failed(&self.token, &e.to_string()))?;
        self.ask_on(stream, &secret, PATIENCE)
    }

    /// Requests a token on an open connection, for `patience` at most.
    pub fn ask_on(
        &self,
        stream: impl Read + Write,
        secret: &Secret,
        patience: Duration,
    ) -> Result<Token, SecretError> {
        let hidden = |why: String| failed(&self.token, &secret.scrub(&why));
        let (status, answer) =
            exchange(stream, &self.request(secret), patience).map_err(|e| hidden(e.to_string()))?;
        self.read(status, &answer).map_err(hidden)
    }

    fn request(&self, secret: &Secret) -> Vec<u8> {
        let token = &self.token;
        let encoded = |text: &str| utf8_percent_encode(text, NON_ALPHANUMERIC).to_string();
        let mut fields = vec![("grant_type", "client_credentials")];
        fields.extend(token.scope.as_deref().map(|scope| ("scope", scope)));
        fields.extend(token.audience.as_deref().map(|audience| ("audience", audience)));
        let mut own = String::new();
        match token.auth {
            TokenAuth::Post => {
                fields.push(("client_id", &token.client_id));
                fields.push(("client_secret", secret.text()));
            }
            TokenAuth::Basic => {
                let pair = format!("{}:{}", encoded(&token.client_id), encoded(secret.text()));
                own = format!("authorization: Basic {}\r\n", STANDARD.encode(pair));
            }
        }
        let pairs: Vec<String> =
            fields.iter().map(|(name, value)| format!("{name}={}", encoded(value))).collect();
        let body = pairs.join("&");
        let path = self.uri.path_and_query().map_or("/", |path| path.as_str());
        let host = self.uri.authority().map_or("", |authority| authority.as_str());
        format!(
            "POST {path} HTTP/1.1\r\nhost: {host}\r\naccept: application/json\r\ncontent-type: application/x-www-form-urlencoded\r\n\
             content-length: {}\r\nconnection: close\r\n{own}\r\n{body}",
            body.len()
        )
        .into_bytes()
    }

    fn connect(&self) -> io::Result<Box<dyn Connection>> {
        let host = self.uri.host().unwrap_or_default().trim_matches(['[', ']']);
        let port = self.uri.port_u16().unwrap_or(if self.tls.is_some() { 443 } else { 80 });
        let mut last = io::Error::other("the name has no address");
        for address in (host, port).to_socket_addrs()? {
            let tcp = match TcpStream::connect_timeout(&address, PATIENCE) {
                Ok(tcp) => tcp,
                Err(e) => {
                    last = e;
                    continue;
                }
            };
            let tcp = HurriedSocket::new(tcp, PATIENCE);
            let Some((config, name)) = &self.tls else { return Ok(Box::new(tcp)) };
            let tls = ClientConnection::new(Arc::clone(config), name.clone()).map_err(io::Error::other)?;
            return Ok(Box::new(StreamOwned::new(tls, tcp)));
        }
        Err(last)
    }

    fn read(&self, status: u16, answer: &[u8]) -> Result<Token, String> {
        let answer: Value = serde_json::from_slice(answer).unwrap_or_default();
        if !(200..300).contains(&status) {
            // RFC 6749, section 5.2: an error code and an optional description.
            let said =
                |name: &str| answer[name].as_str().map(|text| text.chars().take(200).collect::<String>());
            let said: Vec<String> =
                [said("error"), said("error_description")].into_iter().flatten().collect();
            return Err(format!("HTTP {status} {}", said.join(": ")).trim_end().to_owned());
        }
        let text = answer["access_token"]
            .as_str()
            .ok_or("the answer of the token server contains no access_token")?;
        let key = Secret::new(text, &self.token.url).map_err(|e| e.to_string())?;
        // Some servers write the number as text.
        let lives = answer["expires_in"].as_f64().or_else(|| answer["expires_in"].as_str()?.parse().ok());
        let lives = lives.filter(|s| *s > 0.0 && *s < 1e9).map(Duration::from_secs_f64);
        Ok(Token { key, lives })
    }
}

/// A socket with one deadline for all reads and writes.
///
/// TLS returns from a handshake or a read only with a complete record, and every byte would postpone a limit per step.
struct HurriedSocket {
    tcp: TcpStream,
    until_ns: i64,
    patience: Duration,
}

impl HurriedSocket {
    fn new(tcp: TcpStream, patience: Duration) -> HurriedSocket {
        HurriedSocket { tcp, until_ns: monotonic_ns() + patience.as_nanos() as i64, patience }
    }

    /// Returns the time left until the deadline.
    fn left(&self) -> io::Result<Duration> {
        match u64::try_from(self.until_ns - monotonic_ns()) {
            Ok(left) if left > 0 => Ok(Duration::from_nanos(left)),
            _ => Err(late(self.patience)),
        }
    }

    /// The kernel reports an expired wait as "would block"; returns a timeout error instead.
    fn named(&self, e: io::Error) -> io::Error {
        match e.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => late(self.patience),
            _ => e,
        }
    }
}

impl Read for HurriedSocket {
    fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
        self.tcp.set_read_timeout(Some(self.left()?))?;
        self.tcp.read(room).map_err(|e| self.named(e))
    }
}

impl Write for HurriedSocket {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.tcp.set_write_timeout(Some(self.left()?))?;
        self.tcp.write(bytes).map_err(|e| self.named(e))
    }

    fn flush(&mut self) -> io::Result<()> {
        self.tcp.flush()
    }
}

/// Returns the error of an exchange past its deadline. Without a deadline, a slow trickle of bytes would block a load that
/// waits for its key.
fn late(patience: Duration) -> io::Error {
    let why = format!("its answer did not end within {} s", patience.as_secs_f64());
    io::Error::new(io::ErrorKind::TimedOut, why)
}

/// A connection with or without TLS.
trait Connection: Read + Write {}

impl<T: Read + Write> Connection for T {}

fn failed(token: &TokenSpec, why: &str) -> SecretError {
    SecretError::Token { url: token.url.clone(), why: why.to_owned() }
}

/// Sends one request and reads its response.
fn exchange(mut stream: impl Read + Write, request: &[u8], patience: Duration) -> io::Result<(u16, Vec<u8>)> {
    let until = monotonic_ns() + patience.as_nanos() as i64;
    stream.write_all(request)?;
    stream.flush()?;
    let (mut reader, mut status, mut body) = (Reader::default(), None, Vec::new());
    let mut room = [0; 4096];
    loop {
        let n = match stream.read(&mut room) {
            Ok(n) => n,
            // The server ended TLS without a notification; the framing shows whether the response is complete.
            Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => 0,
            Err(e) => return Err(e),
        };
        let mut rest = &room[..n];
        let mut over = n == 0 && reader.ended().map_err(io::Error::other)?;
        if n == 0 && !over {
            return Err(io::Error::other("closed before the answer's end"));
        }
        while let Some(part) = reader.next(&mut rest, || 0).map_err(io::Error::other)? {
            match part {
                ResponsePart::Head(head) => status = Some(head.status),
                ResponsePart::Data(data) => body.extend_from_slice(data),
                ResponsePart::End => {
                    over = true;
                    break;
                }
            }
        }
        match status {
            Some(status) if over || body.len() > ANSWER_MAX => return Ok((status, body)),
            None if over => return Err(io::Error::other("closed without an answer")),
            _ if monotonic_ns() > until => return Err(late(patience)),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::thread;

    use super::*;

    /// A server that never completes the head of its response.
    struct Dribbling;

    impl Read for Dribbling {
        fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
            let piece = b"HTTP/1.1 100 Continue\r\n\r\n";
            room[..piece.len()].copy_from_slice(piece);
            Ok(piece.len())
        }
    }

    impl Write for Dribbling {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn an_answer_that_does_not_end_is_given_up() {
        let why = exchange(Dribbling, b"", Duration::ZERO).expect_err("no answer");
        assert!(why.to_string().contains("did not end"), "{why}");
    }

    /// Returns a connection with a short deadline to a server that sends `says` and then single letters.
    fn dribbling(says: &'static [u8]) -> HurriedSocket {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let tcp = TcpStream::connect(listener.local_addr().expect("it is bound")).expect("it listens");
        thread::spawn(move || {
            let mut socket = listener.accept().expect("a client").0;
            let mut said = socket.write_all(says);
            while said.is_ok() {
                thread::sleep(Duration::from_millis(10));
                said = socket.write_all(b"a");
            }
        });
        HurriedSocket::new(tcp, Duration::from_millis(200))
    }

    #[track_caller]
    fn check_given_up(stream: impl Read + Write) {
        // The socket must give up, because the exchange itself has unlimited time.
        let request = b"POST / HTTP/1.1\r\n\r\n";
        let why = exchange(stream, request, Duration::from_secs(600)).expect_err("no answer");
        assert_eq!(why.kind(), io::ErrorKind::TimedOut, "{why}");
        assert!(why.to_string().contains("did not end within 0.2 s"), "{why}");
    }

    /// Without TLS each letter is one read; a TLS record, here the first of a handshake, is awaited as a whole.
    #[test]
    fn letters_now_and_then_put_nothing_off() {
        check_given_up(dribbling(b"HTTP/1.1 200 OK\r\nx: "));
        let config = client_config(&TlsTrust::Anything).expect("a configuration");
        let name = ServerName::try_from("localhost").expect("a name");
        let tls = ClientConnection::new(config, name).expect("a client");
        check_given_up(StreamOwned::new(tls, dribbling(&[22, 3, 3, 0x3f, 0xff])));
    }
}
