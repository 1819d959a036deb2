//! One measurement of a setting: start the server, wait, warm up, search its load, stop it.
//!
//! A server that ends, is never ready or refuses the load is a result of its setting and ends no tuning.

use std::net::TcpListener;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use plimsoll_client::{Clock, StopLimits};
use plimsoll_judge::cost::EndpointPrice;
use plimsoll_judge::tune::{LoadLevel, LoadSearch, SATURATED, TuneTrial, cost, is_within};
use plimsoll_measure::findings::{CapacityLine, Estimate, Findings, LevelFinding, Trust};
use plimsoll_measure::{LineLevel, SweepSpec};
use plimsoll_model::{Load, Span};
use plimsoll_report::figure;
use plimsoll_workload::{ArrivalSpec, Scenario};

use super::folder::{log, run_name};
use super::plan::TunePlan;
use super::server::ServerProcess;
use crate::exit::{Exit, Stop};
use crate::flags::OutputArgs;
use crate::measure::{LevelStep, MeasurementSession, MeasurementStart, look};
use crate::resolve::quoted;

/// Interval between two probes of a server that starts.
const AGAIN: Duration = Duration::from_millis(250);

/// Concurrency of the warm-up.
const WARM_UP_CONCURRENCY: u32 = 4;

/// A tuning while it measures.
pub struct TrialRunner<'a> {
    pub plan: &'a TunePlan,
    pub dir: &'a Path,
    pub output: &'a OutputArgs,
    /// Command that repeats the tuning.
    pub command: String,
    /// Number of stop signals.
    pub stops: &'a AtomicU32,
}

/// The end of a measurement.
enum TrialEnd {
    Found(Estimate, Option<Estimate>),
    Failed(String),
    Stopped,
}

impl TrialRunner<'_> {
    /// Measures a setting; `None` if the user stopped it.
    pub fn measure(&self, setting: usize, rung: u32, time: Span) -> Result<Option<TuneTrial>, Stop> {
        let (words, url) = self.plan.launch(setting, &free_port()?.to_string());
        let mut scenario = self.plan.scenario.clone();
        scenario.target.url = url;
        let name = run_name(self.dir, setting, rung);
        let launch = words.iter().map(|word| quoted(word)).collect::<Vec<_>>().join(" ");
        let (mut load, mut cost, mut why, mut run) = (None, None, None, None);
        match self.end_of(&words, scenario, (setting, rung, time), (&name, &mut run))? {
            TrialEnd::Found(found, of_it) => (load, cost) = (Some(found), of_it),
            TrialEnd::Failed(reason) => why = Some(reason),
            TrialEnd::Stopped => return Ok(None),
        }
        Ok(Some(TuneTrial { setting, rung, load, cost, why, run, launch }))
    }

    /// Starts the server, measures its load and stops it. Sets `run` once there is a run folder.
    fn end_of(
        &self,
        words: &[String],
        scenario: Scenario,
        (setting, rung, time): (usize, u32, Span),
        (name, run): (&str, &mut Option<String>),
    ) -> Result<TrialEnd, Stop> {
        let is_first = (setting, rung) == (0, 0);
        match look(&mut scenario.clone(), None) {
            Err(stop) if stop.exit == Exit::Unreachable => {}
            Err(stop) => return Err(stop),
            // The server at this address would be measured in place of the started one.
            Ok(_) => {
                let url = &scenario.target.url;
                let line = format!("--url {url}: another server listens there; stop it, or use {{port}}");
                return Err(Stop::usage(line));
            }
        }
        let mut server = match ServerProcess::start(words, &log(self.dir, name)) {
            Ok(server) => server,
            Err(e) => {
                let line = format!("--launch: {} can't be started: {e}", words[0]);
                return unfit(Stop::usage(line), is_first);
            }
        };
        if let Some(end) = self.wait(&mut server, &scenario, is_first)? {
            return Ok(end);
        }
        *run = Some(name.to_owned());
        let measured = self.load(&mut server, scenario, (setting, time), name);
        match (measured, server.ended()) {
            (Ok(TrialEnd::Stopped), _) => Ok(TrialEnd::Stopped),
            (Err(stop), _) if matches!(stop.exit, Exit::Invalid | Exit::Interrupted) => Err(stop),
            (_, Some(why)) => Ok(TrialEnd::Failed(format!("the server ended under the load: {why}"))),
            (Ok(end), None) => Ok(end),
            (Err(stop), None) => unfit(stop, is_first),
        }
    }

    /// Waits until the server can take a load; returns the end if it never can.
    fn wait(
        &self,
        server: &mut ServerProcess,
        scenario: &Scenario,
        is_first: bool,
    ) -> Result<Option<TrialEnd>, Stop> {
        let clock = Clock::start();
        loop {
            let looked = look(&mut scenario.clone(), None);
            if let Some(why) = server.ended() {
                return Ok(Some(TrialEnd::Failed(format!("the server ended before it was ready: {why}"))));
            }
            let why = match looked {
                Ok(_) => return Ok(None),
                Err(stop) if stop.exit == Exit::Unreachable => stop.line,
                Err(stop) => return unfit(stop, is_first).map(Some),
            };
            if self.stops.load(Ordering::Relaxed) > 0 {
                return Ok(Some(TrialEnd::Stopped));
            }
            if clock.now().0 >= self.plan.ready.0 {
                let most = figure::duration_ns(self.plan.ready.0 as f64);
                let why = format!("not ready within {most}: {why}{}", server.last_line());
                return Ok(Some(TrialEnd::Failed(why)));
            }
            std::thread::sleep(AGAIN);
        }
    }

    /// Searches the load of the running server.
    fn load(
        &self,
        server: &mut ServerProcess,
        scenario: Scenario,
        (setting, time): (usize, Span),
        name: &str,
    ) -> Result<TrialEnd, Stop> {
        let (budget, what) = (self.plan.budget.as_ref(), self.plan.name(setting));
        let label = self.output.label.iter().chain([&what]).map(String::as_str).collect::<Vec<_>>().join(" ");
        let output = OutputArgs { out: Some(self.dir.join(name)), label: Some(label), ..self.output.clone() };
        let spec = SweepSpec { budget: budget.cloned(), time, proves_budget: true, ..SweepSpec::default() };
        let sweep = budget.map(|_| (Some(spec), vec![("steady".to_owned(), ArrivalSpec::default())]));
        let mut measure = MeasurementSession::begin(MeasurementStart {
            sweep,
            reproduce: Some(self.command.clone()),
            ..MeasurementStart::new("tune", scenario, &self.plan.client, StopLimits::default(), &output)
        })?;
        if self.plan.warm_up > 0 {
            let step = LevelStep::of_requests("warmup", WARM_UP_CONCURRENCY, self.plan.warm_up.into());
            let measured = measure.level(&step, &format!("{what}, warm-up"))?;
            measure.keep(measured);
        }
        let mut search = LoadSearch::new(budget.is_some(), time);
        while let Some(LoadLevel { purpose, load, window }) = search.next_level() {
            if measure.stopped() || server.ended().is_some() {
                break;
            }
            let at = match load {
                Load::Open { rate_per_s } => figure::per_second(rate_per_s),
                Load::Closed { concurrency: n }
                | Load::Saturating { concurrency: n }
                | Load::Wave { requests: n } => format!("{n} in flight"),
            };
            let measured = measure.level(&LevelStep::new(purpose, load, window), &format!("{what}, {at}"))?;
            let took = measured.level.drained - measured.level.start;
            let per_s = measured.finished() as f64 / took.as_secs_f64().max(1e-9);
            let rows: Vec<_> = measured.records().iter().collect();
            let samples: Vec<_> = measured.samples.iter().collect();
            let finding = LineLevel::new(&measured.level, &rows, &samples, budget).finding;
            search.observe(is_within(&finding), per_s, took);
            measure.keep(measured);
        }
        let refusal = measure.refusal();
        let is_stopped = measure.interrupted() || self.stops.load(Ordering::Relaxed) > 0;
        let findings = measure.analyse();
        let closed = measure.finish(&findings);
        let dir = closed.dir.display();
        Ok(match (closed.unkept, is_stopped, refusal) {
            (Some(why), ..) => {
                return Err(Stop::invalid(format!("{dir}: the run can't be kept whole: {why}")));
            }
            (None, true, _) => TrialEnd::Stopped,
            (None, false, Some(message)) => TrialEnd::Failed(format!("it refuses every request: {message}")),
            (None, false, None) => match load_of(&findings, &search, budget.is_some()) {
                Ok((load, level)) => TrialEnd::Found(load, self.cost(setting, &load, level)),
                Err(why) => TrialEnd::Failed(why),
            },
        })
    }

    /// Returns the cost per million good output tokens; `None` without a price.
    fn cost(&self, setting: usize, load: &Estimate, level: &LevelFinding) -> Option<Estimate> {
        let EndpointPrice::PerHour(per_hour) = self.plan.bills.get(setting)?.rate else { return None };
        let output = &level.summary.lengths.output;
        let good = level.summary.rates.good_share.map_or(1.0, |share| share.value);
        Some(cost(load, good * output.reported_mean.unwrap_or(output.asked_mean), per_hour))
    }
}

/// Returns a failure; for the first measurement, a wrong flag is an error, because it would fail every setting.
fn unfit(stop: Stop, is_first: bool) -> Result<TrialEnd, Stop> {
    match stop.exit == Exit::Usage && is_first {
        true => Err(stop),
        false => Ok(TrialEnd::Failed(stop.line)),
    }
}

/// Returns the load of a setting, and the level nearest to it.
fn load_of<'a>(
    findings: &'a Findings,
    search: &LoadSearch,
    has_limits: bool,
) -> Result<(Estimate, &'a LevelFinding), String> {
    const TOO_SHORT: &str = "too few requests finished; give it more time with --first";
    if !has_limits {
        let level =
            findings.levels.iter().rfind(|level| level.summary.purpose == SATURATED).ok_or(TOO_SHORT)?;
        if level.validity.verdict == Trust::Invalid {
            let why = level.validity.reasons.first().map(|r| format!("{}: {}", r.check, r.figure));
            return Err(format!("its measurement is invalid: {}", why.unwrap_or_default()));
        }
        let rate = level.summary.rates.achieved_per_s.estimate().ok_or(TOO_SHORT)?;
        let upper = if search.still_grows() { f64::INFINITY } else { rate.upper };
        return Ok((Estimate { upper, ..*rate }, level));
    }
    let line = findings.lines.first().and_then(|lines| lines.budget.as_ref()).ok_or(TOO_SHORT)?;
    let (lower, upper) = match line {
        CapacityLine::Found { rate, .. } => (rate.lower, rate.upper),
        CapacityLine::Above { rate_per_s, .. } => (*rate_per_s, f64::INFINITY),
        CapacityLine::Below { rate_per_s, .. } => (0.0, *rate_per_s),
        CapacityLine::CannotTell { .. } => (0.0, f64::INFINITY),
    };
    let value = search.within().min(upper).max(lower);
    let off = |level: &LevelFinding| (level.summary.rates.offered_per_s - value).abs();
    let open = findings.levels.iter().filter(|level| matches!(level.summary.load, Load::Open { .. }));
    let nearest = open.min_by(|a, b| off(a).total_cmp(&off(b))).ok_or(TOO_SHORT)?;
    let n = nearest.summary.counts.requests;
    Ok((Estimate { value, lower, upper, n, n_eff: n as f64 }, nearest))
}

/// Returns a port that is free now.
fn free_port() -> Result<u16, Stop> {
    let listener = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
    listener.map(|address| address.port()).map_err(|e| Stop::invalid(format!("no port is free: {e}")))
}
