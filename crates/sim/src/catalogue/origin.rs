//! Where a profile's figures come from, and what they were found for: used elsewhere, they are flagged.
//!
//! A profile without this is a set of numbers that looks equally true everywhere. Refusing to use it elsewhere was the
//! alternative and lost: an estimate with a warning is what capacity planning mostly has.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::catalogue::{Dtype, PairSpec};
use crate::engine::roofline::RooflineSpec;
use crate::spec::{BatchingSpec, EngineSpec, ModeSpec, StepSpec};

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

/// A load that an engine is to be used with.
#[derive(Copy, Clone, PartialEq, Default, Debug)]
pub struct Use {
    /// Tokens of a prompt, mean.
    pub prompt_tokens: Option<f64>,
    /// Tokens of an answer, mean.
    pub output_tokens: Option<f64>,
    /// Requests in flight, mean.
    pub in_flight: Option<f64>,
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

/// What to know before believing this engine under this load: figures that were not measured, and every way in which the
/// use leaves what they were found for. Empty where there is nothing to say.
pub fn flags(spec: &EngineSpec, used: &Use) -> Vec<String> {
    let ModeSpec::Batching(batching) = &spec.mode else { return Vec::new() };
    let Some(origin) = &batching.origin else {
        return vec![
            "the engine's figures name no origin: nothing says how far they are to be believed".to_owned(),
        ];
    };
    let mut flags = Vec::new();
    if origin.basis != Basis::Calibrated {
        flags.push(format!(
            "{}: {} figures, not measured on this server; expect ±{:.0} % of a step's time",
            spec.name,
            origin.basis.word(),
            origin.expected_error_percent
        ));
    }
    flags.extend(changed(batching, origin));
    if let Some(range) = &origin.range {
        flags.extend(outside("tokens of a prompt", used.prompt_tokens, range.prompt_tokens));
        flags.extend(outside("tokens of an answer", used.output_tokens, range.output_tokens));
        flags.extend(outside("requests in flight", used.in_flight, range.in_flight));
    }
    flags
}

/// Ways in which the specification is no longer what its figures were found for.
fn changed(batching: &BatchingSpec, origin: &OriginSpec) -> Vec<String> {
    let mut flags = Vec::new();
    if let (Some(found), Some(used)) = (origin.kv_blocks, batching.kv_blocks)
        && found != used
    {
        flags.push(format!("kv_blocks {used}: the figures were found with {found}"));
    }
    let StepSpec::Roofline(step) = &batching.step else { return flags };
    if origin.tensor_parallel > 0 && origin.tensor_parallel != step.tensor_parallel {
        let (used, found) = (step.tensor_parallel, origin.tensor_parallel);
        flags.push(format!("tensor_parallel {used}: the figures were found with {found}"));
    }
    let pair = PairSpec {
        model: origin.model.clone(),
        gpu: origin.gpu.clone(),
        dtype: Dtype::of(&origin.dtype),
        kv_dtype: Dtype::of(&origin.kv_dtype),
        tensor_parallel: Some(step.tensor_parallel),
        // Room is not what is asked here.
        kv_blocks: Some(1 << 20),
        ..PairSpec::default()
    };
    if let Ok(EngineSpec {
        mode: ModeSpec::Batching(BatchingSpec { step: StepSpec::Roofline(found), .. }),
        ..
    }) = pair.resolve()
    {
        if found.model != step.model {
            flags.push(format!("the model is not the {} in {} of the figures", origin.model, origin.dtype));
        }
        let peaks = |step: &RooflineSpec| (step.gpu.tflops, step.gpu.bandwidth_tb_s);
        if peaks(&found) != peaks(step) {
            flags.push(format!("the GPU is not the {} of the figures", origin.gpu));
        }
    }
    flags
}

fn outside(what: &str, used: Option<f64>, [least, most]: [f64; 2]) -> Option<String> {
    let used = used?;
    // A tenth beyond is the same load with other dice.
    let inside = used >= least * 0.9 && used <= most * 1.1;
    (!inside).then(|| format!("{used:.0} {what}: calibrated from {least:.0} to {most:.0}"))
}

impl Basis {
    /// The word for it.
    pub fn word(self) -> &'static str {
        match self {
            Basis::Fitted => "fitted",
            Basis::Scaled => "scaled",
            Basis::Assumed => "assumed",
            Basis::Calibrated => "calibrated",
        }
    }
}
