//! `plimsoll diagnose` diagnoses an endpoint by experiments, or a run folder from its measurements.

pub mod url;

use crate::rows;
use std::path::{Path, PathBuf};

use plimsoll_diagnose::device::{self, DeviceFinding};
use plimsoll_diagnose::{Case, DiagnoseSpec, Diagnosis, DiagnosisOutcome, Layer, RunData, diagnose};
use plimsoll_measure::findings::BudgetSpec;
use plimsoll_measure::server_side::ServerSide;
use plimsoll_model::{At, Level, Manifest};
use plimsoll_plan::roofline::{self, LevelRoofline};
use plimsoll_report::diagnose as page;
use plimsoll_watchd::record::KIND;

use super::watch::kept::PageWindow;
use super::{compare, engine, profile};
use crate::again::RecordedScenario;
use crate::answer::{self, AnswerHead, AnswerVerdict};
use crate::exit::{Exit, Stop};
use crate::flags::{DiagnoseArgs, OutputFormat};
use crate::{baseline, budget_file, out};

/// Runs a diagnosis and prints it.
pub fn run(args: &DiagnoseArgs) -> Result<Exit, Stop> {
    let name = &args.target.url;
    out::place_for(args.html.as_deref())?;
    if name.contains("://") {
        return match of_levels(args) {
            Some(flag) => Err(Stop::usage(format!(
                "{flag}: judges a run folder, and {name} is an endpoint; measure it first (plimsoll run {name} -o RUN)"
            ))),
            None => url::run(args),
        };
    }
    let dir = crate::named::run(name).map_err(Stop::usage)?;
    let (dir, name) = (dir.as_path(), &dir.display().to_string());
    if let Some(window) = PageWindow::read(dir)? {
        return of_window(args, name, &window);
    }
    let rows = held(dir)?;
    if of_levels(args).is_none()
        && let Some(exit) = url::of_run(dir, &rows, args)?
    {
        return Ok(exit);
    }
    let before = baseline_folder(args)?.map(|base| before(&base, dir)).transpose()?;
    let budget = budget(args)?;
    let device = device(args, &rows.manifest)?;
    let spec = DiagnoseSpec { level: level(args, &rows)?, ..DiagnoseSpec::default() };
    let whole = RunData::of(&rows.manifest, &rows.attempts, &rows.samples);
    let (candidate, own) = match of_alert(args, &rows.manifest) {
        Some((before, since)) => {
            (RunData { levels: since, ..whole }, Some(RunData { levels: before, ..whole }))
        }
        None => (whole, None),
    };
    let baseline = before.as_ref().map(|run| RunData::of(&run.manifest, &run.attempts, &run.samples)).or(own);
    let (budget, device) = (budget.as_ref(), device.as_ref());
    let validity = Some(&rows.findings.validity);
    let mut diagnosis = diagnose(&Case { candidate, baseline, budget, device, validity, spec: &spec });
    let level = diagnosis.subject.level;
    diagnosis.subject.excerpt = rows.excerpts.iter().find(|part| Some(part.level) == level).copied();
    diagnosis.subject.roofline = match level.and_then(|level| levels_roofline(args, &rows, level).transpose())
    {
        Some(found) => lines(&found?, &diagnosis),
        None => Vec::new(),
    };
    for part in before.iter().flat_map(|run| &run.excerpts) {
        out::note(&format!("--baseline: {}", part.words()));
    }
    print(args, name, &diagnosis)
}

/// Returns the shares of the GPU's peaks at a level; `None` without a known model and GPU.
///
/// # Errors
/// Fails if `--profile` names an engine without model and GPU.
fn levels_roofline(
    args: &DiagnoseArgs,
    rows: &rows::WholeRun,
    level: u32,
) -> Result<Option<LevelRoofline>, Stop> {
    let server = ServerSide::read(&rows.samples);
    let (engine, replicas) = match &args.passive.profile {
        Some(name) => (engine::find(name)?, server.replicas().len().max(1) as u32),
        None => match RecordedScenario::of(&rows.manifest).ok().and_then(|recorded| recorded.world) {
            Some(world) => (world.engine, world.fleet.replicas),
            None => return Ok(None),
        },
    };
    if let Some(name) = args.passive.profile.as_ref().filter(|_| roofline::spec_of(&engine).is_none()) {
        let why = "has no model and GPU; name a pair such as llama-3.1-8b@h100 (plimsoll engine --list)";
        return Err(Stop::usage(format!("--profile {name}: {why}")));
    }
    let summary = rows.findings.levels.iter().find(|found| found.summary.level == level);
    Ok(summary.and_then(|found| roofline::of_level(&engine, replicas, &found.summary, &server)))
}

/// Returns the bounds as sentences, with advice if the model is the slow layer.
fn lines(found: &LevelRoofline, diagnosis: &Diagnosis) -> Vec<String> {
    let is_model = diagnosis.verdicts.first().is_some_and(|verdict| verdict.layer == Layer::Model);
    let advice = if is_model { found.advice() } else { Vec::new() };
    found.words().into_iter().chain(advice).collect()
}

/// Returns the levels of an alert window of requests: the baseline before the incident, and the incident.
/// Returns `None` if flags name a baseline or a level.
fn of_alert<'a>(args: &DiagnoseArgs, manifest: &'a Manifest) -> Option<(&'a [Level], &'a [Level])> {
    let is_alone = args.passive.baseline.is_none() && args.passive.level.is_none();
    let levels = manifest.levels.as_slice();
    (is_alone && manifest.kind == KIND && levels.len() == 2).then(|| levels.split_at(1))
}

/// Diagnoses an alert window of metrics endpoints. The window contains its baseline.
fn of_window(args: &DiagnoseArgs, name: &str, window: &PageWindow) -> Result<Exit, Stop> {
    let given = args.passive.budget.is_some().then_some("--budget").or(of_levels(args));
    if let Some(flag) = given {
        return Err(Stop::usage(format!("{flag}: {name} contains scraped metrics only; drop this flag")));
    }
    let before = baseline_folder(args)?.map(|dir| {
        PageWindow::read(&dir)?.ok_or_else(|| {
            let dir = dir.display();
            Stop::usage(format!(
                "--baseline {dir}: {name} contains scraped metrics; name another metrics recording"
            ))
        })
    });
    print(args, name, &window.diagnosis(before.transpose()?.as_ref()))
}

pub fn head(name: &str, diagnosis: &Diagnosis) -> AnswerHead {
    AnswerHead {
        verdict: (diagnosis.answer == DiagnosisOutcome::Invalid).then_some(AnswerVerdict::Invalid),
        headline: Some(diagnosis.headline.clone()),
        run: Some(name.to_owned()),
        ..AnswerHead::default()
    }
}

fn print(args: &DiagnoseArgs, name: &str, diagnosis: &Diagnosis) -> Result<Exit, Stop> {
    match args.output.format {
        OutputFormat::Text => out::line(&page::render(name, diagnosis, &[])),
        OutputFormat::Json => {
            answer::print(head(name, diagnosis), &answer::with_result(diagnosis, &diagnosis.answer))
        }
    }
    if let Some(path) = &args.html {
        let page = page::page(name, diagnosis, &[]);
        out::file(path, page)?;
    }
    Ok(url::exit(diagnosis))
}

/// Returns the folder of `--baseline`, which names a run folder or a pinned baseline.
///
/// # Errors
/// Fails if the name is neither, or if the pinned run is missing or changed.
pub fn baseline_folder(args: &DiagnoseArgs) -> Result<Option<PathBuf>, Stop> {
    let Some(base) = &args.passive.baseline else { return Ok(None) };
    Ok(Some(baseline::resolve(&base.to_string_lossy())?.dir))
}

/// Reads the baseline run. Fails if it is the diagnosed run itself.
fn before(base: &Path, dir: &Path) -> Result<rows::WholeRun, Stop> {
    if compare::same_folder(base, dir) {
        let (base, dir) = (base.display(), dir.display());
        return Err(Stop::usage(format!("--baseline {base}: {dir} itself; name the run of before")));
    }
    held(base)
}

/// Reads the rows of a run. For an excerpt it adds the requests in flight at the start.
fn held(dir: &Path) -> Result<rows::WholeRun, Stop> {
    let mut run = rows::held(dir)?;
    run.attempts.append(&mut run.in_flight);
    Ok(run)
}

/// Returns the first given flag that applies only to the levels of an ordinary run.
fn of_levels(args: &DiagnoseArgs) -> Option<&'static str> {
    let given = [
        (args.passive.level.is_some(), "--level"),
        (!args.passive.timeline.is_empty(), "--timeline"),
        (args.passive.profile.is_some(), "--profile"),
    ];
    given.iter().find(|(given, _)| *given).map(|(_, flag)| *flag)
}

/// Returns the finding from the profiler timelines of `--timeline`: the part during the run, else the whole.
fn device(args: &DiagnoseArgs, manifest: &Manifest) -> Result<Option<DeviceFinding>, Stop> {
    if args.passive.timeline.is_empty() {
        return Ok(None);
    }
    let whole = profile::timeline_of("--timeline", &args.passive.timeline)?;
    let is_judged = |level: &&Level| args.passive.level.is_none_or(|id| level.id == id);
    let levels = || manifest.levels.iter().filter(is_judged);
    let range = levels().map(|level| level.start).min().zip(levels().map(|level| level.drained).max());
    let at = |at: At| manifest.clock.realtime_ns.saturating_add(at.0);
    let Some((from, to)) = range else { return Ok(Some(device::judge(&whole))) };
    let part = device::within(&whole, (at(from), at(to)));
    if part.is_none() {
        out::note(
            "--timeline: recorded at another time than the run, or without a wall clock; all of it is judged",
        );
    }
    Ok(Some(device::judge(part.as_ref().unwrap_or(&whole))))
}

/// Returns the ceilings of `--budget` that apply to every request.
pub fn budget(args: &DiagnoseArgs) -> Result<Option<BudgetSpec>, Stop> {
    let path = args.passive.budget.as_deref();
    path.map(|path| budget_file::per_request(path, "add one for a diagnosis")).transpose()
}

fn level(args: &DiagnoseArgs, rows: &rows::WholeRun) -> Result<Option<u32>, Stop> {
    let Some(id) = args.passive.level else { return Ok(None) };
    if rows.manifest.levels.iter().any(|level| level.id == id) {
        return Ok(Some(id));
    }
    let ids: Vec<String> = rows.manifest.levels.iter().map(|level| level.id.to_string()).collect();
    Err(Stop::usage(format!("--level {id}: the run's levels are {}", ids.join(", "))))
}
