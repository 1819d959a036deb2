//! Profiler timelines: busy, launch and host shares of hand-written timelines, and of random ones compared with a
//! count by microseconds.

use plimsoll_diagnose::device::stretch::IntervalSet;
use plimsoll_diagnose::device::{Bound, DeviceFinding, DeviceWork, is_timeline, judge, within};
use plimsoll_math::rng::Stream;
use plimsoll_model::{AttributeValue, SpanKind, TraceSpan};

/// Returns a span of a category on thread 1, times in µs.
pub fn span(id: u64, parent: u64, category: &str, name: &str, (from, to): (i64, i64)) -> TraceSpan {
    let text = |text: &str| AttributeValue::Text(text.to_owned());
    let mut attributes = vec![("category".to_owned(), text(category))];
    if matches!(category, "kernel" | "gpu_memcpy" | "gpu_user_annotation") {
        attributes.push(("device".to_owned(), AttributeValue::Int(0)));
        attributes.push(("stream".to_owned(), AttributeValue::Int(7)));
    } else {
        attributes.push(("thread.id".to_owned(), text("1")));
    }
    TraceSpan {
        trace: 1,
        id,
        parent: (parent > 0).then_some(parent),
        name: name.to_owned(),
        service: Some("python".to_owned()),
        kind: SpanKind::Internal,
        start_ns: 1_000 * from,
        end_ns: 1_000 * to,
        failed: false,
        attributes,
        events: Vec::new(),
        weight: 1.0,
    }
}

/// Returns two steps of 1 ms. In each, a matrix product of 400 µs launched at 100 begins at 120, and an elementwise
/// kernel of 100 follows. A copy launched at 800 (a call of 10) runs from 830 to 930. The device is busy for 600,
/// waits for launched work for 10 + 20, and waits for the host for 370. Meanwhile the host is in `item`.
fn two_steps() -> Vec<TraceSpan> {
    let mut all = Vec::new();
    for step in 0..2u64 {
        let (at, id) = (1_000 * step as i64, 100 * step);
        let mut put = |n: u64, parent: u64, category: &str, name: &str, from: i64, to: i64| {
            let parent = if parent == 0 { 0 } else { id + parent };
            all.push(span(id + n, parent, category, name, (at + from, at + to)));
        };
        put(1, 0, "user_annotation", &format!("ProfilerStep#{step}"), 0, 1_000);
        put(2, 1, "cpu_op", "aten::linear", 80, 260);
        put(3, 2, "cuda_runtime", "cudaLaunchKernel", 100, 110);
        put(4, 2, "cuda_runtime", "cudaLaunchKernel", 200, 210);
        put(5, 1, "cpu_op", "aten::item", 630, 790);
        put(6, 1, "cuda_runtime", "cudaMemcpyAsync", 800, 810);
        put(7, 3, "kernel", "ampere_sgemm_128x64_tn", 120, 520);
        put(8, 4, "kernel", "void at::native::vectorized_elementwise_kernel<4, x>(int)", 520, 620);
        put(9, 6, "gpu_memcpy", "Memcpy DtoH (Device -> Pinned)", 830, 930);
        put(10, 0, "gpu_user_annotation", "ProfilerStep", 0, 1_000);
    }
    all
}

fn near(value: f64, truth: f64) {
    assert!((value - truth).abs() < 1e-9, "{value} is not {truth}");
}

#[test]
fn a_timeline_laid_out_by_hand_is_taken_apart_as_it_was_made() {
    let spans = two_steps();
    assert!(is_timeline(&spans));
    let found = judge(&spans);
    assert_eq!(found.bound, Bound::Host, "{}", found.says);
    let device = &found.devices[0];
    near(found.window_s, 2e-3);
    near(device.busy, 0.6);
    near(device.computing, 0.5);
    near(device.copy_alone, 0.1);
    near(device.host_idle.expect("launches are known"), 0.37);
    near(device.queued_idle.expect("launches are known"), 0.03);
    assert_eq!((device.device.as_str(), device.streams, device.activities), ("GPU 0", 1, 6));
    let kinds: Vec<(DeviceWork, u64)> = found.kinds.iter().map(|kind| (kind.kind, kind.count)).collect();
    assert_eq!(kinds[0], (DeviceWork::Matmul, 2));
    near(found.kinds[0].share, 400.0 / 600.0);
    let launches = found.launches.expect("launches");
    assert_eq!(launches.count, 6);
    near(launches.call_over_device, 60.0 / 1_200.0);
    // Host: 110 at the start, 190 in the middle of each step (in `item`), 180 between the steps, 70 at the end.
    let item = found.host_meanwhile.iter().find(|did| did.name == "aten::item").expect("it stood in item");
    near(item.share, 380.0 / 740.0);
    assert_eq!(found.steps.len(), 2);
    near(found.steps[1].busy, 0.6);
    near(found.steps[1].at_s, 1e-3);
    near(found.steps[0].host_idle.expect("known"), 0.37);
    // `linear` has 180 µs, without two calls of 10.
    let linear = found.host_top.iter().find(|top| top.name == "aten::linear").expect("listed");
    near(linear.total_s, 320e-6);
}

#[test]
fn what_the_time_went_by_is_told_apart() {
    let bound = |name: &str, category: &str| {
        let spans = vec![
            span(1, 0, "cuda_runtime", "cudaLaunchKernel", (0, 5)),
            span(2, 1, category, name, (10, 990)),
            span(3, 0, "cuda_runtime", "cudaLaunchKernel", (20, 25)),
            span(4, 3, "kernel", "sm90_xmma_gemm_bf16", (990, 1_000)),
        ];
        judge(&spans).bound
    };
    assert_eq!(bound("ncclDevKernel_AllReduce_Sum_bf16_RING_LL", "kernel"), Bound::Communication);
    assert_eq!(bound("Memcpy HtoD", "gpu_memcpy"), Bound::Copies);
    assert_eq!(bound("flash_fwd_splitkv_kernel", "kernel"), Bound::Device);
    // Without launches the reason for idle time is unknown.
    let alone = vec![span(1, 0, "kernel", "gemm", (0, 100)), span(2, 0, "kernel", "gemm", (900, 1_000))];
    let found = judge(&alone);
    assert_eq!((found.bound, found.devices[0].host_idle, found.host_meanwhile.len()), (Bound::Idle, None, 0));
    assert!(found.notes.iter().any(|note| note.contains("launches of 2 of 2")), "{:?}", found.notes);
    // A timeline with host work only.
    let host = judge(&[span(1, 0, "cpu_op", "aten::add", (0, 10))]);
    assert_eq!((host.bound, host.host_top[0].name.as_str()), (Bound::NoDevice, "aten::add"));
}

/// Three layers launch kernels: layer 0 attention of 30 µs and a product of 10, layer 1 attention of 50, layer 2 nothing.
/// An outer range contains both, and an operator is inside layer 1.
fn layered() -> Vec<TraceSpan> {
    vec![
        span(1, 0, "nvtx", "forward", (0, 300)),
        span(2, 1, "nvtx", "model.layers.0.attn", (0, 100)),
        span(3, 2, "cuda_runtime", "cudaLaunchKernel", (10, 12)),
        span(4, 2, "cuda_runtime", "cudaLaunchKernel", (20, 22)),
        span(5, 1, "nvtx", "model.layers.1.attn", (100, 200)),
        span(6, 5, "cpu_op", "aten::sdpa", (110, 190)),
        span(7, 6, "cuda_runtime", "cudaLaunchKernel", (120, 122)),
        span(8, 1, "nvtx", "model.layers.2.attn", (200, 300)),
        span(9, 3, "kernel", "flash_fwd_kernel", (30, 60)),
        span(10, 4, "kernel", "nvjet_tst_192x192", (60, 70)),
        span(11, 7, "kernel", "flash_fwd_kernel", (130, 180)),
        span(12, 0, "kernel", "CUDA graph 3", (400, 410)),
    ]
}

#[test]
fn device_time_is_told_by_the_ranges_that_launched_it() {
    let found = judge(&layered());
    let shown = |name: &str| {
        let one = found.layers.iter().find(|one| one.layer == name);
        let one = one.unwrap_or_else(|| panic!("no {name}: {:?}", found.layers));
        ((one.ranges, one.activities), (1e6 * one.total_s).round() as i64, one.kind)
    };
    assert_eq!(shown("forward"), ((1, 3), 90, DeviceWork::Attention));
    assert_eq!(shown("model.layers.#.attn"), ((2, 3), 90, DeviceWork::Attention));
    assert_eq!(shown("aten::sdpa"), ((1, 1), 50, DeviceWork::Attention));
    assert_eq!(found.layers.len(), 3, "layer 2 launched nothing");
    let layer = &found.layers[1];
    assert_eq!(
        (layer.longest.as_str(), layer.layer.as_str()),
        ("model.layers.1.attn", "model.layers.#.attn")
    );
    near(layer.longest_s, 50e-6);
    near(layer.share, 0.9);
    near(layer.kind_share, 80.0 / 90.0);
    // Ranges that are each other's parent end the walk.
    let circle = [
        span(1, 2, "nvtx", "a", (0, 9)),
        span(2, 1, "nvtx", "b", (0, 9)),
        span(3, 1, "cuda_runtime", "cudaLaunchKernel", (1, 2)),
        span(4, 3, "kernel", "gemm", (3, 5)),
    ];
    assert_eq!(judge(&circle).layers.iter().map(|one| one.layer.as_str()).collect::<Vec<_>>(), ["a", "b"]);
    // The kernels of a graph that was recorded as one piece are unknown.
    assert!(found.notes.iter().any(|note| note.contains("--cuda-graph-trace=node")), "{:?}", found.notes);
}

#[test]
fn a_timeline_is_cut_to_the_time_of_a_run() {
    // From 50 µs: 10 of the first kernel, the second and the third; layer 0 has its product alone.
    let part = within(&layered(), (50_000, 200_000)).expect("device work");
    let found = judge(&part);
    let kinds: Vec<(DeviceWork, u64, i64)> =
        found.kinds.iter().map(|kind| (kind.kind, kind.count, (1e6 * kind.total_s).round() as i64)).collect();
    assert_eq!(kinds, [(DeviceWork::Attention, 2, 60), (DeviceWork::Matmul, 1, 10)]);
    assert!(part.iter().all(|span| span.start_ns >= 50_000 && span.end_ns <= 200_000));
    assert_eq!(within(&layered(), (200_000, 300_000)), None, "no device work");
}

#[test]
fn a_trace_of_requests_is_no_timeline() {
    let mut request = span(1, 0, "http", "POST /v1/chat/completions", (0, 10));
    assert!(!is_timeline(std::slice::from_ref(&request)));
    request.attributes.clear();
    assert!(!is_timeline(&[request]));
}

#[test]
fn names_of_kernels_say_what_they_do() {
    for (name, kind) in [
        ("ampere_sgemm_32x32_sliced1x4_tn", DeviceWork::Matmul),
        ("nvjet_tst_192x192_64x4_2x1_v_bz_coopB_bias_TNN", DeviceWork::Matmul),
        ("Cijk_Alik_Bljk_SB_Bias_AS_SAV_UserArgs_MT64x16x32", DeviceWork::Matmul),
        ("sm80_xmma_fprop_implicit_gemm_indexed_tf32f32_tf32f32_f32_nhwckrsc_nchw", DeviceWork::Convolution),
        ("cudnn_ampere_scudnn_128x64_relu_xregs_large_nn_v1", DeviceWork::Convolution),
        ("void cudnn::bn_bw_1C11_kernel_new<float, float, float2, 128, true, 1>", DeviceWork::Norm),
        ("void flash::flash_fwd_splitkv_kernel<Flash_fwd_kernel_traits<128, 64>>", DeviceWork::Attention),
        ("ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)", DeviceWork::Collective),
        ("void vllm::cross_device_reduce_1stage<__nv_bfloat16, 2>", DeviceWork::Collective),
        ("void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float>>", DeviceWork::Reduction),
        ("void vllm::reshape_and_cache_flash_kernel<__nv_bfloat16>", DeviceWork::Attention),
        ("triton_poi_fused_add_cos_sin_0", DeviceWork::Elementwise),
        ("my_kernel", DeviceWork::Other),
    ] {
        assert_eq!(DeviceWork::of_kernel(name), kind, "{name}");
    }
}

/// Random kernels and launches on 2 000 µs, with the shares counted microsecond by microsecond.
#[test]
fn shares_are_what_a_count_by_microseconds_finds() {
    const END: i64 = 2_000;
    for seed in 0..40 {
        let mut chance = Stream::new(seed, "device", 0);
        let mut below = |n: i64| (chance.uniform() * n as f64) as i64;
        let mut spans = Vec::new();
        let (mut runs, mut queued) = (vec![false; END as usize], vec![false; END as usize]);
        let mark = |of: &mut Vec<bool>, from: i64, to: i64| of[from as usize..to as usize].fill(true);
        for n in 0..20u64 {
            let call = below(END - 200);
            let from = call + 1 + below(150);
            let to = (from + 1 + below(60)).min(END);
            spans.push(span(2 * n + 1, 0, "cuda_runtime", "cudaLaunchKernel", (call, call + 1)));
            spans.push(span(2 * n + 2, 2 * n + 1, "kernel", "gemm", (from, to)));
            mark(&mut runs, from, to);
            mark(&mut queued, call + 1, from);
        }
        let begins = spans.iter().map(|span| span.start_ns / 1_000).min().expect("spans");
        let ends = spans.iter().filter(|span| span.parent.is_some()).map(|span| span.end_ns / 1_000).max();
        let window = begins..ends.expect("spans");
        let count = |is: &dyn Fn(usize) -> bool| {
            window.clone().filter(|at| is(*at as usize)).count() as f64 / (window.end - window.start) as f64
        };
        let DeviceFinding { devices, .. } = judge(&spans);
        near(devices[0].busy, count(&|at| runs[at]));
        near(devices[0].queued_idle.expect("known"), count(&|at| !runs[at] && queued[at]));
        near(devices[0].host_idle.expect("known"), count(&|at| !runs[at] && !queued[at]));
    }
}

#[test]
fn stretches_obey_the_arithmetic_of_sets() {
    for seed in 0..50 {
        let mut chance = Stream::new(seed, "stretches", 0);
        let mut some = || {
            let one = |chance: &mut Stream| {
                let from = (chance.uniform() * 100.0) as i64;
                (from, from + (chance.uniform() * 12.0) as i64 - 1)
            };
            let list: Vec<(i64, i64)> = (0..8).map(|_| one(&mut chance)).collect();
            let mut set = [false; 128];
            list.iter().for_each(|(from, to)| (*from..*to).for_each(|at| set[at as usize] = true));
            (IntervalSet::union(list), set)
        };
        let ((a, in_a), (b, in_b)) = (some(), some());
        let count = |is: &dyn Fn(usize) -> bool| (0..128).filter(|at| is(*at)).count() as i64;
        assert_eq!(a.length_ns(), count(&|at| in_a[at]));
        assert_eq!(a.and(&b).length_ns(), count(&|at| in_a[at] && in_b[at]));
        assert_eq!(a.without(&b).length_ns(), count(&|at| in_a[at] && !in_b[at]));
        assert!(a.without(&b).and(&b).iter().next().is_none());
    }
}
