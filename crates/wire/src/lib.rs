//! Bytes ↔ meaning, per protocol: what is sent to an endpoint, what its answer says, and the other way round for the
//! embedded engine.
//!
//! Nothing here reads a clock, opens a socket or decides what a time means: bytes go in, [`Decoded`] events and one
//! [`AnswerVerdict`] come out, and whoever read the bytes stamps them. Foreign bytes never panic and never grow memory past a
//! stated bound.
//!
//! Reading order: [`mod@encode`], [`template`] and [`media`] (requests), [`http1`] (answers off a
//! connection), [`head`] (status and headers), [`sse`] (framing), [`decode`]
//! (answers; inside it [`unpack`], `stream`, `chunk`, `tally`, `tokens`, [`failed`], `form`, `whole` and `fault`; `messages`, `ollama`, `scores` and `transcriptions` hold all of a client's half of these), [`kserve`] (tensors, both sides), [`exposition`] (pages of metrics) and [`prometheus_api`] (what a Prometheus scraped of them), [`otlp_metrics`] (what OpenTelemetry's senders do), [`grpc`] (calls) and [`ext_proc`] (what Envoy asks in them), then [`server`] and [`prometheus`] for the server side, and
//! [`trace`] (spans of others), [`mod@foreign`] (result files of other load generators) and [`mod@log`] (logs of production).

mod chunk;
pub mod decode;
mod decoded;
pub mod encode;
pub mod exposition;
pub mod ext_proc;
pub mod failed;
mod fault;
pub mod foreign;
mod form;
pub mod grpc;
pub mod head;
pub mod http1;
mod instant;
pub mod kserve;
mod lines;
pub mod log;
pub mod media;
mod messages;
mod ollama;
pub mod otlp_json;
pub mod otlp_metrics;
mod parts;
pub mod prometheus;
pub mod prometheus_api;
mod protobuf;
mod scores;
pub mod server;
pub mod sse;
mod stream;
mod tally;
pub mod template;
mod tokens;
pub mod trace;
mod transcriptions;
pub mod unpack;
mod whole;

pub use decode::{AnswerVerdict, Decoder};
pub use decoded::Decoded;
pub use encode::{Encoded, QueueWish, RequestOptions, encode};
pub use head::Head;
pub use protobuf::ProtobufError;
pub use template::{Template, TemplateError};
