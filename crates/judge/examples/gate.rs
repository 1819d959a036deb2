//! Rates at which the gate passes and fails at a known distance from the budget: the table behind its bars.
//!
//! `cargo run --release -p plimsoll-judge --example gate -- [REPLICATIONS]`
#![expect(clippy::print_stdout, reason = "an example that prints a table")]

#[path = "../tests/all/verdicts.rs"]
#[allow(dead_code, unused_imports, reason = "the tests beside the table")]
mod verdicts;

use verdicts::{Source, verdicts};

fn main() {
    let n = std::env::args().nth(1).and_then(|a| a.parse().ok()).unwrap_or(2000);
    println!(
        "{n} replications of \"p99 is at most the budget\", alpha 2.5 % on each side: passed, failed, else inconclusive"
    );
    println!(
        "{:<14} {:>16} {:>10} {:>9} {:>9}   bar",
        "latencies", "true p99", "requests", "passed %", "failed %"
    );
    for source in Source::ALL {
        for (times, words) in
            [(1.0, "at the budget"), (0.8, "20 % under"), (0.9, "10 % under"), (1.1, "10 % over")]
        {
            for requests in [2_000, 10_000, 40_000] {
                let (passed, failed) = verdicts(source, times, requests, n);
                let bar = match (words, requests) {
                    ("at the budget", _) => Some(("≤ 6, ≤ 6", passed <= 0.06 && failed <= 0.06)),
                    ("20 % under", 10_000) => Some(("passed ≥ 95", passed >= 0.95)),
                    ("10 % over", 10_000) => Some(("failed ≥ 85", failed >= 0.85)),
                    _ => None,
                };
                let bar = bar.map_or(String::new(), |(bar, met)| {
                    format!("{bar}  {}", if met { "met" } else { "MISSED" })
                });
                let name = format!("{source:?}");
                println!(
                    "{name:<14} {words:>16} {requests:>10} {:>9.1} {:>9.1}   {bar}",
                    100.0 * passed,
                    100.0 * failed
                );
            }
        }
    }
}
