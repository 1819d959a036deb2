//! Chooses the encoder of an answer by its protocol; no other module depends on all protocols.

use bytes::Bytes;
use plimsoll_model::Protocol;

use super::messages::MessageWriter;
use super::ollama::LineWriter;
use super::reply::{Reply, StreamWriter};
use super::request::{GenerateRequest, GeneratedMedia, TranscriptFormat};
use super::responses::EventWriter;
use super::speech::SpeechWriter;
use super::stream::ChunkWriter;
use super::transcriptions::TranscriptWriter;
use super::{answer as openai, images, messages, ollama, responses, scores, speech, transcriptions};

/// Returns the id of the engine's answer with this number, in the protocol's format.
pub fn answer_id(protocol: Protocol, number: u64) -> String {
    let kind = match protocol {
        Protocol::Chat => "chatcmpl-",
        Protocol::Responses => "resp_",
        Protocol::Messages => "msg_",
        _ => "cmpl-",
    };
    format!("{kind}{number:016x}")
}

/// Returns the media type of the answer.
pub fn content_type(asked: &GenerateRequest) -> &'static str {
    match (asked.generated, asked.stream) {
        (GeneratedMedia::Speech { format, events: false }, _) => format.content_type(),
        (GeneratedMedia::Speech { format, .. }, false) => format.content_type(),
        (_, false) if asked.format == TranscriptFormat::Text => "text/plain; charset=utf-8",
        (_, false) => "application/json",
        _ if asked.endpoint.sends_lines() => "application/x-ndjson",
        _ => "text/event-stream; charset=utf-8",
    }
}

/// Returns a writer for a stream with this id, `created` in seconds since 1970.
pub fn stream_writer(asked: &GenerateRequest, id: &str, created: i64, model: &str) -> Box<dyn StreamWriter> {
    if let GeneratedMedia::Speech { format, events } = asked.generated {
        return Box::new(SpeechWriter::new(format, events, asked.prompt_tokens));
    }
    match asked.endpoint {
        Protocol::OllamaChat | Protocol::OllamaGenerate => Box::new(LineWriter::new(asked, created, model)),
        Protocol::Messages => Box::new(MessageWriter::new(asked, id, model)),
        Protocol::Transcriptions => Box::new(TranscriptWriter::new(asked)),
        Protocol::Responses => Box::new(EventWriter::new(asked, id, created, model)),
        _ => Box::new(ChunkWriter::new(asked, id, created, model)),
    }
}

/// Returns the whole answer to a request other than embeddings.
pub fn answer(asked: &GenerateRequest, reply: &Reply<'_>) -> Bytes {
    match asked.generated {
        GeneratedMedia::None => {}
        GeneratedMedia::Speech { format, .. } => return speech::answer(format, reply),
        GeneratedMedia::Images { count, width, height } => {
            return images::answer((count, width, height), reply);
        }
    }
    match asked.endpoint {
        Protocol::OllamaChat | Protocol::OllamaGenerate => ollama::answer(asked, reply),
        Protocol::Messages => messages::answer(asked, reply),
        Protocol::Responses => responses::answer(asked, reply),
        Protocol::Transcriptions => transcriptions::answer(asked, reply),
        Protocol::Rerank | Protocol::Score | Protocol::Pooling | Protocol::Classify => {
            scores::answer(asked, reply)
        }
        _ => openai::answer(asked, reply),
    }
}

pub fn error(protocol: Option<Protocol>, status: u16, message: &str, param: Option<&str>) -> Bytes {
    match protocol {
        Some(Protocol::Messages) => messages::error(status, message),
        Some(Protocol::OllamaChat | Protocol::OllamaGenerate) => ollama::error(message),
        _ => openai::error(status, message, param),
    }
}
