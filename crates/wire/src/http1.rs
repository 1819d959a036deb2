//! Parses HTTP/1.1 answers while their bytes arrive: the head, the body without its transfer coding, and connection reuse.
//!
//! The rules are RFC 9112 as hyper's client applies it, because a load generator must match the clients that users
//! run. The parser of heads is hyper's own, `httparse`, which works in place. The library hyper was rejected: its connection is a separate future behind a
//! channel. This costs 2 µs and a dozen allocations for every small answer, and buffers for every open stream.
//!
//! It covers only the needs of this driver: answers to GET and POST (so only the status can exclude a body), no upgrades, trailers
//! skipped. Memory is bounded by one head of [`HEAD_MAX`].

use std::mem::MaybeUninit;

use httparse::{Header, ParserConfig, Status};

use crate::head::Head;

/// Longest head in bytes; more is not a valid HTTP answer. The limit applies to trailers too.
pub const HEAD_MAX: usize = 64 * 1024;
/// Maximum number of lines in a message head.
pub(crate) const LINES_MAX: usize = 100;
/// Limit of bytes of all chunk extensions of an answer; their content is not used.
const EXTENSIONS_MAX: u32 = 16 * 1024;

/// First byte of a TLS alert; no text begins with it.
const TLS_ALERT: u8 = 21;

#[derive(Copy, Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum HttpFault {
    #[error("the answer's head is not HTTP: {0}")]
    Head(#[from] httparse::Error),
    /// The bytes are a TLS alert (RFC 8446, 5.1).
    #[error("the answer is TLS and not HTTP: write https:// for it")]
    Tls,
    /// The head does not end within [`HEAD_MAX`].
    #[error("the answer's head is longer than {HEAD_MAX} bytes")]
    Endless,
    /// `Content-Length` is invalid, or there are several that differ.
    #[error("the answer's content-length can't be read")]
    Length,
    /// HTTP/1.0 has no transfer coding.
    #[error("an HTTP/1.0 answer with a transfer coding")]
    Coding,
    #[error("broken transfer coding: {0}")]
    Chunk(&'static str),
}

#[derive(PartialEq, Debug)]
pub enum ResponsePart<'a> {
    /// The head of the answer; heads of 1xx answers before it are skipped.
    Head(Head),
    /// Bytes of the body, at least one.
    Data(&'a [u8]),
    /// The answer ended as its framing requires.
    End,
}

#[derive(Copy, Clone, PartialEq, Eq, Debug)]
enum State {
    Head,
    Sized(u64),
    Chunked(Chunk),
    /// Body until the connection ends.
    Rest,
    /// The end was returned to the caller.
    Over,
}

/// The position in the chunked coding (RFC 9112, 7.1).
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
enum Chunk {
    /// First digit of a size.
    Start,
    Size(u64),
    /// Blanks after the size.
    Blank(u64),
    Extension(u64),
    SizeLf(u64),
    Data(u64),
    DataCr,
    DataLf,
    /// First byte of a trailer, or the end.
    Last,
    Trailer,
    TrailerLf,
    EndLf,
}

/// Parses consecutive answers from the bytes of one connection.
#[derive(Debug)]
pub struct Reader {
    state: State,
    /// Received bytes of an incomplete message head.
    held: Vec<u8>,
    /// Whether the head allows another request on this connection.
    keep: bool,
    /// Bytes of chunk extensions and of trailers so far.
    extensions: u32,
    trailers: u32,
}

impl Default for Reader {
    fn default() -> Reader {
        Reader { state: State::Head, held: Vec::new(), keep: true, extensions: 0, trailers: 0 }
    }
}

impl Reader {
    /// Returns the next piece and removes its bytes from the front of `input`. `None` if all of `input` is used and more is needed.
    /// `now_unix_s` is called only if the head contains a `Retry-After`.
    ///
    /// # Errors
    /// Fails if the bytes are not an HTTP answer; no further bytes can be parsed.
    pub fn next<'a>(
        &mut self,
        input: &mut &'a [u8],
        now_unix_s: impl Fn() -> i64,
    ) -> Result<Option<ResponsePart<'a>>, HttpFault> {
        loop {
            let part = match self.state {
                State::Head => match self.head(input, &now_unix_s)? {
                    // An interim answer: another head follows.
                    None if !input.is_empty() => continue,
                    head => return Ok(head.map(ResponsePart::Head)),
                },
                State::Sized(0) => Some(self.end()),
                State::Sized(left) => {
                    let data = take(input, left);
                    self.state = State::Sized(left - data.len() as u64);
                    some(data)
                }
                State::Rest => some(std::mem::take(input)),
                State::Chunked(chunk) => self.chunked(chunk, input)?,
                State::Over => None,
            };
            return Ok(part);
        }
    }

    /// Records the end of the connection. Returns whether it also completes the answer, as its framing allows.
    ///
    /// # Errors
    /// Fails if the truncated head is not valid.
    pub fn ended(&mut self) -> Result<bool, HttpFault> {
        if self.state == State::Head && !self.held.is_empty() {
            // The last line of the head may be unchecked so far.
            parse(&self.held, |_, _| Ok(()))?;
        }
        self.keep = false;
        Ok(matches!(self.state, State::Rest | State::Over))
    }

    /// Returns whether the end of the answer was returned and the connection can carry another request.
    pub fn is_reusable(&self) -> bool {
        self.state == State::Over && self.keep
    }

    /// Returns the number of buffered bytes of an incomplete head: at most [`HEAD_MAX`].
    pub fn held(&self) -> usize {
        self.held.len()
    }

    /// Prepares for the next answer on this connection.
    pub fn begin(&mut self) {
        let held = std::mem::take(&mut self.held);
        *self = Reader { held, ..Reader::default() };
        self.held.clear();
    }

    fn end(&mut self) -> ResponsePart<'static> {
        self.state = State::Over;
        ResponsePart::End
    }

    /// Parses a head off `input`, or buffers the part that is available.
    fn head(&mut self, input: &mut &[u8], now_unix_s: &impl Fn() -> i64) -> Result<Option<Head>, HttpFault> {
        if input.is_empty() {
            return Ok(None);
        }
        let before = self.held.len();
        let held = std::mem::take(&mut self.held);
        let (length, found) = if held.is_empty() {
            (parse(input, |head, lines| self.read(head, lines, now_unix_s))?, held)
        } else {
            let mut whole = held;
            let room = HEAD_MAX.saturating_sub(before);
            whole.extend_from_slice(&input[..input.len().min(room)]);
            // A head ends with a line, and its first line is checked from the first byte.
            let worth = whole.len() >= HEAD_MAX || input.contains(&b'\n') || !whole.contains(&b'\n');
            let length = match worth {
                true => parse(&whole, |head, lines| self.read(head, lines, now_unix_s))?,
                false => None,
            };
            (length, whole)
        };
        let Some((length, head)) = length else {
            self.held = found;
            if before == 0 {
                self.held.extend_from_slice(input);
            }
            *input = &[];
            return Ok(None);
        };
        *input = &input[length - before..];
        Ok(head)
    }

    /// Parses the framing of the body from a head; `None` for an interim answer.
    fn read(
        &mut self,
        head: &httparse::Response<'_, '_>,
        lines: &[Header<'_>],
        now_unix_s: &impl Fn() -> i64,
    ) -> Result<Option<Head>, HttpFault> {
        let status = head.code.unwrap_or_default();
        let is_old = head.version == Some(0);
        if matches!(status, 100 | 102..=199) {
            return Ok(None);
        }
        let mut framing = Framing { keep: !is_old, ..Framing::default() };
        for line in lines {
            framing.line(line);
        }
        let (state, keep) = match status {
            // The connection continues with another protocol, which was not requested.
            101 => (State::Sized(0), false),
            204 | 304 => (State::Sized(0), framing.keep),
            _ if framing.coded && is_old => return Err(HttpFault::Coding),
            _ if framing.chunked => (State::Chunked(Chunk::Start), framing.keep),
            _ if framing.coded => (State::Rest, false),
            _ => match framing.length {
                Some(Some(length)) => (State::Sized(length), framing.keep),
                Some(None) => return Err(HttpFault::Length),
                None => (State::Rest, false),
            },
        };
        (self.state, self.keep) = (state, keep);
        let now = if framing.waits { now_unix_s() } else { 0 };
        Ok(Some(Head::read(status, lines.iter().map(|line| (line.name, line.value)), now)))
    }

    fn chunked<'a>(
        &mut self,
        chunk: Chunk,
        input: &mut &'a [u8],
    ) -> Result<Option<ResponsePart<'a>>, HttpFault> {
        let mut chunk = chunk;
        loop {
            if let Chunk::Data(left) = chunk {
                let data = take(input, left);
                let left = left - data.len() as u64;
                self.state = State::Chunked(if left == 0 { Chunk::DataCr } else { Chunk::Data(left) });
                return Ok(some(data));
            }
            let Some((&byte, rest)) = input.split_first() else {
                self.state = State::Chunked(chunk);
                return Ok(None);
            };
            *input = rest;
            chunk = match self.step(chunk, byte)? {
                Some(next) => next,
                None => return Ok(Some(self.end())),
            };
        }
    }

    /// Processes one byte outside of the data; `None` if it was the last of the answer.
    fn step(&mut self, chunk: Chunk, byte: u8) -> Result<Option<Chunk>, HttpFault> {
        let bad = |why| Err(HttpFault::Chunk(why));
        Ok(Some(match (chunk, byte) {
            (Chunk::Start, _) => match digit(byte) {
                Some(digit) => Chunk::Size(digit),
                None => return bad("a chunk without its size"),
            },
            (Chunk::Size(n), b'0'..=b'9' | b'a'..=b'f' | b'A'..=b'F') => {
                match n.checked_mul(16).zip(digit(byte)).and_then(|(n, digit)| n.checked_add(digit)) {
                    Some(n) => Chunk::Size(n),
                    None => return bad("a chunk of too many digits"),
                }
            }
            (Chunk::Size(n) | Chunk::Blank(n), b' ' | b'\t') => Chunk::Blank(n),
            (Chunk::Size(n) | Chunk::Blank(n), b';') => Chunk::Extension(n),
            (Chunk::Size(n) | Chunk::Blank(n) | Chunk::Extension(n), b'\r') => Chunk::SizeLf(n),
            (Chunk::Size(_) | Chunk::Blank(_), _) => return bad("a chunk's size is no number"),
            (Chunk::Extension(_), b'\n') => return bad("a line feed inside a chunk's extension"),
            (Chunk::Extension(n), _) => {
                self.extensions += 1;
                if self.extensions >= EXTENSIONS_MAX {
                    return bad("chunk extensions without end");
                }
                Chunk::Extension(n)
            }
            (Chunk::SizeLf(0), b'\n') => Chunk::Last,
            (Chunk::SizeLf(n), b'\n') => Chunk::Data(n),
            (Chunk::DataCr, b'\r') => Chunk::DataLf,
            (Chunk::DataLf, b'\n') => Chunk::Start,
            (Chunk::DataCr | Chunk::DataLf, _) => return bad("a chunk longer than its size"),
            (Chunk::Last, b'\r') => Chunk::EndLf,
            (Chunk::Trailer, b'\r') => Chunk::TrailerLf,
            (Chunk::Last | Chunk::Trailer, _) => {
                self.trailers += 1;
                if self.trailers as usize >= HEAD_MAX {
                    return bad("trailers without end");
                }
                Chunk::Trailer
            }
            (Chunk::TrailerLf, b'\n') => Chunk::Last,
            (Chunk::EndLf, b'\n') => return Ok(None),
            _ => return bad("a line that does not end"),
        }))
    }
}

/// Parses a head at the front of `bytes` and passes it to `read`; `None` if more bytes are needed.
fn parse<T>(
    bytes: &[u8],
    read: impl FnOnce(&httparse::Response<'_, '_>, &[Header<'_>]) -> Result<T, HttpFault>,
) -> Result<Option<(usize, T)>, HttpFault> {
    let view = &bytes[..bytes.len().min(HEAD_MAX)];
    let mut lines = [const { MaybeUninit::uninit() }; LINES_MAX];
    let mut head = httparse::Response::new(&mut []);
    match ParserConfig::default().parse_response_with_uninit_headers(&mut head, view, &mut lines) {
        Err(_) if view.first() == Some(&TLS_ALERT) => Err(HttpFault::Tls),
        Err(fault) => Err(fault.into()),
        Ok(Status::Complete(length)) => {
            let lines = std::mem::take(&mut head.headers);
            Ok(Some((length, read(&head, lines)?)))
        }
        Ok(Status::Partial) if bytes.len() >= HEAD_MAX => Err(HttpFault::Endless),
        Ok(Status::Partial) => Ok(None),
    }
}

/// The framing of the body, from the lines of a head.
#[derive(Default)]
struct Framing {
    /// Outer `None`: no `Content-Length`; inner `None`: it is invalid, or several differ.
    length: Option<Option<u64>>,
    /// Whether a transfer coding is set.
    coded: bool,
    /// Whether the last of the codings is chunked.
    chunked: bool,
    keep: bool,
    closes: bool,
    waits: bool,
}

impl Framing {
    fn line(&mut self, line: &Header<'_>) {
        let is = |name: &str| line.name.eq_ignore_ascii_case(name);
        match line.name.len() {
            14 if is("content-length") => {
                let length = content_length(line.value);
                self.length = Some(length.filter(|_| self.length.is_none_or(|earlier| earlier == length)));
            }
            17 if is("transfer-encoding") => {
                self.coded = true;
                let last = line.value.rsplit(|byte| *byte == b',').next().unwrap_or_default();
                self.chunked = last.trim_ascii().eq_ignore_ascii_case(b"chunked");
            }
            10 if is("connection") => {
                let names = |word: &[u8]| {
                    line.value.split(|byte| *byte == b',').any(|w| w.trim_ascii().eq_ignore_ascii_case(word))
                };
                // After a line requests to close, a later line does not revoke it.
                self.closes |= names(b"close");
                self.keep = !self.closes && (self.keep || names(b"keep-alive"));
            }
            11 if is("retry-after") => self.waits = true,
            _ => {}
        }
    }
}

/// Parses a length, or several equal ones (RFC 9110, 8.6).
fn content_length(value: &[u8]) -> Option<u64> {
    let mut length = None;
    for one in value.split(|byte| *byte == b',') {
        let one = one.trim_ascii();
        // Eighteen digits fit; a longer length is invalid in practice.
        if one.is_empty() || one.len() > 18 || !one.iter().all(u8::is_ascii_digit) {
            return None;
        }
        let n = one.iter().fold(0, |n, byte| n * 10 + u64::from(byte - b'0'));
        if length.is_some_and(|earlier| earlier != n) {
            return None;
        }
        length = Some(n);
    }
    length
}

fn digit(byte: u8) -> Option<u64> {
    char::from(byte).to_digit(16).map(u64::from)
}

fn take<'a>(input: &mut &'a [u8], most: u64) -> &'a [u8] {
    let n = usize::try_from(most).unwrap_or(usize::MAX).min(input.len());
    let (data, rest) = input.split_at(n);
    *input = rest;
    data
}

fn some(data: &[u8]) -> Option<ResponsePart<'_>> {
    if data.is_empty() { None } else { Some(ResponsePart::Data(data)) }
}
