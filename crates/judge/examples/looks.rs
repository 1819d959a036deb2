//! Sixty checks of traffic with a known distribution: how often each watch alarms, and how late. The table behind `sequential`.
//!
//! `cargo run --release -p plimsoll-judge --example looks -- [REPLICATIONS]`
#![expect(clippy::print_stdout, reason = "an example that prints a table")]

#[path = "../tests/all/looks.rs"]
mod looks;

use looks::{
    Against, Alarms, Traffic, alarmed, fixed, fixed_sample, measured, median_delay, pairs, promoted,
};

fn main() {
    let n = std::env::args().nth(1).and_then(|a| a.parse().ok()).unwrap_or(2000);
    println!("{n} replications of 60 looks of 500 requests, alpha 5 %: alarmed, median look of the alarm");
    for (name, traffic) in [("independent", Traffic::Independent), ("M/M/16 at 80 %", Traffic::Queue)] {
        row(&format!("{name}: fixed p99, 1 % exceed"), &fixed(traffic, 1.0, n));
        row("  fixed-sample test at every look", &fixed_sample(traffic, 1.0, n));
        row("  equal, measured p99 taken as fixed", &measured(traffic, Against::Point, n));
        row("  equal, upper end of measured p99", &measured(traffic, Against::Bound, n));
        row("  equal, two arms in turn", &pairs(traffic, 1.0, n));
        for slower in [0.9, 1.1, 1.2, 1.5] {
            row(&format!("  two arms, candidate × {slower}"), &pairs(traffic, slower, n / 4));
        }
        for slower in [0.9, 1.0, 1.1] {
            row(&format!("  promoted, candidate × {slower}"), &promoted(traffic, slower, n / 4));
        }
    }
    for times in [0.8, 1.5, 2.0] {
        row(&format!("independent: {times} % exceed"), &fixed(Traffic::Independent, times, n));
        row("  fixed-sample test at every look", &fixed_sample(Traffic::Independent, times, n));
    }
}

fn row(name: &str, alarms: &Alarms) {
    let delay = median_delay(alarms).map_or("–".into(), |look| look.to_string());
    println!("{name:44} {:6.2} %  {delay:>3}  of {}", 100.0 * alarmed(alarms), alarms.len());
}
