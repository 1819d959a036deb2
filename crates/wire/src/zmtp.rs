//! ZMTP 3, the protocol of ZeroMQ's sockets, as far as a subscriber, one who asks for what he missed, and a publisher need it: no security (`NULL`), TCP.
//!
//! Source: ZMTP 3.0 (rfc.zeromq.org/spec/23). We say 3.0, which every libzmq since 4.0 speaks: 3.1 adds nothing that is needed here, and a peer that has more
//! comes down to it. A crate was the alternative: those that there are bring a runtime's worth of others, and hold whatever a frame claims to be.

use bytes::{Buf, Bytes, BytesMut};

/// Bytes of a greeting.
const GREETING: usize = 64;
/// A greeting's first byte, and its tenth.
const SIGNATURE: (u8, u8) = (0xff, 0x7f);
const MECHANISM: &[u8] = b"NULL";

const MORE: u8 = 1;
const LONG: u8 = 2;
const COMMAND: u8 = 4;

/// Parts of a message; engines send three or four.
const MOST_PARTS: usize = 16;
/// Bytes of a command; the longest is a handshake's.
const MOST_COMMAND: u64 = 4 << 10;

/// What a socket is for.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum SocketKind {
    /// It hears what is published.
    Subscriber,
    /// It asks and hears several answers.
    Dealer,
    /// It publishes.
    Publisher,
}

impl SocketKind {
    fn name(self) -> &'static str {
        match self {
            SocketKind::Subscriber => "SUB",
            SocketKind::Dealer => "DEALER",
            SocketKind::Publisher => "PUB",
        }
    }

    /// Whom it can be connected to.
    fn fits(self, other: &[u8]) -> bool {
        match self {
            SocketKind::Subscriber => matches!(other, b"PUB" | b"XPUB"),
            SocketKind::Dealer => matches!(other, b"ROUTER" | b"DEALER" | b"REP"),
            SocketKind::Publisher => matches!(other, b"SUB" | b"XSUB"),
        }
    }
}

/// What both sides send first.
pub fn greeting() -> [u8; GREETING] {
    let mut bytes = [0; GREETING];
    (bytes[0], bytes[9], bytes[10]) = (SIGNATURE.0, SIGNATURE.1, 3);
    bytes[12..12 + MECHANISM.len()].copy_from_slice(MECHANISM);
    bytes
}

/// What both sides send once the greetings are exchanged.
pub fn ready(own: SocketKind) -> Vec<u8> {
    let mut body = property(b"READY", b"Socket-Type", own.name().as_bytes());
    if own == SocketKind::Dealer {
        // A name of its own, which it leaves to the other side.
        body.extend_from_slice(&property(b"", b"Identity", b"")[1..]);
    }
    let mut bytes = Vec::new();
    push_frame(&mut bytes, COMMAND, &body);
    bytes
}

fn property(command: &[u8], name: &[u8], value: &[u8]) -> Vec<u8> {
    let mut body = vec![command.len() as u8];
    body.extend_from_slice(command);
    body.push(name.len() as u8);
    body.extend_from_slice(name);
    body.extend_from_slice(&(value.len() as u32).to_be_bytes());
    body.extend_from_slice(value);
    body
}

/// What a subscriber sends to hear messages whose first part begins so.
pub fn subscription(topic: &[u8]) -> Vec<u8> {
    message(&[&[&[1], topic].concat()])
}

/// A message of these parts.
pub fn message(parts: &[&[u8]]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (place, part) in parts.iter().enumerate() {
        push_frame(&mut bytes, if place + 1 < parts.len() { MORE } else { 0 }, part);
    }
    bytes
}

/// The answer to a [`ZmtpReceived::Ping`].
pub fn pong(context: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    push_frame(&mut bytes, COMMAND, &[b"\x04PONG", context].concat());
    bytes
}

fn push_frame(bytes: &mut Vec<u8>, flags: u8, body: &[u8]) {
    match u8::try_from(body.len()) {
        Ok(short) => bytes.extend_from_slice(&[flags, short]),
        Err(_) => {
            bytes.push(flags | LONG);
            bytes.extend_from_slice(&(body.len() as u64).to_be_bytes());
        }
    }
    bytes.extend_from_slice(body);
}

/// What came from the other side.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ZmtpReceived {
    /// Its greeting: now it is our turn to say [`ready`].
    Greeting,
    /// It is ready, and of a kind that fits.
    Ready,
    /// A message, in its parts.
    Message(Vec<Bytes>),
    /// It wants to know whether we are there.
    Ping(Bytes),
}

/// Why nothing more can be understood of the other side.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ZmtpError {
    /// It speaks something else.
    #[error("what answers there is no ZeroMQ socket")]
    Foreign,
    /// It is older than 3.0 (libzmq before 4.0).
    #[error("it speaks ZMTP {0}, and 3 is needed (libzmq 4.0 or newer)")]
    Version(u8),
    /// It asks for a secret.
    #[error("it wants the mechanism {0}, and only NULL is spoken")]
    Mechanism(String),
    /// It is another kind of socket.
    #[error("it is a {0} socket, which is none that a {1} can be connected to")]
    Kind(String, &'static str),
    /// It does not want us.
    #[error("it refused the connection: {0}")]
    Refused(String),
    /// More than is held.
    #[error("a message of more than {0} bytes or {MOST_PARTS} parts")]
    TooLarge(usize),
    /// A frame or a command that is none.
    #[error("a frame that is none of ZMTP's")]
    Broken,
}

/// What the other side sends, in whatever pieces it comes.
#[derive(Debug)]
pub struct ZmtpReader {
    own: SocketKind,
    most: usize,
    bytes: BytesMut,
    greeted: bool,
    parts: Vec<Bytes>,
}

impl ZmtpReader {
    /// Nothing yet. `most`: bytes that a message may have.
    pub fn new(own: SocketKind, most: usize) -> ZmtpReader {
        ZmtpReader { own, most, bytes: BytesMut::new(), greeted: false, parts: Vec::new() }
    }

    /// More bytes came. What is kept is bounded by the largest message and one piece, as long as all is taken between two pieces.
    pub fn push(&mut self, data: &[u8]) {
        self.bytes.extend_from_slice(data);
    }

    /// The next thing that is whole; `None` = more has to come.
    ///
    /// # Errors
    /// There will be nothing more: see [`ZmtpError`].
    pub fn take(&mut self) -> Result<Option<ZmtpReceived>, ZmtpError> {
        if !self.greeted {
            return self.greet();
        }
        while let Some((flags, body)) = self.frame()? {
            if flags & COMMAND != 0 {
                match self.command(body)? {
                    Some(received) => return Ok(Some(received)),
                    None => continue,
                }
            }
            self.parts.push(body);
            if flags & MORE == 0 {
                return Ok(Some(ZmtpReceived::Message(std::mem::take(&mut self.parts))));
            }
            if self.parts.len() >= MOST_PARTS {
                return Err(ZmtpError::TooLarge(self.most));
            }
        }
        Ok(None)
    }

    /// Whoever speaks something else is told from the first bytes on, and not waited for.
    fn greet(&mut self) -> Result<Option<ZmtpReceived>, ZmtpError> {
        let known = &self.bytes;
        let is = |place: usize, byte: u8| known.get(place).is_none_or(|own| *own == byte);
        if !is(0, SIGNATURE.0) || !is(9, SIGNATURE.1) {
            return Err(ZmtpError::Foreign);
        }
        if let Some(version) = known.get(10).filter(|version| **version < 3) {
            return Err(ZmtpError::Version(*version));
        }
        if known.len() < GREETING {
            return Ok(None);
        }
        let mechanism = known[12..32].split(|byte| *byte == 0).next().unwrap_or_default();
        if mechanism != MECHANISM {
            return Err(ZmtpError::Mechanism(printable(mechanism)));
        }
        self.bytes.advance(GREETING);
        self.greeted = true;
        Ok(Some(ZmtpReceived::Greeting))
    }

    /// The next frame's flags and body. Its length is looked at before its bytes are waited for.
    fn frame(&mut self) -> Result<Option<(u8, Bytes)>, ZmtpError> {
        let Some(&flags) = self.bytes.first() else { return Ok(None) };
        if flags & !(MORE | LONG | COMMAND) != 0 || flags & (COMMAND | MORE) == COMMAND | MORE {
            return Err(ZmtpError::Broken);
        }
        let (head, len) = match flags & LONG {
            0 => (2, self.bytes.get(1).map(|len| u64::from(*len))),
            _ => (9, self.bytes[1..].first_chunk().map(|len| u64::from_be_bytes(*len))),
        };
        let Some(len) = len else { return Ok(None) };
        let held: usize = self.parts.iter().map(Bytes::len).sum();
        let most = if flags & COMMAND == 0 { (self.most - held.min(self.most)) as u64 } else { MOST_COMMAND };
        if len > most {
            return Err(ZmtpError::TooLarge(self.most));
        }
        if self.bytes.len() < head + len as usize {
            return Ok(None);
        }
        self.bytes.advance(head);
        Ok(Some((flags, self.bytes.split_to(len as usize).freeze())))
    }

    fn command(&self, mut body: Bytes) -> Result<Option<ZmtpReceived>, ZmtpError> {
        let name = text(&mut body).ok_or(ZmtpError::Broken)?;
        Ok(match &name[..] {
            b"READY" => {
                let kind = socket_type(body).ok_or(ZmtpError::Broken)?;
                if !self.own.fits(&kind) {
                    return Err(ZmtpError::Kind(printable(&kind), self.own.name()));
                }
                Some(ZmtpReceived::Ready)
            }
            b"ERROR" => {
                return Err(ZmtpError::Refused(printable(&text(&mut body).unwrap_or_default())));
            }
            // Two bytes say how long it waits; the rest comes back as it is.
            b"PING" if body.len() >= 2 => Some(ZmtpReceived::Ping(body.slice(2..))),
            // Subscriptions of a 3.1 peer, and what is not known.
            _ => None,
        })
    }
}

/// What stands behind a byte that says its length.
fn text(body: &mut Bytes) -> Option<Bytes> {
    let len = usize::from(*body.first()?);
    (body.len() > len).then(|| {
        body.advance(1);
        body.split_to(len)
    })
}

/// The property `Socket-Type` among a handshake's.
fn socket_type(mut body: Bytes) -> Option<Bytes> {
    while !body.is_empty() {
        let name = text(&mut body)?;
        let len = u32::from_be_bytes(*body.first_chunk()?) as usize;
        if body.len() < 4 + len {
            return None;
        }
        body.advance(4);
        let value = body.split_to(len);
        if name.eq_ignore_ascii_case(b"Socket-Type") {
            return Some(value);
        }
    }
    None
}

fn printable(bytes: &[u8]) -> String {
    bytes.iter().take(64).map(|byte| if byte.is_ascii_graphic() { *byte as char } else { '?' }).collect()
}
