//! Do shards of one load carry four times what one carries, and lose nothing? `cargo bench -p plimsoll --bench shards`.
//! Words: `shards=4 streams=2000 seconds=20`.
//!
//! The canned engine is slowed to a token every two seconds, so that as many streams are open at once as are asked for while few requests a second are
//! begun: what is tried are sockets, memory and rows, beside others that do the same. The truth is the engine's own log of whom it answered, which
//! knows nothing of shards, and its own count of streams that run.

mod kit;

use std::collections::BTreeSet;
use std::process::{Child, ExitCode, Stdio};

use kit::{Args, Engine, Result, bar, monotonic_ns, plimsoll, say, status_kib, wait_until};
use plimsoll_measure::findings::Findings;

/// Tokens of an answer, two seconds apart after a first one in four.
const TOKENS: u32 = 16;
const SLOW: &str = r#"{"name": "slow", "mode": {"kind": "canned",
  "ttft": {"law": "uniform", "low_ms": 3000, "high_ms": 5000}, "gap": {"law": "deterministic", "ms": 2000}}}"#;
/// How long an answer takes by that law, s.
const ANSWER_S: f64 = 4.0 + 2.0 * (TOKENS - 1) as f64;
/// Between two looks at the engine's page.
const LOOK_NS: i64 = 500_000_000;

fn main() -> ExitCode {
    kit::main(|args: &Args| {
        let of = args.number("shards", 4.0)? as u32;
        let streams = args.number("streams", 2000.0)? * f64::from(of);
        // Streams grow for as long as one takes, and stay for this long.
        let seconds = ANSWER_S + args.number("seconds", 20.0)?;
        carry(of, streams, seconds)
    })
}

fn carry(of: u32, streams: f64, seconds: f64) -> Result<()> {
    let engine = Engine::start(SLOW)?;
    let folder = tempfile::tempdir()?;
    let place = folder.path().join("place");
    let rate = format!("{:.3}/s", streams / ANSWER_S);
    let (window, tokens) = (format!("{seconds:.0}s"), TOKENS.to_string());
    let spawn = |index: u32| -> Result<Child> {
        let shard = format!("{index}/{of}");
        let load = ["--rate", &rate, "--for", &window, "--osl", &tokens, "--isl", "16", "--timeout", "2m"];
        let mut command = std::process::Command::new(plimsoll());
        command.args(["run", &engine.url, "--model", "bench", "--shard", &shard, "-q", "--scrape", "off"]);
        command.args(load).arg("--rendezvous").arg(&place);
        Ok(command.stdin(Stdio::null()).stdout(Stdio::null()).spawn()?)
    };
    let mut shards = (0..of).map(spawn).collect::<Result<Vec<Child>>>()?;
    let (mut most, mut peaks) = (0.0_f64, vec![0_u64; shards.len()]);
    let mut running = shards.len();
    while running > 0 {
        wait_until(monotonic_ns() + LOOK_NS);
        most = most.max(engine.metric("vllm:num_requests_running")?);
        running = 0;
        for (shard, peak) in shards.iter_mut().zip(&mut peaks) {
            *peak = (*peak).max(status_kib(shard.id(), "VmHWM").unwrap_or(0));
            running += usize::from(shard.try_wait()?.is_none());
        }
    }
    let answered = engine.stop()?;
    let merged = folder.path().join("merged");
    let mut merge = std::process::Command::new(plimsoll());
    let merge = merge.arg("merge").arg(&place).arg("-o").arg(&merged).args(["--format", "json"]).output()?;
    let run = plimsoll_store::open(&merged)
        .map_err(|e| format!("{e}; merge said {}", String::from_utf8_lossy(&merge.stderr)))?;
    let level = run.manifest.levels.first().ok_or("no level")?;
    let rows: BTreeSet<u64> = run.attempts.iter().map(|row| row.request).collect();
    let finished = run.attempts.iter().filter(|row| row.outcome.is_finished()).count() as u64;
    let tokens = run.attempts.iter().filter_map(|row| row.answer.tokens.output).map(u64::from).sum::<u64>();
    // The calibration of shard 0 was answered too: under names of its own.
    let whole = answered.iter().filter(|one| one.steps_ns.len() == TOKENS as usize).count() as u64;
    let parts: Vec<usize> = (0..of)
        .map(|index| {
            run.attempts.iter().filter(|row| row.request % u64::from(of) == u64::from(index)).count()
        })
        .collect();
    let findings: Findings = serde_json::from_value(run.manifest.findings.clone().ok_or("no findings")?)?;
    let mib: Vec<String> = peaks.iter().map(|peak| format!("{:.0}", *peak as f64 / 1024.0)).collect();
    say(format!(
        "{of} shards, {rate} for {window}: {} arrivals, {parts:?} by shard; memory of each at its peak, MiB: {}; {:?}",
        level.arrivals,
        mib.join(", "),
        findings.validity.verdict,
    ));
    for reason in &findings.validity.reasons {
        say(format!("  {}: {}", reason.check, reason.figure));
    }
    let arrivals = level.arrivals;
    bar(
        "streams open at once, the engine's count",
        most,
        &format!("≥ {:.0}", 0.95 * streams),
        most >= 0.95 * streams,
    );
    bar("arrivals with a row", rows.len(), &arrivals.to_string(), rows.len() as u64 == arrivals);
    bar("of these finished", finished, &arrivals.to_string(), finished == arrivals);
    bar("whole answers in the engine's log", whole, &arrivals.to_string(), whole == arrivals);
    let due = arrivals * u64::from(TOKENS);
    bar("tokens received", tokens, &due.to_string(), tokens == due);
    Ok(())
}
