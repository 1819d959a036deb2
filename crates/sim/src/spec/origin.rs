//! The origin of a profile's figures, as in its file.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The system that a profile's figures describe, and their accuracy on it.
#[derive(Clone, PartialEq, Default, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct OriginSpec {
    /// Name of the model in the catalogue.
    pub model: String,
    /// Name of the GPU in the catalogue.
    pub gpu: String,
    /// Number of GPUs that share a layer.
    pub tensor_parallel: u32,
    /// Dtype of the weights.
    pub dtype: String,
    /// Dtype of the KV cache.
    pub kv_dtype: String,
    /// Serving engine: `vllm`, `sglang` or `tensorrt-llm`.
    pub server: String,
    /// Version of the serving engine, empty if unknown.
    pub version: String,
    /// Number of KV blocks of the measured engine, if known.
    pub kv_blocks: Option<u32>,
    /// Protocol of the measurements, empty if there were none.
    pub protocol: String,
    /// Origin of the figures: assumed, measured or calibrated.
    pub basis: ProfileBasis,
    /// Expected error of a step's time in percent.
    pub expected_error_percent: f64,
    /// Gaps and assumptions of the figures, in sentences.
    pub notes: Vec<String>,
    /// Errors on held-out measurements, per metric.
    pub held_out: Vec<HeldOut>,
    /// Range of the loads that the measurements cover.
    pub range: Option<LoadRange>,
}

/// The range of the measured loads, as minimum and maximum.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LoadRange {
    /// Mean prompt tokens of a load.
    pub prompt_tokens: [f64; 2],
    /// Mean output tokens of a load.
    pub output_tokens: [f64; 2],
    /// Mean requests in flight of a load.
    pub in_flight: [f64; 2],
}

/// The origin of figures.
#[derive(Copy, Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "Basis")]
pub enum ProfileBasis {
    /// Tables of measured kernels of this GPU and dtype, and data sheets.
    Fitted,
    /// Efficiencies of a related GPU with the peaks of this one.
    Scaled,
    /// Efficiencies without any measurement.
    #[default]
    Assumed,
    /// Measurements of a running server with this engine.
    Calibrated,
}

/// The error of a metric on held-out measurements.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct HeldOut {
    /// Metric: `ttft`, `tpot`, `e2e` or `throughput`.
    pub metric: String,
    /// Number of held-out measurements.
    pub rows: u32,
    /// Mean of the absolute errors in percent.
    pub mean_percent: f64,
    /// 90th percentile of the absolute errors in percent.
    pub p90_percent: f64,
    /// Mean of the logarithm of measured over simulated.
    pub bias_log: f64,
    /// Standard deviation of that logarithm: the prediction band.
    pub spread_log: f64,
}

impl ProfileBasis {
    pub fn word(self) -> &'static str {
        match self {
            ProfileBasis::Fitted => "fitted",
            ProfileBasis::Scaled => "scaled",
            ProfileBasis::Assumed => "assumed",
            ProfileBasis::Calibrated => "calibrated",
        }
    }
}
