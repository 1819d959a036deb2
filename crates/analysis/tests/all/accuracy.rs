//! The accuracy bar in small: onset and stability limit of queues whose formula is known.

use crate::blind::{Blind, Law, bar, error, sweep};

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
