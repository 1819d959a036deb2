//! The server's half of the protocols that carry text, for the embedded engine: requests in, answers out.
//!
//! **What is a token here.** One whitespace-separated word is one token, for the prompts that the engine is sent, for the
//! text it makes and for the usage it reports; the synthetic prompts of the load generator follow the same convention, so
//! that what was asked and what is reported agree exactly and a disagreement is always a defect.
//!
//! Reading order: `request` (parsing, bounded), `reply` (what is said), `speech` (in which protocol's words), `stream` (chunks), `responses` and `messages` (events), `ollama` (lines), `scores`, `transcriptions` (forms, taken apart by `form`), `answer`
//! (whole bodies, errors, lists), `timing` (what the engine tells of its stages).

mod answer;
mod form;
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
pub use ollama::tags;
pub use reply::{Reply, StreamEnd, StreamWriter};
pub use request::{BLOCK_WORDS, BadRequest, Endpoint, GenerateRequest, TranscriptFormat, parse};
pub use speech::{answer, answer_id, content_type, error, stream_writer};
pub use stream::{ChunkWriter, word, words};
pub use timing::{ReportedTimings, Timing};
pub use transcriptions::parse_form;
