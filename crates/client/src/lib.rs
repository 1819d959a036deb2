//! The load generator in real time: connections, stamps, rows, and the machine's clocks.
//!
//! The player of `workload` decides the requests and their times; `wire` interprets the bytes. This crate waits until a
//! request is due, moves the bytes and stamps them with the kernel's clock. It leaves exactly one row per attempt, for any
//! behaviour of the server. It writes no file and prints nothing.
//!
//! Reading order:
//! - [`clock`], [`timer`]; [`target`] with [`auth`] and [`tls`]
//! - [`http1`]: one connection with its stamps; [`http2`]
//! - [`driver`]: one attempt, one level, and the client of a run
//! - [`metrics`]: metrics endpoints, scraped or pushed
//! - other traffic: [`mod@probe`], [`fallback`], [`post`]; [`doctor`], [`clock_error`]; [`histogram`]

pub mod auth;
pub mod clock;
pub mod clock_error;
pub mod doctor;
pub mod driver;
pub mod fallback;
pub mod histogram;
pub mod http1;
pub mod http2;
pub mod metrics;
pub mod post;
pub mod probe;
mod random;
pub mod target;
pub mod timer;
pub mod tls;

pub use auth::secret::{Secret, SecretError};
pub use auth::sign::SigningKey;
pub use clock::Clock;
pub use driver::client::{Client, ClientConfig, ClientError, default_workers};
pub use driver::control::{Control, StopLimits};
pub use driver::level::{LevelPlan, LevelTraffic, Name, RequestName, ShardStart};
pub use driver::live::{LiveCounters, LiveTotals};
pub use driver::sink::{MemorySink, Sink};
pub use post::{PostClient, PostResponse};
pub use probe::{Probe, ProbeError, probe};
pub use random::random;
pub use target::{Target, TargetError};
