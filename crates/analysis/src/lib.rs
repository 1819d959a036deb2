//! Runs → findings: what was measured, how far it may be trusted, and where the load lines lie.
//!
//! Pure: records and a spec in, findings out. Where it has to ask for more data (the sweep) it is a stepper: results
//! in, next experiment out, so that a live endpoint and a simulated one are driven alike.
//!
//! Reading order: [`findings`] (the words).

pub mod findings;
