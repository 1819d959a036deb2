//! How an engine stands in a file: with all its figures, or as a pair of the catalogue in a few words.
//!
//! Which of the two it is shows in the key `mode`. An untagged enum would say the same in one line, and would answer
//! every slip with "matches no variant"; looking at the key first lets the right half name the wrong field.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::catalogue::PairSpec;
use crate::spec::{EngineSpec, ModeSpec};

/// An engine with all its figures.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct EngineInFull {
    /// What it stands for.
    #[serde(default = "custom")]
    name: String,
    /// How it behaves.
    mode: ModeSpec,
}

/// An engine as a file may write it.
#[derive(JsonSchema)]
#[serde(untagged)]
#[expect(dead_code, reason = "it describes the file for the schema; reading looks at the keys")]
pub(crate) enum EngineFile {
    /// With all its figures.
    Full(EngineInFull),
    /// As a pair of the catalogue.
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
