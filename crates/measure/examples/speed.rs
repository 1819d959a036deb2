//! How long a run of a million requests of sixteen tokens takes to summarise and judge.
//!
//! `cargo run --release -p plimsoll-measure --example speed -- [REQUESTS] [TOKENS]`
#![expect(clippy::print_stdout, reason = "an example that prints figures")]
#![expect(clippy::disallowed_methods, reason = "it times itself")]

use std::time::Instant;

use plimsoll_math::rng::Stream;
use plimsoll_measure::findings::BudgetSpec;
use plimsoll_measure::{summarise, validity};
use plimsoll_model::{At, Attempt, Span};

fn main() {
    let arguments: Vec<u64> = std::env::args().skip(1).filter_map(|a| a.parse().ok()).collect();
    let requests = arguments.first().copied().unwrap_or(1_000_000);
    let tokens = arguments.get(1).copied().unwrap_or(16) as u32;
    let mut stream = Stream::new(1, "speed", 0);
    let mut records: Vec<Attempt> = (0..requests)
        .map(|i| {
            let ttft = 20 - (10.0 * stream.uniform().ln()) as i64;
            let mut a = plimsoll_lab::records::answer(i, 0, ttft, ttft + 15 * i64::from(tokens), tokens);
            let shift = Span(i as i64 * 100_000 - a.due.0);
            let jitter: Vec<i64> = (0..tokens).map(|_| (2e6 * stream.uniform()) as i64).collect();
            for (event, jitter) in a.events.iter_mut().zip(jitter) {
                event.offset += Span(jitter);
            }
            for stamp in [
                &mut a.sent,
                &mut a.first_byte,
                &mut a.first_token,
                &mut a.first_visible,
                &mut a.last_token,
                &mut a.end,
            ] {
                *stamp = stamp.map(|at: At| at + shift);
            }
            a.due += shift;
            a
        })
        .collect();
    // As a store hands them back: in the order of their ends.
    records.sort_by_key(|a| a.end);
    let seconds = (requests / 10_000 + 1) as i64;
    let level = plimsoll_lab::records::level(10_000.0, seconds);
    for _ in 0..3 {
        let start = Instant::now();
        let summary = summarise(&level, &records, &[], Some(&BudgetSpec::default()));
        let summarised = start.elapsed();
        let validity = validity::judge(&level, &summary);
        println!(
            "{requests} requests of {tokens} tokens: summary {:.3} s, verdict {:?} {:.6} s; p99 {:?}, {} gaps",
            summarised.as_secs_f64(),
            validity.verdict,
            (start.elapsed() - summarised).as_secs_f64(),
            summary.latency.leading().p99.value(),
            summary.latency.event_gap.as_ref().map_or(0, |gaps| gaps.n)
        );
    }
}
