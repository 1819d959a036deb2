//! Where a profile's figures come from, and what they were found for: used elsewhere, they are flagged.
//!
//! A profile without this is a set of numbers that looks equally true everywhere. Refusing to use it elsewhere was the
//! alternative and lost: an estimate with a warning is what capacity planning mostly has.

use crate::catalogue::{Dtype, PairSpec};
use crate::engine::roofline::RooflineSpec;
pub use crate::spec::origin::{Basis, HeldOut, LoadRange, OriginSpec};
use crate::spec::{BatchingSpec, EngineSpec, ModeSpec, StepSpec};

/// A load that an engine is to be used with.
#[derive(Copy, Clone, PartialEq, Default, Debug)]
pub struct IntendedLoad {
    /// Tokens of a prompt, mean.
    pub prompt_tokens: Option<f64>,
    /// Tokens of an answer, mean.
    pub output_tokens: Option<f64>,
    /// Requests in flight, mean.
    pub in_flight: Option<f64>,
}

/// What to know before believing this engine under this load: figures that were not measured, and every way in which the
/// use leaves what they were found for. Empty where there is nothing to say.
pub fn flags(spec: &EngineSpec, used: &IntendedLoad) -> Vec<String> {
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
