//! API keys: their configured sources and their SHA-256 digests.
//!
//! A slow hash (scrypt, Argon2) lost: it protects secrets that users invent, and costs milliseconds per request. A
//! key of `plimsoll gateway key` has 256 random bits, which a fast hash protects. A key shorter than [`SHORTEST`] is
//! rejected.

use std::fmt;
use std::path::PathBuf;

use plimsoll_client::auth::secret::Secret;
use plimsoll_policy::{RateSpec, SettingError};
use schemars::JsonSchema;
use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserializer, Error, MapAccess, Visitor};
use serde::{Deserialize, Serialize};
use subtle::ConstantTimeEq;

use crate::error::conflict;

/// Minimum length of a key in characters: 16 characters of base64 are 96 bits, which cannot be guessed.
pub(crate) const SHORTEST: usize = 16;
pub(crate) const MOST_KEYS: usize = 100_000;

/// An API key of a client, with its limits.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct KeySpec {
    /// Name of the key in metrics and logs, which never contain the key.
    pub id: String,
    /// Source of the key: its hash, a variable or a file.
    pub key: KeySource,
    /// Tenant of the key: keys of one tenant share caches and their share of a queue [default: the id].
    #[serde(default)]
    pub tenant: Option<String>,
    /// Priority class of its requests if not all can be served [default: none].
    #[serde(default)]
    pub class: Option<String>,
    /// Rate limits of the key [default: none].
    #[serde(default)]
    pub rate: RateSpec,
}

/// Source of a key: exactly one of the three fields. The key itself is not allowed here, because files are copied,
/// printed and committed.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct KeySource {
    /// SHA-256 of the key in hexadecimal, as printed by `plimsoll gateway key`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sha256: Option<String>,
    /// Environment variable that contains the key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub env: Option<String>,
    /// File that contains only the key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file: Option<PathBuf>,
}

#[derive(Deserialize)]
#[serde(default, deny_unknown_fields)]
#[derive(Default)]
struct KeySourceFields {
    sha256: Option<String>,
    env: Option<String>,
    file: Option<PathBuf>,
}

impl<'de> Deserialize<'de> for KeySource {
    /// This is implemented manually, because the derived parser quotes invalid values. A key in place of its source
    /// would appear in a log.
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<KeySource, D::Error> {
        struct KeySourceVisitor;
        impl<'de> Visitor<'de> for KeySourceVisitor {
            type Value = KeySource;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("{sha256: …}, {env: …} or {file: …}")
            }

            fn visit_str<E: Error>(self, _: &str) -> Result<KeySource, E> {
                Err(E::custom("a key is not written here; write {sha256: …}, {env: …} or {file: …}"))
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<KeySource, A::Error> {
                let KeySourceFields { sha256, env, file } =
                    KeySourceFields::deserialize(MapAccessDeserializer::new(map))?;
                Ok(KeySource { sha256, env, file })
            }
        }
        from.deserialize_any(KeySourceVisitor)
    }
}

/// The SHA-256 of a key.
#[derive(Clone, Copy)]
pub struct Digest([u8; 32]);

impl Digest {
    /// Returns the digest of a key as a client sent it.
    pub fn of(key: &[u8]) -> Digest {
        let mut bytes = [0; 32];
        bytes.copy_from_slice(ring::digest::digest(&ring::digest::SHA256, key).as_ref());
        Digest(bytes)
    }

    /// Compares two digests in constant time.
    pub fn is(&self, other: &Digest) -> bool {
        self.0.ct_eq(&other.0).into()
    }

    /// Returns a table index. The duration of a lookup reveals part of a hash at most, and no key follows from a
    /// hash.
    pub fn short(&self) -> u64 {
        let mut short = [0; 8];
        short.copy_from_slice(&self.0[..8]);
        u64::from_be_bytes(short)
    }

    /// Returns the digest in hexadecimal, as in a configuration.
    pub fn hex(&self) -> String {
        self.0.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    fn from_hex(text: &str) -> Option<Digest> {
        let mut bytes = [0; 32];
        if text.len() != 64 || !text.is_ascii() {
            return None;
        }
        for (place, byte) in bytes.iter_mut().enumerate() {
            *byte = u8::from_str_radix(&text[2 * place..2 * place + 2], 16).ok()?;
        }
        Some(Digest(bytes))
    }
}

impl KeySource {
    /// Returns the key itself, to authenticate to another server.
    ///
    /// # Errors
    /// Fails if the source is missing or contains only a hash. `what` names the owner in the message.
    pub fn secret(&self, what: &str) -> Result<Secret, SettingError> {
        let wrong = |why: String| SettingError::Conflict { name: what.to_owned(), why };
        match (&self.sha256, &self.env, &self.file) {
            (None, Some(name), None) => {
                let text = std::env::var(name);
                let text = text.map_err(|_| wrong(format!("the environment variable {name} is not set")))?;
                Secret::new(&text, &format!("${name}")).map_err(|e| wrong(e.to_string()))
            }
            (None, None, Some(path)) => Secret::from_file(path).map_err(|e| wrong(e.to_string())),
            (Some(_), None, None) => {
                Err(wrong("a hash can't be sent as a key; write {env: …} or {file: …}".to_owned()))
            }
            _ => Err(wrong("write one of {sha256: …}, {env: …} and {file: …}".to_owned())),
        }
    }

    /// Returns the digest of the key.
    ///
    /// # Errors
    /// Fails if the source is missing, the key is too short or the hash is malformed. `what` names the owner in the
    /// message.
    pub fn digest(&self, what: &str) -> Result<Digest, SettingError> {
        let wrong = |why: String| SettingError::Conflict { name: what.to_owned(), why };
        if let (Some(hex), None, None) = (&self.sha256, &self.env, &self.file) {
            let read = Digest::from_hex(hex.trim());
            return read.ok_or_else(|| {
                wrong("sha256 is not 64 hexadecimal digits; plimsoll gateway key prints a line".to_owned())
            });
        }
        let secret = self.secret(what)?;
        match secret.with_bytes(|key| (key.len() >= SHORTEST).then(|| Digest::of(key))) {
            Some(digest) => Ok(digest),
            None => Err(wrong(format!(
                "its key has fewer than {SHORTEST} characters and can be guessed; plimsoll gateway key makes one"
            ))),
        }
    }
}

/// Returns a new key of 256 bits from the system's random generator. Fails if the system has no random bytes.
pub fn fresh() -> Result<(String, Digest), SettingError> {
    use ring::rand::SecureRandom;
    let mut bytes = [0u8; 32];
    ring::rand::SystemRandom::new()
        .fill(&mut bytes)
        .or_else(|_| conflict("key", "the system gives no random bytes"))?;
    let key = bytes.iter().fold("pl-".to_owned(), |text, byte| format!("{text}{byte:02x}"));
    let digest = Digest::of(key.as_bytes());
    Ok((key, digest))
}

/// Returns whether a name can appear in metrics, logs and headers without escaping.
pub fn is_plain(name: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.:@/".contains(&byte);
    (1..=64).contains(&name.len()) && name.bytes().all(plain)
}
