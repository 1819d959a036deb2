//! A measurement in virtual time: the simulated client sends to a simulated world, and the result is a normal run folder.
//!
//! Rows go to the log as requests end. The findings are computed incrementally and the rows are not kept, so a level of a
//! million requests needs only the memory of its figures.
//!
//! Token events are left out above [`EVENT_TOKENS`] output tokens unless they are requested. The token lists of a whole day
//! would dominate the folder and the memory of its readers.

use std::sync::Arc;

use plimsoll_client::{Clock, Control};
use plimsoll_measure::LevelAccumulator;
use plimsoll_measure::findings::Findings;
use plimsoll_model::{At, Attempt, EndedBy, Fingerprint, Load, Manifest, Sample, Span, TimeBase};
use plimsoll_sim::client::watches_tokens;
use plimsoll_sim::traffic::Detail;
use plimsoll_sim::{Events, RowSink, SimLevelPlan, World, WorldSpec, simulate_into};
use plimsoll_workload::{ArrivalSpec, BlockNames, Scenario, Schedule};

use super::{
    Driver, LevelRecords, LevelStep, MeasuredLevel, MeasurementSession, MeasurementStart, cut_off, folder,
    kept, manifest, of_window, random, stretch, whole_scenario,
};
use crate::commands::run::mean_lengths;
use crate::exit::Stop;
use crate::flags::KeepEvents;
use crate::screen::{KeyWatch, Screen};

/// Maximum output tokens of a level whose events are kept by default: a gigabyte of memory for the findings.
const EVENT_TOKENS: f64 = 5e6;

/// Points of the time series of a level: 2000 × the golden section. In virtual time even arrivals are exactly even, and a
/// whole number of points would meet them at the same phase every time.
const SAMPLES: f64 = 1236.068;

/// Maximum scrapes of the servers per level: a simulated hour is scraped every 5 seconds. A chart shows no more points, and
/// the samples of an hour at one per second took more time and memory than its simulation.
const MAX_SCRAPES: i64 = 720;

/// Pause between the end of a level and the start of the next, as in a live sweep.
const PAUSE: Span = Span::from_secs(1);

/// The simulated system, and the amount of stored data.
pub struct Simulate {
    pub world: WorldSpec,
    /// Stored token events; `None` stores all of them up to a limit.
    pub events: Option<KeepEvents>,
}

/// A world and the virtual time that has passed in it.
pub struct Virtual {
    world: World,
    names: BlockNames,
    events: Option<KeepEvents>,
    asked: WorldSpec,
    now: At,
}

impl Virtual {
    fn new(simulate: &Simulate, scenario: &Scenario) -> Result<Virtual, Stop> {
        let world = World::of(&simulate.world, scenario.seed).map_err(|e| Stop::usage(e.to_string()))?;
        let names = BlockNames::new(scenario).map_err(|e| Stop::usage(e.to_string()))?;
        let asked = simulate.world.clone();
        Ok(Virtual { world, names, events: simulate.events, asked, now: At::ZERO })
    }
}

/// File with the ground truth of the faults in the run folder: kind, place, time and affected requests.
const FAULTS: &str = "faults.json";

impl MeasurementSession {
    /// Writes the ground truth of the faults into the run folder, if there were any.
    pub(super) fn write_fault_truth(&self) {
        let Driver::Virtual(driver) = &self.driver else { return };
        let truths = driver.world.fault_truths();
        if truths.is_empty() {
            return;
        }
        let path = self.folder().join(FAULTS);
        let text = serde_json::to_vec_pretty(truths).unwrap_or_default();
        if let Err(e) = std::fs::write(&path, text) {
            crate::out::note(&format!("plimsoll: {}: {e}", path.display()));
        }
    }

    /// Returns the caveats of the simulated engine under the measured load; empty for a live target.
    pub(super) fn flags(&self, findings: &Findings) -> Vec<String> {
        match &self.driver {
            Driver::Virtual(driver) => crate::simulation::flags(&driver.asked, &findings.levels),
            Driver::Live { .. } => Vec::new(),
        }
    }

    /// Makes the run folder of a simulation, without a probe and without requests.
    pub(super) fn begin_virtual(begin: MeasurementStart<'_>) -> Result<MeasurementSession, Stop> {
        let MeasurementStart {
            kind,
            scenario,
            sweep,
            budget,
            looks,
            limits,
            output,
            reproduce,
            world,
            repeats,
            ..
        } = begin;
        let Some(simulate) = world else { return Err(Stop::invalid("nothing to simulate")) };
        let dir = folder(output, kind)?;
        let screen = Screen::new(output.quiet);
        let control = Arc::new(Control::new(limits));
        let on_stop = Arc::clone(&control);
        let watch = KeyWatch::start(!output.quiet, move || on_stop.stop());
        let virtual_time = Virtual::new(&simulate, &scenario)?;
        let mut whole = whole_scenario(&scenario, sweep.as_ref(), (budget.as_ref(), looks));
        if let Some(object) = whole.as_object_mut() {
            object.insert("world".into(), serde_json::to_value(&simulate.world).unwrap_or_default());
        }
        let id = format!("{:016x}", random());
        let manifest = manifest(kind, id, (TimeBase::Virtual, Clock::start()), &scenario, whole);
        let manifest = Manifest {
            repeats,
            label: output.label.clone(),
            reproduce: reproduce.unwrap_or_default(),
            target: Fingerprint { facts: crate::simulation::facts(&simulate.world), ..manifest.target },
            flags: crate::simulation::flags(&simulate.world, &[]),
            ..manifest
        };
        let driver = Driver::Virtual(Box::new(virtual_time));
        MeasurementSession::of(screen, scenario, (dir, manifest), driver, (control, Some(watch)))
    }

    /// Simulates one level to its end.
    pub(super) fn virtual_level(&mut self, step: &LevelStep, title: &str) -> Result<MeasuredLevel, Stop> {
        let Driver::Virtual(driver) = &mut self.driver else { return Err(Stop::invalid("not simulated")) };
        let mut scenario = self.scenario.clone();
        if let Some(arrivals) = &step.arrivals {
            scenario.arrivals = arrivals.clone();
        }
        let events = events(driver.events, &scenario, step, &mut self.screen);
        driver.world.set_detail(detail(&scenario, events));
        self.screen.begin(title);
        self.screen.show(0.0, &[title.to_string()], title);
        let plan = plan(&scenario, step, self.levels, driver.now, events);
        let most =
            [self.control.limits.max_rate_per_s, step.max_rate_per_s].into_iter().flatten().reduce(f64::min);
        let plan = SimLevelPlan { max_rate_per_s: most, ..plan };
        // The log records the level before it starts, like a level of a live run.
        let cut =
            cut_off(plan.id, step, (plan.load, plan.rate_course), (plan.start, plan.plays_sessions_out));
        self.writer.level(&cut).map_err(kept)?;
        let mut rows = VirtualSink {
            store: self.writer.sink(),
            control: &self.control,
            max_errors: self.control.limits.max_errors,
            errors: 0,
            gathered: Box::default(),
            samples: Vec::new(),
        };
        let level = simulate_into(&mut driver.world, &scenario, plan, Some(&mut driver.names), &mut rows);
        let mut level = level.map_err(|e| Stop::usage(e.to_string()))?;
        let VirtualSink { gathered, samples, .. } = rows;
        if matches!(scenario.arrivals, ArrivalSpec::Trace { .. }) && matches!(level.load, Load::Open { .. }) {
            level.load = match step.load {
                Load::Open { rate_per_s } if scenario.plays_sessions_out() => {
                    let drawn = Schedule::generate(&scenario, rate_per_s, step.window, level.id);
                    let mut arrivals = drawn.map_err(|e| Stop::usage(e.to_string()))?.arrivals;
                    arrivals.truncate(usize::try_from(level.arrivals).unwrap_or(usize::MAX));
                    stretch(&scenario, &arrivals, step.window)
                }
                _ => of_window(level.arrivals, step.window),
            };
        }
        driver.now = level.drained + PAUSE;
        self.levels += 1;
        let kept = self.writer.level(&level).map_err(|e| e.to_string());
        self.unkept = kept.err().or(self.writer.health().error).or(self.unkept.take());
        self.screen.clear();
        Ok(MeasuredLevel { level, rows: LevelRecords::Gathered(gathered), samples })
    }
}

/// A sink that writes rows to the log and sums the data for the findings.
struct VirtualSink<'a> {
    store: plimsoll_store::RecordSink,
    control: &'a Control,
    max_errors: Option<u64>,
    errors: u64,
    gathered: Box<LevelAccumulator>,
    samples: Vec<Sample>,
}

impl RowSink for VirtualSink<'_> {
    fn attempt(&mut self, attempt: Attempt) {
        self.store.attempt(&attempt);
        self.errors += u64::from(!attempt.outcome.is_finished());
        self.gathered.push(&attempt);
    }

    fn sample(&mut self, sample: Sample) {
        self.store.sample(&sample);
        self.samples.push(sample);
    }

    fn stopped(&self) -> Option<EndedBy> {
        match (self.control.stops(), self.max_errors) {
            (1.., _) => Some(EndedBy::UserNow),
            (_, Some(most)) if self.errors >= most => Some(EndedBy::Errors),
            _ => None,
        }
    }
}

fn plan<'a>(
    scenario: &'a Scenario,
    step: &LevelStep,
    id: u32,
    start: At,
    events: Events,
) -> SimLevelPlan<'a> {
    SimLevelPlan {
        traffic: step.traffic.clone(),
        purpose: step.purpose.clone(),
        sample_every: Span(((step.window.0 as f64 / SAMPLES) as i64).max(1_000_000)),
        gauges: true,
        scrape_every: scrape_interval(scenario.scrape.every, step.window),
        events,
        max_requests: step.requests.or(step.max_requests),
        ends_with_requests: step.requests.is_some(),
        ..SimLevelPlan::new(scenario, id, step.load, start, step.window)
    }
}

/// Returns the events to keep: as requested, else all of them or only the ends of answers, by their number.
fn events(asked: Option<KeepEvents>, scenario: &Scenario, step: &LevelStep, screen: &mut Screen) -> Events {
    let tokens = output_tokens(scenario, step);
    match asked {
        Some(KeepEvents::All) => Events::All,
        Some(KeepEvents::Ends) => Events::Ends,
        None if tokens <= EVENT_TOKENS => Events::All,
        None => {
            screen.say(&format!(
                "about {tokens:.1e} output tokens: only first token, last token and end of each answer are kept, so there \
                 are no event gaps (--events all keeps every token)"
            ));
            Events::Ends
        }
    }
}

/// Estimates the output tokens of a level.
/// A closed loop depends on the engine, so each of its concurrent requests is assumed to make fifty tokens a second.
fn output_tokens(scenario: &Scenario, step: &LevelStep) -> f64 {
    let window_s = step.window.as_secs_f64();
    let most = step.max_requests.map_or(f64::INFINITY, |most| most as f64);
    let (_, mean) = mean_lengths(scenario);
    match (step.load, &scenario.arrivals) {
        (Load::Open { rate_per_s }, ArrivalSpec::Trace { file, .. }) => {
            let rows = scenario.material.trace(file).map(|trace| trace.rows.as_slice()).unwrap_or_default();
            let sum: f64 = rows.iter().map(|row| f64::from(row.output_tokens)).sum();
            sum / rows.len().max(1) as f64 * (rate_per_s * window_s).min(most)
        }
        (Load::Open { rate_per_s }, _) => mean * (rate_per_s * window_s).min(most),
        (Load::Wave { requests }, _) => mean * f64::from(requests),
        (Load::Closed { concurrency } | Load::Saturating { concurrency }, _) => {
            let most = step.requests.map_or(most, |n| n as f64);
            (50.0 * window_s * f64::from(concurrency)).min(mean * most)
        }
    }
}

/// Skips the tokens between the first and the last if no setting needs them.
fn detail(scenario: &Scenario, events: Events) -> Detail {
    let watched = watches_tokens(&scenario.client);
    if events == Events::All || watched { Detail::Tokens } else { Detail::Ends }
}

/// Returns the interval between two scrapes: a whole multiple of the configured one, for at most [`MAX_SCRAPES`].
fn scrape_interval(configured: Span, window: Span) -> Span {
    let longest = configured.0.max(1).saturating_mul(MAX_SCRAPES);
    Span(configured.0.saturating_mul(window.0.saturating_add(longest - 1).div_euclid(longest).max(1)))
}
