//! The simulated engine, and a client for it, in virtual time.
//!
//! An engine here is a value that its caller steps: requests go in with a time, emissions come out with theirs. The live
//! server sleeps until [`World::next_event`]; the virtual client just goes there. Nothing in this crate reads a
//! clock or owns a socket, and chance comes from the seed alone.
//!
//! Reading order: [`spec`] and [`law`] (what is asked for), [`profile`] (what has a name), [`world`] (the engine as its
//! caller sees it), then its modes `canned`, `queue` and `batching`; [`scheduler`], [`step_time`] and [`roofline`] are
//! what batching is made of. [`client`] runs a level of load against a world.

pub mod spec;

pub mod law;
pub mod roofline;

pub mod profile;

pub mod world;

mod batching;
mod calendar;
mod canned;
mod queue;
mod slots;

pub mod scheduler;
pub mod step_time;

pub mod client;
mod exchange;

pub use client::{LevelPlan, LevelRun, run_level, simulate_level};
pub use law::LawSpec;
pub use profile::Profile;
pub use spec::{BatchingSpec, CannedSpec, EngineSpec, ModeSpec, QueueSpec, SpecError, StepSpec};
pub use world::{Emission, FinishReason, Gauges, Rejected, Submit, Totals, What, World};
