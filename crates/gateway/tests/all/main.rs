//! The gateway between misbehaving replicas and misbehaving clients. The reference is what replicas and clients
//! observe, not what the gateway counts.

#![allow(clippy::disallowed_methods, reason = "a test waits and times by the machine's clock")]

mod bodies;
mod cached;
mod caches;
mod carried;
mod clients;
mod clocks;
mod doors;
mod failing;
mod hedging;
mod hostile;
mod kit;
mod models;
mod picker;
mod proxy_kit;
mod queueing;
mod reloads;
mod replay;
mod rollouts;
mod semantic;
mod streams;
mod telemetry;
mod tls;
mod warming;
