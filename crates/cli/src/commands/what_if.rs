//! `plimsoll what-if` predicts a run under a changed load or configuration, with an error band.

use crate::rows;
use plimsoll_plan::recorded::requests;
use plimsoll_plan::what_if::{
    BaseRun, ParsedChange, WhatIfFinding, WhatIfSpec, figures, run as level_of, what_if,
};
use plimsoll_report::{figure, what_if as page};
use plimsoll_sim::{FleetSpec, WorldSpec};

use super::engine;
use super::plan::put;
use crate::again::RecordedScenario;
use crate::exit::{Exit, Stop};
use crate::fitted::TargetModel;
use crate::flags::{OutputFormat, WhatIfArgs};
use crate::out;

/// Error text if no level is usable.
const NO_LEVEL: &str = "no level of this run was measured well enough to start from; name one with --level";

pub fn run(args: &WhatIfArgs) -> Result<Exit, Stop> {
    let asks: Result<Vec<ParsedChange>, String> =
        args.changes.iter().map(|text| ParsedChange::parse(text)).collect();
    let asks = asks.map_err(Stop::usage)?;
    let rows = rows::whole(&args.run)?;
    let summary = rows::level(&rows.findings, args.level, NO_LEVEL)?;
    let counts = &summary.counts;
    if counts.finished + counts.cancelled == 0 {
        return Err(Stop::invalid(format!(
            "{}: none of {} was answered, so there is no data for a prediction; list the errors: plimsoll show {0}",
            args.run.display(),
            figure::counted(counts.requests, "request")
        )));
    }
    let level = rows.manifest.levels.iter().find(|level| level.id == summary.level);
    let level = level.ok_or_else(|| Stop::usage("run.json does not list the level of its findings"))?;
    let recorded = RecordedScenario::of(&rows.manifest).ok();
    let target = target(args, &rows, recorded.as_ref())?;
    let redraw = recorded.as_ref().and_then(|recorded| recorded.drawn_by(level));
    let redraw = redraw.filter(|_| level_of::as_asked(level, &rows.attempts));
    let (asked, measured) = (requests(level, rows.attempts.iter()), level_of::measured(summary));
    let as_it_is = BaseRun {
        world: &target.world,
        others: &target.others,
        band: target.band.as_ref(),
        asked: &asked,
        window_s: level.window().as_secs_f64(),
        measured: &measured,
        redraw: redraw.as_ref(),
    };
    let spec = WhatIfSpec { asks, figures: figures(), schedules: args.schedules, seed: args.seed };
    let mut found = what_if(&as_it_is, &spec).map_err(Stop::usage)?;
    found.notes.extend(target.notes);
    if let Some(path) = &args.out {
        let text = serde_json::to_string_pretty(&found).map_err(|e| Stop::invalid(e.to_string()))?;
        put(path, &text)?;
    }
    print(args, &found);
    let refused = found.cases.iter().all(|case| case.refused.is_some());
    Ok(if refused { Exit::Inconclusive } else { Exit::Done })
}

fn print(args: &WhatIfArgs, found: &WhatIfFinding) {
    match args.format {
        OutputFormat::Text => out::line(&page::render(&args.run.display().to_string(), found)),
        OutputFormat::Json => out::json(found),
    }
}

/// Returns the model of the target: the named engine, the model of a simulated run, or a fitted one.
fn target(
    args: &WhatIfArgs,
    rows: &rows::WholeRun,
    recorded: Option<&RecordedScenario>,
) -> Result<TargetModel, Stop> {
    let Some(name) = &args.profile else {
        let simulated = recorded.and_then(|recorded| recorded.world.clone());
        return TargetModel::of_run(&args.run, rows, simulated, &args.target, args.seed);
    };
    let fleet = FleetSpec { replicas: args.target.replicas.unwrap_or(1), ..FleetSpec::default() };
    let world = WorldSpec { engine: engine::find(name)?, fleet, faults: Vec::new() };
    world.validate().map_err(|e| Stop::usage(e.to_string()))?;
    Ok(TargetModel { world, others: Vec::new(), band: None, rests_on: None, notes: Vec::new() })
}
