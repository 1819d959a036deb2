//! The configuration of an engine: its mode, sizes and time distributions, and the checks of all these.
//!
//! One struct per mode is the file section, the manifest section and the function argument. A flat list of optional
//! fields was rejected, because a queue with a token budget would then be valid.

pub mod dynamic;
pub mod error;
pub mod fault;
pub mod fleet;
pub mod gpu;
pub mod law;
pub mod origin;
pub mod shape;

pub use error::{BLOCK_TOKENS, SimSpecError};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::catalogue::engine_file::EngineFile;
use crate::engine::roofline::RooflineSpec;
use crate::engine::scheduler::policy::PolicySpec;
use crate::engine::speculation::{DraftSpec, SpeculativeSpec};
use crate::spec::dynamic::DynamicSpec;
use crate::spec::error::{not_negative, range, within};
use crate::spec::law::LawSpec;
use crate::spec::origin::OriginSpec;

/// Maximum accepted token budget per step, because the step model keeps a table of this length.
pub const MAX_TOKEN_BUDGET: u32 = 1 << 20;

/// Maximum accepted number of servers or concurrent sequences.
pub const MAX_SLOTS: u32 = 1 << 20;

/// A simulated engine. A file has either a `mode` with all its figures, or a `model` and a `gpu` of the catalogue.
/// The latter resolve to a mode: see [`crate::catalogue::PairSpec`].
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "Map<String, Value>")]
#[schemars(try_from = "EngineFile")]
pub struct EngineSpec {
    /// Name for reports, without effect on the simulation.
    pub name: String,
    /// Mode of the engine with its figures.
    pub mode: ModeSpec,
}

/// The mode of an engine.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum ModeSpec {
    /// Times drawn per request; requests do not influence each other.
    Canned(CannedSpec),
    /// First come, first served, with c servers.
    Queue(QueueSpec),
    /// Continuous batching with a paged KV cache.
    Batching(BatchingSpec),
    /// Batches of whole requests, as in Triton's dynamic batcher.
    Dynamic(DynamicSpec),
}

/// Responses with drawn times at any load: the reference for tests of a client's timestamps.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CannedSpec {
    /// Distribution of the time to first token.
    pub ttft: LawSpec,
    /// Distribution of the time between two tokens.
    pub gap: LawSpec,
}

/// A queue in front of `servers` equal servers, first come first served.
///
/// A request occupies one server for a drawn time. With n output tokens, the first leaves after 1/n of it and the
/// others follow evenly. A response of one token leaves at the end of the service.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct QueueSpec {
    /// Number of servers (c), at least 1.
    pub servers: u32,
    /// Distribution of the service time of a request.
    pub service: LawSpec,
    /// Maximum number of waiting requests; further ones are rejected [default: no limit].
    #[serde(default)]
    pub queue_limit: Option<u32>,
}

/// Continuous batching over a paged KV cache, step by step, with the scheduler of one of four engines.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct BatchingSpec {
    /// Settings of the scheduler [default: vLLM v1].
    #[serde(default)]
    pub policy: PolicySpec,
    /// Prefix caching of KV blocks; effective only if requests have block hashes [default: true].
    #[serde(default = "yes")]
    pub prefix_cache: bool,
    /// Maximum number of running sequences [default: 1024].
    #[serde(default = "default_max_seqs")]
    pub max_seqs: u32,
    /// Maximum number of tokens computed in one step (vLLM: `max_num_batched_tokens`) [default: 8192].
    #[serde(default = "default_token_budget")]
    pub token_budget: u32,
    /// Chunked prefill; without it a prompt over the remaining budget waits, and blocks the queue [default: true].
    #[serde(default = "yes")]
    pub chunked_prefill: bool,
    /// Maximum number of tokens of one prompt per step (vLLM: `long_prefill_token_threshold`) [default: 0, no limit].
    #[serde(default)]
    pub long_prefill_threshold: u32,
    /// KV cache size in blocks of 16 tokens [default: derived from the memory of the step model].
    #[serde(default)]
    pub kv_blocks: Option<u32>,
    /// Share of the KV blocks kept free when a request is admitted next to running ones, 0 to 1 [default: 0].
    #[serde(default)]
    pub kv_watermark: f64,
    /// Maximum number of tokens of one sequence, prompt and output (vLLM: `max_model_len`) [default: the size of the
    /// KV cache].
    #[serde(default)]
    pub max_context: Option<u32>,
    /// Maximum number of waiting requests; further ones are rejected [default: no limit].
    #[serde(default)]
    pub queue_limit: Option<u32>,
    /// Time in ms from the submission to the scheduler's queue: HTTP, tokenisation, hand-over [default: 0].
    #[serde(default)]
    pub front_ms: f64,
    /// Front-end time per streamed token in µs, in sequence and concurrent with the next step [default: 0].
    #[serde(default)]
    pub emit_us: f64,
    /// Settings of speculative decoding [default: none].
    #[serde(default)]
    pub speculative: Option<SpeculativeSpec>,
    /// Cost of one step of the engine.
    pub step: StepSpec,
    /// Origin of the figures, without effect on the simulation.
    #[serde(default)]
    pub origin: Option<Box<OriginSpec>>,
}

/// The cost of one step of the engine.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum StepSpec {
    /// Linear in the contents of the step.
    Linear(LinearSpec),
    /// From model and GPU, by a roofline.
    Roofline(Box<RooflineSpec>),
}

/// Step time linear in the contents of the step.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LinearSpec {
    /// Constant part of the time per step in µs.
    pub base_us: f64,
    /// Time per decoding sequence in µs.
    pub decode_us: f64,
    /// Time per prompt token in µs.
    pub prefill_us: f64,
    /// Time per context token of the decoding sequences in ns.
    #[serde(default)]
    pub context_ns: f64,
    /// Additional part in which reading the weights overlaps with computing the tokens [default: none].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub overlap: Option<OverlapSpec>,
}

/// The overlap of reading the weights with computing the tokens. A few tokens cost nothing extra, many tokens cost
/// their compute time.
#[derive(Copy, Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct OverlapSpec {
    /// Time to read the weights in µs.
    pub weights_us: f64,
    /// Time to compute a token, prefill or decode, in µs.
    pub token_us: f64,
}

impl OverlapSpec {
    /// Returns the time of the overlapping part in µs: √(weights² + (token × tokens)²). Kernel tables have powers
    /// from 1.2 to 3.2, by GPU and dtype; 2 is in between.
    pub fn us(&self, tokens: f64) -> f64 {
        libm::hypot(self.weights_us, self.token_us * tokens)
    }
}

impl EngineSpec {
    /// Checks all constraints that the types do not express.
    ///
    /// # Errors
    /// Fails with the first violation, as [`SimSpecError`].
    pub fn validate(&self) -> Result<(), SimSpecError> {
        match &self.mode {
            ModeSpec::Canned(canned) => {
                canned.ttft.validate("mode.ttft")?;
                canned.gap.validate("mode.gap")
            }
            ModeSpec::Queue(queue) => {
                within("mode.servers", queue.servers, 1, MAX_SLOTS, "a whole number from 1 to 1048576")?;
                queue.service.validate("mode.service")
            }
            ModeSpec::Batching(batching) => batching.validate(),
            ModeSpec::Dynamic(dynamic) => dynamic.validate(),
        }
    }
}

impl BatchingSpec {
    fn validate(&self) -> Result<(), SimSpecError> {
        within("mode.max_seqs", self.max_seqs, 1, MAX_SLOTS, "a whole number from 1 to 1048576")?;
        let budget = "a whole number from 1 to 1048576";
        within("mode.token_budget", self.token_budget, 1, MAX_TOKEN_BUDGET, budget)?;
        if let Some(context) = self.max_context {
            within("mode.max_context", context, 1, u32::MAX, "a whole number from 1")?;
        }
        if !(0.0..1.0).contains(&self.kv_watermark) {
            return Err(range("mode.kv_watermark", self.kv_watermark, "a share from 0 to below 1"));
        }
        not_negative("mode.front_ms", self.front_ms)?;
        not_negative("mode.emit_us", self.emit_us)?;
        self.policy.validate()?;
        if let Some(speculative) = &self.speculative {
            speculative.validate()?;
            let shaped = matches!(speculative.draft, DraftSpec::Layers { .. } | DraftSpec::Model { .. });
            if shaped && matches!(self.step, StepSpec::Linear(_)) {
                let expected = "possible with a linear step; write kind: lookup or kind: linear";
                return Err(range("mode.speculative.draft", "a draft with a shape", expected));
            }
        }
        match &self.step {
            StepSpec::Linear(linear) => linear.validate()?,
            StepSpec::Roofline(roofline) => roofline.validate()?,
        }
        self.blocks().map(|_| ())
    }

    /// Returns the KV blocks: as given, else derived from the memory of the step model.
    ///
    /// # Errors
    /// Fails if the blocks are neither given nor derivable, or if there are zero.
    pub fn blocks(&self) -> Result<u32, SimSpecError> {
        match (self.kv_blocks, &self.step) {
            (Some(0), _) => Err(SimSpecError::NoKvBlocks { why: "mode.kv_blocks is 0".to_owned() }),
            // A number of blocks that an engine printed is trusted, but the weights must still fit.
            (Some(blocks), StepSpec::Roofline(roofline)) => roofline.left_gb().map(|_| blocks),
            (Some(blocks), StepSpec::Linear(_)) => Ok(blocks),
            (None, StepSpec::Linear(_)) => Err(SimSpecError::KvBlocksMissing),
            (None, StepSpec::Roofline(roofline)) => roofline.kv_blocks(),
        }
    }
}

impl LinearSpec {
    fn validate(&self) -> Result<(), SimSpecError> {
        not_negative("mode.step.base_us", self.base_us)?;
        not_negative("mode.step.decode_us", self.decode_us)?;
        not_negative("mode.step.prefill_us", self.prefill_us)?;
        not_negative("mode.step.context_ns", self.context_ns)?;
        if let Some(overlap) = &self.overlap {
            not_negative("mode.step.overlap.weights_us", overlap.weights_us)?;
            not_negative("mode.step.overlap.token_us", overlap.token_us)?;
        }
        // A step must take time, because virtual time would otherwise never advance.
        if self.base_us < 0.001 {
            return Err(range("mode.step.base_us", self.base_us, "at least 0.001 (a nanosecond)"));
        }
        Ok(())
    }
}

/// Returns the default of vLLM v1 on GPUs of 70 GiB and more.
fn default_max_seqs() -> u32 {
    1024
}

/// Returns the default of vLLM v1's server on GPUs of 70 GiB and more.
fn default_token_budget() -> u32 {
    8192
}

fn yes() -> bool {
    true
}
