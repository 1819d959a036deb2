//! `plimsoll demo gateway` sends identical requests through round robin and through the default gateway. Both
//! route to three embedded replicas, and one replica becomes slow. Both routes are measured; the result covers
//! only requests that were sent.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::Ordering;

use plimsoll_client::Clock;
use plimsoll_gateway::pool::ReplicaStatus;
use plimsoll_gateway::{Gateway, GatewaySpec, ReplicaSpec};
use plimsoll_model::Span;
use plimsoll_policy::{ReplicaAvailability, RouteSpec};
use plimsoll_report::demo_gateway::{DemoRoute, ReplicaShare, render};
use plimsoll_workload::{format_span, parse_span};
use serde_json::json;

use super::Engine;
use crate::exit::{Exit, Stop};
use crate::flags::{DemoArgs, OutputFormat};
use crate::{named, out, rows};

/// Profile of the replicas, and the factor by which the last one slows down.
const PROFILE: &str = "llama-3.1-8b@h100";
const SLOWER: u32 = 8;
/// Requests per second, and the burst factor in the middle tenth of the time.
const RATE: u32 = 24;
const BURST: u32 = 4;
const NAMES: [&str; 3] = ["a", "b", "c"];
/// Time until all replicas must be ready, in tenths of a second.
const PATIENCE: u32 = 100;
/// Offset of the first request, because the clocks of the engines start with the engines.
const STARTS: Span = Span(1_000_000_000);

/// Runs both measurements and prints the comparison.
pub fn run(args: &DemoArgs) -> Result<Exit, Stop> {
    let time_text = args.time.as_deref().unwrap_or(super::TIME);
    let time = parse_span(time_text).map_err(|e| Stop::usage(format!("--time: {e}")))?;
    // A third for each run; the rest is for start-up and drain.
    let each = Span((time.0 / 3).max(3_000_000_000) / 1_000_000_000 * 1_000_000_000);
    let dir = args.output.out.clone().unwrap_or_else(new_folder);
    if dir.exists() {
        return Err(Stop::usage(format!("{}: it exists; name another folder", dir.display())));
    }
    std::fs::create_dir_all(&dir).map_err(|e| Stop::invalid(format!("{}: {e}", dir.display())))?;
    let say = |line: &str| {
        if !args.output.quiet {
            out::note(line);
        }
    };
    let way = |name: &str, route: &RouteSpec| {
        say(&format!("{name}: three replicas, {} of requests …", format_span(each)));
        measure(args, route, each, &dir.join(name.replace(' ', "-")))
    };
    let robin = way("round robin", &RouteSpec::RoundRobin {})?;
    let gateway = way("gateway", &GatewaySpec::default().route)?;
    let again = format!("plimsoll demo gateway --time {time_text} --seed {}", args.seed);
    match args.output.format {
        OutputFormat::Json => out::json(&json!({"round_robin": robin, "gateway": gateway})),
        OutputFormat::Text => out::line(render(&scene(each), &robin, &gateway, &again).trim_end()),
    }
    say(&format!(
        "the two runs: {0}/round-robin and {0}/gateway (plimsoll show, diagnose, report)",
        dir.display()
    ));
    Ok(Exit::Done)
}

fn new_folder() -> PathBuf {
    let seconds = Clock::start().anchor().realtime_ns / 1_000_000_000;
    Path::new(named::HOME).join(format!("demo-gateway-{seconds}"))
}

fn scene(each: Span) -> String {
    format!(
        "Three replicas ({PROFILE}, simulated, one process each) get the same {RATE} requests a second twice, for {}. After {} replica c \
         is {SLOWER} times slower; in the middle come {BURST} times as many for a tenth of the time.",
        format_span(each),
        format_span(slow_from(each))
    )
}

fn measure(args: &DemoArgs, route: &RouteSpec, each: Span, dir: &Path) -> Result<DemoRoute, Stop> {
    let slow = format!("slow:factor={SLOWER},at={}", format_span(Span(slow_from(each).0 + STARTS.0)));
    let engines = NAMES
        .iter()
        .map(|name| {
            let fault: &[&str] = if *name == "c" { &["--fault", &slow] } else { &[] };
            Engine::start(PROFILE, args.seed, fault)
        })
        .collect::<Result<Vec<_>, _>>()?;
    let replicas = NAMES.iter().zip(&engines);
    let mut spec = GatewaySpec {
        replicas: replicas
            .map(|(name, engine)| ReplicaSpec::new(engine.host(), Some((*name).to_owned())))
            .collect(),
        route: *route,
        ..GatewaySpec::default()
    };
    spec.listen.set_port(0);
    let gateway = Gateway::start(&spec).map_err(|e| Stop::invalid(e.to_string()))?;
    wait_ready(&gateway)?;
    let ejected = load(args, &gateway, each, dir)?;
    let (_, findings) = rows::load(dir)?;
    let met = rows::level(&findings, None, "no request was sent")?.clone();
    let shown = gateway.pool.shown().0;
    let taken = |shown: &ReplicaStatus| ReplicaShare {
        name: shown.replica.name.clone(),
        requests: shown.replica.attempted(),
        step_s: shown.speed.step.at(1.0),
    };
    let way = DemoRoute {
        met,
        replicas: shown.iter().map(taken).collect(),
        retries: gateway.stats.retries.load(Ordering::Relaxed),
        refused: gateway.pool.refused.iter().flatten().map(|n| n.load(Ordering::Relaxed)).sum(),
        ejected,
    };
    let stopper = gateway.stopper();
    stopper.stop();
    stopper.stop();
    gateway.wait().map_err(|e| Stop::invalid(e.to_string()))?;
    Ok(way)
}

/// Returns the time from the first request until the last replica slows down.
fn slow_from(each: Span) -> Span {
    Span(each.0 * 3 / 10 / 1_000_000_000 * 1_000_000_000)
}

fn wait_ready(gateway: &Gateway) -> Result<(), Stop> {
    for _ in 0..PATIENCE {
        if gateway.pool.shown().0.iter().all(|shown| shown.standing == ReplicaAvailability::Ready) {
            return Ok(());
        }
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
    Err(Stop::invalid("the embedded replicas do not answer"))
}

/// Runs the load in a separate process. Returns whether a replica was ejected.
fn load(args: &DemoArgs, gateway: &Gateway, each: Span, dir: &Path) -> Result<bool, Stop> {
    let failed = |what: String| Stop::invalid(format!("the load can't be sent: {what}"));
    let program = std::env::current_exe().map_err(|e| failed(e.to_string()))?;
    let (rate, time, seed) = (format!("{RATE}/s"), format_span(each), args.seed.to_string());
    let mut child = Command::new(program)
        .args([
            "run",
            &format!("http://{}/v1", gateway.addr),
            "--rate",
            &rate,
            "--for",
            &time,
            "--seed",
            &seed,
        ])
        .args([
            "--nonce",
            &seed,
            "--arrivals",
            &format!("spike:{BURST}"),
            "--isl",
            "lognormal:600,0.6",
            "--osl",
            "48",
        ])
        .args(["--scrape", "off", "-q", "-o"])
        .arg(dir)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|e| failed(e.to_string()))?;
    let mut ejected = false;
    while child.try_wait().map_err(|e| failed(e.to_string()))?.is_none() {
        let standings = gateway.pool.shown().0;
        ejected |= standings.iter().any(|shown| {
            matches!(shown.standing, ReplicaAvailability::Ejected | ReplicaAvailability::Silent)
        });
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    let ended = child.wait_with_output().map_err(|e| failed(e.to_string()))?;
    // Exit code 4 reports a short or suspect measurement, which is expected for such a short run.
    match ended.status.code() {
        Some(0 | 4) => Ok(ejected),
        _ => Err(failed(String::from_utf8_lossy(&ended.stderr).trim().to_owned())),
    }
}
