//! Wrong passes of `gate --until-decided`, its power, and the share of the time that it needs.
//!
//! The ceiling is the true percentile. It is judged at the four instants of the command, with a quarter of alpha each.
//!
//! `cargo run --release -p plimsoll-measure --example until -- [STRETCHES [REQUESTS...]]`
#![expect(clippy::print_stdout, reason = "an example that prints a table")]

#[path = "../tests/all/decided.rs"]
#[allow(dead_code, unused_imports, reason = "the tests beside the table")]
mod decided;

use decided::{JUDGED, stretch, truth};
use plimsoll_lab::systems::{STEADY, System};
use plimsoll_measure::budget::{ALPHA, decide, of_values};
use plimsoll_measure::findings::Held;

/// Times of the command's checks, as shares of the load.
const LOOKS: [f64; 4] = [0.125, 0.25, 0.5, 1.0];
/// Ceilings in true percentiles.
const TIMES: [f64; 5] = [1.0, 1.25, 1.5, 2.0, 5.0];

fn main() {
    let mut args = std::env::args().skip(1).filter_map(|a| a.parse().ok());
    let stretches: u64 = args.next().unwrap_or(400);
    let mut sizes: Vec<usize> = args.map(|n| n as usize).collect();
    if sizes.is_empty() {
        sizes = vec![2_000, 10_000];
    }
    println!("{stretches} stretches each; passed % at so many true percentiles, and % of the time taken");
    println!(
        "{:<22} {:>6} {:>4}  {:>6} {:>6} {:>6} {:>6} {:>6}",
        "system", "n", "", "1", "1.25", "1.5", "2", "5"
    );
    for n in sizes {
        let mut worst = [0.0f64; 2];
        for system in STEADY {
            let truth = truth(system, n, 1_000_000);
            for (i, p) in JUDGED.into_iter().enumerate() {
                let found: Vec<[f64; 2]> = TIMES
                    .iter()
                    .map(|times| passed(system, n, stretches, (p, times * truth[2 - i])))
                    .collect();
                worst[i] = worst[i].max(found[0][0]);
                let cells: String = found.iter().map(|[passed, _]| format!(" {passed:>6.1}")).collect();
                let taken: String = found.iter().map(|[_, taken]| format!(" {taken:>4.0}")).collect();
                println!("{:<22} {n:>6} p{:.0}  {cells}   {taken}", system.name(), 100.0 * p);
            }
        }
        println!("most wrong passes: p99 {:.1} %, p95 {:.1} %; the bar is 6 %", worst[0], worst[1]);
    }
}

/// Returns the share of samples that pass at one of the checks, and the mean time until the verdict, in %.
fn passed(system: System, n: usize, stretches: u64, (p, ceiling_s): (f64, f64)) -> [f64; 2] {
    let (mut passed, mut taken) = (0.0, 0.0);
    for seed in 1..=stretches {
        let (values, length_s) = stretch(system, seed, n);
        let look = |share: f64| {
            let upto = (share * n as f64) as usize;
            let count = of_values(&values[..upto], ceiling_s, p, share * length_s);
            (decide(&count, 1.0 - p, ALPHA / LOOKS.len() as f64).held, share)
        };
        let decided = LOOKS.into_iter().map(look).find(|(held, _)| *held != Held::Inconclusive);
        let (held, share) = decided.unwrap_or((Held::Inconclusive, 1.0));
        passed += f64::from(u8::from(held == Held::Pass));
        taken += share;
    }
    [passed, taken].map(|sum| 100.0 * sum / stretches as f64)
}
