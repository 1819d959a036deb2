//! Produces the content of responses: the text of an answer, in the formats of the wire crate.
//!
//! The formats need the number of a request, its length, and its ending in the engine, which this module supplies.

use std::borrow::Cow;

use bytes::{Bytes, BytesMut};
use http::HeaderValue;
use plimsoll_client::clock;
use plimsoll_model::{Carries, Protocol};
use plimsoll_sim::{EngineRejection, ModeSpec};
use plimsoll_wire::server::{
    self as wire, BadRequest, GenerateRequest, GeneratedMedia, Reply, ReportedTimings, StreamEnd,
    StreamWriter,
};

use crate::shared::Server;

pub const JSON: HeaderValue = HeaderValue::from_static("application/json");
/// `Content-Type` of the health endpoint.
pub const PLAIN: HeaderValue = HeaderValue::from_static("text/plain; charset=utf-8");
pub(crate) const SERVER: HeaderValue = HeaderValue::from_static("plimsoll-engine");
/// Finish reason of every answer, because each answer ends at the requested length unless it is cut.
const LENGTH: &str = "length";
/// Number of dimensions of an embedding if the request names none.
const DIMENSIONS: u32 = 384;
/// Number of words between the starts of the texts of consecutive requests.
const WORD_STRIDE: u64 = 7;

/// Returns the protocol of a path, if the engine processes its requests.
pub fn endpoint(path: &str) -> Option<Protocol> {
    Protocol::at(path).filter(|protocol| protocol.route().as_deref() == Some(path))
}

/// Parses a request and fills in defaults.
///
/// # Errors
/// Fails with the error response.
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
        asked.stream = false;
    }
    if !endpoint.streams() && asked.generated == GeneratedMedia::None {
        // Requests of these protocols generate no tokens.
        asked.max_tokens = Some(0);
        return Ok(asked);
    }
    let tokens = *asked.max_tokens.get_or_insert(limits.default_max_tokens);
    if tokens > limits.max_tokens {
        let message = format!("max_tokens is {tokens}, the limit is {}", limits.max_tokens);
        return Err(BadRequest { status: 400, message, param: Some("max_tokens") });
    }
    Ok(asked)
}

/// Returns a text from the client, shortened for an error message.
fn short(text: &str) -> Cow<'_, str> {
    if text.chars().count() <= 100 { text.into() } else { text.chars().take(100).chain(['…']).collect() }
}

/// Returns the response to a request that the engine rejected.
pub fn rejected(why: &EngineRejection) -> BadRequest {
    let param = matches!(why, EngineRejection::TooLong { .. }).then_some("max_tokens");
    BadRequest { status: why.status().unwrap_or(503), message: why.to_string(), param }
}

pub fn refusal(status: u16, message: impl Into<String>) -> BadRequest {
    BadRequest { status, message: message.into(), param: None }
}

/// Returns the error body in the format of the protocol.
pub fn error_body(protocol: Option<Protocol>, refusal: &BadRequest) -> Bytes {
    wire::error(protocol, refusal.status, &refusal.message, refusal.param)
}

/// Returns the body of `GET /v1/models`.
pub(crate) fn models(server: &Server) -> Bytes {
    wire::models(&server.model, &server.adapters, server.started_s, max_context(server))
}

/// Returns the body of `GET /v1/models/{id}`. The id may be percent-encoded, because model names contain slashes.
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

/// Decodes percent-encoding in a part of a path; invalid sequences stay unchanged.
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

/// Returns the body of `GET /api/tags`, Ollama's list of models.
pub(crate) fn tags(server: &Server) -> Bytes {
    wire::tags(&server.model, &server.adapters, server.started_s)
}

/// Returns the body of `GET /version` and of Ollama's `GET /api/version`.
pub fn version() -> Bytes {
    Bytes::from_static(concat!("{\"version\":\"", env!("CARGO_PKG_VERSION"), "\"}").as_bytes())
}

pub struct AnswerWriter {
    writer: Box<dyn StreamWriter>,
    first_word: u64,
    next_word: u64,
}

impl AnswerWriter {
    /// Returns the writer for the request with this number.
    pub fn new(asked: &GenerateRequest, number: u64, model: &str) -> AnswerWriter {
        let id = wire::answer_id(asked.endpoint, number);
        let first_word = first_word(asked, number);
        AnswerWriter {
            writer: wire::stream_writer(asked, &id, created_s(), model),
            first_word,
            next_word: first_word,
        }
    }

    /// Writes the events before the first token; false if there are none.
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

    /// Writes an error event in the middle of the stream, without a regular end.
    pub fn break_off(&mut self, out: &mut BytesMut, status: u16, why: &str) {
        self.writer.error(out, why, status);
    }

    /// Writes the finish reason, the usage if requested, and the end of the stream.
    pub fn close(&mut self, out: &mut BytesMut, told: &ReportedTimings) {
        self.writer.close(out, &StreamEnd { reason: LENGTH, first_word: self.first_word, told: *told });
    }
}

/// Returns the whole answer to a request without streaming.
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

/// Returns the first word of the answer. At temperature 0 it depends only on the prompt, as in real engines; otherwise on
/// `number`.
fn first_word(asked: &GenerateRequest, number: u64) -> u64 {
    asked.greedy.map_or(number.wrapping_mul(WORD_STRIDE), |hash| (hash >> 32) ^ (hash & u64::from(u32::MAX)))
}

fn created_s() -> i64 {
    clock::realtime_ns() / 1_000_000_000
}
