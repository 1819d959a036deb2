//! Decisions over time: which replica gets a request, and how many replicas there should be.
//!
//! A policy is a value that is handed what it may know (views of the replicas as last seen, facts of the request, a seeded
//! stream, `now`) and answers. Who asks, a simulated fleet or a gateway in front of real servers, it does not
//! know; so a policy that was tuned in virtual time is the very one that serves.
//!
//! Reading order: [`setting`] (how policies are written down), [`load`] (what is on a replica), [`telemetry`] (how much of it is others'), [`route`] and its parts [`affinity`] (who has the prefix),
//! [`rendezvous`] (who has the session), [`line`](mod@line), [`speed`] and [`cost`] (what a request costs, in seconds), `peak` (how long each takes); [`health`], [`retry`] and [`hedge`] (who may get it, and who a second time); [`rate`] (how much each may ask for); [`admit`], [`queue`], [`drain`], `lines` and [`demand`] (who waits, for how long, and what it asks
//! for), all of which [`front`] joins to what a gateway is, with [`split`] (which side of a trial it is on); [`similar`] (from which similarity on a request may have another's answer); [`sampling`] (which traces are kept); [`autoscale`] and [`keda`], which is shown a [`fleet`](mod@fleet).

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

pub use admit::{AdmissionSpec, ClassSpec};
pub use affinity::Expected;
pub use autoscale::AutoscaleSpec;
pub use demand::ScaleSignal;
pub use fleet::{Fleet, MOST_REPLICAS};
pub use front::{Front, FrontSpec, Given, Offer, QueuedAsk, Refusal, SentRequest, Terms};
pub use health::{BreakerSpec, Health, ReplicaOutcome, Standing};
pub use hedge::{HedgeSpec, Withheld};
pub use load::{Booking, Load, unseen};
pub use queue::{FairQueue, Order, QueueShare, Ticket};
pub use rate::{RateLimit, RateSpec};
pub use retry::{Breaks, RetryBudget, RetrySpec};
pub use route::{BlockEnds, Facts, LoadMeasure, Outlook, Pick, ReplicaView, RouteSpec, Router};
pub use sampling::{EndedTrace, KeptTrace, SamplingSpec, Stratum, TailSampler};
pub use setting::{SettingError, Written};
pub use similar::{NearUse, SimilarityRule, ThresholdStanding};
pub use speed::{Speed, Speeds};
pub use telemetry::{PageStanding, PageView, Said, Telemetry};
