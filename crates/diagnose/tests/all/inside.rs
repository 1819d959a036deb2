//! The effect of a profiler timeline on a diagnosis: equally slow responses with hand-written timelines.

use plimsoll_diagnose::device::{DeviceFinding, judge};
use plimsoll_diagnose::{Case, Cause, DiagnoseSpec, Diagnosis, diagnose};
use plimsoll_measure::findings::{BudgetSpec, Ceiling, Metric};
use plimsoll_model::{At, Attempt, Load, Sample, TraceSpan};

use crate::asked::Run;
use crate::device::span;
use plimsoll_lab::records::{MS, answer, level};

/// Length of a load, s; tokens per response; isolated requests of a probe.
const SECONDS: i64 = 120;
const TOKENS: i64 = 40;
const PROBE: i64 = 40;

/// Returns forty isolated requests and eight per second, with a token every `gap` ms, isolated or concurrent.
fn run(gap: i64) -> Run {
    let mut probe = level(1.0, 0);
    (probe.id, probe.load) = (1, Load::Closed { concurrency: 1 });
    (probe.stop, probe.arrivals) = (At(2 * PROBE * 1_000 * MS), PROBE as u64);
    let mut load = level(8.0, SECONDS);
    load.arrivals = 8 * SECONDS as u64;
    let one = |i: i64, due: i64| {
        let first = 80 + (13 * i) % 7;
        answer(i as u64, due, first, first + gap * (TOKENS - 1) + (i * 7) % 5, TOKENS as u32)
    };
    let mut attempts: Vec<Attempt> = (0..PROBE).map(|i| one(i, 2_000 * i)).collect();
    attempts.iter_mut().for_each(|row| row.level = 1);
    attempts.extend((0..8 * SECONDS).map(|i| one(i, 125 * i + (i * 37) % 90)));
    Run::of(vec![probe, load], attempts)
}

/// Returns twelve steps: a matrix product, an exposed communication, and other host work, in µs.
fn steps(computes: i64, exchanges: i64, host: i64) -> Vec<TraceSpan> {
    let took = 20 + computes + exchanges + host;
    let mut all = Vec::new();
    for step in 0..12 {
        let (at, id) = (took * step, 100 * step as u64);
        let mut put = |n: u64, parent: u64, category: &str, name: &str, from: i64, to: i64| {
            let parent = if parent == 0 { 0 } else { id + parent };
            all.push(span(id + n, parent, category, name, (at + from, at + to)));
        };
        put(1, 0, "user_annotation", &format!("ProfilerStep#{step}"), 0, took);
        put(3, 1, "cuda_runtime", "cudaLaunchKernel", 0, 10);
        put(4, 1, "cuda_runtime", "cudaLaunchKernel", 11, 15);
        put(5, 1, "cpu_op", "aten::item", 20 + computes + exchanges, took);
        put(7, 3, "kernel", "ampere_sgemm_128x64_tn", 20, 20 + computes);
        let (from, to) = (20 + computes, 20 + computes + exchanges);
        put(8, 4, "kernel", "ncclDevKernel_AllReduce_Sum_bf16_RING_LL", from, to);
    }
    all
}

fn asked(
    base: Option<&Run>,
    now: &Run,
    device: Option<&DeviceFinding>,
    budget: Option<&BudgetSpec>,
) -> Diagnosis {
    let spec = DiagnoseSpec::default();
    let (candidate, baseline) = (now.side(), base.map(Run::side));
    diagnose(&Case { candidate, baseline, budget, device, validity: None, spec: &spec })
}

fn promised(limit_s: f64) -> BudgetSpec {
    BudgetSpec {
        name: "test".into(),
        latency: vec![Ceiling::new(Metric::Tpot, 0.95, limit_s)],
        error_rate: None,
    }
}

#[test]
fn without_a_before_a_large_part_is_named_where_a_promise_is_broken() {
    let half_exchanged = judge(&steps(400, 500, 80));
    let broken = asked(None, &run(60), Some(&half_exchanged), Some(&promised(0.05)));
    assert_eq!(broken.verdicts[0].cause, Cause::Collectives, "{}", broken.headline);
    // Without communication a step is at most twice as fast.
    assert!(broken.verdicts[0].says.contains("2 times as fast at most"), "{}", broken.verdicts[0].says);
    let held = asked(None, &run(25), Some(&half_exchanged), Some(&promised(0.05)));
    assert_eq!(held.verdicts[0].cause, Cause::Nothing, "{}", held.headline);
    let little = asked(None, &run(60), Some(&judge(&steps(780, 120, 80))), Some(&promised(0.05)));
    assert_eq!(little.verdicts[0].cause, Cause::SingleRequestOverBudget, "{}", little.headline);
}

#[test]
fn a_device_that_waits_for_its_host_is_named_with_the_lock_it_waits_for() {
    let of = |call: &str| {
        let mut late = steps(200, 100, 680);
        late.iter_mut().filter(|span| span.name == "aten::item").for_each(|span| span.name = call.into());
        asked(None, &run(60), Some(&judge(&late)), Some(&promised(0.05))).verdicts.remove(0).cause
    };
    assert_eq!(of("aten::item"), Cause::HostBound);
    assert_eq!(of("pthread_mutex_lock"), Cause::LockContention);
    assert_eq!(of("Waiting for GIL"), Cause::LockContention);
    // Idle threads wait for a condition.
    assert_eq!(of("pthread_cond_timedwait"), Cause::HostBound);
}

#[test]
fn a_timeline_without_one_of_before_decides_nothing_beside_a_baseline() {
    let late = judge(&steps(200, 100, 680));
    let diagnosis = asked(Some(&run(25)), &run(31), Some(&late), None);
    assert_ne!(diagnosis.verdicts[0].cause, Cause::HostBound, "{}", diagnosis.headline);
    assert!(
        diagnosis.missing.iter().any(|one| one.what.contains("a timeline is evaluated without a baseline")),
        "{:?}",
        diagnosis.missing
    );
}

/// Adds gauges of the whole run, once per second.
fn with(mut run: Run, gauges: &[(&str, f64)]) -> Run {
    for second in 0..SECONDS {
        run.samples.extend(gauges.iter().map(|(name, value)| Sample {
            at: At(second * 1_000 * MS),
            source: "server".into(),
            name: (*name).into(),
            labels: "".into(),
            value: *value,
        }));
    }
    run
}

#[test]
fn memory_that_moves_all_it_can_is_the_ceiling_of_a_broken_promise() {
    let gauges = |active: f64| [("vllm:num_requests_running", 12.0), ("DCGM_FI_PROF_DRAM_ACTIVE", active)];
    let budget = promised(0.05);
    let cause = |gap: i64, active: f64| {
        let diagnosis = asked(None, &with(run(gap), &gauges(active)), None, Some(&budget));
        (diagnosis.verdicts[0].cause, diagnosis.headline.clone())
    };
    let (full, says) = cause(60, 0.78);
    assert_eq!(full, Cause::MemoryBandwidth, "{says}");
    assert!(says.contains("78.0 %") && says.contains("80 %"), "{says}");
    assert_eq!(cause(60, 0.4).0, Cause::SingleRequestOverBudget);
    assert_eq!(cause(25, 0.78).0, Cause::Nothing);
}
