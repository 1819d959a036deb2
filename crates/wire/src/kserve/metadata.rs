//! What a KServe v2 server says of itself and of a model, bounded: foreign bytes become no more than [`INPUTS_MAX`]
//! inputs of [`DIMS_MAX`] dimensions.

use plimsoll_model::Datatype;
use serde::Deserialize;

use crate::head::bounded;

/// Most inputs a model may name.
pub(crate) const INPUTS_MAX: usize = 256;
/// Most dimensions of one tensor.
pub(crate) const DIMS_MAX: usize = 32;
/// Longest name kept, in bytes.
pub(super) const NAME_MAX: usize = 256;

/// `GET /v2`.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ServerFacts {
    /// The server's name: `triton`, `mlserver`, `kserve`.
    pub name: String,
    pub version: String,
    /// Does it take raw tensors behind a JSON header?
    pub binary: bool,
}

/// `GET /v2/models/NAME`.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ModelFacts {
    /// The model's name.
    pub name: String,
    pub versions: Vec<String>,
    /// What runs it: `python`, `tensorrt_plan`, …
    pub platform: String,
    /// What it takes; empty where the server does not say.
    pub inputs: Vec<InputMetadata>,
}

/// An input as a model declares it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct InputMetadata {
    pub name: String,
    /// The type of its elements.
    pub datatype: Datatype,
    /// Its shape; −1 = any length. Where the model batches, the batch comes first.
    pub shape: Vec<i64>,
}

/// `GET /v2/models/NAME/config`, as far as a client asks.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub struct ConfigFacts {
    /// Rows of the largest batch; 0 = the model does not batch, and its shapes have no batch dimension.
    pub max_batch: u32,
    /// Does an inference have any number of responses?
    pub decoupled: bool,
}

/// Reads `GET /v2`.
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

/// Reads `GET /v2/models/NAME`.
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

/// Reads `GET /v2/models/NAME/config`, which only Triton has.
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

/// Reads `POST /v2/repository/index`: the names of the models that are ready.
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
