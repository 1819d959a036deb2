//! The configuration of the scheduling policy, by engine.
//!
//! There is one struct per policy, in addition to the shared sizes (`max_seqs`, `token_budget`, `kv_blocks`, …).
//! Options of one engine can't be set for another.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::spec::error::{SimSpecError, not_negative, positive, within};

/// The scheduling policy.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum PolicySpec {
    /// vLLM v1: running sequences first, then waiting ones; without free blocks, the last running one is preempted.
    Vllm(VllmSpec),
    /// SGLang: separate prefill steps first; admission by an estimate of the blocks that responses will need.
    Sglang(SglangSpec),
    /// TensorRT-LLM's guaranteed no evict: a request starts when its whole response fits.
    NoEvict(NoEvictSpec),
    /// Static batching: wait for a batch, pad it, send its responses together.
    Static(StaticSpec),
}

impl Default for PolicySpec {
    fn default() -> PolicySpec {
        PolicySpec::Vllm(VllmSpec::default())
    }
}

/// The options of the scheduler of vLLM v1.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct VllmSpec {
    /// Order of waiting sequences, and reverse order of preemption [default: fcfs].
    #[serde(default)]
    pub order: VllmOrder,
    /// Start a request only if all its pending tokens fit into the free blocks, not only its first chunk (vLLM:
    /// `scheduler_reserve_full_isl`).
    #[serde(default = "yes")]
    pub reserve_full: bool,
}

impl Default for VllmSpec {
    fn default() -> VllmSpec {
        VllmSpec { order: VllmOrder::Fcfs, reserve_full: true }
    }
}

/// The scheduling orders of vLLM.
#[derive(Copy, Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum VllmOrder {
    /// First come, first served; the last started sequence is preempted first.
    #[default]
    Fcfs,
    /// By priority (1 first, requests without one last), then by arrival; the last in this order is preempted first.
    Priority,
}

/// The options of SGLang. Its `chunked_prefill_size` is `token_budget`.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SglangSpec {
    /// Order of waiting sequences [default: fcfs].
    #[serde(default)]
    pub order: SglangOrder,
    /// Maximum prompt tokens in a step, except for the first prompt (SGLang: `max_prefill_tokens`).
    #[serde(default = "default_max_prefill_tokens")]
    pub max_prefill_tokens: u32,
    /// Conservativeness of admission (SGLang: `schedule_conservativeness`).
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

/// The simulated scheduling orders of SGLang.
#[derive(Copy, Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum SglangOrder {
    /// First come, first served: SGLang's default.
    #[default]
    Fcfs,
    /// Longest cached prefix first; first come, first served if more than 128 wait. The default of older versions.
    Lpm,
}

/// The options of guaranteed no evict (none).
#[derive(Clone, PartialEq, Default, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NoEvictSpec {}

/// The options of static batching.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct StaticSpec {
    /// Number of requests of a full batch.
    pub batch: u32,
    /// Maximum wait in ms of the first request before a smaller batch starts.
    pub wait_ms: f64,
}

impl PolicySpec {
    pub(crate) fn validate(&self) -> Result<(), SimSpecError> {
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
