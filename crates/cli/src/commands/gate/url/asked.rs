//! What a gate on a URL was asked for: the traffic, the time, and whether the one can be had in the other.

use std::path::PathBuf;

use plimsoll_judge::budget::BudgetFile;
use plimsoll_judge::budget::plan::{LEAST_SWEEP_S, Offer, Plan, PlannedLevel, TimePlan};
use plimsoll_report::figure;
use plimsoll_workload::{ArrivalSpec, LoadSpec, Scenario, parse_span};

use crate::budget_file::BudgetText;
use crate::exit::Stop;
use crate::flags::{ClientArgs, GateUrlArgs, TargetArgs};
use crate::measure::random;
use crate::resolve::Draft;

/// The scenario, the one of --spec, else the one that the budget file names beside itself; and whether it says a nonce.
pub(super) fn scenario(url: &str, args: &GateUrlArgs, budget: &BudgetText) -> Result<(Scenario, bool), Stop> {
    let named = budget.file.load.as_ref().and_then(|load| load.scenario.as_ref());
    let beside = named.map(|name| budget.path.parent().map_or_else(|| name.into(), |dir| dir.join(name)));
    let spec: Option<PathBuf> = args.workload.spec.clone().or(beside);
    let mut draft = Draft::new(spec.as_deref())?;
    draft.target(&TargetArgs { url: url.to_owned(), ..args.target() })?;
    draft.further(&args.further);
    draft.workload(&args.workload)?;
    let client = ClientArgs {
        set: args.set.clone(),
        workers: args.workers,
        scrape: args.scrape.clone(),
        ..ClientArgs::default()
    };
    draft.client(&client)?;
    if let Some(rate) = &args.rate {
        draft.set("load.mode", "open".into());
        draft.set("load.rate", rate.clone().into());
    }
    let nonce_is_said = draft.has("nonce");
    Ok((draft.finish(random())?, nonce_is_said))
}

/// The number in flight that the scenario asks for.
pub(super) fn in_flight(scenario: &Scenario) -> Option<u32> {
    match scenario.load {
        LoadSpec::Closed { concurrency, .. } => Some(concurrency),
        _ => None,
    }
}

/// The rate that the scenario asks for: its own, or its trace's.
pub(super) fn asked(scenario: &Scenario) -> Result<Option<f64>, Stop> {
    match (&scenario.load, &scenario.arrivals) {
        (LoadSpec::Open { .. }, ArrivalSpec::Trace { .. }) => {
            scenario.rate().map(Some).map_err(|e| Stop::usage(e.to_string()))
        }
        (LoadSpec::Open { rate: Some(rate), .. }, _) => Ok(Some(rate.as_per_s())),
        _ => Ok(None),
    }
}

pub(super) fn time(args: &GateUrlArgs, file: &BudgetFile) -> Result<f64, Stop> {
    let of_file = file.load.as_ref().and_then(|load| load.duration);
    let time =
        said(args).map(|(flag, text)| parse_span(text).map_err(|e| Stop::usage(format!("{flag}: {e}"))));
    match time.transpose()?.or(of_file) {
        Some(time) => Ok(time.as_secs_f64()),
        None => Err(Stop::usage(
            "--time 5m or --until-decided --max 15m: say how long may be measured (the budget names no load.duration)",
        )),
    }
}

/// Returns the flag that limits the measuring time, and its value.
pub(super) fn said(args: &GateUrlArgs) -> Option<(&'static str, &str)> {
    let time = args.time.as_deref().map(|text| ("--time", text));
    time.or(args.max.as_deref().map(|text| ("--max", text)))
}

/// The time divided, or what it would take.
pub(super) fn times(plan: &Plan, time_s: f64) -> Result<TimePlan, Stop> {
    plan.times(time_s).ok_or_else(|| {
        let level = |level: &PlannedLevel| {
            let takes = words(level.least_s);
            match level.offer {
                Offer::Rate(rate) => {
                    let rate = figure::number(rate);
                    format!("{} at {rate}/s takes {takes} for {}", level.traffic, level.longest)
                }
                Offer::Saturating(_) => format!("a saturating load takes {takes} for {}", level.longest),
            }
        };
        let mut parts: Vec<String> = plan.levels.iter().map(level).collect();
        parts.extend(
            plan.sweep_for.iter().map(|id| format!("a sweep takes {} for {id}", words(LEAST_SWEEP_S))),
        );
        Stop::usage(format!(
            "--time {}: can't be enough; it takes {} at the least: {}",
            words(time_s),
            words(plan.least_s()),
            parts.join(", ")
        ))
    })
}

/// A length of time, s, in words.
pub(super) fn words(s: f64) -> String {
    figure::duration_ns(s.ceil() * 1e9)
}

/// A recording that is replayed in place of made arrivals.
pub(super) struct Trace {
    /// Its length as it is replayed, s.
    pub length_s: f64,
}

impl Trace {
    /// `None` where arrivals are made. A recording has the load that it has: what asks for another one is refused, and so is a
    /// recording that is too short for what is asked.
    pub fn of(scenario: &Scenario, plan: &Plan) -> Result<Option<Trace>, Stop> {
        let of_spec = |e: plimsoll_workload::SpecError| Stop::usage(e.to_string());
        let Some(window) = scenario.trace_window().map_err(of_spec)? else { return Ok(None) };
        let rate = scenario.rate().map_err(of_spec)?;
        let made = plan.levels.iter().find(|level| level.burst.is_some()).map(|level| &level.longest);
        if let Some(id) = made.or(plan.sweep_for.as_ref()) {
            return Err(Stop::usage(format!(
                "{id}: its load is made, and a trace is replayed as it is: gate it without --trace, with the trace's lengths by --set \
                 sizes.pairs=FILE"
            )));
        }
        for level in &plan.levels {
            let needs = level.rate_per_s().unwrap_or(rate);
            if (needs / rate - 1.0).abs() > 0.05 {
                return Err(Stop::usage(format!(
                    "{} is held at {}, and the trace has {}: --speed {} makes it so",
                    level.longest,
                    figure::per_second(needs),
                    figure::per_second(rate),
                    figure::number(needs / rate * speed(scenario))
                )));
            }
            if level.least_s > window.as_secs_f64() {
                return Err(Stop::usage(format!(
                    "{} takes {} of this traffic at the least, and the trace lasts {}",
                    level.longest,
                    words(level.least_s),
                    words(window.as_secs_f64())
                )));
            }
        }
        Ok(Some(Trace { length_s: window.as_secs_f64() }))
    }
}

fn speed(scenario: &Scenario) -> f64 {
    match &scenario.arrivals {
        ArrivalSpec::Trace { speed, .. } => speed.unwrap_or(1.0),
        _ => 1.0,
    }
}
