//! Capacity plans: how many replicas carry a load within a promise, at what cost, and the load at which they break (SPEC Q1–Q4).
//!
//! One replica is simulated by itself, which bounds the number from below; then fleets are simulated around that bound. Queues whose
//! law is known are computed beside, and where the two disagree, both are printed.
//!
//! Reading order: [`spec`] (what is asked), [`finding`] (what is said) and [`fit`] (an engine from a measured run); [`mix`] (the lengths),
//! [`replica`] (one of them by itself), [`slots`](mod@slots) and [`mod@bounds`] (how many at least). By
//! simulation [`load`] (schedules), [`mod@simulate`] (an experiment and what is counted of it, [`tally`]), [`decide`] (several of
//! them), [`planner`] (which ones next; [`breaks`] and [`scaling`] are its later parts). [`mod@conclude`] puts both side by side, [`mod@file`] keeps it,
//! [`mod@verify`] holds it against a run (a sweep's lines: [`verify_lines`]), and [`search`] looks for a cheaper configuration among what may differ ([`vary`]). [`mod@envelope`] is the plan that takes four figures. [`mod@what_if`] says what would become of a measured run.
//!
//! Beside them: [`mod@change`] is what can be changed of a world, by levers, what-ifs and searches alike; [`replay`] plays a list of requests against a simulated world, [`calibrate`] fits a simulated engine to measured
//! rows and [`validate`] recomputes its error tables from rows that are shipped, [`levers`] ranks what to change first, [`calc`]
//! answers by the laws of queues and scale without any run; [`mod@effect`] holds two loads to each other by the wait they cause.

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
pub mod verify_lines;

pub use bill::cost;
pub use bounds::bounds;
pub use finding::PlanFinding;
pub use mix::Mix;
pub use odds::probability;
pub use planner::{Planner, Simulated};
pub use replica::Replica;
pub use search::Search;
pub use simulate::{Experiment, Fleet, Outcome, PlanCase, simulate};
pub use slots::slots;
pub use spec::{PlanError, PlanSpec, RuleSpec};
pub use vary::VarySpec;
