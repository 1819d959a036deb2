//! One replica by formula: what it keeps up with, and what requests meet there at a load.
//!
//! Reading order: [`sharing`](super::sharing) (continuous batching: its steps), `backlog` (prompts), `chain` and `crowd` (how many),
//! `latency` (what requests meet); `servers` (a queue of whole
//! requests) and `batches` (dynamic batching) for the other kinds. An engine of drawn times has no limit.

use plimsoll_sim::{EngineSpec, ModeSpec, PolicySpec, RouteSpec};

use super::batches::Batches;
use super::crowd::Crowd;
use super::latency::{self, Sample};
use super::mix::Mix;
use super::servers::{self, Servers};
use super::sharing::Sharing;
use super::spec::PlanError;
use super::steady::Share;
pub use super::steady::Steady;

/// See the module.
#[derive(Clone, Debug)]
pub enum Replica {
    /// Continuous batching.
    Sharing(Box<Sharing>),
    /// A queue before equal servers.
    Servers(Servers),
    /// Batches of whole requests.
    Batches(Batches),
    /// Times drawn for each request, whatever the load.
    Free(Sample),
}

/// A load on so many replicas.
#[derive(Copy, Clone, PartialEq, Debug)]
pub struct Load {
    /// Requests per second over all of them.
    pub rate_per_s: f64,
    /// How many.
    pub replicas: u32,
    /// How they are spread.
    pub route: RouteSpec,
}

impl Replica {
    /// The replica of this engine under this mix.
    ///
    /// # Errors
    /// There is no formula for it, or it can't be built.
    pub fn new(engine: &EngineSpec, mix: &Mix) -> Result<Replica, PlanError> {
        Ok(match &engine.mode {
            ModeSpec::Canned(canned) => Replica::Free(servers::drawn(canned, mix)),
            ModeSpec::Queue(queue) => Replica::Servers(Servers::new(queue, mix)),
            ModeSpec::Dynamic(dynamic) => Replica::Batches(Batches::new(dynamic, mix)),
            ModeSpec::Batching(batching) => {
                if matches!(batching.policy, PolicySpec::Static(_)) {
                    let why = "static batches of sequences end with their longest answer: no formula here says what \
                               requests meet there, so let it be simulated";
                    return Err(PlanError::NoFormula(why.to_owned()));
                }
                Replica::Sharing(Box::new(Sharing::new(batching, mix)?))
            }
        })
    }

    /// The model in words.
    pub fn model(&self) -> &'static str {
        match self {
            Replica::Sharing(_) => "processor sharing with load-dependent rates",
            Replica::Servers(_) => {
                "G/G/c by Allen and Cunneen, which is M/M/c where arrivals and services are exponential"
            }
            Replica::Batches(_) => "bulk service",
            Replica::Free(_) => "no queue: every answer takes drawn times whatever the load",
        }
    }

    /// Requests per second that it keeps up with; infinite without a limit.
    pub fn limit_per_s(&self) -> f64 {
        match self {
            Replica::Sharing(sharing) => sharing.limit_per_s(),
            Replica::Servers(servers) => servers.limit_per_s(),
            Replica::Batches(batches) => batches.limit_per_s(),
            Replica::Free(_) => f64::INFINITY,
        }
    }

    /// What requests meet at this load; `None` where the busiest replica does not keep up.
    pub fn at(&self, load: &Load, mix: &Mix) -> Option<Steady> {
        let share = self.share(load, mix);
        if !(share.rate > 0.0 && share.rate < self.limit_per_s()) {
            return None;
        }
        match self {
            Replica::Sharing(sharing) => {
                let crowd = Crowd::new(sharing, share)?;
                let (sample, e2e_s) = latency::sample(&crowd);
                let full = crowd.chain.as_ref().map_or(0.0, |chain| chain.full);
                Some(Steady { e2e_s, ..Steady::of(sample, share.rate * e2e_s, full)? })
            }
            Replica::Servers(servers) => servers.at(&share),
            Replica::Batches(batches) => batches.at(&share),
            Replica::Free(sample) => {
                let flight = share.rate * Sample::mean(&sample.e2e)?;
                Steady::of(sample.clone(), flight, 0.0)
            }
        }
    }

    /// The busiest replica's share of a load.
    pub(super) fn share(&self, load: &Load, mix: &Mix) -> Share {
        let replicas = f64::from(load.replicas.max(1));
        let even = load.rate_per_s / replicas;
        let variance = mix.dispersion(load.rate_per_s * self.memory_s(even));
        let random = 1.0 + (variance - 1.0) / replicas;
        // The least loaded is one that has not been sent to of late: half way from chance to turns. The better of two: half of that way.
        // Both are read off simulations of chat and retrieval on 4 and 16 replicas.
        let least = 0.5 * (random + variance / replicas);
        let (rate, variance, local, pooled) = match load.route {
            RouteSpec::RoundRobin {} => (even, variance / replicas, variance / replicas, 1.0),
            RouteSpec::LeastRequests {} | RouteSpec::LeastTokens {} if load.replicas > 1 => {
                (even, variance, least, replicas)
            }
            RouteSpec::PowerOfTwo { .. } if load.replicas > 1 => {
                (even, variance, 0.5 * (least + random), replicas)
            }
            RouteSpec::Session { bound } | RouteSpec::Prefix { bound, .. } => {
                (even * bound.min(replicas), random, random, 1.0)
            }
            _ => (even, random, random, 1.0),
        };
        Share { rate, variance: variance.max(0.0), local: local.max(0.0), pooled }
    }

    /// As far back as a replica remembers, s: about the time that it takes over a request, longer when it is nearly full.
    fn memory_s(&self, rate: f64) -> f64 {
        let limit = self.limit_per_s();
        match self {
            Replica::Sharing(sharing) => {
                let busy = (rate / limit).min(0.98);
                sharing.service((busy * sharing.slots).max(1.0)) / (1.0 - busy)
            }
            _ if limit.is_finite() => 1.0 / (limit - rate).max(0.02 * limit),
            _ => 1.0,
        }
    }
}
