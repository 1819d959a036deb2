//! Rebuilds the requests of a run from its manifest: parses the scenario and draws the schedule of each level again.
//!
//! A schedule is a function of the scenario and the level, so a run folder need not contain it. The redrawn schedule is
//! compared with the hash of the level. A different hash means that a file of the scenario has changed, which is an error.

use std::collections::BTreeMap;
use std::path::Path;

use plimsoll_measure::SweepSpec;
use plimsoll_measure::purpose::{IDLE, ISOLATED, WARM_UP};
use plimsoll_model::{Level, Load, Manifest, ShardPart, Span, TimeBase};
use plimsoll_sim::WorldSpec;
use plimsoll_workload::scenario::LONGEST;
use plimsoll_workload::{ArrivalSpec, BlockNames, LoadSpec, Prompts, Scenario, Schedule, block_key};
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::measure::LevelStep;

/// The recorded configuration of a run.
pub struct RecordedScenario {
    /// Scenario, with the files that it names.
    pub scenario: Scenario,
    /// Search of a sweep; `None` for other runs.
    pub sweep: Option<SweepSpec>,
    /// Arrival process of each kind of traffic in a sweep; empty for other runs.
    pub traffic: BTreeMap<String, ArrivalSpec>,
    /// World of a simulation; `None` for a live target.
    pub world: Option<WorldSpec>,
    /// Part of the load that the run sent; `None` if one machine sent all of it.
    shard: Option<ShardPart>,
}

impl RecordedScenario {
    /// Reads a manifest's scenario and the files that it names.
    pub fn of(manifest: &Manifest) -> Result<RecordedScenario, String> {
        let mut value = manifest.scenario.clone();
        let object = value.as_object_mut().ok_or("run.json has no scenario")?;
        let sweep = part(object.remove("sweep"))?;
        for beside in ["scraped", "budget", "looks"] {
            object.remove(beside);
        }
        let world = part(object.remove("world"))?;
        let traffic: Option<_> = part(object.remove("traffic"))?;
        let mut scenario = Scenario::from_json(&value).map_err(|e| e.to_string())?;
        scenario.attach(|name| std::fs::read(name).map_err(|e| e.to_string())).map_err(|e| e.to_string())?;
        Ok(RecordedScenario {
            scenario,
            sweep,
            traffic: traffic.unwrap_or_default(),
            world,
            shard: manifest.shard.clone(),
        })
    }

    /// Returns the schedule of an open level; `None` if the redrawn schedule has another hash than the level.
    pub fn schedule(&self, level: &Level) -> Option<Schedule> {
        if let Some(part) = &self.shard {
            let own = self.whole(part)?.part(part.shard);
            return (own.hash() == level.schedule_hash).then_some(own);
        }
        let Load::Open { rate_per_s } = self.load(level).ok()? else { return None };
        let mut scenario = self.scenario.clone();
        if let Some(arrivals) = self.traffic.get(&level.traffic) {
            scenario.arrivals = arrivals.clone();
        }
        let mut schedule = Schedule::generate(&scenario, rate_per_s, self.window(level), level.id).ok()?;
        schedule.arrivals.truncate(usize::try_from(level.arrivals).ok()?);
        (schedule.hash() == level.schedule_hash).then_some(schedule)
    }

    /// Returns the schedule of all shards of a load; `None` if the redrawn schedule has another hash than the shards recorded.
    pub fn whole(&self, part: &ShardPart) -> Option<Schedule> {
        let rate = self.scenario.rate().ok()?;
        let mut schedule = Schedule::generate(&self.scenario, rate, self.scenario.load.window(), 0).ok()?;
        schedule.arrivals.truncate(usize::try_from(part.arrivals).ok()?);
        (schedule.hash() == part.schedule_hash).then_some(schedule)
    }

    /// Returns the scenario that draws levels like this one, if another seed gives an equally valid level.
    ///
    /// `None` for sessions, whose later turns wait for answers, and for a trace, which does not depend on the seed.
    pub fn drawn_by(&self, level: &Level) -> Option<Scenario> {
        let mut scenario = self.scenario.clone();
        if let Some(arrivals) = self.traffic.get(&level.traffic) {
            scenario.arrivals = arrivals.clone();
        }
        let sessions = scenario.prompts.sessions.is_some()
            || scenario
                .classes
                .iter()
                .any(|class| class.prompts.as_ref().is_some_and(|p| p.sessions.is_some()));
        let is_drawn = !sessions && !matches!(scenario.arrivals, ArrivalSpec::Trace { .. });
        (is_drawn && self.schedule(level).is_some()).then_some(scenario)
    }

    /// Checks that a prompt file still has the sent text. A line may change and keep its length, which does not affect the
    /// schedule. It affects the block hashes, because their key depends on the whole file.
    ///
    /// # Errors
    /// The text has changed, or the run can't be read.
    pub fn same_prompts(&self, dir: &Path, manifest: &Manifest) -> Result<(), String> {
        let of_file = (0..self.scenario.class_count() as u16)
            .any(|class| self.scenario.prompts_of(class).file.is_some());
        if !of_file {
            return Ok(());
        }
        let run = plimsoll_store::open(dir).map_err(|e| e.to_string())?;
        let Some(sent) = run.attempts.iter().find(|attempt| !attempt.prompt_blocks.is_empty()) else {
            return Ok(());
        };
        let level = manifest.levels.iter().find(|level| level.id == sent.level);
        let Some(schedule) = level.and_then(|level| self.schedule(level)) else { return Ok(()) };
        let Some(arrival) = schedule.arrivals.iter().find(|arrival| arrival.id == sent.request) else {
            return Ok(());
        };
        let drawn = match manifest.time {
            TimeBase::Real => {
                Prompts::new(&self.scenario, block_key(&self.scenario)).map(|prompts| prompts.blocks(arrival))
            }
            TimeBase::Virtual => BlockNames::new(&self.scenario).map(|mut names| names.of(arrival)),
        };
        match drawn.map_err(|e| e.to_string())? == sent.prompt_blocks {
            true => Ok(()),
            false => Err("its prompt file has other text now than was sent".into()),
        }
    }

    /// Returns the time in which requests arrived.
    /// If sessions are played to their ends, this is the configured window, because the level lasts longer.
    fn window(&self, level: &Level) -> Span {
        match self.scenario.plays_sessions_out() {
            true => self.scenario.load.window(),
            false => level.window(),
        }
    }

    /// Returns the configured load of a level, because the level of a trace stores the rate of its interval.
    fn load(&self, level: &Level) -> Result<Load, String> {
        match (level.load, &self.scenario.arrivals) {
            (Load::Open { .. }, ArrivalSpec::Trace { .. }) => {
                let rate_per_s = self.scenario.rate().map_err(|e| e.to_string())?;
                Ok(Load::Open { rate_per_s })
            }
            (load, _) => Ok(load),
        }
    }

    /// Returns the step that sends a level's requests again.
    pub fn step(&self, level: &Level) -> Result<LevelStep, String> {
        // The time limit comes from the scenario, because the window of a level that ended with its requests is its duration.
        let (window, requests) = match (level.load, &self.scenario.load) {
            _ if level.purpose == WARM_UP => (LONGEST, Some(u64::from(self.scenario.load.warm_up()))),
            _ if level.purpose == ISOLATED => (LONGEST, Some(u64::from(self.scenario.load.alone()))),
            (Load::Wave { .. }, _) => (LONGEST, None),
            (Load::Closed { .. }, LoadSpec::Closed { window, requests: Some(n), .. }) => (*window, Some(*n)),
            _ => (self.window(level), None),
        };
        let max_requests = matches!(level.load, Load::Open { .. }).then_some(level.arrivals);
        Ok(LevelStep {
            traffic: level.traffic.clone(),
            arrivals: self.traffic.get(&level.traffic).cloned(),
            purpose: level.purpose.clone(),
            load: self.load(level)?,
            window,
            max_requests,
            requests,
            // The idle level gets a rate limit, because it was sent at a limited rate.
            max_rate_per_s: (level.purpose == IDLE)
                .then(|| level.arrivals.max(1) as f64 / level.window().as_secs_f64().max(1e-9)),
        })
    }
}

fn part<T: DeserializeOwned>(value: Option<Value>) -> Result<Option<T>, String> {
    value.map(|value| serde_json::from_value(value).map_err(|e| format!("run.json: {e}"))).transpose()
}
