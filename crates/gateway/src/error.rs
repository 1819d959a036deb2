//! Why a gateway does not start.

use std::io;
use std::net::SocketAddr;

use plimsoll_client::tls::TlsError;
use plimsoll_policy::SettingError;

/// Why a gateway did not start, or ended badly.
#[derive(Debug, thiserror::Error)]
pub enum GatewayError {
    /// What it was asked is wrong.
    #[error(transparent)]
    Spec(#[from] SettingError),
    /// TLS could not be set up.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// An address can't be had.
    #[error("cannot listen on {addr}: {source}; name another with {key}")]
    Listen {
        /// The address.
        addr: SocketAddr,
        /// What names it.
        key: &'static str,
        /// The cause.
        source: io::Error,
    },
    /// The system gave no thread or runtime.
    #[error("the gateway could not be run: {0}")]
    System(#[from] io::Error),
}
