//! Counters of the machine beside slow seconds: a CPU quota, a busy host and a falling GPU clock are told from a slower model.

use plimsoll_diagnose::{Case, Cause, DiagnoseSpec, Diagnosis, diagnose};
use plimsoll_math::dist::exponential;
use plimsoll_math::rng::Stream;
use plimsoll_model::{At, Load, Sample};

use crate::asked::Run;
use plimsoll_lab::records::{MS, answer, level};

/// Length of the load and of its two slow periods, s.
const SECONDS: i64 = 120;
const SLOW: [std::ops::Range<i64>; 2] = [30..38, 75..85];
const TOKENS: i64 = 20;
const PROBE: i64 = 40;

fn is_slow(second: i64) -> bool {
    SLOW.iter().any(|period| period.contains(&second))
}

/// Returns a run with a token every `gap` ms, and every `slow` ms for requests that are due in the slow periods.
fn run(gap: i64, slow: i64) -> Run {
    let mut probe = level(1.0, 0);
    (probe.id, probe.load) = (1, Load::Closed { concurrency: 1 });
    (probe.stop, probe.arrivals) = (At(2 * PROBE * 1_000 * MS), PROBE as u64);
    let mut load = level(8.0, SECONDS);
    load.arrivals = 8 * SECONDS as u64;
    let one = |i: i64, due: i64, gap: i64| {
        let first = 80 + (13 * i) % 7;
        answer(i as u64, due, first, first + gap * (TOKENS - 1) + (i * 7) % 5, TOKENS as u32)
    };
    let mut attempts: Vec<_> = (0..PROBE).map(|i| one(i, 2_000 * i, gap)).collect();
    attempts.iter_mut().for_each(|row| row.level = 1);
    attempts.extend((0..8 * SECONDS).map(|i| {
        let due = 125 * i + (i * 37) % 90;
        one(i, due, if is_slow(due / 1_000) { slow } else { gap })
    }));
    Run::of(vec![probe, load], attempts)
}

/// A counter that grows by this much in each second, or a gauge with this value.
type Course = fn(i64) -> f64;
/// Adds a counter with these values to a run.
type AddCounter = fn(Run, Course) -> Run;

/// Adds scrapes of these series, once a second.
fn with(mut run: Run, series: &[(&str, &str, bool, Course)]) -> Run {
    for (name, labels, counts, of) in series {
        let mut total = 0.0;
        for second in 0..=SECONDS {
            let value = if *counts { total } else { of(second) };
            total += of(second);
            run.samples.push(Sample {
                at: At(second * 1_000 * MS),
                source: "host".into(),
                name: (*name).into(),
                labels: (*labels).into(),
                value,
            });
        }
    }
    run
}

fn quota(run: Run, stopped: Course) -> Run {
    let labels = "container=vllm,id=/kubepods/1,namespace=ml,pod=vllm-0";
    with(
        run,
        &[
            ("container_cpu_cfs_periods_total", labels, true, |_| 10.0),
            ("container_cpu_cfs_throttled_periods_total", labels, true, stopped),
        ],
    )
}

fn steal(run: Run, stolen: Course) -> Run {
    with(run, &[("node_cpu_seconds_total", "cpu=0,mode=steal", true, stolen)])
}

fn clock(run: Run, mhz: Course) -> Run {
    with(run, &[("DCGM_FI_DEV_SM_CLOCK", "UUID=GPU-1,gpu=0", false, mhz)])
}

fn told(base: Option<&Run>, now: &Run) -> Diagnosis {
    let spec = DiagnoseSpec::default();
    let (candidate, baseline) = (now.side(), base.map(Run::side));
    diagnose(&Case { candidate, baseline, budget: None, device: None, validity: None, spec: &spec })
}

/// Returns the first cause beside a baseline without slow seconds and with the counter at rest.
fn cause(counter: fn(Run, Course) -> Run, now: (i64, i64), course: Course, rest: Course) -> (Cause, String) {
    let diagnosis = told(Some(&counter(run(25, 25), rest)), &counter(run(now.0, now.1), course));
    (diagnosis.verdicts[0].cause, format!("{}\n{:#?}", diagnosis.headline, diagnosis.verdicts[0].evidence))
}

#[test]
fn a_counter_that_rises_in_the_slow_seconds_is_their_cause() {
    let cases: [(AddCounter, Course, Course, Cause, &str); 3] = [
        (quota, |s| if is_slow(s) { 7.0 } else { 0.0 }, |_| 0.0, Cause::CpuThrottling, "ml/vllm-0/vllm"),
        (steal, |s| if is_slow(s) { 0.6 } else { 0.02 }, |_| 0.02, Cause::NoisyNeighbour, "hypervisor"),
        (clock, |s| if is_slow(s) { 1_200.0 } else { 1_980.0 }, |_| 1_980.0, Cause::GpuLimited, "clock"),
    ];
    for (counter, course, rest, expected, says) in cases {
        let (found, text) = cause(counter, (25, 60), course, rest);
        assert_eq!(found, expected, "{text}");
        assert!(text.contains(says), "{text}");
    }
}

/// Returns the cause without any counter of the machine.
fn without(now: (i64, i64)) -> Cause {
    told(Some(&run(25, 25)), &run(now.0, now.1)).verdicts[0].cause
}

/// Loads that the counters do not explain: slow seconds, a model that is slower all the time, and none.
const OTHERS: [(i64, i64); 3] = [(25, 60), (31, 31), (25, 25)];

#[test]
fn a_counter_that_is_high_all_the_time_explains_nothing() {
    let cases: [(AddCounter, Course); 3] = [(quota, |_| 7.0), (steal, |_| 0.6), (clock, |_| 1_200.0)];
    for (counter, high) in cases {
        // It was high before, or it is high only now.
        for (now, rest) in OTHERS.into_iter().flat_map(|now| [(now, high), (now, |_| 0.0)]) {
            let (found, text) = cause(counter, now, high, rest);
            assert_eq!(found, without(now), "{now:?} {text}");
        }
    }
}

#[test]
fn a_counter_that_rises_in_other_seconds_explains_nothing() {
    let cases: [(AddCounter, Course, Course, Course); 3] = [
        (quota, |s| if is_slow(s) { 7.0 } else { 0.0 }, |s| if is_slow(s + 20) { 7.0 } else { 0.0 }, |_| 0.0),
        (steal, |s| if is_slow(s) { 0.6 } else { 0.0 }, |s| if is_slow(s + 20) { 0.6 } else { 0.0 }, |_| 0.0),
        (
            clock,
            |s| if is_slow(s) { 1_200.0 } else { 1_980.0 },
            |s| if is_slow(s + 20) { 1_200.0 } else { 1_980.0 },
            |_| 1_980.0,
        ),
    ];
    for (counter, same, other, rest) in cases {
        for (now, course) in [((25, 60), other), ((31, 31), same), ((25, 25), same)] {
            let (found, text) = cause(counter, now, course, rest);
            assert_eq!(found, without(now), "{now:?} {text}");
        }
    }
}

/// The kubelet refreshes the counters of a container every ten seconds or more.
#[test]
fn a_counter_that_is_refreshed_rarely_is_read_between_its_changes() {
    let rare = |run: Run, stopped: Course| {
        let mut run = quota(run, stopped);
        run.samples
            .retain(|sample| sample.at.0 / (1_000 * MS) % 5 == 0 || !sample.name.starts_with("container"));
        with(run, &[("vllm:num_requests_running", "", false, |_| 8.0)])
    };
    let diagnosis = |stopped: Course| told(Some(&rare(run(25, 25), |_| 0.0)), &rare(run(25, 60), stopped));
    let found = diagnosis(|s| if is_slow(s) { 7.0 } else { 0.0 });
    assert_eq!(found.verdicts[0].cause, Cause::CpuThrottling, "{}", found.headline);
    assert_eq!(diagnosis(|_| 7.0).verdicts[0].cause, without((25, 60)));
}

/// A counter that comes and goes by itself meets the slow seconds of a run by accident only.
#[test]
fn a_counter_of_its_own_rhythm_is_rarely_believed() {
    const TRIALS: u64 = 60;
    let base = quota(run(25, 25), |_| 0.0);
    let believed = (0..TRIALS).filter(|seed| {
        let chance = &mut Stream::new(*seed, "rhythm", 0);
        let (mut on, mut left) = (false, 0.0);
        let course: Vec<f64> = (0..=SECONDS)
            .map(|_| {
                if left <= 0.0 {
                    on = !on;
                    left = exponential(chance, if on { 9.0 } else { 40.0 });
                }
                left -= 1.0;
                if on { 7.0 } else { 0.0 }
            })
            .collect();
        let mut now = quota(run(25, 60), |_| 0.0);
        let mut total = 0.0;
        let throttled = now.samples.iter_mut().filter(|sample| sample.name.contains("throttled"));
        for (sample, more) in throttled.zip(course) {
            sample.value = total;
            total += more;
        }
        told(Some(&base), &now).verdicts[0].cause == Cause::CpuThrottling
    });
    let believed = believed.count();
    assert!(believed <= 3, "{believed} of {TRIALS}");
}
