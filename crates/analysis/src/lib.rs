//! Runs → findings: what was measured, how far it may be trusted, and where the load lines lie.
//!
//! Pure: records and a spec in, findings out. Where it has to ask for more data (the sweep) it is a stepper: results
//! in, next experiment out, so that a live endpoint and a simulated one are driven alike.
//!
//! Reading order: [`findings`] (the words), [`summary`] (one level: every metric is defined there), [`validity`],
//! [`lines`] (levels of one kind of traffic → curve and lines), [`sweep`] (which level to run next), and [`analyse`]
//! (a whole run). Below them: the columns that records are turned into, the window, requests in flight, budgets, exact
//! order statistics of long columns, and the tails that the fits keep.

pub mod findings;
pub mod lines;
pub mod summary;
pub mod sweep;
pub mod validity;

mod budget;
mod columns;
mod course;
mod flight;
mod order;
mod say;
mod tail;
mod whole;
mod window;

pub use findings::{Findings, LevelFinding};
pub use lines::LineSpec;
pub use summary::summarise;
pub use sweep::{Sweep, SweepSpec};
pub use whole::analyse;
