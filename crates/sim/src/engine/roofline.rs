//! Step costs and KV cache size from model and GPU.
//!
//! A layer costs a p-norm of memory time and compute time, plus attention, all-reduce, head and host. Interpolated
//! kernel tables were rejected: they are right, but need the GPU and do not extrapolate. The plain maximum of the two
//! times was rejected because it has no knee, and real kernels have a wide one.
//!
//! ```text
//! t_lin  = floor + ((W/(BW e_w))^p + (2 P T/(F e_c))^p)^(1/p)                 T tokens, W bytes and P parameters of a layer
//! t_exp  = the same over the experts that are read, E (1 − (1 − k/E)^T), and the work of the k chosen
//! t_dec  = floor + per_head q n + K kv/(BW e_kv)                              n decodes with K tokens of context
//! t_pre  = floor + per_head q (T − n) + 4 q d Σ chunk (before + chunk/2)/(F e_a)
//! t_ar   = 2 (alpha + 2 h T/B)                                                if there are several GPUs
//! t_head = ((V h w/(BW e_w))^3 + (2 V h rows/(F e_c))^3)^(1/3) / GPUs
//! t_step = L (t_lin + t_exp + κ t_dec + t_pre + t_ar + misc) + t_head + host + request (n + 1 if any prefill)
//! ```
//! κ = 1 unless the step contains both decodes and prompts: decodes are slower in a kernel shared with prompt chunks.
//! With experts, t_lin is the part of attention (and of layers without experts) and t_exp that of the experts. The
//! form follows public fits of kernel tables; [`super::terms`] computes it.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::spec::error::{BLOCK_TOKENS, SimSpecError, not_negative, range, within};
use crate::spec::gpu::GpuSpec;
use crate::spec::shape::ModelShape;

/// A model on a group of GPUs.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RooflineSpec {
    /// Shape of the model.
    pub model: ModelShape,
    /// One GPU with the efficiencies of this dtype's kernels.
    pub gpu: GpuSpec,
    /// Number of GPUs that share each layer [default: 1].
    #[serde(default = "one")]
    pub tensor_parallel: u32,
    /// Number of GPU groups that the experts are distributed over as a whole; 1 slices every expert over all GPUs
    /// [default: 1].
    #[serde(default = "one")]
    pub expert_parallel: u32,
    /// Tokens of the busiest group over the mean, at least 1 [default: 1].
    #[serde(default = "unit")]
    pub expert_skew: f64,
    /// Additional time of the host.
    #[serde(default)]
    pub host: HostSpec,
    /// Factor on the decode attention in steps with prompts, at least 1 [default: 1].
    #[serde(default = "unit")]
    pub kappa: f64,
    /// Share of the GPU memory that the engine may use [default: 0.92, as in vLLM since 0.22].
    #[serde(default = "default_utilisation")]
    pub memory_utilisation: f64,
    /// Memory for activations, graphs and communication buffers per GPU in GB [default: 1.7].
    #[serde(default = "default_reserved")]
    pub reserved_gb: f64,
}

/// The additional time of the host. The defaults were fitted on one model with vLLM on H100 and are inaccurate for
/// other engines.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct HostSpec {
    /// Time per layer in µs [default: 10].
    pub layer_us: f64,
    /// Time per step in µs [default: 1000].
    pub step_us: f64,
    /// Time per request that gets a token in the step in µs [default: 16].
    pub request_us: f64,
}

impl Default for HostSpec {
    fn default() -> HostSpec {
        HostSpec { layer_us: 10.0, step_us: 1000.0, request_us: 16.0 }
    }
}

impl RooflineSpec {
    /// Returns this model on one of these GPUs, with the defaults of a file.
    pub fn new(model: ModelShape, gpu: GpuSpec) -> RooflineSpec {
        RooflineSpec {
            model,
            gpu,
            tensor_parallel: one(),
            expert_parallel: one(),
            expert_skew: unit(),
            host: HostSpec::default(),
            kappa: unit(),
            memory_utilisation: default_utilisation(),
            reserved_gb: default_reserved(),
        }
    }

    /// Returns the weights on each GPU in bytes.
    pub fn weights_per_gpu(&self) -> f64 {
        self.model.weight_bytes_total() / f64::from(self.tensor_parallel)
    }

    /// Returns the KV cache of one token in one layer on each GPU in bytes.
    pub fn kv_bytes_per_layer(&self) -> f64 {
        self.model.kv_bytes_per_layer(self.tensor_parallel)
    }

    /// Returns the KV cache of one token on each GPU in bytes. Layers with windowed attention need a fixed amount per
    /// sequence, which is small and not counted.
    pub fn kv_bytes_per_token(&self) -> f64 {
        self.kv_bytes_per_layer() * f64::from(self.model.full_layers())
    }

    /// Returns the KV blocks in the remaining memory.
    ///
    /// # Errors
    /// Fails if the weights don't fit (with the missing amount), or if the rest has no space for a block.
    pub fn kv_blocks(&self) -> Result<u32, SimSpecError> {
        let left_gb = self.left_gb()?;
        let block = self.kv_bytes_per_token() * f64::from(BLOCK_TOKENS);
        let blocks = (left_gb * 1e9 / block) as u32;
        if blocks == 0 {
            let why = format!("{:.1} MB are left and a block takes {:.1} MB", left_gb * 1e3, block / 1e6);
            return Err(SimSpecError::NoKvBlocks { why });
        }
        Ok(blocks)
    }

    /// Returns the memory that weights and reserve leave on each GPU in GB.
    ///
    /// # Errors
    /// Fails if there is none, with the missing amount.
    pub(crate) fn left_gb(&self) -> Result<f64, SimSpecError> {
        let usable_gb = self.memory_utilisation * self.gpu.memory_gb;
        let weights_gb = self.weights_per_gpu() / 1e9;
        let reserved_gb = self.reserved_gb;
        let left_gb = usable_gb - weights_gb - reserved_gb;
        if left_gb > 0.0 {
            return Ok(left_gb);
        }
        Err(SimSpecError::WeightsPastMemory { weights_gb, reserved_gb, usable_gb, over_gb: -left_gb })
    }

    pub(crate) fn validate(&self) -> Result<(), SimSpecError> {
        self.model.validate()?;
        self.gpu.validate(self.tensor_parallel)?;
        within("mode.step.tensor_parallel", self.tensor_parallel, 1, 1024, "a whole number from 1 to 1024")?;
        if !self.model.q_heads.is_multiple_of(self.tensor_parallel) {
            let expected = "a divisor of the query heads";
            return Err(range("mode.step.tensor_parallel", self.tensor_parallel, expected));
        }
        if self.expert_parallel == 0 || !self.tensor_parallel.is_multiple_of(self.expert_parallel) {
            let expected = "a divisor of tensor_parallel";
            return Err(range("mode.step.expert_parallel", self.expert_parallel, expected));
        }
        not_negative("mode.step.host.layer_us", self.host.layer_us)?;
        not_negative("mode.step.host.step_us", self.host.step_us)?;
        not_negative("mode.step.host.request_us", self.host.request_us)?;
        for (field, value) in [("mode.step.kappa", self.kappa), ("mode.step.expert_skew", self.expert_skew)] {
            if !(value.is_finite() && value >= 1.0) {
                return Err(range(field, value, "a number from 1"));
            }
        }
        if !(self.memory_utilisation > 0.0 && self.memory_utilisation <= 1.0) {
            let expected = "a share over 0, up to 1";
            return Err(range("mode.step.memory_utilisation", self.memory_utilisation, expected));
        }
        not_negative("mode.step.reserved_gb", self.reserved_gb)
    }
}

fn one() -> u32 {
    1
}

fn unit() -> f64 {
    1.0
}

/// Returns the default of vLLM since 0.22.
fn default_utilisation() -> f64 {
    0.92
}

/// Returns a value within the range that engines report at start-up (1.5 to 3 GB), near the lower end as for bf16
/// models.
fn default_reserved() -> f64 {
    1.7
}
