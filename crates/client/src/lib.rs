//! The load generator in real time: connections, stamps, rows, and the machine's clocks.
//!
//! The player of `workload` decides the requests and their times; `wire` interprets the bytes. This crate waits until a
//! request is due, moves the bytes and stamps them with the kernel's clock. It leaves exactly one row per attempt, for any
//! behaviour of the server. It writes no file and prints nothing.
//!
//! Reading order:
//! - one connection: [`clock`], [`timer`], [`tcp_info`], [`stamp`], [`tcp`], [`tls`], [`landing`], [`request`], [`link`],
//!   [`keeping`], [`pool`]; HTTP/2: [`http2`] and [`streams`];
//! - the target: [`target`], [`certs`], [`secret`], [`renewed`] (with `keys` and `token`);
//! - one attempt: [`recording`] (its row), [`exchange_watch`], [`exchange`] or over HTTP/2 [`stream_exchange`],
//!   [`task_pool`], [`flight`];
//! - one level: [`prepare`], [`answers`], [`level_driver`] (one level on one thread), [`worker`]; [`level`], [`control`],
//!   [`live`], [`sink`], [`client`];
//! - other traffic: [`mod@probe`], [`fallback`]; metrics endpoints: [`pages`], `exporters`, `nvml`, [`told`], [`scrape`], `foreign` and
//!   [`targets`] (scraped by Prometheus), [`pushed`], [`measured`] (pushed by OpenTelemetry); [`doctor`], [`clock_error`];
//!   [`post`], [`sign`]; [`histogram`].

pub mod clock;
pub mod clock_error;
pub mod timer;

pub mod header_template;
pub mod http2;
pub mod keeping;
pub(crate) mod landing;
pub mod link;
pub mod pool;
pub mod request;
pub mod stamp;
pub mod streams;
pub mod tcp;
pub(crate) mod tcp_info;
pub mod tls;
pub(crate) mod tls_words;

pub mod certs;
mod keys;
pub(crate) mod renewed;
pub mod secret;
pub mod target;
pub mod token;

pub mod answers;
pub mod exchange;
pub(crate) mod exchange_watch;
pub mod flight;
pub(crate) mod level_driver;
pub mod prepare;
pub mod recording;
pub(crate) mod stream_exchange;
pub(crate) mod task_pool;
pub mod worker;

pub mod client;
pub mod control;
pub mod level;
pub mod live;
pub mod sink;

pub mod doctor;
mod each;
mod exporters;
pub mod fallback;
mod foreign;
pub mod measured;
mod nvml;
pub mod pages;
pub mod probe;
pub mod pushed;
pub mod scrape;
mod shared;
pub mod targets;
pub mod told;

pub mod post;
pub mod sign;

pub mod histogram;
mod random;

pub use client::{Client, ClientConfig, ClientError, default_workers};
pub use clock::Clock;
pub use control::{Control, StopLimits};
pub use level::{LevelPlan, LevelTraffic, Name, RequestName, ShardStart};
pub use live::{LiveCounters, LiveTotals};
pub use post::{PostClient, PostResponse};
pub use probe::{Probe, ProbeError, probe};
pub use random::random;
pub use secret::{Secret, SecretError};
pub use sign::SigningKey;
pub use sink::{MemorySink, Sink};
pub use target::{Target, TargetError};
