//! `plimsoll profile RUN` for a run without traces: splits the time of each request by client timestamps and
//! server-reported timings.
//!
//! The run is read and judged as in `show`. This module selects the levels, the floor of a level at
//! concurrency 1, and the slices of a budget. It uses the exit codes of the gate.

use crate::rows;
use std::path::Path;

use plimsoll_judge::budget::StageBudget;
use plimsoll_measure::findings::{Held, LevelFinding};
use plimsoll_model::{At, Attempt, Level, Load};
use plimsoll_profile::infer::{self, ComputeFloor, ReportedStages, SplitCase, WaitFinding, WaitPart};
use plimsoll_report::{text, wait};
use serde_json::json;

use crate::exit::{Exit, Stop};
use crate::flags::{OutputFormat, ProfileArgs};
use crate::out;

/// Splits the time of requests and prints the result.
pub fn run(args: &ProfileArgs, dir: &Path) -> Result<Exit, Stop> {
    let budget = stages(args)?;
    let budget = budget.as_ref().map(|(stages, alpha)| (stages, *alpha));
    let rows = rows::whole(dir)?;
    let levels = chosen(args, &rows)?;
    let floor = floor(&rows);
    let found: Vec<WaitFinding> = levels
        .iter()
        .map(|level| split(&rows, level, floor, (budget, args.infer)))
        .collect::<Result<_, _>>()?;
    let name = dir.display().to_string();
    match args.format {
        OutputFormat::Text => out::line(&wait::render(&name, &found)),
        OutputFormat::Json => out::json(&json!({ "run": name, "levels": found })),
    }
    if let Some(path) = &args.html {
        super::profile::write_page(path, &wait::page(&name, &found))?;
    }
    Ok(exit(&found))
}

/// Returns the requested level, or the levels that a report details.
fn chosen<'a>(args: &ProfileArgs, rows: &'a rows::WholeRun) -> Result<Vec<&'a LevelFinding>, Stop> {
    let all = &rows.findings.levels;
    let levels = match args.level {
        Some(id) => all.iter().filter(|level| level.summary.level == id).collect(),
        None => match text::detailed(&rows.findings) {
            none if none.is_empty() => rows::best(&rows.findings).into_iter().collect(),
            levels => levels,
        },
    };
    if !levels.is_empty() {
        return Ok(levels);
    }
    let ids: Vec<String> = all.iter().map(|level| level.summary.level.to_string()).collect();
    Err(Stop::usage(match args.level {
        Some(id) => format!("--level {id}: the run's levels are {}", ids.join(", ")),
        None => {
            "no level of this run was measured well enough to take apart; name one with --level".to_string()
        }
    }))
}

fn own(rows: &rows::WholeRun, level: u32) -> Vec<&Attempt> {
    rows.attempts.iter().filter(|a| a.level == level).collect()
}

/// Returns the duration of an isolated request, from a level with concurrency 1.
pub fn floor(rows: &rows::WholeRun) -> Option<ComputeFloor> {
    let alone = |level: &&Level| matches!(level.load, Load::Closed { concurrency: 1 });
    let counts =
        |level: &&Level| level.purpose != "warmup" && level.purpose != plimsoll_measure::purpose::COLD;
    let level = rows.manifest.levels.iter().filter(counts).find(alone)?;
    let attempts = own(rows, level.id);
    let (rows, _) = infer::rows::rows(&attempts);
    ComputeFloor::of(&rows.iter().collect::<Vec<_>>())
}

fn split(
    rows: &rows::WholeRun,
    found: &LevelFinding,
    floor: Option<ComputeFloor>,
    (budget, ignore_reported): (Option<(&StageBudget, f64)>, bool),
) -> Result<WaitFinding, Stop> {
    let id = found.summary.level;
    let level = rows.manifest.levels.iter().find(|level| level.id == id);
    let level = level.ok_or_else(|| Stop::usage("run.json does not list the level of its findings"))?;
    let attempts = own(rows, id);
    let ended = |from: At, to: At| {
        attempts.iter().filter(|a| a.end.is_some_and(|end| end > from && end <= to)).count()
    };
    let told = ReportedStages::read(&rows.samples, (level.start, level.drained), ended);
    let from = found.summary.window.start;
    Ok(infer::infer(&SplitCase {
        level: id,
        attempts: &attempts,
        from,
        told,
        floor,
        ignore_reported,
        budget,
    })
    .finding)
}

/// Returns the stages of a budget and its α. A slice that a client can't measure is rejected, because it
/// would silently be left out.
fn stages(args: &ProfileArgs) -> Result<Option<(StageBudget, f64)>, Stop> {
    let Some(path) = &args.budget else { return Ok(None) };
    let (stages, alpha) = super::profile::budget(path)?;
    match stages.slices.keys().find(|stage| WaitPart::named(stage).is_none()) {
        Some(stage) => Err(Stop::usage(format!(
            "{}: stages.slices.{stage} cannot be seen from outside; a run shows {}",
            path.display(),
            WaitPart::ALL.map(WaitPart::name).join(", ")
        ))),
        None => Ok(Some((stages, alpha))),
    }
}

/// Returns the exit code of the slices' verdict.
fn exit(found: &[WaitFinding]) -> Exit {
    let any = |held: Held| found.iter().flat_map(|level| &level.slices).any(|slice| slice.verdict == held);
    match () {
        () if any(Held::Fail) => Exit::Broken,
        () if any(Held::Inconclusive) => Exit::Inconclusive,
        () => Exit::Done,
    }
}
