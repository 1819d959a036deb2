//! The gateway: a streaming reverse proxy in front of replicas.
//!
//! Decisions (routing, retries, ejection) are in `policy`, whose code `sim` runs in virtual time. This crate moves
//! bytes, counts, and reports events to the policies. `proxy` contains the path of a request. If another proxy moves
//! the bytes, the `picker` names the replica.
//!
//! Reading order:
//!
//! * configuration: [`spec`], [`record`], [`rollout`], [`telemetry`], [`traces`], [`budget`], [`keys`], [`tls`]
//! * state: [`stats`], `auth`, [`paths`] (path allowlist), `active_config`, [`explain`], `replica`, [`owners`], [`pool`]
//! * a request: `proxy`, [`request`], `upstream`, [`trace_context`], [`traffic`] (recording)
//! * a response: `head_verdict`, `relay`, [`response_observer`], `reply`, [`cache`], `cache_lookup`, `picker`
//! * operation: `serve`, `prober`, `replica_scrape`, `admin`, [`reload`]

pub mod budget;
mod error;
pub mod keys;
pub mod record;
pub mod rollout;
pub mod spec;
pub mod telemetry;
pub mod tls;

mod active_config;
mod auth;
pub mod cache;
pub mod explain;
mod head_verdict;
pub mod models;
pub mod owners;
pub mod paths;
pub mod pool;
mod replica;
pub mod stats;

mod cache_lookup;
mod picker;
mod prober;
mod proxy;
mod relay;
mod replica_scrape;
mod reply;
pub mod request;
pub mod response_observer;
mod socket;
mod tiers;
mod timer;
pub mod trace_context;
pub mod traces;
pub mod traffic;
mod upstream;

mod admin;
pub mod reload;
mod serve;

pub use error::GatewayError;
pub use record::RecordSpec;
pub use reload::{ReloadOutcome, Reloader};
pub use rollout::{ReplicaRole, Rollout, RolloutSpec, ShadowSpec};
pub use serve::{Gateway, GatewayStopper};
pub use spec::{GatewaySpec, PickerSpec, ReplicaSpec};
pub use telemetry::TelemetrySpec;
pub use traces::TracesSpec;
pub use traffic::TrafficRecorder;
