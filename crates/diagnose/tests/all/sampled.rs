//! A dependency of which one trace in a hundred tells: what it does is inferred from what every client met and what the engine's page
//! counted, held against the calls themselves, which the simulator knows; and nothing else in front of the engine is called one.

use plimsoll_diagnose::{Cause, Experiment, Layer, Verdict};

use crate::diagnosed::fault::{Class, depending};
use crate::diagnosed::lack::Lack;
use crate::diagnosed::run::{Evidence, Setup};
use crate::diagnosed::system::System;
use crate::diagnosed::truth::Facts;

/// What is said where one trace in a hundred is known, of this fault in this system.
fn said(system: &System, class: Class, severity: usize) -> (Verdict, Evidence, Evidence) {
    let base = Setup::of(system).run(1);
    let now = class.inject(system, &Facts::of(&base), severity).0.run(2);
    let verdict = Lack::FewTraces.ask(&base, &now, None).verdicts.remove(0);
    (verdict, base, now)
}

/// What every call of the load took, s: the stage that the simulator writes of each.
fn calls(run: &Evidence) -> Vec<f64> {
    let load = run.levels.last().expect("a load").id;
    let stages = run.attempts.iter().filter(|a| a.level == load).flat_map(|a| &a.answer.stages);
    stages.filter(|stage| stage.name == "dependency").map(|stage| stage.took.as_secs_f64()).collect()
}

fn mean(of: &[f64]) -> f64 {
    of.iter().sum::<f64>() / of.len() as f64
}

#[test]
fn calls_that_wait_for_each_other_are_told_from_ten_traces() {
    for seed in [36, 48] {
        let system = Class::DependencyCapacity.variant(&System::draw(seed));
        let (verdict, base, now) = said(&system, Class::DependencyCapacity, 3);
        assert_eq!(verdict.cause, Cause::DependencyCapacity, "seed {seed}: {}", verdict.says);
        assert!(verdict.evidence[0].inferred && verdict.confidence <= 0.75, "seed {seed}");
        assert_eq!(verdict.overturn, Experiment::TraceAll);
        // What is said to be added to the mean first token is what the calls took more.
        let grew = mean(&calls(&now)) - mean(&calls(&base));
        let share = verdict.says.split("adds ").nth(1).and_then(|s| s.split(' ').next()).expect("a share");
        let share: f64 = share.parse().expect("a number");
        let first = mean(&firsts(&base));
        let said = share / 100.0 * first;
        assert!((said / grew - 1.0).abs() < 0.35, "seed {seed}: said {said:.3} s, the calls {grew:.3} s");
    }
}

/// First tokens of the load, s from sending.
fn firsts(run: &Evidence) -> Vec<f64> {
    let load = run.levels.last().expect("a load").id;
    let of = run.attempts.iter().filter(|a| a.level == load);
    of.filter_map(|a| Some((a.first_token? - a.sent?).as_secs_f64())).collect()
}

#[test]
fn a_tail_that_no_trace_holds_is_told_from_outside() {
    for seed in [36, 38] {
        let system = Class::DependencyTail.variant(&System::draw(seed));
        let (verdict, _, now) = said(&system, Class::DependencyTail, 2);
        assert_eq!(verdict.cause, Cause::DependencyTail, "seed {seed}: {}", verdict.says);
        assert!(verdict.evidence[0].inferred && verdict.confidence <= 0.75, "seed {seed}");
        let calls = calls(&now);
        let slow = calls.iter().filter(|took| **took > 1.0).count() as f64 / calls.len() as f64;
        let share = verdict.evidence[0].value.expect("a share");
        assert!(
            share.lower <= slow && slow <= share.upper && (share.value / slow - 1.0).abs() < 0.25,
            "seed {seed}: {share:?}, of the calls {slow}"
        );
    }
}

/// The same systems with a dependency that is as it was, and something else slow.
#[test]
fn what_else_is_slow_in_front_of_the_engine_is_not_the_dependency() {
    for seed in [36, 38] {
        let system = depending(System::draw(seed));
        for class in [Class::Connections, Class::UnlistedNetwork, Class::UnlistedUsers, Class::Noisy] {
            let (verdict, ..) = said(&system, class, 3);
            assert_ne!(verdict.layer, Layer::Dependency, "seed {seed}, {class:?}: {}", verdict.says);
        }
    }
}
