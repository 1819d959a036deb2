//! Errors of the gateway's start and operation.

use std::io;
use std::net::SocketAddr;

use plimsoll_client::tls::TlsError;
use plimsoll_policy::SettingError;

/// An error that prevents the start or ends the gateway.
#[derive(Debug, thiserror::Error)]
pub enum GatewayError {
    /// A setting is invalid.
    #[error(transparent)]
    Spec(#[from] SettingError),
    /// TLS could not be set up.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// An address is not available.
    #[error("cannot listen on {addr}: {source}; name another with {key}")]
    Listen {
        addr: SocketAddr,
        /// Setting that contains the address.
        key: &'static str,
        /// Error of the operating system.
        source: io::Error,
    },
    /// A thread or runtime could not be created.
    #[error("the gateway could not be run: {0}")]
    System(#[from] io::Error),
}
