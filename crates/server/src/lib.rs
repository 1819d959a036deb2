//! The simulated engine as a server, timed by the world of `plimsoll-sim`, with a ground truth for every byte that it
//! sends.
//!
//! It serves an OpenAI-compatible API on HTTP/1.1 and HTTP/2, and KServe v2 over HTTP and gRPC. The world decides the
//! times; this crate sleeps until then, writes, and measures its lateness. It uses the clocks and the timer of
//! `plimsoll-client`, and depends on no run.
//!
//! Reading order:
//! - `config` (configuration), `running` (a server from outside), [`mod@serve`] (listen, accept, stop);
//! - `front` and `infer` (from a request to its response; over HTTP/2 `streams`, of gRPC `call`), `engine` (real time
//!   around the world);
//! - `stream` and `body` (tokens of a response), `io` (bytes and stamps) with `frames` and `records`, `transport` (TLS),
//!   `voice` (content);
//! - [`truth`] (the log), `metrics`, `page` and `triton_page` (exposed metrics);
//! - [`clock`] (the engine's time axis) and [`script`] (a clock that tests move);
//! - [`collector`], which receives spans and metrics from other processes (OTLP).

pub mod collector;

mod config;
mod running;
pub mod serve;
mod shared;

mod call;
mod front;
mod infer;
mod streams;

mod engine;

mod body;
mod stream;

mod frames;
mod io;
mod records;
mod transport;

mod voice;

pub mod truth;

mod metrics;
mod page;
mod sglang_page;
mod triton_page;

pub mod clock;
pub mod script;

pub use config::{EngineServerConfig, EngineTls, ServeError, ServerLimits};
pub use running::{ServerHandle, Stopper};
pub use serve::{serve, serve_scripted};
