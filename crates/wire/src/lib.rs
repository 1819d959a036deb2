//! Encodes requests and decodes answers per protocol, and the reverse for the embedded engine.
//!
//! This crate reads no clock, opens no socket and decides no meaning of time. Bytes go in; [`DecodedEvent`] events and one
//! [`DecodedAnswer`] come out, and the caller that read the bytes adds timestamps. Foreign bytes never cause a panic and never grow
//! memory past a stated bound.
//!
//! Reading order:
//!
//! - [`mod@encode`], [`template`] and [`media`]: requests
//! - [`http1`], answers off a connection; [`head`]: status and headers; [`sse`]: framing
//! - [`decode`], answers; its parts are [`unpack`], `stream`, `chunk`, `tally`, `tokens`, [`failed`], `form`, `whole` and `fault`
//! - `messages`, `ollama`, `scores`, `transcriptions`, `audio` and `images`: the client's half of these protocols
//! - [`kserve`], tensors, both sides
//! - [`exposition`], metrics endpoints; [`prometheus_api`]: samples of a Prometheus server; [`otlp_metrics`]: metrics of OpenTelemetry senders
//! - [`grpc`], calls; [`ext_proc`]: Envoy's calls to an endpoint picker
//! - [`server`] and [`prometheus`]: the server side
//! - [`trace`], spans of other tools; [`instant`]: times of other tools as ns

mod audio;
mod chunk;
pub mod decode;
mod decoded;
pub mod encode;
pub mod exposition;
pub mod ext_proc;
pub mod failed;
mod fault;
mod form;
pub mod grpc;
pub mod head;
pub mod http1;
mod images;
pub mod instant;
pub mod kserve;
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

pub use decode::{DecodedAnswer, Decoder};
pub use decoded::DecodedEvent;
pub use encode::{EncodedRequest, QueueOptions, RequestOptions, encode};
pub use head::Head;
pub use protobuf::ProtobufError;
pub use template::{Template, TemplateError};
