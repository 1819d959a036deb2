//! Capacity plans: how many replicas carry a load within a promise, at what cost, and the load at which they break (SPEC Q1–Q4).
//!
//! Formulas answer at once and say where they do not apply; simulation answers what formulas can't see (percentiles, traces,
//! routing, scale events) on the numbers of replicas around that answer; where the two disagree, both are printed.
//!
//! Reading order: [`spec`] (what is asked), [`finding`] (what is said) and [`fit`] (an engine from a measured run); by formula [`mix`]
//! (what is known of the load), [`replica`] (one of them under a load), [`slots`](mod@slots) and [`formula`] (how many). By
//! simulation [`load`] (schedules), [`mod@simulate`] (an experiment and what is counted of it, [`tally`]), [`decide`] (several of
//! them), [`planner`] (which ones next; [`breaks`] and [`scaling`] are its later parts). [`mod@conclude`] puts both side by side, [`mod@file`] keeps it,
//! [`mod@verify`] holds it against a run (a sweep's lines: [`verify_lines`]), and [`search`] looks for a cheaper configuration among what may differ ([`vary`]). [`mod@envelope`] is the plan that takes four figures. [`mod@what_if`] says what would become of a measured run.
//!
//! Beside them: [`replay`] plays a list of requests against a simulated world, [`calibrate`] fits a simulated engine to measured
//! rows and [`validate`] recomputes its error tables from rows that are shipped, [`levers`] ranks what to change first, [`calc`]
//! answers by the laws of queues and scale without any run.

pub mod calc;
pub mod calibrate;
pub mod envelope;
pub mod finding;
pub mod fit;
pub mod levers;
pub mod replay;
pub mod spec;
pub mod validate;
pub mod what_if;

mod backlog;
mod batches;
pub mod bill;
pub mod chain;
mod crowd;
pub mod floor;
pub mod formula;
pub mod latency;
pub mod mix;
pub mod odds;
pub mod replica;
mod servers;
pub mod sharing;
pub mod slots;
mod steady;

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
pub use finding::PlanFinding;
pub use floor::floor;
pub use formula::{Break, answer, breaks};
pub use mix::{Mix, MixRow};
pub use odds::probability;
pub use planner::{Planner, Simulated};
pub use replica::{Load, Replica, Steady};
pub use search::Search;
pub use simulate::{Experiment, Fleet, Outcome, PlanCase, simulate};
pub use slots::slots;
pub use spec::{PlanError, PlanSpec, RuleSpec};
pub use vary::VarySpec;
