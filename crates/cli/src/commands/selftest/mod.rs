//! `plimsoll selftest` proves on this machine that the sent load equals the requested load, and that the
//! printed figures are correct.
//!
//! This binary sends the load in a separate process, as a user would. A reference server in this process
//! responds by a script ([`witness`]). The figures of the run are then compared with the server's log
//! ([`checks`]).

mod checks;
mod witness;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use plimsoll_client::Clock;
use plimsoll_client::clock::monotonic_ns;
use plimsoll_report::selftest::{self, Selftest};
use serde_json::Value;

use crate::answer;
use crate::exit::{Exit, Stop};
use crate::flags::{OutputFormat, SelftestArgs};
use crate::out;
use checks::OpenLoop;
use witness::{HEADER, TOKENS, WitnessServer, WitnessedRequest, level_of};

/// Polling interval of the load process.
const LOOK: Duration = Duration::from_millis(5);
/// Load of the open loop: enough requests for a p99, and few enough for the server's threads.
const RATE_PER_S: f64 = 100.0;
const CALM_S: f64 = 13.0;
const TROUBLE_S: f64 = 8.0;
/// Number of requests after which the server stalls.
const STOP_AT: usize = 300;
const PROMPT_TOKENS: usize = 64;
const CONCURRENCY: u32 = 8;
const REQUESTS: u64 = 240;

/// Runs the self-test and prints its result.
pub fn run(args: &SelftestArgs) -> Result<Exit, Stop> {
    let clock = Clock::start();
    let began = clock.now();
    let home = Home::new()?;
    let witness = WitnessServer::start()
        .map_err(|e| Stop::invalid(format!("the reference server can't listen: {e}")))?;
    let say = |line: &str| {
        if !args.quiet {
            out::note(line);
        }
    };
    say(&format!("a load of {RATE_PER_S} requests a second for {CALM_S} s on a scripted server"));
    let calm = open_loop(&witness, &home.0, ("calm", CALM_S), args.seed)?;
    let (mut sent, mut printed) = (calm.held().sent(), calm.held().printed());
    say(&format!(
        "repeating for {TROUBLE_S} s, while some requests fail and the server stalls for one second"
    ));
    witness.fail_some();
    let trouble = open_loop(&witness, &home.0, ("trouble", TROUBLE_S), args.seed.wrapping_add(1))?;
    sent.extend(trouble.held().sent_in_trouble());
    printed.extend(trouble.held().printed_in_trouble());
    say(&format!("a closed loop of {CONCURRENCY}"));
    let (concurrency, requests) = (CONCURRENCY.to_string(), REQUESTS.to_string());
    let more = ["--concurrency", &*concurrency, "--requests", &*requests];
    let mut load = Load::start(&witness, &home.0, "closed", &more, args.seed)?;
    while !load.is_over()? {
        std::thread::sleep(LOOK);
    }
    let (seen, most) = witness.take();
    let seen: Vec<_> = seen.into_iter().filter(|seen| level_of(&seen.name) == Some(0)).collect();
    sent.extend(checks::closed(CONCURRENCY, REQUESTS, &seen, most));
    let host = plimsoll_client::doctor::host();
    let found = Selftest {
        tool: format!("plimsoll {}", env!("CARGO_PKG_VERSION")),
        machine: format!("{}, {} cores, {}", host.cpu, host.cores, host.os),
        took_s: (clock.now() - began).as_secs_f64(),
        sent,
        printed,
    };
    match args.format {
        OutputFormat::Text => out::line(&selftest::text(&found)),
        OutputFormat::Json => out::json(&found),
    }
    if let Some(path) = &args.out {
        std::fs::write(path, plimsoll_report::selftest::page(&found))
            .map_err(|e| Stop::invalid(format!("{}: {e}", path.display())))?;
        say(&format!("page: {}", path.display()));
    }
    Ok(if found.holds() { Exit::Done } else { Exit::Invalid })
}

/// The data of a finished open loop.
struct OpenDone {
    window_s: f64,
    run: plimsoll_store::StoredRun,
    findings: Value,
    seen: Vec<WitnessedRequest>,
    stopped_ns: Option<i64>,
}

impl OpenDone {
    fn held(&self) -> OpenLoop<'_> {
        OpenLoop {
            rate_per_s: RATE_PER_S,
            window_s: self.window_s,
            prompt_tokens: PROMPT_TOKENS,
            rows: &self.run.attempts,
            findings: &self.findings,
            seen: &self.seen,
            zero_ns: self.run.manifest.clock.monotonic_ns,
            stopped_ns: self.stopped_ns,
        }
    }
}

fn open_loop(
    witness: &WitnessServer,
    home: &Path,
    (name, window_s): (&str, f64),
    seed: u64,
) -> Result<OpenDone, Stop> {
    let (rate, window) = (format!("{RATE_PER_S}/s"), format!("{window_s}s"));
    let mut load = Load::start(witness, home, name, &["--rate", &rate, "--for", &window], seed)?;
    let mut stopped_ns = None;
    while !load.is_over()? {
        if name == "trouble" && stopped_ns.is_none() && witness.count() >= STOP_AT {
            stopped_ns = Some(monotonic_ns());
            witness.stop_for_a_while();
        }
        std::thread::sleep(LOOK);
    }
    let mut run = plimsoll_store::open(&load.dir).map_err(|e| Stop::invalid(e.to_string()))?;
    // Only the load itself is kept, without the probes before it.
    run.attempts.retain(|row| row.level == 0);
    let seen = witness.take().0.into_iter().filter(|seen| level_of(&seen.name) == Some(0)).collect();
    Ok(OpenDone { window_s, findings: load.findings()?, run, seen, stopped_ns })
}

/// A temporary folder for the runs, removed on drop.
struct Home(PathBuf);

impl Home {
    fn new() -> Result<Home, Stop> {
        let path = std::env::temp_dir().join(format!("plimsoll-selftest-{:016x}", crate::measure::random()));
        std::fs::create_dir(&path).map_err(|e| Stop::invalid(format!("{}: {e}", path.display())))?;
        Ok(Home(path))
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A load in a separate process.
struct Load {
    child: std::process::Child,
    dir: PathBuf,
    said: PathBuf,
}

impl Load {
    fn start(
        witness: &WitnessServer,
        home: &Path,
        name: &str,
        load: &[&str],
        seed: u64,
    ) -> Result<Load, Stop> {
        let failed = |e: &std::io::Error| Stop::invalid(format!("the load can't be started: {e}"));
        let (dir, said) = (home.join(name), home.join(format!("{name}.json")));
        let json = std::fs::File::create(&said).map_err(|e| failed(&e))?;
        let program = std::env::current_exe().map_err(|e| failed(&e))?;
        let child = Command::new(program)
            .arg("run")
            .arg(format!("http://{}/v1", witness.addr))
            .args(load)
            .args([
                "--isl",
                &PROMPT_TOKENS.to_string(),
                "--osl",
                &TOKENS.to_string(),
                "--seed",
                &seed.to_string(),
            ])
            .args(["-H", &format!("{HEADER}: {{request}}"), "--format", "json", "-q", "-o"])
            .arg(&dir)
            .stdin(Stdio::null())
            .stdout(json)
            .stderr(Stdio::null())
            .spawn()
            .map_err(|e| failed(&e))?;
        Ok(Load { child, dir, said })
    }

    fn is_over(&mut self) -> Result<bool, Stop> {
        let ended = self.child.try_wait().map_err(|e| Stop::invalid(format!("the load: {e}")))?;
        match ended.map(|status| status.code()) {
            None => Ok(false),
            // The script contains failures, so the exit code of an invalid run is accepted here.
            Some(Some(0 | 1 | 3 | 4)) => Ok(true),
            Some(code) => Err(Stop::invalid(format!("the load ended with {code:?}"))),
        }
    }

    /// Returns the findings that the load printed.
    fn findings(&self) -> Result<Value, Stop> {
        let text = std::fs::read(&self.said).map_err(|e| Stop::invalid(format!("the load: {e}")))?;
        let said: Value = answer::data(&String::from_utf8_lossy(&text))
            .map_err(|e| Stop::invalid(format!("the load printed no JSON: {e}")))?;
        Ok(said["findings"].clone())
    }
}
