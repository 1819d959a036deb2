//! Sixty checks of traffic with known distributions: frequency and delay of each test's alarms, for `sequential`.
#![expect(clippy::print_stdout, reason = "an example that prints a table")]

#[path = "../tests/all/looks.rs"]
mod looks;

use looks::{Alarms, Traffic, alarmed, pairs, promoted};

fn main() {
    let n = std::env::args().nth(1).and_then(|a| a.parse().ok()).unwrap_or(2000);
    println!("{n} replications of 60 looks of 500 requests, alpha 5 %: alarmed, median look of the alarm");
    for (name, traffic) in [("independent", Traffic::Independent), ("M/M/16 at 80 %", Traffic::Queue)] {
        row(&format!("{name}: equal, two arms in turn"), &pairs(traffic, 1.0, n));
        for slower in [0.9, 1.1, 1.2, 1.5] {
            row(&format!("  two arms, candidate × {slower}"), &pairs(traffic, slower, n / 4));
        }
        for slower in [0.9, 1.0, 1.1] {
            row(&format!("  promoted, candidate × {slower}"), &promoted(traffic, slower, n / 4));
        }
    }
}

fn row(name: &str, alarms: &Alarms) {
    let delay = median_delay(alarms).map_or("–".into(), |look| look.to_string());
    println!("{name:44} {:6.2} %  {delay:>3}  of {}", 100.0 * alarmed(alarms), alarms.len());
}

/// Returns the median check of the alarm, if more than half of the replications have one.
fn median_delay(alarms: &Alarms) -> Option<usize> {
    let mut looks: Vec<usize> = alarms.iter().map(|look| look.unwrap_or(usize::MAX)).collect();
    looks.sort_unstable();
    Some(looks[looks.len() / 2]).filter(|look| *look < usize::MAX)
}
