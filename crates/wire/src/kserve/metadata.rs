//! Parses the metadata of a KServe v2 server and of a model, within bounds: at most [`INPUTS_MAX`]
//! inputs of [`DIMS_MAX`] dimensions.

use plimsoll_model::Datatype;
use serde::Deserialize;

use crate::head::bounded;

pub(crate) const INPUTS_MAX: usize = 256;
pub(crate) const DIMS_MAX: usize = 32;
/// Longest name kept, in bytes.
pub(super) const NAME_MAX: usize = 256;

/// The server metadata of `GET /v2`.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ServerFacts {
    /// Server name: `triton`, `mlserver`, `kserve`.
    pub name: String,
    pub version: String,
    /// Whether the server accepts raw tensors after a JSON header.
    pub binary: bool,
}

/// The model metadata of `GET /v2/models/NAME`.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ModelFacts {
    pub name: String,
    pub versions: Vec<String>,
    /// Backend: `python`, `tensorrt_plan`, …
    pub platform: String,
    /// Declared inputs; empty if the server does not report them.
    pub inputs: Vec<InputMetadata>,
}

/// An input that a model declares.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct InputMetadata {
    pub name: String,
    pub datatype: Datatype,
    /// Shape; −1 for any length. If the model batches, the batch comes first.
    pub shape: Vec<i64>,
}

/// The fields of `GET /v2/models/NAME/config` that a client needs.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub struct ConfigFacts {
    /// Rows of the largest batch; 0 if the model does not batch, and then its shapes have no batch dimension.
    pub max_batch: u32,
    /// Whether an inference can have any number of responses.
    pub decoupled: bool,
}

/// Parses `GET /v2`.
pub fn read_server(body: &[u8]) -> Result<ServerFacts, String> {
    #[derive(Deserialize)]
    struct Server {
        name: String,
        version: Option<String>,
        #[serde(default)]
        extensions: Vec<String>,
    }
    let server: Server = parse(body)?;
    Ok(ServerFacts {
        name: bounded(&server.name, NAME_MAX),
        version: bounded(&server.version.unwrap_or_default(), NAME_MAX),
        binary: server.extensions.iter().any(|extension| extension == "binary_tensor_data"),
    })
}

/// Parses `GET /v2/models/NAME`.
pub fn read_model(body: &[u8]) -> Result<ModelFacts, String> {
    #[derive(Deserialize)]
    struct Model {
        name: String,
        versions: Option<Vec<String>>,
        platform: Option<String>,
        #[serde(default)]
        inputs: Vec<Input>,
    }
    #[derive(Deserialize)]
    struct Input {
        name: String,
        datatype: String,
        shape: Vec<i64>,
    }
    let model: Model = parse(body)?;
    if model.inputs.len() > INPUTS_MAX {
        return Err(format!("{} inputs, more than {INPUTS_MAX}", model.inputs.len()));
    }
    let inputs = model.inputs.into_iter().map(|input| {
        let name = bounded(&input.name, NAME_MAX);
        let datatype = Datatype::from_name(&input.datatype)
            .ok_or_else(|| format!("input {name} has the unknown type {}", bounded(&input.datatype, 32)))?;
        if input.shape.len() > DIMS_MAX {
            return Err(format!("input {name} has {} dimensions, more than {DIMS_MAX}", input.shape.len()));
        }
        Ok(InputMetadata { name, datatype, shape: input.shape })
    });
    Ok(ModelFacts {
        inputs: inputs.collect::<Result<_, String>>()?,
        name: bounded(&model.name, NAME_MAX),
        versions: model.versions.unwrap_or_default().iter().take(64).map(|v| bounded(v, 64)).collect(),
        platform: bounded(&model.platform.unwrap_or_default(), NAME_MAX),
    })
}

/// Parses `GET /v2/models/NAME/config`, which only Triton has.
pub fn read_config(body: &[u8]) -> Option<ConfigFacts> {
    #[derive(Deserialize)]
    struct Config {
        max_batch_size: i64,
        #[serde(default)]
        model_transaction_policy: Policy,
    }
    #[derive(Deserialize, Default)]
    struct Policy {
        #[serde(default)]
        decoupled: bool,
    }
    let config: Config = serde_json::from_slice(body).ok()?;
    Some(ConfigFacts {
        max_batch: u32::try_from(config.max_batch_size.max(0)).unwrap_or(u32::MAX),
        decoupled: config.model_transaction_policy.decoupled,
    })
}

/// Parses `POST /v2/repository/index`: the names of the models that are ready.
pub fn read_index(body: &[u8]) -> Option<Vec<String>> {
    #[derive(Deserialize)]
    struct Entry {
        name: String,
        state: Option<String>,
    }
    let entries: Vec<Entry> = serde_json::from_slice(body).ok()?;
    let ready = entries.into_iter().filter(|e| e.state.as_deref().is_none_or(|s| s == "READY"));
    let mut names: Vec<String> = ready.take(INPUTS_MAX).map(|e| bounded(&e.name, NAME_MAX)).collect();
    names.dedup();
    Some(names)
}

fn parse<'a, T: Deserialize<'a>>(body: &'a [u8]) -> Result<T, String> {
    serde_json::from_slice(body).map_err(|why| bounded(&why.to_string(), 200))
}
