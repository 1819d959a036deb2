//! The gateway: a streaming reverse proxy in front of replicas.
//!
//! Decisions (routing, retries, ejection) are in `policy`, whose code `sim` runs in virtual time. This crate moves
//! bytes, counts, and reports events to the policies. A request passes these modules:
//!
//! * [`serve`] accepts the connection.
//! * [`proxy`] reads the request; [`request`] finds its prompt in the bytes.
//! * [`pool`] books a replica or puts the request into the [`queue`].
//! * [`upstream`] sends the request to the replica, unless [`cached`] answers it from the [`cache`].
//! * [`relay`] forwards the response as it arrives.
//! * [`traffic`] passes the recording to its writer.
//!
//! If another proxy moves the bytes, the [`picker`] names the replica.
//!
//! Reading order:
//!
//! * configuration: [`record`], [`rollout`], [`telemetry`], [`spec`], [`budget`], [`keys`], [`tls`], [`error`]
//! * state: [`stats`], [`doors`] (authentication), [`paths`] (path allowlist), [`rules`] (active configuration),
//!   [`explain`], [`replica`], [`owners`], [`pool`], [`queue`]
//! * a request: [`request`], [`terms`], [`upstream`], [`trace_context`], [`traces`], [`traffic`]
//! * a response: [`passing`], [`relay`], [`reply`], [`proxy`], [`cached`], [`picker`]
//! * operation: [`prober`], [`pages`], [`admin`], [`serve`], [`reload`]

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
pub use reload::{ReloadOutcome, Reloader};
pub use rollout::{ReplicaRole, Rollout, RolloutSpec, ShadowSpec};
pub use serve::{Gateway, GatewayStopper};
pub use spec::{GatewaySpec, PickerSpec, ReplicaSpec};
pub use telemetry::TelemetrySpec;
pub use traces::TracesSpec;
pub use traffic::TrafficRecorder;
