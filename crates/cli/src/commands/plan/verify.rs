//! `plimsoll plan verify` compares the predictions of a plan or a what-if with a later run, and saves the
//! errors for the next plan.

use crate::rows;
use std::sync::Arc;

use plimsoll_measure::findings::{Findings, LevelSummary, Trust};
use plimsoll_model::{Manifest, Span};
use plimsoll_plan::file::PlanFile;
use plimsoll_plan::recorded::requests;
use plimsoll_plan::spec::{PredictionBand, TrafficSpec};
use plimsoll_plan::verify::{self, VerifyFinding};
use plimsoll_plan::what_if::verify::{self as what_if_verify, HeldLevel};
use plimsoll_plan::what_if::{ChangePrediction, WhatIfFinding};
use plimsoll_plan::{Experiment, Fleet, PlanCase};
use plimsoll_workload::Scenario;

use super::experiments::{PlanEnd, TimeLimit, play};
use super::{asked, file};
use super::{put, refused};
use crate::exit::{Exit, Stop};
use crate::flags::{OutputFormat, PlanVerifyArgs};
use crate::out;

/// Number of schedules per prediction.
const SCHEDULES: u32 = 8;

const TIME: Span = Span::from_secs(120);

enum Predictions {
    Plan(Box<PlanFile>),
    /// Predictions of what-ifs, based on a plan or on a run.
    WhatIf(WhatIfFinding),
}

/// Compares, prints and saves the learnt band.
pub fn run(args: &PlanVerifyArgs) -> Result<Exit, Stop> {
    let (predictions, known) = read(args)?;
    let rows = rows::whole(&args.run)?;
    let name = args.run.display();
    if rows.findings.validity.verdict == Trust::Invalid {
        return Err(Stop::invalid(format!(
            "{name}: its measurement is invalid and can't verify the plan (see: plimsoll show {name})"
        )));
    }
    let replicas = replicas(args, &rows.manifest)?;
    let band = match &args.band {
        Some(path) if path.exists() => Some(asked::band(path)?),
        _ => known,
    };
    let found = match &predictions {
        Predictions::Plan(plan) => of_plan(args, plan, &rows, replicas, band.as_ref())?,
        Predictions::WhatIf(what_if) => of_what_if(args, what_if, &rows, replicas, band.as_ref())?,
    };
    if let Some(path) = &args.band {
        let text = serde_json::to_string_pretty(&found.band).map_err(|e| Stop::invalid(e.to_string()))?;
        put(path, &text)?;
    }
    match args.format {
        OutputFormat::Text => out::line(&plimsoll_report::plan_verify::render(
            &args.plan.display().to_string(),
            &name.to_string(),
            &found,
        )),
        OutputFormat::Json => out::json(&found),
    }
    Ok(exit(&found))
}

/// Compares the plan with the nearest level of the run, and with the stability limit of a sweep.
fn of_plan(
    args: &PlanVerifyArgs,
    plan: &PlanFile,
    rows: &rows::WholeRun,
    replicas: u32,
    band: Option<&PredictionBand>,
) -> Result<VerifyFinding, Stop> {
    let carrying = plan.finding.chosen.as_ref().map_or(1, |chosen| chosen.replicas).max(1);
    let planned = plan.finding.load.peak_per_s / f64::from(carrying) * f64::from(replicas);
    let summary = level(args, &rows.findings, planned)?;
    if let Some(why) = verify::unlike(&plan.finding, summary) {
        let name = args.run.display();
        return Err(Stop::usage(format!("{name}: can't be compared with {}: {why}", args.plan.display())));
    }
    let limit = plan.finding.bounds.as_ref().map(|bounds| bounds.limit_per_s * f64::from(replicas));
    Ok(predict(args, plan, summary, replicas, band)?.with_limit(limit, &rows.findings, band))
}

/// Compares the applied what-if with the nearest level of the run.
fn of_what_if(
    args: &PlanVerifyArgs,
    found: &WhatIfFinding,
    rows: &rows::WholeRun,
    replicas: u32,
    band: Option<&PredictionBand>,
) -> Result<VerifyFinding, Stop> {
    let case = happened(args, found, rows, replicas)?;
    let measured = level(args, &rows.findings, case.rate_per_s)?;
    let of_level = rows.manifest.levels.iter().find(|level| level.id == measured.level);
    let asked = of_level.map_or_else(Vec::new, |level| requests(level, rows.attempts.iter()));
    let against = HeldLevel { measured, asked: &asked, replicas, seed: SEED };
    let held = what_if_verify::verify(case, &against, band).map_err(Stop::usage)?;
    Ok(held.with_limit(case.limit_per_s, &rows.findings, band))
}

/// Returns the named case, or else the case that matches the run.
fn happened<'a>(
    args: &PlanVerifyArgs,
    found: &'a WhatIfFinding,
    rows: &rows::WholeRun,
    replicas: u32,
) -> Result<&'a ChangePrediction, Stop> {
    let run = args.run.display();
    let all = |cases: &[&ChangePrediction]| {
        cases.iter().map(|case| format!("{:?}", case.ask)).collect::<Vec<_>>().join(", ")
    };
    let unlike = |case: &ChangePrediction| -> Result<Option<String>, Stop> {
        let measured = level(args, &rows.findings, case.rate_per_s)?;
        let against = HeldLevel { measured, asked: &[], replicas, seed: SEED };
        Ok(what_if_verify::unlike(case, &against))
    };
    let every: Vec<&ChangePrediction> = found.cases.iter().collect();
    let named = args.what_if.as_deref().map(str::trim);
    let only = match (named, every.as_slice()) {
        (Some(text), _) => Some(every.iter().copied().find(|case| case.ask == text).ok_or_else(|| {
            Stop::usage(format!("--what-if {text}: {} has {}", args.plan.display(), all(&every)))
        })?),
        (None, [one]) => Some(*one),
        (None, _) => None,
    };
    if let Some(case) = only {
        return match unlike(case)? {
            None => Ok(case),
            Some(why) => Err(Stop::usage(format!("{run}: can't be compared with {:?}: {why}", case.ask))),
        };
    }
    let mut like = Vec::new();
    for case in &every {
        let measured = level(args, &rows.findings, case.rate_per_s)?;
        let near = (measured.rates.offered_per_s / case.rate_per_s - 1.0).abs() <= LIKE;
        if near && unlike(case)?.is_none() {
            like.push(*case);
        }
    }
    match like.as_slice() {
        [one] => Ok(*one),
        [] => Err(Stop::usage(format!("{run}: matches none of {}; name one with --what-if", all(&every)))),
        several => Err(Stop::usage(format!("{run}: matches {}; name one with --what-if", all(several)))),
    }
}

/// Seed of the simulated engine in a new prediction.
const SEED: u64 = 1;
/// Maximum relative difference of loads that match, if several what-ifs could have been applied.
const LIKE: f64 = 0.1;

/// Returns the exit code: 0 all values are in their bands, 1 some are not, 3 no value could be compared.
fn exit(found: &VerifyFinding) -> Exit {
    match (found.compared, found.compared - found.inside) {
        (0, _) => Exit::Inconclusive,
        (_, 0) => Exit::Done,
        _ => Exit::Broken,
    }
}

/// Returns the predictions of a file and their band.
fn read(args: &PlanVerifyArgs) -> Result<(Predictions, Option<PredictionBand>), Stop> {
    let value = file::value(&args.plan)?;
    if value.get("plan_version").is_none() && value.get("cases").is_some() {
        let what_if = serde_json::from_value(value).map_err(|e| file::foreign(&args.plan, &e))?;
        return Ok((Predictions::WhatIf(what_if), None));
    }
    let plan = file::plan(&args.plan, value)?;
    let band = plan.asked.band.clone();
    match &args.what_if {
        None => Ok((Predictions::Plan(Box::new(plan)), band)),
        Some(text) => Err(Stop::usage(format!(
            "--what-if {text}: {} is a plan and contains none; plimsoll what-if RUN … -o FILE writes them",
            args.plan.display()
        ))),
    }
}

/// Returns the number of replicas in the measured run.
fn replicas(args: &PlanVerifyArgs, manifest: &Manifest) -> Result<u32, Stop> {
    let known = manifest.target.facts.get("replicas").and_then(|fact| fact.as_deref()?.parse().ok());
    match args.replicas.or(known) {
        Some(0) => Err(Stop::usage("--replicas 0: at least one replica answered; give at least 1")),
        Some(replicas) => Ok(replicas),
        None => Err(Stop::usage(format!(
            "{}: the number of replicas is unknown; give --replicas N",
            args.run.display()
        ))),
    }
}

/// Returns the level to compare: the named one, else the open level with the load nearest to `predicted`.
/// Loads are requests per second over all replicas.
fn level<'a>(
    args: &PlanVerifyArgs,
    findings: &'a Findings,
    predicted: f64,
) -> Result<&'a LevelSummary, Stop> {
    let levels: Vec<&LevelSummary> = findings.levels.iter().map(|level| &level.summary).collect();
    let ids: Vec<String> = levels.iter().map(|level| level.level.to_string()).collect();
    if let Some(id) = args.level {
        let found = levels.iter().find(|level| level.level == id).copied();
        return found
            .ok_or_else(|| Stop::usage(format!("--level {id}: the run's levels are {}", ids.join(", "))));
    }
    let off = |level: &LevelSummary| (level.rates.offered_per_s - predicted).abs();
    let open = levels.iter().filter(|level| matches!(level.load, plimsoll_model::Load::Open { .. }));
    let nearest = open.min_by(|a, b| off(a).total_cmp(&off(b))).copied();
    // Without an open level the first level produces the explanation.
    nearest
        .or_else(|| levels.first().copied())
        .ok_or_else(|| Stop::usage(format!("{}: has no level that was measured", args.run.display())))
}

/// Fails if the user stopped the comparison, because there is no result.
fn not_stopped(limit: &TimeLimit) -> Result<(), Stop> {
    match limit.over() {
        Some(PlanEnd::Stopped) => {
            Err(Stop { exit: Exit::Interrupted, line: "stopped before it was predicted".to_owned() })
        }
        _ => Ok(()),
    }
}

/// Simulates the plan's engine under the load of the run.
fn predict(
    args: &PlanVerifyArgs,
    plan: &PlanFile,
    summary: &LevelSummary,
    replicas: u32,
    band: Option<&PredictionBand>,
) -> Result<VerifyFinding, Stop> {
    let name = args.plan.display();
    let wrong = |e: &dyn std::fmt::Display| Stop::usage(format!("{name}: {e}"));
    let mut scenario = Scenario::from_json(&plan.asked.scenario).map_err(|e| wrong(&e))?;
    scenario.attach(|file| std::fs::read(file).map_err(|e| e.to_string())).map_err(|e| wrong(&e))?;
    let load = &plan.finding.load;
    let traffic = TrafficSpec {
        scenario,
        rate_per_s: load.rate_per_s,
        window_s: plan.asked.window_s,
        source: load.source.clone(),
    };
    let case = Arc::new(PlanCase {
        traffic,
        slo: plan.finding.slo.clone(),
        world: plan.asked.world.clone(),
        seed: plan.asked.seed,
    });
    let factor = summary.rates.offered_per_s / load.rate_per_s;
    let one = |draw| Experiment {
        case: Arc::clone(&case),
        replicas,
        fleet: Fleet::Static,
        factor,
        draw,
        gives_up: false,
    };
    let mut limit = TimeLimit::start(TIME, true);
    limit.watch();
    let outcomes = play((0..SCHEDULES).map(one).collect(), &mut limit).map_err(refused)?;
    not_stopped(&limit)?;
    Ok(verify::verify(&plan.finding, summary, replicas, &outcomes.iter().collect::<Vec<_>>(), band))
}
