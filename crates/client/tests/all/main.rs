//! Tests the client against scripted servers on real sockets.

#![expect(clippy::unwrap_used, reason = "a helper that fails is the test failing")]

mod bad;
mod connections;
mod control;
mod http2;
mod keeping;
mod pages;
mod probing;
mod replay;
mod rig;
mod secrets;
mod server;
mod stamps;
mod tls;
