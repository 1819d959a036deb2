//! The coefficients of a step's duration, in picoseconds of the whole step, and its two nonlinear parts.
//!
//! Terms linear in decodes and context are integers, so that sums over steps are exact. The p-norms depend only on
//! the number of tokens, so that the caller can tabulate them.

use crate::engine::roofline::RooflineSpec;
use crate::spec::{LinearSpec, OverlapSpec};

/// Coefficients in picoseconds of a whole step, that is of all layers.
#[derive(Clone, Debug)]
pub(crate) struct Terms {
    pub form: Form,
    pub base: u64,
    /// Once per step with a decode.
    pub decode: u64,
    /// Per token that a decoding sequence computes.
    pub per_decode: u64,
    /// Per decoding sequence, for reading its windows.
    pub per_window: u64,
    /// Per context token of the decoding sequences.
    pub per_context: u64,
    /// Per decoding sequence, and once per step with a prompt.
    pub per_request: u64,
    /// Once per step with a prompt.
    pub prefill: u64,
    pub per_prefill: f64,
    /// Per unit of [`StepLoad::prefill_pairs`](crate::engine::step_time::StepLoad::prefill_pairs).
    pub per_pair: f64,
    pub kappa: f64,
}

/// The nonlinear terms.
#[derive(Clone, Debug)]
pub(crate) enum Form {
    Linear,
    Overlap(OverlapSpec),
    Roofline(Box<RooflineSpec>),
}

const PS_PER_US: f64 = 1e6;
const PS_PER_NS: f64 = 1e3;
const PS_PER_S: f64 = 1e12;

impl Terms {
    pub fn linear(spec: &LinearSpec) -> Terms {
        Terms {
            form: spec.overlap.map_or(Form::Linear, Form::Overlap),
            base: whole(spec.base_us * PS_PER_US),
            decode: 0,
            per_decode: whole(spec.decode_us * PS_PER_US),
            per_window: 0,
            per_context: whole(spec.context_ns * PS_PER_NS),
            per_request: 0,
            prefill: 0,
            per_prefill: spec.prefill_us * PS_PER_US,
            per_pair: 0.0,
            kappa: 1.0,
        }
    }

    pub fn roofline(spec: &RooflineSpec) -> Terms {
        let (model, gpu) = (&spec.model, &spec.gpu);
        let layers = f64::from(model.layers);
        let heads = f64::from(model.q_heads / spec.tensor_parallel);
        let full = f64::from(model.full_layers());
        let windows =
            model.window.as_ref().map_or(0.0, |window| f64::from(window.layers) * f64::from(window.tokens));
        let context_s = context_s(spec, heads);
        // Four operations per pair of tokens, head and head element; `prefill_pairs` counts each pair twice.
        let pair_s = 2.0 * heads * model.prefill_head_dim() / gpu.attention_flops();
        Terms {
            base: whole((spec.host.layer_us * layers + spec.host.step_us) * PS_PER_US),
            decode: whole(gpu.decode_floor_us * layers * PS_PER_US),
            per_decode: whole(gpu.decode_per_head_ns * heads * layers * PS_PER_NS),
            per_window: whole(context_s * windows * PS_PER_S),
            per_context: whole(context_s * full * PS_PER_S),
            per_request: whole(spec.host.request_us * PS_PER_US),
            prefill: whole(gpu.prefill_floor_us * layers * PS_PER_US),
            // A token in a windowed layer attends to a window of others, and each pair counts twice.
            per_prefill: gpu.prefill_per_head_ns * heads * layers * PS_PER_NS
                + 2.0 * windows * pair_s * PS_PER_S,
            per_pair: pair_s * full * PS_PER_S,
            kappa: spec.kappa,
            form: Form::Roofline(Box::new(spec.clone())),
        }
    }
}

impl Terms {
    /// Returns the decode attention of `decodes` sequences that compute `width` tokens each and attend to `context`
    /// tokens in total.
    pub(crate) fn decode_attention(&self, decodes: u32, width: u32, context: u64) -> u64 {
        let tokens = self.per_decode.saturating_mul(u64::from(decodes) * u64::from(width));
        let windows = self.per_window.saturating_mul(u64::from(decodes));
        let read = self.per_context.saturating_mul(context);
        self.decode.saturating_add(tokens).saturating_add(windows).saturating_add(read)
    }
}

/// Returns the seconds per context token of a decode in one layer: reading it, or, in latent attention, computing
/// with it.
fn context_s(spec: &RooflineSpec, heads: f64) -> f64 {
    let read_s = spec.kv_bytes_per_layer() / spec.gpu.kv_bytes_per_s();
    let work_s = 2.0 * heads * spec.model.decode_work_per_head() / spec.gpu.attention_flops();
    norm(read_s, work_s, spec.gpu.norm)
}

/// Returns the cost of matrix products, experts and all-reduces of all layers.
pub(crate) fn layers_ps(spec: &RooflineSpec, tokens: u32) -> u64 {
    let (model, gpu) = (&spec.model, &spec.gpu);
    let dense = f64::from(model.dense_layers());
    let others = f64::from(model.layers - model.dense_layers());
    let mut total_us = 0.0;
    if dense > 0.0 {
        total_us += dense * products_us(spec, model.layer_params(), tokens);
    }
    if let Some(experts) = &model.experts
        && others > 0.0
    {
        let shared = f64::from(experts.shared) * model.ffn_params();
        total_us += others * products_us(spec, model.attention_params() + shared, tokens);
        total_us += others * experts_us(spec, tokens);
    }
    if spec.tensor_parallel > 1 {
        let bytes = 2.0 * f64::from(model.hidden) * f64::from(tokens);
        let once_us = gpu.allreduce_us + bytes / (gpu.allreduce_gb_s * 1e9) * 1e6;
        total_us += 2.0 * once_us * f64::from(model.layers);
    }
    whole(total_us * PS_PER_US)
}

/// Returns the cost of a layer's matrix products over this many parameters, shared by the GPUs.
fn products_us(spec: &RooflineSpec, params: f64, tokens: u32) -> f64 {
    let gpu = &spec.gpu;
    let params = params / f64::from(spec.tensor_parallel);
    let memory_s = params * spec.model.weight_bytes / (gpu.bandwidth_tb_s * 1e12 * gpu.weight_efficiency);
    let compute_s = 2.0 * params * f64::from(tokens) / (gpu.tflops * 1e12 * gpu.compute_efficiency);
    gpu.linear_floor_us + norm(memory_s, compute_s, gpu.norm) * 1e6
}

/// Returns the cost of a layer's experts on the busiest GPU: reading the active ones, and computing the chosen ones.
pub(crate) fn experts_us(spec: &RooflineSpec, tokens: u32) -> f64 {
    let (model, gpu) = (&spec.model, &spec.gpu);
    let Some(experts) = &model.experts else { return 0.0 };
    let kernels = &gpu.experts;
    let params = model.ffn_params() / f64::from(spec.tensor_parallel);
    // Experts distributed as a whole: each group has a share of them, and the busiest group gets more than its share
    // of the tokens.
    let busiest = f64::from(tokens) * if spec.expert_parallel > 1 { spec.expert_skew } else { 1.0 };
    let read = experts.read_by(busiest);
    let memory_s =
        params * read * model.expert_weight_bytes() / (gpu.bandwidth_tb_s * 1e12 * kernels.weight_efficiency);
    let work = 2.0 * params * f64::from(experts.per_token) * busiest;
    let compute_s = work / (gpu.tflops * 1e12 * kernels.compute_efficiency);
    kernels.floor_us + norm(memory_s, compute_s, kernels.norm) * 1e6
}

/// Returns the cost of the output head.
pub(crate) fn head_ps(spec: &RooflineSpec, rows: u32) -> u64 {
    let (model, gpu) = (&spec.model, &spec.gpu);
    let params = model.head_params();
    let memory_s = params * model.head_weight_bytes / (gpu.bandwidth_tb_s * 1e12 * gpu.weight_efficiency);
    let compute_s = 2.0 * params * f64::from(rows) / (gpu.tflops * 1e12 * gpu.compute_efficiency);
    whole(norm(memory_s, compute_s, 3.0) / f64::from(spec.tensor_parallel) * PS_PER_S)
}

/// Returns the overlapping part of an otherwise linear step.
pub(crate) fn overlap_ps(overlap: &OverlapSpec, tokens: u32) -> u64 {
    whole(overlap.us(f64::from(tokens)) * PS_PER_US)
}

/// Returns the value rounded to whole picoseconds.
pub(crate) fn whole(ps: f64) -> u64 {
    ps.round() as u64
}

/// Returns (a^p + b^p)^(1/p) through `libm`, so that every machine computes the same picosecond.
fn norm(a: f64, b: f64, p: f64) -> f64 {
    let larger = a.max(b);
    if larger <= 0.0 {
        return 0.0;
    }
    larger * libm::pow(libm::pow(a / larger, p) + libm::pow(b / larger, p), 1.0 / p)
}
