//! `plimsoll demo watch` runs the embedded engine under load and watches its metrics endpoint. The engine
//! slows down half-way. The watch is the live one and gets no information about the change.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use plimsoll_client::Clock;
use plimsoll_model::Span;
use plimsoll_workload::{format_span, parse_span};

use super::Engine;
use crate::commands::watch;
use crate::exit::{Exit, Stop};
use crate::flags::{DemoArgs, PriceArgs, ReadersArgs, WatchArgs};
use crate::{named, out};

/// Profile of the engine, the factor by which it slows down, and its load.
const PROFILE: &str = "llama-3.1-8b@h100";
const SLOWER: u32 = 4;
const RATE: &str = "2/s";
/// Duration without `--time`. An alert fires after a bad minute, and its diagnosis needs a good minute
/// before.
const TIME: &str = "3m";
/// Price of a replica, so that the page also shows the cost of the slowdown.
const PRICE: &str = "2.49USD/replica-hour";
const BUDGET: &str = "version: 1\nname: demo\nbudgets:\n  - {id: ttft, metric: ttft, p: 95, max: 100ms}\n  - {id: itl, metric: itl, p: 95, max: 25ms}\n";

/// Runs the watch, then prints the change that was made.
pub fn run(args: &DemoArgs) -> Result<Exit, Stop> {
    let time =
        parse_span(args.time.as_deref().unwrap_or(TIME)).map_err(|e| Stop::usage(format!("--time: {e}")))?;
    let time = Span(time.0.max(10_000_000_000) / 1_000_000_000 * 1_000_000_000);
    let slow_from = Span(time.0 / 2_000_000_000 * 1_000_000_000);
    let dir = args.output.out.clone().unwrap_or_else(new_folder);
    if dir.exists() {
        return Err(Stop::usage(format!("{}: it exists; name another folder", dir.display())));
    }
    let unwritten = |e: std::io::Error| Stop::invalid(format!("{}: {e}", dir.display()));
    std::fs::create_dir_all(&dir).map_err(unwritten)?;
    let budget = dir.join("budget.yaml");
    std::fs::write(&budget, BUDGET).map_err(unwritten)?;
    let fault = format!("slow:factor={SLOWER},at={}", format_span(slow_from));
    let engine = Engine::start(PROFILE, args.seed, &["--fault", &fault])?;
    let load = Load::start(args, &engine, time, &dir.join("load"))?;
    if !args.output.quiet {
        out::note(&format!(
            "An embedded engine ({PROFILE}, simulated) gets {RATE}. A watch scrapes its metrics for {} and checks them against {}. Half-way the engine gets a fault.",
            format_span(time),
            budget.display()
        ));
    }
    let watching = WatchArgs {
        sources: vec![engine.host().to_owned()],
        budget: Some(budget),
        every: Some("2s".to_owned()),
        window: Some("1m".to_owned()),
        listen: Some("127.0.0.1:0".to_owned()),
        readers: ReadersArgs::default(),
        price: PriceArgs { price: Some(PRICE.to_owned()), gpus: None },
        time: Some(format_span(time)),
        key_env: None,
        ca_file: None,
        insecure: false,
        record: None,
        history: None,
        format: args.output.format,
        quiet: args.output.quiet,
    };
    // The verdict of the watch is part of the demo and not the result of this command.
    match watch::start(&watching)? {
        Exit::Interrupted => return Ok(Exit::Interrupted),
        _ => drop(load),
    }
    if !args.output.quiet {
        out::note(&format!(
            "The fault: from about +{} on, every engine step took {SLOWER} times as long. The watch saw only the metrics. Try your own: plimsoll watch http://host:8000/metrics -b budget.yaml",
            format_span(slow_from)
        ));
    }
    Ok(Exit::Done)
}

fn new_folder() -> PathBuf {
    let seconds = Clock::start().anchor().realtime_ns / 1_000_000_000;
    Path::new(named::HOME).join(format!("demo-watch-{seconds}"))
}

/// The process of the load. It ends when this value is dropped.
struct Load(Child);

impl Load {
    fn start(args: &DemoArgs, engine: &Engine, time: Span, dir: &Path) -> Result<Load, Stop> {
        let failed = |e: std::io::Error| Stop::invalid(format!("the load can't be sent: {e}"));
        let (time, seed) = (format_span(time), args.seed.to_string());
        let child = Command::new(std::env::current_exe().map_err(failed)?)
            .args(["run", &engine.url, "--rate", RATE, "--for", &time, "--seed", &seed, "--nonce", &seed])
            .args(["--isl", "lognormal:600,0.6", "--osl", "48", "--scrape", "off", "-q", "-o"])
            .arg(dir)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .map_err(failed)?;
        Ok(Load(child))
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
