//! The two file formats of an engine: all figures, or a pair of the catalogue.
//!
//! The key `mode` selects the format. An untagged enum was rejected because it answers every mistake with "matches no
//! variant". Checking the key first lets the right format name the wrong field.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::catalogue::PairSpec;
use crate::spec::{EngineSpec, ModeSpec};

/// An engine with all its figures.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct EngineInFull {
    /// Name of the engine in reports [default: custom].
    #[serde(default = "custom")]
    name: String,
    /// Mode of the engine with its figures.
    mode: ModeSpec,
}

/// An engine in a file: all figures or a pair.
#[derive(JsonSchema)]
#[serde(untagged)]
#[expect(dead_code, reason = "it describes the file for the schema; the reader checks the keys")]
pub(crate) enum EngineFile {
    /// All figures of an engine, without the catalogue.
    Full(EngineInFull),
    /// A pair of a model and a GPU of the catalogue.
    Pair(PairSpec),
}

impl TryFrom<Map<String, Value>> for EngineSpec {
    type Error = String;

    fn try_from(file: Map<String, Value>) -> Result<EngineSpec, String> {
        if file.contains_key("mode") {
            let full: EngineInFull =
                serde_json::from_value(Value::Object(file)).map_err(|e| e.to_string())?;
            return Ok(EngineSpec { name: full.name, mode: full.mode });
        }
        if !file.contains_key("model") {
            return Err("an engine needs either a mode or a model and a gpu of the catalogue".to_owned());
        }
        let pair: PairSpec = serde_json::from_value(Value::Object(file)).map_err(|e| e.to_string())?;
        pair.resolve().map_err(|e| e.to_string())
    }
}

fn custom() -> String {
    "custom".to_owned()
}
