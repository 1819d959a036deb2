//! KServe v2, the Open Inference Protocol, over HTTP: tensors in JSON, client and server side, and Triton's binary extension.
//!
//! **Binary.** A body may be a JSON header followed by the tensors' raw bytes, row-major and little-endian. The HTTP header
//! `Inference-Header-Content-Length` is the length of the JSON header. A picture is then four times smaller, and
//! FP16 has no JSON form at all.
//!
//! **gRPC.** The messages in protobuf, always with raw bytes. Triton adds `ModelStreamInfer`, whose answer is a
//! stream of responses.
//!
//! Reading order:
//!
//! - [`metadata`], metadata of a server and of a model
//! - [`batching`], Triton's batcher: its configuration and its statistics
//! - `request`: tensors → body
//! - `answer`: body → verdict
//! - [`grpc`], messages
//! - `call`: answer of a call → verdict
//! - [`server`] and `check`: the embedded engine's side

pub(crate) mod answer;
pub mod batching;
pub(crate) mod call;
mod check;
pub mod grpc;
pub mod metadata;
mod request;
pub mod server;

pub(crate) use request::{binary, inputs, inputs_length};
pub use request::{path, rows};

/// Header with the length of the JSON part of a body, if raw tensors follow.
pub const HEADER_LENGTH: &str = "inference-header-content-length";
