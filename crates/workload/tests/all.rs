//! The crate's behaviour, one binary.

#![expect(clippy::unwrap_used, reason = "a test that can not get its input has failed")]

#[path = "all/arrivals.rs"]
mod arrivals;
#[path = "all/player.rs"]
mod player;
#[path = "all/prompts.rs"]
mod prompts;
#[path = "all/schedule.rs"]
mod schedule;
#[path = "all/spec.rs"]
mod spec;
#[path = "all/trace.rs"]
mod trace;
