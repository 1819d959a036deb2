//! Keys as a file names them, and as they are kept: by their SHA-256.
//!
//! A slow hash (scrypt, Argon2) lost: it protects secrets that people think up, and costs milliseconds a request. A key of `plimsoll gateway key` has 256
//! bits by chance, which no fast hash gives away; one that is shorter than [`SHORTEST`] is refused.

use std::fmt;
use std::path::PathBuf;

use plimsoll_client::secret::Secret;
use plimsoll_policy::{RateSpec, SettingError};
use schemars::JsonSchema;
use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserializer, Error, MapAccess, Visitor};
use serde::{Deserialize, Serialize};
use subtle::ConstantTimeEq;

/// Characters of the shortest key that is taken: 16 of base64 are 96 bits, which nobody guesses.
pub(crate) const SHORTEST: usize = 16;
pub(crate) const MOST_KEYS: usize = 100_000;

/// Who may send requests.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct KeySpec {
    /// What the key is called in metrics and logs, which never hold the key.
    pub id: String,
    /// The key.
    pub key: KeySource,
    /// Whose it is: keys of one tenant share caches and their turn in a queue. The id unless told otherwise.
    #[serde(default)]
    pub tenant: Option<String>,
    /// The class of its requests, where not all can be served at once.
    #[serde(default)]
    pub class: Option<String>,
    /// How much may be asked for with it.
    #[serde(default)]
    pub rate: RateSpec,
}

/// Where a key is had from; one of the three. Never the key itself: files are copied, printed and committed.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct KeySource {
    /// Its SHA-256 in hexadecimal, as `plimsoll gateway key` prints it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sha256: Option<String>,
    /// An environment variable that holds it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub env: Option<String>,
    /// A file that holds it, and nothing else.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file: Option<PathBuf>,
}

/// As [`KeySource`] is written.
#[derive(Deserialize)]
#[serde(default, deny_unknown_fields)]
#[derive(Default)]
struct Written {
    sha256: Option<String>,
    env: Option<String>,
    file: Option<PathBuf>,
}

impl<'de> Deserialize<'de> for KeySource {
    /// By hand, because the usual reader quotes what it can't use: whoever writes the key where its source belongs would see it in a log.
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<KeySource, D::Error> {
        struct Source;
        impl<'de> Visitor<'de> for Source {
            type Value = KeySource;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("{sha256: …}, {env: …} or {file: …}")
            }

            fn visit_str<E: Error>(self, _: &str) -> Result<KeySource, E> {
                Err(E::custom("a key is not written here; write {sha256: …}, {env: …} or {file: …}"))
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<KeySource, A::Error> {
                let Written { sha256, env, file } = Written::deserialize(MapAccessDeserializer::new(map))?;
                Ok(KeySource { sha256, env, file })
            }
        }
        from.deserialize_any(Source)
    }
}

/// A key's SHA-256.
#[derive(Clone, Copy)]
pub struct Digest([u8; 32]);

impl Digest {
    /// Of a key as a client sent it.
    pub fn of(key: &[u8]) -> Digest {
        let mut bytes = [0; 32];
        bytes.copy_from_slice(ring::digest::digest(&ring::digest::SHA256, key).as_ref());
        Digest(bytes)
    }

    /// The same? Takes as long whatever the answer.
    pub fn is(&self, other: &Digest) -> bool {
        self.0.ct_eq(&other.0).into()
    }

    /// By what it is found in a table. How long a look-up takes tells of this much: of a hash, from which no key follows.
    pub fn short(&self) -> u64 {
        let mut short = [0; 8];
        short.copy_from_slice(&self.0[..8]);
        u64::from_be_bytes(short)
    }

    /// As a file has it.
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
    /// The key itself, where it is to be shown to somebody else.
    ///
    /// # Errors
    /// It is not there, or only its hash is. `what` names whose it is.
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
                Err(wrong("a hash can't be shown to anybody; write {env: …} or {file: …}".to_owned()))
            }
            _ => Err(wrong("write one of {sha256: …}, {env: …} and {file: …}".to_owned())),
        }
    }

    /// Its hash.
    ///
    /// # Errors
    /// It is not there, is too short, or what is written as its hash is none. `what` names whose it is.
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

/// A new key of 256 bits by the system's chance.
pub fn fresh() -> Result<(String, Digest), SettingError> {
    use ring::rand::SecureRandom;
    let mut bytes = [0u8; 32];
    ring::rand::SystemRandom::new().fill(&mut bytes).map_err(|_| SettingError::Conflict {
        name: "key".to_owned(),
        why: "the system gives no random bytes".to_owned(),
    })?;
    let key = bytes.iter().fold("pl-".to_owned(), |text, byte| format!("{text}{byte:02x}"));
    let digest = Digest::of(key.as_bytes());
    Ok((key, digest))
}

/// Can an id or a tenant stand in metrics, logs and headers as it is?
pub fn is_plain(name: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.:@/".contains(&byte);
    (1..=64).contains(&name.len()) && name.bytes().all(plain)
}
