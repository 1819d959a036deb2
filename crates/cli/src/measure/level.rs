//! One level: what is asked of it, what the client is told, and what is left of it in memory.

use std::sync::Arc;
use std::sync::mpsc::Sender;

use plimsoll_client::{Control, LevelPlan, LevelTraffic, Memory, ShardStart, Sink};
use plimsoll_measure::Gathered;
use plimsoll_measure::sweep::SweepLevel;
use plimsoll_model::{
    At, Attempt, EndedBy, GeneratorHealth, Level, Load, RateCourse, Sample, Shard, SizeUnit, Span,
};
use plimsoll_wire::QueueWish;
use plimsoll_workload::scenario::LONGEST;
use plimsoll_workload::{Arrival, ArrivalSpec, Connections, Prompts, Scenario, Schedule};

use serde::{Deserialize, Serialize};

use super::hopeless::Refusals;
use crate::exit::Stop;

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct LevelStep {
    pub traffic: String,
    /// The arrival process of that kind; `None` = the scenario's.
    pub arrivals: Option<ArrivalSpec>,
    pub purpose: String,
    pub load: Load,
    pub window: Span,
    pub max_requests: Option<u64>,
    /// Of a closed loop: it ends after so many requests, and the level with it.
    pub requests: Option<u64>,
    /// The rate that a closed loop is held to, requests/s, below the one of the whole measurement.
    pub max_rate_per_s: Option<f64>,
}

impl LevelStep {
    /// Of the scenario's own arrivals, as many as there are.
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

    /// A closed loop that ends after so many requests.
    pub fn of_requests(purpose: &str, concurrency: u32, requests: u64) -> LevelStep {
        let load = Load::Closed { concurrency };
        LevelStep { requests: Some(requests), ..LevelStep::new(purpose, load, LONGEST) }
    }

    /// What a sweep asks for, of one of these kinds of traffic.
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

/// What one level has that its scenario has not.
#[derive(Default)]
pub struct Variation {
    /// The scenario with another client, other lengths or other prompts; the target is the same.
    pub scenario: Option<Scenario>,
    /// Number of a replica that is asked alone; see [`super::Measure::replica`].
    pub replica: Option<usize>,
}

pub struct MeasuredLevel {
    pub level: Level,
    pub rows: LevelRows,
    pub samples: Vec<Sample>,
}

/// The rows of a level, as far as they are in memory: all of them are in the run folder.
pub enum LevelRows {
    /// The records. A run folder is written from them.
    Records(Vec<Attempt>),
    /// What figures need of records that were not kept: a simulated day has a million of them.
    Gathered(Box<Gathered>),
}

impl MeasuredLevel {
    /// Attempts that brought a whole answer.
    pub fn finished(&self) -> u64 {
        match &self.rows {
            LevelRows::Records(attempts) => {
                attempts.iter().filter(|a| a.outcome.is_finished()).count() as u64
            }
            LevelRows::Gathered(gathered) => gathered.finished(),
        }
    }

    /// The records, where they were kept.
    pub fn records(&self) -> &[Attempt] {
        match &self.rows {
            LevelRows::Records(attempts) => attempts,
            LevelRows::Gathered(_) => &[],
        }
    }
}

/// What a step becomes for the client.
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
        class_models: scenario.classes.iter().map(|class| class.model.clone()).collect(),
        class_queues: scenario
            .classes
            .iter()
            .map(|class| QueueWish { priority: class.priority, timeout: class.queue_timeout })
            .collect(),
        ..LevelPlan::new(&scenario, load, requests, step.window, Arc::clone(prompts))
    })
}

/// Leaves of a level what one of several machines sends of it; gives how many arrivals all have together, and the hash of these.
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

/// The load of a stretch of a trace: the requests due over the time that they are due in, not the trace's mean. Turns of sessions are due past the
/// window, into which only their sessions' beginnings fall; what is due all at once has no rate: 0.
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

/// So many requests in so long.
pub(super) fn of_window(arrivals: u64, window: Span) -> Load {
    Load::Open { rate_per_s: arrivals as f64 / window.as_secs_f64().max(1e-9) }
}

/// A level as it will have been if this process dies in it, as far as its step tells.
pub(super) fn cut_off(
    id: u32,
    step: &LevelStep,
    (load, rate_course): (Load, RateCourse),
    (start, plays_sessions_out): (At, bool),
) -> Level {
    // Those that play sessions to their ends are as long as these take: it ends where its last row does.
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

/// Rows go to the log at once and stay in memory until their level is judged.
pub(super) struct LevelSink {
    pub(super) store: plimsoll_store::Sink,
    pub(super) memory: Memory,
    pub(super) control: Arc<Control>,
    pub(super) refusals: Arc<Refusals>,
    /// Who looks whether enough is known.
    pub(super) ended: Option<Sender<Attempt>>,
    /// Are the client's own time series those of the whole level? Of a shard's part they are not.
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
        // Looked at ten times a second: a load whose records have nowhere to go is only a burden on the target.
        if self.store.health().error.is_some() && self.control.stops() == 0 {
            self.control.stop();
        }
    }
}
