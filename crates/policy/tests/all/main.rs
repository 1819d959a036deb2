//! The policies against cases computed by hand, and against the rules of the papers and products that they are named
//! after.

mod autoscaling;
mod failing;
mod queueing;
mod rates;
mod routing;
mod sampling;
mod similar;
mod subsets;
mod telemetry;
mod tiers;
mod waiting;
