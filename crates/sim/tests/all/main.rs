//! The engine against theory, hand-worked steps, published step times and itself.

mod client;
mod conformance;
mod determinism;
mod invariants;
mod laws;
mod profiles;
mod queue_theory;
mod specs;
mod timing;
mod util;
