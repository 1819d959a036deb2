//! What the engine says: the words of an answer and the shapes they come in.
//!
//! The shapes are the wire crate's; here they meet a request's number, its length and how the engine ended it.

use std::borrow::Cow;

use bytes::{Bytes, BytesMut};
use http::HeaderValue;
use plimsoll_model::{Carries, Protocol};
use plimsoll_sim::{ModeSpec, Rejected};
use plimsoll_wire::server::{
    self as wire, BadRequest, GenerateRequest, Reply, ReportedTimings, StreamEnd, StreamWriter,
};

use crate::clock;
use crate::shared::Server;

/// `Content-Type` of JSON answers.
pub const JSON: HeaderValue = HeaderValue::from_static("application/json");
/// `Content-Type` of the health page.
pub const PLAIN: HeaderValue = HeaderValue::from_static("text/plain; charset=utf-8");
/// `Server` of every answer.
pub(crate) const SERVER: HeaderValue = HeaderValue::from_static("plimsoll-engine");
/// Every answer that is not cut ends at the length that was asked for.
const LENGTH: &str = "length";
/// Numbers per embedding, unless said otherwise.
const DIMENSIONS: u32 = 384;
/// Neighbours in time start their texts this many words apart.
const WORD_STRIDE: u64 = 7;

/// The protocol that is spoken at this path, for requests that the engine works on.
pub fn endpoint(path: &str) -> Option<Protocol> {
    Protocol::at(path).filter(|protocol| protocol.route().as_deref() == Some(path))
}

/// Reads a request, and settles what it leaves open.
///
/// # Errors
/// What is wrong with it, as it is answered.
pub(crate) fn parse(
    endpoint: Protocol,
    (content_type, body): (&str, &[u8]),
    server: &Server,
) -> Result<GenerateRequest, BadRequest> {
    let limits = &server.limits;
    let mut asked = match endpoint.carries() {
        Carries::Sound => wire::parse_form(content_type, body, limits.body_bytes)?,
        _ => wire::parse(endpoint, body, limits.body_bytes)?,
    };
    if !asked.model.is_empty() && asked.model != server.model && !server.adapters.contains(&asked.model) {
        return Err(unknown_model(&asked.model));
    }
    if !endpoint.streams() {
        // Nothing is generated, and nothing to be streamed.
        asked.max_tokens = Some(0);
        asked.stream = false;
        return Ok(asked);
    }
    let tokens = *asked.max_tokens.get_or_insert(limits.default_max_tokens);
    if tokens > limits.max_tokens {
        let message = format!("max_tokens is {tokens}, the limit is {}", limits.max_tokens);
        return Err(BadRequest { status: 400, message, param: Some("max_tokens") });
    }
    Ok(asked)
}

/// A foreign text, cut to what an error may repeat.
fn short(text: &str) -> Cow<'_, str> {
    if text.chars().count() <= 100 { text.into() } else { text.chars().take(100).chain(['…']).collect() }
}

/// The answer to the engine's refusal.
pub fn rejected(why: &Rejected) -> BadRequest {
    let param = matches!(why, Rejected::TooLong { .. }).then_some("max_tokens");
    BadRequest { status: why.status().unwrap_or(503), message: why.to_string(), param }
}

pub fn refusal(status: u16, message: impl Into<String>) -> BadRequest {
    BadRequest { status, message: message.into(), param: None }
}

/// The body that says it, in the words of the protocol that was spoken.
pub fn error_body(protocol: Option<Protocol>, refusal: &BadRequest) -> Bytes {
    wire::error(protocol, refusal.status, &refusal.message, refusal.param)
}

/// `GET /v1/models`.
pub(crate) fn models(server: &Server) -> Bytes {
    wire::models(&server.model, &server.adapters, server.started_s, max_context(server))
}

/// `GET /v1/models/{id}`, whose id may be percent-encoded: names of models have slashes.
pub(crate) fn one_model(server: &Server, id: &str) -> Result<Bytes, BadRequest> {
    let id = decoded(id);
    let parent = match server.adapters.contains(&id) {
        true => Some(server.model.as_str()),
        false if id == server.model => None,
        false => return Err(unknown_model(&id)),
    };
    Ok(wire::model((&id, parent), server.started_s, max_context(server)))
}

fn max_context(server: &Server) -> Option<u32> {
    match &server.mode {
        ModeSpec::Batching(batching) => batching.max_context,
        _ => None,
    }
}

fn unknown_model(id: &str) -> BadRequest {
    let message = format!("The model `{}` does not exist.", short(id));
    BadRequest { status: 404, message, param: Some("model") }
}

/// A path's part without percent signs; what they stand for in vain stays as it is.
fn decoded(text: &str) -> String {
    let (mut bytes, mut rest) = (Vec::new(), text.as_bytes());
    while let Some((&byte, after)) = rest.split_first() {
        let hex = after.get(..2).and_then(|hex| std::str::from_utf8(hex).ok());
        match hex.filter(|_| byte == b'%').and_then(|hex| u8::from_str_radix(hex, 16).ok()) {
            Some(meant) => {
                bytes.push(meant);
                rest = &after[2..];
            }
            None => {
                bytes.push(byte);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// `GET /api/tags`, Ollama's list of models.
pub(crate) fn tags(server: &Server) -> Bytes {
    wire::tags(&server.model, &server.adapters, server.started_s)
}

/// `GET /version`, and Ollama's `GET /api/version`.
pub fn version() -> Bytes {
    Bytes::from_static(concat!("{\"version\":\"", env!("CARGO_PKG_VERSION"), "\"}").as_bytes())
}

/// Speaks one streamed answer.
pub struct Voice {
    writer: Box<dyn StreamWriter>,
    first_word: u64,
    next_word: u64,
}

impl Voice {
    /// For the engine's request of this number.
    pub fn new(asked: &GenerateRequest, number: u64, model: &str) -> Voice {
        let id = wire::answer_id(asked.endpoint, number);
        let first_word = first_word(asked, number);
        Voice {
            writer: wire::stream_writer(asked, &id, created_s(), model),
            first_word,
            next_word: first_word,
        }
    }

    /// What comes before the first token, if anything does.
    pub fn open(&mut self, out: &mut BytesMut) -> bool {
        self.writer.open(out)
    }

    pub fn tokens(&mut self, out: &mut BytesMut, n: u32) {
        let from = self.next_word;
        self.next_word = from.wrapping_add(u64::from(n));
        if n == 1 {
            return self.writer.token(out, wire::word(from), 1);
        }
        self.writer.token(out, &wire::words(from, n), n);
    }

    /// An error in the middle: an event that says it, and no end.
    pub fn break_off(&mut self, out: &mut BytesMut, status: u16, why: &str) {
        self.writer.error(out, why, status);
    }

    /// Why it ended, the usage if it was asked for, and the end.
    pub fn close(&mut self, out: &mut BytesMut, told: &ReportedTimings) {
        self.writer.close(out, &StreamEnd { reason: LENGTH, first_word: self.first_word, told: *told });
    }
}

/// The whole answer to a request that is not streamed.
pub fn whole(asked: &GenerateRequest, number: u64, model: &str, told: ReportedTimings) -> Bytes {
    if asked.endpoint == Protocol::Embeddings {
        return wire::embeddings(asked, model, DIMENSIONS);
    }
    let tokens = asked.max_tokens.unwrap_or(0);
    let reply = Reply {
        id: &wire::answer_id(asked.endpoint, number),
        created_s: created_s(),
        model,
        first_word: first_word(asked, number),
        tokens,
        reason: LENGTH,
        told,
    };
    wire::answer(asked, &reply)
}

/// Where its text begins: at temperature 0 the same for the same prompt, as with engines that serve models; else drawn, here by number.
fn first_word(asked: &GenerateRequest, number: u64) -> u64 {
    asked.greedy.map_or(number.wrapping_mul(WORD_STRIDE), |hash| (hash >> 32) ^ (hash & u64::from(u32::MAX)))
}

fn created_s() -> i64 {
    clock::realtime_ns() / 1_000_000_000
}
