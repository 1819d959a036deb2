//! The embedded engine's side of KServe v2, in the formats of Triton 2.51: its metadata and its answers.
//!
//! The engine models time, not models: it counts the rows of a batch and answers zeros. `check` compares an inference
//! with the declared inputs of the model, as a real server does.

use bytes::Bytes;
use plimsoll_model::Datatype;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

pub use super::check::parse;
use super::metadata::DIMS_MAX;

pub const INPUT: &str = "INPUT";
pub const OUTPUT: &str = "OUTPUT";
/// Elements per row of the default input. It is small because the measurement is the engine's time, not the loopback's.
pub(crate) const ROW: u32 = 4;

/// A model that the front serves.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FrontModel {
    pub name: String,
    /// Rows of the largest batch; 0 if the model does not batch.
    pub max_batch: u32,
    /// The `dynamic_batching` section of its configuration; `None` if it has none.
    pub dynamic_batching: Option<Value>,
    pub instances: u32,
    pub inputs: Vec<ServedInput>,
}

/// An input that a model declares.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServedInput {
    pub name: String,
    pub datatype: Datatype,
    /// Shape without the rows of a batch; -1 for any length.
    pub dims: Vec<i64>,
}

impl ServedInput {
    /// Returns the default input: four numbers per row.
    pub fn usual() -> ServedInput {
        ServedInput { name: INPUT.into(), datatype: Datatype::Fp32, dims: vec![i64::from(ROW)] }
    }

    /// Parses `NAME:TYPE:DIMS`, such as `PIXELS:UINT8:3x224x224` or `SCALE:FP32:-1`.
    pub fn parse(text: &str) -> Result<ServedInput, String> {
        let usage = "write NAME:TYPE:DIMS such as PIXELS:UINT8:3x224x224 (-1 = any)";
        let mut parts = text.rsplitn(3, ':');
        let (dims, datatype, name) = match (parts.next(), parts.next(), parts.next()) {
            (Some(dims), Some(datatype), Some(name)) if !name.is_empty() => (dims, datatype, name),
            _ => return Err(usage.to_owned()),
        };
        let datatype = Datatype::from_name(datatype).ok_or_else(|| {
            let all: Vec<&str> = Datatype::ALL.iter().map(|known| known.name()).collect();
            format!("no type {datatype:?}; there are {}", all.join(", "))
        })?;
        let dim = |dim: &str| dim.parse::<i64>().ok().filter(|n| *n == -1 || (1..=1 << 31).contains(n));
        let dims: Option<Vec<i64>> = dims.split('x').map(dim).collect();
        let dims = dims.filter(|dims| dims.len() < DIMS_MAX).ok_or(usage)?;
        Ok(ServedInput { name: name.to_owned(), datatype, dims })
    }
}

#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct InferRequest {
    /// Request id, which the answer repeats.
    pub id: Option<String>,
    /// Number of rows of the batch.
    pub items: u32,
    /// Priority, 1 being the highest; 0 for the default.
    pub priority: u32,
    /// Longest wait in the queue, µs; `None` for no limit.
    pub timeout_us: Option<u64>,
}

/// Returns the answer to an inference: zeros of the declared shape.
pub fn answer(asked: &InferRequest, model: &FrontModel) -> Bytes {
    let rows = if model.max_batch == 0 { 1 } else { asked.items };
    let mut shape = vec![1];
    if model.max_batch > 0 {
        shape.insert(0, rows);
    }
    let output =
        json!({"name": OUTPUT, "datatype": "FP32", "shape": shape, "data": vec![0.0; rows as usize]});
    let mut body = json!({"model_name": model.name, "model_version": "1", "outputs": [output]});
    if let (Some(id), Some(object)) = (&asked.id, body.as_object_mut()) {
        object.insert("id".into(), id.as_str().into());
    }
    body.to_string().into()
}

/// Returns the body `{"error": "…"}`.
pub fn error(message: &str) -> Bytes {
    json!({"error": message}).to_string().into()
}

/// Returns the body of `GET /v2`.
pub fn server_metadata(name: &str, version: &str) -> Bytes {
    let extensions =
        ["model_repository", "schedule_policy", "model_configuration", "binary_tensor_data", "parameters"];
    json!({"name": name, "version": version, "extensions": extensions}).to_string().into()
}

/// Returns the body of `GET /v2/models/NAME`.
pub fn model_metadata(model: &FrontModel) -> Bytes {
    let shape = |dims: &[i64]| {
        let rows = (model.max_batch > 0).then_some(-1);
        rows.into_iter().chain(dims.iter().copied()).collect::<Vec<i64>>()
    };
    let input = |one: &ServedInput| json!({"name": one.name, "datatype": one.datatype.name(), "shape": shape(&one.dims)});
    json!({
        "name": model.name,
        "versions": ["1"],
        "platform": "plimsoll_engine",
        "inputs": model.inputs.iter().map(input).collect::<Vec<_>>(),
        "outputs": [{"name": OUTPUT, "datatype": "FP32", "shape": shape(&[1])}],
    })
    .to_string()
    .into()
}

/// Returns the body of `GET /v2/models/NAME/config`, as Triton has it.
pub fn model_config(model: &FrontModel) -> Bytes {
    let input = |one: &ServedInput| {
        // The configuration names the protocol's BYTES type STRING.
        let datatype = if one.datatype == Datatype::Bytes { "STRING" } else { one.datatype.name() };
        json!({"name": one.name, "data_type": format!("TYPE_{datatype}"), "dims": one.dims})
    };
    let mut config = json!({
        "name": model.name,
        "platform": "",
        "backend": "plimsoll_engine",
        "max_batch_size": model.max_batch,
        "input": model.inputs.iter().map(input).collect::<Vec<_>>(),
        "output": [{"name": OUTPUT, "data_type": "TYPE_FP32", "dims": [1]}],
        "instance_group": [{"name": format!("{}_0", model.name), "kind": "KIND_CPU", "count": model.instances}],
    });
    if let (Some(batching), Some(object)) = (&model.dynamic_batching, config.as_object_mut()) {
        object.insert("dynamic_batching".into(), batching.clone());
    }
    config.to_string().into()
}

/// Returns the body of `POST /v2/repository/index`.
pub fn index(model: &FrontModel) -> Bytes {
    json!([{"name": model.name, "version": "1", "state": "READY"}]).to_string().into()
}
