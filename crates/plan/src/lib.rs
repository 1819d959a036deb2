//! Capacity plans: the number of replicas that meet an SLO under a load, their cost, and the load at which they break (SPEC
//! Q1–Q4).
//!
//! One replica is simulated separately, which bounds the number from below. Fleets are then simulated around that bound.
//! Queues with a closed form are also computed, and a plan prints both values if they disagree.
//!
//! Reading order:
//!
//! * Types: [`spec`] (input), [`finding`] (result), [`fit`] (an engine from a measured run) and [`mix`] (lengths).
//! * Bounds: [`replica`] (one replica), [`slots`](mod@slots) and [`mod@bounds`].
//! * Simulation: [`load`] (schedules), [`mod@simulate`] (an experiment), [`tally`] (its counts), [`decide`] (the verdict of
//!   several experiments) and [`planner`] (the next experiments). [`breaks`] and [`scaling`] are later parts of the
//!   planner.
//! * Result: [`mod@conclude`] combines bounds and simulation, [`mod@file`] stores them, and [`mod@verify`] compares them
//!   with a run.
//! * Alternatives: [`search`] finds a cheaper configuration among the variants of [`vary`]. [`mod@envelope`] is the plan
//!   from four figures. [`mod@what_if`] predicts a measured run under a change.
//!
//! Shared parts: [`mod@change`] is a change of a world, for levers, what-ifs and searches. [`replay`] sends a list of
//! requests to a simulated world. [`calibrate`] fits a simulated engine to measured rows, and [`validate`] recomputes its
//! error tables from the shipped rows. [`levers`] ranks changes. [`calc`] evaluates formulas of queueing and scaling
//! without a run. [`roofline`] names the bound of prefill and decode. [`mod@effect`] compares two loads by the wait that they cause.

pub mod calc;
pub mod calibrate;
pub mod change;
pub mod effect;
pub mod envelope;
pub mod finding;
pub mod fit;
pub mod levers;
pub mod recorded;
pub mod replay;
pub mod roofline;
pub mod spec;
pub mod validate;
pub mod what_if;

pub mod bill;
pub mod bounds;
pub mod mix;
pub mod odds;
pub mod replica;
pub mod slots;

pub mod load;

pub mod simulate;
pub mod tally;

pub mod breaks;
pub mod decide;
pub mod planner;
pub mod scaling;

pub mod conclude;
pub mod file;
pub mod search;
pub mod vary;
pub mod verify;

pub use bill::cost;
pub use bounds::bounds;
pub use finding::PlanFinding;
pub use mix::Mix;
pub use odds::probability;
pub use planner::{Planner, SimulatedPlan};
pub use replica::ReplicaCapacity;
pub use search::ConfigSearch;
pub use simulate::{Experiment, ExperimentOutcome, Fleet, PlanCase, simulate};
pub use slots::slots;
pub use spec::{PlanError, PlanRuleSpec, PlanSpec};
pub use vary::VarySpec;
