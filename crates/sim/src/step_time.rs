//! The duration of one step, in whole picoseconds.
//!
//! A step of decodes alone costs `fixed(n) + context_sum × per_context` with integer terms, so that k such steps have
//! an exact closed form and jumping over them equals stepping through them. Nanoseconds were tried for this and lose:
//! a token of context costs 29 to 47 ns, and rounding there is a bias of a percent.

use crate::roofline::RooflineSpec;
use crate::spec::{BatchingSpec, LinearSpec, StepSpec};

/// What a step holds, as far as its duration depends on it.
#[derive(Copy, Clone, PartialEq, Eq, Default, Debug)]
pub struct StepLoad {
    /// Tokens computed, of prompts and decodes.
    pub tokens: u32,
    /// Sequences that decode (one token each).
    pub decodes: u32,
    /// Tokens of context that the decodes attend to, their own included.
    pub context: u64,
    /// Sequences that get a piece of their prompt computed.
    pub chunks: u32,
    /// Σ chunk (2 before + chunk) over those pieces: twice the pairs that prefill attention computes.
    pub prefill_pairs: u64,
    /// Sequences that get a token sampled: the decodes and the prompts that end.
    pub rows: u32,
}

/// The duration of a step as a function of what it holds.
#[derive(Clone, Debug)]
pub struct StepModel {
    terms: Terms,
    /// By tokens in the step, picoseconds, filled in as met; `u64::MAX` = not met yet.
    by_tokens: Vec<u64>,
    /// By rows, in the same way.
    by_rows: Vec<u64>,
}

/// Coefficients in picoseconds of a whole step, that is of all layers.
#[derive(Clone, Debug)]
struct Terms {
    form: Form,
    base: u64,
    /// Once per step, if anything decodes.
    decode: u64,
    /// Per sequence that decodes.
    per_decode: u64,
    /// Per token of context of those.
    per_context: u64,
    /// Per sequence that decodes, and once if the step holds any prompt.
    per_request: u64,
    /// Once per step, if it holds any prompt.
    prefill: u64,
    /// Per prompt token.
    per_prefill: f64,
    /// Per unit of [`StepLoad::prefill_pairs`].
    per_pair: f64,
    kappa: f64,
}

/// The terms that are not linear.
#[derive(Clone, Debug)]
enum Form {
    Linear,
    Roofline(Box<RooflineSpec>),
}

const PS_PER_US: f64 = 1e6;
const PS_PER_NS: f64 = 1e3;
const PS_PER_S: f64 = 1e12;

impl StepModel {
    /// The model of this engine.
    pub fn new(spec: &BatchingSpec) -> StepModel {
        let terms = match &spec.step {
            StepSpec::Linear(linear) => Terms::linear(linear),
            StepSpec::Roofline(roofline) => Terms::roofline(roofline),
        };
        let rows = spec.max_seqs.min(spec.token_budget);
        StepModel {
            terms,
            by_tokens: vec![u64::MAX; spec.token_budget as usize + 1],
            by_rows: vec![u64::MAX; rows as usize + 1],
        }
    }

    /// How long a step with this load takes, in picoseconds; at least one nanosecond.
    pub fn picoseconds(&mut self, load: &StepLoad) -> u64 {
        let mut total = self.terms.base.saturating_add(self.tokens_ps(load.tokens));
        total = total.saturating_add(self.rows_ps(load.rows));
        let terms = &self.terms;
        let requests = u64::from(load.decodes) + u64::from(load.chunks > 0);
        total = total.saturating_add(terms.per_request.saturating_mul(requests));
        if load.decodes > 0 {
            let sequences = terms.per_decode.saturating_mul(u64::from(load.decodes));
            let context = terms.per_context.saturating_mul(load.context);
            let decode = terms.decode.saturating_add(sequences).saturating_add(context);
            let mixed = load.chunks > 0 && terms.kappa > 1.0;
            total = total.saturating_add(if mixed { whole(decode as f64 * terms.kappa) } else { decode });
        }
        if load.chunks > 0 {
            let prompt_tokens = f64::from(load.tokens - load.decodes);
            let pairs = terms.per_pair * load.prefill_pairs as f64;
            total = total.saturating_add(terms.prefill);
            total = total.saturating_add(whole(terms.per_prefill * prompt_tokens + pairs));
        }
        // A nanosecond at the least, so that time moves; a month at the most, so that sums of it stay in range.
        total.clamp(1_000, 2_600_000_000_000_000_000)
    }

    fn tokens_ps(&mut self, tokens: u32) -> u64 {
        let Form::Roofline(roofline) = &self.terms.form else { return 0 };
        let known = &mut self.by_tokens[tokens as usize];
        if *known == u64::MAX {
            *known = layers_ps(roofline, tokens);
        }
        *known
    }

    fn rows_ps(&mut self, rows: u32) -> u64 {
        let Form::Roofline(roofline) = &self.terms.form else { return 0 };
        let known = &mut self.by_rows[rows as usize];
        if *known == u64::MAX {
            *known = head_ps(roofline, rows);
        }
        *known
    }
}

impl Terms {
    fn linear(spec: &LinearSpec) -> Terms {
        Terms {
            form: Form::Linear,
            base: whole(spec.base_us * PS_PER_US),
            decode: 0,
            per_decode: whole(spec.decode_us * PS_PER_US),
            per_context: whole(spec.context_ns * PS_PER_NS),
            per_request: 0,
            prefill: 0,
            per_prefill: spec.prefill_us * PS_PER_US,
            per_pair: 0.0,
            kappa: 1.0,
        }
    }

    fn roofline(spec: &RooflineSpec) -> Terms {
        let (model, gpu) = (&spec.model, &spec.gpu);
        let layers = f64::from(model.layers);
        let heads = f64::from(model.q_heads / spec.tensor_parallel);
        let context_s = spec.kv_bytes_per_layer() / (gpu.bandwidth_tb_s * 1e12 * gpu.kv_efficiency);
        // Four operations per pair of tokens, head and head element; `prefill_pairs` counts each pair twice.
        let pair_s = 2.0 * heads * f64::from(model.head_dim) / (gpu.tflops * 1e12 * gpu.attention_efficiency);
        Terms {
            base: whole((spec.host.layer_us * layers + spec.host.step_us) * PS_PER_US),
            decode: whole(gpu.decode_floor_us * layers * PS_PER_US),
            per_decode: whole(gpu.decode_per_head_ns * heads * layers * PS_PER_NS),
            per_context: whole(context_s * layers * PS_PER_S),
            per_request: whole(spec.host.request_us * PS_PER_US),
            prefill: whole(gpu.prefill_floor_us * layers * PS_PER_US),
            per_prefill: gpu.prefill_per_head_ns * heads * layers * PS_PER_NS,
            per_pair: pair_s * layers * PS_PER_S,
            kappa: spec.kappa,
            form: Form::Roofline(Box::new(spec.clone())),
        }
    }
}

/// Matrix products and all-reduces of all layers.
fn layers_ps(spec: &RooflineSpec, tokens: u32) -> u64 {
    let (model, gpu) = (&spec.model, &spec.gpu);
    let group = f64::from(spec.tensor_parallel);
    let params = model.layer_params() / group;
    let memory_s = params * model.weight_bytes / (gpu.bandwidth_tb_s * 1e12 * gpu.weight_efficiency);
    let compute_s = 2.0 * params * f64::from(tokens) / (gpu.tflops * 1e12 * gpu.compute_efficiency);
    let mut layer_us = gpu.linear_floor_us + norm(memory_s, compute_s, gpu.norm) * 1e6;
    if spec.tensor_parallel > 1 {
        let bytes = 2.0 * f64::from(model.hidden) * f64::from(tokens);
        layer_us += 2.0 * (gpu.allreduce_us + bytes / (gpu.allreduce_gb_s * 1e9) * 1e6);
    }
    whole(layer_us * f64::from(model.layers) * PS_PER_US)
}

/// The output head.
fn head_ps(spec: &RooflineSpec, rows: u32) -> u64 {
    let (model, gpu) = (&spec.model, &spec.gpu);
    let params = model.head_params();
    let memory_s = params * model.head_weight_bytes / (gpu.bandwidth_tb_s * 1e12 * gpu.weight_efficiency);
    let compute_s = 2.0 * params * f64::from(rows) / (gpu.tflops * 1e12 * gpu.compute_efficiency);
    whole(norm(memory_s, compute_s, 3.0) / f64::from(spec.tensor_parallel) * PS_PER_S)
}

/// Rounded to whole picoseconds.
fn whole(ps: f64) -> u64 {
    ps.round() as u64
}

/// (a^p + b^p)^(1/p), through `libm` so that every machine finds the same picosecond.
fn norm(a: f64, b: f64, p: f64) -> f64 {
    let larger = a.max(b);
    if larger <= 0.0 {
        return 0.0;
    }
    larger * libm::pow(libm::pow(a / larger, p) + libm::pow(b / larger, p), 1.0 / p)
}
