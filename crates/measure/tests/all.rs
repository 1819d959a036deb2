//! Tests of the crate's behaviour against independent references.

#[path = "all/accuracy.rs"]
mod accuracy;
#[path = "all/blind.rs"]
mod blind;
#[path = "all/budget.rs"]
mod budget;
#[path = "all/closed.rs"]
mod closed;
#[path = "all/counted.rs"]
mod counted;
#[path = "all/decided.rs"]
mod decided;
#[path = "all/engines.rs"]
mod engines;
#[path = "all/failing.rs"]
mod failing;
#[path = "all/gathered.rs"]
mod gathered;
#[path = "all/idle_cost.rs"]
mod idle_cost;
#[path = "all/incidents.rs"]
mod incidents;
#[path = "all/metrics.rs"]
mod metrics;
#[path = "all/precision.rs"]
mod precision;
#[path = "all/server_side.rs"]
mod server_side;
#[path = "all/steady.rs"]
mod steady;
#[path = "all/stepper.rs"]
mod stepper;
#[path = "all/trust.rs"]
mod trust;
