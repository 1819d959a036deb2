//! `plimsoll diagnose URL` runs the experiments of the stepper in `diagnose` on a live endpoint.
//!
//! The command prints its limits before the first request. It explains each experiment in a line before the
//! start, and prints a line at its end. All requests are in a run folder, so that Ctrl-C loses nothing. The
//! code that judges the endpoint also judges the folder.

use crate::rows;
use std::path::Path;
use std::time::Duration;

use plimsoll_client::StopLimits;
use plimsoll_diagnose::active::before::{EarlierComparison, EarlierRun};
use plimsoll_diagnose::active::plan::{ActiveSpec, LevelAsk, TrafficTraits};
use plimsoll_diagnose::active::tell::{self, ExperimentReport};
use plimsoll_diagnose::active::{Active, ActiveNext, blocks};
use plimsoll_diagnose::fact::FactState;
use plimsoll_diagnose::{Diagnosis, DiagnosisOutcome, RunData};
use plimsoll_measure::findings::Ceiling;
use plimsoll_model::{Fingerprint, Load, Span};
use plimsoll_report::{diagnose as page, figure};
use plimsoll_workload::{ArrivalSpec, LoadSpec, Scenario, parse_span};
use serde::{Deserialize, Serialize};

use crate::answer;
use crate::commands::diagnose;
use crate::commands::run::mean_lengths;
use crate::exit::{Exit, Stop};
use crate::flags::{DiagnoseArgs, DiagnoseUrlArgs, OutputFormat};
use crate::measure::{
    FinishedMeasurement, LevelRecords, LevelStep, MeasuredLevel, MeasurementSession, MeasurementStart,
    Variation, max_rate, random,
};
use crate::out;
use crate::resolve::Draft;
use crate::rows::WholeRun;

/// Limits and result of a diagnosis, in its run folder.
const FILE: &str = "diagnosis.json";

/// The run kind of a diagnosis.
const KIND: &str = "diagnose";

/// Default scrape interval, so that an experiment of two seconds has four scrapes.
const LOOK_EVERY: &str = "500ms";

/// Polling interval of the stop key during a pause.
const POLL: Duration = Duration::from_millis(100);

/// The content of [`FILE`], and of `--format json`.
#[derive(Serialize, Deserialize)]
pub struct DiagnosisFile {
    pub allowed: ActiveSpec,
    pub tried: Vec<ExperimentReport>,
    /// The baseline run, reduced to the data that the diagnosis needs; `None` without a baseline.
    #[serde(default)]
    pub before: Option<EarlierRun>,
    pub diagnosis: Diagnosis,
}

/// Runs experiments on the endpoint and prints the diagnosis.
pub fn run(args: &DiagnoseArgs) -> Result<Exit, Stop> {
    let (before, mut draft) = started(args)?;
    if args.workload.spec.is_none() {
        draft.set("scrape.every", LOOK_EVERY.into());
    }
    draft.target(&args.target)?;
    draft.workload(&args.workload)?;
    draft.client(&args.client)?;
    let scenario = own_load_only(draft.finish(random())?)?;
    let spec = ActiveSpec { ceilings: ceilings(args)?, ..spec(&args.active)? };
    let traffic = TrafficTraits::of(&scenario, mean_lengths(&scenario));
    let compared = before.as_ref().map_or_else(String::new, |before| {
        format!(
            "; compared with {} ({} isolated)",
            before.run,
            figure::counted(before.alone.len() as u64, "request")
        )
    });
    let announced =
        format!("{}: {}{compared}{}", scenario.target.url, tell::announced(&spec, &traffic), held_to(&spec));
    if args.active.dry_run {
        out::line(&announced);
        return Ok(Exit::Done);
    }
    crate::screen::Screen::new(args.output.quiet).say(&announced);
    let limits = StopLimits { max_rate_per_s: spec.max_rate, ..StopLimits::default() };
    let mut measure = MeasurementSession::begin(MeasurementStart {
        more: flags(args),
        ..MeasurementStart::new(KIND, scenario, &args.client, limits, &args.output)
    })?;
    for url in &args.active.replicas {
        measure.replica(url, &args.client)?;
    }
    let mut active = Active::new(spec.clone(), traffic).against(before.clone());
    experiment(&mut measure, &mut active)?;
    finish(measure, &active, (&spec, before), args)
}

/// Returns the baseline run and the initial scenario. The scenario is the named one, or that of the baseline
/// run. Flags change either.
fn started(args: &DiagnoseArgs) -> Result<(Option<EarlierRun>, Draft), Stop> {
    let Some(dir) = diagnose::baseline_folder(args)? else {
        return Ok((None, Draft::new(args.workload.spec.as_deref())?));
    };
    let rows = rows::whole(&dir)?;
    let before = earlier(&dir, &rows);
    if before.alone.is_empty() && before.concurrency.is_empty() {
        return Err(Stop::usage(format!(
            "--baseline {}: has no isolated or closed-loop request to compare with; name a run of plimsoll diagnose URL, a sweep, or plimsoll run --concurrency 1",
            dir.display()
        )));
    }
    let mut draft = Draft::new(args.workload.spec.as_deref())?;
    if args.workload.spec.is_none() {
        let parts = ["sizes", "prompts", "classes"];
        let asked = parts.iter().filter_map(|part| Some((part, rows.manifest.scenario.get(part)?)));
        asked.for_each(|(part, value)| draft.set(part, value.clone()));
    }
    Ok((Some(before), draft))
}

fn earlier(dir: &Path, rows: &WholeRun) -> EarlierRun {
    EarlierRun::of(&dir.display().to_string(), &RunData::of(&rows.manifest, &rows.attempts, &rows.samples))
}

/// Returns the ceilings of the diagnosis as text for the start line.
fn held_to(spec: &ActiveSpec) -> String {
    let one = |ceiling: &Ceiling| {
        let (metric, limit) = (ceiling.metric.name(), figure::duration_ns(1e9 * ceiling.limit_s));
        format!("{metric} p{} {limit}", figure::number(100.0 * ceiling.percentile))
    };
    match spec.ceilings.is_empty() {
        true => String::new(),
        false => format!("; limits: {}", spec.ceilings.iter().map(one).collect::<Vec<_>>().join(", ")),
    }
}

/// Returns the latency ceilings of the budget file.
fn ceilings(args: &DiagnoseArgs) -> Result<Vec<Ceiling>, Stop> {
    Ok(diagnose::budget(args)?.map_or_else(Vec::new, |budget| budget.latency))
}

/// Returns the limits of the experiments from the flags.
fn spec(args: &DiagnoseUrlArgs) -> Result<ActiveSpec, Stop> {
    let span = |flag: &str, text: &str| parse_span(text).map_err(|e| Stop::usage(format!("--{flag}: {e}")));
    let default = ActiveSpec::default();
    let time = args.time.as_deref().map(|text| span("time", text)).transpose()?.unwrap_or(default.time);
    let ttft = args.ttft.as_deref().map(|text| span("ttft", text)).transpose()?;
    let spec = ActiveSpec {
        time,
        max_concurrency: args.max_concurrency.unwrap_or(default.max_concurrency),
        max_rate: max_rate(args.max_rate.as_deref())?,
        max_requests: args.max_requests.unwrap_or(default.max_requests),
        max_errors: args.max_errors.unwrap_or(default.max_errors),
        ttft_s: ttft.map(Span::as_secs_f64),
        replicas: args.replicas.len() as u32,
        ceilings: Vec::new(),
    };
    if spec.time < Span::from_secs(5) {
        return Err(Stop::usage("--time: too short; needs at least 5s"));
    }
    if spec.max_concurrency == 0 || spec.max_requests == 0 {
        return Err(Stop::usage("--max-concurrency, --max-requests: at least 1"));
    }
    if args.replicas.len() == 1 {
        return Err(Stop::usage("--replica: name at least two, or there is nothing to compare"));
    }
    Ok(spec)
}

/// Returns these flags for the command that repeats the diagnosis.
fn flags(args: &DiagnoseArgs) -> Vec<(&'static str, String)> {
    let baseline = args.passive.baseline.as_ref().map(|dir| ("baseline", dir.display().to_string()));
    let budget = args.passive.budget.as_ref().map(|file| ("budget", file.display().to_string()));
    let args = &args.active;
    let mut flags: Vec<_> = baseline.into_iter().chain(budget).collect();
    flags.push(("time", args.time.clone().unwrap_or_else(|| "5m".into())));
    flags.extend(args.max_rate.iter().map(|rate| ("max-rate", rate.clone())));
    flags.extend(args.max_concurrency.map(|n| ("max-concurrency", n.to_string())));
    flags.extend(args.max_requests.map(|n| ("max-requests", n.to_string())));
    flags.extend(args.max_errors.map(|n| ("max-errors", n.to_string())));
    flags.extend(args.ttft.iter().map(|ttft| ("ttft", ttft.clone())));
    flags.extend(args.replicas.iter().map(|url| ("replica", url.clone())));
    flags
}

/// Rejects a scenario with a load, because experiments choose the load and would ignore it silently.
fn own_load_only(scenario: Scenario) -> Result<Scenario, Stop> {
    if scenario.arrivals != ArrivalSpec::default() || scenario.load != LoadSpec::default() {
        return Err(Stop::usage(
            "diagnose URL chooses its own loads: take load and arrivals out of the scenario, or diagnose a run of it",
        ));
    }
    Ok(scenario)
}

/// Runs experiments until the stepper ends or the user stops it.
fn experiment(measure: &mut MeasurementSession, active: &mut Active) -> Result<(), Stop> {
    loop {
        if measure.stopped() {
            active.stop("stopped by the user");
        }
        let ask = match active.next() {
            ActiveNext::Begin { why, .. } => {
                measure.screen.say(&why);
                continue;
            }
            ActiveNext::Run(ask) => ask,
            ActiveNext::Done { why } => {
                measure.screen.say(&format!("done: {why}"));
                return Ok(());
            }
        };
        pause(measure, ask.pause);
        if measure.stopped() {
            continue;
        }
        let measured = level(measure, &ask)?;
        if let LevelRecords::Records(attempts) = &measured.rows {
            let before: Vec<_> = active.shown().iter().map(|shown| (shown.fact, shown.is)).collect();
            // The scraper's samples are stored apart from the driver's counts.
            let mut samples = measure.seen().into_owned();
            samples.extend(measured.samples.iter().cloned());
            active.observe(&measured.level, attempts, &samples);
            let news = active.shown().iter().filter(|shown| !before.contains(&(shown.fact, shown.is)));
            for shown in news.filter(|shown| shown.is == FactState::Yes) {
                measure.screen.say(&format!("  ! {}", shown.says));
            }
        }
        measure.keep(measured);
    }
}

fn level(measure: &mut MeasurementSession, ask: &LevelAsk) -> Result<MeasuredLevel, Stop> {
    let varied = Variation {
        scenario: Some(ask.change.apply(measure.scenario())),
        replica: ask.change.replica.map(|n| n as usize),
    };
    let (requests, max_requests) = match ask.load {
        Load::Open { .. } => (None, ask.requests),
        _ => (ask.requests, None),
    };
    let step = LevelStep {
        traffic: ask.traffic(),
        max_requests,
        requests,
        max_rate_per_s: Some(ask.pace_per_s),
        ..LevelStep::new(&ask.purpose(), ask.load, ask.window)
    };
    let load = match ask.load {
        Load::Open { rate_per_s } => figure::per_second(rate_per_s),
        Load::Wave { requests } => format!("a wave of {requests}"),
        Load::Closed { concurrency } | Load::Saturating { concurrency } => format!("{concurrency} in flight"),
    };
    measure.varied_level(&step, &format!("{}, {load}", ask.purpose()), &varied)
}

/// Pauses the load, unless the user stops the diagnosis.
fn pause(measure: &MeasurementSession, time: Span) {
    let mut left = time.as_duration();
    while left > Duration::ZERO && !measure.stopped() {
        let slice = left.min(POLL);
        std::thread::sleep(slice);
        left -= slice;
    }
}

fn finish(
    measure: MeasurementSession,
    active: &Active,
    (spec, before): (&ActiveSpec, Option<EarlierRun>),
    args: &DiagnoseArgs,
) -> Result<Exit, Stop> {
    let stopped = measure.interrupted();
    let findings = measure.analyse();
    let closed = measure.finish(&findings);
    let told = DiagnosisFile {
        allowed: spec.clone(),
        tried: tell::tried(active.blocks(), spec, before.as_ref()),
        diagnosis: tell::diagnosis(
            active.blocks(),
            spec,
            against(before.as_ref(), &closed.manifest.target),
            &findings.validity,
        ),
        before,
    };
    let path = closed.dir.join(FILE);
    let text = serde_json::to_vec_pretty(&told).unwrap_or_default();
    if let Err(e) = std::fs::write(&path, text) {
        out::note(&format!("plimsoll: {}: {e}", path.display()));
    }
    print(args, &closed.manifest.target.url, &told)?;
    if args.output.format == OutputFormat::Text {
        out::line(&format!("\nRun     {}", closed.dir.display()));
        out::line(&format!("Repeat  {}", closed.manifest.reproduce));
    }
    Ok(ended(&closed, &findings, stopped, &told.diagnosis))
}

fn against<'a>(before: Option<&'a EarlierRun>, target: &'a Fingerprint) -> Option<EarlierComparison<'a>> {
    before.map(|before| EarlierComparison { before, target })
}

fn ended(
    closed: &FinishedMeasurement,
    findings: &plimsoll_measure::Findings,
    stopped: bool,
    diagnosis: &Diagnosis,
) -> Exit {
    match closed.exit(findings, stopped) {
        Exit::Done => exit(diagnosis),
        other => other,
    }
}

/// Returns the exit code of a verdict.
pub fn exit(diagnosis: &Diagnosis) -> Exit {
    match diagnosis.answer {
        DiagnosisOutcome::NothingMaterial => Exit::Done,
        DiagnosisOutcome::Found => Exit::Broken,
        DiagnosisOutcome::Unknown => Exit::Inconclusive,
        DiagnosisOutcome::Invalid => Exit::Invalid,
    }
}

/// Prints the diagnosis, and writes the page of `--html`.
fn print(args: &DiagnoseArgs, name: &str, told: &DiagnosisFile) -> Result<(), Stop> {
    match args.output.format {
        OutputFormat::Text => out::line(&page::render(name, &told.diagnosis, &told.tried)),
        OutputFormat::Json => {
            let data = answer::with_result(told, &told.diagnosis.answer);
            answer::print(diagnose::head(name, &told.diagnosis), &data);
        }
    }
    let Some(path) = &args.html else { return Ok(()) };
    out::file(path, page::page(name, &told.diagnosis, &told.tried))
}

/// Judges the folder of an active diagnosis again. Named baselines and budgets replace the values of the
/// diagnosis. Returns `None` if the run is of another kind.
pub fn of_run(dir: &Path, rows: &WholeRun, args: &DiagnoseArgs) -> Result<Option<Exit>, Stop> {
    let before = match diagnose::baseline_folder(args)? {
        Some(other) if rows.manifest.kind == KIND => Some(earlier(&other, &rows::whole(&other)?)),
        _ => None,
    };
    let Some(told) = judged(dir, rows, before, ceilings(args)?) else { return Ok(None) };
    print(args, &dir.display().to_string(), &told)?;
    Ok(Some(exit(&told.diagnosis)))
}

/// Returns whether the folder is that of an active diagnosis.
pub fn is_diagnosis(dir: &Path) -> bool {
    plimsoll_store::read_manifest(dir).is_ok_and(|manifest| manifest.kind == KIND)
}

/// Returns the diagnosis of a folder; `None` if the run is of another kind.
pub fn told_of(dir: &Path, rows: &WholeRun) -> Option<DiagnosisFile> {
    judged(dir, rows, None, Vec::new())
}

fn judged(
    dir: &Path,
    rows: &WholeRun,
    other: Option<EarlierRun>,
    promised: Vec<Ceiling>,
) -> Option<DiagnosisFile> {
    if rows.manifest.kind != KIND {
        return None;
    }
    // A killed diagnosis has no file, so it is judged by the default ceilings.
    let kept = std::fs::read(dir.join(FILE)).ok();
    let kept: Option<DiagnosisFile> = kept.and_then(|bytes| serde_json::from_slice(&bytes).ok());
    let (mut spec, before) = kept.map(|told| (told.allowed, told.before)).unwrap_or_default();
    if !promised.is_empty() {
        spec.ceilings = promised;
    }
    let before = other.or(before);
    let blocks = blocks(&rows.manifest.levels, &rows.attempts, &rows.samples);
    let beside = against(before.as_ref(), &rows.manifest.target);
    let diagnosis = tell::diagnosis(&blocks, &spec, beside, &rows.findings.validity);
    Some(DiagnosisFile {
        tried: tell::tried(&blocks, &spec, before.as_ref()),
        allowed: spec,
        before,
        diagnosis,
    })
}
