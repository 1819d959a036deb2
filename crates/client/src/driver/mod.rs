//! The load: one attempt, one level on one thread, and the client that runs levels.
//!
//! - one attempt: [`recording`] (its row), `exchange_watch`, [`exchange`] or over HTTP/2 `stream_exchange`, `task_pool`, [`flight`]
//! - one level: [`requests`], [`prepare`], [`answers`], `level_driver`, [`worker`]; [`level`], [`control`], [`live`], [`sink`], [`client`]

pub mod answers;
pub mod client;
pub mod control;
pub mod exchange;
pub(crate) mod exchange_watch;
pub mod flight;
pub mod level;
pub(crate) mod level_driver;
pub mod live;
pub mod prepare;
pub mod recording;
pub mod requests;
pub mod sink;
pub(crate) mod stream_exchange;
pub(crate) mod task_pool;
pub mod worker;
