//! Configuration of trace export.

use std::collections::BTreeMap;

use plimsoll_policy::{SamplingSpec, SettingError};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::error::conflict;
use crate::keys::KeySource;

/// Settings of the export and sampling of traces.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TracesSpec {
    /// Collector URL for OTLP over HTTP: `http://host:4318`; `/v1/traces` is appended if missing.
    pub to: String,
    /// Key sent to the collector as `Authorization: Bearer` [default: none].
    #[serde(default)]
    pub key: Option<KeySource>,
    /// Additional request headers; a value may contain `$NAME` of an environment variable [default: none].
    #[serde(default)]
    pub headers: BTreeMap<String, String>,
    /// Service name in traces (`service.name`) [default: plimsoll-gateway].
    #[serde(default = "service")]
    pub service: String,
    /// Settings of sampling: the traces that are kept.
    #[serde(default)]
    pub keep: SamplingSpec,
}

fn service() -> String {
    "plimsoll-gateway".to_owned()
}

impl TracesSpec {
    /// Returns the default settings for this collector.
    pub fn new(to: impl Into<String>) -> TracesSpec {
        TracesSpec {
            to: to.into(),
            key: None,
            headers: BTreeMap::new(),
            service: service(),
            keep: SamplingSpec::default(),
        }
    }

    /// Returns the collector's address without the traces path.
    pub fn base(&self) -> &str {
        self.to.trim_end_matches('/').trim_end_matches("/v1/traces")
    }

    /// Checks the rules that the types cannot express, and fails on the first invalid setting.
    pub fn validate(&self) -> Result<(), SettingError> {
        if !self.to.starts_with("http://") && !self.to.starts_with("https://") {
            let why = format!("{:?} is no URL; write http://host:4318", self.to);
            return conflict("traces.to", why);
        }
        self.keep.validate()
    }
}
