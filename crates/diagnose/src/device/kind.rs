//! What a kernel does, by its name: libraries name their kernels, and nobody else says it.
//!
//! An ordered list, the first that fits. It is a reading of names and no more: a kernel that a compiler named `triton_poi_fused_3` is
//! elementwise because the compiler says `poi`, and one that nobody can read is *other*, which is shown. Names: cuBLAS, CUTLASS,
//! cuDNN, rocBLAS (`Cijk_…`), FlashAttention, FlashInfer, NCCL and RCCL, PyTorch's native kernels, TorchInductor's prefixes.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What a device was busy with.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum DeviceWork {
    /// Between devices.
    Collective,
    /// Attention.
    Attention,
    /// Convolution.
    Convolution,
    /// Matrix by matrix, or by vector.
    Matmul,
    /// Normalisation.
    Norm,
    /// Softmax, sorting, drawing tokens.
    Sampling,
    /// To and from numbers of fewer bits.
    Quantise,
    /// Lookups and moves within memory, the KV cache's among them.
    Index,
    /// One value at a time.
    Elementwise,
    /// Sums and maxima.
    Reduction,
    /// Copies and fills by the device's copy engines.
    Copy,
    /// Named by nobody known.
    Other,
}

/// Words of names, lower case, in the order in which they are looked for.
const WORDS: &[(DeviceWork, &[&str])] = &[
    (
        DeviceWork::Collective,
        &[
            "nccl",
            "rccl",
            "all_reduce",
            "allreduce",
            "all_gather",
            "allgather",
            "reduce_scatter",
            "reducescatter",
            "all_to_all",
            "alltoall",
            "cross_device_reduce",
            "sendrecv",
        ],
    ),
    (DeviceWork::Quantise, &["quant", "fp8_cast", "scaled_cast", "marlin_repack"]),
    (DeviceWork::Attention, &["flash", "fmha", "attention", "attn", "paged_", "mla_"]),
    (
        DeviceWork::Convolution,
        &["conv", "fprop", "dgrad", "wgrad", "winograd", "scudnn", "implicit_gemm", "implicit_precomp"],
    ),
    (
        DeviceWork::Matmul,
        &["gemm", "gemv", "cutlass", "cublas", "cijk_", "matmul", "wgmma", "splitk", "marlin", "dot_kernel"],
    ),
    (DeviceWork::Norm, &["norm", "bn_fw", "bn_bw"]),
    (
        DeviceWork::Sampling,
        &["softmax", "topk", "top_k", "sort", "sampl", "argmax", "multinomial", "cumsum", "scan"],
    ),
    (
        DeviceWork::Index,
        &[
            "index",
            "gather",
            "scatter",
            "embedding",
            "catarray",
            "reshape_and_cache",
            "transpose",
            "permute",
            "copy",
            "slice",
        ],
    ),
    (
        DeviceWork::Elementwise,
        &[
            "elementwise",
            "triton_poi",
            "pointwise",
            "act_and_mul",
            "silu",
            "gelu",
            "relu",
            "rotary",
            "rope",
            "multi_tensor_apply",
            "fill",
        ],
    ),
    (DeviceWork::Reduction, &["reduce", "triton_red", "triton_per"]),
];

impl DeviceWork {
    /// What a kernel of this name does.
    pub fn of_kernel(name: &str) -> DeviceWork {
        let name = name.to_ascii_lowercase();
        let fits = |words: &[&str]| words.iter().any(|word| name.contains(word));
        WORDS.iter().find(|(_, words)| fits(words)).map_or(DeviceWork::Other, |(kind, _)| *kind)
    }

    pub fn word(self) -> &'static str {
        match self {
            DeviceWork::Collective => "collective",
            DeviceWork::Attention => "attention",
            DeviceWork::Convolution => "convolution",
            DeviceWork::Matmul => "matrix product",
            DeviceWork::Norm => "normalisation",
            DeviceWork::Sampling => "softmax, sampling",
            DeviceWork::Quantise => "quantisation",
            DeviceWork::Index => "lookup, move",
            DeviceWork::Elementwise => "elementwise",
            DeviceWork::Reduction => "reduction",
            DeviceWork::Copy => "copy, fill",
            DeviceWork::Other => "other",
        }
    }
}
