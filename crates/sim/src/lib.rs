//! The simulated engine, and a client for it, in virtual time.
//!
//! An engine here is a value that its caller steps: requests go in with a time, emissions come out with theirs. The live
//! server sleeps until [`World::next_event`]; the virtual client just goes there. Nothing in this crate reads a
//! clock or owns a socket, and chance comes from the seed alone.
//!
//! Reading order: [`spec`] and [`law`] (what is asked for), [`profile`] (what has a name), [`traffic`] (what goes in and
//! out), [`world`] (what a client meets; a fleet is `fleet_entry` (the way in), `fleet`, `fleet_watch` (the way out), [`fault`],
//! `fleet_faults`, `fleet_scale`, `fleet_split` and `adapters`), [`engine`] (one replica), then its modes `canned`, `queue`, `batching` and
//! `inference` (with [`dynamic`], `batcher`, `batch_queue`); [`scheduler`], [`step_time`] and [`roofline`] are what
//! batching is made of; [`smooth_step`] is the step for formulas. [`meter`] is what an engine counts and `server_page` what is
//! scraped off it. [`client`] runs a level of load against a world (`exchange`, `links`), [`trial`] a protocol in a hurry.

pub mod spec;

pub mod dynamic;
pub mod gpu;
pub mod law;
pub mod origin;
pub mod roofline;
pub mod shape;
pub mod speculation;

mod batch_profiles;
pub mod catalogue;
pub mod engine_file;
pub mod profile;

pub mod meter;
pub mod traffic;

pub mod engine;

pub mod fault_spec;
pub mod fleet_spec;

pub mod adapters;
mod agenda;
pub mod fault;
mod fleet;
mod fleet_entry;
mod fleet_faults;
mod fleet_scale;
mod fleet_split;
mod fleet_watch;
mod replica;
pub mod world;

mod batch_queue;
mod batcher;
mod batching;
mod calendar;
mod canned;
mod inference;
mod outlet;
mod pace;
mod queue;
mod slots;

pub mod kv;
pub mod scheduler;
pub mod smooth_step;
pub mod step_time;
mod terms;

pub mod client;
mod exchange;
mod links;
mod server_page;

pub mod trial;

pub use catalogue::PairSpec;
pub use client::{Events, LevelPlan, LevelRun, Rows, run_level, simulate_into, simulate_level};
pub use dynamic::DynamicSpec;
pub use engine::Engine;
pub use fault::FaultTruth;
pub use fault_spec::{FaultKind, FaultSpec};
pub use fleet_spec::{AdapterSpec, ColdStartSpec, DisaggregationSpec, FleetSpec, WorldSpec};
pub use law::LawSpec;
pub use plimsoll_policy::depth::QueueDepthSpec;
pub use plimsoll_policy::keda::KedaSpec;
pub use plimsoll_policy::{AutoscaleSpec, RouteSpec, Signal};
pub use profile::Profile;
pub use scheduler::policy::PolicySpec;
pub use spec::{BatchingSpec, CannedSpec, EngineSpec, ModeSpec, QueueSpec, SpecError, StepSpec};
pub use traffic::{Detail, Emission, Failure, FinishReason, Gauges, Rejected, Submit, Totals, What};
pub use world::World;
