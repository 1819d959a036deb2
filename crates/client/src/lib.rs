//! The driver in real time: connections, stamps, rows, and the machine's clocks.
//!
//! What is sent when is decided by `workload`'s player; what bytes mean, by `wire`. This crate waits until the moment,
//! moves the bytes, stamps them by the kernel's clock and leaves exactly one row per attempt, whatever the server does.
//! It writes no file and prints nothing.
//!
//! Reading order: [`clock`], [`timer`], [`tcp_info`], [`stamp`], [`tcp`], [`tls`], [`landing`], [`request`], [`link`] (one connection), [`keeping`],
//! [`pool`], and over HTTP/2 [`http2`] and [`streams`];
//! [`target`], [`certs`], [`secret`], [`renewed`] (with `keys` and `token`); [`recording`] (a row in the making), [`exchange_watch`], [`exchange`] (one attempt; over HTTP/2 [`stream_exchange`]), [`task_pool`], [`flight`],
//! [`prepare`], [`answers`], [`level_driver`] (one level on one thread), [`worker`]; [`level`], [`control`], [`live`], [`sink`], [`client`];
//! [`mod@probe`], [`fallback`], [`pages`], [`told`], [`scrape`], `foreign` (pages that others read), [`targets`] (of a Prometheus that is asked), [`pushed`], [`measured`] (what OpenTelemetry sends), [`doctor`], [`clock_error`]; [`post`], [`sign`]; [`histogram`].

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
pub mod fallback;
mod foreign;
pub mod measured;
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

pub use client::{Client, ClientConfig, ClientError, default_workers};
pub use clock::Clock;
pub use control::{Control, StopLimits};
pub use level::{LevelPlan, LevelTraffic, Name, RequestName, ShardStart};
pub use live::{LiveCounters, Totals};
pub use post::{Posted, Poster};
pub use probe::{Probe, ProbeError, probe};
pub use secret::{Secret, SecretError};
pub use sign::SigningKey;
pub use sink::{Memory, Sink};
pub use target::{Target, TargetError};
