//! One level: its step, the plan that the client executes, and the rows that remain in memory.

use std::sync::Arc;
use std::sync::mpsc::Sender;

use plimsoll_client::{Control, LevelPlan, LevelTraffic, MemorySink, ShardStart, Sink};
use plimsoll_measure::LevelAccumulator;
use plimsoll_measure::sweep::SweepLevel;
use plimsoll_model::{
    At, Attempt, EndedBy, GeneratorHealth, Level, Load, RateCourse, Sample, Shard, SizeUnit, Span,
};
use plimsoll_workload::scenario::LONGEST;
use plimsoll_workload::{Arrival, ArrivalSpec, Connections, Prompts, Scenario, Schedule};

use serde::{Deserialize, Serialize};

use super::hopeless::Refusals;
use crate::exit::Stop;

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct LevelStep {
    pub traffic: String,
    /// Arrival process of this kind of traffic; `None` for the scenario's process.
    pub arrivals: Option<ArrivalSpec>,
    pub purpose: String,
    pub load: Load,
    pub window: Span,
    pub max_requests: Option<u64>,
    /// Number of requests after which a closed loop and its level end; `None` if the window ends them.
    pub requests: Option<u64>,
    /// Rate limit of a closed loop in requests/s, below the limit of the whole measurement.
    pub max_rate_per_s: Option<f64>,
}

impl LevelStep {
    /// Returns a step with the scenario's own arrivals and no limit on their number.
    pub fn new(purpose: &str, load: Load, window: Span) -> LevelStep {
        LevelStep {
            traffic: "steady".into(),
            arrivals: None,
            purpose: purpose.into(),
            load,
            window,
            max_requests: None,
            requests: None,
            max_rate_per_s: None,
        }
    }

    /// Returns a step of a closed loop that ends after `requests` requests.
    pub fn of_requests(purpose: &str, concurrency: u32, requests: u64) -> LevelStep {
        let load = Load::Closed { concurrency };
        LevelStep { requests: Some(requests), ..LevelStep::new(purpose, load, LONGEST) }
    }

    /// Returns the step of a sweep's level for one of its kinds of traffic.
    pub fn of_sweep(asked: SweepLevel, traffic: &[(String, ArrivalSpec)]) -> LevelStep {
        let arrivals = traffic.iter().find(|(name, _)| *name == asked.traffic);
        LevelStep {
            arrivals: arrivals.map(|(_, arrivals)| arrivals.clone()),
            traffic: asked.traffic,
            purpose: asked.purpose,
            load: asked.load,
            window: asked.window,
            max_requests: asked.max_requests,
            requests: None,
            max_rate_per_s: asked.max_rate_per_s,
        }
    }
}

/// Differences between one level and its scenario.
#[derive(Default)]
pub struct Variation {
    /// Scenario with another client, other lengths or other prompts but an unchanged target.
    pub scenario: Option<Scenario>,
    /// Number of the only replica that gets requests; see [`super::Measure::replica`].
    pub replica: Option<usize>,
}

pub struct MeasuredLevel {
    pub level: Level,
    pub rows: LevelRecords,
    pub samples: Vec<Sample>,
}

/// The rows of a level that are in memory. The run folder has all rows.
pub enum LevelRecords {
    /// Records, from which a run folder is written.
    Records(Vec<Attempt>),
    /// Sums that the figures need, without the records, because a simulated day has a million of them.
    Gathered(Box<LevelAccumulator>),
}

impl MeasuredLevel {
    /// Returns the number of attempts that received a complete answer.
    pub fn finished(&self) -> u64 {
        match &self.rows {
            LevelRecords::Records(attempts) => {
                attempts.iter().filter(|a| a.outcome.is_finished()).count() as u64
            }
            LevelRecords::Gathered(gathered) => gathered.finished(),
        }
    }

    /// Returns the records, or an empty slice if they were not kept.
    pub fn records(&self) -> &[Attempt] {
        match &self.rows {
            LevelRecords::Records(attempts) => attempts,
            LevelRecords::Gathered(_) => &[],
        }
    }
}

/// Returns the client's plan for a step.
pub(super) fn plan(
    scenario: &Scenario,
    step: &LevelStep,
    id: u32,
    prompts: &Arc<Prompts>,
) -> Result<LevelPlan, Stop> {
    let mut load = step.load;
    let wrong = |e: plimsoll_workload::SpecError| Stop::usage(e.to_string());
    let mut scenario = scenario.clone();
    if let Some(arrivals) = &step.arrivals {
        scenario.arrivals = arrivals.clone();
    }
    let rate_course = match step.load {
        Load::Open { .. } => scenario.arrivals.rate_course(),
        Load::Closed { .. } | Load::Wave { .. } | Load::Saturating { .. } => RateCourse::Even,
    };
    let requests = match step.load {
        Load::Open { rate_per_s } => {
            let mut schedule = Schedule::generate(&scenario, rate_per_s, step.window, id).map_err(wrong)?;
            if let Some(most) = step.max_requests {
                schedule.arrivals.truncate(usize::try_from(most).unwrap_or(usize::MAX));
            }
            if matches!(scenario.arrivals, ArrivalSpec::Trace { .. }) {
                load = stretch(&scenario, &schedule.arrivals, step.window);
            }
            LevelTraffic::Open(Arc::new(schedule))
        }
        Load::Closed { concurrency } | Load::Saturating { concurrency } if step.requests.is_some() => {
            let sequence = Schedule::sequence(&scenario, id).map_err(wrong)?.bounded(step.requests);
            LevelTraffic::Closed { sequence, concurrency }
        }
        Load::Wave { requests } => {
            let sequence = Schedule::sequence(&scenario, id).map_err(wrong)?;
            LevelTraffic::Closed { sequence: sequence.bounded(Some(requests.into())), concurrency: requests }
        }
        Load::Closed { concurrency } | Load::Saturating { concurrency } => {
            LevelTraffic::Closed { sequence: Schedule::sequence(&scenario, id).map_err(wrong)?, concurrency }
        }
    };
    Ok(LevelPlan {
        id,
        traffic: step.traffic.clone(),
        purpose: step.purpose.clone(),
        rate_course,
        plays_sessions_out: scenario.plays_sessions_out(),
        ..LevelPlan::new(&scenario, load, requests, step.window, Arc::clone(prompts))
    })
}

/// Reduces a level's plan to the part of one shard. Returns the number and the hash of the arrivals of all shards.
pub(super) fn part_of(plan: &mut LevelPlan, start: ShardStart) -> (u64, String) {
    let of_all = (plan.arrivals().unwrap_or(0), plan.schedule_hash());
    let Shard { index, of } = start.shard;
    let share = |most: u32| (most / of + u32::from(index < most % of)).max(1);
    match &mut plan.requests {
        LevelTraffic::Open(whole) => *whole = Arc::new(Schedule::clone(whole).part(start.shard)),
        LevelTraffic::Closed { sequence, concurrency } => {
            *sequence = sequence.shard(index as usize, of as usize);
            *concurrency = share(*concurrency);
            plan.max_rate_per_s = plan.max_rate_per_s.map(|most| most / f64::from(of));
        }
    }
    plan.load = match plan.load {
        Load::Open { rate_per_s } => Load::Open { rate_per_s: rate_per_s / f64::from(of) },
        Load::Closed { concurrency } => Load::Closed { concurrency: share(concurrency) },
        Load::Wave { requests } => Load::Wave { requests: share(requests) },
        Load::Saturating { concurrency } => Load::Saturating { concurrency: share(concurrency) },
    };
    plan.client.max_in_flight = plan.client.max_in_flight.map(share);
    if let Connections::Pool { limit } = &mut plan.client.connections {
        *limit = share(*limit);
    }
    plan.shard = Some(start);
    of_all
}

/// Returns the load of an excerpt of a trace: its requests over their time, not the trace's mean.
///
/// Turns of sessions are due after the window, because only session starts fall into the window. If all requests are due
/// simultaneously, the rate is 0.
pub(super) fn stretch(scenario: &Scenario, arrivals: &[Arrival], window: Span) -> Load {
    let mut load = of_window(arrivals.len() as u64, window);
    if scenario.plays_sessions_out() && arrivals.len() > 1 {
        let dues = || arrivals.iter().map(|arrival| arrival.due);
        let (first, last) = (dues().min().unwrap_or(At::ZERO), dues().max().unwrap_or(At::ZERO));
        load = match first == last {
            true => Load::Open { rate_per_s: 0.0 },
            false => of_window(arrivals.len() as u64, window.max(last - At::ZERO)),
        };
    }
    load
}

/// Returns the open load of `arrivals` requests in `window`.
pub(super) fn of_window(arrivals: u64, window: Span) -> Load {
    Load::Open { rate_per_s: arrivals as f64 / window.as_secs_f64().max(1e-9) }
}

/// Returns the record of a level for the case that this process dies in it, from its step.
pub(super) fn cut_off(
    id: u32,
    step: &LevelStep,
    (load, rate_course): (Load, RateCourse),
    (start, plays_sessions_out): (At, bool),
) -> Level {
    // The end is only a bound if sessions are played to their ends, because such a level ends with its last row.
    let end = start + if plays_sessions_out { step.window.max(LONGEST) } else { step.window };
    Level {
        id,
        traffic: step.traffic.clone(),
        purpose: step.purpose.clone(),
        load,
        rate_course,
        start,
        stop: end,
        drained: end,
        ended_by: EndedBy::Cut,
        arrivals: 0,
        schedule_hash: String::new(),
        unit: SizeUnit::default(),
        generator: GeneratorHealth::default(),
    }
}

/// A sink that writes rows to the log immediately and keeps them in memory until their level is judged.
pub(super) struct LevelSink {
    pub(super) store: plimsoll_store::RecordSink,
    pub(super) memory: MemorySink,
    pub(super) control: Arc<Control>,
    pub(super) refusals: Arc<Refusals>,
    /// Receiver of the rows that checks whether the load may end early.
    pub(super) ended: Option<Sender<Attempt>>,
    /// Whether the client's own time series describe the whole level; false for a shard's part.
    pub(super) keeps_samples: bool,
}

impl Sink for LevelSink {
    fn attempt(&self, attempt: Attempt) {
        self.store.attempt(&attempt);
        if self.refusals.see(&attempt) {
            self.control.give_up();
        }
        self.ended.iter().for_each(|ended| drop(ended.send(attempt.clone())));
        self.memory.attempt(attempt);
    }

    fn begun(&self, attempt: &Attempt) {
        self.store.begun(attempt);
    }

    fn sample(&self, sample: Sample) {
        if self.keeps_samples {
            self.store.sample(&sample);
        }
        self.memory.sample(sample);
        // The log is checked ten times a second, because a load that can't be recorded is only a burden on the target.
        if self.store.health().error.is_some() && self.control.stops() == 0 {
            self.control.stop();
        }
    }
}
