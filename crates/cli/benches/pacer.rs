//! How late are requests sent? The lag distribution that runs carry in their manifests: `cargo bench -p plimsoll --bench pacer`.
//! Words: `rates=200,1000` `seconds=15` `times=3` `every=1s`.
//!
//! Lag is `sent − due` less what waiting for a connection took, of first attempts in open loop. Its median is the bar,
//! because on a machine that is not alone the tail belongs to the neighbours. Then the same without and with the server's page read meanwhile (`--scrape`), in
//! turns A B B A, so that what the neighbours do falls on both; the page is the embedded engine's, as long as vLLM's.

mod kit;

use std::process::ExitCode;

use kit::{Args, Engine, Ran, Result, bar, say};

/// Median lateness, at most, and what reading a page may add to it.
const BAR_NS: i64 = 60_000;
const READING_NS: i64 = 10_000;

fn main() -> ExitCode {
    kit::main(|args: &Args| {
        let seconds = format!("{}s", args.number("seconds", 15.0)?);
        let times = args.number("times", 3.0)? as u32;
        let rates = args.numbers("rates", &[200, 1000])?;
        for rate in &rates {
            let medians: Result<Vec<i64>> =
                (0..times).map(|_| measure("canned", *rate, &seconds, None)).collect();
            let middle = middle(medians?);
            let text = format!("{:.1} µs", middle as f64 / 1e3);
            bar(&format!("median lag at {rate}/s, median of the runs"), text, "≤ 60 µs", middle <= BAR_NS);
        }
        let every = args.get("every").unwrap_or("1s");
        let (mut without, mut with) = (Vec::new(), Vec::new());
        for reads in (0..times).flat_map(|_| [false, true, true, false]) {
            let lag =
                measure("demo", rates.first().copied().unwrap_or(200), &seconds, reads.then_some(every))?;
            if reads { with.push(lag) } else { without.push(lag) }
        }
        let more = middle(with) - middle(without);
        let text = format!("{:+.1} µs", more as f64 / 1e3);
        bar(&format!("median lag with a page read every {every}"), text, "≤ +10 µs", more <= READING_NS);
        Ok(())
    })
}

fn middle(mut lags: Vec<i64>) -> i64 {
    lags.sort_unstable();
    lags[lags.len() / 2]
}

/// The median lag of a run, with or without its page read.
fn measure(engine: &str, rate: u64, seconds: &str, every: Option<&str>) -> Result<i64> {
    let engine = Engine::start(engine)?;
    let page = format!("{}/metrics", engine.url.trim_end_matches("/v1"));
    let per_s = format!("{rate}/s");
    let load = ["--rate", &per_s, "--for", seconds, "--osl", "4", "--isl", "16"];
    let scrape = match every {
        Some(every) => vec!["--scrape", &page, "--scrape-every", every],
        None => vec!["--scrape", "off"],
    };
    let ran = Ran::run(&engine.url, &[&load[..], &scrape].concat())?;
    engine.stop()?;
    let generator = &ran.level()?.generator;
    let lag = &generator.lag;
    let us = |ns: i64| ns as f64 / 1e3;
    say(format!(
        "{rate}/s, page {}: lag p50 {:.1}  p90 {:.1}  p99 {:.1}  p99.9 {:.1}  max {:.1} µs of {}; run queue {:.1} %; {}",
        every.map_or_else(|| "not read".to_owned(), |every| format!("read every {every}")),
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
