//! `plimsoll plan verify`: what a plan predicted against what a run then measured, and what the next plan learns from it.

use std::path::Path;
use std::sync::Arc;

use plimsoll_analysis::findings::{LevelSummary, Trust};
use plimsoll_analysis::plan::file::{PLAN_VERSION, PlanFile};
use plimsoll_analysis::plan::spec::{Band, TrafficSpec};
use plimsoll_analysis::plan::verify::{self, VerifyFinding};
use plimsoll_analysis::plan::{Case, Experiment, Fleet};
use plimsoll_model::{Manifest, Span};
use plimsoll_workload::Scenario;

use super::plan::{put, refused};
use super::show;
use crate::exit::{Exit, Stop};
use crate::flags::{Format, PlanVerifyArgs};
use crate::plan_run::{Limit, play};
use crate::{out, plan_spec};

/// Schedules that a prediction is made on.
const SCHEDULES: u32 = 8;

/// How long predicting may take.
const TIME: Span = Span::from_secs(120);

/// Compares, prints and writes down what was learnt.
pub fn run(args: &PlanVerifyArgs) -> Result<Exit, Stop> {
    let plan = read(&args.plan)?;
    let show::Rows { manifest, findings, .. } = show::load_rows(&args.run)?;
    let name = args.run.display();
    if findings.validity.verdict == Trust::Invalid {
        return Err(Stop::invalid(format!(
            "{name}: its measurement is invalid, and says nothing of the plan (see: plimsoll show {name})"
        )));
    }
    let replicas = replicas(args, &manifest)?;
    let summary = level(
        args,
        &plan,
        &findings.levels.iter().map(|level| &level.summary).collect::<Vec<_>>(),
        replicas,
    )?;
    if let Some(why) = verify::unlike(&plan.finding, summary) {
        return Err(Stop::usage(format!("{name}: can't be held against {}: {why}", args.plan.display())));
    }
    let band = match &args.band {
        Some(path) if path.exists() => Some(plan_spec::band(path)?),
        _ => plan.asked.band.clone(),
    };
    let found = predict(args, &plan, summary, replicas, band.as_ref())?;
    if let Some(path) = &args.band {
        let text = serde_json::to_string_pretty(&found.band).map_err(|e| Stop::invalid(e.to_string()))?;
        put(path, &text)?;
    }
    match args.format {
        Format::Text => out::line(&plimsoll_report::plan_verify::render(
            &args.plan.display().to_string(),
            &name.to_string(),
            &found,
        )),
        Format::Json => out::json(&found),
    }
    Ok(exit(&found))
}

/// 0: all lie in their bands; 1: one does not; 3: nothing could be compared.
fn exit(found: &VerifyFinding) -> Exit {
    match (found.compared, found.compared - found.inside) {
        (0, _) => Exit::Inconclusive,
        (_, 0) => Exit::Done,
        _ => Exit::Broken,
    }
}

fn read(path: &Path) -> Result<PlanFile, Stop> {
    let name = path.display();
    let text = std::fs::read_to_string(path).map_err(|e| Stop::usage(format!("{name}: {e}")))?;
    let wrong = |e: serde_json::Error| {
        Stop::usage(format!("{name}: is no plan file ({e}); plimsoll plan … -o FILE writes one"))
    };
    let plan: PlanFile = serde_json::from_str(&text).map_err(wrong)?;
    match plan.plan_version {
        PLAN_VERSION => Ok(plan),
        other => {
            Err(Stop::usage(format!("{name}: has version {other}, and {PLAN_VERSION} is the only one known")))
        }
    }
}

/// Replicas that the run was measured on.
fn replicas(args: &PlanVerifyArgs, manifest: &Manifest) -> Result<u32, Stop> {
    let known = manifest.target.facts.get("replicas").and_then(|fact| fact.as_deref()?.parse().ok());
    match args.replicas.or(known) {
        Some(0) => Err(Stop::usage("--replicas 0: somebody answered; give at least 1")),
        Some(replicas) => Ok(replicas),
        None => Err(Stop::usage(format!(
            "{}: does not know how many replicas answered; say it with --replicas N",
            args.run.display()
        ))),
    }
}

/// The level that is compared: as asked, else the open one nearest to the load per replica that was planned for.
fn level<'a>(
    args: &PlanVerifyArgs,
    plan: &PlanFile,
    levels: &[&'a LevelSummary],
    replicas: u32,
) -> Result<&'a LevelSummary, Stop> {
    let ids: Vec<String> = levels.iter().map(|level| level.level.to_string()).collect();
    if let Some(id) = args.level {
        let found = levels.iter().find(|level| level.level == id).copied();
        return found
            .ok_or_else(|| Stop::usage(format!("--level {id}: the run's levels are {}", ids.join(", "))));
    }
    let carrying = plan.finding.chosen.as_ref().map_or(1, |chosen| chosen.replicas).max(1);
    let planned = plan.finding.load.peak_per_s / f64::from(carrying);
    let off = |level: &LevelSummary| (level.rates.offered_per_s / f64::from(replicas) - planned).abs();
    let open = levels.iter().filter(|level| matches!(level.load, plimsoll_model::Load::Open { .. }));
    let nearest = open.min_by(|a, b| off(a).total_cmp(&off(b))).copied();
    // Without an open level the first one says what is the matter.
    nearest
        .or_else(|| levels.first().copied())
        .ok_or_else(|| Stop::usage(format!("{}: has no level that was measured", args.run.display())))
}

/// The plan's engine under the run's load.
fn predict(
    args: &PlanVerifyArgs,
    plan: &PlanFile,
    summary: &LevelSummary,
    replicas: u32,
    band: Option<&Band>,
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
    let case = Arc::new(Case {
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
    let mut limit = Limit::start(TIME, true);
    let outcomes = play((0..SCHEDULES).map(one).collect(), &mut limit).map_err(refused)?;
    Ok(verify::verify(&plan.finding, summary, replicas, &outcomes.iter().collect::<Vec<_>>(), band))
}
