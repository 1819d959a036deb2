//! The simulated engine, and a client for it, in virtual time.
//!
//! An engine here is a value that its caller steps: requests go in with a time, emissions come out with theirs. The live
//! server sleeps until [`World::next_event`]; the virtual client just goes there. Nothing in this crate reads a
//! clock or owns a socket, and chance comes from the seed alone.
//!
//! Reading order: [`spec`] (what is asked for), [`catalogue`] (what has a name: models, GPUs, ready profiles), [`traffic`] (what
//! goes in and out), [`engine`] (one replica and its modes, with the scheduler, the KV cache and the duration of a step),
//! `batcher` (Triton's batches of whole requests), [`fleet`] (replicas behind a router, the faults that strike them, and the
//! [`World`] that a client meets), [`client`] (a level of load against a world, or a protocol in a hurry).

pub mod catalogue;
pub mod client;
pub mod engine;
pub mod fleet;
pub mod spec;
pub mod traffic;

mod batcher;

pub use catalogue::PairSpec;
pub use catalogue::profile::Profile;
pub use client::{Events, LevelPlan, LevelRun, RowSink, run_level, simulate_into, simulate_level};
pub use engine::Engine;
pub use engine::scheduler::policy::PolicySpec;
pub use fleet::fault::FaultTruth;
pub use fleet::world::World;
pub use plimsoll_policy::keda::KedaSpec;
pub use plimsoll_policy::{AutoscaleSpec, FrontSpec, HedgeSpec, RouteSpec};
pub use spec::dynamic::DynamicSpec;
pub use spec::fault::{FaultKind, FaultSpec};
pub use spec::fleet::{AdapterSpec, ColdStartSpec, DisaggregationSpec, FleetSpec, WorldSpec};
pub use spec::law::LawSpec;
pub use spec::{BatchingSpec, CannedSpec, EngineSpec, ModeSpec, QueueSpec, SpecError, StepSpec};
pub use traffic::{
    Detail, Emission, EngineGauges, Failure, FinishReason, Rejected, RequestEvent, Submit, Totals,
};
