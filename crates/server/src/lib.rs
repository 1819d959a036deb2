//! The simulated engine as a server: an OpenAI-compatible front on HTTP/1.1 and HTTP/2, KServe v2 over both and over gRPC, timed by the world of `plimsoll-sim`, that
//! knows the truth about every byte it sent.
//!
//! What happens when is the world's; this crate sleeps until then, writes, and measures how late it was. It knows no
//! client, no run and no screen.
//!
//! Reading order: `config` (what to serve), `running` (a server from outside), [`mod@serve`] (listen, accept, stop), `front` and `infer` (from a request to its answer; over HTTP/2 `streams`, of gRPC `call`), `engine` (real time around
//! the world), `stream` and `body` (tokens on their way out), `io` (bytes and stamps) with `frames` and `records`, `transport` (TLS), `voice` (what is said),
//! [`truth`] (the log), `metrics`, `page` and `triton_page` (what is counted), `timer`, [`clock`]
//! and [`script`] (a clock moved by hand). Beside all that, [`collector`] takes the spans of others (OTLP).

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
mod timer;

pub use config::{EngineServerConfig, EngineTls, Limits, ServeError};
pub use running::{Running, Stopper};
pub use serve::{serve, serve_scripted};
