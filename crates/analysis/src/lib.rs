//! Runs → findings: what was measured, how far it may be trusted, and where the load lines lie.
//!
//! Pure: records and a spec in, findings out. Where it has to ask for more data (the sweep) it is a stepper: results
//! in, next experiment out, so that a live endpoint and a simulated one are driven alike.
//!
//! Reading order: [`findings`] (the words), [`summary`] (one level: every metric is defined there), [`budget`];
//! below them the columns that records are turned into, the window, the requests in flight, and exact order
//! statistics of long columns.

pub mod findings;
pub mod lines;
pub mod summary;
pub mod validity;

mod budget;
mod columns;
mod course;
mod flight;
mod order;
mod tail;
mod window;
