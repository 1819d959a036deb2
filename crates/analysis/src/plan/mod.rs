//! Capacity plans: how many replicas carry a load within a promise, at what cost, and the load at which they break (SPEC Q1–Q4).
//!
//! Formulas answer at once and say where they do not apply; simulation answers what formulas can't see (percentiles, traces,
//! routing, scale events) on the numbers of replicas around that answer; where the two disagree, both are printed.
//!
//! Reading order: [`spec`] (what is asked), [`finding`] (what is said) and [`fit`] (an engine from a measured run).

pub mod finding;
pub mod fit;
pub mod spec;

pub use finding::PlanFinding;
pub use spec::{PlanError, PlanSpec};
