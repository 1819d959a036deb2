//! KServe v2, the Open Inference Protocol, over HTTP: tensors in JSON, both sides, and Triton's binary extension.
//!
//! **Binary.** A body may be a JSON header followed by the tensors' raw bytes, row-major and little-endian; the header
//! `Inference-Header-Content-Length` says where one ends and the other begins. A picture is four times smaller so, and
//! FP16 has no JSON form at all.
//!
//! **gRPC.** The same in protobuf, always with raw bytes; beside `ModelInfer` there is Triton's `ModelStreamInfer`, whose answer is a
//! stream of responses.
//!
//! Reading order: [`metadata`] (what a server says of itself and of a model), `request` (tensors → body), `answer` (body →
//! verdict), [`grpc`] (messages) and `call` (a call's answer → verdict), [`server`] and `check` (the embedded engine's side).

pub(crate) mod answer;
pub(crate) mod call;
mod check;
pub mod grpc;
pub mod metadata;
mod request;
pub mod server;

pub(crate) use request::{binary, inputs, inputs_length};
pub use request::{path, rows};

/// Says how many bytes of a body are JSON, where raw tensors follow.
pub const HEADER_LENGTH: &str = "inference-header-content-length";
