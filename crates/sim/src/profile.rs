//! Engines with a name, each with the figures it was derived from.
//!
//! The derivation is written from the specification when it is asked for, so that it can't tell of figures that the
//! simulation does not use.

use std::fmt::Write as _;

use crate::law::LawSpec;
use crate::roofline::{GpuSpec, HostSpec, ModelShape, RooflineSpec};
use crate::spec::{
    BLOCK_TOKENS, BatchingSpec, CannedSpec, EngineSpec, LinearSpec, ModeSpec, QueueSpec, SpecError, StepSpec,
};
use crate::step_time::{StepLoad, StepModel};

/// An engine with a name.
#[derive(Clone, PartialEq, Debug)]
pub struct Profile {
    /// The name to ask for it by.
    pub name: &'static str,
    /// What it stands for, in a line.
    pub summary: &'static str,
    /// The engine.
    pub spec: EngineSpec,
}

/// Every profile, in the order in which a list shows them.
pub fn all() -> Vec<Profile> {
    vec![
        profile("demo", "a small fast model, for the demonstration on any two cores", demo()),
        profile("canned", "drawn times whatever the load: TTFT 150 ms, gaps 20 ms (medians)", canned()),
        profile("mm8", "queue: 8 servers, exponential service of mean 10 ms", queue(8, exponential(10.0))),
        profile(
            "md8",
            "queue: 8 servers, every service 10 ms",
            queue(8, LawSpec::Deterministic { ms: 10.0 }),
        ),
        profile("mm4", "queue: 4 servers, exponential service of mean 10 ms", queue(4, exponential(10.0))),
        profile(
            "llama-3.1-8b@h100",
            "Llama-3.1-8B bf16 on one H100 SXM, vLLM v1",
            vllm(roofline(llama_8b(), h100_bf16(), 1)),
        ),
        profile(
            "llama-3.1-70b@h100x4",
            "Llama-3.1-70B bf16 on four H100 SXM, vLLM v1",
            vllm(roofline(
                llama_70b(),
                GpuSpec { allreduce_us: 5.2, allreduce_gb_s: 94.0, ..h100_bf16() },
                4,
            )),
        ),
    ]
}

/// The profile of this name.
///
/// # Errors
/// There is none; the error lists those there are.
pub fn find(name: &str) -> Result<Profile, SpecError> {
    all().into_iter().find(|profile| profile.name == name).ok_or_else(|| SpecError::UnknownProfile {
        asked: name.to_owned(),
        known: all().iter().map(|profile| profile.name).collect::<Vec<_>>().join(", "),
    })
}

impl Profile {
    /// Where its figures come from, as lines of text.
    pub fn derivation(&self) -> String {
        match &self.spec.mode {
            ModeSpec::Canned(canned) => format!(
                "first token after {}\nthen gaps of {}\nshaped after 2000 streams of a real server: p99 of the first \
                 token 2.5 times, of gaps 1.8 times the median\n",
                law_text(&canned.ttft),
                law_text(&canned.gap)
            ),
            ModeSpec::Queue(queue) => format!(
                "{} servers, service {}: capacity {:.0} requests/s\n",
                queue.servers,
                law_text(&queue.service),
                f64::from(queue.servers) / queue.service.mean_ms() * 1e3
            ),
            ModeSpec::Batching(batching) => batching_text(batching),
        }
    }
}

fn profile(name: &'static str, summary: &'static str, mode: ModeSpec) -> Profile {
    Profile { name, summary, spec: EngineSpec { name: name.to_owned(), mode } }
}

/// Made for the demonstration: fast enough that a minute holds what a p99 needs, slow enough that two cores carry the
/// live server and its client with room to spare.
///
/// * A step of 32 sequences takes about 3 ms, so the live server wakes some 350 to 600 times a second.
/// * A full batch of answers of 8 tokens to prompts of 64: 1.6 ms + 32 × 12 µs + 4 × 64 × 3.8 µs = 2.96 ms a step,
///   8 steps an answer: 32 / (8 × 2.96 ms) = 1 350 requests/s at most.
/// * The front end's delay stands for HTTP, tokenisation and hand-over, as real servers have it. It is also what makes
///   an onset of queueing visible: without it, a request that finds *any* step under way waits for half of one, which
///   is 1.5 times an idle engine's first token at a few percent of load.
///
/// In virtual time (`cargo bench -p plimsoll-sim -- demo`): first token alone 11.8 ms, onset (p99 at 1.5 times that) near
/// 1 010 requests/s with a p99 end to end of 37 ms, saturated throughput 1 370 requests/s. With lognormal lengths of sigma
/// 0.5 about the same medians: 900 requests/s at 75 ms, and 1 200 requests/s.
fn demo() -> ModeSpec {
    ModeSpec::Batching(BatchingSpec {
        max_seqs: 32,
        token_budget: 512,
        chunked_prefill: true,
        long_prefill_threshold: 0,
        kv_blocks: Some(4096),
        kv_watermark: 0.0,
        max_context: Some(8192),
        queue_limit: Some(8192),
        front_ms: 10.0,
        step: StepSpec::Linear(LinearSpec {
            base_us: 1600.0,
            decode_us: 12.0,
            prefill_us: 3.8,
            context_ns: 5.0,
        }),
    })
}

/// The peers' bench: a quiet server of 2000 streams had p50/p99 of 152/385 ms to the first token and 20/36 ms between
/// tokens; a lognormal through both has sigma ln(385/152)/2.326 = 0.40 and ln(36/20)/2.326 = 0.25.
fn canned() -> ModeSpec {
    ModeSpec::Canned(CannedSpec {
        ttft: LawSpec::Lognormal { median_ms: 150.0, sigma: 0.4 },
        gap: LawSpec::Lognormal { median_ms: 20.0, sigma: 0.25 },
    })
}

fn queue(servers: u32, service: LawSpec) -> ModeSpec {
    ModeSpec::Queue(QueueSpec { servers, service, queue_limit: None })
}

fn exponential(mean_ms: f64) -> LawSpec {
    LawSpec::Exponential { mean_ms }
}

/// vLLM v1 as its server starts on a GPU of 70 GiB or more.
fn vllm(step: RooflineSpec) -> ModeSpec {
    ModeSpec::Batching(BatchingSpec {
        max_seqs: 1024,
        token_budget: 8192,
        chunked_prefill: true,
        long_prefill_threshold: 0,
        kv_blocks: None,
        kv_watermark: 0.0,
        max_context: Some(131_072),
        queue_limit: None,
        // Fitted with the host's constants: what remains of a first token beside queue and steps.
        front_ms: 20.0,
        step: StepSpec::Roofline(Box::new(step)),
    })
}

fn roofline(model: ModelShape, gpu: GpuSpec, tensor_parallel: u32) -> RooflineSpec {
    RooflineSpec {
        model,
        gpu,
        tensor_parallel,
        host: HostSpec::default(),
        // End-to-end figures on H100 are consistent with no penalty; other GPUs show 1.7 to 2.8.
        kappa: 1.0,
        memory_utilisation: 0.92,
        reserved_gb: 1.7,
    }
}

fn llama_8b() -> ModelShape {
    ModelShape {
        layers: 32,
        hidden: 4096,
        q_heads: 32,
        kv_heads: 8,
        head_dim: 128,
        ffn: 14_336,
        vocab: 128_256,
        weight_bytes: 2.0,
        head_weight_bytes: 2.0,
        kv_bytes: 2.0,
    }
}

fn llama_70b() -> ModelShape {
    ModelShape { layers: 80, hidden: 8192, q_heads: 64, ffn: 28_672, ..llama_8b() }
}

/// H100 SXM with bf16 kernels: data-sheet peaks, efficiencies fitted on public kernel tables (mean error of the terms 1.5
/// to 8 %). 85.5 GB is what 80 GiB of HBM leave visible.
fn h100_bf16() -> GpuSpec {
    GpuSpec {
        memory_gb: 85.5,
        tflops: 989.0,
        bandwidth_tb_s: 3.35,
        weight_efficiency: 0.836,
        compute_efficiency: 0.803,
        norm: 3.15,
        linear_floor_us: 14.2,
        kv_efficiency: 0.84,
        decode_floor_us: 10.2,
        decode_per_head_ns: 3.5,
        attention_efficiency: 0.78,
        prefill_per_head_ns: 0.257,
        prefill_floor_us: 10.0,
        allreduce_us: 0.0,
        allreduce_gb_s: 0.0,
    }
}

fn law_text(law: &LawSpec) -> String {
    let cv = libm::sqrt(law.cv_squared());
    let kind = match law {
        LawSpec::Deterministic { ms } => return format!("{ms} ms"),
        LawSpec::Exponential { .. } => "exponential",
        LawSpec::Uniform { .. } => "uniform",
        LawSpec::Lognormal { .. } => "lognormal",
        LawSpec::Gamma { .. } => "gamma",
        LawSpec::Hyperexponential { .. } => "hyperexponential",
    };
    format!("{kind}, mean {:.2} ms, cv {cv:.2}", law.mean_ms())
}

fn batching_text(spec: &BatchingSpec) -> String {
    let mut text = String::new();
    let blocks = spec.blocks().unwrap_or(0);
    // Writing to a string can't fail.
    let _ = writeln!(
        text,
        "at most {} sequences, {} tokens a step{}; KV cache of {blocks} blocks = {} tokens",
        spec.max_seqs,
        spec.token_budget,
        if spec.chunked_prefill { ", prompts in chunks" } else { "" },
        u64::from(blocks) * u64::from(BLOCK_TOKENS),
    );
    match &spec.step {
        StepSpec::Linear(linear) => {
            let _ = writeln!(
                text,
                "step = {} µs + {} µs per decode + {} µs per prompt token + {} ns per token of context",
                linear.base_us, linear.decode_us, linear.prefill_us, linear.context_ns
            );
        }
        StepSpec::Roofline(roofline) => roofline_text(&mut text, roofline),
    }
    let mut model = StepModel::new(spec);
    let _ = write!(text, "step of b decodes at 1 024 tokens of context:");
    for batch in [1, 32, 128].into_iter().filter(|&batch| batch <= spec.max_seqs.min(spec.token_budget)) {
        let _ = write!(text, "  b {batch}: {:.1} ms", decode_step_ms(&mut model, batch, 1024));
    }
    let _ = writeln!(text);
    let _ = write!(text, "one prompt in one step:");
    for prompt in [64, 1024, 8192].into_iter().filter(|&prompt| prompt <= spec.token_budget) {
        let _ = write!(text, "  {prompt} tokens: {:.1} ms", prefill_step_ms(&mut model, prompt));
    }
    let _ = writeln!(text, "\nbefore the queue (HTTP, tokenisation): {} ms", spec.front_ms);
    text
}

fn roofline_text(text: &mut String, spec: &RooflineSpec) {
    let (model, gpu) = (&spec.model, &spec.gpu);
    let group = f64::from(spec.tensor_parallel);
    let layer_bytes = model.layer_params() * model.weight_bytes / group;
    let layer_us = layer_bytes / (gpu.bandwidth_tb_s * gpu.weight_efficiency) / 1e6;
    let _ = writeln!(
        text,
        "weights {:.1} GB per GPU; a layer's {:.0} MB stream in {layer_us:.0} µs at {:.0} % of {} TB/s",
        spec.weights_per_gpu() / 1e9,
        layer_bytes / 1e6,
        gpu.weight_efficiency * 100.0,
        gpu.bandwidth_tb_s
    );
    let _ = writeln!(
        text,
        "KV: {:.0} bytes a token; {} × {} GB − weights − {} GB leave the cache",
        spec.kv_bytes_per_layer() * f64::from(model.layers),
        spec.memory_utilisation,
        gpu.memory_gb,
        spec.reserved_gb
    );
    let _ =
        writeln!(text, "derived from kernel tables and data sheets, not measured end to end: expect ±10 %");
}

/// Milliseconds of a step in which `batch` sequences decode, each attending to `context` tokens.
pub fn decode_step_ms(model: &mut StepModel, batch: u32, context: u32) -> f64 {
    let context = u64::from(batch) * u64::from(context);
    let load = StepLoad { tokens: batch, decodes: batch, context, chunks: 0, prefill_pairs: 0, rows: batch };
    model.picoseconds(&load) as f64 / 1e9
}

/// Milliseconds of a step that computes one prompt of this many tokens and nothing else.
pub fn prefill_step_ms(model: &mut StepModel, prompt_tokens: u32) -> f64 {
    let prefill_pairs = u64::from(prompt_tokens) * u64::from(prompt_tokens);
    let load = StepLoad { tokens: prompt_tokens, chunks: 1, prefill_pairs, rows: 1, ..StepLoad::default() };
    model.picoseconds(&load) as f64 / 1e9
}
