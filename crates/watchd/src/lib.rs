//! The daemon of `plimsoll watch`: sources, the loop, delivery of alerts, history and the status page.
//!
//! Verdicts and alerts come from `watch`, which has no clock and no sockets. This crate connects it to them. It is
//! separate from `cli`, because a daemon that runs for weeks should not depend on the parsing of command lines.

mod alertmanager;
pub mod config;
pub mod daemon;
pub mod file;
pub mod history;
mod journal;
pub mod lists;
pub mod names;
pub mod notify;
pub mod observed;
mod outbox;
pub mod page;
mod pushed;
pub mod record;
pub mod run;
pub mod serve;
mod told;
mod webhook;

use std::time::Duration;

/// Polling interval of the end condition.
const LOOK: Duration = Duration::from_millis(50);
