//! `plimsoll cold-start` warms the endpoint, measures steady requests one at a time, idles, and measures the
//! next request.
//!
//! While idle, the client sends no traffic to the endpoint. Connections are closed after every request unless
//! configured otherwise, because a kept connection would show the behaviour of client pools and proxies.
//! Metrics are not scraped, because an autoscaler may count a scrape as traffic.

use crate::result;
use crate::rows;
use std::path::Path;
use std::thread;
use std::time::Duration;

use plimsoll_client::Clock;
use plimsoll_measure::findings::cold_start::{ColdStartFinding, ColdVerdict};
use plimsoll_measure::purpose::COLD;
use plimsoll_model::Span;
use plimsoll_profile::cold_start::KIND;
use plimsoll_report::figure::{self, counted};
use plimsoll_workload::{Jitter, Scenario, format_span, parse_span};
use serde_json::json;

use super::run::ceiling_flags;
use crate::exit::{Exit, Stop};
use crate::flags::{ColdStartArgs, OutputFormat};
use crate::measure::{LevelStep, MeasurementSession, MeasurementStart, random, stop_limits};
use crate::out;
use crate::resolve::Draft;

/// Number of warm-up requests, which are not counted.
const WARM_UP: u64 = 3;
/// Retry interval and maximum number of tries (20 minutes), because a starting endpoint rejects requests.
const AGAIN: Span = Span::from_secs(1);
const TRIES: u16 = 1200;

/// Measures and prints, or prints the result of a run folder.
pub fn run(args: &ColdStartArgs) -> Result<Exit, Stop> {
    let name = &args.target.url;
    if !name.contains("://") && Path::new(name).is_dir() {
        return of_run(Path::new(name), args);
    }
    if !name.contains("://") {
        return Err(Stop::usage(format!(
            "{name}: no run folder of this name, and no URL (which starts with http:// or https://)"
        )));
    }
    measure(args)
}

/// Prints the cold starts of a run folder.
fn of_run(dir: &Path, args: &ColdStartArgs) -> Result<Exit, Stop> {
    let rows = rows::whole(dir)?;
    let Some(found) = &rows.findings.cold_start else {
        let name = dir.display();
        return Err(Stop::usage(format!(
            "{name}: a run that met no cold start; measure one with plimsoll cold-start URL --idle 20m"
        )));
    };
    match args.output.format {
        OutputFormat::Text => out::line(&plimsoll_report::cold_start::render(found)),
        OutputFormat::Json => out::json(found),
    }
    Ok(match found.verdict {
        ColdVerdict::CannotTell => Exit::Inconclusive,
        _ => Exit::Done,
    })
}

fn measure(args: &ColdStartArgs) -> Result<Exit, Stop> {
    let idle = parse_span(&args.idle).map_err(|e| Stop::usage(format!("--idle: {e}")))?;
    if idle.0 <= 0 {
        return Err(Stop::usage("--idle: a time above 0, such as 20m"));
    }
    let scenario = scenario(args)?;
    let mut more = vec![
        ("idle", format_span(idle)),
        ("repeat", args.repeat.to_string()),
        ("warm", args.warm.to_string()),
        ("then", args.then.to_string()),
    ];
    more.extend(ceiling_flags(&args.client, &args.ceilings));
    let mut measure = MeasurementSession::begin(MeasurementStart {
        more,
        ..MeasurementStart::new(KIND, scenario, &args.client, stop_limits(&args.ceilings)?, &args.output)
    })?;
    measure.screen.say(&format!(
        "{}, then {} idle and {}, {}; {} in all",
        counted(args.warm.into(), "steady request"),
        format_span(idle),
        counted(u64::from(1 + args.then), "request"),
        if args.repeat == 1 { "once".to_string() } else { format!("{} times", args.repeat) },
        counted(
            WARM_UP + u64::from(args.warm) + u64::from(args.repeat) * u64::from(1 + args.then),
            "request"
        )
    ));
    level(&mut measure, "warmup", WARM_UP, "warming up")?;
    level(&mut measure, "run", args.warm.into(), "steady, one at a time")?;
    for stretch in 1..=args.repeat {
        if !wait(&mut measure, idle, (stretch, args.repeat)) {
            break;
        }
        level(&mut measure, COLD, u64::from(1 + args.then), "after idling")?;
    }
    close(measure, args)
}

fn close(measure: MeasurementSession, args: &ColdStartArgs) -> Result<Exit, Stop> {
    let stopped = measure.interrupted();
    let findings = measure.analyse();
    let closed = measure.finish(&findings);
    result::close(args.output.format, &closed, &findings, None);
    let cannot = |found: &ColdStartFinding| found.verdict == ColdVerdict::CannotTell;
    Ok(match closed.exit(&findings, stopped) {
        Exit::Done if findings.cold_start.as_ref().is_none_or(cannot) => Exit::Inconclusive,
        exit => exit,
    })
}

/// Returns a scenario with one request at a time, a connection per request, and retries while the endpoint
/// starts.
fn scenario(args: &ColdStartArgs) -> Result<Scenario, Stop> {
    let mut draft = Draft::new(args.workload.spec.as_deref())?;
    draft.target(&args.target)?;
    draft.workload(&args.workload)?;
    draft.client(&args.client)?;
    // Scrapes continue while idle, and a scrape is traffic.
    if args.client.scrape.scrape.iter().any(|page| page != "off") {
        return Err(Stop::usage(
            "--scrape: scrapes during the idle time would keep the endpoint awake; drop this flag",
        ));
    }
    draft.set("scrape.discover", false.into());
    draft.set("load", json!({ "mode": "closed", "concurrency": 1 }));
    if !draft.has("client.connections") {
        draft.set("client.connections", json!({ "policy": "fresh" }));
    }
    let own_retries = draft.has("client.retries.max");
    let mut scenario = draft.finish(random())?;
    if !own_retries {
        let retries = &mut scenario.client.retries;
        (retries.max, retries.base, retries.cap, retries.jitter) = (TRIES, AGAIN, AGAIN, Jitter::None);
    }
    Ok(scenario)
}

fn level(measure: &mut MeasurementSession, purpose: &str, requests: u64, title: &str) -> Result<(), Stop> {
    if measure.stopped() {
        return Ok(());
    }
    let step = LevelStep::of_requests(purpose, 1, requests);
    let measured = measure.level(&step, &format!("{title}, {}", counted(requests, "request")))?;
    measure.keep(measured);
    Ok(())
}

/// Idles for this time. Returns false if the user stopped it.
fn wait(measure: &mut MeasurementSession, idle: Span, (repetition, of): (u32, u32)) -> bool {
    let clock = Clock::start();
    let until = figure::date(clock.anchor().realtime_ns + idle.0);
    let title = if of == 1 { String::new() } else { format!(" ({repetition} of {of})") };
    measure.screen.say(&format!("idling until {until}{title}: nothing is sent"));
    loop {
        let passed = Span(clock.now().0);
        let left = idle - passed;
        if measure.stopped() {
            return false;
        }
        if left.0 <= 0 {
            measure.screen.clear();
            return true;
        }
        let line = format!("idling{title}, {} left", figure::duration_ns(left.0 as f64));
        measure.screen.show(passed.as_secs_f64(), std::slice::from_ref(&line), &line);
        thread::sleep(Duration::from_nanos(left.0.min(200_000_000).unsigned_abs()));
    }
}
