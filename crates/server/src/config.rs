//! What to serve and where, what clients may do, and why a server did not start.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use plimsoll_model::Span;
use plimsoll_sim::{EngineSpec, FaultSpec, FleetSpec, SpecError, WorldSpec};
use plimsoll_wire::kserve::server::ServedInput;
use rustls::ServerConfig;
use serde::{Deserialize, Serialize};

/// What to serve and where.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EngineServerConfig {
    /// Address to listen on; port 0 takes a free one.
    pub listen: SocketAddr,
    /// The engine: one replica.
    pub engine: EngineSpec,
    /// How many replicas, and what is around them.
    #[serde(default)]
    pub fleet: FleetSpec,
    /// What goes wrong, timed from the start of serving.
    #[serde(default)]
    pub faults: Vec<FaultSpec>,
    /// Seed of what the engine draws.
    #[serde(default)]
    pub seed: u64,
    /// Name of the model it says it serves.
    #[serde(default = "default_model")]
    pub model: String,
    /// What the model takes under KServe v2, where the engine has that front; none = one small input.
    #[serde(default)]
    pub inputs: Vec<ServedInput>,
    /// Where the truth log goes. Without it none is written.
    #[serde(default)]
    pub truth_log: Option<PathBuf>,
    /// The engine's wake-ups are at least this far apart, ns: tokens that are due closer together leave together. It is
    /// what the most crowded engine is late by, and what makes it affordable: at two thousand streams it saves a
    /// fifth of the CPU time. An engine with less to do than that is not touched by it.
    #[serde(default = "default_wake_spacing")]
    pub wake_spacing: Span,
    #[serde(default)]
    pub limits: Limits,
    /// TLS towards clients; none = in the clear.
    #[serde(skip)]
    pub tls: Option<EngineTls>,
}

/// TLS, set up by whoever has the certificates. HTTP/2 is spoken on connections that choose it (ALPN).
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
    /// This engine on this address, everything else by default.
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
            limits: Limits::default(),
            tls: None,
        }
    }
}

impl EngineServerConfig {
    /// The engine, its fleet and its faults as one world.
    pub(crate) fn world(&self) -> WorldSpec {
        WorldSpec { engine: self.engine.clone(), fleet: self.fleet.clone(), faults: self.faults.clone() }
    }
}

/// What clients may do before they are told off.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Limits {
    /// Largest request body, bytes. Larger ones get 413.
    pub body_bytes: usize,
    /// Largest request head, bytes. Larger ones get 431.
    pub head_bytes: usize,
    pub headers: usize,
    /// Output tokens of a request that names no number.
    pub default_max_tokens: u32,
    /// Most output tokens of one request. More gets 400.
    pub max_tokens: u32,
    /// A request has to be whole within this, ns.
    pub request_read: Span,
    /// A client has to take bytes within this, ns.
    pub blocked_write: Span,
    /// A connection may do nothing for this long, ns.
    pub idle: Span,
    /// Answers in progress may go on for this long after a shutdown was asked for, ns.
    pub drain: Span,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
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

/// Why a server did not start, or ended badly.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The address can't be had.
    #[error("can't listen on {addr}: {source}")]
    Listen {
        /// The address.
        addr: SocketAddr,
        /// The cause.
        source: io::Error,
    },
    /// The engine's specification is wrong.
    #[error(transparent)]
    Spec(#[from] SpecError),
    /// The truth log can't be created or written.
    #[error("truth log {}: {source}", path.display())]
    Truth {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The system gave no thread, runtime or timer.
    #[error("the server could not be run: {0}")]
    System(#[from] io::Error),
}
