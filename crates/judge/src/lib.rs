//! Findings → verdicts: the SLOs of a product, their evaluation on a run, and changes between runs.
//!
//! Reading order: [`budget`] (the budget file, its invalid rows and its rows without a verdict), then [`gate`] (a run checked
//! against it). [`compare`] compares two runs, [`history`] finds changes in a series of results, and [`cost`] converts a price to
//! unit costs. [`quality`] compares the answers of two targets, and [`sequential`] gives verdicts during a measurement.
//! [`tune`] finds the best of several server settings, and [`tradeoff`] weighs cost against accuracy.

pub mod budget;
pub mod compare;
pub mod cost;
pub mod gate;
pub mod history;
pub mod quality;
pub mod sequential;
pub mod tradeoff;
pub mod tune;
