//! The displayed pairs, and the origin of a pair's figures as text.
//!
//! The text is computed from the specification on request, so that it always shows the figures of the simulation.

use std::fmt::Write as _;

use crate::catalogue::origin::OriginSpec;
use crate::engine::roofline::RooflineSpec;
use crate::engine::step_time::{StepLoad, StepModel};
use crate::spec::error::SimSpecError;
use crate::spec::{BatchingSpec, EngineSpec, ModeSpec};

/// Names of the pairs whose figures were checked against a published derivation.
pub const CHECKED: [&str; 12] = [
    "llama-3.1-8b@a100",
    "llama-3.1-8b@h100",
    "llama-3.1-8b@h200",
    "llama-3.1-8b@l4",
    "llama-3.1-70b@h100x4",
    "llama-3.1-70b@h100x8",
    "llama-3.1-70b-fp8@h100x4",
    "qwen2.5-7b@a100",
    "qwen2.5-7b@h100",
    "qwen2.5-7b@l4",
    "mixtral-8x7b@h100x2",
    "qwen3-32b@h100x2",
];

/// The figures of a pair, computed from its specification.
#[derive(Clone, PartialEq, Debug)]
pub struct PairFigures {
    /// Weights on each GPU, GB.
    pub weights_gb: f64,
    /// Capacity of the KV cache in tokens.
    pub kv_tokens: f64,
    /// Duration in ms of a step of 1, 32 and 128 decodes at 1 024 tokens of context; `None` if the cache is too
    /// small.
    pub decode_ms: [Option<f64>; 3],
    /// Duration in ms of one prompt of 1 024 and of 8 192 tokens, each in one step.
    pub prefill_ms: [f64; 2],
}

/// Returns the figures of a pair.
pub fn figures(spec: &BatchingSpec, roofline: &RooflineSpec) -> Result<PairFigures, SimSpecError> {
    let blocks = spec.blocks()?;
    let kv_tokens = f64::from(blocks) * f64::from(crate::spec::error::BLOCK_TOKENS);
    // One step of 8 192 tokens at any budget, because the figure describes the GPU and not a setting.
    let wide = BatchingSpec { token_budget: spec.token_budget.max(8192), ..spec.clone() };
    let mut model = StepModel::new(&wide);
    let decode_ms = [1, 32, 128].map(|batch| {
        let room = f64::from(batch) * 1024.0 <= kv_tokens;
        room.then(|| decode_step_ms(&mut model, batch, 1024))
    });
    let prefill_ms = [1024, 8192].map(|prompt| prefill_step_ms(&mut model, prompt));
    Ok(PairFigures { weights_gb: roofline.weights_per_gpu() / 1e9, kv_tokens, decode_ms, prefill_ms })
}

/// Appends the origin of a step's figures as lines of text.
pub fn derivation(text: &mut String, spec: &RooflineSpec) {
    let (model, gpu) = (&spec.model, &spec.gpu);
    let group = f64::from(spec.tensor_parallel);
    let params = if model.dense_layers() > 0 { model.layer_params() } else { model.attention_params() };
    let layer_bytes = params * model.weight_bytes / group;
    let layer_us = layer_bytes / (gpu.bandwidth_tb_s * gpu.weight_efficiency) / 1e6;
    let _ = writeln!(
        text,
        "weights {:.1} GB per GPU ({:.1}e9 parameters, {:.1}e9 per token); a layer's {:.0} MB stream in {layer_us:.0} µs \
         at {:.0} % of {} TB/s",
        spec.weights_per_gpu() / 1e9,
        model.params() / 1e9,
        model.active_params() / 1e9,
        layer_bytes / 1e6,
        gpu.weight_efficiency * 100.0,
        gpu.bandwidth_tb_s
    );
    if let Some(experts) = &model.experts {
        let one_mb = model.ffn_params() * model.expert_weight_bytes() / group / 1e6;
        let _ = writeln!(
            text,
            "experts: {} of {} for a token; a step of 1, 32, 1024 tokens reads {:.1}, {:.1}, {:.1} of them, {one_mb:.1} MB \
             each",
            experts.per_token,
            experts.count,
            experts.read_by(1.0),
            experts.read_by(32.0),
            experts.read_by(1024.0)
        );
    }
    let _ = writeln!(
        text,
        "matrix products reach {:.0} % of {} TFLOP/s; host {} µs a step, {} µs a layer, {} µs a request",
        gpu.compute_efficiency * 100.0,
        gpu.tflops,
        spec.host.step_us,
        spec.host.layer_us,
        spec.host.request_us
    );
    let _ = writeln!(
        text,
        "KV: {:.0} bytes a token, read at {:.0} % of the bandwidth; {} × {} GB − weights − {} GB leave the cache",
        spec.kv_bytes_per_token(),
        gpu.kv_efficiency * 100.0,
        spec.memory_utilisation,
        gpu.memory_gb,
        spec.reserved_gb
    );
    if spec.kappa > 1.0 {
        let _ = writeln!(text, "decode attention × {:.2} in steps with prompts", spec.kappa);
    }
}

/// Appends the origin and the accuracy of the figures as lines of text.
pub fn origin(text: &mut String, origin: &OriginSpec) {
    let _ = writeln!(
        text,
        "{} figures: expect ±{:.0} % of a step's time",
        origin.basis.word(),
        origin.expected_error_percent
    );
    for note in &origin.notes {
        let _ = writeln!(text, "- {note}");
    }
    for held in &origin.held_out {
        let _ = writeln!(
            text,
            "held out, {}: mean error {:.1} %, p90 {:.1} % over {} rows",
            held.metric, held.mean_percent, held.p90_percent, held.rows
        );
    }
}

/// Returns a pair in one line.
pub fn summary(spec: &EngineSpec) -> String {
    let ModeSpec::Batching(BatchingSpec { origin: Some(origin), .. }) = &spec.mode else {
        return spec.name.clone();
    };
    let models = super::models::all();
    let gpus = super::gpus::all();
    let model = models.iter().find(|model| model.name == origin.model).map_or("", |model| model.title);
    let gpu = gpus.iter().find(|gpu| gpu.name == origin.gpu).map_or("", |gpu| gpu.title);
    let count = origin.tensor_parallel;
    format!("{model} {} on {count} × {gpu}, {}", origin.dtype, origin.server)
}

/// Returns the duration in ms of a step in which `batch` sequences decode with `context` tokens each.
pub fn decode_step_ms(model: &mut StepModel, batch: u32, context: u32) -> f64 {
    let context = u64::from(batch) * u64::from(context);
    let load = StepLoad { tokens: batch, decodes: batch, context, chunks: 0, prefill_pairs: 0, rows: batch };
    model.picoseconds(&load) as f64 / 1e9
}

/// Returns the duration in ms of a step with one prompt of this many tokens.
pub fn prefill_step_ms(model: &mut StepModel, prompt_tokens: u32) -> f64 {
    let prefill_pairs = u64::from(prompt_tokens) * u64::from(prompt_tokens);
    let load = StepLoad { tokens: prompt_tokens, chunks: 1, prefill_pairs, rows: 1, ..StepLoad::default() };
    model.picoseconds(&load) as f64 / 1e9
}
