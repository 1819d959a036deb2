//! Loads of one kind and of different kinds on a server with a known distribution (M/M/1): scaling with concurrency,
//! and detection of changed load.
//!
//! In an open loop the median time is ln 2 / (μ − λ) and ρ / (1 − ρ) requests are present on average. In a closed
//! loop each of n requests waits for n services.

use plimsoll_diagnose::seen::{DiagnosedLevel, RequestView};
use plimsoll_diagnose::{Case, Cause, DiagnoseSpec, Diagnosis, DiagnosisOutcome, RunData, YesNo, diagnose};
use plimsoll_measure::server_side::SCRAPE;
use plimsoll_model::{At, Attempt, Fingerprint, Level, Load, Sample, ServerStage, Span};
use plimsoll_sim::{EngineSpec, LawSpec, ModeSpec, QueueSpec, SimLevelPlan, World, simulate_level};
use plimsoll_workload::{Scenario, Size};

const SERVICE_MS: f64 = 20.0;

/// Returns an open loop at a share of the server's capacity.
fn open(share: f64) -> Load {
    Load::Open { rate_per_s: share * 1e3 / SERVICE_MS }
}

fn closed(concurrency: u32) -> Load {
    Load::Closed { concurrency }
}

/// The contents of a run folder with these loads.
struct Run {
    levels: Vec<Level>,
    attempts: Vec<Attempt>,
    samples: Vec<Sample>,
}

/// Returns the loads in sequence.
fn run(loads: &[Load]) -> Run {
    let service = LawSpec::Exponential { mean_ms: SERVICE_MS };
    let mode = ModeSpec::Queue(QueueSpec { servers: 1, service, queue_limit: None });
    let engine = EngineSpec { name: "one server".into(), mode };
    let mut run = Run { levels: Vec::new(), attempts: Vec::new(), samples: Vec::new() };
    let mut now = At::ZERO;
    for (id, load) in loads.iter().enumerate() {
        let seed = 40 + id as u64;
        let mut world = World::new(&engine, seed).expect("a sound engine");
        let mut scenario = Scenario { seed, ..Scenario::default() };
        scenario.sizes.prompt = Size::Fixed(1);
        scenario.sizes.output = Size::Fixed(1);
        scenario.client.drain = Span::from_secs(10_000);
        let plan = SimLevelPlan::new(&scenario, id as u32, *load, now, Span::from_secs(600));
        let level = simulate_level(&mut world, &scenario, plan).expect("a sound level");
        now = level.level.drained + Span::from_millis(1);
        run.levels.push(level.level);
        run.attempts.extend(level.attempts);
        run.samples.extend(level.samples);
    }
    run
}

fn ask(base: Option<&Run>, candidate: &Run, level: Option<u32>) -> Diagnosis {
    let (facts, spec) = (Fingerprint::default(), DiagnoseSpec { level, ..DiagnoseSpec::default() });
    fn side<'a>(run: &'a Run, facts: &'a Fingerprint) -> RunData<'a> {
        RunData { levels: &run.levels, attempts: &run.attempts, samples: &run.samples, facts }
    }
    let (candidate, baseline) = (side(candidate, &facts), base.map(|run| side(run, &facts)));
    diagnose(&Case { candidate, baseline, budget: None, device: None, validity: None, spec: &spec })
}

fn measured(loads: &[Load], level: Option<u32>) -> Diagnosis {
    ask(None, &run(loads), level)
}

fn holds(found: &Diagnosis, truth: f64) {
    let question = &found.questions[0];
    let value = question.value.expect("a figure");
    assert!(value.lower < truth && truth < value.upper, "{}, by the law {truth:.3}", question.says);
    assert!((value.value / truth - 1.0).abs() < 0.15, "{}, by the law {truth:.3}", question.says);
    assert_eq!(question.answer, YesNo::Yes, "{}", question.says);
}

/// A level with a growing queue has no median; the heaviest level with one is used.
#[test]
fn a_sweep_answers_from_the_heaviest_level_that_has_a_median() {
    let found = measured(&[open(0.2), open(0.75), open(1.3)], None);
    assert_eq!((found.subject.level, found.subject.chosen_of), (Some(2), 3));
    // Ratio of the level at a fifth to that at three quarters.
    holds(&found, (1.0 - 0.2) / (1.0 - 0.75));
    let says = &found.questions[0].says;
    let there = says.rsplit("with ").next().and_then(|rest| rest.split(' ').next()).expect("a figure");
    let in_flight: f64 = there.parse().expect("a number");
    assert!((in_flight - 3.0).abs() < 0.8, "{says}: rho / (1 - rho) are 3");
}

/// Closed loops have no isolated requests, so the lightest level is used. With n requests in flight, each waits for n
/// services: Erlang's median.
#[test]
fn closed_loops_answer_from_the_lightest_to_the_heaviest() {
    let found = measured(&[closed(4), closed(64)], None);
    // Medians of the Erlang distribution of 4 and of 64 exponential services of mean 1.
    holds(&found, 63.6672 / 3.6721);
    assert!(found.questions[0].says.contains("with 4 in flight"), "{}", found.questions[0].says);
}

/// A requested level is used, and the number of other levels is not reported.
#[test]
fn a_level_that_is_asked_for_was_not_chosen() {
    let found = measured(&[open(0.2), open(0.75)], Some(0));
    assert_eq!((found.subject.level, found.subject.chosen_of), (Some(0), 0));
}

/// More requests in flight are more load, and the text names the configured number.
#[test]
fn a_closed_loop_with_more_in_flight_is_a_heavier_load() {
    let found = ask(Some(&run(&[closed(4)])), &run(&[closed(16)]), None);
    let verdict = &found.verdicts[0];
    assert_eq!(verdict.cause, Cause::HigherRate, "{}", verdict.says);
    assert!(verdict.says.starts_with("4 requests in flight before, 16 now"), "{}", verdict.says);
}

/// A closed loop of sixteen uses the whole capacity, three times the rate of the open loop. Each request waits for
/// sixteen services, and the server has no additional wait.
#[test]
fn a_closed_loop_that_gets_more_than_was_asked_before_is_a_heavier_load() {
    let found = ask(Some(&run(&[open(0.33)])), &run(&[closed(16)]), None);
    let verdict = &found.verdicts[0];
    assert_eq!(verdict.cause, Cause::HigherRate, "{}", verdict.says);
    let ratio = verdict.evidence[0].value.expect("a figure").value;
    assert!((ratio / 3.03 - 1.0).abs() < 0.1, "{}", verdict.says);
}

/// An identical closed loop is no other load.
#[test]
fn the_same_closed_loop_is_nothing() {
    let found = ask(Some(&run(&[closed(16)])), &run(&[closed(16)]), None);
    assert_eq!(found.answer, DiagnosisOutcome::NothingMaterial, "{}", found.headline);
}

/// A new stage takes the whole growth of the time to first token.
#[test]
fn a_dependency_that_is_new_is_named() {
    let (base, mut now) = (run(&[open(0.33)]), run(&[open(0.33)]));
    let took = Span::from_millis(80);
    for attempt in &mut now.attempts {
        for at in
            [&mut attempt.first_byte, &mut attempt.first_token, &mut attempt.last_token, &mut attempt.end]
        {
            *at = at.map(|at| at + took);
        }
        attempt.answer.stages.push(ServerStage { name: "rerank".into(), took });
    }
    let found = ask(Some(&base), &now, None);
    let verdict = &found.verdicts[0];
    assert_eq!(verdict.cause, Cause::SlowDependency, "{}: {}", verdict.cause.id(), verdict.says);
    assert!(verdict.says.contains("rerank") && verdict.says.contains("80 ms"), "{}", verdict.says);
    // The wait without a reported stage can't be attributed to a dependency with confidence.
    for attempt in &mut now.attempts {
        attempt.answer.stages.clear();
    }
    assert_ne!(ask(Some(&base), &now, None).verdicts[0].cause, Cause::SlowDependency);
    // A stage with a tenth of the growth can't either, because it may have existed before without being reported.
    for attempt in &mut now.attempts {
        attempt.answer.stages.push(ServerStage { name: "rerank".into(), took: Span::from_millis(8) });
    }
    assert_ne!(ask(Some(&base), &now, None).verdicts[0].cause, Cause::SlowDependency);
}

/// A wave is sent at the instant of the first scrape, which shows no requests yet: that is no limit in front of the
/// engine.
#[test]
fn a_wave_that_begins_at_a_look_stands_in_front_of_nothing() {
    let mut wave = run(&[Load::Wave { requests: 100 }]);
    let start = wave.levels[0].start;
    let empty = [("vllm:num_requests_running", 0.0), ("vllm:num_requests_waiting", 0.0), (SCRAPE, 1.0)];
    for (name, value) in empty {
        wave.samples.push(Sample {
            at: start,
            source: "server".into(),
            name: name.into(),
            labels: "".into(),
            value,
        });
    }
    let found = ask(None, &wave, None);
    assert_ne!(found.verdicts[0].cause, Cause::ConnectionLimit, "{}", found.headline);
}

/// In a part of a level, read with the requests in flight at its start, each request has its true concurrency.
#[test]
fn a_part_of_a_level_knows_who_was_in_flight() {
    let run = run(&[open(0.9)]);
    let level = &run.levels[0];
    let from = level.start + Span::from_secs(300);
    let part = Level { start: from, ..level.clone() };
    let own = |keep: &dyn Fn(&Attempt) -> bool| -> Vec<Attempt> {
        run.attempts.iter().filter(|attempt| keep(attempt)).cloned().collect()
    };
    let beside = |seen: &DiagnosedLevel<'_>, from_s: f64| -> Vec<(u64, u32, i64)> {
        let of = |row: &RequestView| (row.request, row.beside, (1e6 * row.beside_streaming).round() as i64);
        seen.rows.iter().filter(|row| row.due >= from_s).map(of).collect()
    };
    let truth = beside(&DiagnosedLevel::read(level, &run.attempts), 300.0);
    let with = own(&|attempt| attempt.due >= from || attempt.end.is_some_and(|end| end > from));
    let seen = DiagnosedLevel::read(&part, &with);
    assert!(truth.len() > 10_000 && truth[0].1 > 0, "somebody waits at 0.9 of the limit");
    assert_eq!(beside(&seen, f64::MIN), truth);
    assert_eq!(seen.due.len(), truth.len());
    assert_eq!(seen.attempts_by.values().sum::<u64>(), truth.len() as u64);
    let without = DiagnosedLevel::read(&part, &own(&|attempt| attempt.due >= from)).rows[0].beside;
    assert_eq!(without, 0, "those before it would be forgotten");
}
