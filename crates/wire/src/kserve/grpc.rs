//! KServe v2 over gRPC: the messages that a client and the embedded engine need.
//!
//! Sources: `open_inference_grpc.proto` of kserve/open-inference-protocol; `grpc_service.proto` and `model_config.proto` of
//! triton-inference-server/common for `ModelStreamInfer`, `ModelConfig` and `RepositoryIndex`, which only Triton has.
//! Tensors are sent only as raw bytes (`raw_input_contents`). Typed contents were rejected because they are larger and slower,
//! and every server accepts raw bytes.

pub mod server;

use bytes::{Bytes, BytesMut};
use plimsoll_model::{Datatype, Tensor};
use serde_json::{Map, Value as Json};

use super::metadata::{ConfigFacts, DIMS_MAX, INPUTS_MAX, InputMetadata, ModelFacts, NAME_MAX, ServerFacts};
use super::request::{put, size};
use crate::grpc::HEAD;
use crate::head::bounded;
use crate::protobuf::{Fields, ProtobufError, ProtobufWriter};

/// Path prefix of the service, with the slash before a method.
const SERVICE: &str = "/inference.GRPCInferenceService/";

pub const CONTENT_TYPE: &str = "application/grpc";

#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Method {
    /// One inference with one response.
    ModelInfer,
    /// One inference with any number of responses (Triton).
    ModelStreamInfer,
    ServerMetadata,
    ServerLive,
    ServerReady,
    /// Readiness check of a model.
    ModelReady,
    /// Inputs and outputs of a model.
    ModelMetadata,
    /// Configuration of a model (Triton).
    ModelConfig,
    /// Index of the models (Triton).
    RepositoryIndex,
}

impl Method {
    const ALL: [(Method, &'static str); 9] = [
        (Method::ModelInfer, "ModelInfer"),
        (Method::ModelStreamInfer, "ModelStreamInfer"),
        (Method::ServerMetadata, "ServerMetadata"),
        (Method::ServerLive, "ServerLive"),
        (Method::ServerReady, "ServerReady"),
        (Method::ModelReady, "ModelReady"),
        (Method::ModelMetadata, "ModelMetadata"),
        (Method::ModelConfig, "ModelConfig"),
        (Method::RepositoryIndex, "RepositoryIndex"),
    ];

    pub fn path(self) -> String {
        let name = Method::ALL.iter().find(|(method, _)| *method == self).map_or("", |(_, name)| name);
        format!("{SERVICE}{name}")
    }

    /// Returns the method at a path.
    pub fn at(path: &str) -> Option<Method> {
        let name = path.strip_prefix(SERVICE)?;
        Method::ALL.iter().find(|(_, own)| *own == name).map(|(method, _)| *method)
    }
}

/// Options of an inference, without its tensors.
#[derive(Copy, Clone, Debug)]
pub(crate) struct InferOptions<'a> {
    pub model: &'a str,
    pub version: &'a str,
    /// Priority in the server's queue, and longest wait there, µs.
    pub priority: Option<u32>,
    pub timeout_us: Option<u64>,
    /// The user's fields; a message has room only for `parameters`.
    pub extra: &'a Map<String, Json>,
    /// Whether the responses are a stream; then the request wants a separate final response.
    pub stream: bool,
}

/// Encodes a `ModelInferRequest` in gRPC's frame.
pub(crate) fn infer(tensors: &[Tensor], asks: &InferOptions<'_>) -> Bytes {
    let room: usize = tensors.iter().map(|tensor| size(tensor) + 8 * tensor.shape.len() + 64).sum();
    let mut bytes = Vec::with_capacity(room + 128);
    bytes.resize(HEAD, 0);
    let mut pen = ProtobufWriter(&mut bytes);
    pen.bytes(1, asks.model.as_bytes());
    if !asks.version.is_empty() {
        pen.bytes(2, asks.version.as_bytes());
    }
    parameters(asks, &mut pen);
    for tensor in tensors {
        pen.message(5, |input| {
            input.bytes(1, tensor.name.as_bytes());
            input.bytes(2, tensor.datatype.name().as_bytes());
            shape(3, &tensor.shape, input);
        });
    }
    let mut raw = BytesMut::new();
    for tensor in tensors {
        raw.clear();
        put(tensor, &mut raw);
        pen.bytes(7, &raw);
    }
    let length = (bytes.len() - HEAD) as u32;
    bytes[1..HEAD].copy_from_slice(&length.to_be_bytes());
    bytes.into()
}

fn parameters(asks: &InferOptions<'_>, pen: &mut ProtobufWriter<'_>) {
    let own = asks.extra.get("parameters").and_then(Json::as_object);
    for (name, value) in own.into_iter().flatten() {
        parameter(4, name, value, pen);
    }
    if let Some(level) = asks.priority {
        parameter(4, "priority", &level.into(), pen);
    }
    if let Some(us) = asks.timeout_us {
        parameter(4, "timeout", &us.into(), pen);
    }
    if asks.stream {
        parameter(4, "triton_enable_empty_final_response", &true.into(), pen);
    }
}

/// Encodes an entry of a map of `InferParameter`s. Whole numbers are `int64`, which Triton expects for its parameters.
fn parameter(field: u32, name: &str, value: &Json, pen: &mut ProtobufWriter<'_>) {
    pen.message(field, |entry| {
        entry.bytes(1, name.as_bytes());
        entry.message(2, |choice| match value {
            Json::Bool(on) => choice.number(1, u64::from(*on)),
            Json::Number(n) => match (n.as_i64(), n.as_u64()) {
                (Some(n), _) => choice.number(2, n as u64),
                (None, Some(n)) => choice.number(5, n),
                _ => choice.fixed64(4, n.as_f64().unwrap_or(0.0).to_bits()),
            },
            Json::String(text) => choice.bytes(3, text.as_bytes()),
            other => choice.bytes(3, other.to_string().as_bytes()),
        });
    });
}

fn shape(field: u32, dims: &[u32], pen: &mut ProtobufWriter<'_>) {
    let mut packed = Vec::with_capacity(dims.len() * 2);
    dims.iter().for_each(|dim| ProtobufWriter(&mut packed).varint(u64::from(*dim)));
    pen.bytes(field, &packed);
}

/// Encodes a request with a model name: `ModelReady`, `ModelMetadata`, `ModelConfig`; not framed.
pub fn of_model(model: &str, version: Option<&str>) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut pen = ProtobufWriter(&mut bytes);
    pen.bytes(1, model.as_bytes());
    if let Some(version) = version {
        pen.bytes(2, version.as_bytes());
    }
    bytes
}

#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Response<'a> {
    pub outputs: u32,
    /// Whether one of the outputs has elements.
    pub holds: bool,
    pub last: bool,
    /// Types of the outputs and their raw bytes, as many as both exist.
    pub raw: Vec<(Option<Datatype>, &'a [u8])>,
}

pub(crate) fn response(message: &[u8]) -> Result<Response<'_>, ProtobufError> {
    let (mut found, mut types, mut raw) = (Response::default(), Vec::new(), Vec::new());
    let mut fields = Fields::of(message);
    while let Some((field, value)) = fields.next()? {
        match field {
            4 => found.last |= is_last(value.bytes())?,
            5 => {
                let (datatype, holds) = output(value.bytes())?;
                found.outputs += 1;
                found.holds |= holds;
                if types.len() < INPUTS_MAX {
                    types.push(datatype);
                }
            }
            6 if raw.len() < INPUTS_MAX => raw.push(value.bytes()),
            _ => {}
        }
    }
    found.raw = types.into_iter().zip(raw).collect();
    Ok(found)
}

/// Returns whether this parameter is `triton_final_response: true`.
fn is_last(entry: &[u8]) -> Result<bool, ProtobufError> {
    let (mut named, mut on) = (false, false);
    let mut fields = Fields::of(entry);
    while let Some((field, value)) = fields.next()? {
        match field {
            1 => named = value.bytes() == b"triton_final_response",
            2 => {
                let mut choice = Fields::of(value.bytes());
                while let Some((field, value)) = choice.next()? {
                    on = field == 1 && value.number() != 0;
                }
            }
            _ => {}
        }
    }
    Ok(named && on)
}

/// Returns the type of an output, and whether it has elements; an output without a shape counts as having some.
fn output(message: &[u8]) -> Result<(Option<Datatype>, bool), ProtobufError> {
    let (mut datatype, mut dims) = (None, Vec::new());
    let mut fields = Fields::of(message);
    while let Some((field, value)) = fields.next()? {
        match field {
            2 => datatype = std::str::from_utf8(value.bytes()).ok().and_then(Datatype::from_name),
            3 => numbers(value, &mut dims)?,
            _ => {}
        }
    }
    Ok((datatype, !dims.contains(&0)))
}

/// Parses a repeated int64, packed or not.
fn numbers(value: crate::protobuf::Value<'_>, into: &mut Vec<u64>) -> Result<(), ProtobufError> {
    match value {
        crate::protobuf::Value::Number(n) if into.len() < DIMS_MAX => into.push(n),
        crate::protobuf::Value::Number(_) => {}
        crate::protobuf::Value::Bytes(packed) => Fields::of(packed).numbers(into, DIMS_MAX)?,
    }
    Ok(())
}

/// Parses a `ModelStreamInferResponse`: the error message, and the response.
pub(crate) fn streamed(message: &[u8]) -> Result<(String, Option<&[u8]>), ProtobufError> {
    let (mut error, mut inner) = (String::new(), None);
    let mut fields = Fields::of(message);
    while let Some((field, value)) = fields.next()? {
        match field {
            1 => error = bounded(&String::from_utf8_lossy(value.bytes()), 512),
            2 => inner = Some(value.bytes()),
            _ => {}
        }
    }
    Ok((error, inner))
}

/// Returns the elements of a `BYTES` tensor, up to the first truncated one.
pub(crate) fn texts(mut raw: &[u8]) -> impl Iterator<Item = &[u8]> {
    std::iter::from_fn(move || {
        let (length, rest) = raw.split_first_chunk::<4>()?;
        let (text, rest) = rest.split_at_checked(u32::from_le_bytes(*length) as usize)?;
        raw = rest;
        Some(text)
    })
}

/// Parses a `ServerReadyResponse`, a `ServerLiveResponse` or a `ModelReadyResponse`.
pub fn read_ready(message: &[u8]) -> Result<bool, ProtobufError> {
    let mut ready = false;
    let mut fields = Fields::of(message);
    while let Some((field, value)) = fields.next()? {
        if field == 1 {
            ready = value.number() != 0;
        }
    }
    Ok(ready)
}

fn text(bytes: &[u8]) -> String {
    bounded(&String::from_utf8_lossy(bytes), NAME_MAX)
}

/// Parses a `ServerMetadataResponse`.
pub fn read_server(message: &[u8]) -> Result<ServerFacts, ProtobufError> {
    let mut server = ServerFacts { binary: true, ..ServerFacts::default() };
    let mut fields = Fields::of(message);
    while let Some((field, value)) = fields.next()? {
        match field {
            1 => server.name = text(value.bytes()),
            2 => server.version = text(value.bytes()),
            _ => {}
        }
    }
    Ok(server)
}

/// Parses a `ModelMetadataResponse`.
pub fn read_model(message: &[u8]) -> Result<ModelFacts, String> {
    let mut model = ModelFacts::default();
    let mut fields = Fields::of(message);
    while let Some((field, value)) = fields.next().map_err(|e| e.to_string())? {
        match field {
            1 => model.name = text(value.bytes()),
            2 if model.versions.len() < 64 => model.versions.push(bounded(&text(value.bytes()), 64)),
            3 => model.platform = text(value.bytes()),
            4 if model.inputs.len() == INPUTS_MAX => return Err(format!("more than {INPUTS_MAX} inputs")),
            4 => model.inputs.push(input(value.bytes())?),
            _ => {}
        }
    }
    Ok(model)
}

fn input(message: &[u8]) -> Result<InputMetadata, String> {
    let (mut name, mut kind, mut dims) = (String::new(), String::new(), Vec::new());
    let mut fields = Fields::of(message);
    while let Some((field, value)) = fields.next().map_err(|e| e.to_string())? {
        match field {
            1 => name = text(value.bytes()),
            2 => kind = text(value.bytes()),
            3 => numbers(value, &mut dims).map_err(|e| e.to_string())?,
            _ => {}
        }
    }
    let datatype =
        Datatype::from_name(&kind).ok_or_else(|| format!("input {name} is of the type {kind:?}"))?;
    Ok(InputMetadata { name, datatype, shape: dims.into_iter().map(|dim| dim as i64).collect() })
}

/// Parses a `ModelConfigResponse`.
pub fn read_config(message: &[u8]) -> Result<ConfigFacts, ProtobufError> {
    let mut found = ConfigFacts::default();
    let mut fields = Fields::of(message);
    while let Some((field, value)) = fields.next()? {
        if field != 1 {
            continue;
        }
        let mut config = Fields::of(value.bytes());
        while let Some((field, value)) = config.next()? {
            match field {
                // A negative int32 is encoded as ten bytes, and means no batches.
                4 => found.max_batch = u32::try_from(value.number() as i64).unwrap_or(0),
                // The only field of the transaction policy is `decoupled`.
                19 => found.decoupled = read_ready(value.bytes())?,
                _ => {}
            }
        }
    }
    Ok(found)
}

/// Parses a `RepositoryIndexResponse`: the names of the models that are ready.
pub fn read_index(message: &[u8]) -> Result<Vec<String>, ProtobufError> {
    let mut names: Vec<String> = Vec::new();
    let mut fields = Fields::of(message);
    while let Some((field, value)) = fields.next()? {
        if field != 1 || names.len() == INPUTS_MAX {
            continue;
        }
        let (mut name, mut state) = (String::new(), String::new());
        let mut entry = Fields::of(value.bytes());
        while let Some((field, value)) = entry.next()? {
            match field {
                1 => name = text(value.bytes()),
                3 => state = text(value.bytes()),
                _ => {}
            }
        }
        if state.is_empty() || state == "READY" {
            names.push(name);
        }
    }
    names.dedup();
    Ok(names)
}
