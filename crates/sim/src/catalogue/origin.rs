//! The origin of a profile's figures and its range of validity: other uses are flagged.
//!
//! A profile without an origin seems equally valid everywhere. Rejecting other uses was considered and dropped,
//! because capacity planning mostly has estimates with a warning.

use crate::catalogue::{Dtype, PairSpec};
use crate::engine::roofline::RooflineSpec;
pub use crate::spec::origin::{HeldOut, LoadRange, OriginSpec, ProfileBasis};
use crate::spec::{BatchingSpec, EngineSpec, ModeSpec, StepSpec};

/// An intended load of an engine.
#[derive(Copy, Clone, PartialEq, Default, Debug)]
pub struct IntendedLoad {
    /// Mean prompt tokens; `None` if unknown.
    pub prompt_tokens: Option<f64>,
    /// Mean output tokens; `None` if unknown.
    pub output_tokens: Option<f64>,
    /// Mean requests in flight; `None` if unknown.
    pub in_flight: Option<f64>,
}

/// Returns warnings about this engine under this load. They list figures without measurements, and every difference
/// from the measured system and load.
pub fn flags(spec: &EngineSpec, used: &IntendedLoad) -> Vec<String> {
    let ModeSpec::Batching(batching) = &spec.mode else { return Vec::new() };
    let Some(origin) = &batching.origin else {
        return vec!["this engine has no measured origin, so its prediction error is unknown".to_owned()];
    };
    let mut flags = Vec::new();
    if origin.basis != ProfileBasis::Calibrated {
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

/// Returns the differences of the specification from the measured system.
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
        // The size of the cache is irrelevant here.
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
    // A load within 10 % of the range counts as inside because of random variation.
    let inside = used >= least * 0.9 && used <= most * 1.1;
    (!inside).then(|| format!("{used:.0} {what}: calibrated from {least:.0} to {most:.0}"))
}
