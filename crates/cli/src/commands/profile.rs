//! `plimsoll profile` shows the time that traced requests spent in each stage.
//!
//! Spans are read, mapped to stages and judged. This module selects the files. With a budget the exit code is
//! that of the gate: a slice is broken, or these traces are inconclusive for a slice.

use std::path::{Path, PathBuf};

use plimsoll_diagnose::device;
use plimsoll_judge::budget::StageBudget;
use plimsoll_measure::findings::Held;
use plimsoll_model::TraceSpan;
use plimsoll_profile::{ModelFloor, Pieces, ProfileFinding, ProfileSpec, Requests, RuleFile, Rules, judge};
use plimsoll_workload::check;
use schemars::schema_for;

use crate::exit::{Exit, Stop};
use crate::flags::{OutputFormat, ProfileArgs};
use crate::trace_file::NoticeState;
use crate::{budget_file, out, resolve, trace_file};

/// Seed of the resampling, so that one set of traces always gives one result.
const SEED: u64 = 1;

/// Reads, judges and prints. A run folder without traces is split by client timestamps.
pub fn run(args: &ProfileArgs) -> Result<Exit, Stop> {
    out::place_for(args.html.as_deref())?;
    if let Some(run) = untraced(args)? {
        return super::wait::run(args, run);
    }
    let rules = rules(args.rules.as_deref())?;
    let (pieces, is_timeline) = pieces(&args.traces, &rules)?;
    if is_timeline && !of_requests(args) {
        drop(pieces);
        return timeline(args);
    }
    let budget = args.budget.as_deref().map(budget).transpose()?;
    let floors = args.floor.iter().map(|path| floor(path)).collect::<Result<Vec<_>, _>>()?;
    let requests = requests(&args.traces, &pieces, args.failed)?;
    drop(pieces);
    let baseline = match args.baseline.is_empty() {
        true => None,
        false => Some(self::requests(&args.baseline, &self::pieces(&args.baseline, &rules)?.0, args.failed)?),
    };
    let spec = ProfileSpec {
        seed: SEED,
        budget: budget.as_ref().map(|(stages, alpha)| (stages, *alpha)),
        baseline: baseline.as_ref(),
        floors: &floors,
    };
    let finding = judge(&requests, &spec);
    let name = named(&args.traces);
    match args.format {
        OutputFormat::Text => out::line(&plimsoll_report::profile::render(&name, &finding)),
        OutputFormat::Json => out::json(&finding),
    }
    if let Some(path) = &args.html {
        write_page(path, &plimsoll_report::profile::page(&name, &finding))?;
    }
    Ok(exit(&finding))
}

/// Returns whether a flag applies only to requests. With such a flag a timeline is read as one request per
/// marked step.
fn of_requests(args: &ProfileArgs) -> bool {
    args.budget.is_some() || args.rules.is_some() || !args.floor.is_empty() || args.failed
}

/// Profiles the timeline of a profiler. It shows device utilisation and not the time of requests. The
/// file is re-read, because the evaluation needs all spans in memory.
fn timeline(args: &ProfileArgs) -> Result<Exit, Stop> {
    if !args.baseline.is_empty() {
        return Err(Stop::usage(format!(
            "--baseline: compares request traces, and {} is a profiler's timeline",
            named(&args.traces)
        )));
    }
    let spans = &spans(&args.traces, NoticeState::Before)?;
    let finding = device::judge(spans);
    let name = named(&args.traces);
    match args.format {
        OutputFormat::Text => out::line(&plimsoll_report::device::render(&name, &finding)),
        OutputFormat::Json => out::json(&finding),
    }
    if let Some(path) = &args.html {
        write_page(path, &plimsoll_report::device::page(&name, &finding))?;
    }
    Ok(Exit::Done)
}

/// Returns the spans of the profiler timeline that a flag names.
///
/// # Errors
/// Fails if a file can't be read or is not a timeline.
pub fn timeline_of(flag: &str, paths: &[PathBuf]) -> Result<Vec<TraceSpan>, Stop> {
    let spans = spans(paths, NoticeState::Never)?;
    if device::is_timeline(&spans) {
        return Ok(spans);
    }
    Err(Stop::usage(format!(
        "{flag} {}: no profiler's timeline (PyTorch's trace.json, or an export of Nsight Systems)",
        named(paths)
    )))
}

/// Writes a page and reports its path.
pub fn write_page(path: &Path, page: &str) -> Result<(), Stop> {
    out::file(path, page)?;
    out::note(&format!("wrote {}", path.display()));
    Ok(())
}

fn named(paths: &[PathBuf]) -> String {
    paths.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(" ")
}

/// Returns the run to split without traces: a run that has no traces, or a run with `--level` or `--infer`.
fn untraced(args: &ProfileArgs) -> Result<Option<&Path>, Stop> {
    let of_run = args.level.is_some() || args.infer;
    let is_run = |path: &&PathBuf| {
        path.join("run.json").is_file() && (of_run || !path.join("spans.parquet").is_file())
    };
    let Some(run) = args.traces.iter().find(is_run) else {
        return match of_run {
            true => Err(Stop::usage("--level and --infer are about a run folder, and these are traces")),
            false => Ok(None),
        };
    };
    let of_traces = [
        (args.traces.len() > 1, "more than one folder"),
        (!args.baseline.is_empty(), "--baseline"),
        (args.rules.is_some(), "--rules"),
        (!args.floor.is_empty(), "--floor"),
        (args.failed, "--failed"),
    ];
    match of_traces.iter().find(|(given, _)| *given) {
        Some((_, what)) => {
            Err(Stop::usage(format!("{}: is profiled without traces; {what} needs traces", run.display())))
        }
        None => Ok(Some(run)),
    }
}

/// Returns the exit code of the slices' verdict.
fn exit(finding: &ProfileFinding) -> Exit {
    let any = |held: Held| finding.slices.iter().any(|slice| slice.verdict == held);
    if any(Held::Fail) {
        Exit::Broken
    } else if any(Held::Inconclusive) {
        Exit::Inconclusive
    } else {
        Exit::Done
    }
}

/// Returns the spans of all files.
fn spans(paths: &[PathBuf], told: NoticeState) -> Result<Vec<TraceSpan>, Stop> {
    let mut spans = Vec::new();
    for path in paths {
        trace_file::each(path, told, &mut |span| spans.push(span))?;
    }
    Ok(spans)
}

/// Returns the profile data of all files, and whether they are a profiler's timeline.
fn pieces<'r>(paths: &[PathBuf], rules: &'r Rules) -> Result<(Pieces<'r>, bool), Stop> {
    let (mut pieces, mut is_timeline) = (Pieces::new(rules), false);
    for path in paths {
        trace_file::each(path, NoticeState::Never, &mut |span| {
            is_timeline |= device::is_timeline(std::slice::from_ref(&span));
            pieces.add(&span);
        })?;
    }
    Ok((pieces, is_timeline))
}

fn requests(paths: &[PathBuf], pieces: &Pieces<'_>, failed: bool) -> Result<Requests, Stop> {
    let requests = pieces.requests(failed);
    if requests.list.is_empty() {
        let count = &requests.count;
        let why = [
            (count.failed, "ended in errors (--failed profiles them)"),
            (count.skewed, "have clocks that can't be reconciled"),
            (count.rootless, "lost the span that was the request"),
            (count.empty, "took no time"),
        ];
        let why: Vec<String> =
            why.iter().filter(|(n, _)| *n > 0).map(|(n, what)| format!("{n} {what}")).collect();
        return Err(Stop::invalid(format!(
            "{}: no request can be profiled: {}",
            named(paths),
            why.join(", ")
        )));
    }
    Ok(requests)
}

fn rules(path: Option<&Path>) -> Result<Rules, Stop> {
    let Some(path) = path else { return Ok(Rules::shipped()) };
    let name = path.display();
    let value = resolve::mapping(path, "stages")?;
    check::against(&value, || schema_for!(RuleFile).to_value())
        .map_err(|e| Stop::usage(format!("{name}: {e}")))?;
    let file: RuleFile = serde_json::from_value(value).map_err(|e| Stop::usage(format!("{name}: {e}")))?;
    Rules::new(Some(&file)).map_err(|e| Stop::usage(format!("{name}: {e}")))
}

/// Returns the stages of a budget file, and the error probability α of its verdicts.
pub fn budget(path: &Path) -> Result<(StageBudget, f64), Stop> {
    let file = budget_file::read(path)?.file;
    let alpha = file.policy.alpha;
    let stages = file.stages.ok_or_else(|| {
        Stop::usage(format!(
            "{}: has no stages; give each its slice: stages: {{total: 3s, slices: {{queue: 100ms, prefill: 400ms}}}}",
            path.display()
        ))
    })?;
    Ok((stages, alpha))
}

fn floor(path: &Path) -> Result<ModelFloor, Stop> {
    let name = path.display();
    let text = std::fs::read_to_string(path).map_err(|e| crate::out::unread(&name, &e))?;
    let value = serde_json::from_str(&text).map_err(|e| Stop::usage(format!("{name}: {e}")))?;
    ModelFloor::read(&value).map_err(|why| Stop::usage(format!("{name}: {why}")))
}
