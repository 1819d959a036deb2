//! What one level is asked to be, and what its workers share.

use std::fmt;
use std::sync::Arc;

use plimsoll_model::{At, Attempt, Load, RateCourse, Shard, Span};
use plimsoll_wire::{QueueWish, RequestOptions, encode};
use plimsoll_workload::{Arrival, ClientSpec, Prompts, Said, Scenario, Schedule, Sequence, TargetSpec};

use crate::control::StopLimits;
use crate::live::LiveCounters;
use crate::request::{AttemptKey, Opening, Prepared};
use crate::sink::Sink;
use crate::target::{Body, Target};

/// Which requests a level sends, and when.
#[derive(Clone, Debug)]
pub enum LevelTraffic {
    /// These arrivals, each at its time.
    Open(Arc<Schedule>),
    /// So many at a time, from this sequence.
    Closed {
        /// The requests, in order.
        sequence: Sequence,
        /// How many at a time.
        concurrency: u32,
    },
}

/// Of a load that several machines send: the part that is sent here, and when all begin.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct ShardStart {
    /// The part. The schedule holds nothing else.
    pub shard: Shard,
    /// The level's first instant; where it has passed, what was due is late and says so.
    pub at: At,
}

#[derive(Clone, Debug)]
pub struct LevelPlan {
    pub id: u32,
    /// Kind of traffic, as the scenario names it.
    pub traffic: String,
    pub purpose: String,
    /// The load, as records tell it.
    pub load: Load,
    /// Whether the rate of arrivals is meant to be even.
    pub rate_course: RateCourse,
    /// Which requests, and when.
    pub requests: LevelTraffic,
    /// How long new requests are begun.
    pub window: Span,
    /// Are sessions that have begun played to their ends, and is the level as long as they take?
    pub plays_sessions_out: bool,
    pub client: ClientSpec,
    pub prompts: Arc<Prompts>,
    /// Seed of the client's own chance (jitter, cancellations).
    pub seed: u64,
    /// Connections to open before the start; `None` = a guess from the load.
    pub warm: Option<u32>,
    /// The rate that a closed loop may not go over, all workers together; `None` = as fast as the target answers.
    pub max_rate_per_s: Option<f64>,
    /// Of a load that several machines send: this one's part. `None` = all of it, at once.
    pub shard: Option<ShardStart>,
    /// Model asked for, by request class; a class past the end takes the target's.
    pub class_models: Vec<Option<String>>,
    /// What each request class asks of the server's queue; a class past the end asks nothing.
    pub class_queues: Vec<QueueWish>,
}

impl LevelPlan {
    /// A steady level of this scenario, all of it sent from here, as fast as the target answers.
    pub fn new(
        scenario: &Scenario,
        load: Load,
        requests: LevelTraffic,
        window: Span,
        prompts: Arc<Prompts>,
    ) -> LevelPlan {
        LevelPlan {
            id: 0,
            traffic: "steady".into(),
            purpose: "run".into(),
            load,
            rate_course: RateCourse::Even,
            requests,
            window,
            plays_sessions_out: false,
            client: scenario.client.clone(),
            prompts,
            seed: scenario.seed,
            warm: None,
            max_rate_per_s: None,
            shard: None,
            class_models: Vec::new(),
            class_queues: Vec::new(),
        }
    }

    /// Requests expected in flight when nothing is known of the target: the closed loop's number, or half a second's
    /// worth of arrivals.
    pub(crate) fn connections_expected(&self) -> u32 {
        match (self.warm, &self.requests, self.load) {
            (Some(warm), _, _) => warm,
            (None, LevelTraffic::Closed { concurrency, .. }, _) => *concurrency,
            (None, LevelTraffic::Open(_), Load::Open { rate_per_s }) => {
                (rate_per_s * 0.5).clamp(4.0, 512.0) as u32
            }
            (None, LevelTraffic::Open(_), _) => 64,
        }
    }

    /// Least time between two beginnings on each of so many workers, where the level is held to a rate.
    pub fn pace(&self, workers: usize) -> Span {
        self.max_rate_per_s.map_or(Span::ZERO, |rate| Span::from_secs_f64(workers as f64 / rate.max(1e-9)))
    }

    /// Arrivals in the schedule; `None` for a closed loop, where they follow the ends.
    pub fn arrivals(&self) -> Option<u64> {
        match &self.requests {
            LevelTraffic::Open(schedule) => Some(schedule.arrivals.len() as u64),
            LevelTraffic::Closed { .. } => None,
        }
    }

    /// The schedule's hash; of a closed loop, that of its first 256 requests.
    pub fn schedule_hash(&self) -> String {
        match &self.requests {
            LevelTraffic::Open(schedule) => schedule.hash(),
            LevelTraffic::Closed { sequence, .. } => {
                let mut sequence = sequence.shard(0, 1);
                let mut arrivals = Vec::new();
                while arrivals.len() < 256 {
                    let start = sequence.next_start();
                    if start.is_empty() {
                        break;
                    }
                    arrivals.extend(start);
                }
                Schedule { arrivals }.hash()
            }
        }
    }
}

/// One of the endpoints that a load goes to.
#[derive(Clone, Debug)]
pub struct Endpoint {
    pub target: Arc<Target>,
    pub opening: Opening,
}

/// What all workers of a level share.
pub struct Shared {
    /// The level's number.
    pub id: u32,
    /// First instant at which an arrival can be due.
    pub start: At,
    pub window: Span,
    pub open: bool,
    /// The run's identity, for request ids.
    pub run_id: String,
    pub sink: Arc<dyn Sink>,
    /// The endpoints, by number.
    pub endpoints: Vec<Endpoint>,
    pub spec: TargetSpec,
    pub client: ClientSpec,
    pub prompts: Arc<Prompts>,
    /// What every request has in common.
    pub options: RequestOptions,
    pub class_models: Vec<Option<String>>,
    /// What each request class asks of the server's queue; a class past the end asks nothing.
    pub class_queues: Vec<QueueWish>,
    pub keep_text: bool,
    /// Limits the user set, and the counts they are held against.
    pub limits: (StopLimits, LiveCounters),
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Shared(level {})", self.id)
    }
}

impl Shared {
    /// Has the load reached a ceiling on requests or errors? Asked at every end, because a target that answers at once
    /// gets hundreds of requests between two looks of the watching thread.
    pub fn at_ceiling(&self) -> bool {
        let (limits, live) = &self.limits;
        if limits.max_requests.is_none() && limits.max_errors.is_none() {
            return false;
        }
        let (begun, failed) = live.begun_and_failed();
        let over = |value: u64, limit: Option<u64>| limit.is_some_and(|limit| value >= limit);
        over(begun, limits.max_requests) || over(failed, limits.max_errors)
    }

    /// The value of `x-request-id`.
    pub fn name(&self, (request, attempt): AttemptKey) -> Name<'_> {
        Name { run: &self.run_id, level: self.id, request, attempt }
    }

    /// What all attempts of a request have in common.
    pub(crate) fn request_name(&self, request: u64) -> RequestName<'_> {
        RequestName { run: &self.run_id, level: self.id, request }
    }

    /// Makes the body of an attempt. `own` is the worker's copy of the level's options: what differs between requests is
    /// set in it, and the rest, which may hold a template, is not copied for each. `said`: the answers of its session so far.
    pub fn prepare(
        &self,
        arrival: &Arrival,
        attempt: u16,
        own: &mut Option<RequestOptions>,
        said: Option<&Said>,
    ) -> Prepared {
        let (payload, blocks) = self.prompts.render_with(arrival, said);
        let options = own.get_or_insert_with(|| self.options.clone());
        let of_class = self.class_models.get(usize::from(arrival.class)).and_then(Option::as_ref);
        let model = of_class.or(self.options.model.as_ref());
        if options.model.as_ref() != model {
            options.model = model.cloned();
        }
        options.queue = self.class_queues.get(usize::from(arrival.class)).copied().unwrap_or_default();
        options.max_tokens = (arrival.output_tokens > 0).then_some(arrival.output_tokens);
        // Only a template can ask for it.
        if options.template.is_some() {
            options.id = self.name((arrival.id, attempt)).to_string();
        }
        Prepared { media: payload.media(), body: Body::from(encode(&payload, options)), blocks }
    }
}

/// An attempt's name towards the server: run, level, request, attempt.
#[derive(Copy, Clone, Debug)]
pub struct Name<'a> {
    run: &'a str,
    level: u32,
    request: u64,
    attempt: u16,
}

impl<'a> Name<'a> {
    /// What a run called an attempt, and its request.
    pub fn of(run: &'a str, attempt: &Attempt) -> (RequestName<'a>, Name<'a>) {
        let Attempt { level, request, attempt, .. } = *attempt;
        (RequestName { run, level, request }, Name { run, level, request, attempt })
    }
}

impl fmt::Display for Name<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}-{}-{}", self.run, self.level, self.request, self.attempt)
    }
}

/// A request's name, without its attempt.
#[derive(Copy, Clone, Debug)]
pub struct RequestName<'a> {
    run: &'a str,
    level: u32,
    request: u64,
}

impl fmt::Display for RequestName<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}-{}", self.run, self.level, self.request)
    }
}

/// The name of the session that a request is a turn of; without one the request's.
#[derive(Copy, Clone, Debug)]
pub struct SessionName<'a>(pub &'a RequestName<'a>, pub Option<u64>);

impl fmt::Display for SessionName<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.1 {
            Some(session) => write!(f, "{}-{}-s{session}", self.0.run, self.0.level),
            None => self.0.fmt(f),
        }
    }
}
