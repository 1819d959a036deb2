//! A small language for decoding tests: an answer is a head and a body, its events a word of one letter each.

use std::path::Path;

use plimsoll_model::{EventKind, Protocol};
use plimsoll_wire::{DecodedAnswer, DecodedEvent, Decoder, Head};

/// An answer as bytes.
#[derive(Clone)]
pub struct Recorded {
    pub head: Head,
    pub body: Vec<u8>,
}

/// Everything that decoding one answer gave.
#[derive(Clone, PartialEq, Debug)]
pub struct Read {
    /// The events, the tail last.
    pub events: Vec<DecodedEvent>,
    pub verdict: DecodedAnswer,
}

impl Read {
    /// One letter per event: c content, r reasoning, t tool call, R role, e empty, f finish, u usage, E error, d done,
    /// B body.
    pub fn word(&self) -> String {
        self.events.iter().map(|event| letter(event.kind)).collect()
    }

    /// Tokens of the token events.
    pub fn tokens(&self) -> Vec<u16> {
        self.events.iter().filter(|event| event.kind.is_token()).map(|event| event.tokens).collect()
    }
}

fn letter(kind: EventKind) -> char {
    match kind {
        EventKind::Content => 'c',
        EventKind::Reasoning => 'r',
        EventKind::ToolCall => 't',
        EventKind::Role => 'R',
        EventKind::Empty => 'e',
        EventKind::Finish => 'f',
        EventKind::Usage => 'u',
        EventKind::Error => 'E',
        EventKind::Done => 'd',
        EventKind::Body => 'B',
    }
}

/// A recorded answer from `fixtures/`.
pub fn capture(name: &str) -> Recorded {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures").join(format!("{name}.http"));
    let bytes = std::fs::read(&path).unwrap_or_else(|why| panic!("{}: {why}", path.display()));
    let cut = bytes.windows(4).position(|w| w == b"\r\n\r\n").expect("a head");
    let head = std::str::from_utf8(&bytes[..cut]).expect("a head in UTF-8");
    let mut lines = head.split("\r\n");
    let status =
        lines.next().and_then(|line| line.split(' ').nth(1)).expect("a status").parse().expect("a number");
    let headers = lines.filter_map(|line| line.split_once(':')).map(|(name, value)| (name, value.as_bytes()));
    Recorded { head: Head::read(status, headers, 0), body: bytes[cut + 4..].to_vec() }
}

/// A made answer of status 200.
pub fn made(content_type: &str, body: impl Into<Vec<u8>>) -> Recorded {
    let head = Head { status: 200, content_type: Some(content_type.into()), ..Head::default() };
    Recorded { head, body: body.into() }
}

pub fn sse(body: impl Into<Vec<u8>>) -> Recorded {
    made("text/event-stream", body)
}

/// Returns a stream of events with these data lines.
pub fn events(data: &[&str]) -> Recorded {
    sse(data.iter().map(|data| format!("data: {data}\n\n")).collect::<String>())
}

/// Decodes an answer that arrives in these pieces.
pub fn read_pieces<'a>(
    protocol: Protocol,
    head: &Head,
    pieces: impl IntoIterator<Item = &'a [u8]>,
    clean_eof: bool,
    expect: (Option<u32>, bool),
) -> Read {
    let mut decoder = Decoder::with_head(protocol, true, head.clone(), true).expecting(expect.0, expect.1);
    let mut events = Vec::new();
    for piece in pieces {
        decoder.feed(piece, &mut events);
    }
    let verdict = decoder.finish(clean_eof);
    events.extend(verdict.tail);
    Read { events, verdict }
}

/// Decodes an answer that arrives whole and ends cleanly.
pub fn read(protocol: Protocol, answer: &Recorded) -> Read {
    read_pieces(protocol, &answer.head, [&answer.body[..]], true, (None, false))
}
