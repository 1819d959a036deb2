//! Where traces go, and which are kept.

use std::collections::BTreeMap;

use plimsoll_policy::{SamplingSpec, SettingError};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::keys::KeySource;

/// Where traces go, and which are kept.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TracesSpec {
    /// A collector that takes OTLP over HTTP: `http://host:4318`; `/v1/traces` is added where it isn't there.
    pub to: String,
    /// What it wants to see as `Authorization: Bearer`.
    #[serde(default)]
    pub key: Option<KeySource>,
    /// Further headers; a value may hold `$NAME` of the environment.
    #[serde(default)]
    pub headers: BTreeMap<String, String>,
    /// What the gateway is called in them (`service.name`).
    #[serde(default = "service")]
    pub service: String,
    /// Which are kept.
    #[serde(default)]
    pub keep: SamplingSpec,
}

fn service() -> String {
    "plimsoll-gateway".to_owned()
}

impl TracesSpec {
    /// As by default, to this collector.
    pub fn new(to: impl Into<String>) -> TracesSpec {
        TracesSpec {
            to: to.into(),
            key: None,
            headers: BTreeMap::new(),
            service: service(),
            keep: SamplingSpec::default(),
        }
    }

    /// The collector's address without the path of its traces.
    pub fn base(&self) -> &str {
        self.to.trim_end_matches('/').trim_end_matches("/v1/traces")
    }

    /// Checks everything that the types can't.
    pub fn validate(&self) -> Result<(), SettingError> {
        if !self.to.starts_with("http://") && !self.to.starts_with("https://") {
            let why = format!("{:?} is no URL; write http://host:4318", self.to);
            return Err(SettingError::Conflict { name: "traces.to".to_owned(), why });
        }
        self.keep.validate()
    }
}
