//! The server's half of the OpenAI protocols, for the embedded engine: requests in, answers out.
//!
//! **What is a token here.** One whitespace-separated word is one token, for the prompts that the engine is sent, for the
//! text it makes and for the usage it reports; the synthetic prompts of the load generator follow the same convention, so
//! that what was asked and what is reported agree exactly and a disagreement is always a defect.
//!
//! Reading order: `request` (parsing, bounded), `stream` (chunks), `responses` (events), `answer` (whole bodies, errors, lists), `timing` (what
//! the engine tells of its stages).

mod answer;
mod request;
mod responses;
mod stream;
mod timing;

/// Everything a front needs.
pub mod server {
    pub use super::answer::{EmbeddingsFormat, Reply, answer, embeddings, error, models};
    pub use super::request::{BLOCK_WORDS, BadRequest, Endpoint, GenerateRequest, parse};
    pub use super::responses::EventWriter;
    pub use super::stream::{ChunkWriter, word};
    pub use super::timing::{ReportedTimings, Timing};
}
