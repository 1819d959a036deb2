//! What the engine says: the words of an answer and the shapes they come in.
//!
//! The shapes are the wire crate's; here they meet a request's number, its length and how the engine ended it.

use std::borrow::Cow;

use bytes::{Bytes, BytesMut};
use http::HeaderValue;
use plimsoll_model::Protocol;
use plimsoll_sim::{ModeSpec, Rejected};
use plimsoll_wire::openai::server::{
    self as openai, BadRequest, ChunkWriter, EventWriter, GenerateRequest, Reply, ReportedTimings,
};

use crate::clock;
use crate::shared::Server;

/// `Content-Type` of JSON answers.
pub const JSON: HeaderValue = HeaderValue::from_static("application/json");
/// `Content-Type` of streams.
pub const EVENT_STREAM: HeaderValue = HeaderValue::from_static("text/event-stream; charset=utf-8");
/// `Content-Type` of the health page.
pub const PLAIN: HeaderValue = HeaderValue::from_static("text/plain; charset=utf-8");
/// `Server` of every answer.
pub const SERVER: HeaderValue = HeaderValue::from_static("plimsoll-engine");
/// Every answer that is not cut ends at the length that was asked for.
const LENGTH: &str = "length";
/// Numbers per embedding, unless said otherwise.
const DIMENSIONS: u32 = 384;
/// Neighbours in time start their texts this many words apart.
const WORD_STRIDE: u64 = 7;

/// The protocol that is spoken at this path, for requests that the engine works on.
pub fn endpoint(path: &str) -> Option<Protocol> {
    match path {
        "/v1/chat/completions" => Some(Protocol::Chat),
        "/v1/completions" => Some(Protocol::Completions),
        "/v1/responses" => Some(Protocol::Responses),
        "/v1/embeddings" => Some(Protocol::Embeddings),
        _ => None,
    }
}

/// Reads a request, and settles what it leaves open.
///
/// # Errors
/// What is wrong with it, as it is answered.
pub(crate) fn parse(endpoint: Protocol, body: &[u8], server: &Server) -> Result<GenerateRequest, BadRequest> {
    let limits = &server.limits;
    let mut asked = openai::parse(endpoint, body, limits.body_bytes)?;
    if !asked.model.is_empty() && asked.model != server.model && !server.adapters.contains(&asked.model) {
        let message = format!("The model `{}` does not exist.", short(&asked.model));
        return Err(BadRequest { status: 404, message, param: Some("model") });
    }
    if endpoint == Protocol::Embeddings {
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

/// A refusal of the front.
pub fn refusal(status: u16, message: impl Into<String>) -> BadRequest {
    BadRequest { status, message: message.into(), param: None }
}

/// The body that says it.
pub fn error_body(refusal: &BadRequest) -> Bytes {
    openai::error(refusal.status, &refusal.message, refusal.param)
}

/// `GET /v1/models`.
pub(crate) fn models(server: &Server) -> Bytes {
    let context = match &server.mode {
        ModeSpec::Batching(batching) => batching.max_context,
        _ => None,
    };
    openai::models(&server.model, &server.adapters, server.started_s, context)
}

/// `GET /version`.
pub fn version() -> Bytes {
    Bytes::from_static(concat!("{\"version\":\"", env!("CARGO_PKG_VERSION"), "\"}").as_bytes())
}

/// Speaks one streamed answer.
pub struct Voice {
    writer: Writer,
    first_word: u64,
    next_word: u64,
}

/// The shape that its protocol gives it.
enum Writer {
    Chat(ChunkWriter),
    Completions(ChunkWriter),
    Responses(Box<EventWriter>),
}

impl Voice {
    /// For the engine's request of this number.
    pub fn new(asked: &GenerateRequest, number: u64, model: &str) -> Voice {
        let (id, created) = (answer_id(asked, number), created_s());
        let writer = match asked.endpoint {
            Protocol::Responses => Writer::Responses(Box::new(EventWriter::new(asked, &id, created, model))),
            Protocol::Chat => Writer::Chat(ChunkWriter::new(asked, &id, created, model)),
            _ => Writer::Completions(ChunkWriter::new(asked, &id, created, model)),
        };
        let first_word = first_word(asked, number);
        Voice { writer, first_word, next_word: first_word }
    }

    /// What comes before the first token, if anything does.
    pub fn open(&mut self, out: &mut BytesMut) -> bool {
        match &mut self.writer {
            Writer::Chat(chunks) => chunks.role(out),
            Writer::Completions(_) => return false,
            Writer::Responses(events) => events.open(out),
        }
        true
    }

    /// The tokens of one step.
    pub fn tokens(&mut self, out: &mut BytesMut, n: u32) {
        let from = self.next_word;
        self.next_word = from.wrapping_add(u64::from(n));
        if n == 1 {
            return self.writer.token(out, openai::word(from), 1);
        }
        self.writer.token(out, &words(from, u64::from(n)), n);
    }

    /// An error in the middle: an event that says it, and no end.
    pub fn break_off(&mut self, out: &mut BytesMut, status: u16, why: &str) {
        if let Writer::Responses(events) = &mut self.writer {
            return events.error(out, why, status);
        }
        out.extend_from_slice(b"data: ");
        out.extend_from_slice(&openai::error(status, why, None));
        out.extend_from_slice(b"\n\n");
    }

    /// Why it ended, the usage if it was asked for, and the end.
    pub fn close(&mut self, out: &mut BytesMut, told: &ReportedTimings) {
        match &mut self.writer {
            Writer::Chat(chunks) | Writer::Completions(chunks) => {
                chunks.finish(out, LENGTH);
                chunks.end(out, told);
            }
            Writer::Responses(events) => {
                let said = words(self.first_word, self.next_word.wrapping_sub(self.first_word));
                events.close(out, &said, LENGTH, told.cached);
            }
        }
    }
}

impl Writer {
    fn token(&mut self, out: &mut BytesMut, text: &str, tokens: u32) {
        match self {
            Writer::Chat(chunks) | Writer::Completions(chunks) => chunks.token(out, text, tokens),
            Writer::Responses(events) => events.token(out, text, tokens),
        }
    }
}

fn words(from: u64, n: u64) -> String {
    (0..n).map(|i| openai::word(from.wrapping_add(i))).collect()
}

/// The whole answer to a request that is not streamed.
pub fn whole(asked: &GenerateRequest, number: u64, model: &str, told: ReportedTimings) -> Bytes {
    if asked.endpoint == Protocol::Embeddings {
        return openai::embeddings(asked, model, DIMENSIONS);
    }
    let tokens = asked.max_tokens.unwrap_or(0);
    let reply = Reply {
        id: &answer_id(asked, number),
        created_s: created_s(),
        model,
        first_word: first_word(asked, number),
        tokens,
        reason: LENGTH,
        told,
    };
    openai::answer(asked, &reply)
}

fn answer_id(asked: &GenerateRequest, number: u64) -> String {
    let kind = match asked.endpoint {
        Protocol::Chat => "chatcmpl-",
        Protocol::Responses => "resp_",
        _ => "cmpl-",
    };
    format!("{kind}{number:016x}")
}

/// Where its text begins: at temperature 0 the same for the same prompt, as with engines that serve models; else drawn, here by number.
fn first_word(asked: &GenerateRequest, number: u64) -> u64 {
    asked.greedy.map_or(number.wrapping_mul(WORD_STRIDE), |hash| (hash >> 32) ^ (hash & u64::from(u32::MAX)))
}

fn created_s() -> i64 {
    clock::realtime_ns() / 1_000_000_000
}
