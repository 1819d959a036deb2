//! `plimsoll levers` ranks the changes that would improve a run.
//!
//! The run is read and judged as in `show`. This module selects the level, the goal and the engine model of
//! the target.

use crate::rows;
use std::path::Path;

use plimsoll_measure::excerpt::Excerpt;
use plimsoll_measure::findings::{BudgetSpec, Held, LevelSummary};
use plimsoll_model::{Attempt, Manifest, Sample};
use plimsoll_plan::levers::{
    Goal, LeverCase, LeverEffortSpec, LeverFinding, LeverOrder, LeverSpec, Redraw, catalogue, rank,
};
use plimsoll_plan::spec::PredictionBand;
use plimsoll_profile::infer::ComputeFloor;
use plimsoll_report::levers as page;
use plimsoll_sim::{FleetSpec, WorldSpec};
use plimsoll_workload::{Scenario, check};
use schemars::schema_for;

use super::engine;
use crate::again::RecordedScenario;
use crate::commands::wait;
use crate::exit::{Exit, Stop};
use crate::fitted::TargetModel;
use crate::flags::{FitArgs, LeversArgs, OutputFormat, RankBy};
use crate::measure::line_spec;
use crate::{budget_file, out, price, resolve};

/// Error text if no level is usable.
const NO_LEVEL: &str = "no level of this run was measured well enough to rank for; name one with --level";

/// Ranks the changes and prints them.
pub fn run(args: &LeversArgs) -> Result<Exit, Stop> {
    let (Some(dir), false) = (&args.run, args.list) else {
        match args.format {
            OutputFormat::Text => out::line(&page::list(catalogue::all())),
            OutputFormat::Json => out::json(&catalogue::all()),
        }
        return Ok(Exit::Done);
    };
    let efforts = efforts(args)?;
    let asked = asked(args)?;
    let mut rows = rows::held(dir)?;
    let mut lines = line_spec(&rows.manifest);
    if let Some(budget) = asked {
        lines.budget = Some(budget);
        rows.findings = plimsoll_measure::analyse(&rows.manifest, &rows.attempts, &rows.samples, &lines);
    }
    let floor = wait::floor(&rows);
    let rows::WholeRun { manifest, attempts, samples, findings, excerpts, .. } = &rows;
    let summary = rows::level(findings, args.level, NO_LEVEL)?;
    let recorded = RecordedScenario::of(manifest).ok();
    let (world, band) = world(args, dir, &rows, recorded.as_ref())?;
    let bill = price::bill(&args.price, Some(&manifest.target))?;
    let by = by(args, bill.is_some(), summary)?;
    let goal = Goal::of(lines.budget.as_ref(), summary);
    let spec = LeverSpec { goal, replications: args.schedules, seed: args.seed, efforts, bill, by, band };
    let mut found =
        judge(manifest, (attempts, samples, floor), summary, (world.as_ref(), recorded.as_ref()), &spec)?;
    found.place(&findings.lines, summary);
    found.beside.extend(excerpts.iter().filter(|part| part.level == summary.level).map(Excerpt::words));
    match args.format {
        OutputFormat::Text => out::line(&page::render(&dir.display().to_string(), &found)),
        OutputFormat::Json => out::json(&found),
    }
    Ok(Exit::Done)
}

fn judge(
    manifest: &Manifest,
    (attempts, samples, floor): (&[Attempt], &[Sample], Option<ComputeFloor>),
    summary: &LevelSummary,
    (world, recorded): (Option<&WorldSpec>, Option<&RecordedScenario>),
    spec: &LeverSpec,
) -> Result<LeverFinding, Stop> {
    let level = manifest.levels.iter().find(|level| level.id == summary.level);
    let level = level.ok_or_else(|| Stop::usage("run.json does not list the level of its findings"))?;
    let attempts: Vec<&Attempt> = attempts.iter().filter(|a| a.level == level.id).collect();
    let samples: Vec<&Sample> = samples.iter().collect();
    let scenario: Option<Scenario> = recorded.and_then(|recorded| recorded.drawn_by(level));
    let redraw = scenario.as_ref().map(|scenario| Redraw { scenario });
    let case = LeverCase {
        level,
        summary,
        attempts: &attempts,
        samples: &samples,
        floor,
        world,
        redraw: redraw.as_ref(),
    };
    Ok(rank(&case, spec))
}

fn asked(args: &LeversArgs) -> Result<Option<BudgetSpec>, Stop> {
    match &args.budget {
        None => resolve::budget(&args.slo),
        Some(path) => budget_file::per_request(path, "add one to rank levers").map(Some),
    }
}

fn efforts(args: &LeversArgs) -> Result<LeverEffortSpec, Stop> {
    let Some(path) = &args.efforts else { return Ok(LeverEffortSpec::default()) };
    let name = path.display();
    let value = resolve::mapping(path, "efforts")?;
    check::against(&value, || schema_for!(LeverEffortSpec).to_value())
        .map_err(|e| Stop::usage(format!("{name}: {e}")))?;
    let efforts: LeverEffortSpec =
        serde_json::from_value(value).map_err(|e| Stop::usage(format!("{name}: {e}")))?;
    efforts.check().map_err(|e| Stop::usage(format!("{name}: {e}")))?;
    Ok(efforts)
}

/// Returns the engine model of the target: the named one, the model of a simulated run, or a fitted one. If
/// no model reproduces the target, changes are ranked without a model and the reason is printed. The band is
/// the error of the fit, which widens the uncertainty of every gain.
fn world(
    args: &LeversArgs,
    dir: &Path,
    rows: &rows::WholeRun,
    recorded: Option<&RecordedScenario>,
) -> Result<(Option<WorldSpec>, Option<PredictionBand>), Stop> {
    let Some(name) = &args.profile else {
        let simulated = recorded.and_then(|recorded| recorded.world.clone());
        return match TargetModel::of_run(dir, rows, simulated, &FitArgs::default(), args.seed) {
            Ok(target) => {
                target.notes.iter().for_each(|note| out::note(note));
                target.world.validate().map_err(|e| Stop::usage(e.to_string()))?;
                Ok((Some(target.world), target.band))
            }
            Err(stop) => {
                out::note(&format!("levers are not simulated: {}", stop.line));
                Ok((None, None))
            }
        };
    };
    let fleet = FleetSpec { replicas: args.replicas.unwrap_or(1), ..FleetSpec::default() };
    let world = WorldSpec { engine: engine::find(name)?, fleet, faults: Vec::new() };
    world.validate().map_err(|e| Stop::usage(e.to_string()))?;
    Ok((Some(world), None))
}

fn by(args: &LeversArgs, priced: bool, summary: &LevelSummary) -> Result<LeverOrder, Stop> {
    let holds = summary.budget.as_ref().is_some_and(|budget| budget.verdict == Held::Pass);
    match args.by {
        Some(RankBy::Cost) if !priced => {
            Err(Stop::usage("--by cost: needs a price, such as --price 2.49USD/gpu-hour --gpus 1"))
        }
        Some(RankBy::Cost) => Ok(LeverOrder::Cost),
        Some(RankBy::Latency) => Ok(LeverOrder::Latency),
        None if priced && holds => Ok(LeverOrder::Cost),
        None => Ok(LeverOrder::Latency),
    }
}
