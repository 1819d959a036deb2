//! How late are requests sent? The lag distribution that runs against the canned engine carry in their manifests:
//! `cargo bench -p plimsoll --bench pacer`. Words: `rates=200,1000` `seconds=15` `times=3`.
//!
//! Lag is `sent − due` less what waiting for a connection took, of first attempts in open loop. Its median is the bar,
//! because on a machine that is not alone the tail belongs to the neighbours.

mod kit;

use std::process::ExitCode;

use kit::{Args, Engine, Ran, Result, bar, say};

/// Median lateness, at most.
const BAR_NS: i64 = 60_000;

fn main() -> ExitCode {
    kit::main(|args: &Args| {
        let seconds = format!("{}s", args.number("seconds", 15.0)?);
        for rate in args.numbers("rates", &[200, 1000])? {
            let mut medians = Vec::new();
            for _ in 0..args.number("times", 3.0)? as u32 {
                medians.push(measure(rate, &seconds)?);
            }
            medians.sort_unstable();
            let middle = medians[medians.len() / 2];
            let text = format!("{:.1} µs", middle as f64 / 1e3);
            bar(&format!("median lag at {rate}/s, median of the runs"), text, "≤ 60 µs", middle <= BAR_NS);
        }
        Ok(())
    })
}

fn measure(rate: u64, seconds: &str) -> Result<i64> {
    let engine = Engine::start("canned")?;
    let per_s = format!("{rate}/s");
    let ran = Ran::run(&engine.url, &["--rate", &per_s, "--for", seconds, "--osl", "4", "--isl", "16"])?;
    engine.stop()?;
    let generator = &ran.level()?.generator;
    let lag = &generator.lag;
    let us = |ns: i64| ns as f64 / 1e3;
    say(format!(
        "{rate}/s: lag p50 {:.1}  p90 {:.1}  p99 {:.1}  p99.9 {:.1}  max {:.1} µs of {}; run queue {:.1} %; {}",
        us(lag.p50_ns),
        us(lag.p90_ns),
        us(lag.p99_ns),
        us(lag.p999_ns),
        us(lag.max_ns),
        lag.count,
        generator.run_queue_share_max.unwrap_or(f64::NAN) * 100.0,
        ran.verdict()
    ));
    Ok(lag.p50_ns)
}
