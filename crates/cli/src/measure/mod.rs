//! Runs one measurement, from the first probe of the target to the closed run folder, for `run`, `sweep` and `demo`.
//!
//! The order matters. The target is probed before the folder is made, so an unreachable endpoint leaves nothing behind.
//! The folder is made before the first request, so nothing measured is lost. The findings are written last, because
//! everything before them can be recomputed from the rows.

mod calibration;
mod closed;
mod hopeless;
mod knowing;
mod level;
mod live;
mod proxy;
mod refusal;
mod scraping;
mod sharded;
mod target;
mod virtual_time;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use plimsoll_client::post::HostCommand;
use plimsoll_client::{
    Client, ClientError, Clock, Control, LevelPlan, LevelTraffic, MemorySink, Sink, StopLimits,
};
use plimsoll_judge::budget::BudgetFile;
use plimsoll_judge::gate::{self, GateFinding};
use plimsoll_measure::findings::{BudgetSpec, Findings};
use plimsoll_measure::purpose::{ISOLATED, WARM_UP};
use plimsoll_measure::{LineLevel, SweepSpec};
use plimsoll_model::{
    Attempt, Fingerprint, How, Level, Manifest, RerunOrigin, RunState, Sample, Span, TimeBase,
};
use plimsoll_store::RunWriter;
use plimsoll_workload::{ArrivalSpec, Prompts, Rate, Scenario, block_key};

use crate::exit::Stop;
use crate::flags::{CeilingArgs, ClientArgs, OutputArgs};
use crate::place::is_url;
use crate::screen::{KeyWatch, Screen};
use crate::shard::{ShardAgreement, ShardRequest};

use calibration::BeforeLoad;
pub use closed::{FinishedMeasurement, findings, line_spec, verdict};
use closed::{kept, manifest, progress, whole_scenario};
use hopeless::Refusals;
use knowing::PrecisionMonitor;
pub use knowing::{DecidedLooks, Until, say, still_open};
pub use level::{LevelRecords, LevelStep, MeasuredLevel, Variation};
use level::{LevelSink, cut_off, of_window, plan, stretch};
pub use plimsoll_client::random;
use scraping::ScrapeSession;
pub use sharded::FollowerResult;
use sharded::{deal, heed};
use target::{Ready, look_until, start};
pub use target::{TargetProbe, look};
pub use virtual_time::Simulate;
use virtual_time::Virtual;

/// Longest wait for the command that is sent to the target's host before a level.
const COMMAND_PATIENCE: Span = Span::from_secs(30);

/// The search, if there is one, and the arrival process of each kind of traffic.
pub type Kinds = (Option<SweepSpec>, Vec<(String, ArrivalSpec)>);

/// The settings of a measurement at its start.
pub struct MeasurementStart<'a> {
    /// Command of the run: `run`, `sweep` or `demo`.
    pub kind: &'static str,
    pub scenario: Scenario,
    /// The search, if there is one, and the arrival process of each kind of traffic.
    pub sweep: Option<Kinds>,
    /// Budget of every level, used if the search sets none.
    pub budget: Option<BudgetSpec>,
    /// Number of checks of a gate that measures until it is decided.
    pub looks: Option<usize>,
    pub client: &'a ClientArgs,
    pub limits: StopLimits,
    pub output: &'a OutputArgs,
    /// Command that repeats the measurement; `None` if it is rendered from the scenario and `more`.
    pub reproduce: Option<String>,
    /// Flags of the command that repeats the measurement, in addition to the scenario's flags.
    pub more: Vec<(&'static str, String)>,
    /// The simulated system; `None` if the target is a live endpoint.
    pub world: Option<Simulate>,
    /// Run whose schedule is sent again. Its prompts are sent unchanged, regardless of this server's tokens per word.
    pub repeats: Option<RerunOrigin>,
    /// Part of the load that this machine sends; `None` if one machine sends the whole load.
    pub shard: Option<ShardRequest>,
}

impl<'a> MeasurementStart<'a> {
    /// Returns the settings of an independent measurement of a live endpoint by one machine.
    pub fn new(
        kind: &'static str,
        scenario: Scenario,
        client: &'a ClientArgs,
        limits: StopLimits,
        output: &'a OutputArgs,
    ) -> MeasurementStart<'a> {
        MeasurementStart {
            kind,
            scenario,
            sweep: None,
            budget: None,
            looks: None,
            client,
            limits,
            output,
            reproduce: None,
            more: Vec::new(),
            world: None,
            repeats: None,
            shard: None,
        }
    }
}

pub struct MeasurementSession {
    pub screen: Screen,
    scenario: Scenario,
    writer: RunWriter,
    driver: Driver,
    control: Arc<Control>,
    refusals: Arc<Refusals>,
    _watch: Option<KeyWatch>,
    levels: u32,
    attempts: Vec<Attempt>,
    samples: Vec<Sample>,
    /// Levels whose records are not kept in memory.
    observed: Vec<LineLevel>,
    /// Reason why the run can't be stored completely; once it is set, no new level starts.
    unkept: Option<String>,
    /// Agreement between the machines that share the load; `None` if one machine sends it.
    shard: Option<ShardAgreement>,
    /// Commands that are sent to the target's hosts before each level.
    before_level: Vec<HostCommand>,
    /// Condition that ends the load before its time.
    until: Option<Until>,
}

/// The source of the load on the target.
#[expect(clippy::large_enum_variant, reason = "a run has one, and it is never moved while it measures")]
enum Driver {
    /// A client that sends over sockets.
    Live {
        client: Client,
        replicas: Vec<Client>,
        prompts: Arc<Prompts>,
        clock: Clock,
        scraping: Option<ScrapeSession>,
    },
    /// A simulated client in virtual time.
    Virtual(Box<Virtual>),
}

impl MeasurementSession {
    /// Probes the target, makes the run folder and prepares to send.
    pub fn begin(begin: MeasurementStart<'_>) -> Result<MeasurementSession, Stop> {
        match begin.world.is_some() {
            true => MeasurementSession::begin_virtual(begin),
            false => MeasurementSession::begin_live(begin, None),
        }
    }

    /// Starts a second measurement that alternates with `first`.
    /// Both use the same words per token, so their prompts have equal lengths. The same keys and signals stop both.
    pub fn begin_beside(
        begin: MeasurementStart<'_>,
        first: &MeasurementSession,
    ) -> Result<MeasurementSession, Stop> {
        MeasurementSession::begin_live(begin, Some(first))
    }

    fn begin_live(
        begin: MeasurementStart<'_>,
        beside: Option<&MeasurementSession>,
    ) -> Result<MeasurementSession, Stop> {
        let MeasurementStart {
            kind,
            mut scenario,
            sweep,
            budget,
            looks,
            client: client_args,
            limits,
            output,
            reproduce,
            more,
            repeats,
            shard,
            world: _,
        } = begin;
        let before_level = commands(&scenario)?;
        let dir = folder(output, kind)?;
        let mut screen = Screen::new(output.quiet);
        let _ = plimsoll_client::doctor::raise_descriptor_limit();
        let clock = Clock::start();
        let id = format!("{:016x}", random());
        let before = repeats.as_ref().and_then(|repeats| repeats.model.as_deref());
        let ready = Ready::of(client_args, clock)?;
        let looked = look_until(&mut scenario, (before, clock), ready.as_ref(), &mut screen)?;
        let (control, watch) = match beside {
            Some(first) => (Arc::clone(&first.control), None),
            None => {
                let control = Arc::new(Control::new(limits));
                let on_stop = Arc::clone(&control);
                (control, Some(KeyWatch::start(!output.quiet, move || on_stop.stop())))
            }
        };
        looked.say(&mut screen);
        let TargetProbe { facts, models, url, .. } = looked;
        let first = BeforeLoad {
            start: |scenario: &Scenario| start(scenario, client_args, &id, clock),
            url: &url,
            listed: &models,
            max_rate: limits.max_rate_per_s,
            force: client_args.force,
            ready,
        };
        let known = beside.map(|beside| &beside.scenario);
        let asks = (known, repeats.is_some(), shard.as_ref());
        let (facts, agreed) = first.prepare(asks, (&mut scenario, facts), (clock, &control, &mut screen))?;
        // All shards use the same request names, because the merged run needs one identity.
        let id = agreed.as_ref().map_or(id.clone(), |all| all.run_id(block_key(&scenario)));
        let client = start(&scenario, client_args, &id, clock)?;
        let prompts =
            Prompts::new(&scenario, block_key(&scenario)).map_err(|e| Stop::usage(e.to_string()))?;
        let command = reproduce.unwrap_or_else(|| crate::resolve::reproduce(kind, &scenario, &more));
        let mut whole = whole_scenario(&scenario, sweep.as_ref(), (budget.as_ref(), looks));
        // Only shard 0 reads the server's pages, because all shards share the server.
        let pages = match &agreed {
            Some(all) if all.shard.index > 0 => Vec::new(),
            _ => scraping::find(&scenario, &mut screen, &mut whole)?,
        };
        let manifest = Manifest { repeats, ..manifest(kind, id, (TimeBase::Real, clock), &scenario, whole) };
        let target = Fingerprint { url: scenario.target.url.clone(), facts };
        // In a search, the run of shard 0 is the complete run.
        let is_part = |all: &&ShardAgreement| all.levels.as_ref().is_none_or(|levels| !levels.leads());
        let part = agreed.as_ref().filter(is_part).map(|all| all.part(0, String::new()));
        let manifest =
            Manifest { reproduce: command, target, label: output.label.clone(), shard: part, ..manifest };
        let every = scenario.scrape.every;
        let driver =
            Driver::Live { client, replicas: Vec::new(), prompts: Arc::new(prompts), clock, scraping: None };
        let mut measure =
            MeasurementSession::of(screen, scenario, (dir, manifest), driver, (control, watch))?;
        (measure.shard, measure.before_level) = (agreed, before_level);
        let retries = measure.scenario.client.retries.max;
        measure.refusals = Arc::new(Refusals::new(client_args.force, u32::from(retries)));
        if let Driver::Live { scraping, .. } = &mut measure.driver {
            *scraping = ScrapeSession::start(pages, every, clock, measure.writer.sink())?;
        }
        Ok(measure)
    }

    /// Makes the run folder in which all later records are kept.
    fn of(
        mut screen: Screen,
        scenario: Scenario,
        (dir, manifest): (PathBuf, Manifest),
        driver: Driver,
        (control, watch): (Arc<Control>, Option<KeyWatch>),
    ) -> Result<MeasurementSession, Stop> {
        let writer = RunWriter::create(&dir, manifest).map_err(kept)?;
        scenario.material.notes().iter().for_each(|line| screen.say(line));
        screen.say(&format!("writing {}", dir.display()));
        Ok(MeasurementSession {
            screen,
            scenario,
            writer,
            driver,
            control,
            refusals: Arc::new(Refusals::new(false, 0)),
            _watch: watch,
            levels: 0,
            attempts: Vec::new(),
            samples: Vec::new(),
            observed: Vec::new(),
            unkept: None,
            shard: None,
            before_level: Vec::new(),
            until: None,
        })
    }

    /// Returns the resolved scenario, with the model and the calibration filled in.
    pub fn scenario(&self) -> &Scenario {
        &self.scenario
    }

    pub fn folder(&self) -> PathBuf {
        self.writer.dir().to_path_buf()
    }

    /// Returns whether no new level may start: the user stopped the run, it can't be stored, or the target refuses every request.
    pub fn stopped(&self) -> bool {
        self.interrupted() || self.control.is_hopeless()
    }

    /// Returns whether the user stopped the run or the run can't be stored.
    pub fn interrupted(&self) -> bool {
        self.control.stops() > 0 || self.unkept.is_some()
    }

    /// Returns the message with which the target refuses every request; `None` if it does not.
    pub fn refusal(&self) -> Option<String> {
        self.refusals.message().filter(|_| self.control.is_hopeless())
    }

    /// Returns the reason why no new level starts.
    pub fn stop_reason(&self) -> &'static str {
        if self.interrupted() { "stopped by the user" } else { "stopped: the target refuses every request" }
    }

    /// Ends the load as soon as the condition is met, if that is before its time.
    pub fn until(&mut self, until: Until) {
        self.until = Some(until);
    }

    /// Returns whether several machines send the load.
    pub fn is_shard(&self) -> bool {
        self.shard.is_some()
    }

    /// Evaluates the budget in the next level at the given times since its start, and once after it.
    pub fn until_decided(&mut self, file: &BudgetFile, at: Vec<Span>) {
        let (file, looks, manifest) = (file.clone(), at.len() + 1, self.writer.manifest());
        self.until(Until::Decided(Box::new(DecidedLooks { file, at, looks, manifest })));
    }

    /// Adds a replica of the target, which is reached directly and not through the load balancer. Replicas count from 0 in call order.
    pub fn replica(&mut self, url: &str, args: &ClientArgs) -> Result<(), Stop> {
        let id = self.writer.manifest().id;
        let Driver::Live { replicas, clock, .. } = &mut self.driver else { return Ok(()) };
        let mut scenario = self.scenario.clone();
        scenario.target = scenario.target.only(url);
        replicas.push(start(&scenario, args, &id, *clock)?);
        Ok(())
    }

    /// Runs one level to its end and keeps its rows. `title` is the text on the screen.
    pub fn level(&mut self, step: &LevelStep, title: &str) -> Result<MeasuredLevel, Stop> {
        self.varied_level(step, title, &Variation::default())
    }

    /// Runs one level that differs from the scenario by `varied`.
    pub fn varied_level(
        &mut self,
        step: &LevelStep,
        title: &str,
        varied: &Variation,
    ) -> Result<MeasuredLevel, Stop> {
        let (client, prompts, clock) = match &mut self.driver {
            Driver::Live { client, replicas, prompts, clock, scraping } => {
                scraping.iter().for_each(ScrapeSession::level);
                let one = varied.replica.and_then(|n| replicas.get_mut(n));
                (one.unwrap_or(client), &*prompts, *clock)
            }
            Driver::Virtual(_) => return self.virtual_level(step, title),
        };
        // Only shard 0 sends the command, because the shards share the server.
        let tells = self.shard.as_ref().is_none_or(|agreed| agreed.shard.index == 0);
        for command in self.before_level.iter().filter(|_| tells) {
            command.send(COMMAND_PATIENCE).map_err(|why| {
                let request = self.scenario.client.before_level.as_deref().unwrap_or_default();
                Stop::unreachable(format!("--before-level {request}: {why}; no level starts without it"))
            })?;
        }
        let of_its_own = match &varied.scenario {
            Some(scenario) => Some(Arc::new(
                Prompts::new(scenario, block_key(scenario)).map_err(|e| Stop::usage(e.to_string()))?,
            )),
            None => None,
        };
        let scenario = varied.scenario.as_ref().unwrap_or(&self.scenario);
        let drawn_at = clock.now();
        let plan = plan(scenario, step, self.levels, of_its_own.as_ref().unwrap_or(prompts))?;
        let most =
            [self.control.limits.max_rate_per_s, step.max_rate_per_s].into_iter().flatten().reduce(f64::min);
        let mut plan = LevelPlan { max_rate_per_s: most, ..plan };
        let mut whole = None;
        if let Some(agreed) = &mut self.shard {
            let arrivals = step.arrivals.as_ref().unwrap_or(&scenario.arrivals);
            let beside = (&self.writer, &mut self.screen);
            whole = deal(agreed, &mut plan, (step, arrivals), beside, (clock, clock.now() - drawn_at))?;
        }
        let before_load = [WARM_UP, ISOLATED].contains(&step.purpose.as_str());
        let until = self.until.as_ref().filter(|_| !before_load);
        let (ended, mut knowing) = until.map(PrecisionMonitor::new).unzip();
        let rows_of = Arc::new(LevelSink {
            store: self.writer.sink(),
            memory: MemorySink::default(),
            control: Arc::clone(&self.control),
            refusals: Arc::clone(&self.refusals),
            ended,
            keeps_samples: whole.is_none(),
        });
        let sink: Arc<dyn Sink> = rows_of.clone();
        let target = &self.scenario.target;
        let streams = target.stream && target.protocol.streams();
        let unit = target.protocol.counts();
        let counts = live::LiveCounts { unit, streams };
        // Progress of sessions is counted in requests, because the level ends with its requests and not at a time.
        let requests = step.requests.or(plan.arrivals().filter(|_| plan.plays_sessions_out));
        let view = live::View { live: client.live(), clock, plan: &plan, title, requests, counts };
        let control = Arc::clone(&self.control);
        let client: &Client = client;
        // The log records the level before it starts, so that a killed run can report its current level.
        let begins = plan.shard.map_or_else(|| clock.now(), |shard| shard.at);
        let cut = cut_off(plan.id, step, (plan.load, plan.rate_course), (begins, plan.plays_sessions_out));
        let (arrivals, schedule_hash) = (plan.arrivals().unwrap_or(0), plan.schedule_hash());
        self.writer.level(&Level { arrivals, schedule_hash, unit, ..cut.clone() }).map_err(kept)?;
        if let (Some(agreed), Some(_)) = (&self.shard, plan.shard) {
            agreed.wait(clock, &control)?;
        }
        let mut heeded = begins;
        let each = |now| {
            heed(self.shard.as_ref(), &control, (&mut heeded, now));
            knowing.as_mut().and_then(|knowing| knowing.look(now, &cut, &control))
        };
        let level = live::watch(&mut self.screen, &view, each, || client.run_level(&plan, &sink, &control));
        let level = level.map_err(|e: ClientError| Stop::invalid(e.to_string()))?;
        if let Some(why) = client.key_trouble() {
            self.screen.say(&format!("the key is the old one, because a new one could not be had: {why}"));
        }
        if let Some(line) = self.refusals.line().filter(|_| self.control.is_hopeless()) {
            crate::out::note(&format!("plimsoll: {line}"));
        }
        self.levels += 1;
        let rows = rows_of.memory.take_attempts();
        let is_closed = matches!(plan.requests, LevelTraffic::Closed { .. });
        if let Some(line) = away(&rows, plan.client.retry_after_max).filter(|_| is_closed) {
            self.screen.say(&line);
        }
        let rows = LevelRecords::Records(rows);
        let measured = MeasuredLevel { level, rows, samples: rows_of.memory.take_samples() };
        match &whole {
            Some(whole) => self.put_together(whole, measured),
            None => {
                self.log_level(&measured.level);
                Ok(measured)
            }
        }
    }

    /// Writes a level to the log. After a failure the level is still judged and shown, because its rows are in memory.
    fn log_level(&mut self, level: &Level) {
        let kept = self.writer.level(level).map_err(|e| e.to_string());
        self.unkept = kept.err().or(self.writer.health().error).or(self.unkept.take());
    }

    /// Keeps the data of a level that the findings of the whole run need.
    pub fn keep(&mut self, measured: MeasuredLevel) {
        let MeasuredLevel { level, rows, samples } = measured;
        match rows {
            LevelRecords::Records(attempts) => {
                append(&mut self.attempts, attempts);
                append(&mut self.samples, samples);
            }
            LevelRecords::Gathered(gathered) => {
                // Requests of the warm-up and isolated requests are in the rows but in no figure.
                if ![WARM_UP, ISOLATED].contains(&level.purpose.as_str()) {
                    let budget = line_spec(&self.writer.manifest()).budget;
                    self.observed.push(LineLevel::gathered(&level, *gathered, &samples, budget.as_ref()));
                }
                self.keep_server(samples);
            }
        }
    }

    /// Returns the identity of the target.
    pub fn target(&self) -> Fingerprint {
        self.writer.manifest().target
    }

    /// Computes the findings of the kept levels.
    pub fn analyse(&self) -> Findings {
        let manifest = self.writer.manifest();
        match &self.driver {
            Driver::Live { .. } => findings(&manifest, &self.attempts, &self.seen()),
            Driver::Virtual(_) => {
                let mut findings = plimsoll_measure::analyse_observed(&self.observed, &line_spec(&manifest));
                self.tell(&mut findings);
                findings
            }
        }
    }

    /// Evaluates a budget file on the levels kept so far, as one of `looks` checks.
    pub fn hold_to(
        &self,
        file: &BudgetFile,
        baseline: Option<&gate::MeasuredRun<'_>>,
        looks: usize,
    ) -> GateFinding {
        let manifest = self.writer.manifest();
        let samples = self.seen();
        let spec = line_spec(&manifest);
        let measured = gate::MeasuredRun::read(&manifest, &self.attempts, &samples, &spec, file);
        let found = gate::gate_at(file, &measured, baseline, looks);
        crate::progress::judged(found.verdict.name());
        found
    }

    /// Writes the findings and closes the run folder.
    pub fn finish(mut self, findings: &Findings) -> FinishedMeasurement {
        self.screen.clear();
        self.write_fault_truth();
        if let Driver::Live { scraping: Some(scraping), .. } = &mut self.driver {
            self.samples.extend(scraping.end());
            self.samples.sort_by_key(|sample| sample.at);
        }
        let dir = self.folder();
        let mut manifest = self.writer.manifest();
        manifest.findings = serde_json::to_value(findings).ok();
        manifest.flags = self.flags(findings);
        manifest.progress = match &self.unkept {
            Some(why) => RunState::Partial { why: why.clone() },
            None => progress(&manifest),
        };
        if let Some(agreed) = &mut self.shard {
            agreed.close(&mut manifest);
        }
        let closed = match &self.driver {
            Driver::Live { .. } => self.writer.finish_with(manifest.clone(), &self.attempts, &self.samples),
            // The rows of a simulated run are only in the log, and its samples are not needed any more.
            Driver::Virtual(_) => {
                self.samples = Vec::new();
                self.writer.finish(manifest.clone())
            }
        };
        let closed = closed.map_err(|e| e.to_string());
        let unkept = closed.err().or(self.unkept);
        if let Some(why) = &unkept {
            manifest.progress = RunState::Partial { why: why.clone() };
        }
        FinishedMeasurement { manifest, dir, unkept }
    }
}

/// Reports the `Retry-After` wait of a closed loop's users, because it lowers the load below the configured concurrency.
fn away(rows: &[Attempt], most: Option<Span>) -> Option<String> {
    let wishes =
        rows.iter().filter(|row| row.outcome.how == How::Shed).filter_map(|row| row.answer.retry_after);
    let wishes: Vec<Span> = wishes.filter(|wish| *wish > Span::ZERO).collect();
    let (longest, most) = (wishes.iter().max()?, most?);
    Some(format!(
        "{} of {} requests were rejected with Retry-After, up to {}: users of a closed loop wait that long, at most {} each \
         (client.retry_after_max), and fewer requests are sent",
        wishes.len(),
        rows.len(),
        plimsoll_report::figure::duration_ns(longest.0 as f64),
        plimsoll_report::figure::duration_ns(most.0 as f64),
    ))
}

/// Appends rows and avoids a copy for the first level, because a row has half a kilobyte and most runs have one level.
fn append<T>(all: &mut Vec<T>, more: Vec<T>) {
    match all.is_empty() {
        true => *all = more,
        false => all.extend(more),
    }
}

/// Returns the commands that are sent to each endpoint's host before a level.
fn commands(scenario: &Scenario) -> Result<Vec<HostCommand>, Stop> {
    let Some(text) = &scenario.client.before_level else { return Ok(Vec::new()) };
    let target = &scenario.target;
    let commands = target.urls().map(|url| HostCommand::read(&target.only(url), text));
    commands.collect::<Result<_, _>>().map_err(|why| Stop::usage(format!("--before-level {why}")))
}

/// Parses the limits that flags set.
pub fn stop_limits(args: &CeilingArgs) -> Result<StopLimits, Stop> {
    Ok(StopLimits {
        max_rate_per_s: max_rate(args.max_rate.as_deref())?,
        max_requests: args.max_requests,
        max_errors: args.max_errors,
    })
}

/// Parses the highest rate that may be offered; `None` if no ceiling is given.
pub fn max_rate(text: Option<&str>) -> Result<Option<f64>, Stop> {
    let parse =
        |text| Rate::parse(text).map(Rate::as_per_s).map_err(|e| Stop::usage(format!("--max-rate: {e}")));
    text.map(parse).transpose()
}

/// Returns the run folder. A folder given with `--out` must not exist; otherwise a new name is generated.
pub fn folder(output: &OutputArgs, kind: &str) -> Result<PathBuf, Stop> {
    if let Some(dir) = &output.out {
        if is_url(dir) {
            return Err(Stop::usage(format!(
                "-o {}: only the run of a shard (plimsoll run --shard) is put into an object store; name a folder",
                dir.display()
            )));
        }
        if dir.exists() {
            return Err(Stop::usage(format!(
                "{}: already exists, and a run is never overwritten; name another folder",
                dir.display()
            )));
        }
        return Ok(dir.clone());
    }
    let home = Path::new(crate::named::HOME);
    std::fs::create_dir_all(home)
        .map_err(|e| Stop::usage(format!("{}: {e}; name a folder with -o", home.display())))?;
    let mut n = 1;
    loop {
        let dir = home.join(format!("{kind}-{n:03}"));
        if !dir.exists() {
            return Ok(dir);
        }
        n += 1;
    }
}
