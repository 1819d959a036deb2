//! The server's half of the text protocols, for the embedded engine: parses requests and encodes answers.
//!
//! **Tokens.** One whitespace-separated word is one token. This applies to the prompts that the engine receives, to its
//! generated text and to its reported usage. The synthetic prompts of the load generator follow this convention.
//! So the requested and the reported lengths agree exactly, and a disagreement is always a defect.
//!
//! Reading order:
//!
//! - `request`: parsing, bounded
//! - `reply`: the content of an answer
//! - `dispatch`: the choice of the protocol
//! - `stream`: chunks; `responses` and `messages`: events; `ollama`: lines
//! - `scores`; `transcriptions`: forms, parsed by `form`; `speech`, `images`
//! - `answer`: whole bodies, errors, lists
//! - `timing`: the engine's stage times

mod answer;
mod dispatch;
mod form;
mod images;
mod messages;
mod ollama;
mod reply;
mod request;
mod responses;
mod scores;
mod speech;
mod stream;
mod timing;
mod transcriptions;

pub use answer::{EmbeddingsFormat, embeddings, model, models};
pub use dispatch::{answer, answer_id, content_type, error, stream_writer};
pub use ollama::tags;
pub use reply::{Reply, StreamEnd, StreamWriter};
pub use request::{
    ApiEndpoint, BLOCK_WORDS, BadRequest, GenerateRequest, GeneratedMedia, TranscriptFormat, parse,
};
pub use speech::AudioFormat;
pub use stream::{ChunkWriter, word, words};
pub use timing::{ReportedTimings, Timing};
pub use transcriptions::parse_form;
