//! Behaviour of the interop crate, in one binary.

#[path = "all/agents.rs"]
mod agents;
#[path = "all/replay.rs"]
mod replay;
