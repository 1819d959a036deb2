//! Represents an API key that must never be shown: no `Display`, no serialisation, and a `Debug` without the value. A
//! scrubber removes the key from texts of a server or a library.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use http::HeaderValue;

use crate::auth::renewed::RefreshedValue;

/// A key that may be renewed.
pub type Key = Arc<RefreshedValue<Secret>>;

#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

/// Errors of obtaining a key. They never contain the key.
#[derive(Debug, thiserror::Error)]
pub enum SecretError {
    /// The environment variable is not set or not valid text.
    #[error("the environment variable {0} contains no key: set it, or name another with --key-env")]
    Env(String),
    /// The key file can't be read, or is not text.
    #[error("cannot read the key file {path}: {source}")]
    File {
        /// Path of the key file, as configured.
        path: String,
        source: std::io::Error,
    },
    /// The key is empty or contains bytes that no HTTP header can carry.
    #[error("the key from {0} is empty or contains characters that are invalid in a header; check it")]
    Unusable(String),
    /// A token server returned no token.
    #[error("cannot get a token from {url}: {why}")]
    Token {
        url: String,
        /// Reason for the failure; never contains the secret.
        why: String,
    },
    /// The text starts like a signing key but is invalid.
    #[error("the key from {0} begins with whsec_, and what follows is no base64")]
    NoKey(String),
}

impl Secret {
    /// Returns a key without surrounding white space. `from` names its source in the error.
    pub fn new(text: &str, from: &str) -> Result<Secret, SecretError> {
        let text = text.trim();
        if text.is_empty() || HeaderValue::from_str(text).is_err() {
            return Err(SecretError::Unusable(from.to_owned()));
        }
        Ok(Secret(text.to_owned()))
    }

    /// Reads a key from an environment variable.
    pub fn from_env(name: &str) -> Result<Secret, SecretError> {
        let text = std::env::var(name).map_err(|_| SecretError::Env(name.to_owned()))?;
        Secret::new(&text, &format!("${name}"))
    }

    pub fn from_file(path: &Path) -> Result<Secret, SecretError> {
        let text = std::fs::read_to_string(path)
            .map_err(|source| SecretError::File { path: path.display().to_string(), source })?;
        Secret::new(&text, &path.display().to_string())
    }

    /// Returns `Bearer KEY` for the `Authorization` header, marked as sensitive so that no library prints it.
    pub fn bearer(&self) -> HeaderValue {
        let mut value = HeaderValue::from_str(&format!("Bearer {}", self.0))
            .unwrap_or_else(|_| HeaderValue::from_static("Bearer"));
        value.set_sensitive(true);
        value
    }

    /// Runs `read` on the key's bytes, for example to hash them.
    pub fn with_bytes<T>(&self, read: impl FnOnce(&[u8]) -> T) -> T {
        read(self.0.as_bytes())
    }

    /// Returns the key for computations, never for display.
    pub(crate) fn text(&self) -> &str {
        &self.0
    }

    /// Returns `text` with every occurrence of the key replaced, because a server may echo it and an error may quote a
    /// header.
    pub(crate) fn scrub(&self, text: &str) -> String {
        text.replace(&self.0, "***")
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(***)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_prints_it() {
        let key = Secret::new(" sk-abc123\n", "test").expect("usable");
        assert_eq!(format!("{key:?} {:?}", key.bearer()), "Secret(***) Sensitive");
        assert_eq!(key.scrub("bad key sk-abc123!"), "bad key ***!");
        assert_eq!(key.bearer().to_str().expect("ascii"), "Bearer sk-abc123");
    }

    #[test]
    fn what_no_header_can_carry_is_refused_without_being_quoted() {
        let error = Secret::new("two\nlines", "key.txt").expect_err("refused");
        assert!(error.to_string().contains("key.txt") && !error.to_string().contains("two"));
        assert!(Secret::new("  ", "x").is_err());
        assert!(matches!(Secret::from_env("PLIMSOLL_TEST_UNSET"), Err(SecretError::Env(_))));
    }
}
