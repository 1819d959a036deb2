//! What reading the server's page costs the pacer: `cargo bench -p plimsoll --bench scrape`. Words: `rate=200` `seconds=15`
//! `times=2` `every=1s`.
//!
//! Runs without and with `--scrape`, in turns A B B A, so that what the neighbours do meanwhile falls on both. Compared are the medians
//! of the lag of all runs of a side; the tail is printed and not judged, because on a machine that is not alone it is the
//! neighbours'. The page is the embedded engine's, as long as vLLM's.

mod kit;

use std::process::ExitCode;

use kit::{Args, Engine, Ran, Result, bar, say};

/// What the median may rise by, at most.
const BAR_NS: i64 = 10_000;

fn main() -> ExitCode {
    kit::main(|args: &Args| {
        let rate = format!("{}/s", args.number("rate", 200.0)?);
        let seconds = format!("{}s", args.number("seconds", 15.0)?);
        let every = args.get("every").unwrap_or("1s").to_owned();
        let (mut without, mut with) = (Vec::new(), Vec::new());
        for _ in 0..args.number("times", 2.0)? as u32 {
            for scrapes in [false, true, true, false] {
                let lag = measure(&rate, &seconds, scrapes.then_some(every.as_str()))?;
                if scrapes { with.push(lag) } else { without.push(lag) }
            }
        }
        let (off, on) = (middle(&mut without), middle(&mut with));
        let text = format!("{:+.1} µs", (on - off) as f64 / 1e3);
        bar(&format!("median lag with a look every {every}"), text, "≤ +10 µs", on - off <= BAR_NS);
        Ok(())
    })
}

fn middle(lags: &mut [i64]) -> i64 {
    lags.sort_unstable();
    lags[lags.len() / 2]
}

/// The median lag of a run with or without looks at the page.
fn measure(rate: &str, seconds: &str, every: Option<&str>) -> Result<i64> {
    let engine = Engine::start("demo")?;
    let page = format!("{}/metrics", engine.url.trim_end_matches("/v1"));
    let load = ["--rate", rate, "--for", seconds, "--osl", "4", "--isl", "16"];
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
        "{}: lag p50 {:.1}  p90 {:.1}  p99 {:.1}  p99.9 {:.1}  max {:.1} µs of {}; run queue {:.1} %; {}",
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
