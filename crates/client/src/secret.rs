//! A key that must never be seen: no `Display`, no serialisation, a `Debug` that says nothing, and a scrubber for texts
//! that a server or a library may have written it into.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use http::HeaderValue;

use crate::renewed::Renewed;

/// A key that may be renewed.
pub type Key = Arc<Renewed<Secret>>;

/// An API key.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

/// A key that could not be had. Never says what the key is.
#[derive(Debug, thiserror::Error)]
pub enum SecretError {
    /// The environment variable is not set, or not text.
    #[error("the environment variable {0} holds no key: set it, or name another with --key-env")]
    Env(String),
    /// The file could not be read.
    #[error("cannot read the key file {path}: {source}")]
    File {
        /// The file.
        path: String,
        /// Why not.
        source: std::io::Error,
    },
    /// Empty, or holds bytes that no HTTP header can carry.
    #[error("the key from {0} is empty or holds characters that no header can carry")]
    Unusable(String),
    /// A token server gave none.
    #[error("cannot get a token from {url}: {why}")]
    Token {
        /// The server.
        url: String,
        /// Why not; never the secret.
        why: String,
    },
    /// It begins as a signing key does, and is none.
    #[error("the key from {0} begins with whsec_, and what follows is no base64")]
    NoKey(String),
}

impl Secret {
    /// A key as it is; surrounding white space goes. `from` names its source in the error.
    pub fn new(text: &str, from: &str) -> Result<Secret, SecretError> {
        let text = text.trim();
        if text.is_empty() || HeaderValue::from_str(text).is_err() {
            return Err(SecretError::Unusable(from.to_owned()));
        }
        Ok(Secret(text.to_owned()))
    }

    /// From an environment variable.
    pub fn from_env(name: &str) -> Result<Secret, SecretError> {
        let text = std::env::var(name).map_err(|_| SecretError::Env(name.to_owned()))?;
        Secret::new(&text, &format!("${name}"))
    }

    pub fn from_file(path: &Path) -> Result<Secret, SecretError> {
        let text = std::fs::read_to_string(path)
            .map_err(|source| SecretError::File { path: path.display().to_string(), source })?;
        Secret::new(&text, &path.display().to_string())
    }

    /// `Authorization: Bearer …`, marked so that no library prints it.
    pub fn bearer(&self) -> HeaderValue {
        let mut value = HeaderValue::from_str(&format!("Bearer {}", self.0))
            .unwrap_or_else(|_| HeaderValue::from_static("Bearer"));
        value.set_sensitive(true);
        value
    }

    /// What is computed with it elsewhere, such as its hash.
    pub fn with_bytes<T>(&self, read: impl FnOnce(&[u8]) -> T) -> T {
        read(self.0.as_bytes())
    }

    /// The key, for what is computed with it.
    pub(crate) fn text(&self) -> &str {
        &self.0
    }

    /// `text` with every occurrence of the key replaced. (A server may echo it; an error may quote a header.)
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
