//! Where a profile's figures come from, as it stands in its file.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What a profile's figures were found for, and how good they were there.
#[derive(Clone, PartialEq, Default, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct OriginSpec {
    /// Model, by its name in the catalogue.
    pub model: String,
    /// GPU, by its name in the catalogue.
    pub gpu: String,
    /// GPUs that share a layer.
    pub tensor_parallel: u32,
    /// Dtype of the weights.
    pub dtype: String,
    /// Dtype of the KV cache.
    pub kv_dtype: String,
    /// The serving engine: vllm, sglang, tensorrt-llm.
    pub server: String,
    /// Its version, where known.
    pub version: String,
    /// KV blocks it ran with, where known.
    pub kv_blocks: Option<u32>,
    /// The protocol of the measurements, where there were any.
    pub protocol: String,
    /// How the figures came about.
    pub basis: Basis,
    /// Error to expect of a step's time, percent.
    pub expected_error_percent: f64,
    /// What the figures lack or assume, in sentences.
    pub notes: Vec<String>,
    /// Errors on measurements that the fit did not see, per metric.
    pub held_out: Vec<HeldOut>,
    /// Loads that the measurements cover.
    pub range: Option<LoadRange>,
}

/// Least and most of what the measured loads had.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LoadRange {
    /// Tokens of a prompt, mean of a load.
    pub prompt_tokens: [f64; 2],
    /// Tokens of an answer, mean of a load.
    pub output_tokens: [f64; 2],
    /// Requests in flight, mean of a load.
    pub in_flight: [f64; 2],
}

/// How figures came about.
#[derive(Copy, Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Basis {
    /// From tables of measured kernels of this GPU and dtype, and data sheets.
    Fitted,
    /// Efficiencies of a related GPU on this one's peaks.
    Scaled,
    /// Efficiencies nobody here has seen measured.
    #[default]
    Assumed,
    /// From measurements of a running server.
    Calibrated,
}

/// How far a metric was from measurements that the fit did not see.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct HeldOut {
    /// `ttft`, `tpot`, `e2e` or `throughput`.
    pub metric: String,
    /// Measurements held out.
    pub rows: u32,
    /// Mean of the absolute errors, percent.
    pub mean_percent: f64,
    /// 90th percentile of them, percent.
    pub p90_percent: f64,
    /// Mean of the logarithm of measured over simulated.
    pub bias_log: f64,
    /// Standard deviation of it: the prediction band.
    pub spread_log: f64,
}

impl Basis {
    pub fn word(self) -> &'static str {
        match self {
            Basis::Fitted => "fitted",
            Basis::Scaled => "scaled",
            Basis::Assumed => "assumed",
            Basis::Calibrated => "calibrated",
        }
    }
}
