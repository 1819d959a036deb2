//! Model × GPU → what a step costs and how much KV cache there is.
//!
//! A p-norm of memory time and compute time per layer, plus attention, all-reduce, head and host. Two alternatives
//! lost: interpolated kernel tables (right, but one needs the GPU to make them, and they say nothing outside their
//! grid), and the plain maximum of the two times (it has no knee, where real kernels have a wide one).
//!
//! ```text
//! t_lin  = floor + ((W/(BW e_w))^p + (2 P T/(F e_c))^p)^(1/p)                 T tokens, W bytes and P parameters of a layer
//! t_dec  = floor + per_head q n + K kv/(BW e_kv)                              n decodes with K tokens of context
//! t_pre  = floor + per_head q (T − n) + 4 q d Σ chunk (before + chunk/2)/(F e_a)
//! t_ar   = 2 (alpha + 2 h T/B)                                                if there are several GPUs
//! t_head = ((V h w/(BW e_w))^3 + (2 V h rows/(F e_c))^3)^(1/3) / GPUs
//! t_step = L (t_lin + κ t_dec + t_pre + t_ar + misc) + t_head + host + request (n + 1 if any prefill)
//! ```
//! κ = 1 unless the step holds both decodes and prompts: decodes run slower in a kernel shared with prompt chunks.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::spec::{BLOCK_TOKENS, SpecError, not_negative, positive, range, within};

/// A model on a group of GPUs.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RooflineSpec {
    /// The model's shape.
    pub model: ModelShape,
    /// One GPU, and how well this dtype's kernels use it.
    pub gpu: GpuSpec,
    /// GPUs that share each layer.
    #[serde(default = "one")]
    pub tensor_parallel: u32,
    /// What the host adds.
    #[serde(default)]
    pub host: HostSpec,
    /// Factor on the decode attention in steps that also hold prompts; at least 1.
    #[serde(default = "unit")]
    pub kappa: f64,
    /// Share of the GPU memory that the engine may use.
    #[serde(default = "default_utilisation")]
    pub memory_utilisation: f64,
    /// Activations, graphs and communication buffers per GPU, GB.
    #[serde(default = "default_reserved")]
    pub reserved_gb: f64,
}

/// The shape of a dense decoder with gated feed-forward layers and an untied output head.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ModelShape {
    /// Layers.
    pub layers: u32,
    /// Width of the residual stream.
    pub hidden: u32,
    /// Query heads.
    pub q_heads: u32,
    /// Key and value heads.
    pub kv_heads: u32,
    /// Size of a head.
    pub head_dim: u32,
    /// Width of the feed-forward part.
    pub ffn: u32,
    /// Entries of the vocabulary.
    pub vocab: u32,
    /// Bytes per weight of the layers.
    pub weight_bytes: f64,
    /// Bytes per weight of embedding and head, which quantisation usually spares.
    pub head_weight_bytes: f64,
    /// Bytes per element of the KV cache.
    pub kv_bytes: f64,
}

/// One GPU with the efficiencies of one dtype's kernels on it.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct GpuSpec {
    /// Memory, GB (10^9 bytes).
    pub memory_gb: f64,
    /// Peak dense arithmetic, TFLOP/s (F).
    pub tflops: f64,
    /// Peak memory bandwidth, TB/s (BW).
    pub bandwidth_tb_s: f64,
    /// Share of the bandwidth that weights stream at (e_w).
    pub weight_efficiency: f64,
    /// Share of the arithmetic that matrix products reach (e_c).
    pub compute_efficiency: f64,
    /// Exponent of the norm (p): large = sharp knee.
    pub norm: f64,
    /// Floor of a layer's matrix products, µs.
    pub linear_floor_us: f64,
    /// Share of the bandwidth that the KV cache is read at (e_kv).
    pub kv_efficiency: f64,
    /// Floor of a layer's decode attention, µs.
    pub decode_floor_us: f64,
    /// Decode attention per sequence and query head, ns.
    pub decode_per_head_ns: f64,
    /// Share of the arithmetic that prefill attention reaches (e_a).
    pub attention_efficiency: f64,
    /// Prefill attention per token and query head, ns.
    pub prefill_per_head_ns: f64,
    /// Floor of a layer's prefill attention, µs.
    pub prefill_floor_us: f64,
    /// Start of an all-reduce, µs. Not used on one GPU.
    #[serde(default)]
    pub allreduce_us: f64,
    /// Bandwidth of an all-reduce, GB/s. Not used on one GPU.
    #[serde(default)]
    pub allreduce_gb_s: f64,
}

/// What the host adds. The defaults were fitted on one model with vLLM on H100; they travel badly to other engines.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct HostSpec {
    /// Per layer, µs.
    pub layer_us: f64,
    /// Per step, µs.
    pub step_us: f64,
    /// Per request that gets a token in the step, µs.
    pub request_us: f64,
}

impl Default for HostSpec {
    fn default() -> HostSpec {
        HostSpec { layer_us: 10.0, step_us: 1000.0, request_us: 16.0 }
    }
}

impl ModelShape {
    /// Parameters of one layer.
    pub fn layer_params(&self) -> f64 {
        let hidden = f64::from(self.hidden);
        let queries = f64::from(self.q_heads) * f64::from(self.head_dim);
        let keys = f64::from(self.kv_heads) * f64::from(self.head_dim);
        hidden * (2.0 * queries + 2.0 * keys + 3.0 * f64::from(self.ffn))
    }

    /// Parameters of the output head (and, again, of the embedding).
    pub fn head_params(&self) -> f64 {
        f64::from(self.vocab) * f64::from(self.hidden)
    }
}

impl RooflineSpec {
    /// Weights on each GPU, bytes.
    pub fn weights_per_gpu(&self) -> f64 {
        let layers = f64::from(self.model.layers) * self.model.layer_params() * self.model.weight_bytes;
        let ends = 2.0 * self.model.head_params() * self.model.head_weight_bytes;
        (layers + ends) / f64::from(self.tensor_parallel)
    }

    /// KV cache of one token in one layer on each GPU, bytes. A key-value head is never split.
    pub fn kv_bytes_per_layer(&self) -> f64 {
        let heads = self.model.kv_heads.div_ceil(self.tensor_parallel);
        2.0 * f64::from(heads) * f64::from(self.model.head_dim) * self.model.kv_bytes
    }

    /// KV blocks that the memory leaves.
    ///
    /// # Errors
    /// The weights don't fit (by how much is said), or what is left holds no block.
    pub fn kv_blocks(&self) -> Result<u32, SpecError> {
        let usable_gb = self.memory_utilisation * self.gpu.memory_gb;
        let weights_gb = self.weights_per_gpu() / 1e9;
        let left_gb = usable_gb - weights_gb - self.reserved_gb;
        if left_gb <= 0.0 {
            let reserved_gb = self.reserved_gb;
            return Err(SpecError::WeightsPastMemory {
                weights_gb,
                reserved_gb,
                usable_gb,
                over_gb: -left_gb,
            });
        }
        let block = self.kv_bytes_per_layer() * f64::from(self.model.layers) * f64::from(BLOCK_TOKENS);
        let blocks = (left_gb * 1e9 / block) as u32;
        if blocks == 0 {
            let why = format!("{:.1} MB are left and a block takes {:.1} MB", left_gb * 1e3, block / 1e6);
            return Err(SpecError::NoKvBlocks { why });
        }
        Ok(blocks)
    }

    pub(crate) fn validate(&self) -> Result<(), SpecError> {
        self.model.validate()?;
        self.gpu.validate(self.tensor_parallel)?;
        within("mode.step.tensor_parallel", self.tensor_parallel, 1, 1024, "a whole number from 1 to 1024")?;
        if !self.model.q_heads.is_multiple_of(self.tensor_parallel) {
            let expected = "a divisor of the query heads";
            return Err(range("mode.step.tensor_parallel", self.tensor_parallel, expected));
        }
        not_negative("mode.step.host.layer_us", self.host.layer_us)?;
        not_negative("mode.step.host.step_us", self.host.step_us)?;
        not_negative("mode.step.host.request_us", self.host.request_us)?;
        if !(self.kappa.is_finite() && self.kappa >= 1.0) {
            return Err(range("mode.step.kappa", self.kappa, "a number from 1"));
        }
        if !(self.memory_utilisation > 0.0 && self.memory_utilisation <= 1.0) {
            let expected = "a share over 0, up to 1";
            return Err(range("mode.step.memory_utilisation", self.memory_utilisation, expected));
        }
        not_negative("mode.step.reserved_gb", self.reserved_gb)
    }
}

impl ModelShape {
    fn validate(&self) -> Result<(), SpecError> {
        let expected = "a whole number from 1 to 16777216";
        let whole = [
            ("mode.step.model.layers", self.layers),
            ("mode.step.model.hidden", self.hidden),
            ("mode.step.model.q_heads", self.q_heads),
            ("mode.step.model.kv_heads", self.kv_heads),
            ("mode.step.model.head_dim", self.head_dim),
            ("mode.step.model.ffn", self.ffn),
            ("mode.step.model.vocab", self.vocab),
        ];
        for (field, value) in whole {
            within(field, value, 1, 1 << 24, expected)?;
        }
        positive("mode.step.model.weight_bytes", self.weight_bytes)?;
        positive("mode.step.model.head_weight_bytes", self.head_weight_bytes)?;
        positive("mode.step.model.kv_bytes", self.kv_bytes)
    }
}

impl GpuSpec {
    fn validate(&self, tensor_parallel: u32) -> Result<(), SpecError> {
        let over_zero = [
            ("mode.step.gpu.memory_gb", self.memory_gb),
            ("mode.step.gpu.tflops", self.tflops),
            ("mode.step.gpu.bandwidth_tb_s", self.bandwidth_tb_s),
            ("mode.step.gpu.weight_efficiency", self.weight_efficiency),
            ("mode.step.gpu.compute_efficiency", self.compute_efficiency),
            ("mode.step.gpu.kv_efficiency", self.kv_efficiency),
            ("mode.step.gpu.attention_efficiency", self.attention_efficiency),
        ];
        for (field, value) in over_zero {
            positive(field, value)?;
        }
        let from_zero = [
            ("mode.step.gpu.linear_floor_us", self.linear_floor_us),
            ("mode.step.gpu.decode_floor_us", self.decode_floor_us),
            ("mode.step.gpu.decode_per_head_ns", self.decode_per_head_ns),
            ("mode.step.gpu.prefill_per_head_ns", self.prefill_per_head_ns),
            ("mode.step.gpu.prefill_floor_us", self.prefill_floor_us),
            ("mode.step.gpu.allreduce_us", self.allreduce_us),
        ];
        for (field, value) in from_zero {
            not_negative(field, value)?;
        }
        if !(self.norm.is_finite() && self.norm >= 1.0) {
            return Err(range("mode.step.gpu.norm", self.norm, "a number from 1"));
        }
        if tensor_parallel > 1 {
            positive("mode.step.gpu.allreduce_gb_s", self.allreduce_gb_s)?;
        }
        Ok(())
    }
}

fn one() -> u32 {
    1
}

fn unit() -> f64 {
    1.0
}

/// vLLM's default since 0.22.
fn default_utilisation() -> f64 {
    0.92
}

/// In the middle of what engines report at start-up (1.5 to 3 GB), towards the lower end, where bf16 models lie.
fn default_reserved() -> f64 {
    1.7
}
