//! The least times of a step at the peaks of a GPU's data sheet, and the batch at which the larger one changes.
//!
//! The roofline computes them with ideal kernels and one of its two limits removed. A separate count of bytes and
//! operations was rejected, because it would be a second model of experts, windows and latent attention.

use crate::engine::roofline::{HostSpec, RooflineSpec};
use crate::engine::step_time::{StepLoad, of_pass};
use crate::spec::gpu::{ExpertKernels, GpuSpec};

/// Largest batch of the search.
const MAX_BATCH: u32 = 1 << 16;

/// The least times of a step's bytes and operations in seconds. Operations of decode attention are not counted,
/// because its time is the reading of the KV cache.
#[derive(Copy, Clone, PartialEq, Debug)]
pub struct PeakTimes {
    pub memory_s: f64,
    pub compute_s: f64,
}

/// Returns the times of a step at peak memory bandwidth and at peak arithmetic.
pub fn peak_times(spec: &RooflineSpec, load: &StepLoad) -> PeakTimes {
    let memory = GpuSpec { tflops: f64::INFINITY, attention_tflops: None, ..ideal(&spec.gpu) };
    let compute = GpuSpec { bandwidth_tb_s: f64::INFINITY, ..ideal(&spec.gpu) };
    let seconds = |gpu: GpuSpec| {
        let host = HostSpec { layer_us: 0.0, step_us: 0.0, request_us: 0.0 };
        modelled_s(&RooflineSpec { gpu, host, kappa: 1.0, ..spec.clone() }, load)
    };
    PeakTimes { memory_s: seconds(memory), compute_s: seconds(compute) }
}

/// Returns the duration of a step with the kernels of the specification, in seconds.
pub fn modelled_s(spec: &RooflineSpec, load: &StepLoad) -> f64 {
    of_pass(spec, load) as f64 / 1e12
}

/// Returns the smallest batch of these loads whose arithmetic takes as long as its memory; `None` if there is none.
pub fn turning_batch(spec: &RooflineSpec, load: impl Fn(u32) -> StepLoad) -> Option<u32> {
    let is_compute = |batch: u32| {
        let times = peak_times(spec, &load(batch));
        times.compute_s >= times.memory_s
    };
    let mut above = 1;
    while !is_compute(above) {
        above *= 2;
        if above > MAX_BATCH {
            return None;
        }
    }
    let mut below = above / 2;
    while above - below > 1 {
        let middle = below + (above - below) / 2;
        if is_compute(middle) { above = middle } else { below = middle }
    }
    Some(above)
}

/// Returns the GPU with kernels that reach every peak, without start-up times.
fn ideal(gpu: &GpuSpec) -> GpuSpec {
    let experts = ExpertKernels { weight_efficiency: 1.0, compute_efficiency: 1.0, norm: 1.0, floor_us: 0.0 };
    GpuSpec {
        weight_efficiency: 1.0,
        compute_efficiency: 1.0,
        kv_efficiency: 1.0,
        attention_efficiency: 1.0,
        linear_floor_us: 0.0,
        decode_floor_us: 0.0,
        decode_per_head_ns: 0.0,
        prefill_per_head_ns: 0.0,
        prefill_floor_us: 0.0,
        allreduce_us: 0.0,
        allreduce_gb_s: f64::INFINITY,
        experts,
        ..gpu.clone()
    }
}
