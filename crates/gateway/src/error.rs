//! Errors of the gateway's start and operation.

use std::fmt::Display;
use std::io;
use std::net::SocketAddr;
use std::ops::RangeInclusive;

use plimsoll_client::tls::TlsError;
use plimsoll_policy::SettingError;

/// An error that prevents the start or ends the gateway.
#[derive(Debug, thiserror::Error)]
pub enum GatewayError {
    #[error(transparent)]
    Spec(#[from] SettingError),
    /// TLS could not be set up.
    #[error(transparent)]
    Tls(#[from] TlsError),
    #[error("cannot listen on {addr}: {source}; name another with {key}")]
    Listen {
        addr: SocketAddr,
        /// Key of the configuration that sets the address.
        key: &'static str,
        source: io::Error,
    },
    /// A thread or runtime could not be created.
    #[error("the gateway could not be run: {0}")]
    System(#[from] io::Error),
}

/// Returns the error of an invalid or contradicting setting.
pub(crate) fn conflict<T>(name: &str, why: impl Into<String>) -> Result<T, SettingError> {
    Err(SettingError::Conflict { name: name.to_owned(), why: why.into() })
}

/// Fails if a setting is not within these limits. `unit` follows the upper limit in the message.
pub(crate) fn within<T: PartialOrd + Display>(
    name: &str,
    value: T,
    limits: RangeInclusive<T>,
    unit: &str,
) -> Result<(), SettingError> {
    match limits.contains(&value) {
        true => Ok(()),
        false => conflict(name, format!("{value} is not from {} to {}{unit}", limits.start(), limits.end())),
    }
}

/// Fails if a setting is not a share.
pub(crate) fn share(name: &str, share: f64) -> Result<(), SettingError> {
    match (0.0..=1.0).contains(&share) {
        true => Ok(()),
        false => conflict(name, format!("{share} is no share from 0 to 1")),
    }
}

/// Fails if a setting is not an absolute path of a URL.
pub(crate) fn path(name: &str, path: &str) -> Result<(), SettingError> {
    match path.starts_with('/') {
        true => Ok(()),
        false => conflict(name, format!("{path:?} is no path; it begins with /")),
    }
}
