//! What an engine is, as its user writes it: the mode, its sizes, the laws of its times, and the checks on all of it.
//!
//! One struct per mode is the file section, the manifest section and the function argument. An alternative was a flat
//! list of optional fields; it lost because a queue with a token budget would then be a legal thing to write.

pub mod dynamic;
pub mod error;
pub mod fault;
pub mod fleet;
pub mod gpu;
pub mod law;
pub mod origin;
pub mod shape;

pub use error::{BLOCK_TOKENS, SpecError};

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

/// Largest per-step token budget that is accepted: the step model keeps a table of this length.
pub const MAX_TOKEN_BUDGET: u32 = 1 << 20;

/// Largest number of servers or concurrent sequences that is accepted.
pub const MAX_SLOTS: u32 = 1 << 20;

/// An engine to be simulated. In a file it is either a `mode` with all its figures, or a `model` and a `gpu` of the
/// catalogue, which resolve to one: see [`crate::catalogue::PairSpec`].
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "Map<String, Value>")]
#[schemars(try_from = "EngineFile")]
pub struct EngineSpec {
    /// What it stands for; shown in reports, without effect on the simulation.
    pub name: String,
    /// How it behaves.
    pub mode: ModeSpec,
}

/// How an engine behaves.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum ModeSpec {
    /// Times drawn per request, nothing shared between requests.
    Canned(CannedSpec),
    /// First come, first served, by c servers.
    Queue(QueueSpec),
    /// Continuous batching with a paged KV cache.
    Batching(BatchingSpec),
    /// Batches of whole requests, as Triton's dynamic batcher makes them.
    Dynamic(DynamicSpec),
}

/// Every answer follows drawn times whatever the load: the truth for tests of a client's stamps.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CannedSpec {
    /// From the submission to the first token.
    pub ttft: LawSpec,
    /// Between two tokens.
    pub gap: LawSpec,
}

/// A queue in front of `servers` equal servers, first come first served.
///
/// A request holds one server for a drawn time. Its first token leaves after a share 1/n of it, n being the tokens of
/// its answer, and the others follow evenly; an answer of one token leaves when the service ends.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct QueueSpec {
    /// Servers (c). At least 1.
    pub servers: u32,
    /// Law of the service time.
    pub service: LawSpec,
    /// Most requests that may wait; further ones are refused. Without it the queue is unbounded.
    #[serde(default)]
    pub queue_limit: Option<u32>,
}

/// Batching of sequences over a paged KV cache, step by step, by the rules of one of four engines.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct BatchingSpec {
    /// Whose rules decide who is computed next. Without it, vLLM v1's.
    #[serde(default)]
    pub policy: PolicySpec,
    /// Are KV blocks found again by equal prefixes? Matters only where requests name their blocks.
    #[serde(default = "yes")]
    pub prefix_cache: bool,
    /// Most sequences running at once.
    #[serde(default = "default_max_seqs")]
    pub max_seqs: u32,
    /// Most tokens computed in one step (vLLM: `max_num_batched_tokens`).
    #[serde(default = "default_token_budget")]
    pub token_budget: u32,
    /// May a prompt be split over steps? Without it a prompt that is larger than what is left waits, and all behind it.
    #[serde(default = "yes")]
    pub chunked_prefill: bool,
    /// Most tokens of one prompt in one step; 0 = no such limit (vLLM: `long_prefill_token_threshold`).
    #[serde(default)]
    pub long_prefill_threshold: u32,
    /// KV cache in blocks of 16 tokens. Without it, what the step model's memory leaves.
    #[serde(default)]
    pub kv_blocks: Option<u32>,
    /// Share of the blocks kept free when admitting beside running sequences, 0 to 1.
    #[serde(default)]
    pub kv_watermark: f64,
    /// Most tokens of one sequence, prompt and answer (vLLM: `max_model_len`). Without it, what the KV cache holds.
    #[serde(default)]
    pub max_context: Option<u32>,
    /// Most requests that may wait; further ones are refused. Without it the queue is unbounded.
    #[serde(default)]
    pub queue_limit: Option<u32>,
    /// From the submission to the scheduler's queue: HTTP, tokenisation, hand-over. Milliseconds.
    #[serde(default)]
    pub front_ms: f64,
    /// What the front end spends on each token that it streams, one after the other and beside the next step, µs.
    #[serde(default)]
    pub emit_us: f64,
    /// Speculative decoding, where there is any.
    #[serde(default)]
    pub speculative: Option<SpeculativeSpec>,
    /// What a step costs.
    pub step: StepSpec,
    /// Where the figures come from; without effect on the simulation.
    #[serde(default)]
    pub origin: Option<Box<OriginSpec>>,
}

/// What a step costs.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum StepSpec {
    /// Linear in what the step holds.
    Linear(LinearSpec),
    /// From model and GPU, by a roofline.
    Roofline(Box<RooflineSpec>),
}

/// Step time linear in what the step holds.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LinearSpec {
    /// Every step, microseconds.
    pub base_us: f64,
    /// Per sequence that decodes in it, microseconds.
    pub decode_us: f64,
    /// Per prompt token in it, microseconds.
    pub prefill_us: f64,
    /// Per token of context of the sequences that decode, nanoseconds.
    #[serde(default)]
    pub context_ns: f64,
    /// A part that is the longer of reading the weights and computing the tokens; without it the step is linear.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub overlap: Option<OverlapSpec>,
}

/// Reading the weights and computing the tokens at the same time: few tokens ride for nothing, many cost their work.
#[derive(Copy, Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct OverlapSpec {
    /// Reading the weights, microseconds.
    pub weights_us: f64,
    /// Computing a token, of a prompt or of a decode, microseconds.
    pub token_us: f64,
}

impl OverlapSpec {
    /// What a step with so many tokens takes of it: √(weights² + (token × tokens)²), µs. Kernels' tables bend with powers from
    /// 1.2 to 3.2, by GPU and dtype; 2 stands between them.
    pub fn us(&self, tokens: f64) -> f64 {
        libm::hypot(self.weights_us, self.token_us * tokens)
    }
}

impl EngineSpec {
    /// Checks everything that the types can't.
    ///
    /// # Errors
    /// The first thing found wrong, as [`SpecError`].
    pub fn validate(&self) -> Result<(), SpecError> {
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
    fn validate(&self) -> Result<(), SpecError> {
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

    /// KV blocks: as given, else what the memory of the step model leaves.
    ///
    /// # Errors
    /// None are given and none can be derived, or there are zero.
    pub fn blocks(&self) -> Result<u32, SpecError> {
        match (self.kv_blocks, &self.step) {
            (Some(0), _) => Err(SpecError::NoKvBlocks { why: "mode.kv_blocks is 0".to_owned() }),
            // Blocks that an engine printed are believed; that it ran at all is not.
            (Some(blocks), StepSpec::Roofline(roofline)) => roofline.left_gb().map(|_| blocks),
            (Some(blocks), StepSpec::Linear(_)) => Ok(blocks),
            (None, StepSpec::Linear(_)) => Err(SpecError::KvBlocksMissing),
            (None, StepSpec::Roofline(roofline)) => roofline.kv_blocks(),
        }
    }
}

impl LinearSpec {
    fn validate(&self) -> Result<(), SpecError> {
        not_negative("mode.step.base_us", self.base_us)?;
        not_negative("mode.step.decode_us", self.decode_us)?;
        not_negative("mode.step.prefill_us", self.prefill_us)?;
        not_negative("mode.step.context_ns", self.context_ns)?;
        if let Some(overlap) = &self.overlap {
            not_negative("mode.step.overlap.weights_us", overlap.weights_us)?;
            not_negative("mode.step.overlap.token_us", overlap.token_us)?;
        }
        // A step that takes no time would let virtual time stand still for ever.
        if self.base_us < 0.001 {
            return Err(range("mode.step.base_us", self.base_us, "at least 0.001 (a nanosecond)"));
        }
        Ok(())
    }
}

/// vLLM v1 on GPUs of 70 GiB and more.
fn default_max_seqs() -> u32 {
    1024
}

/// vLLM v1's server on GPUs of 70 GiB and more.
fn default_token_budget() -> u32 {
    8192
}

fn yes() -> bool {
    true
}
