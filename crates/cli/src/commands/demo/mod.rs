//! `plimsoll demo` runs the embedded engine in a separate process on loopback and sweeps it for about a
//! minute.
//!
//! The engine is a separate process because a user also measures two processes with two schedulers and a
//! socket between them. In one process, client and engine would share a runtime and the result would be too
//! good.
//!
//! `plimsoll demo gateway` ([`gateway`]) puts a gateway in front of three engines. `plimsoll demo watch`
//! ([`watch`]) watches one engine.

mod gateway;
mod watch;

use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStdin, Command, Stdio};

use plimsoll_client::StopLimits;
use plimsoll_model::Span;
use plimsoll_workload::{format_span, parse_span};

use super::sweep;
use crate::exit::{Exit, Stop};
use crate::flags::{ClientArgs, DemoArgs, DemoOf, PriceArgs, SearchArgs};

/// Prompt and output tokens of the demo. They are short, so that a minute has enough requests for a p99.
const TOKENS: (u32, u32) = (64, 4);

/// Duration without `--time`.
const TIME: &str = "60s";

/// Divisor of the duration for the time of the sustained level at the found limit.
const HOLD_SHARE: i64 = 6;

/// The example budget of the demo, which its output states.
const BUDGET: [&str; 3] = ["ttft p99 < 15ms", "e2e p99 < 40ms", "errors < 1%"];

/// Starts the engine, sweeps it and prints the report.
pub fn run(args: &DemoArgs) -> Result<Exit, Stop> {
    match args.what {
        Some(DemoOf::Gateway) => return gateway::run(args),
        Some(DemoOf::Watch) => return watch::run(args),
        None => {}
    }
    let time_text = args.time.clone().unwrap_or_else(|| TIME.to_owned());
    let engine = Engine::start("demo", args.seed, &[])?;
    let scenario = sweep::fixed_scenario(&engine.url, args.seed, TOKENS.0, TOKENS.1)?;
    let time = parse_span(&time_text).map_err(|e| Stop::usage(format!("--time: {e}")))?;
    let hold =
        args.hold.clone().unwrap_or_else(|| format_span(Span(time.0 / HOLD_SHARE / 1_000_000 * 1_000_000)));
    let search = SearchArgs {
        time: time_text.clone(),
        hold: Some(hold),
        traffic: vec!["steady".into()],
        knee_factor: 1.5,
    };
    let slo = BUDGET.map(String::from);
    let mut plan = sweep::plan(scenario, &search, &slo, StopLimits::default(), &PriceArgs::default())?;
    plan.reproduce = Some(format!("plimsoll demo --time {} --seed {}", time_text, args.seed));
    let done = sweep::measure("demo", plan, &ClientArgs::default(), &args.output)?;
    drop(engine);
    sweep::finish(done, args.output.format)
}

/// The process of an engine. It ends when this value is dropped, and when this process ends.
struct Engine {
    child: Child,
    _stdin: ChildStdin,
    url: String,
}

impl Engine {
    /// Starts an engine with this profile and additional flags.
    fn start(profile: &str, seed: u64, more: &[&str]) -> Result<Engine, Stop> {
        let failed = |what: &str| Stop::invalid(format!("the embedded engine can't be started: {what}"));
        let program = std::env::current_exe().map_err(|e| failed(&e.to_string()))?;
        let mut child = Command::new(program)
            .args(["engine", "--listen", "127.0.0.1:0", "--profile", profile, "--until-stdin-ends", "--seed"])
            .arg(seed.to_string())
            .args(more)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .map_err(|e| failed(&e.to_string()))?;
        let stdin = child.stdin.take().ok_or_else(|| failed("no pipe to it"))?;
        let stdout = child.stdout.take().ok_or_else(|| failed("no pipe from it"))?;
        let mut url = String::new();
        BufReader::new(stdout).read_line(&mut url).map_err(|e| failed(&e.to_string()))?;
        let url = url.trim().to_string();
        if url.is_empty() {
            let _ = child.kill();
            return Err(failed("it ended immediately"));
        }
        Ok(Engine { child, _stdin: stdin, url })
    }

    /// Returns the engine's address without the API path.
    fn host(&self) -> &str {
        self.url.trim_end_matches("/v1")
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
