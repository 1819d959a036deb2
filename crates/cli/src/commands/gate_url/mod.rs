//! `plimsoll gate URL`: measures what a budget file needs, into a run that is kept; judging it is the gate's business.
//!
//! What is measured is planned before the first request: the loads that the budgets name, each for as long as its percentiles take,
//! and a sweep where a line is asked for. A time that can't be enough is refused with the minutes it takes, because a gate that is
//! inconclusive after an hour by construction is an hour lost.

use std::path::PathBuf;

use plimsoll_analysis::Sweep;
use plimsoll_analysis::budget::BudgetFile;
use plimsoll_analysis::budget::plan::{LEAST_SWEEP_S, Plan, PlannedLevel, Times, plan};
use plimsoll_analysis::findings::Findings;
use plimsoll_analysis::sweep::Next;
use plimsoll_model::{Load, Span};
use plimsoll_report::figure;
use plimsoll_workload::{ArrivalSpec, LoadSpec, Scenario, format_span, parse_span};

use super::sweep as search;
use crate::budget_file::BudgetText;
use crate::exit::{Exit, Stop};
use crate::flags::{CeilingArgs, ClientArgs, GateUrlArgs, OutputArgs, SearchArgs, TargetArgs};
use crate::measure::{Begin, Measure, Step, max_rate, random};
use crate::resolve::{self, Draft};

/// Is this something to measure, and no run?
pub fn is_url(text: &str) -> bool {
    text.starts_with("http://") || text.starts_with("https://")
}

/// Measures what the budgets need, as many requests as the correlation of an earlier run says; gives the run folder.
pub fn measure(
    url: &str,
    args: &GateUrlArgs,
    budget: &BudgetText,
    before: Option<&Findings>,
) -> Result<PathBuf, Stop> {
    let scenario = scenario(url, args, budget)?;
    let asked = match &scenario.load {
        LoadSpec::Open { rate: Some(rate), .. } => Some(rate.as_per_s()),
        _ => None,
    };
    let file = &budget.file;
    let plan =
        plan(file, asked, before).map_err(|why| Stop::usage(format!("{}: {why}", budget.path.display())))?;
    let times = times(&plan, time(args, file)?)?;
    let ceilings = CeilingArgs {
        max_rate: args.max_rate.clone(),
        max_errors: args.max_errors,
        ..CeilingArgs::default()
    };
    if let Some(most) = max_rate(&ceilings)?
        && let Some(level) = plan.levels.iter().find(|level| level.rate_per_s > most)
    {
        let (rate, most) = (figure::per_second(level.rate_per_s), figure::per_second(most));
        return Err(Stop::usage(format!("{} needs {rate}, over --max-rate {most}", level.longest)));
    }
    let counted = before.is_some();
    Gate { scenario, file, plan, times, ceilings, counted }.run(args, &budget.path.display().to_string(), url)
}

/// The scenario: the one of --spec, else the one that the budget file names beside itself.
fn scenario(url: &str, args: &GateUrlArgs, budget: &BudgetText) -> Result<Scenario, Stop> {
    let named = budget.file.load.as_ref().and_then(|load| load.scenario.as_ref());
    let beside = named.map(|name| budget.path.parent().map_or_else(|| name.into(), |dir| dir.join(name)));
    let spec: Option<PathBuf> = args.workload.spec.clone().or(beside);
    let mut draft = Draft::new(spec.as_deref())?;
    draft.target(&TargetArgs { url: url.to_owned(), ..args.target() })?;
    draft.workload(&args.workload)?;
    let client = ClientArgs {
        set: args.set.clone(),
        workers: args.workers,
        scrape: args.scrape.clone(),
        ..ClientArgs::default()
    };
    draft.client(&client)?;
    let scenario = draft.finish(random())?;
    if matches!(scenario.arrivals, ArrivalSpec::Trace { .. }) {
        return Err(Stop::usage(
            "gate URL makes its own arrivals: replay a trace with plimsoll run --trace, and gate that run",
        ));
    }
    Ok(scenario)
}

fn time(args: &GateUrlArgs, file: &BudgetFile) -> Result<f64, Stop> {
    let of_file = file.load.as_ref().and_then(|load| load.duration);
    let time =
        args.time.as_deref().map(|text| parse_span(text).map_err(|e| Stop::usage(format!("--time: {e}"))));
    match time.transpose()?.or(of_file) {
        Some(time) => Ok(time.as_secs_f64()),
        None => Err(Stop::usage(
            "--time 5m: say how long may be measured (the budget file names no load.duration)",
        )),
    }
}

/// The time divided, or what it would take.
fn times(plan: &Plan, time_s: f64) -> Result<Times, Stop> {
    plan.times(time_s).ok_or_else(|| {
        let words = |s: f64| figure::duration_ns(s.ceil() * 1e9);
        let level = |level: &PlannedLevel| {
            format!(
                "{} at {}/s takes {} for {}",
                level.traffic,
                figure::number(level.rate_per_s),
                words(level.least_s),
                level.longest
            )
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

struct Gate<'a> {
    scenario: Scenario,
    file: &'a BudgetFile,
    plan: Plan,
    times: Times,
    ceilings: CeilingArgs,
    /// Whether an earlier run said what its requests are worth.
    counted: bool,
}

impl Gate<'_> {
    fn run(&self, args: &GateUrlArgs, budget: &str, url: &str) -> Result<PathBuf, Stop> {
        let bursts = self.bursts()?;
        let search = self.search()?;
        let mut traffic = search.as_ref().map(|plan| plan.traffic.clone()).unwrap_or_default();
        traffic.extend(bursts.iter().cloned());
        let client = ClientArgs { workers: args.workers, ..ClientArgs::default() };
        let output =
            OutputArgs { out: args.out.clone(), format: crate::flags::Format::Text, quiet: args.quiet };
        let time = self.times.sweep_s + self.times.levels_s.iter().sum::<f64>();
        let time = format_span(Span::from_secs_f64(time.round()));
        let words =
            ["plimsoll gate", &resolve::quoted(url), "--budget", &resolve::quoted(budget), "--time", &time];
        let mut measure = Measure::begin(Begin {
            kind: "gate",
            scenario: self.scenario.clone(),
            sweep: (!traffic.is_empty()).then(|| (search.as_ref().map(|plan| plan.spec.clone()), traffic)),
            client: &client,
            ceilings: &self.ceilings,
            output: &output,
            reproduce: Some(resolve::repeat(&words.join(" "), &self.scenario, &[])),
            more: Vec::new(),
            world: None,
            repeats: None,
        })?;
        self.announce(&mut measure);
        for (level, seconds) in self.plan.levels.iter().zip(&self.times.levels_s) {
            self.level(&mut measure, level, *seconds, &bursts)?;
        }
        if let Some(plan) = search {
            sweep(&mut measure, plan)?;
        }
        let stopped = measure.stopped();
        let findings = measure.analyse();
        let closed = measure.finish(&findings);
        let dir = closed.dir.display();
        match (&closed.unkept, stopped) {
            (Some(why), _) => Err(Stop::invalid(format!("{dir}: the run can't be kept whole: {why}"))),
            (None, true) => {
                Err(Stop { exit: Exit::Interrupted, line: format!("stopped; what was measured is in {dir}") })
            }
            (None, false) => Ok(closed.dir),
        }
    }

    /// The arrivals of every burst that is measured, by its traffic.
    fn bursts(&self) -> Result<Vec<(String, ArrivalSpec)>, Stop> {
        let mut found: Vec<(String, ArrivalSpec)> = Vec::new();
        for level in &self.plan.levels {
            let text = match (&level.burst, level.traffic.as_str()) {
                (Some(name), _) => self.file.bursts.get(name).and_then(|burst| burst.arrivals.clone()),
                (None, "burst") => None,
                (None, _) => continue,
            };
            let value = resolve::arrivals(text.as_deref().unwrap_or("gamma:3"))?;
            let arrivals =
                serde_json::from_value(value).map_err(|e| Stop::usage(format!("{}: {e}", level.traffic)))?;
            if !found.iter().any(|(traffic, _)| *traffic == level.traffic) {
                found.push((level.traffic.clone(), arrivals));
            }
        }
        Ok(found)
    }

    /// The sweep that lines need.
    fn search(&self) -> Result<Option<search::Plan>, Stop> {
        if self.plan.sweep_for.is_none() {
            return Ok(None);
        }
        let args = SearchArgs {
            time: format_span(Span::from_secs_f64(self.times.sweep_s.round())),
            hold: None,
            traffic: vec!["steady".into()],
            knee_factor: 1.5,
            slo: Vec::new(),
        };
        let mut plan = search::plan(self.scenario.clone(), &args, &self.ceilings)?;
        plan.spec.budget = Some(self.file.per_request()).filter(|spec| !spec.latency.is_empty());
        Ok(Some(plan))
    }

    fn announce(&self, measure: &mut Measure) {
        let words = |s: f64| figure::duration_ns(s * 1e9);
        let mut parts: Vec<String> = self
            .plan
            .levels
            .iter()
            .zip(&self.times.levels_s)
            .map(|(level, s)| {
                let requests = figure::number((level.rate_per_s * s).round());
                format!(
                    "{} {} for {} (about {requests} requests)",
                    level.traffic,
                    figure::per_second(level.rate_per_s),
                    words(s.round())
                )
            })
            .collect();
        if self.plan.sweep_for.is_some() {
            parts.push(format!("a sweep of {}", words(self.times.sweep_s.round())));
        }
        let worth = match (self.counted, self.plan.levels.is_empty()) {
            (true, _) => "; as many as the baseline's requests are worth",
            (false, false) => "; if every request counts in full: a --baseline run would say how many do",
            (false, true) => "",
        };
        measure.screen.say(&format!("the budgets take: {}{worth}", parts.join(", ")));
    }

    fn level(
        &self,
        measure: &mut Measure,
        level: &PlannedLevel,
        seconds: f64,
        bursts: &[(String, ArrivalSpec)],
    ) -> Result<(), Stop> {
        if measure.stopped() {
            return Ok(());
        }
        let arrivals = bursts.iter().find(|(traffic, _)| *traffic == level.traffic).map(|(_, a)| a.clone());
        let step = Step {
            traffic: level.traffic.clone(),
            arrivals,
            purpose: "run".into(),
            load: Load::Open { rate_per_s: level.rate_per_s },
            window: Span::from_secs_f64(seconds),
            max_requests: None,
            requests: None,
        };
        let title = format!("{}, {}", level.traffic, figure::per_second(level.rate_per_s));
        let measured = measure.level(&step, &title)?;
        measure.keep(measured);
        Ok(())
    }
}

/// The planner's experiments, their rows kept beside the levels'.
fn sweep(measure: &mut Measure, plan: search::Plan) -> Result<(), Stop> {
    let mut sweep = Sweep::new(plan.spec).map_err(|e| Stop::usage(e.to_string()))?;
    while let Next::Run(experiment) = sweep.next() {
        if measure.stopped() {
            sweep.stop("stopped by the user");
            break;
        }
        let title = search::title(&sweep, &experiment);
        let arrivals =
            plan.traffic.iter().find(|(name, _)| *name == experiment.traffic).map(|(_, a)| a.clone());
        let step = Step {
            traffic: experiment.traffic,
            arrivals,
            purpose: experiment.purpose,
            load: experiment.load,
            window: experiment.window,
            max_requests: experiment.max_requests,
            requests: None,
        };
        let measured = measure.level(&step, &title)?;
        sweep.observe(&measured.level, measured.records(), &measured.samples);
        measure.keep(measured);
    }
    Ok(())
}
