//! Behaviour of the crate, against independent truth.

#[path = "all/accuracy.rs"]
mod accuracy;
#[path = "all/blind.rs"]
mod blind;
#[path = "all/budget.rs"]
mod budget;
#[path = "all/metrics.rs"]
mod metrics;
#[path = "all/records.rs"]
mod records;
#[path = "all/steady.rs"]
mod steady;
#[path = "all/stepper.rs"]
mod stepper;
#[path = "all/trust.rs"]
mod trust;
