//! Does a sweep over loopback find the lines of a queue whose truth is known? `cargo bench -p plimsoll --bench knee`.
//! Words: `seconds=180` `seeds=1,2` `servers=8` `service_ms=10`.
//!
//! The engine is a c-server queue behind its HTTP front; truth is the formula of M/M/c and M/D/c. Service times are long
//! against what HTTP and two busy cores add, and still short enough that a level near the limit has the completions a p99
//! needs. Beside this, `plimsoll-measure`'s example `accuracy` steps the same planner in virtual time over many seeds.

mod kit;

use std::process::ExitCode;

use kit::{Args, Client, Engine, Result, bar, say};
use plimsoll_math::queueing::{Mdc, Mmc};
use plimsoll_measure::findings::CapacityLine;
use serde_json::json;

/// Distance from the truth that both lines may have.
const WITHIN: f64 = 0.05;

fn main() -> ExitCode {
    kit::main(|args: &Args| {
        let servers = args.number("servers", 8.0)? as u32;
        let service_ms = args.number("service_ms", 10.0)?;
        let time = format!("{}s", args.number("seconds", 180.0)?);
        say(
            "law     seed  capacity/s  onset: truth   found  [95 %]            off   limit: found  [bracket]         off",
        );
        let (mut good, mut all) = (0, 0);
        for law in ["M/M", "M/D"] {
            for seed in args.numbers("seeds", &[1, 2])? {
                all += 1;
                good += u32::from(measure(law, servers, service_ms, &time, seed)?);
            }
        }
        bar("sweeps with both lines within 5 % of truth", format!("{good} of {all}"), "all", good == all);
        Ok(())
    })
}

fn measure(law: &str, servers: u32, service_ms: f64, time: &str, seed: u64) -> Result<bool> {
    let service = match law {
        "M/M" => json!({"law": "exponential", "mean_ms": service_ms}),
        _ => json!({"law": "deterministic", "ms": service_ms}),
    };
    let profile = json!({"name": "knee", "mode": {"kind": "queue", "servers": servers, "service": service}});
    let engine = Engine::start(&profile.to_string())?;
    let seed_text = seed.to_string();
    let args = ["--time", time, "--isl", "4", "--osl", "1", "--seed", &seed_text, "--slo", "ttft p99 < 1s"];
    let ran = Client::start_as("sweep", &engine.url, &args)?.end()?;
    engine.stop()?;
    let capacity = f64::from(servers) / service_ms * 1e3;
    let truth = match law {
        "M/M" => Mmc::onset(servers, 0.99, 1.5),
        _ => Mdc::onset(servers, 0.99, 1.5),
    } * capacity;
    let lines = ran.findings.lines.first().ok_or("no lines")?;
    let (onset, onset_off) = spell(&lines.onset, truth);
    let (limit, limit_off) = spell(&lines.stability, capacity);
    say(format!(
        "{law}/{servers}  {seed:>5}  {capacity:>9.0}  {truth:>13.0}  {onset}  {limit}  {}",
        ran.verdict()
    ));
    Ok(onset_off.abs() <= WITHIN && limit_off.abs() <= WITHIN)
}

fn spell(line: &CapacityLine, truth: f64) -> (String, f64) {
    match line.rate() {
        Some(rate) => {
            let off = rate.value / truth - 1.0;
            let covered = if (rate.lower..=rate.upper).contains(&truth) { "covered" } else { "not covered" };
            let interval = format!("[{:.0}, {:.0}]", rate.lower, rate.upper);
            (format!("{:>6.0}  {interval:<14} {:+.1} % {covered}", rate.value, off * 100.0), off)
        }
        None => (format!("{line:?}"), f64::NAN),
    }
}
