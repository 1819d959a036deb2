//! The accuracy bar: onset and stability limit of queues that the sweep can't inspect, against the formulas.
//!
//! `cargo run --release -p plimsoll-measure --example accuracy -- [SEEDS] [COMPLETIONS] [CURVE]` (SEEDS: `10` or `41-60`) prints one row per
//! server and the share within 5 %. COMPLETIONS such as `60s` selects sweeps of that length over servers of 10 ms. Servers and service
//! time come from the seed; the truth is computed after the sweep.
#![expect(clippy::print_stdout, reason = "an example that prints a table")]

#[path = "../tests/all/blind.rs"]
mod blind;

use blind::{Blind, Law, bar, error, found, sweep};
use plimsoll_measure::findings::CapacityLine;
use plimsoll_measure::sweep::SweepSpec;
use plimsoll_model::Span;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let asked = arguments.first().map_or("10", String::as_str);
    let (first, last) = asked.split_once('-').unwrap_or(("1", asked));
    let (first, last): (u64, u64) = (first.parse().unwrap_or(1), last.parse().unwrap_or(10));
    let seeds = last + 1 - first;
    let completions = arguments.get(1).and_then(|a| a.parse().ok()).unwrap_or(20_000);
    let short: Option<u64> = arguments.get(1).and_then(|a| a.strip_suffix('s')?.parse().ok());
    let curve = arguments.get(2).is_some();
    println!(
        "law            c  seed  levels  line       truth /s    found /s    error   interval                 covers"
    );
    let (mut within, mut covered, mut total) = ([0u32; 2], [0u32; 2], 0u32);
    for law in [Law::Exponential, Law::Deterministic] {
        let all: &[u32] = if short.is_some() { &[8, 16] } else { &[4, 8, 16] };
        for &servers in all {
            let mut here = [0u32; 2];
            for seed in first..=last {
                let (server, spec) = match short {
                    Some(time_s) => {
                        let time = Span::from_secs(time_s as i64);
                        (
                            Blind::known(law, servers, 10.0, seed),
                            SweepSpec { time, seed, ..SweepSpec::default() },
                        )
                    }
                    None => {
                        let server = Blind::new(law, Some(servers), seed);
                        let spec = bar(&server, completions, seed);
                        (server, spec)
                    }
                };
                let (findings, _) = sweep(&server, spec, |_| {});
                let truth = server.truth(findings.curves[0].percentile, 1.5);
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
    line: &CapacityLine,
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
