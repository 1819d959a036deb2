//! Defines the configuration of an engine server, the limits of its clients, and start-up errors.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use plimsoll_model::Span;
use plimsoll_sim::{EngineSpec, FaultSpec, FleetSpec, SimSpecError, WorldSpec};
use plimsoll_wire::kserve::server::ServedInput;
use rustls::ServerConfig;
use serde::{Deserialize, Serialize};

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EngineServerConfig {
    /// Address to listen on; port 0 selects a free port.
    pub listen: SocketAddr,
    pub engine: EngineSpec,
    /// Number of replicas, and the gateway, autoscaler and adapter settings around them.
    #[serde(default)]
    pub fleet: FleetSpec,
    /// Faults, timed from the start of serving.
    #[serde(default)]
    pub faults: Vec<FaultSpec>,
    /// Seed of the engine's random choices.
    #[serde(default)]
    pub seed: u64,
    /// Model name that the server reports.
    #[serde(default = "default_model")]
    pub model: String,
    /// Inputs of the model under KServe v2, for engines with that front; empty = one small input.
    #[serde(default)]
    pub inputs: Vec<ServedInput>,
    /// Path of the truth log; `None` = no truth log.
    #[serde(default)]
    pub truth_log: Option<PathBuf>,
    /// Shortest distance in ns between two wake-ups of the engine; tokens that are due closer together leave together.
    ///
    /// This is the lateness of the most loaded engine, and it saves a fifth of the CPU time at two thousand streams. An
    /// engine with less load is not affected.
    #[serde(default = "default_wake_spacing")]
    pub wake_spacing: Span,
    #[serde(default)]
    pub limits: ServerLimits,
    /// TLS towards clients; `None` = plaintext.
    #[serde(skip)]
    pub tls: Option<EngineTls>,
}

/// The TLS configuration, supplied by the owner of the certificates. HTTP/2 is used on connections that negotiate it
/// (ALPN).
#[derive(Clone, Debug)]
pub struct EngineTls(pub Arc<ServerConfig>);

impl PartialEq for EngineTls {
    fn eq(&self, other: &EngineTls) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

fn default_wake_spacing() -> Span {
    Span::from_micros(50)
}

fn default_model() -> String {
    "plimsoll-sim".to_owned()
}

impl EngineServerConfig {
    /// Returns the default configuration with this address and engine.
    pub fn new(listen: SocketAddr, engine: EngineSpec) -> EngineServerConfig {
        EngineServerConfig {
            listen,
            engine,
            fleet: FleetSpec::default(),
            faults: Vec::new(),
            seed: 0,
            model: default_model(),
            inputs: Vec::new(),
            truth_log: None,
            wake_spacing: default_wake_spacing(),
            limits: ServerLimits::default(),
            tls: None,
        }
    }
}

impl EngineServerConfig {
    /// Returns the engine, its fleet and its faults as one world.
    pub(crate) fn world(&self) -> WorldSpec {
        WorldSpec { engine: self.engine.clone(), fleet: self.fleet.clone(), faults: self.faults.clone() }
    }
}

/// Limits of clients, beyond which requests are rejected or connections closed.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ServerLimits {
    /// Largest request body in bytes; larger ones get 413.
    pub body_bytes: usize,
    /// Largest request head in bytes; larger ones get 431.
    pub head_bytes: usize,
    pub headers: usize,
    /// Output tokens of a request without `max_tokens`.
    pub default_max_tokens: u32,
    /// Most output tokens of one request; more get 400.
    pub max_tokens: u32,
    /// Longest time to receive a complete request, in ns.
    pub request_read: Span,
    /// Longest time in ns that a write may be blocked by the client.
    pub blocked_write: Span,
    /// Longest time in ns that a connection may be idle.
    pub idle: Span,
    /// Longest time in ns that responses in progress may take after a shutdown request.
    pub drain: Span,
}

impl Default for ServerLimits {
    fn default() -> ServerLimits {
        ServerLimits {
            body_bytes: 32 << 20,
            head_bytes: 64 << 10,
            headers: 100,
            default_max_tokens: 128,
            max_tokens: 1 << 20,
            request_read: Span::from_secs(20),
            blocked_write: Span::from_secs(60),
            idle: Span::from_secs(3_600),
            drain: Span::from_secs(5),
        }
    }
}

/// Errors of starting or running a server.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    #[error("can't listen on {addr}: {source}")]
    Listen {
        addr: SocketAddr,
        /// Error of the bind or listen call.
        source: io::Error,
    },
    #[error(transparent)]
    Spec(#[from] SimSpecError),
    /// The truth log can't be created or written.
    #[error("truth log {}: {source}", path.display())]
    Truth {
        path: PathBuf,
        /// Error of the bind or listen call.
        source: io::Error,
    },
    /// The system refused a thread, runtime or timer.
    #[error("the server could not be run: {0}")]
    System(#[from] io::Error),
}
