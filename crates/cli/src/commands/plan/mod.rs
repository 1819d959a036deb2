//! `plimsoll plan` computes the number of replicas that carry a load within an SLO, their cost, and the load
//! limit.
//!
//! The command has three modes: a plan from four figures (`--latency` and `--slots`), a plan from an engine
//! model, and `plan verify`.

mod asked;
mod experiments;
pub mod file;
mod search;
mod verify;

use std::path::Path;

use plimsoll_measure::findings::Held;
use plimsoll_model::Span;
use plimsoll_plan::conclude::{KnownBefore, conclude};
use plimsoll_plan::envelope::{EnvelopeSpec, envelope};
use plimsoll_plan::file::PlanFile;
use plimsoll_plan::planner::Planner;
use plimsoll_plan::{
    self as plan, Mix, PlanError, PlanFinding, PlanRuleSpec, PlanSpec, ReplicaCapacity, bounds, load,
};
use plimsoll_report::{plan as page, plan_envelope};
use plimsoll_workload::parse_span;
use plimsoll_workload::units::Rate;

use crate::exit::{Exit, Stop};
use crate::flags::{OutputFormat, PlanAction, PlanArgs, PromiseArgs};
use crate::{out, price};
use asked::PlanRequest;
use experiments::{PlanEnd, TimeLimit};

/// Default time limit of planning.
const TIME: Span = Span::from_secs(60);

pub fn run(args: &PlanArgs) -> Result<Exit, Stop> {
    out::place_for(args.output.html.as_deref())?;
    match (&args.action, &args.envelope.latency, args.target.slots) {
        (Some(PlanAction::Verify(verify)), ..) => verify::run(verify),
        (None, Some(latency), Some(slots)) => of_envelope(args, latency, slots),
        (None, ..) => of_engine(args),
    }
}

/// Plans from an engine model: the bounds of one replica, then simulated fleets within them.
fn of_engine(args: &PlanArgs) -> Result<Exit, Stop> {
    let time = args.effort.time.as_deref().map(parse_span).transpose();
    let time = time.map_err(|e| Stop::usage(format!("--time {e}")))?.unwrap_or(TIME);
    let mut limit = TimeLimit::start(time, args.output.quiet);
    let asked = asked::read(args)?;
    let (finding, ended) = planned(args, &asked, &mut limit)?;
    limit.clear();
    drop(limit);
    let exit = exit(&finding, ended);
    write(args, &asked.spec, &finding)?;
    match args.output.format {
        OutputFormat::Text => out::line(&page::render(&finding)),
        OutputFormat::Json => out::json(&PlanFile::new(&asked.spec, finding)),
    }
    Ok(exit)
}

fn planned(
    args: &PlanArgs,
    asked: &PlanRequest,
    limit: &mut TimeLimit,
) -> Result<(PlanFinding, PlanEnd), Stop> {
    let spec = &asked.spec;
    let vary = search::vary(&args.search, spec)?;
    let mut notes = asked.notes.clone();
    bounds::check(spec).map_err(refused)?;
    let mix = Mix::draw(spec).map_err(refused)?;
    let load = load::describe(&spec.traffic, &spec.world, &spec.rules, spec.seed).map_err(refused)?;
    let slots = plan::slots(spec, &mix).map_err(refused)?;
    let replica = ReplicaCapacity::simulate(spec, &mix).map_err(refused)?;
    let floor = bounds::floor(spec, &replica.isolated);
    bounds::refuse_below(&floor, &replica.isolated).map_err(refused)?;
    let bounds = plan::bounds(spec, &mix, &replica).map_err(refused)?;
    let planner = Planner::new(spec, bounds.replicas, bounds.replicas_for_utilisation).map_err(refused)?;
    let mut planner = planner.with_curve(bounds.limit_per_s);
    limit.watch();
    let ended = experiments::run(&mut planner, limit).map_err(refused)?;
    notes.extend(ended_early(ended));
    let rests_on = asked.rests_on.clone();
    let known =
        KnownBefore { spec, mix: &mix, load, bounds, floor, slots, planner: &planner, rests_on, notes };
    let mut finding = conclude(known).map_err(refused)?;
    if let Some(vary) = vary {
        let search = search::run(spec, &mix, &vary, (&planner, ended), limit)?;
        finding.notes.extend(search.says());
        finding.options = search.options();
    }
    // A stop after the replica count is known still counts as a stop.
    if limit.over() == Some(PlanEnd::Stopped) && ended != PlanEnd::Stopped {
        finding.notes.extend(ended_early(PlanEnd::Stopped));
        return Ok((finding, PlanEnd::Stopped));
    }
    Ok((finding, ended))
}

fn ended_early(ended: PlanEnd) -> Option<String> {
    match ended {
        PlanEnd::Known => None,
        PlanEnd::Time => Some("the time was up before all was known; --time gives it more".to_owned()),
        PlanEnd::Stopped => Some("stopped before all was known".to_owned()),
    }
}

/// Returns the exit code: 0 a plan passes, 1 none passes, 3 inconclusive, 130 stopped by the user.
fn exit(finding: &PlanFinding, ended: PlanEnd) -> Exit {
    let held = finding.chosen.as_ref().map(|chosen| chosen.held);
    match (ended, held) {
        (PlanEnd::Stopped, _) => Exit::Interrupted,
        (_, Some(Held::Pass)) => Exit::Done,
        (_, Some(Held::Inconclusive)) | (PlanEnd::Time, None) => Exit::Inconclusive,
        (_, Some(Held::Fail)) | (PlanEnd::Known, None) => Exit::Broken,
    }
}

/// Writes the plan file and the page, if requested.
fn write(args: &PlanArgs, spec: &PlanSpec, finding: &PlanFinding) -> Result<(), Stop> {
    if let Some(path) = &args.output.out {
        let file = PlanFile::new(spec, finding.clone());
        let text = serde_json::to_string_pretty(&file).map_err(|e| Stop::invalid(e.to_string()))?;
        put(path, &text)?;
    }
    if let Some(path) = &args.output.html {
        let words = std::env::args().skip(1).map(|word| crate::resolve::quoted(&word));
        let asked = std::iter::once("plimsoll".to_owned()).chain(words).collect::<Vec<_>>().join(" ");
        put(path, &plimsoll_report::plan::page(finding, &asked))?;
    }
    Ok(())
}

/// Writes a file and reports its path.
pub fn put(path: &Path, text: &str) -> Result<(), Stop> {
    out::file(path, text)?;
    out::note(&format!("wrote {}", path.display()));
    Ok(())
}

/// Converts a plan error to the error of the command.
pub fn refused(error: PlanError) -> Stop {
    Stop::usage(error.to_string())
}

fn of_envelope(args: &PlanArgs, latency: &str, slots: u32) -> Result<Exit, Stop> {
    let rate = args.load.rate.as_deref();
    let rate = rate.ok_or_else(|| Stop::usage("no load: give a request rate, --rate 50/s"))?;
    let rate = Rate::parse(rate).map_err(|e| Stop::usage(format!("--rate {e}")))?;
    let latency = parse_span(latency).map_err(|e| Stop::usage(format!("--latency {e}")))?;
    let spec = EnvelopeSpec {
        rate_per_s: rate.as_per_s(),
        latency_s: latency.as_secs_f64(),
        slots,
        rules: rules(&args.promise)?,
        gpus_per_replica: args.fleet.gpus_per_replica,
        price: args.fleet.price.as_deref().map(price::read).transpose()?,
    };
    let plan = envelope(&spec).map_err(refused)?;
    match args.output.format {
        OutputFormat::Text => out::line(&plan_envelope::render(&plan)),
        OutputFormat::Json => out::json(&plan),
    }
    Ok(Exit::Done)
}

pub fn rules(args: &PromiseArgs) -> Result<PlanRuleSpec, Stop> {
    let default = PlanRuleSpec::default();
    let rules = PlanRuleSpec {
        peak: args.peak.as_deref().map_or(Ok(default.peak), factor)?,
        utilisation: args.utilisation.as_deref().map_or(Ok(default.utilisation), share)?,
        spare: args.spare.unwrap_or(default.spare),
        domains: args.domains.unwrap_or(default.domains),
    };
    rules.check().map_err(refused)?;
    Ok(rules)
}

/// Parses a factor such as `2x`, `2` or `×2`.
fn factor(text: &str) -> Result<f64, Stop> {
    let bare = text.trim().trim_end_matches(['x', '×']).trim_start_matches(['x', '×']).trim();
    bare.parse()
        .map_err(|_| Stop::usage(format!("--peak {text}: write a multiple of the mean load, such as 2x")))
}

/// Parses a share such as `0.8` or `80%`.
fn share(text: &str) -> Result<f64, Stop> {
    let (bare, unit) = text.trim().strip_suffix('%').map_or((text.trim(), 1.0), |bare| (bare.trim(), 100.0));
    let wrong = |_| Stop::usage(format!("--utilisation {text}: write a share below 1, such as 0.8 or 80%"));
    bare.parse::<f64>().map(|value| value / unit).map_err(wrong)
}
