//! The inputs of a gate on a URL: traffic, time, and the check that the time suffices.

use std::path::PathBuf;

use plimsoll_judge::budget::BudgetFile;
use plimsoll_judge::budget::plan::{LEAST_SWEEP_S, MeasurementPlan, PlannedLevel, PlannedLoad, TimePlan};
use plimsoll_report::figure;
use plimsoll_workload::{ArrivalSpec, LoadSpec, Scenario, parse_span};

use crate::budget_file::BudgetText;
use crate::exit::Stop;
use crate::flags::{ClientArgs, GateUrlArgs, TargetArgs};
use crate::measure::random;
use crate::resolve::Draft;

/// Returns the scenario of --spec, or the one next to the budget file, and whether it sets a nonce.
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

/// Returns the concurrency of the scenario; `None` for an open loop.
pub(super) fn in_flight(scenario: &Scenario) -> Option<u32> {
    match scenario.load {
        LoadSpec::Closed { concurrency, .. } => Some(concurrency),
        _ => None,
    }
}

/// Returns the rate of the scenario or its trace; `None` for a closed loop.
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
            "duration missing: set --time 5m or --until-decided --max 15m (the budget has no load.duration)",
        )),
    }
}

/// Returns the flag that limits the measuring time, and its value.
pub(super) fn said(args: &GateUrlArgs) -> Option<(&'static str, &str)> {
    let time = args.time.as_deref().map(|text| ("--time", text));
    time.or(args.max.as_deref().map(|text| ("--max", text)))
}

/// Returns what a short time can decide: for each level the distance of the limit, and the time of counting. Empty if the time suffices.
pub(super) fn short(plan: &MeasurementPlan, times: &TimePlan, alpha: f64) -> Vec<String> {
    let levels = plan.levels.iter().zip(&times.levels_s);
    let far = levels.filter_map(|(level, time_s)| {
        let distance = figure::number(level.far_limit(*time_s, alpha)?);
        let (time, longest, counting) = (words(*time_s), &level.longest, words(level.least_s));
        Some(format!(
            "in {time} {longest} passes only if its limit is {distance} times the slowest request or more; counting takes {counting}"
        ))
    });
    far.collect()
}

/// Divides the time; fails with the required time if it is too short.
pub(super) fn times(plan: &MeasurementPlan, (flag, time_s): (&str, f64)) -> Result<TimePlan, Stop> {
    plan.times(time_s).ok_or_else(|| {
        let level = |level: &PlannedLevel| {
            let takes = words(level.far_s);
            match level.offer {
                PlannedLoad::Rate(rate) => {
                    let rate = figure::number(rate);
                    format!("{} at {rate}/s takes {takes} for {}", level.traffic, level.longest)
                }
                PlannedLoad::Saturating(_) => {
                    format!("a saturating load takes {takes} for {}", level.longest)
                }
            }
        };
        let mut parts: Vec<String> = plan.levels.iter().map(level).collect();
        parts.extend(
            plan.sweep_for.iter().map(|id| format!("a sweep takes {} for {id}", words(LEAST_SWEEP_S))),
        );
        Stop::usage(format!(
            "{flag} {}: too short; needs at least {}: {}",
            words(time_s),
            words(plan.far_s()),
            parts.join(", ")
        ))
    })
}

/// Returns a duration in s as text.
pub(super) fn words(s: f64) -> String {
    figure::duration_ns(s.ceil() * 1e9)
}

/// A recording that is replayed instead of drawn arrivals.
pub(super) struct Trace {
    pub length_s: f64,
}

impl Trace {
    /// Returns the recording of a scenario; `None` for drawn arrivals.
    ///
    /// # Errors
    /// Fails if a row needs another load than the recording's, or more time.
    pub fn of(scenario: &Scenario, plan: &MeasurementPlan) -> Result<Option<Trace>, Stop> {
        let of_spec = |e: plimsoll_workload::SpecError| Stop::usage(e.to_string());
        let Some(window) = scenario.trace_window().map_err(of_spec)? else { return Ok(None) };
        let rate = scenario.rate().map_err(of_spec)?;
        let made = plan.levels.iter().find(|level| level.burst.is_some()).map(|level| &level.longest);
        if let Some(id) = made.or(plan.sweep_for.as_ref()) {
            return Err(Stop::usage(format!(
                "{id}: sets a synthetic load, and a trace is replayed unchanged: gate it without --trace, with the trace's lengths by \
                 --set sizes.pairs=FILE"
            )));
        }
        for level in &plan.levels {
            let needs = level.rate_per_s().unwrap_or(rate);
            if (needs / rate - 1.0).abs() > 0.05 {
                return Err(Stop::usage(format!(
                    "{} applies at {}, and the trace has {}: add --speed {}",
                    level.longest,
                    figure::per_second(needs),
                    figure::per_second(rate),
                    figure::number(needs / rate * speed(scenario))
                )));
            }
            if level.far_s > window.as_secs_f64() {
                return Err(Stop::usage(format!(
                    "{} needs at least {} of this traffic, and the trace lasts {}",
                    level.longest,
                    words(level.far_s),
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
