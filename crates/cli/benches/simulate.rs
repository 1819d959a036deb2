//! How fast is a simulation with its run written, and how much memory does a long one take? `cargo bench -p plimsoll --bench
//! simulate`. Words: `trace=FILE`, `requests=1000000`.
//!
//! The figure is of the whole command, from exec to exit: trace read, arrivals drawn, block names made, engine, rows, log,
//! Parquet, findings. The engine alone is `cargo bench -p plimsoll-sim --bench mooncake`. Memory is the kernel's peak of the
//! process, for a day of requests and for a quarter of as many, so that what grows with them can be told.

mod kit;

use std::fmt::Write as _;
use std::process::ExitCode;

use kit::{Args, Client, Result, monotonic_ns, say};

const TRACE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../sim/fixtures/mooncake_conversation.jsonl.gz");

fn main() -> ExitCode {
    kit::main(|args: &Args| {
        let trace = args.get("trace").unwrap_or(TRACE);
        let fleet = ["simulate", "--profile", "llama-3.1-8b@h100", "--replicas", "8", "--route", "prefix"];
        for events in ["all", "ends"] {
            let words = [&fleet[..], &["--trace", trace, "--events", events]].concat();
            report(&format!("Mooncake, 8 replicas, events {events}"), &words)?;
        }
        report("ten hours at 12/s", &["simulate", "--rate", "12/s", "--for", "10h"])?;
        let most = args.number("requests", 1e6)? as u64;
        for requests in [most / 4, most] {
            let folder = tempfile::tempdir()?;
            let file = folder.path().join("day.csv");
            std::fs::write(&file, day(requests)?)?;
            let file = file.display().to_string();
            let words = [&fleet[..], &["--trace", &file, "--events", "ends"]].concat();
            report(&format!("a day of {requests} requests"), &words)?;
        }
        Ok(())
    })
}

/// A trace over 24 hours, in Azure's form: prompts of 200 to 1223 tokens, answers of 20 to 147.
fn day(requests: u64) -> Result<String> {
    let mut text = String::from("TIMESTAMP,ContextTokens,GeneratedTokens\n");
    for i in 0..requests {
        let at = i as f64 * 86_400.0 / requests as f64;
        let mixed = (i + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20;
        writeln!(text, "{at:.4},{},{}", 200 + mixed % 1024, 20 + (mixed >> 10) % 128)?;
    }
    Ok(text)
}

fn report(title: &str, words: &[&str]) -> Result<()> {
    let ran = Client::spawn(words)?.end()?;
    let wall_s = (monotonic_ns() - ran.spawned_ns) as f64 / 1e9;
    let level = ran.level()?;
    let requests = level.arrivals as f64;
    let virtual_s = level.drained.as_secs_f64();
    say(format!(
        "{title}: {requests} requests in {wall_s:.2} s = {:.0} requests/s written, {:.0} × real time, peak {:.0} MiB, \
         {:.2} s of CPU = {:.0} requests per CPU second",
        requests / wall_s,
        virtual_s / wall_s,
        ran.peak_kib as f64 / 1024.0,
        ran.cpu_s,
        requests / ran.cpu_s,
    ));
    Ok(())
}
