//! Defines the plan of one level and the state that its workers share.

use std::fmt;
use std::sync::Arc;

use plimsoll_model::{At, Attempt, Load, RateCourse, Shard, Span};
use plimsoll_wire::{RequestOptions, encode};
use plimsoll_workload::{Arrival, ClientSpec, Prompts, Scenario, Schedule, Sequence, SessionAnswerTexts};

use crate::driver::control::StopLimits;
use crate::driver::live::LiveCounters;
use crate::driver::requests::RequestKinds;
use crate::driver::sink::Sink;
use crate::http1::request::{AttemptKey, PreparedRequest};
use crate::target::EncodedBody;

/// The requests of a level and their timing.
#[derive(Clone, Debug)]
pub enum LevelTraffic {
    /// Open loop: each arrival at its scheduled time.
    Open(Arc<Schedule>),
    /// Closed loop with a fixed number of requests in flight.
    Closed {
        sequence: Sequence,
        /// Number of requests that are kept in flight.
        concurrency: u32,
    },
}

/// One machine's part of a load that several machines send.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct ShardStart {
    /// The part. The schedule contains no other requests.
    pub shard: Shard,
    /// Start of the level on all machines. If it has passed, requests are late and recorded as late.
    pub at: At,
}

#[derive(Clone, Debug)]
pub struct LevelPlan {
    pub id: u32,
    /// Kind of traffic, in the scenario's terms.
    pub traffic: String,
    pub purpose: String,
    /// Load in the terms of the records.
    pub load: Load,
    /// Intended shape of the arrival rate, even or not.
    pub rate_course: RateCourse,
    pub requests: LevelTraffic,
    /// Time during which new requests begin.
    pub window: Span,
    /// Set to play started sessions to their end, which also extends the level.
    pub plays_sessions_out: bool,
    pub client: ClientSpec,
    pub prompts: Arc<Prompts>,
    /// Seed of the client's random choices (jitter, cancellations).
    pub seed: u64,
    /// Connections to open before the start; `None` = an estimate from the load.
    pub warm: Option<u32>,
    /// Rate limit of a closed loop in requests per second over all workers; `None` = no limit.
    pub max_rate_per_s: Option<f64>,
    /// Part of a load that several machines send; `None` = this machine sends all of it, without a common start.
    pub shard: Option<ShardStart>,
}

impl LevelPlan {
    /// Returns a plan for a steady level of this scenario, sent by this machine without a rate limit.
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
        }
    }

    /// Returns the expected requests in flight for an unknown target: the closed loop's number, or half a second of
    /// arrivals.
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

    /// Returns the shortest interval between two requests on each of `workers` workers; zero without a rate limit.
    pub fn pace(&self, workers: usize) -> Span {
        self.max_rate_per_s.map_or(Span::ZERO, |rate| Span::from_secs_f64(workers as f64 / rate.max(1e-9)))
    }

    /// Returns the number of scheduled arrivals; `None` for a closed loop, whose arrivals follow responses.
    pub fn arrivals(&self) -> Option<u64> {
        match &self.requests {
            LevelTraffic::Open(schedule) => Some(schedule.arrivals.len() as u64),
            LevelTraffic::Closed { .. } => None,
        }
    }

    /// Returns the hash of the schedule; for a closed loop, the hash of its first 256 requests.
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

/// The state that all workers of a level share.
pub struct LevelContext {
    /// Level number within the run.
    pub id: u32,
    /// First time at which an arrival can be due.
    pub start: At,
    pub window: Span,
    pub open: bool,
    /// Identity of the run, for request ids.
    pub run_id: String,
    pub sink: Arc<dyn Sink>,
    pub requests: RequestKinds,
    pub client: ClientSpec,
    pub prompts: Arc<Prompts>,
    pub keep_text: bool,
    /// Limits set by the user, and the counters that they apply to.
    pub limits: (StopLimits, LiveCounters),
}

impl fmt::Debug for LevelContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Shared(level {})", self.id)
    }
}

impl LevelContext {
    /// Returns whether the load has reached a ceiling on requests or errors.
    ///
    /// Every end of a request checks this, because a fast target completes hundreds of requests between two ticks of the
    /// watching thread.
    pub fn at_ceiling(&self) -> bool {
        let (limits, live) = &self.limits;
        if limits.max_requests.is_none() && limits.max_errors.is_none() {
            return false;
        }
        let (begun, failed) = live.begun_and_failed();
        let over = |value: u64, limit: Option<u64>| limit.is_some_and(|limit| value >= limit);
        over(begun, limits.max_requests) || over(failed, limits.max_errors)
    }

    /// Returns the value of `x-request-id`.
    pub fn name(&self, (request, attempt): AttemptKey) -> Name<'_> {
        Name { run: &self.run_id, level: self.id, request, attempt }
    }

    /// Returns the name that all attempts of a request share.
    pub(crate) fn request_name(&self, request: u64) -> RequestName<'_> {
        RequestName { run: &self.run_id, level: self.id, request }
    }

    /// Builds the body of an attempt. `said` is the answers of its session so far.
    ///
    /// `own` is the worker's copy of the options of all kinds. Only the fields that differ between requests are set in it,
    /// because a copy per request would include the template.
    pub fn prepare(
        &self,
        arrival: &Arrival,
        attempt: u16,
        own: &mut Vec<RequestOptions>,
        said: Option<&SessionAnswerTexts>,
    ) -> PreparedRequest {
        let (payload, blocks) = self.prompts.render_with(arrival, said);
        if own.is_empty() {
            *own = self.requests.options();
        }
        let options = &mut own[self.requests.place_of(arrival.class)];
        options.max_tokens = (arrival.output_tokens > 0).then_some(arrival.output_tokens);
        // Only a template can reference the name.
        if options.template.is_some() {
            options.id = self.name((arrival.id, attempt)).to_string();
        }
        PreparedRequest { media: payload.media(), body: EncodedBody::from(encode(&payload, options)), blocks }
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
    /// Returns the names of a recorded attempt and its request.
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

/// A session's name; without a session, the name of the request.
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
