//! The accuracy bar: onset and stability limit of queues that the sweep cannot see into, against the formulas.
//!
//! `cargo run --release -p plimsoll-analysis --example accuracy -- [SEEDS] [COMPLETIONS] [CURVE]` prints one row per
//! server and the share within 5 %. Servers and service time come from the seed; the truth is computed after the sweep.
#![expect(clippy::print_stdout, reason = "an example that prints a table")]

#[path = "../tests/all/blind.rs"]
mod blind;

use blind::{Blind, Law, bar, error, found, sweep};
use plimsoll_analysis::findings::Line;

fn main() {
    let arguments: Vec<u64> = std::env::args().skip(1).filter_map(|a| a.parse().ok()).collect();
    let seeds = arguments.first().copied().unwrap_or(10);
    let completions = arguments.get(1).copied().unwrap_or(20_000);
    let curve = arguments.get(2).is_some();
    println!(
        "law            c  seed  levels  line       truth /s    found /s    error   interval                 covers"
    );
    let (mut within, mut covered, mut total) = ([0u32; 2], [0u32; 2], 0u32);
    for law in [Law::Exponential, Law::Deterministic] {
        for servers in [4, 8, 16] {
            let mut here = [0u32; 2];
            for seed in 1..=seeds {
                let server = Blind::new(law, Some(servers), seed);
                let (findings, _) = sweep(&server, bar(&server, completions, seed), |_| {});
                let truth = server.truth(1.5);
                let lines = &findings.lines[0];
                total += 1;
                for (i, (name, line, truth)) in
                    [("onset", &lines.onset, truth.onset), ("stability", &lines.stability, truth.stability)]
                        .into_iter()
                        .enumerate()
                {
                    let off = error(line, truth);
                    let covers = found(line).is_some_and(|e| e.lower <= truth && truth <= e.upper);
                    here[i] += u32::from(off.abs() <= 0.05);
                    covered[i] += u32::from(covers);
                    row(law, &server, seed, findings.levels.len(), name, line, truth, off, covers);
                }
                if curve {
                    for p in &findings.curves[0].points {
                        println!(
                            "      {:>10.3} /limit  p99 {:?}  {:?} growth {:?}",
                            p.offered_per_s / truth.stability,
                            p.p99.value(),
                            p.stability,
                            findings.levels[p.level as usize]
                                .summary
                                .stability
                                .growth_share
                                .map(|g| (g.lower, g.upper))
                        );
                    }
                    println!("      zero {:?}", findings.curves[0].zero_contention);
                }
            }
            println!(
                "{law:?} c {servers}: within 5 %: onset {} of {seeds}, stability {} of {seeds}",
                here[0], here[1]
            );
            within[0] += here[0];
            within[1] += here[1];
        }
    }
    println!("in all: onset {} of {total} within 5 %, {} covered", within[0], covered[0]);
    println!("        stability {} of {total} within 5 %, {} covered", within[1], covered[1]);
}

#[expect(clippy::too_many_arguments, reason = "the columns of a row")]
fn row(
    law: Law,
    server: &Blind,
    seed: u64,
    levels: usize,
    name: &str,
    line: &Line,
    truth: f64,
    off: f64,
    covers: bool,
) {
    let (value, interval) = match found(line) {
        Some(e) => (format!("{:.3}", e.value), format!("{:.3} to {:.3}", e.lower, e.upper)),
        None => ("none".to_owned(), format!("{line:?}").chars().take(60).collect()),
    };
    println!(
        "{:<13} {:>2} {seed:>5} {levels:>7}  {name:<9} {truth:>9.3} {value:>11} {:>+7.1} %   {interval:<24} {}",
        format!("{law:?}"),
        server.servers,
        100.0 * off,
        if covers { "yes" } else { "no" }
    );
}
