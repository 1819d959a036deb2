//! Models × GPUs → engines, by name or by a short file section.
//!
//! `MODEL[-DTYPE]@GPU[xTP]` names any pair: `llama-3.1-70b-fp8@h200x2`. The file section has more options and
//! resolves to the full specification, so that a run shows every default. A table of ready profiles was rejected
//! because it can't list a few hundred pairs, and users would guess the missing ones.

mod batch_profiles;
pub mod engine_file;
pub mod gpus;
pub mod list;
pub mod models;
pub mod origin;
pub mod profile;

use plimsoll_workload::closest;
use schemars::{JsonSchema, Schema};
use serde::{Deserialize, Serialize};

pub use gpus::Gpu;
pub use models::Model;

use crate::catalogue::origin::{OriginSpec, ProfileBasis};
use crate::engine::roofline::{HostSpec, RooflineSpec};
use crate::engine::scheduler::policy::{NoEvictSpec, PolicySpec, SglangSpec};
use crate::engine::speculation::{self, DraftSpec, SpeculativeSpec};
use crate::spec::error::{BLOCK_TOKENS, SimSpecError};
use crate::spec::shape::ModelShape;
use crate::spec::{BatchingSpec, EngineSpec, ModeSpec, StepSpec};

/// Number of suggestions for an unknown name, because the catalogue is too long for one line.
pub(crate) const NEAREST: usize = 4;

/// A model on a GPU, as in a file.
#[derive(Clone, PartialEq, Default, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PairSpec {
    /// Name for reports [default: the name of the pair].
    #[serde(default)]
    pub name: Option<String>,
    /// Name of the model in the catalogue.
    pub model: String,
    /// Name of the GPU in the catalogue.
    pub gpu: String,
    /// Dtype of the weights [default: the published one].
    #[serde(default)]
    pub dtype: Option<Dtype>,
    /// Dtype of the KV cache.
    #[serde(default)]
    pub kv_dtype: Option<Dtype>,
    /// Number of GPUs that share each layer: 1, 2, 4 or 8.
    #[serde(default)]
    pub tensor_parallel: Option<u32>,
    /// Number of GPU groups that the experts are distributed over as a whole.
    #[serde(default)]
    pub expert_parallel: Option<u32>,
    /// Tokens of the busiest of those groups over the mean.
    #[serde(default)]
    pub expert_skew: Option<f64>,
    /// Serving engine that is simulated [default: vllm].
    #[serde(default)]
    pub server: Server,
    /// Version of the serving engine, without effect on the figures.
    #[serde(default)]
    pub version: Option<String>,
    /// KV cache size in blocks of 16 tokens, as printed by the engine at start-up [default: derived from the memory].
    #[serde(default)]
    pub kv_blocks: Option<u32>,
    /// Scheduling policy [default: that of the server].
    #[serde(default)]
    pub policy: Option<PolicySpec>,
    /// Whether prefixes are cached [default: true].
    #[serde(default)]
    pub prefix_cache: Option<bool>,
    /// Share of the GPU memory that the engine may use.
    #[serde(default)]
    pub memory_utilisation: Option<f64>,
    /// Maximum number of running sequences.
    #[serde(default)]
    pub max_seqs: Option<u32>,
    /// Maximum number of tokens computed in one step.
    #[serde(default)]
    pub token_budget: Option<u32>,
    /// Maximum number of tokens of one sequence.
    #[serde(default)]
    pub max_context: Option<u32>,
    /// Maximum number of waiting requests.
    #[serde(default)]
    pub queue_limit: Option<u32>,
    /// Factor on decode attention in steps with prompts.
    #[serde(default)]
    pub kappa: Option<f64>,
    /// Additional time of the host [default: the known figures of the server].
    #[serde(default)]
    pub host: Option<HostSpec>,
    /// Time from the submission to the scheduler's queue in ms.
    #[serde(default)]
    pub front_ms: Option<f64>,
    /// Front-end time per streamed token in µs.
    #[serde(default)]
    pub emit_us: Option<f64>,
    /// Settings of speculative decoding [default: none].
    #[serde(default)]
    pub speculative: Option<DraftChoice>,
}

/// The dtype of weights or of a KV cache.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Dtype {
    /// 16 bits, bf16 or fp16.
    #[serde(alias = "fp16")]
    #[schemars(transform = also_fp16)]
    Bf16,
    /// 8 bits, of any format.
    Fp8,
    /// 4 bits with an exponent shared by 32 values (weights only).
    Fp4,
}

/// A serving engine: its scheduling rules, and its known host costs.
#[derive(Copy, Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Server {
    /// vLLM with the v1 engine.
    #[default]
    Vllm,
    Sglang,
    #[serde(alias = "trtllm")]
    #[schemars(transform = also_trtllm)]
    TensorrtLlm,
}

/// Speculative decoding, as in a file.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DraftChoice {
    /// Number of tokens that the draft proposes per sequence and step.
    pub draft_tokens: u32,
    /// Mean number of tokens per sequence and step; alternative to `accepted_like`.
    #[serde(default)]
    pub accepted_length: Option<f64>,
    /// Name of a draft with a published accepted length.
    #[serde(default)]
    pub accepted_like: Option<String>,
    /// Cost of the tokens that the draft proposes.
    #[serde(default)]
    pub draft: DraftSpec,
}

/// Adds a second name of a value, because the schema ignores serde aliases and validators would reject them.
fn also(schema: &mut Schema, alias: &str) {
    if let Some(name) = schema.remove("const") {
        schema.insert("enum".to_owned(), vec![name, alias.into()].into());
    }
}

fn also_fp16(schema: &mut Schema) {
    also(schema, "fp16");
}

fn also_trtllm(schema: &mut Schema) {
    also(schema, "trtllm");
}

/// Returns the engine named `MODEL[-DTYPE]@GPU[xTP]`, or `None` if the name has no `@`.
///
/// # Errors
/// Fails if the model, the GPU or the dtype is unknown, or if they can't be combined.
pub fn by_name(name: &str) -> Option<Result<EngineSpec, SimSpecError>> {
    let (model, machine) = name.split_once('@')?;
    Some(PairSpec::named(model, machine).and_then(|pair| pair.resolve()))
}

impl PairSpec {
    fn named(model: &str, machine: &str) -> Result<PairSpec, SimSpecError> {
        let (gpu, tensor_parallel) = match machine.rsplit_once('x') {
            Some((gpu, count)) if !gpu.is_empty() && !count.is_empty() => match count.parse() {
                Ok(count) => (gpu, Some(count)),
                Err(_) => (machine, None),
            },
            _ => (machine, None),
        };
        let whole = models::all().iter().any(|one| one.name == model);
        let (base, dtype) = match model.rsplit_once('-') {
            Some((base, word)) if !whole => match Dtype::of(word) {
                Some(dtype) => (base, Some(dtype)),
                None => (model, None),
            },
            _ => (model, None),
        };
        Ok(PairSpec {
            model: base.to_owned(),
            gpu: gpu.to_owned(),
            dtype,
            tensor_parallel,
            ..PairSpec::default()
        })
    }

    /// Returns the full specification.
    ///
    /// # Errors
    /// Fails if the model, the GPU or the dtype is unknown, or if they can't be combined. Examples of the latter are
    /// a missing dtype, an unknown group, or weights over the memory (with the excess).
    pub fn resolve(&self) -> Result<EngineSpec, SimSpecError> {
        let model = find(models::all(), "model", &self.model, |model| model.name)?;
        let gpu = find(gpus::all(), "gpu", &self.gpu, |gpu| gpu.name)?;
        let published = model.published.and_then(Dtype::of).unwrap_or(Dtype::Bf16);
        let dtype = self.dtype.unwrap_or(published);
        let kv_dtype = self.kv_dtype.unwrap_or(Dtype::Bf16);
        let group = self.tensor_parallel.unwrap_or(1);
        let shape = quantised(&model, dtype, published, kv_dtype)?;
        let step = self.step(&model, shape, &gpu, [dtype, kv_dtype], group)?;
        let origin = self.origin(&gpu, dtype, kv_dtype, group, &step);
        let name = self.name.clone().unwrap_or_else(|| pair_name(&model, dtype, published, &gpu, group));
        let spec = EngineSpec { name, mode: ModeSpec::Batching(self.batching(&model, &gpu, step, origin)?) };
        spec.validate()?;
        Ok(spec)
    }

    fn step(
        &self,
        model: &Model,
        shape: ModelShape,
        gpu: &Gpu,
        [dtype, kv_dtype]: [Dtype; 2],
        group: u32,
    ) -> Result<RooflineSpec, SimSpecError> {
        let heads = shape.kv_heads.div_ceil(group.max(1));
        if dtype == Dtype::Fp8 && gpu.fp8_tflops.is_none() {
            let why = format!("{} has no fp8 arithmetic; use dtype bf16 on it", gpu.name);
            return Err(SimSpecError::Pair { why });
        }
        let Some(spec) = gpu.spec(dtype, kv_dtype, heads, group) else {
            let why = format!("tensor_parallel {group}: only 1, 2, 4 and 8 GPUs of a node have a known link");
            return Err(SimSpecError::Pair { why });
        };
        if !shape.q_heads.is_multiple_of(group) {
            let why =
                format!("{} has {} query heads, which {group} GPUs can't share", model.name, shape.q_heads);
            return Err(SimSpecError::Pair { why });
        }
        let ratio = f64::from(shape.q_heads) / f64::from(shape.kv_heads);
        let base = RooflineSpec::new(shape, spec);
        // The figure of the published KV budgets; engines report 1.5 to 3 GB, more with experts.
        let reserved_gb = if base.model.experts.is_some() { 2.45 } else { base.reserved_gb };
        Ok(RooflineSpec {
            tensor_parallel: group,
            expert_parallel: self.expert_parallel.unwrap_or(1),
            expert_skew: self.expert_skew.unwrap_or(1.0),
            host: self.host.clone().unwrap_or_else(|| self.server.host()),
            kappa: self.kappa.unwrap_or_else(|| gpu.kappa(ratio)),
            memory_utilisation: self.memory_utilisation.unwrap_or(base.memory_utilisation),
            reserved_gb,
            ..base
        })
    }

    fn batching(
        &self,
        model: &Model,
        gpu: &Gpu,
        step: RooflineSpec,
        origin: OriginSpec,
    ) -> Result<BatchingSpec, SimSpecError> {
        let blocks = match self.kv_blocks {
            Some(0) => return Err(SimSpecError::NoKvBlocks { why: "kv_blocks is 0".to_owned() }),
            Some(blocks) => blocks,
            None => step.kv_blocks()?,
        };
        let kv_tokens = blocks.saturating_mul(BLOCK_TOKENS);
        let longest = model.max_context.min(kv_tokens);
        Ok(BatchingSpec {
            policy: self.policy.clone().unwrap_or_else(|| self.server.policy()),
            prefix_cache: self.prefix_cache.unwrap_or(true),
            max_seqs: self.max_seqs.unwrap_or_else(|| self.server.max_seqs(gpu, model, kv_tokens)),
            token_budget: self.token_budget.unwrap_or_else(|| self.server.token_budget(gpu)),
            chunked_prefill: true,
            long_prefill_threshold: 0,
            kv_blocks: Some(blocks),
            kv_watermark: 0.0,
            max_context: Some(self.max_context.unwrap_or(longest)),
            queue_limit: self.queue_limit,
            // Fitted together with the host's constants: the rest of the time to first token after queue and steps.
            front_ms: self.front_ms.unwrap_or(20.0),
            emit_us: self.emit_us.unwrap_or_else(|| self.server.emit_us()),
            speculative: self.speculative.as_ref().map(DraftChoice::resolve).transpose()?,
            step: StepSpec::Roofline(Box::new(step)),
            origin: Some(Box::new(origin)),
        })
    }

    fn origin(
        &self,
        gpu: &Gpu,
        dtype: Dtype,
        kv_dtype: Dtype,
        group: u32,
        step: &RooflineSpec,
    ) -> OriginSpec {
        let kernels = &gpu.kernels;
        let mut notes = vec![format!("{}: {}", gpu.name, kernels.source)];
        let mut error = kernels.expected_error_percent;
        let mut basis = kernels.basis;
        if group > 1 {
            notes.push(gpu.link.source.to_owned());
        }
        if dtype == Dtype::Fp4 {
            notes.push("weights in four bits: bf16's efficiencies, assumed".to_owned());
            (basis, error) = (ProfileBasis::Assumed, f64::max(error, 25.0));
        }
        if step.model.experts.is_some() {
            notes.push(
                "experts: efficiencies of Mixtral's shape on H100 in bf16, 5 to 11 % of their table"
                    .to_owned(),
            );
            let own = self.model == "mixtral-8x7b" && gpu.name == "h100" && dtype == Dtype::Bf16;
            error = f64::max(error, if own { 15.0 } else { 30.0 });
            basis = if own { basis } else { ProfileBasis::Scaled };
        }
        if step.model.latent.is_some() {
            notes.push("latent attention: by its bytes and work, unmeasured".to_owned());
            (basis, error) = (ProfileBasis::Assumed, 40.0);
        }
        notes.push(self.server.note().to_owned());
        OriginSpec {
            model: self.model.clone(),
            gpu: gpu.name.to_owned(),
            tensor_parallel: group,
            dtype: dtype.word().to_owned(),
            kv_dtype: kv_dtype.word().to_owned(),
            server: self.server.word().to_owned(),
            version: self.version.clone().unwrap_or_default(),
            kv_blocks: self.kv_blocks,
            protocol: String::new(),
            basis,
            expected_error_percent: error,
            notes,
            held_out: Vec::new(),
            range: None,
        }
    }
}

/// Returns the model's shape with weights and KV cache in these dtypes.
fn quantised(model: &Model, dtype: Dtype, published: Dtype, kv: Dtype) -> Result<ModelShape, SimSpecError> {
    let mut shape = model.shape.clone();
    shape.kv_bytes = match kv {
        Dtype::Bf16 => 2.0,
        Dtype::Fp8 => 1.0,
        Dtype::Fp4 => {
            return Err(SimSpecError::Pair { why: "kv_dtype fp4 is not known; use bf16 or fp8".to_owned() });
        }
    };
    if dtype == published {
        return Ok(shape);
    }
    if published == Dtype::Fp4 {
        let why = format!("{} is published in fp4 and has no other dtype here", model.name);
        return Err(SimSpecError::Pair { why });
    }
    shape.weight_bytes = match dtype {
        Dtype::Bf16 => 2.0,
        Dtype::Fp8 => 1.0,
        Dtype::Fp4 => 17.0 / 32.0,
    };
    Ok(shape)
}

fn pair_name(model: &Model, dtype: Dtype, published: Dtype, gpu: &Gpu, group: u32) -> String {
    let dtype = if dtype == published { String::new() } else { format!("-{}", dtype.word()) };
    let group = if group == 1 { String::new() } else { format!("x{group}") };
    format!("{}{dtype}@{}{group}", model.name, gpu.name)
}

fn find<T>(
    all: Vec<T>,
    what: &'static str,
    asked: &str,
    name: impl Fn(&T) -> &'static str,
) -> Result<T, SimSpecError> {
    let nearest = closest(asked, all.iter().map(&name), NEAREST).join(", ");
    all.into_iter().find(|one| name(one).eq_ignore_ascii_case(asked)).ok_or_else(|| SimSpecError::Unknown {
        what,
        asked: asked.to_owned(),
        nearest,
    })
}

impl Dtype {
    pub fn of(word: &str) -> Option<Dtype> {
        match word {
            "bf16" | "fp16" => Some(Dtype::Bf16),
            "fp8" => Some(Dtype::Fp8),
            "fp4" => Some(Dtype::Fp4),
            _ => None,
        }
    }

    /// Returns the name, as in files.
    pub fn word(self) -> &'static str {
        match self {
            Dtype::Bf16 => "bf16",
            Dtype::Fp8 => "fp8",
            Dtype::Fp4 => "fp4",
        }
    }
}

impl Server {
    /// Returns the name, as in files.
    pub fn word(self) -> &'static str {
        match self {
            Server::Vllm => "vllm",
            Server::Sglang => "sglang",
            Server::TensorrtLlm => "tensorrt-llm",
        }
    }

    /// Returns the server's default scheduling policy.
    fn policy(self) -> PolicySpec {
        match self {
            Server::Vllm => PolicySpec::default(),
            Server::Sglang => PolicySpec::Sglang(SglangSpec::default()),
            Server::TensorrtLlm => PolicySpec::NoEvict(NoEvictSpec {}),
        }
    }

    /// Returns the default number of running sequences. SGLang: the number of longest sequences in the cache
    /// (model_runner.py, `max_num_reqs`).
    fn max_seqs(self, gpu: &Gpu, model: &Model, kv_tokens: u32) -> u32 {
        match self {
            Server::Sglang => {
                let seqs = u64::from(kv_tokens) * 512 / u64::from(model.max_context.max(1));
                seqs.clamp(2048, 4096) as u32
            }
            Server::Vllm | Server::TensorrtLlm if gpu.large => 1024,
            Server::Vllm | Server::TensorrtLlm => 256,
        }
    }

    /// Returns the default tokens per step. SGLang: its chunk, by the memory of one GPU (server_args.py,
    /// `chunked_prefill_size`).
    fn token_budget(self, gpu: &Gpu) -> u32 {
        let gib = gpu.memory_gb * 1e9 / f64::from(1 << 30);
        match self {
            Server::Sglang if gib < 35.0 => 2048,
            Server::Sglang if gib < 60.0 => 4096,
            Server::Sglang if gib < 160.0 => 8192,
            Server::Sglang => 16_384,
            Server::Vllm | Server::TensorrtLlm if gpu.large => 8192,
            Server::Vllm | Server::TensorrtLlm => 2048,
        }
    }

    fn host(self) -> HostSpec {
        match self {
            Server::Vllm | Server::Sglang => HostSpec::default(),
            Server::TensorrtLlm => HostSpec { layer_us: 5.0, step_us: 500.0, request_us: 4.0 },
        }
    }

    /// TensorRT-LLM streams at most 5 900 tokens/s in the shipped rows on any GPU; the other servers show no such
    /// limit there.
    fn emit_us(self) -> f64 {
        match self {
            Server::Vllm | Server::Sglang => 0.0,
            Server::TensorrtLlm => 170.0,
        }
    }

    fn note(self) -> &'static str {
        match self {
            Server::Vllm => "host: fitted on 15 rows of one model with vLLM on H100",
            Server::Sglang => "host: vLLM's constants, unmeasured on SGLang",
            Server::TensorrtLlm => {
                "host: half of vLLM's constants, assumed; 170 µs per streamed token, read from small models on many GPUs"
            }
        }
    }
}

impl Gpu {
    /// Returns the factor on decode attention in mixed steps at this ratio of query heads per KV head. It
    /// interpolates between the two known ratios and is constant outside.
    pub fn kappa(&self, ratio: f64) -> f64 {
        let [at_four, at_eight] = self.kernels.kappa;
        let kappa = at_four + (at_eight - at_four) * ((ratio - 4.0) / 4.0).clamp(0.0, 1.0);
        // Three decimals, because a file must restore the exact number.
        libm::round(kappa * 1e3) / 1e3
    }
}

impl DraftChoice {
    fn resolve(&self) -> Result<SpeculativeSpec, SimSpecError> {
        let accepted_length = match (self.accepted_length, &self.accepted_like) {
            (Some(length), None) => length,
            (None, Some(draft)) => {
                speculation::accepted_length(draft, self.draft_tokens).ok_or_else(|| {
                    SimSpecError::UnknownDraft {
                        asked: draft.clone(),
                        known: speculation::ACCEPTED.map(|(name, ..)| name).join(", "),
                    }
                })?
            }
            _ => {
                let why = "speculative: write one of accepted_length and accepted_like".to_owned();
                return Err(SimSpecError::Pair { why });
            }
        };
        Ok(SpeculativeSpec { draft_tokens: self.draft_tokens, accepted_length, draft: self.draft.clone() })
    }
}
