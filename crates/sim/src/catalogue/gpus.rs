//! The GPUs of the catalogue: peaks from data sheets, efficiencies from fits, and substitutes for missing fits.
//!
//! Efficiencies were fitted on public tables of measured kernels: ai-dynamo/aiconfigurator, Apache-2.0, and for the
//! RTX cards casys-kaist/LLMServingSim, MIT. The mean error of each fit is given with it. Links between GPUs were
//! fitted likewise. The other figures are scaled from the nearest relative or assumed, and are marked accordingly.

use crate::catalogue::Dtype;
use crate::catalogue::origin::ProfileBasis;
use crate::spec::gpu::{ExpertKernels, GpuSpec};

#[derive(Clone, PartialEq, Debug)]
pub struct Gpu {
    pub name: &'static str,
    pub title: &'static str,
    /// Memory that a process sees, GB.
    pub memory_gb: f64,
    pub bandwidth_tb_s: f64,
    /// Peak dense arithmetic in bf16 (fp16 if there is no bf16), TFLOP/s.
    pub bf16_tflops: f64,
    /// Peak dense arithmetic in fp8, TFLOP/s; `None` if there is no fp8.
    pub fp8_tflops: Option<f64>,
    pub kernels: Kernels,
    pub link: Interconnect,
    /// Set if vLLM uses large default batches (70 GiB or more, and no A100).
    pub large: bool,
}

/// The efficiency of kernels on a GPU, by dtype.
#[derive(Clone, PartialEq, Debug)]
pub struct Kernels {
    pub basis: ProfileBasis,
    /// Fitted, scaled or assumed figures, in one sentence.
    pub source: &'static str,
    /// Expected error of a step in percent.
    pub expected_error_percent: f64,
    /// Matrix products with weights in bf16.
    pub bf16: Products,
    /// Matrix products with weights in fp8.
    pub fp8: Products,
    /// Decode attention with a KV cache in bf16.
    pub kv_bf16: Decode,
    /// Decode attention with a KV cache in fp8.
    pub kv_fp8: Decode,
    /// Prefill attention: share of the arithmetic, ns per token and head, floor in µs.
    pub prefill_bf16: [f64; 3],
    /// Prefill attention with a KV cache in fp8.
    pub prefill_fp8: [f64; 3],
    /// Factor on decode attention in mixed steps, at 4 and at 8 query heads per KV head.
    pub kappa: [f64; 2],
}

/// Matrix products: share of bandwidth, share of arithmetic, exponent, floor in µs.
#[derive(Copy, Clone, PartialEq, Debug)]
pub struct Products(pub f64, pub f64, pub f64, pub f64);

#[derive(Copy, Clone, PartialEq, Debug)]
pub struct Decode {
    /// Share of the bandwidth with at least 8, 4, 2 and 1 KV heads on the GPU.
    pub efficiency: [f64; 4],
    pub floor_us: f64,
    /// Time per sequence and query head, ns.
    pub per_head_ns: f64,
}

/// The link between the GPUs of a node: start-up in µs and bandwidth in GB/s of an all-reduce over 2, 4 and 8.
#[derive(Copy, Clone, PartialEq, Debug)]
pub struct Interconnect {
    /// Kind of the link, and origin of its figures.
    pub source: &'static str,
    /// Start-up and bandwidth over 2, 4 and 8 GPUs.
    pub allreduce: [(f64, f64); 3],
}

const NVLINK4: Interconnect = Interconnect {
    source: "all-reduce fitted on a table of vLLM's kernel on H100 (H200 is within 6 %)",
    allreduce: [(4.3, 127.0), (5.2, 94.0), (6.2, 98.0)],
};
const NVLINK3: Interconnect = Interconnect {
    source: "all-reduce fitted on a table of vLLM's kernel on A100",
    allreduce: [(5.2, 80.0), (6.1, 55.0), (9.0, 49.0)],
};
/// NVLink 5 has twice the bandwidth of NVLink 4.
const NVLINK5: Interconnect = Interconnect {
    source: "all-reduce scaled: NVLink 4 with twice the bandwidth",
    allreduce: [(4.3, 254.0), (5.2, 188.0), (6.2, 196.0)],
};
/// Fitted on one replay of a pair of RTX PRO 6000.
const PCIE: Interconnect = Interconnect {
    source: "all-reduce over PCIe assumed: 20 µs and 16 GB/s",
    allreduce: [(20.0, 16.0), (20.0, 16.0), (20.0, 16.0)],
};

const fn decode(efficiency: f64, floor_us: f64, per_head_ns: f64) -> Decode {
    Decode { efficiency: [efficiency; 4], floor_us, per_head_ns }
}

/// Returns every GPU in display order.
pub fn all() -> Vec<Gpu> {
    let (hopper, ampere) = (hopper(), ampere());
    let blackwell = scaled(&hopper, "efficiencies of H100, unmeasured on Blackwell", 30.0);
    let like_ampere = scaled(&ampere, "efficiencies of A100 SXM", 30.0);
    let gpu =
        |name, title, memory_gb, bandwidth_tb_s, tflops: (f64, Option<f64>), kernels: &Kernels, link| Gpu {
            name,
            title,
            memory_gb,
            bandwidth_tb_s,
            bf16_tflops: tflops.0,
            fp8_tflops: tflops.1,
            kernels: kernels.clone(),
            link,
            large: memory_gb >= 75.1 && !name.starts_with("a100"),
        };
    vec![
        gpu("h100", "H100 SXM", 85.5, 3.35, (989.0, Some(1978.0)), &hopper, NVLINK4),
        gpu("h200", "H200 SXM", 150.7, 4.8, (989.0, Some(1978.0)), &h200(), NVLINK4),
        gpu("a100", "A100 SXM 80 GB", 85.5, 2.039, (312.0, None), &ampere, NVLINK3),
        gpu("l40s", "L40S", 47.7, 0.864, (362.05, Some(733.0)), &ada(), PCIE),
        gpu("l4", "L4", 24.1, 0.3, (121.0, Some(242.0)), &l4(), PCIE),
        gpu("rtx-pro-6000", "RTX PRO 6000 server", 102.0, 1.792, (467.8, Some(935.6)), &rtx_pro_6000(), PCIE),
        gpu("rtx-4090", "RTX 4090", 25.39, 1.008, (165.2, Some(330.3)), &rtx_4090(), PCIE),
        gpu(
            "h100-pcie",
            "H100 PCIe",
            85.5,
            2.0,
            (756.5, Some(1513.0)),
            &scaled(&hopper, "efficiencies of H100 SXM", 25.0),
            PCIE,
        ),
        gpu(
            "a100-pcie",
            "A100 PCIe 80 GB",
            85.5,
            1.935,
            (312.0, None),
            &scaled(&ampere, "efficiencies of A100 SXM", 20.0),
            PCIE,
        ),
        gpu("b200", "B200 SXM", 192.4, 7.7, (2250.0, Some(4500.0)), &blackwell, NVLINK5),
        gpu("b300", "B300 SXM", 287.0, 7.75, (2250.0, Some(4500.0)), &blackwell, NVLINK5),
        gpu("gb200", "GB200", 197.7, 8.0, (2500.0, Some(5000.0)), &blackwell, NVLINK5),
        gpu("gb300", "GB300", 296.6, 8.0, (2500.0, Some(5000.0)), &blackwell, NVLINK5),
        gpu("a40", "A40", 47.7, 0.696, (149.7, None), &like_ampere, PCIE),
        gpu("a30", "A30", 25.2, 0.933, (165.0, None), &like_ampere, PCIE),
        gpu("v100", "V100 SXM2 32 GB", 34.1, 0.9, (125.0, None), &like_ampere, PCIE),
        gpu("t4", "T4", 15.8, 0.32, (65.0, None), &like_ampere, PCIE),
    ]
}

fn hopper() -> Kernels {
    Kernels {
        basis: ProfileBasis::Fitted,
        source: "matrix products 3.2 % (bf16) and 5.9 % (fp8), decode attention 8 %, prefill attention 1.5 % of their \
                 kernel tables",
        expected_error_percent: 10.0,
        bf16: Products(0.836, 0.803, 3.15, 14.2),
        fp8: Products(0.949, 0.657, 1.42, 27.5),
        kv_bf16: decode(0.84, 10.2, 3.5),
        kv_fp8: decode(0.78, 10.5, 3.5),
        prefill_bf16: [0.78, 0.257, 10.0],
        prefill_fp8: [0.72, 0.35, 11.0],
        kappa: [1.0, 1.0],
    }
}

/// Decode attention slows down with few KV heads per GPU in the kernel table. The prefill table is faulty (over the
/// peak), so the H100's is used.
fn h200() -> Kernels {
    Kernels {
        source: "matrix products 3.6 % (bf16) and 7.8 % (fp8) and decode attention 10 % of their kernel tables; prefill \
                 attention as H100's",
        bf16: Products(0.82, 0.763, 2.94, 14.6),
        fp8: Products(0.975, 0.734, 1.15, 27.6),
        kv_bf16: Decode { efficiency: [0.82, 0.79, 0.55, 0.38], floor_us: 10.2, per_head_ns: 3.5 },
        kv_fp8: Decode { efficiency: [0.62, 0.45, 0.3, 0.2], floor_us: 10.5, per_head_ns: 3.5 },
        ..hopper()
    }
}

fn ampere() -> Kernels {
    Kernels {
        source: "matrix products 4.7 %, decode attention 7 %, prefill attention 2 % of their kernel tables",
        bf16: Products(0.817, 0.779, 1.69, 41.0),
        fp8: Products(0.817, 0.779, 1.69, 41.0),
        kv_bf16: decode(0.72, 18.5, 1.4),
        kv_fp8: decode(0.72, 18.5, 1.4),
        prefill_bf16: [0.58, 0.7, 14.0],
        prefill_fp8: [0.58, 0.7, 14.0],
        ..hopper()
    }
}

/// The fp8 table of prefill attention is faulty (over the peak), so that of bf16 is used.
fn ada() -> Kernels {
    Kernels {
        source: "matrix products 3.5 % (bf16) and 6 % (fp8), prefill attention 9 % of their kernel tables",
        expected_error_percent: 15.0,
        bf16: Products(0.743, 0.753, 2.78, 0.0),
        fp8: Products(0.66, 0.346, 2.84, 0.0),
        kv_bf16: decode(0.82, 8.0, 3.5),
        kv_fp8: decode(0.83, 8.0, 3.5),
        prefill_bf16: [0.5, 0.6, 5.0],
        prefill_fp8: [0.5, 0.6, 5.0],
        ..hopper()
    }
}

/// The L40S with arithmetic reduced for a board of 72 W.
fn l4() -> Kernels {
    Kernels {
        basis: ProfileBasis::Scaled,
        source: "efficiencies of L40S, arithmetic cut for a board of 72 W",
        expected_error_percent: 20.0,
        bf16: Products(0.74, 0.55, 2.8, 2.0),
        fp8: Products(0.66, 0.25, 2.84, 2.0),
        kv_bf16: decode(0.8, 10.0, 3.5),
        kv_fp8: decode(0.8, 10.0, 3.5),
        prefill_bf16: [0.45, 0.9, 8.0],
        prefill_fp8: [0.45, 0.9, 8.0],
        ..hopper()
    }
}

/// Operator profiles of two models (with floors of 10 µs), bandwidth of the workstation edition.
fn rtx_pro_6000() -> Kernels {
    Kernels {
        source: "matrix products 3.4 %, decode attention 6 %, prefill attention 5 % of operator profiles of two models \
                 in bf16; fp8 as L40S's",
        expected_error_percent: 15.0,
        bf16: Products(0.807, 0.855, 1.57, 10.0),
        fp8: Products(0.66, 0.346, 2.84, 10.0),
        kv_bf16: decode(0.8, 12.0, 3.5),
        kv_fp8: decode(0.8, 12.0, 3.5),
        prefill_bf16: [0.55, 0.486, 11.3],
        prefill_fp8: [0.55, 0.486, 11.3],
        kappa: [1.66, 2.76],
        ..hopper()
    }
}

fn rtx_4090() -> Kernels {
    Kernels {
        source: "matrix products 3.0 %, decode attention 9 %, prefill attention 2.4 % of operator profiles of one model \
                 in bf16; fp8 as L40S's",
        expected_error_percent: 15.0,
        bf16: Products(0.906, 0.964, 2.015, 10.0),
        fp8: Products(0.66, 0.346, 2.84, 10.0),
        kv_bf16: decode(0.906, 11.8, 6.3),
        kv_fp8: decode(0.906, 11.8, 6.3),
        prefill_bf16: [0.842, 1.157, 9.1],
        prefill_fp8: [0.842, 1.157, 9.1],
        kappa: [2.05, 2.05],
        ..hopper()
    }
}

fn scaled(kernels: &Kernels, source: &'static str, expected_error_percent: f64) -> Kernels {
    Kernels { basis: ProfileBasis::Scaled, source, expected_error_percent, ..kernels.clone() }
}

impl Gpu {
    /// Returns this GPU for weights and KV cache of these dtypes, with `kv_heads` KV heads of a model on each of
    /// `group` GPUs. Returns `None` if it lacks arithmetic of that dtype or the group is unknown.
    pub fn spec(&self, dtype: Dtype, kv: Dtype, kv_heads: u32, group: u32) -> Option<GpuSpec> {
        let kernels = &self.kernels;
        let (products, tflops) = match dtype {
            Dtype::Fp8 => (kernels.fp8, self.fp8_tflops?),
            // Four-bit weights are unpacked and multiplied in bf16.
            Dtype::Bf16 | Dtype::Fp4 => (kernels.bf16, self.bf16_tflops),
        };
        let (decode, prefill) = match kv {
            Dtype::Fp8 => (kernels.kv_fp8, kernels.prefill_fp8),
            Dtype::Bf16 | Dtype::Fp4 => (kernels.kv_bf16, kernels.prefill_bf16),
        };
        let heads = match kv_heads {
            8.. => 0,
            4..8 => 1,
            2..4 => 2,
            _ => 3,
        };
        let (allreduce_us, allreduce_gb_s) = match group {
            1 => (0.0, 0.0),
            2 => self.link.allreduce[0],
            4 => self.link.allreduce[1],
            8 => self.link.allreduce[2],
            _ => return None,
        };
        Some(GpuSpec {
            memory_gb: self.memory_gb,
            tflops,
            bandwidth_tb_s: self.bandwidth_tb_s,
            weight_efficiency: products.0,
            compute_efficiency: products.1,
            norm: products.2,
            linear_floor_us: products.3,
            kv_efficiency: decode.efficiency[heads],
            decode_floor_us: decode.floor_us,
            decode_per_head_ns: decode.per_head_ns,
            // Attention computes in bf16 for any dtype of the KV cache.
            attention_tflops: Some(self.bf16_tflops),
            attention_efficiency: prefill[0],
            prefill_per_head_ns: prefill[1],
            prefill_floor_us: prefill[2],
            allreduce_us,
            allreduce_gb_s,
            experts: ExpertKernels::default(),
        })
    }
}
