//! Loads of one kind and of another, on one server whose law is known (M/M/1): does it scale with concurrency, and is it the load that changed?
//!
//! In an open loop the median time there is ln 2 / (μ − λ) and ρ / (1 − ρ) requests are there on average; in a closed loop each of n waits for n
//! services.

use plimsoll_diagnose::seen::{RequestRow, SeenLevel};
use plimsoll_diagnose::{Answer, Case, Cause, DiagnoseSpec, Diagnosis, RunData, YesNo, diagnose};
use plimsoll_measure::server_side::SCRAPE;
use plimsoll_model::{At, Attempt, Fingerprint, Level, Load, Sample, ServerStage, Span};
use plimsoll_sim::{EngineSpec, LawSpec, LevelPlan, ModeSpec, QueueSpec, World, simulate_level};
use plimsoll_workload::{Scenario, Size};

const SERVICE_MS: f64 = 20.0;

/// A share of what the server can do.
fn open(share: f64) -> Load {
    Load::Open { rate_per_s: share * 1e3 / SERVICE_MS }
}

fn closed(concurrency: u32) -> Load {
    Load::Closed { concurrency }
}

/// What a run folder of these loads would hold.
struct Run {
    levels: Vec<Level>,
    attempts: Vec<Attempt>,
    samples: Vec<Sample>,
}

/// Loads one after the other.
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
        let plan = LevelPlan::new(&scenario, id as u32, *load, now, Span::from_secs(600));
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

/// Where the queue of the level under judgement grows it has no median; the heaviest that has one answers.
#[test]
fn a_sweep_answers_from_the_heaviest_level_that_has_a_median() {
    let found = measured(&[open(0.2), open(0.75), open(1.3)], None);
    assert_eq!((found.subject.level, found.subject.chosen_of), (Some(2), 3));
    // Of the level of a fifth to that of three quarters.
    holds(&found, (1.0 - 0.2) / (1.0 - 0.75));
    let says = &found.questions[0].says;
    let there = says.rsplit("with ").next().and_then(|rest| rest.split(' ').next()).expect("a figure");
    let in_flight: f64 = there.parse().expect("a number");
    assert!((in_flight - 3.0).abs() < 0.8, "{says}: rho / (1 - rho) are 3");
}

/// In closed loops nobody is ever alone; the lightest level stands for it. Of n there at once, each waits for n services: Erlang's median.
#[test]
fn closed_loops_answer_from_the_lightest_to_the_heaviest() {
    let found = measured(&[closed(4), closed(64)], None);
    // Medians of the Erlang law of 4 and of 64 exponential services of mean 1.
    holds(&found, 63.6672 / 3.6721);
    assert!(found.questions[0].says.contains("with 4 in flight"), "{}", found.questions[0].says);
}

/// Who asks for a level gets that one, and is not told of others.
#[test]
fn a_level_that_is_asked_for_was_not_chosen() {
    let found = measured(&[open(0.2), open(0.75)], Some(0));
    assert_eq!((found.subject.level, found.subject.chosen_of), (Some(0), 0));
}

/// More in flight is more to do, and the words tell how many were asked for.
#[test]
fn a_closed_loop_with_more_in_flight_is_a_heavier_load() {
    let found = ask(Some(&run(&[closed(4)])), &run(&[closed(16)]), None);
    let verdict = &found.verdicts[0];
    assert_eq!(verdict.cause, Cause::HigherRate, "{}", verdict.says);
    assert!(verdict.says.starts_with("4 requests in flight before, 16 now"), "{}", verdict.says);
}

/// A closed loop of sixteen gets all that the server can do, three times what the open loop asked for. Each waits for sixteen services, and
/// no wait of the server's own was added.
#[test]
fn a_closed_loop_that_gets_more_than_was_asked_before_is_a_heavier_load() {
    let found = ask(Some(&run(&[open(0.33)])), &run(&[closed(16)]), None);
    let verdict = &found.verdicts[0];
    assert_eq!(verdict.cause, Cause::HigherRate, "{}", verdict.says);
    let ratio = verdict.evidence[0].value.expect("a figure").value;
    assert!((ratio / 3.03 - 1.0).abs() < 0.1, "{}", verdict.says);
}

/// The same closed loop twice is no other load.
#[test]
fn the_same_closed_loop_is_nothing() {
    let found = ask(Some(&run(&[closed(16)])), &run(&[closed(16)]), None);
    assert_eq!(found.answer, Answer::NothingMaterial, "{}", found.headline);
}

/// A stage that was not there before and takes all that first tokens take more.
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
    // The same wait with no stage to tell of it is no dependency's for sure.
    for attempt in &mut now.attempts {
        attempt.answer.stages.clear();
    }
    assert_ne!(ask(Some(&base), &now, None).verdicts[0].cause, Cause::SlowDependency);
    // Nor is a stage that takes a tenth of it: it may have been there all along and not been told of.
    for attempt in &mut now.attempts {
        attempt.answer.stages.push(ServerStage { name: "rerank".into(), took: Span::from_millis(8) });
    }
    assert_ne!(ask(Some(&base), &now, None).verdicts[0].cause, Cause::SlowDependency);
}

/// A wave is sent at the instant of the first look at the server, which knows of nobody yet: that is no limit in front of it.
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

/// Of a part of a level, read with those that were in flight at its beginning, each request has beside it whom it had.
#[test]
fn a_part_of_a_level_knows_who_was_in_flight() {
    let run = run(&[open(0.9)]);
    let level = &run.levels[0];
    let from = level.start + Span::from_secs(300);
    let part = Level { start: from, ..level.clone() };
    let own = |keep: &dyn Fn(&Attempt) -> bool| -> Vec<Attempt> {
        run.attempts.iter().filter(|attempt| keep(attempt)).cloned().collect()
    };
    let beside = |seen: &SeenLevel<'_>, from_s: f64| -> Vec<(u64, u32, i64)> {
        let of = |row: &RequestRow| (row.request, row.beside, (1e6 * row.beside_streaming).round() as i64);
        seen.rows.iter().filter(|row| row.due >= from_s).map(of).collect()
    };
    let truth = beside(&SeenLevel::read(level, &run.attempts), 300.0);
    let with = own(&|attempt| attempt.due >= from || attempt.end.is_some_and(|end| end > from));
    let seen = SeenLevel::read(&part, &with);
    assert!(truth.len() > 10_000 && truth[0].1 > 0, "somebody waits at 0.9 of the limit");
    assert_eq!(beside(&seen, f64::MIN), truth);
    assert_eq!(seen.due.len(), truth.len());
    assert_eq!(seen.attempts_by.values().sum::<u64>(), truth.len() as u64);
    let without = SeenLevel::read(&part, &own(&|attempt| attempt.due >= from)).rows[0].beside;
    assert_eq!(without, 0, "those before it would be forgotten");
}
