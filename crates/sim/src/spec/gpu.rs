//! One GPU, and the efficiency of one dtype's kernels on it.
//!
//! Peaks come from data sheets, efficiencies from fits on tables of measured kernels; `catalogue` states the
//! substitutes for missing tables. Peaks without efficiencies were rejected because they are off by 20 to 80 %.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::spec::error::{SimSpecError, not_negative, positive, range};

/// One GPU with the efficiencies of one dtype's kernels.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct GpuSpec {
    /// Memory that a process sees in GB (10^9 bytes).
    pub memory_gb: f64,
    /// Peak dense arithmetic of the weights' dtype in TFLOP/s (F).
    pub tflops: f64,
    /// Peak memory bandwidth in TB/s (BW).
    pub bandwidth_tb_s: f64,
    /// Share of the bandwidth for streaming weights (e_w).
    pub weight_efficiency: f64,
    /// Share of the peak arithmetic that matrix products reach (e_c).
    pub compute_efficiency: f64,
    /// Exponent of the norm (p); a large value means a sharp knee.
    pub norm: f64,
    /// Minimum time of a layer's matrix products in µs.
    pub linear_floor_us: f64,
    /// Share of the bandwidth for reading the KV cache (e_kv).
    pub kv_efficiency: f64,
    /// Minimum time of a layer's decode attention in µs.
    pub decode_floor_us: f64,
    /// Decode attention per sequence and query head in ns.
    pub decode_per_head_ns: f64,
    /// Peak arithmetic of the attention's dtype (that of the KV cache) in TFLOP/s [default: that of the weights].
    #[serde(default)]
    pub attention_tflops: Option<f64>,
    /// Share of that arithmetic that prefill attention reaches (e_a).
    pub attention_efficiency: f64,
    /// Prefill attention per token and query head in ns.
    pub prefill_per_head_ns: f64,
    /// Minimum time of a layer's prefill attention in µs.
    pub prefill_floor_us: f64,
    /// Start-up time of an all-reduce in µs; not used on one GPU.
    #[serde(default)]
    pub allreduce_us: f64,
    /// Bandwidth of an all-reduce in GB/s; not used on one GPU.
    #[serde(default)]
    pub allreduce_gb_s: f64,
    /// Efficiency of the fused expert kernel; not used by models without experts.
    #[serde(default)]
    pub experts: ExpertKernels,
}

/// The efficiency of the fused expert kernel. The defaults are a fit on Mixtral's shape on H100 in bf16 with a mean
/// error of 5 to 11 %.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ExpertKernels {
    /// Share of the bandwidth for streaming the experts' weights [default: 0.84].
    pub weight_efficiency: f64,
    /// Share of the peak arithmetic [default: 0.58].
    pub compute_efficiency: f64,
    /// Exponent of the norm [default: 1.9].
    pub norm: f64,
    /// Minimum time of a layer's experts in µs, including routing [default: 30].
    pub floor_us: f64,
}

impl Default for ExpertKernels {
    fn default() -> ExpertKernels {
        ExpertKernels { weight_efficiency: 0.84, compute_efficiency: 0.58, norm: 1.9, floor_us: 30.0 }
    }
}

impl GpuSpec {
    /// Returns the arithmetic that prefill attention reaches in operations/s.
    pub(crate) fn attention_flops(&self) -> f64 {
        self.attention_tflops.unwrap_or(self.tflops) * 1e12 * self.attention_efficiency
    }

    /// Returns the read bandwidth of the KV cache in bytes/s.
    pub(crate) fn kv_bytes_per_s(&self) -> f64 {
        self.bandwidth_tb_s * 1e12 * self.kv_efficiency
    }

    pub(crate) fn validate(&self, tensor_parallel: u32) -> Result<(), SimSpecError> {
        let over_zero = [
            ("mode.step.gpu.memory_gb", self.memory_gb),
            ("mode.step.gpu.tflops", self.tflops),
            ("mode.step.gpu.bandwidth_tb_s", self.bandwidth_tb_s),
            ("mode.step.gpu.weight_efficiency", self.weight_efficiency),
            ("mode.step.gpu.compute_efficiency", self.compute_efficiency),
            ("mode.step.gpu.kv_efficiency", self.kv_efficiency),
            ("mode.step.gpu.attention_efficiency", self.attention_efficiency),
            ("mode.step.gpu.attention_tflops", self.attention_tflops.unwrap_or(1.0)),
            ("mode.step.gpu.experts.weight_efficiency", self.experts.weight_efficiency),
            ("mode.step.gpu.experts.compute_efficiency", self.experts.compute_efficiency),
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
            ("mode.step.gpu.experts.floor_us", self.experts.floor_us),
        ];
        for (field, value) in from_zero {
            not_negative(field, value)?;
        }
        let norms = [("mode.step.gpu.norm", self.norm), ("mode.step.gpu.experts.norm", self.experts.norm)];
        for (field, value) in norms {
            if !(value.is_finite() && value >= 1.0) {
                return Err(range(field, value, "a number from 1"));
            }
        }
        if tensor_parallel > 1 {
            positive("mode.step.gpu.allreduce_gb_s", self.allreduce_gb_s)?;
        }
        Ok(())
    }
}
