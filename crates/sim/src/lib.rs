//! The simulated engine, and a client for it, in virtual time.
//!
//! An engine is a value that its caller steps: requests and emissions carry times. The live server sleeps until
//! [`World::next_event`]; the virtual client jumps there. Code in this crate never reads a clock or owns a socket,
//! and randomness comes only from the seed.
//!
//! Reading order: [`spec`] (configuration), [`catalogue`] (named models, GPUs and ready profiles), [`traffic`]
//! (inputs and outputs), [`engine`] (one replica and its modes). The last one contains the scheduler, the KV cache
//! and the duration of a step. Then `batcher` (Triton's batches of whole requests), [`fleet`] (replicas behind a
//! router, their faults, and the [`World`] of a client). Last, [`client`] (a level of load against a world, or a
//! protocol in virtual time).

pub mod catalogue;
pub mod client;
pub mod engine;
pub mod fleet;
pub mod spec;
pub mod traffic;

mod batcher;

pub use catalogue::PairSpec;
pub use catalogue::profile::Profile;
pub use client::{Events, LevelRun, RowSink, SimLevelPlan, run_level, simulate_into, simulate_level};
pub use engine::Engine;
pub use engine::scheduler::policy::PolicySpec;
pub use fleet::fault::FaultTruth;
pub use fleet::world::World;
pub use plimsoll_policy::keda::KedaSpec;
pub use plimsoll_policy::{AdmissionControlSpec, AutoscaleSpec, HedgeSpec, RouteSpec};
pub use spec::dynamic::DynamicSpec;
pub use spec::fault::{FaultKind, FaultSpec};
pub use spec::fleet::{AdapterSpec, ColdStartSpec, DisaggregationSpec, FleetSpec, WorldSpec};
pub use spec::law::LawSpec;
pub use spec::{BatchingSpec, CannedSpec, EngineSpec, ModeSpec, QueueSpec, SimSpecError, StepSpec};
pub use traffic::{
    Detail, Emission, EngineGauges, EngineRejection, Failure, FinishReason, RequestEvent, Submit, Totals,
};
