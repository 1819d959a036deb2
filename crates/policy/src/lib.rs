//! Decisions over time: routing of requests and scaling of replicas.
//!
//! A policy is a value. Its inputs are the last known replica states, properties of the request, a seeded stream and
//! `now`; its output is a decision. It does not depend on its caller, a simulated fleet or a gateway in front of real
//! servers. A policy that was tuned in virtual time is therefore the one that serves.
//!
//! Reading order:
//!
//! * [`setting`] (configuration syntax), [`load`] (load of a replica), [`telemetry`] (load of other clients)
//! * [`route`] with [`affinity`] (prefix index), [`rendezvous`] (sticky sessions), [`line`](mod@line), [`speed`],
//!   [`cost`] (cost in seconds) and `peak` (latency)
//! * [`health`], [`retry`] and [`hedge`] (eligible replicas and further attempts), [`rate`] (rate limits)
//! * [`admit`], [`queue`], [`drain`], `lines` and [`demand`] (queueing and demand)
//! * [`front`], which joins all of these to a gateway, with [`split`] (canary sides)
//! * [`similar`] (semantic cache), [`sampling`] (trace sampling)
//! * [`autoscale`] and [`keda`], whose input is a [`fleet`](mod@fleet)

pub mod setting;

mod lines;
pub mod load;
mod models;
pub mod route;
pub mod telemetry;

pub mod affinity;
pub mod cost;
pub mod line;
mod peak;
pub mod rendezvous;
pub mod speed;

pub mod health;
pub mod hedge;
pub mod retry;

pub mod admit;
pub mod demand;
pub mod drain;
pub mod front;
pub mod queue;
pub mod rate;
pub mod sampling;
pub mod similar;
pub mod split;

pub mod autoscale;
pub mod fleet;
pub mod keda;

pub use admit::{AdmissionClassSpec, AdmissionSpec};
pub use affinity::ExpectedHit;
pub use autoscale::AutoscaleSpec;
pub use demand::ScaleSignal;
pub use fleet::{FleetSample, MOST_REPLICAS};
pub use front::{
    AdmissionControlSpec, AdmissionController, AdmissionDecision, AdmissionParams, DequeueDecision,
    QueuedRequestFacts, Refusal, SentRequest,
};
pub use health::{BreakerSpec, Health, ReplicaAvailability, ReplicaOutcome};
pub use hedge::{HedgeSkipReason, HedgeSpec};
pub use load::{Booking, ReplicaLoad, unseen};
pub use queue::{FairQueue, Order, QueueShare, Ticket};
pub use rate::{RateLimit, RateSpec};
pub use retry::{Breaks, RetryBudget, RetryBudgetSpec};
pub use route::{
    BlockEnds, LoadMeasure, ReplicaView, RequestFacts, RequestForecast, RouteDecision, RouteSpec, Router,
};
pub use sampling::{EndedTrace, KeptTrace, SamplingSpec, TailSampler, TraceStratum};
pub use setting::{ParsedSetting, SettingError};
pub use similar::{NearUse, SimilarityRule, ThresholdStanding};
pub use speed::{Speed, Speeds};
pub use telemetry::{PageStanding, PageView, ReportedLoad, Telemetry};
