//! Accuracy of the split of the wait without traces: random simulated systems at 50 to 90 % load. Queue and prefill
//! are compared with the engine's ground truth, by the available sources.
//!
//! `cargo run --release -p plimsoll-profile --example infer -- [SYSTEMS] [FIRST SEED] [REQUESTS]`
#![expect(clippy::print_stdout, reason = "an example that prints a table")]

#[path = "../tests/all/infer_systems.rs"]
#[expect(dead_code, reason = "some is for the test")]
mod infer_systems;

use infer_systems::{Page, figures, held, said, system};
use plimsoll_profile::infer::WaitPart;

const WAYS: [(&str, Page, f64, bool, bool); 5] = [
    ("page every 1 s", Page::Histograms, 1.0, true, false),
    ("page every 15 s", Page::Histograms, 15.0, true, false),
    ("page 15 s, floor, no events", Page::Histograms, 15.0, false, true),
    ("stamps alone", Page::Nothing, 0.0, true, false),
    ("floor alone, no events", Page::Nothing, 0.0, false, true),
];

#[derive(Default)]
struct Tally {
    n: u32,
    unknown: u32,
    within: [u32; 2],
    errors: [[Vec<f64>; 4]; 2],
    held: [[u32; 4]; 2],
    width: [Vec<f64>; 2],
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |i: usize, default: f64| arguments.get(i).and_then(|a| a.parse().ok()).unwrap_or(default);
    let (systems, first, requests) = (number(0, 40.0) as u64, number(1, 1.0) as u64, number(2, 1500.0));
    let mut tallies: Vec<Tally> = WAYS.iter().map(|_| Tally::default()).collect();
    for seed in first..first + systems {
        let system = system(seed, requests);
        let (run, floor) = (system.run(), system.floor());
        println!("{seed} {}", system.name);
        for ((name, page, period, events, with_floor), tally) in WAYS.iter().zip(&mut tallies) {
            let (inferred, truth) = run.infer(*page, *period, *events, floor.filter(|_| *with_floor));
            tally.n += 1;
            let (Some(queue), Some(prefill)) =
                (said(&inferred, WaitPart::Queue), said(&inferred, WaitPart::Prefill))
            else {
                tally.unknown += 1;
                println!("    {name}: unknown: {}", inferred.finding.notes.join("; "));
                continue;
            };
            let mut line = format!("    {name} ({:?}):", inferred.finding.source);
            for (i, (said, truth)) in
                [(queue, figures(&truth.queue)), (prefill, figures(&truth.prefill))].iter().enumerate()
            {
                let (errors, inside) = held(said, truth);
                tally.within[i] += u32::from(errors[0].abs() <= 0.1);
                for k in 0..4 {
                    tally.errors[i][k].push(errors[k].abs());
                    tally.held[i][k] += u32::from(inside[k]);
                }
                tally.width[i].push((said[3].upper - said[3].lower) / truth[3].max(1e-4));
                line += &format!(
                    "  {} true {:.1} ms:{}",
                    ["queue", "prefill"][i],
                    1e3 * truth[0],
                    (0..4)
                        .map(|k| format!(" {:+.0}%{}", 100.0 * errors[k], if inside[k] { "" } else { "!" }))
                        .collect::<String>()
                );
            }
            println!("{line}");
        }
    }
    println!(
        "\nerror of mean p50 p95 p99: median over systems (worst); share of figures inside their bounds"
    );
    for ((name, ..), tally) in WAYS.iter().zip(&mut tallies) {
        let known = tally.n - tally.unknown;
        println!("{name}: {known} of {} split", tally.n);
        for i in 0..2 {
            let mut text = String::new();
            for k in 0..4 {
                let values = &mut tally.errors[i][k];
                values.sort_by(f64::total_cmp);
                let middle = values.get(values.len() / 2).copied().unwrap_or(f64::NAN);
                let worst = values.last().copied().unwrap_or(f64::NAN);
                text += &format!(
                    "  {:.1} % ({:.1}) in {:.0} %",
                    100.0 * middle,
                    100.0 * worst,
                    100.0 * f64::from(tally.held[i][k]) / f64::from(known.max(1))
                );
            }
            tally.width[i].sort_by(f64::total_cmp);
            let width = tally.width[i].get(tally.width[i].len() / 2).copied().unwrap_or(f64::NAN);
            println!(
                "    {:8}{text}  mean within 10 %: {} of {known}; bounds of p99 {:.0} % wide",
                ["queue", "prefill"][i],
                tally.within[i],
                100.0 * width
            );
        }
    }
}
