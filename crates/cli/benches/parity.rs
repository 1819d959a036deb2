//! Does the live server take the time that virtual time says? `cargo bench -p plimsoll --bench parity`. Words: `seconds=20`.
//!
//! The same engine, load, seed and nonce once over loopback and once in virtual time, at 20, 50 and 80 % of what the engine
//! carries: the same requests at the same instants, so that the difference is the machine's. Percentiles are of all requests
//! of the level, in full, not of the sample that a report would allow itself.
//!
//! Then a Triton profile at half its load, and in a closed loop of eight. There the simulated user asks again at the instant of his
//! answer and the live one a moment later. The batches of a busy instance do not wait for that: what he takes is off the latency,
//! and the cycle of both, latency and turn-around together, is the same. So the turn-around is measured, shown and added.

mod kit;

use std::process::ExitCode;

use kit::{Args, Client, Engine, Ran, Result, bar, quantile, say};
use plimsoll_model::Attempt;

/// Largest difference: this share, or this many milliseconds.
const SHARE: f64 = 0.02;
const MS: f64 = 1.0;

fn main() -> ExitCode {
    kit::main(|args: &Args| {
        let seconds = format!("{}s", args.number("seconds", 20.0)?);
        let capacity = capacity()?;
        for share in [0.2, 0.5, 0.8] {
            let rate = format!("{:.0}/s", capacity * share);
            let load = [
                "--rate", &rate, "--for", &seconds, "--isl", "64", "--osl", "8", "--seed", "5", "--nonce",
                "1",
            ];
            let engine = Engine::start("demo")?;
            let live = Ran::run(&engine.url, &load)?;
            engine.stop()?;
            let simulated =
                Client::spawn(&[&["simulate", "--profile", "demo"], &load[..]].concat())?.end()?;
            say(format!("{:.0} % of {capacity:.0}/s: live run {}", 100.0 * share, live.verdict()));
            compare(&live, &simulated)?;
        }
        batcher(&["--rate", "800/s"], &seconds)?;
        batcher(&["--concurrency", USERS], &seconds)
    })
}

const BATCHER: &str = "resnet50-triton@a100";
const USERS: &str = "8";

/// The same for a model that is served in batches.
fn batcher(load: &[&str], seconds: &str) -> Result<()> {
    let load = [load, &["--for", seconds, "--batch", "1", "--seed", "5", "--nonce", "1"]].concat();
    let engine = Engine::start(BATCHER)?;
    let live = Ran::run(&engine.url, &[&["--protocol", "kserve"], &load[..]].concat())?;
    engine.stop()?;
    let simulated = Client::spawn(&[&["simulate", "--profile", BATCHER], &load[..]].concat())?.end()?;
    say(format!("{BATCHER} {}: live run {}", load[..2].join(" "), live.verdict()));
    let (live, simulated) = (rows(&live)?, rows(&simulated)?);
    let turned = if load[0] == "--concurrency" { turn_around_ms(&live)? } else { 0.0 };
    if turned > 0.0 {
        say(format!("  the live client's turn-around: {turned:.3} ms, added"));
    }
    percentiles("e2e", e2e, &live, &simulated, turned);
    Ok(())
}

/// From an answer to its user's next request, on average: users / throughput − mean latency (Little's law of a closed loop).
fn turn_around_ms(rows: &[Attempt]) -> Result<f64> {
    let users: f64 = USERS.parse().map_err(|_| "no number")?;
    let ends: Vec<i64> = rows.iter().filter_map(|row| Some(row.end?.0)).collect();
    let (Some(last), Some(first)) = (ends.iter().max(), rows.iter().filter_map(|row| row.sent).min()) else {
        return Err("no rows".into());
    };
    let span_ms = (last - first.0) as f64 / 1e6;
    let mean_ms = rows.iter().filter_map(e2e).sum::<i64>() as f64 / 1e6 / rows.len() as f64;
    Ok(users * span_ms / rows.len() as f64 - mean_ms)
}

/// What the engine carries, requests/s: a closed loop that keeps it full, in virtual time.
fn capacity() -> Result<f64> {
    let words = [
        "simulate",
        "--profile",
        "demo",
        "--concurrency",
        "256",
        "--for",
        "20s",
        "--isl",
        "64",
        "--osl",
        "8",
    ];
    let full = Client::spawn(&words)?.end()?;
    full.summary()?.rates.achieved_per_s.value().ok_or_else(|| "no rate".into())
}

fn compare(live: &Ran, simulated: &Ran) -> Result<()> {
    let (live, simulated) = (rows(live)?, rows(simulated)?);
    percentiles("ttft", ttft, &live, &simulated, 0.0);
    percentiles("tpot", tpot, &live, &simulated, 0.0);
    Ok(())
}

fn rows(ran: &Ran) -> Result<Vec<Attempt>> {
    Ok(plimsoll_store::open(&ran.dir())?.attempts)
}

/// Holds the live percentiles, and `add_ms` on each, against those of virtual time.
fn percentiles(
    name: &str,
    figure: fn(&Attempt) -> Option<i64>,
    live: &[Attempt],
    simulated: &[Attempt],
    add_ms: f64,
) {
    let values = |rows: &[Attempt]| -> Vec<i64> { rows.iter().filter_map(figure).collect() };
    let (mut lived, mut told) = (values(live), values(simulated));
    for p in [0.5, 0.9, 0.99] {
        let (lived, told) = (quantile(&mut lived, p) / 1e6 + add_ms, quantile(&mut told, p) / 1e6);
        let off = lived - told;
        bar(
            &format!("  {name} p{}: live {lived:.3} ms, virtual {told:.3} ms", 100.0 * p),
            format!("{:+.2} % ({off:+.3} ms)", 100.0 * off / told),
            "≤ 2 % or 1 ms",
            off.abs() <= MS || off.abs() <= SHARE * told,
        );
    }
}

fn e2e(row: &Attempt) -> Option<i64> {
    Some((row.end? - row.due).0)
}

fn ttft(row: &Attempt) -> Option<i64> {
    Some((row.first_token? - row.due).0)
}

fn tpot(row: &Attempt) -> Option<i64> {
    Some((row.last_token? - row.first_token?).0 / i64::from(row.asked_output.max(2) - 1))
}
