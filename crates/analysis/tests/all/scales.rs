//! Does it scale with concurrency? Of a run of several loads, against the law of one server: the median time there is ln 2 / (μ − λ)
//! and ρ / (1 − ρ) requests are there on average (M/M/1).

use plimsoll_analysis::diagnose::{Case, DiagnoseSpec, Diagnosis, Side, YesNo, diagnose};
use plimsoll_model::{At, Fingerprint, Load, Span};
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

/// Loads one after the other.
fn measured(loads: &[Load], level: Option<u32>) -> Diagnosis {
    let service = LawSpec::Exponential { mean_ms: SERVICE_MS };
    let mode = ModeSpec::Queue(QueueSpec { servers: 1, service, queue_limit: None });
    let engine = EngineSpec { name: "one server".into(), mode };
    let (mut levels, mut attempts, mut samples, mut now) = (Vec::new(), Vec::new(), Vec::new(), At::ZERO);
    for (id, load) in loads.iter().enumerate() {
        let seed = 40 + id as u64;
        let mut world = World::new(&engine, seed).expect("a sound engine");
        let mut scenario = Scenario { seed, ..Scenario::default() };
        scenario.sizes.prompt = Size::Fixed(1);
        scenario.sizes.output = Size::Fixed(1);
        scenario.client.drain = Span::from_secs(10_000);
        let plan = LevelPlan::new(&scenario, id as u32, *load, now, Span::from_secs(600));
        let run = simulate_level(&mut world, &scenario, plan).expect("a sound level");
        now = run.level.drained + Span::from_millis(1);
        levels.push(run.level);
        attempts.extend(run.attempts);
        samples.extend(run.samples);
    }
    let (facts, spec) = (Fingerprint::default(), DiagnoseSpec { level, ..DiagnoseSpec::default() });
    let candidate = Side { levels: &levels, attempts: &attempts, samples: &samples, facts: &facts };
    diagnose(&Case { candidate, baseline: None, budget: None, device: None, spec: &spec })
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
