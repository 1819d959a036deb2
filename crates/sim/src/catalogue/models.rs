//! The models of the catalogue: shapes from their public configurations.
//!
//! The list contains only shapes that are known with certainty, because the error of a wrong width is invisible in
//! results.

use crate::spec::shape::{ExpertsSpec, LatentSpec, ModelShape, WindowSpec};

#[derive(Clone, PartialEq, Debug)]
pub struct Model {
    pub name: &'static str,
    pub title: &'static str,
    /// Shape in bf16 with a KV cache in bf16, except for parts that are published quantised.
    pub shape: ModelShape,
    /// Maximum context of the model in tokens.
    pub max_context: u32,
    /// Published dtype; `None` for bf16.
    pub published: Option<&'static str>,
}

/// Layers, hidden, ffn, query heads, KV heads, head size, vocabulary.
type Dims = [u32; 7];

/// Returns every model in display order.
pub fn all() -> Vec<Model> {
    let mut models = dense();
    models.extend(mixtures());
    models
}

fn dense() -> Vec<Model> {
    let whole = |name, title, dims, context| model(name, title, dims, context, false);
    let tied = |name, title, dims, context| model(name, title, dims, context, true);
    vec![
        whole("llama-3.1-8b", "Llama-3.1-8B", [32, 4096, 14_336, 32, 8, 128, 128_256], 131_072),
        whole("llama-3.1-70b", "Llama-3.1-70B", [80, 8192, 28_672, 64, 8, 128, 128_256], 131_072),
        whole("llama-3.1-405b", "Llama-3.1-405B", [126, 16_384, 53_248, 128, 8, 128, 128_256], 131_072),
        tied("llama-3.2-1b", "Llama-3.2-1B", [16, 2048, 8192, 32, 8, 64, 128_256], 131_072),
        tied("llama-3.2-3b", "Llama-3.2-3B", [28, 3072, 8192, 24, 8, 128, 128_256], 131_072),
        whole("llama-3.3-70b", "Llama-3.3-70B", [80, 8192, 28_672, 64, 8, 128, 128_256], 131_072),
        whole("llama-3-8b", "Llama-3-8B", [32, 4096, 14_336, 32, 8, 128, 128_256], 8192),
        whole("llama-3-70b", "Llama-3-70B", [80, 8192, 28_672, 64, 8, 128, 128_256], 8192),
        whole("llama-2-7b", "Llama-2-7B", [32, 4096, 11_008, 32, 32, 128, 32_000], 4096),
        whole("llama-2-13b", "Llama-2-13B", [40, 5120, 13_824, 40, 40, 128, 32_000], 4096),
        whole("llama-2-70b", "Llama-2-70B", [80, 8192, 28_672, 64, 8, 128, 32_000], 4096),
        whole("codellama-34b", "CodeLlama-34B", [48, 8192, 22_016, 64, 8, 128, 32_000], 16_384),
        whole("mistral-7b", "Mistral-7B v0.3", [32, 4096, 14_336, 32, 8, 128, 32_768], 32_768),
        whole("qwen2.5-7b", "Qwen2.5-7B", [28, 3584, 18_944, 28, 4, 128, 152_064], 32_768),
        whole("qwen2.5-14b", "Qwen2.5-14B", [48, 5120, 13_824, 40, 8, 128, 152_064], 32_768),
        whole("qwen2.5-32b", "Qwen2.5-32B", [64, 5120, 27_648, 40, 8, 128, 152_064], 32_768),
        whole("qwen2.5-72b", "Qwen2.5-72B", [80, 8192, 29_568, 64, 8, 128, 152_064], 32_768),
        whole("qwen3-8b", "Qwen3-8B", [36, 4096, 12_288, 32, 8, 128, 151_936], 40_960),
        whole("qwen3-14b", "Qwen3-14B", [40, 5120, 17_408, 40, 8, 128, 151_936], 40_960),
        whole("qwen3-32b", "Qwen3-32B", [64, 5120, 25_600, 64, 8, 128, 151_936], 40_960),
    ]
}

fn mixtures() -> Vec<Model> {
    let choice = |count, per_token| ExpertsSpec {
        count,
        per_token,
        shared: 0,
        weight_bytes: None,
        dense_layers: 0,
        dense_ffn: 0,
    };
    vec![
        with_experts(
            model("mixtral-8x7b", "Mixtral-8x7B", [32, 4096, 14_336, 32, 8, 128, 32_000], 32_768, false),
            choice(8, 2),
        ),
        with_experts(
            model("mixtral-8x22b", "Mixtral-8x22B", [56, 6144, 16_384, 48, 8, 128, 32_768], 65_536, false),
            choice(8, 2),
        ),
        with_experts(
            model("qwen3-30b-a3b", "Qwen3-30B-A3B", [48, 2048, 768, 32, 4, 128, 151_936], 40_960, false),
            choice(128, 8),
        ),
        with_experts(
            model("qwen3-235b-a22b", "Qwen3-235B-A22B", [94, 4096, 1536, 64, 4, 128, 151_936], 40_960, false),
            choice(128, 8),
        ),
        gpt_oss("gpt-oss-20b", "gpt-oss-20b", 24, 32),
        gpt_oss("gpt-oss-120b", "gpt-oss-120b", 36, 128),
        deepseek_v3("deepseek-v3", "DeepSeek-V3"),
        deepseek_v3("deepseek-r1", "DeepSeek-R1"),
    ]
}

fn model(name: &'static str, title: &'static str, dims: Dims, max_context: u32, tied_head: bool) -> Model {
    let [layers, hidden, ffn, q_heads, kv_heads, head_dim, vocab] = dims;
    let shape = ModelShape {
        layers,
        hidden,
        q_heads,
        kv_heads,
        head_dim,
        ffn,
        vocab,
        weight_bytes: 2.0,
        head_weight_bytes: 2.0,
        kv_bytes: 2.0,
        tied_head,
        experts: None,
        latent: None,
        window: None,
    };
    Model { name, title, shape, max_context, published: None }
}

fn with_experts(model: Model, experts: ExpertsSpec) -> Model {
    Model { shape: ModelShape { experts: Some(experts), ..model.shape.clone() }, ..model }
}

/// Experts in MXFP4 (4 bits and a shared exponent of 8 bits per 32 values: 17/32 bytes), all else in bf16. Every
/// other layer attends to 128 tokens.
fn gpt_oss(name: &'static str, title: &'static str, layers: u32, count: u32) -> Model {
    let base = model(name, title, [layers, 2880, 2880, 64, 8, 64, 201_088], 131_072, false);
    let experts = ExpertsSpec {
        count,
        per_token: 4,
        shared: 0,
        weight_bytes: Some(17.0 / 32.0),
        dense_layers: 0,
        dense_ffn: 0,
    };
    let window = Some(WindowSpec { tokens: 128, layers: layers / 2 });
    Model {
        shape: ModelShape { experts: Some(experts), window, ..base.shape },
        published: Some("fp4"),
        ..base
    }
}

/// Published in fp8. The layer that predicts a second token is left out because it serves only as a draft.
fn deepseek_v3(name: &'static str, title: &'static str) -> Model {
    let base = model(name, title, [61, 7168, 2048, 128, 128, 192, 129_280], 163_840, false);
    let experts = ExpertsSpec {
        count: 256,
        per_token: 8,
        shared: 1,
        weight_bytes: None,
        dense_layers: 3,
        dense_ffn: 18_432,
    };
    let latent = LatentSpec { q_rank: 1536, kv_rank: 512, rope_dim: 64, nope_dim: 128, v_dim: 128 };
    let shape = ModelShape { experts: Some(experts), latent: Some(latent), weight_bytes: 1.0, ..base.shape };
    Model { shape, published: Some("fp8"), ..base }
}
