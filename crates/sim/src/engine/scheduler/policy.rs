//! Which engine's rules decide who is computed next, as the user writes it.
//!
//! One struct per policy, beside the sizes that all of them share (`max_seqs`, `token_budget`, `kv_blocks`, …). Options
//! that only one engine has can't be written for another.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::spec::error::{SpecError, not_negative, positive, within};

/// Who is computed next.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum PolicySpec {
    /// vLLM v1: the running first, then the waiting; who finds no blocks takes them from the last.
    Vllm(VllmSpec),
    /// SGLang: prompts first and alone, admission by an estimate of what answers will need.
    Sglang(SglangSpec),
    /// TensorRT-LLM's guaranteed no evict: a request starts when its whole answer fits.
    NoEvict(NoEvictSpec),
    /// Static batching: wait for a batch, pad it, answer it together.
    Static(StaticSpec),
}

impl Default for PolicySpec {
    fn default() -> PolicySpec {
        PolicySpec::Vllm(VllmSpec::default())
    }
}

/// vLLM v1's options.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct VllmSpec {
    /// Who goes first among the waiting, and who loses its place last.
    #[serde(default)]
    pub order: VllmOrder,
    /// A request starts only if all it has to compute by then fits into the free blocks, not just its first chunk
    /// (vLLM: `scheduler_reserve_full_isl`).
    #[serde(default = "yes")]
    pub reserve_full: bool,
}

impl Default for VllmSpec {
    fn default() -> VllmSpec {
        VllmSpec { order: VllmOrder::Fcfs, reserve_full: true }
    }
}

/// vLLM's scheduling policies.
#[derive(Copy, Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum VllmOrder {
    /// First come, first served; the last to start is the first to lose its place.
    #[default]
    Fcfs,
    /// By priority (1 first, requests without one last), then by arrival; the largest of both loses its place.
    Priority,
}

/// SGLang's options. Its `chunked_prefill_size` is `token_budget`.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SglangSpec {
    /// Order of the waiting.
    #[serde(default)]
    pub order: SglangOrder,
    /// Most prompt tokens in a step, for all but the first prompt (SGLang: `max_prefill_tokens`).
    #[serde(default = "default_max_prefill_tokens")]
    pub max_prefill_tokens: u32,
    /// How careful admission is (SGLang: `schedule_conservativeness`).
    #[serde(default = "one")]
    pub conservativeness: f64,
}

impl Default for SglangSpec {
    fn default() -> SglangSpec {
        SglangSpec {
            order: SglangOrder::default(),
            max_prefill_tokens: default_max_prefill_tokens(),
            conservativeness: 1.0,
        }
    }
}

/// SGLang's orders of the waiting that are simulated.
#[derive(Copy, Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum SglangOrder {
    /// As they came: SGLang's default.
    #[default]
    Fcfs,
    /// Longest cached prefix first; as they came where more than 128 wait. The default of older versions.
    Lpm,
}

/// Guaranteed no evict has no options.
#[derive(Clone, PartialEq, Default, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NoEvictSpec {}

/// Static batching.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct StaticSpec {
    /// Requests of a full batch.
    pub batch: u32,
    /// A smaller one starts when its first request has waited this long. Milliseconds.
    pub wait_ms: f64,
}

impl PolicySpec {
    pub(crate) fn validate(&self) -> Result<(), SpecError> {
        match self {
            PolicySpec::Vllm(_) | PolicySpec::NoEvict(_) => Ok(()),
            PolicySpec::Sglang(sglang) => {
                let tokens = "a whole number from 1";
                within("mode.policy.max_prefill_tokens", sglang.max_prefill_tokens, 1, u32::MAX, tokens)?;
                positive("mode.policy.conservativeness", sglang.conservativeness)
            }
            PolicySpec::Static(fixed) => {
                within("mode.policy.batch", fixed.batch, 1, 1 << 20, "a whole number from 1 to 1048576")?;
                not_negative("mode.policy.wait_ms", fixed.wait_ms)
            }
        }
    }
}

fn yes() -> bool {
    true
}

fn one() -> f64 {
    1.0
}

fn default_max_prefill_tokens() -> u32 {
    16_384
}
