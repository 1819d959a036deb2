//! The kind of work of a kernel, from its name, because libraries name their kernels and no other source reports it.
//!
//! The list is ordered and the first match decides. It reads names only: a compiler-generated `triton_poi_fused_3` is
//! elementwise because the compiler writes `poi`. Unknown names are *other*, which is shown. Names: cuBLAS, CUTLASS,
//! cuDNN, rocBLAS (`Cijk_…`), FlashAttention, FlashInfer, NCCL and RCCL, PyTorch's native kernels, TorchInductor's
//! prefixes.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A kind of device work, by kernel name.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum DeviceWork {
    /// Communication between devices, such as an all-reduce.
    Collective,
    /// Attention kernels.
    Attention,
    /// Convolution kernels.
    Convolution,
    /// Products of a matrix with a matrix or a vector.
    Matmul,
    /// Normalisation kernels.
    Norm,
    /// Softmax, sorting and sampling of tokens.
    Sampling,
    /// Conversion to and from numbers with fewer bits.
    Quantise,
    /// Lookups and moves within memory, including the KV cache.
    Index,
    /// Operations on one value at a time.
    Elementwise,
    /// Sums and maxima.
    Reduction,
    /// Copies and fills by the device's copy engines.
    Copy,
    /// Kernels whose names match no other kind.
    Other,
}

/// Parts of kernel names in lower case, in order of precedence.
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
        &[
            "gemm",
            "gemv",
            "cutlass",
            "cublas",
            "cijk_",
            "matmul",
            "wgmma",
            "splitk",
            "marlin",
            "dot_kernel",
            "nvjet",
        ],
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
    /// Returns the kind of work of a kernel.
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
