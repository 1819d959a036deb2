//! The serving path in force: a streaming reverse proxy in front of replicas.
//!
//! What is decided (which replica, whether again, who is ejected) is `policy`'s, the code that `sim` steps in virtual time. This crate moves bytes,
//! counts, and tells the policies what happened. A request's way: [`serve`] accepts it, [`proxy`] reads it whole ([`request`] finds its prompt in the
//! bytes), [`pool`] chooses and books a replica or lets it wait in the [`queue`], [`upstream`] sends it there (or it is answered from the [`cache`]: [`cached`]), [`relay`] passes the answer on as it comes; [`traffic`] hands what
//! happened to whoever keeps it. Where another proxy moves the bytes, the [`picker`] tells it where to.
//!
//! Reading order: [`record`], [`rollout`], [`telemetry`], [`spec`], [`budget`], [`keys`], [`tls`], [`error`], [`stats`], [`doors`] (who gets in), [`paths`] (what may be asked for), [`rules`] (what is in force), [`explain`], [`replica`], [`owners`], [`pool`], [`queue`], [`request`], [`terms`], [`upstream`], [`trace_context`] and [`traces`], [`traffic`], [`passing`], [`relay`], [`reply`], [`proxy`], [`cached`], [`picker`], [`prober`] and [`pages`], [`admin`], [`serve`], [`reload`].

pub mod budget;
pub mod error;
pub mod keys;
pub mod record;
pub mod rollout;
pub mod spec;
pub mod telemetry;
pub mod tls;

pub mod cache;
pub mod doors;
pub mod explain;
pub mod judged;
pub mod models;
pub mod owners;
pub mod paths;
pub mod pool;
pub mod queue;
pub mod replica;
pub mod rules;
mod same;
pub mod stats;

pub mod cached;
pub mod pages;
pub mod passing;
pub mod picker;
pub(crate) mod prober;
pub mod proxy;
pub mod relay;
pub mod reply;
pub mod request;
mod socket;
pub mod terms;
pub mod tiers;
mod timer;
pub mod trace_context;
pub mod traces;
pub mod traffic;
pub mod upstream;
pub mod usage;

pub mod admin;
pub mod reload;
pub mod serve;

pub use error::GatewayError;
pub use record::RecordSpec;
pub use reload::{Reloaded, Reloader};
pub use rollout::{ReplicaRole, Rollout, RolloutSpec, ShadowSpec};
pub use serve::{Gateway, GatewayStopper};
pub use spec::{GatewaySpec, PickerSpec, ReplicaSpec};
pub use telemetry::TelemetrySpec;
pub use traces::TracesSpec;
pub use traffic::Traffic;
