//! `plimsoll diagnose URL`: the stepper in `analysis` asks for experiments, this runs them on a live endpoint.
//!
//! What it may do at most is said before the first request. Each experiment is explained in a line before it begins and shown
//! in a line when it has ended; everything is kept in a run folder, so that what was sent is never lost to a Ctrl-C, and the
//! folder is judged by the same code that judged the endpoint.

use std::path::Path;
use std::time::Duration;

use plimsoll_analysis::diagnose::active::fact::State;
use plimsoll_analysis::diagnose::active::plan::{ActiveSpec, Ask, Traffic};
use plimsoll_analysis::diagnose::active::tell::{self, Tried};
use plimsoll_analysis::diagnose::active::{Active, Next, blocks};
use plimsoll_analysis::diagnose::{Answer, Diagnosis};
use plimsoll_model::{Load, Span};
use plimsoll_report::{active as page, figure};
use plimsoll_workload::{ArrivalSpec, LoadSpec, Scenario, parse_span};
use serde::{Deserialize, Serialize};

use super::run::mean_lengths;
use super::show::Rows;
use crate::exit::{Exit, Stop};
use crate::flags::{DiagnoseArgs, DiagnoseUrlArgs, Format};
use crate::measure::{Begin, Closed, LevelRows, Measure, Measured, Step, Variation, max_rate, random};
use crate::out;
use crate::resolve::Draft;

/// What a diagnosis was allowed and what it found, beside its run.
const FILE: &str = "diagnosis.json";

/// How often a pause looks whether the person wants to stop.
const LOOK: Duration = Duration::from_millis(100);

/// The content of [`FILE`], and of `--format json`.
#[derive(Serialize, Deserialize)]
pub struct Told {
    /// What it was allowed.
    pub allowed: ActiveSpec,
    /// What was tried and what it showed.
    pub tried: Vec<Tried>,
    /// The verdict.
    pub diagnosis: Diagnosis,
}

/// Experiments on the endpoint, and prints.
pub fn run(args: &DiagnoseArgs) -> Result<Exit, Stop> {
    let mut draft = Draft::new(args.workload.spec.as_deref())?;
    draft.target(&args.target)?;
    draft.workload(&args.workload)?;
    draft.client(&args.client)?;
    let scenario = own_load_only(draft.finish(random())?)?;
    let spec = spec(&args.active)?;
    let traffic = Traffic::of(&scenario, mean_lengths(&scenario));
    let announced = format!("{}: {}", scenario.target.url, tell::announced(&spec, &traffic));
    if args.active.dry_run {
        out::line(&announced);
        return Ok(Exit::Done);
    }
    crate::screen::Screen::new(args.output.quiet).say(&announced);
    let ceilings = args.active.ceilings();
    let mut measure = Measure::begin(Begin {
        kind: "diagnose",
        scenario,
        sweep: None,
        client: &args.client,
        ceilings: &ceilings,
        output: &args.output,
        reproduce: None,
        more: flags(&args.active),
        world: None,
        repeats: None,
    })?;
    for url in &args.active.replicas {
        measure.replica(url, &args.client)?;
    }
    let mut active = Active::new(spec.clone(), traffic);
    experiment(&mut measure, &mut active)?;
    finish(measure, &active, &spec, args)
}

/// What was allowed, as flags say it.
fn spec(args: &DiagnoseUrlArgs) -> Result<ActiveSpec, Stop> {
    let span = |flag: &str, text: &str| parse_span(text).map_err(|e| Stop::usage(format!("--{flag}: {e}")));
    let default = ActiveSpec::default();
    let time = args.time.as_deref().map(|text| span("time", text)).transpose()?.unwrap_or(default.time);
    let ttft = args.ttft.as_deref().map(|text| span("ttft", text)).transpose()?;
    let spec = ActiveSpec {
        time,
        max_concurrency: args.max_concurrency.unwrap_or(default.max_concurrency),
        max_rate: max_rate(&args.ceilings())?,
        max_requests: args.max_requests.unwrap_or(default.max_requests),
        max_errors: args.max_errors.unwrap_or(default.max_errors),
        ttft_s: ttft.map(Span::as_secs_f64),
        replicas: args.replicas.len() as u32,
    };
    if spec.time < Span::from_secs(5) {
        return Err(Stop::usage("--time: at least 5s, or nothing can be compared"));
    }
    if spec.max_concurrency == 0 || spec.max_requests == 0 {
        return Err(Stop::usage("--max-concurrency, --max-requests: at least 1"));
    }
    if args.replicas.len() == 1 {
        return Err(Stop::usage("--replica: name at least two, or there is nothing to compare"));
    }
    Ok(spec)
}

/// The same flags, for the command that repeats it.
fn flags(args: &DiagnoseUrlArgs) -> Vec<(&'static str, String)> {
    let mut flags = vec![("time", args.time.clone().unwrap_or_else(|| "5m".into()))];
    flags.extend(args.max_rate.iter().map(|rate| ("max-rate", rate.clone())));
    flags.extend(args.max_concurrency.map(|n| ("max-concurrency", n.to_string())));
    flags.extend(args.max_requests.map(|n| ("max-requests", n.to_string())));
    flags.extend(args.max_errors.map(|n| ("max-errors", n.to_string())));
    flags.extend(args.ttft.iter().map(|ttft| ("ttft", ttft.clone())));
    flags.extend(args.replicas.iter().map(|url| ("replica", url.clone())));
    flags
}

/// Experiments make their own load: what a scenario says of it would be dropped in silence.
fn own_load_only(scenario: Scenario) -> Result<Scenario, Stop> {
    if scenario.arrivals != ArrivalSpec::default() || scenario.load != LoadSpec::default() {
        return Err(Stop::usage(
            "diagnose URL chooses its own loads: take load and arrivals out of the scenario, or diagnose a run of it",
        ));
    }
    Ok(scenario)
}

/// Runs what the stepper asks for until it asks no more or the person stops it.
fn experiment(measure: &mut Measure, active: &mut Active) -> Result<(), Stop> {
    loop {
        if measure.stopped() {
            active.stop("stopped by the user");
        }
        let ask = match active.next() {
            Next::Begin { why, .. } => {
                measure.screen.say(&why);
                continue;
            }
            Next::Run(ask) => ask,
            Next::Done { why } => {
                measure.screen.say(&format!("done: {why}"));
                return Ok(());
            }
        };
        pause(measure, ask.pause);
        if measure.stopped() {
            continue;
        }
        let measured = level(measure, &ask)?;
        if let LevelRows::Records(attempts) = &measured.rows {
            let before: Vec<_> = active.shown().iter().map(|shown| (shown.fact, shown.state)).collect();
            // What the scraper read meanwhile is kept apart from what the driver counted.
            let mut samples = measure.seen().into_owned();
            samples.extend(measured.samples.iter().cloned());
            active.observe(&measured.level, attempts, &samples);
            let news = active.shown().iter().filter(|shown| !before.contains(&(shown.fact, shown.state)));
            for shown in news.filter(|shown| shown.state == State::Yes) {
                measure.screen.say(&format!("  ! {}", shown.says));
            }
        }
        measure.keep(measured);
    }
}

fn level(measure: &mut Measure, ask: &Ask) -> Result<Measured, Stop> {
    let varied = Variation {
        scenario: Some(ask.change.apply(measure.scenario())),
        pace_per_s: Some(ask.pace_per_s),
        replica: ask.change.replica.map(|n| n as usize),
    };
    let (requests, max_requests) = match ask.load {
        Load::Open { .. } => (None, ask.requests),
        _ => (ask.requests, None),
    };
    let step = Step {
        traffic: ask.traffic(),
        arrivals: None,
        purpose: ask.purpose(),
        load: ask.load,
        window: ask.window,
        max_requests,
        requests,
    };
    let load = match ask.load {
        Load::Open { rate_per_s } => figure::per_second(rate_per_s),
        Load::Wave { requests } => format!("a wave of {requests}"),
        Load::Closed { concurrency } | Load::Saturating { concurrency } => format!("{concurrency} in flight"),
    };
    measure.varied_level(&step, &format!("{}, {load}", ask.purpose()), &varied)
}

/// Sends nothing for a while, unless the person wants to stop.
fn pause(measure: &Measure, time: Span) {
    let mut left = time.as_duration();
    while left > Duration::ZERO && !measure.stopped() {
        let slice = left.min(LOOK);
        std::thread::sleep(slice);
        left -= slice;
    }
}

fn finish(measure: Measure, active: &Active, spec: &ActiveSpec, args: &DiagnoseArgs) -> Result<Exit, Stop> {
    let stopped = measure.stopped();
    let findings = measure.analyse();
    let closed = measure.finish(&findings);
    let told = Told {
        allowed: spec.clone(),
        tried: tell::tried(active.blocks(), spec),
        diagnosis: tell::diagnosis(active.blocks(), spec, &findings.validity),
    };
    let path = closed.dir.join(FILE);
    let text = serde_json::to_vec_pretty(&told).unwrap_or_default();
    if let Err(e) = std::fs::write(&path, text) {
        out::note(&format!("plimsoll: {}: {e}", path.display()));
    }
    print(&told, args.output.format);
    html(args, &closed.manifest.target.url, &told)?;
    if args.output.format == Format::Text {
        out::line(&format!("\nRun     {}", closed.dir.display()));
        out::line(&format!("Repeat  {}", closed.manifest.reproduce));
    }
    Ok(ended(&closed, &findings, stopped, &told.diagnosis))
}

fn ended(
    closed: &Closed,
    findings: &plimsoll_analysis::Findings,
    stopped: bool,
    diagnosis: &Diagnosis,
) -> Exit {
    match closed.exit(findings, stopped) {
        Exit::Done => exit(diagnosis),
        other => other,
    }
}

/// The exit code of a verdict.
pub fn exit(diagnosis: &Diagnosis) -> Exit {
    match diagnosis.answer {
        Answer::NothingMaterial => Exit::Done,
        Answer::Found => Exit::Broken,
        Answer::Unknown => Exit::Inconclusive,
        Answer::Invalid => Exit::Invalid,
    }
}

fn print(told: &Told, format: Format) {
    match format {
        Format::Text => out::line(&page::render(&told.tried, &told.diagnosis)),
        Format::Json => out::json(told),
    }
}

/// Judges the folder of an active diagnosis once more; `None` where the run is of another kind.
pub fn of_run(dir: &Path, rows: &Rows, args: &DiagnoseArgs) -> Result<Option<Exit>, Stop> {
    let Some(told) = told_of(dir, rows) else { return Ok(None) };
    print(&told, args.output.format);
    html(args, &dir.display().to_string(), &told)?;
    Ok(Some(exit(&told.diagnosis)))
}

/// Writes the page of --html.
fn html(args: &DiagnoseArgs, name: &str, told: &Told) -> Result<(), Stop> {
    let Some(path) = &args.html else { return Ok(()) };
    let page = plimsoll_report::html::diagnose::render(name, &told.diagnosis, &told.tried);
    std::fs::write(path, page).map_err(|e| Stop::usage(format!("{}: {e}", path.display())))
}

/// What the folder of an active diagnosis tells; `None` where the run is of another kind.
pub fn told_of(dir: &Path, rows: &Rows) -> Option<Told> {
    if rows.manifest.kind != "diagnose" {
        return None;
    }
    // A diagnosis that was killed left no file: it is judged by the ceilings that nobody has to ask for.
    let kept = std::fs::read(dir.join(FILE)).ok();
    let kept: Option<Told> = kept.and_then(|bytes| serde_json::from_slice(&bytes).ok());
    let spec = kept.map(|told| told.allowed).unwrap_or_default();
    let blocks = blocks(&rows.manifest.levels, &rows.attempts, &rows.samples);
    let diagnosis = tell::diagnosis(&blocks, &spec, &rows.findings.validity);
    Some(Told { tried: tell::tried(&blocks, &spec), allowed: spec, diagnosis })
}
