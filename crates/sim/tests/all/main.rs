//! The engine against theory, hand-worked steps, published step times and itself.

mod adapters;
mod bulk_theory;
mod catalogue;
mod classes_queue;
mod client;
mod conformance;
mod determinism;
mod dynamic_random;
mod dynamic_rules;
mod fault_specs;
mod faults;
mod fleet;
mod fleet_theory;
mod forward;
mod invariants;
mod kv;
mod laws;
mod policies;
mod profiles;
mod queue_theory;
mod scaling;
mod specs;
mod split;
mod timing;
mod trial;
mod util;
