//! Bounds of prefill and decode: hand-computed peaks, measured kernels and servers, and the cases without a verdict.

use plimsoll_measure::findings::Estimate;
use plimsoll_plan::roofline::{
    LevelRoofline, PhaseRoofline, RooflineBound, StepFigures, decode, prefill, spec_of,
};
use plimsoll_sim::EngineSpec;
use plimsoll_sim::catalogue::by_name;

fn engine(name: &str) -> EngineSpec {
    by_name(name).expect("a pair").expect("a known pair")
}

fn exact(value: f64) -> Estimate {
    Estimate { value, lower: value, upper: value, n: 1000, n_eff: 1000.0 }
}

/// Returns the figures of a steady load with this batch and time per token.
fn steady(batch: f64, tpot_s: f64, prompt: f64, output: f64) -> StepFigures {
    StepFigures {
        tpot: Some(exact(tpot_s)),
        first: None,
        decoding: batch,
        running: Some(batch),
        in_flight: batch,
        prompt,
        cached: 0.0,
        output,
    }
}

fn decoded(name: &str, figures: &StepFigures) -> PhaseRoofline {
    decode(spec_of(&engine(name)).expect("a roofline"), figures).expect("a measured step")
}

fn prefilled(name: &str, figures: &StepFigures) -> PhaseRoofline {
    prefill(spec_of(&engine(name)).expect("a roofline"), figures).expect("a measured first token")
}

#[test]
fn shares_are_bytes_and_operations_over_the_peaks_of_the_data_sheet() {
    // Llama 3.1 8B: 6 979 321 856 weights in layers, 128 256 × 4096 in the head, 131 072 bytes of KV per token.
    // An H100 reads 3.35 TB/s and computes 989 TFLOP/s.
    let weights = 6_979_321_856.0 + 128_256.0 * 4096.0;
    let (batch, step_s, context) = (16.0, 0.010, 1024.0 + 500.0);
    let found = decoded("llama-3.1-8b@h100", &steady(batch, step_s, 1024.0, 1000.0));
    let memory = (2.0 * weights + batch * context * 131_072.0) / 3.35e12 / step_s;
    let compute = 2.0 * weights * batch / 989e12 / step_s;
    assert!((found.memory.at_least - memory).abs() < 1e-3 * memory, "{found:?} against {memory}");
    assert!((found.compute.at_least - compute).abs() < 1e-3 * compute, "{found:?} against {compute}");
    assert_eq!(found.bound, RooflineBound::Memory);
    let twice = decoded("llama-3.1-8b@h100x2", &steady(batch, step_s, 1024.0, 1000.0));
    assert!(
        (twice.memory.at_least - memory / 2.0).abs() < 1e-3 * memory,
        "two GPUs share the bytes: {twice:?}"
    );
}

#[test]
fn the_turning_batch_is_that_of_measured_kernels() {
    // Above the turning point the time of a product grows with its tokens. Ideal kernels need twice the time there for
    // twice the tokens, so the measured time doubles near that point.
    let rows = include_str!("../fixtures/roofline/gemm.csv").lines().skip(1);
    let rows: Vec<(&str, f64, f64)> = rows
        .map(|line| {
            let cells: Vec<&str> = line.split(',').collect();
            (cells[0], cells[1].parse().expect("tokens"), cells[2].parse().expect("time"))
        })
        .collect();
    for (gpu, name) in [("h100_sxm", "h100"), ("h200_sxm", "h200"), ("a100_sxm", "a100"), ("l40s", "l40s")] {
        let mut kernel: Vec<(f64, f64)> = rows.iter().filter(|r| r.0 == gpu).map(|r| (r.1, r.2)).collect();
        kernel.sort_by(|a, b| a.0.total_cmp(&b.0));
        let small = kernel.iter().filter(|row| row.0 <= 16.0).map(|row| row.1).fold(f64::INFINITY, f64::min);
        let after = kernel.iter().position(|row| row.1 >= 2.0 * small).expect("the time doubles");
        let ((m0, t0), (m1, t1)) = (kernel[after - 1], kernel[after]);
        let doubled = m0 + (m1 - m0) * (2.0 * small - t0) / (t1 - t0);
        let found = decoded(&format!("llama-3.1-8b@{name}"), &steady(8.0, 0.05, 1.0, 2.0));
        let ratio = doubled / (2.0 * f64::from(found.turns_at.expect("it turns")));
        assert!((0.75..1.1).contains(&ratio), "{name}: measured {doubled:.0}, twice {:?}", found.turns_at);
    }
}

#[test]
fn measured_servers_decode_small_batches_at_the_memory_bandwidth() {
    for line in include_str!("../fixtures/roofline/decode.csv").lines().skip(1) {
        let cells: Vec<&str> = line.split(',').collect();
        let number = |i: usize| cells[i].parse::<f64>().expect("a number");
        let (prompt, output, concurrency) = (number(1), number(2), number(3));
        // The requests in flight of a closed loop are an upper bound of the batch.
        let figures = steady(concurrency, number(4) / 1000.0, prompt, output);
        let found = decoded(cells[0], &figures);
        assert!(found.memory.at_least < 1.0 && found.compute.at_least < 0.5, "{line}: {found:?}");
        assert_ne!(found.bound, RooflineBound::Compute, "{line}: a batch below the turning point");
        if prompt < 2000.0 && concurrency <= 8.0 {
            assert_eq!(found.bound, RooflineBound::Memory, "{line}: {found:?}");
        }
        if concurrency >= 64.0 {
            assert_eq!(
                found.bound,
                RooflineBound::Unknown,
                "{line}: prompts take the time between tokens, {found:?}"
            );
        }
    }
}

#[test]
fn a_slow_host_is_neither_bound() {
    let found = decoded("llama-3.1-8b@h100", &steady(4.0, 0.060, 256.0, 256.0));
    assert_eq!(found.bound, RooflineBound::Neither, "{found:?}");
}

#[test]
fn without_the_servers_batch_only_a_compute_bound_is_certain() {
    let small = StepFigures { running: None, ..steady(4.0, 0.006, 256.0, 2560.0) };
    let found = decoded("llama-3.1-8b@h100", &small);
    assert_eq!(
        (found.bound, found.memory.at_most, found.batch_at_most),
        (RooflineBound::Unknown, None, None)
    );
    assert!(found.why.is_some_and(|why| why.contains("does not report its batch")));
    let large = StepFigures { running: None, ..steady(1024.0, 0.025, 8.0, 2560.0) };
    // Short contexts: 16 Tera-operations of 1024 sequences take 15 ms, so more sequences only raise the share.
    let found = decoded("llama-3.1-8b@h100", &StepFigures { output: 16.0, prompt: 1.0, ..large });
    assert_eq!(found.bound, RooflineBound::Compute, "{found:?}");
}

#[test]
fn a_step_without_an_upper_bound_asks_for_a_longer_run() {
    let open = Estimate { upper: f64::INFINITY, ..exact(0.008) };
    let few = StepFigures { tpot: Some(open), first: Some(open), ..steady(4.0, 0.008, 256.0, 2560.0) };
    for found in [decoded("llama-3.1-8b@h100", &few), prefilled("llama-3.1-8b@h100", &few)] {
        assert_eq!(found.bound, RooflineBound::Unknown);
        assert!(found.why.is_some_and(|why| why.contains("too few requests")));
    }
}

#[test]
fn a_step_faster_than_the_data_sheet_names_the_profile() {
    let found = decoded("llama-3.1-70b@h100x2", &steady(4.0, 0.006, 256.0, 2560.0));
    assert_eq!(found.bound, RooflineBound::Unknown);
    assert!(found.why.is_some_and(|why| why.contains("check model, dtype and GPU")));
}

#[test]
fn long_contexts_never_turn() {
    // At 65 536 tokens the KV cache of a sequence takes more time to read than its arithmetic.
    let found = decoded("llama-3.1-8b@h100", &steady(4.0, 0.030, 65_536.0, 4096.0));
    assert_eq!(found.turns_at, None, "{found:?}");
}

#[test]
fn a_prompt_is_compute_bound_if_its_time_is_near_its_arithmetic() {
    // 8192 prompt tokens: 2 × 7.0e9 × 8192 operations take 116 ms of the peak, without attention.
    let alone =
        |first_s: f64| StepFigures { first: Some(exact(first_s)), ..steady(1.0, 0.008, 8192.0, 16.0) };
    let found = prefilled("llama-3.1-8b@h100", &alone(0.170));
    assert_eq!(found.bound, RooflineBound::Compute, "{found:?}");
    assert!(found.compute.at_least > 0.68 && found.compute.at_least < 0.85, "{found:?}");
    assert!(found.turns_at.is_some_and(|at| (200..400).contains(&at)), "{found:?}");
    let cached = prefilled("llama-3.1-8b@h100", &StepFigures { cached: 0.75, ..alone(0.170) });
    assert_eq!(
        cached.bound,
        RooflineBound::Neither,
        "the cache leaves a quarter of the arithmetic: {cached:?}"
    );
    let queued = StepFigures { in_flight: 20.0, running: Some(20.0), ..alone(1.0) };
    let found = prefilled("llama-3.1-8b@h100", &queued);
    assert_eq!(
        (found.bound, found.compute.at_most),
        (RooflineBound::Unknown, None),
        "a queue hides the prompt"
    );
    assert_eq!(
        prefilled("llama-3.1-8b@h100", &StepFigures { running: None, ..queued }).bound,
        RooflineBound::Unknown
    );
}

#[test]
fn levers_that_the_bound_excludes_are_ruled_out() {
    let of = |decode: Option<PhaseRoofline>, prefill: Option<PhaseRoofline>| LevelRoofline {
        level: 0,
        engine: "llama-3.1-8b@h100".into(),
        replicas: 1,
        prefill,
        decode,
        notes: vec![],
    };
    let out = |level: &LevelRoofline| {
        ["speculative-decoding", "quantisation"].map(|lever| level.rules_out(lever).is_some())
    };
    let first = |figures: StepFigures, first_s: f64| StepFigures { first: Some(exact(first_s)), ..figures };
    let decode = |batch, tpot_s| Some(decoded("llama-3.1-8b@h100", &steady(batch, tpot_s, 16.0, 200.0)));
    let prefill = |first_s| {
        let figures = first(steady(1.0, 0.5, 16.0, 16.0), first_s);
        Some(prefilled("llama-3.1-8b@h100", &figures))
    };
    // 16 GB of weights take 4.8 ms of 3.35 TB/s. 2048 sequences take 31 ms of arithmetic.
    assert_eq!(out(&of(decode(1.0, 0.006), prefill(0.006))), [false, false], "memory-bound");
    assert_eq!(out(&of(decode(2048.0, 0.040), prefill(0.006))), [true, false], "compute-bound decode");
    assert_eq!(out(&of(decode(1.0, 0.5), prefill(0.5))), [false, true], "the host takes the time");
    assert_eq!(out(&of(decode(1.0, 0.5), prefill(0.006))), [false, false], "prefill reads the weights");
    assert_eq!(out(&of(None, prefill(0.5))), [false, false], "decode is unknown");
    let one = of(decode(1.0, 0.006), None).words().remove(0);
    assert!(one.contains(" 1 sequence;"), "{one}");
}
