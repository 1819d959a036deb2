//! Tests the guarantees of the store from outside.
#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test that panics has done its work; a child reports"
)]

#[path = "all/codes.rs"]
mod codes;
#[path = "all/crash.rs"]
mod crash;
#[cfg(feature = "sqlite")]
#[path = "all/exported.rs"]
mod exported;
#[path = "all/folders.rs"]
mod folders;
#[path = "all/foreign.rs"]
mod foreign;
#[path = "all/full.rs"]
mod full;
#[path = "all/kit.rs"]
mod kit;
#[path = "all/python.rs"]
mod python;
#[path = "all/replay.rs"]
mod replay;
#[path = "all/spans.rs"]
mod spans;
