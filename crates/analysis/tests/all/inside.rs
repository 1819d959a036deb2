//! What a look inside the device adds to a diagnosis: the same slower answers with timelines laid out by hand, whose growing part is known.

use plimsoll_analysis::device::{DeviceFinding, compare, judge};
use plimsoll_analysis::diagnose::{Case, Cause, DiagnoseSpec, Diagnosis, diagnose};
use plimsoll_analysis::findings::{BudgetSpec, Ceiling, Metric};
use plimsoll_model::{At, Attempt, Load, Sample, TraceSpan};

use crate::asked::Run;
use crate::device::span;
use crate::records::{MS, answer, level};

/// Length of a load, s; tokens per answer; single requests of a probe.
const SECONDS: i64 = 120;
const TOKENS: i64 = 40;
const PROBE: i64 = 40;

/// Forty single requests and eight a second, a token every so many ms, with or without company.
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

/// Twelve steps: a product that computes, an exchange that nothing covers, and the host doing something else, in µs.
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
    diagnose(&Case { candidate, baseline, budget, device, spec: &spec })
}

/// Answers of 25 ms a token that take 31 now, and timelines of then and now.
fn grown(now: Vec<TraceSpan>) -> Diagnosis {
    let mut device = judge(&now);
    device.change = Some(compare(&steps(600, 200, 180), &now));
    asked(Some(&run(25)), &run(31), Some(&device), None)
}

#[test]
fn the_part_of_a_step_that_grew_is_what_is_named() {
    // A step of 1 000 µs becomes one of 1 240, as tokens did.
    for (now, cause, part) in [
        (steps(600, 440, 180), Cause::Collectives, "exchange with each other: 0.44 ms a step, before 0.2 ms"),
        // The call that launches takes 10 µs of the host's as well.
        (steps(600, 200, 420), Cause::HostBound, "launch something: 0.43 ms a step, before 0.19 ms"),
    ] {
        let diagnosis = grown(now);
        let verdict = &diagnosis.verdicts[0];
        assert_eq!(verdict.cause, cause, "{}", diagnosis.headline);
        assert!(verdict.explains.is_some_and(|share| (share - 1.0).abs() < 1e-9), "{:?}", verdict.explains);
        assert!(verdict.says.contains(part), "{}", verdict.says);
        let rival = verdict.runner_up.as_ref().expect("single requests are slower as well");
        assert_eq!(rival.cause, Cause::SlowerModel, "{}", rival.why);
        assert_eq!(diagnosis.verdicts.len(), 1, "nothing is left: {}", diagnosis.headline);
    }
    // The same where the thread that launches stands before a lock; waiting for a condition is what a thread without work does.
    let waits_in = |call: &str| {
        let mut now = steps(600, 200, 420);
        now.iter_mut().filter(|span| span.name == "aten::item").for_each(|span| span.name = call.into());
        grown(now).verdicts.remove(0).cause
    };
    assert_eq!(waits_in("pthread_mutex_lock"), Cause::LockContention);
    assert_eq!(waits_in("Waiting for GIL"), Cause::LockContention);
    assert_eq!(waits_in("pthread_cond_timedwait"), Cause::HostBound);
    // What computes longer is told by the single requests, with or without a timeline; and so is what two parts share.
    for now in [steps(840, 200, 180), steps(600, 300, 320), steps(720, 320, 180)] {
        let diagnosis = grown(now);
        let cause = diagnosis.verdicts[0].cause;
        assert!(
            matches!(cause, Cause::SlowerModel | Cause::Collectives | Cause::HostBound),
            "{}",
            diagnosis.headline
        );
    }
    assert_eq!(grown(steps(840, 200, 180)).verdicts[0].cause, Cause::SlowerModel);
}

#[test]
fn a_timeline_that_does_not_account_for_the_run_decides_nothing() {
    // Steps three times as long do not make tokens a quarter slower; nor do steps that are as they were.
    for now in [steps(600, 2_200, 180), steps(600, 200, 180)] {
        let diagnosis = grown(now);
        assert_eq!(diagnosis.verdicts[0].cause, Cause::SlowerModel, "{}", diagnosis.headline);
    }
    // Answers as fast as ever: whatever the profile shows, nothing is material.
    let now = steps(600, 440, 180);
    let mut device = judge(&now);
    device.change = Some(compare(&steps(600, 200, 180), &now));
    let same = asked(Some(&run(25)), &run(25), Some(&device), None);
    assert_eq!(same.verdicts[0].cause, Cause::Nothing, "{}", same.headline);
    // A baseline of answers and none of steps: what of it is new is not known, and that is said.
    let alone = judge(&now);
    let diagnosis = asked(Some(&run(25)), &run(31), Some(&alone), None);
    assert_eq!(diagnosis.verdicts[0].cause, Cause::SlowerModel, "{}", diagnosis.headline);
    assert!(
        diagnosis.missing.iter().any(|one| one.what.contains("timeline of before")),
        "{:?}",
        diagnosis.missing
    );
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
    // Without it a step is twice as fast at most.
    assert!(broken.verdicts[0].says.contains("2 times as fast at most"), "{}", broken.verdicts[0].says);
    let held = asked(None, &run(25), Some(&half_exchanged), Some(&promised(0.05)));
    assert_eq!(held.verdicts[0].cause, Cause::Nothing, "{}", held.headline);
    let little = asked(None, &run(60), Some(&judge(&steps(780, 120, 80))), Some(&promised(0.05)));
    assert_eq!(little.verdicts[0].cause, Cause::SingleRequestOverBudget, "{}", little.headline);
}

/// Gauges of the whole run, once a second.
fn with(mut run: Run, gauges: &[(&str, f64)]) -> Run {
    for second in 0..SECONDS {
        run.samples.extend(gauges.iter().map(|(name, value)| Sample {
            at: At(second * 1_000 * MS),
            source: "server".into(),
            name: (*name).into(),
            labels: String::new(),
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
