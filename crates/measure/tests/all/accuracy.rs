//! The accuracy bar in small: onset and stability limit of queues whose formula is known.

use plimsoll_measure::sweep::SweepSpec;
use plimsoll_model::Span;

use crate::blind::{Blind, Law, bar, error, sweep, sweep_engine};

fn check(law: Law, servers: u32, seed: u64) {
    let server = Blind::new(law, Some(servers), seed);
    let (findings, why) = sweep(&server, bar(&server, 8_000, seed), |_| {});
    let truth = server.truth(0.99, 1.5);
    let lines = &findings.lines[0];
    let (onset, limit) = (error(&lines.onset, truth.onset), error(&lines.stability, truth.stability));
    // Wider than the bar of 5 % at 20 000 completions: levels here are less than half as long.
    assert!(
        onset.abs() < 0.08,
        "{law:?} c {servers} seed {seed}: onset off by {onset:.3} ({why}) {:?}",
        lines.onset
    );
    assert!(
        limit.abs() < 0.05,
        "{law:?} c {servers} seed {seed}: limit off by {limit:.3} {:?}",
        lines.stability
    );
}

#[test]
fn finds_the_lines_of_a_memoryless_server() {
    check(Law::Exponential, 8, 1);
}

#[test]
fn finds_the_lines_of_a_regular_server() {
    check(Law::Deterministic, 4, 2);
}

/// Gamma gaps of CV 3 at eight exponential servers have their onset at 0.575 of the capacity, Poisson arrivals at 0.896.
/// The reference is the recursion of Kiefer and Wolfowitz with ten million customers (`examples/kinds.rs`).
#[test]
fn finds_the_onset_of_bursts() {
    let engine = Blind::known(Law::Exponential, 8, 10.0, 1).engine();
    let (time, traffic) = (Span::from_secs(400), vec!["burst".to_owned()]);
    let spec = SweepSpec { time, traffic, budget: None, seed: 3, ..SweepSpec::default() };
    let (findings, why) = sweep_engine(&engine, 3, (1, 1), spec, |_| {});
    let onset = findings.lines[0].onset.rate().expect("found");
    assert!(onset.lower < 460.3 && 460.3 < onset.upper, "{onset:?} ({why})");
    assert!(onset.upper / onset.lower < 2.0, "{onset:?}");
}
