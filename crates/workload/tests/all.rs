//! Tests the crate in one binary.

#![expect(clippy::unwrap_used, reason = "a test that can not get its input has failed")]

#[path = "all/arrivals.rs"]
mod arrivals;
#[path = "all/blocks.rs"]
mod blocks;
#[path = "all/chain.rs"]
mod chain;
#[path = "all/graph.rs"]
mod graph;
#[path = "all/player.rs"]
mod player;
#[path = "all/prompts.rs"]
mod prompts;
#[path = "all/rebuild.rs"]
mod rebuild;
#[path = "all/replay.rs"]
mod replay;
#[path = "all/schedule.rs"]
mod schedule;
#[path = "all/spec.rs"]
mod spec;
#[path = "all/tensors.rs"]
mod tensors;
#[path = "all/trace.rs"]
mod trace;
