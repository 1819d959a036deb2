//! Wrong passes and power on thirteen steady systems and one with an incident: the table of `docs/methods/error-rates.md`.
#![expect(clippy::print_stdout, reason = "an example that prints a table")]

#[path = "../tests/all/decided.rs"]
#[allow(dead_code, unused_imports, reason = "the tests beside the table")]
mod decided;

use decided::{JUDGED, Tally, bursts, settled, tally, truth};
use plimsoll_lab::systems::{INCIDENT, STEADY};

fn main() {
    let mut args = std::env::args().skip(1).filter_map(|a| a.parse().ok());
    let stretches: u64 = args.next().unwrap_or(400);
    let mut sizes: Vec<usize> = args.map(|n| n as usize).collect();
    if sizes.is_empty() {
        sizes = vec![500, 700, 2_000, 10_000];
    }
    println!(
        "{stretches} stretches each; passed % with the ceiling at so many true percentiles (0.91 and 1 are wrong passes); intervals that hold the truth %"
    );
    println!(
        "{:<22} {:>6} {:>4} {:>6} {:>6} {:>6} {:>6} {:>6} {:>6}   {:>6} {:>6} {:>6}   {:>6}",
        "system", "n", "", "0.91", "1", "1.25", "1.5", "2", "5", "p50", "p95", "p99", "p99 <∞"
    );
    for n in sizes {
        let mut steady: Vec<Tally> = Vec::new();
        let mut lengths = [0, 0];
        for system in STEADY.into_iter().chain([INCIDENT]) {
            let truth = truth(system, n, 1_000_000);
            let found = tally(system, n, stretches, truth);
            print(&system.name(), n, &found);
            if system != INCIDENT {
                steady.push(found);
                let of_system = settled(system, n, stretches / 10, truth);
                lengths = std::array::from_fn(|i| lengths[i] + of_system[i]);
            }
        }
        let mean = |of: &dyn Fn(&Tally) -> f64| steady.iter().map(of).sum::<f64>() / steady.len() as f64;
        let most = |of: &dyn Fn(&Tally) -> f64| steady.iter().map(of).fold(0.0, f64::max);
        let at = |i: usize| std::array::from_fn(|j| mean(&|one| one.passed[i][j]));
        let worst = |i: usize| std::array::from_fn(|j| most(&|one| one.passed[i][j]));
        let all = |passed: [[f64; 6]; 2]| Tally {
            passed,
            covered: std::array::from_fn(|i| mean(&|one| one.covered[i])),
            bounded: std::array::from_fn(|i| mean(&|one| one.bounded[i])),
            ..Tally::default()
        };
        print("mean of the steady", n, &all([at(0), at(1)]));
        print("most of the steady", n, &all([worst(0), worst(1)]));
        let [named, settled] = lengths;
        println!("lengths that were named: {settled} of {named} settled it");
        let [passed, failed, seen, missed] = bursts(n, stretches).map(|share| 100.0 * share);
        println!(
            "failures of 1 % in bursts of 20, limit 1 %: {passed:.1} % pass ({seen:.1} % with a burst in the run, {missed:.1} % name what they could have missed), {failed:.1} % fail"
        );
    }
}

fn print(name: &str, n: usize, found: &Tally) {
    for (i, p) in JUDGED.into_iter().enumerate() {
        let percent = |shares: &[f64]| {
            shares.iter().map(|x| format!("{:>6.1}", 100.0 * x)).collect::<Vec<_>>().join(" ")
        };
        let covered = if i == 0 {
            format!("{}   {}", percent(&found.covered), percent(&found.bounded[2..]))
        } else {
            String::new()
        };
        println!("{name:<22} {n:>6} p{:.0} {}   {covered}", 100.0 * p, percent(&found.passed[i]));
    }
}
