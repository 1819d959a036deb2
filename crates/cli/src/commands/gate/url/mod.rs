//! `plimsoll gate URL`: measures the loads of a budget file into a run, which the gate then evaluates.
//!
//! The measurement is planned before the first request. It has each load for the time of its percentiles, a saturating load for a batch, and a sweep for
//! lines. A time that is certainly too short is rejected with the required time. If the time suffices, the planned part is analysed first, and
//! only inconclusive loads are measured further.

mod asked;

use std::path::PathBuf;

use plimsoll_client::StopLimits;
use plimsoll_judge::budget::BudgetFile;
use plimsoll_judge::budget::plan::{
    MeasurementPlan, PlannedLevel, PlannedLoad, SEARCH_SHARE, TimePlan, plan,
};
use plimsoll_judge::gate::{GateVerdict, MeasuredRun, RemainingTime, after_interim};
use plimsoll_measure::Sweep;
use plimsoll_measure::findings::Held;
use plimsoll_measure::sweep::SweepNext;
use plimsoll_model::{Load, Span};
use plimsoll_report::figure;
use plimsoll_workload::{ArrivalSpec, Scenario, format_span};

use crate::budget_file::BudgetText;
use crate::commands::follow::{self, Follower, WHOLE};
use crate::commands::run::{SaturationSearch, saturate};
use crate::commands::sweep as search;
use crate::exit::{Exit, Stop};
use crate::flags::{ClientArgs, GateUrlArgs, OutputArgs, OutputFormat, PriceArgs, SearchArgs};
use crate::measure::{LevelStep, MeasurementSession, MeasurementStart, max_rate, say, still_open};
use crate::shard::{ShardRequest, Upload, of_shard};
use crate::{out, resolve};
use asked::{Trace, asked, in_flight, scenario, time, times, words};

/// Returns whether the text is a URL and not a run.
pub fn is_url(text: &str) -> bool {
    resolve::SCHEMES.iter().any(|scheme| text.starts_with(scheme))
}

/// Measures the loads of a budget, with the correlation of an earlier run, and returns the run folder.
pub fn measure(
    url: &str,
    args: &GateUrlArgs,
    budget: &BudgetText,
    base: Option<&MeasuredRun<'_>>,
) -> Result<PathBuf, Stop> {
    let (scenario, nonce_is_said) = scenario(url, args, budget)?;
    let shard = ShardRequest::of(&args.shard, nonce_is_said, "gate")?;
    let asked = asked(&scenario)?;
    let file = &budget.file;
    let before = base.map(|base| &base.findings);
    let plan =
        plan(file, asked, before).map_err(|why| Stop::usage(format!("{}: {why}", budget.path.display())))?;
    let time_s = time(args, file)?;
    let flag = asked::said(args).map_or("load.duration", |(flag, _)| flag);
    let times = times(&plan, (flag, time_s))?;
    let limits = limits(args)?;
    let over = |level: &&PlannedLevel, most: f64| level.rate_per_s().is_some_and(|rate| rate > most);
    if let Some(most) = limits.max_rate_per_s
        && let Some(level) = plan.levels.iter().find(|level| over(level, most))
    {
        let (rate, most) =
            (figure::per_second(level.rate_per_s().unwrap_or_default()), figure::per_second(most));
        return Err(Stop::usage(format!("{} needs {rate}, over --max-rate {most}", level.longest)));
    }
    let trace = Trace::of(&scenario, &plan)?;
    let counted = before.is_some();
    let looks = args.until_decided.then_some(LOOKS.len());
    Gate { scenario, file, base, plan, times, trace, limits, counted, looks }.run(
        args,
        shard,
        (&budget.flags(), url),
    )
}

/// Measures the levels of shard 0 as another shard; returns `None` if this is shard 0 or no shard.
pub fn follow(
    url: &str,
    args: &GateUrlArgs,
    budget: &BudgetText,
    format: OutputFormat,
) -> Result<Option<Exit>, Stop> {
    let (scenario, nonce_is_said) = scenario(url, args, budget)?;
    let Some(asked) =
        ShardRequest::of(&args.shard, nonce_is_said, "gate")?.filter(|asked| asked.shard.index > 0)
    else {
        return Ok(None);
    };
    let (client, limits, output) = (&client(args), limits(args)?, &OutputArgs { format, ..output(args) });
    let rendezvous = args.shard.rendezvous.as_deref();
    follow::run(Follower { kind: "gate", scenario, asked, rendezvous, client, limits, output }).map(Some)
}

fn client(args: &GateUrlArgs) -> ClientArgs {
    ClientArgs { workers: args.workers, wait_ready: args.wait_ready.clone(), ..ClientArgs::default() }
}

fn limits(args: &GateUrlArgs) -> Result<StopLimits, Stop> {
    let max_rate_per_s = max_rate(args.max_rate.as_deref())?;
    Ok(StopLimits { max_rate_per_s, max_errors: args.max_errors, max_requests: args.max_requests })
}

fn output(args: &GateUrlArgs) -> OutputArgs {
    OutputArgs { out: args.out.clone(), label: None, format: OutputFormat::Text, quiet: args.quiet }
}

struct Gate<'a> {
    scenario: Scenario,
    file: &'a BudgetFile,
    base: Option<&'a MeasuredRun<'a>>,
    plan: MeasurementPlan,
    times: TimePlan,
    trace: Option<Trace>,
    limits: StopLimits,
    /// Set if an earlier run gives the correlation of the requests.
    counted: bool,
    /// Number of interim checks with `--until-decided`; `None` without it.
    looks: Option<usize>,
}

/// Instants of the interim checks of `--until-decided`, as shares of its time. They are fixed beforehand because they share the error.
const LOOKS: [f64; 4] = [0.125, 0.25, 0.5, 1.0];

/// The progress of the planned levels.
struct Progress {
    /// Ids of the run's levels, per planned level.
    ids: Vec<Vec<u32>>,
    /// Measured time per planned level, s.
    spent_s: Vec<f64>,
    /// Concurrency per saturating level, of the scenario or of a search; `None` if unknown.
    found: Vec<Option<u32>>,
}

impl Gate<'_> {
    fn run(
        &self,
        args: &GateUrlArgs,
        shard: Option<ShardRequest>,
        (budget, url): (&str, &str),
    ) -> Result<PathBuf, Stop> {
        let bursts = self.bursts()?;
        let search = self.search()?;
        let mut traffic = search.as_ref().map(|plan| plan.traffic.clone()).unwrap_or_default();
        traffic.extend(bursts.iter().cloned());
        let client = client(args);
        let (output, put) = match &shard {
            Some(_) => of_shard(&output(args), args.shard.rendezvous.as_deref(), WHOLE.into())?,
            None => (output(args), None),
        };
        let time = self.times.sweep_s + self.times.levels_s.iter().sum::<f64>();
        let time = format_span(Span::from_secs_f64(time.round()));
        let flag = if self.looks.is_some() { "--until-decided --max" } else { "--time" };
        let command = ["plimsoll gate", &resolve::quoted(url), budget, flag, &time];
        let mut measure = MeasurementSession::begin(MeasurementStart {
            sweep: (!traffic.is_empty()).then(|| (search.as_ref().map(|plan| plan.spec.clone()), traffic)),
            reproduce: Some(resolve::repeat(&command.join(" "), &self.scenario, &[])),
            shard,
            looks: self.looks,
            ..MeasurementStart::new("gate", self.scenario.clone(), &client, self.limits, &output)
        })?;
        let upload = put.map(|put| put.start(&measure.folder())).transpose()?;
        let first = match self.looks {
            Some(_) => Some(self.times.levels_s.iter().map(|s| LOOKS[0] * s).collect()),
            None => self.plan.until_interim(&self.times),
        };
        self.announce(&mut measure, first.as_deref());
        self.levels(&mut measure, first.as_deref(), &bursts)?;
        if let Some(plan) = search {
            sweep(&mut measure, plan)?;
        }
        let stopped = measure.interrupted();
        let findings = measure.analyse();
        let closed = measure.finish(&findings);
        let uploaded = upload.map(Upload::finish);
        let dir = closed.dir.display();
        match (&closed.unkept, stopped) {
            (Some(why), _) => Err(Stop::invalid(format!("{dir}: the run can't be kept whole: {why}"))),
            (None, true) => {
                Err(Stop { exit: Exit::Interrupted, line: format!("stopped; what was measured is in {dir}") })
            }
            (None, false) => {
                if let Some(place) = uploaded.transpose()? {
                    out::note(&format!("also put at {place}/{WHOLE}"));
                }
                Ok(closed.dir)
            }
        }
    }

    /// Measures every planned level until the interim analysis, and then the levels that the time left can decide.
    fn levels(
        &self,
        measure: &mut MeasurementSession,
        first: Option<&[f64]>,
        bursts: &[(String, ArrivalSpec)],
    ) -> Result<(), Stop> {
        let n = self.plan.levels.len();
        let mut progress = Progress {
            ids: vec![Vec::new(); n],
            spent_s: vec![0.0; n],
            found: vec![in_flight(&self.scenario); n],
        };
        if self.looks.is_some() {
            return self.until_decided(measure, bursts, &mut progress);
        }
        for (i, seconds) in first.unwrap_or(&self.times.levels_s).iter().enumerate() {
            self.level(measure, i, *seconds, bursts, &mut progress)?;
        }
        if first.is_none() || measure.stopped() {
            return Ok(());
        }
        let found = measure.hold_to(self.file, self.base, 2);
        let left_s = self.times.levels_s.iter().sum::<f64>() - progress.spent_s.iter().sum::<f64>();
        let open = found.rows.iter().filter(|row| row.held == Held::Inconclusive && !row.missing);
        let open: Vec<&str> = open.map(|row| row.id.as_str()).collect();
        match after_interim(&found, &progress.ids, &progress.spent_s, left_s) {
            _ if found.verdict == GateVerdict::Invalid => Ok(()),
            RemainingTime::Nothing => {
                measure.screen.say(&format!("decided with {} of the time left", words(left_s)));
                Ok(())
            }
            RemainingTime::TooMuch(takes_s) => {
                let (open, takes, left) = (open.join(", "), words(takes_s), words(left_s));
                measure.screen.say(&format!(
                    "not decided yet: {open}; that takes about {takes} more, and {left} are left: not begun"
                ));
                Ok(())
            }
            RemainingTime::Levels(more_s) => {
                let more = words(more_s.iter().sum());
                measure.screen.say(&format!("not decided yet: {}; measuring {more} more", open.join(", ")));
                for (i, seconds) in more_s.iter().enumerate().filter(|(_, seconds)| **seconds > 0.0) {
                    self.level(measure, i, *seconds, bursts, &mut progress)?;
                }
                Ok(())
            }
        }
    }

    /// Measures the planned levels until every row is decided at one of the interim checks.
    fn until_decided(
        &self,
        measure: &mut MeasurementSession,
        bursts: &[(String, ArrivalSpec)],
        progress: &mut Progress,
    ) -> Result<(), Stop> {
        if self.goes_on(measure) {
            let whole_s = self.times.levels_s[0];
            let before = LOOKS.iter().filter(|share| **share < 1.0);
            measure
                .until_decided(self.file, before.map(|share| Span::from_secs_f64(share * whole_s)).collect());
            return self.level(measure, 0, whole_s, bursts, progress);
        }
        let mut before = 0.0;
        for share in LOOKS {
            for (i, seconds) in self.times.levels_s.iter().enumerate() {
                self.level(measure, i, (share - before) * seconds, bursts, progress)?;
            }
            before = share;
            if measure.stopped() || share >= 1.0 {
                return Ok(());
            }
            let open = still_open(&measure.hold_to(self.file, self.base, LOOKS.len()));
            let is_decided = open.is_none();
            measure.screen.say(&say(Span::from_secs_f64(progress.spent_s.iter().sum()), open));
            if is_decided {
                break;
            }
        }
        Ok(())
    }

    /// Returns whether the interim checks can happen during one level. Its requests must suffice for the verdict, and their numbers must follow due times.
    fn goes_on(&self, measure: &MeasurementSession) -> bool {
        let [level] = self.plan.levels.as_slice() else { return false };
        matches!(level.offer, PlannedLoad::Rate(_))
            && self.base.is_none()
            && self.trace.is_none()
            && self.scenario.prompts.sessions.is_none()
            && !measure.is_shard()
    }

    /// Returns the arrivals of every measured burst, by traffic.
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

    /// Returns the sweep for lines; `None` if no row needs one.
    fn search(&self) -> Result<Option<search::PreparedSweep>, Stop> {
        if self.plan.sweep_for.is_none() {
            return Ok(None);
        }
        let args = SearchArgs {
            time: format_span(Span::from_secs_f64(self.times.sweep_s.round())),
            hold: None,
            traffic: vec!["steady".into()],
            knee_factor: 1.5,
        };
        let mut plan = search::plan(self.scenario.clone(), &args, &[], self.limits, &PriceArgs::default())?;
        plan.spec.budget = Some(self.file.per_request()).filter(|spec| !spec.latency.is_empty());
        Ok(Some(plan))
    }

    fn announce(&self, measure: &mut MeasurementSession, first: Option<&[f64]>) {
        let part = |(level, s): (&PlannedLevel, &f64)| {
            let (traffic, time) = (&level.traffic, figure::duration_ns(s.round() * 1e9));
            match level.offer {
                PlannedLoad::Rate(rate) => {
                    let requests = figure::number((rate * s).round());
                    let rate = figure::per_second(rate);
                    format!("{traffic} {rate} for {time} (about {requests} requests)")
                }
                PlannedLoad::Saturating(floor) => {
                    let floor = figure::number(floor);
                    format!(
                        "{traffic} traffic, as many in flight as finish most (the batch needs {floor}/s), for {time}"
                    )
                }
            }
        };
        let times = first.unwrap_or(&self.times.levels_s);
        let mut parts: Vec<String> = self.plan.levels.iter().zip(times).map(part).collect();
        if self.plan.sweep_for.is_some() {
            let time = figure::duration_ns(self.times.sweep_s.round() * 1e9);
            parts.push(format!("a sweep of {time}"));
        }
        let left = self.times.levels_s.iter().sum::<f64>() - times.iter().sum::<f64>();
        let more = match first {
            Some(_) => format!("; up to {} more if a row stays open", words(left)),
            None => String::new(),
        };
        let caveat = match (self.counted, self.plan.levels.is_empty()) {
            (true, _) => "; with the correlation of the baseline's requests",
            (false, false) => "; more if requests are correlated, which a --baseline run shows",
            (false, true) => "",
        };
        measure.screen.say(&format!("the budgets need: {}{caveat}{more}", parts.join(", ")));
        let alpha = self.file.policy.alpha / self.looks.unwrap_or(1) as f64;
        for short in asked::short(&self.plan, &self.times, alpha) {
            measure.screen.say(&short);
        }
    }

    fn level(
        &self,
        measure: &mut MeasurementSession,
        i: usize,
        seconds: f64,
        bursts: &[(String, ArrivalSpec)],
        progress: &mut Progress,
    ) -> Result<(), Stop> {
        if measure.stopped() {
            return Ok(());
        }
        let level = &self.plan.levels[i];
        let (load, seconds) = match level.offer {
            PlannedLoad::Rate(rate_per_s) => (Load::Open { rate_per_s }, seconds),
            PlannedLoad::Saturating(_) => {
                let (concurrency, took_s) = match progress.found[i] {
                    Some(concurrency) => (concurrency, 0.0),
                    None => saturation(measure, &level.traffic, SEARCH_SHARE * seconds)?,
                };
                if measure.stopped() {
                    return Ok(());
                }
                progress.found[i] = Some(concurrency);
                progress.spent_s[i] += took_s;
                (Load::Closed { concurrency }, (seconds - took_s).max(1.0))
            }
        };
        let seconds = self.trace.as_ref().map_or(seconds, |trace| seconds.min(trace.length_s));
        let arrivals = bursts.iter().find(|(traffic, _)| *traffic == level.traffic).map(|(_, a)| a.clone());
        let step = LevelStep {
            traffic: level.traffic.clone(),
            arrivals,
            ..LevelStep::new("run", load, Span::from_secs_f64(seconds))
        };
        let title = match load {
            Load::Closed { concurrency } => format!("{}, {concurrency} in flight", level.traffic),
            _ => format!("{}, {}", level.traffic, figure::per_second(level.rate_per_s().unwrap_or_default())),
        };
        let planned_s = self.times.sweep_s + self.times.levels_s.iter().sum::<f64>();
        let spent_s = progress.spent_s.iter().sum::<f64>() + seconds;
        measure.screen.after_s = Some((planned_s - spent_s).max(0.0));
        let measured = measure.level(&step, &title)?;
        progress.ids[i].push(measured.level.id);
        progress.spent_s[i] += seconds;
        measure.keep(measured);
        Ok(())
    }
}

/// Returns the concurrency with the highest throughput, and the time of its search, s.
fn saturation(measure: &mut MeasurementSession, traffic: &str, time_s: f64) -> Result<(u32, f64), Stop> {
    let time = Span::from_secs_f64(time_s);
    // Twelve doublings reach the most that is tried.
    let window = Span::from_secs_f64((time_s / 12.0).max(1.0));
    let search =
        SaturationSearch { traffic, window, max_requests: None, max_in_flight: None, time: Some(time) };
    let found = saturate(measure, &search)?;
    let n = found.concurrency;
    measure.screen.say(&match found.stopped_growing {
        true => format!("throughput stops growing at {n} in flight"),
        false => {
            format!("the search ended at {n} in flight, where throughput still grew: the limit may be higher")
        }
    });
    Ok((n, found.took.as_secs_f64()))
}

/// Runs the experiments of a sweep and keeps their rows.
fn sweep(measure: &mut MeasurementSession, plan: search::PreparedSweep) -> Result<(), Stop> {
    let mut sweep = Sweep::new(plan.spec).map_err(|e| Stop::usage(e.to_string()))?;
    while let SweepNext::Run(experiment) = sweep.next() {
        if measure.stopped() {
            sweep.stop(measure.stop_reason());
            break;
        }
        let title = search::title(&sweep, &experiment);
        measure.screen.after_s = Some(search::after_s(&sweep, &experiment));
        let measured = measure.level(&LevelStep::of_sweep(experiment, &plan.traffic), &title)?;
        sweep.observe(&measured.level, measured.records(), &measured.samples);
        measure.keep(measured);
    }
    Ok(())
}
