//! What is asked of a semantic cache.

use plimsoll_policy::setting::SettingError;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::keys::KeySource;
use crate::spec::{ReplicaAddress, ReplicaSpec};

/// What the servers that are asked are called.
pub(crate) const EMBEDDINGS: &str = "cache.semantic.embeddings";
/// See [`EMBEDDINGS`].
pub(crate) const JUDGE: &str = "cache.semantic.same.judge";

/// Answers given to requests that ask the same in other words.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SemanticSpec {
    /// Where texts are embedded: `/v1/embeddings` of a server that speaks as OpenAI's does.
    pub embeddings: EndpointSpec,
    /// When two answers are the same.
    #[serde(default)]
    pub same: SameAnswer,
    /// The share of answers so given that may be false, that is, that may differ from what a replica would have said.
    #[serde(default = "max_false_hits")]
    pub max_false_hits: f64,
    /// How sure that is to be.
    #[serde(default = "confidence")]
    pub confidence: f64,
    /// The share of requests with a near neighbour, and of those that are repeated word by word, that a replica answers all the same, so that the bound stays measured.
    #[serde(default = "audit")]
    pub audit: f64,
    /// Similarities (cosine of the embeddings) of which the lowest proven one is in force. Under the first nothing is compared.
    #[serde(default = "thresholds")]
    pub thresholds: Vec<f64>,
    /// Most texts that are remembered; the oldest is forgotten first.
    #[serde(default = "entries")]
    pub entries: usize,
    /// The longest text that is embedded, bytes: models read so many tokens and leave out the rest, and texts that begin alike would be the same.
    #[serde(default = "text_bytes")]
    pub text_bytes: usize,
}

/// A server that is asked something on the side.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct EndpointSpec {
    /// Where it is: `http://host:8000`, or `https://…`.
    pub url: String,
    /// The model that it is asked for.
    pub model: String,
    /// What it wants to see as `Authorization: Bearer`.
    #[serde(default)]
    pub key: Option<KeySource>,
    /// How long an answer may take, seconds. Once answers are served, each request that has none in the cache waits for it.
    #[serde(default = "timeout_s")]
    pub timeout_s: f64,
}

/// When two answers are the same.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum SameAnswer {
    /// When their words are, whatever their case, punctuation and spacing.
    #[default]
    Text,
    /// When their embeddings are at least so similar.
    Embedding(f64),
    /// When a model says so: `/v1/chat/completions` of a server that speaks as OpenAI's does.
    Judge(EndpointSpec),
}

fn max_false_hits() -> f64 {
    0.01
}

fn confidence() -> f64 {
    0.95
}

fn audit() -> f64 {
    0.05
}

fn thresholds() -> Vec<f64> {
    // Models differ in what they call near; more of them cost comparisons, because they share the chance of being wrong.
    vec![0.70, 0.75, 0.80, 0.85, 0.88, 0.90, 0.92, 0.94, 0.96, 0.97, 0.98, 0.99]
}

fn entries() -> usize {
    // Of 1 024 numbers each, 16 MiB.
    4_096
}

fn text_bytes() -> usize {
    // 512 tokens, which is all that many embedding models read.
    2_048
}

fn timeout_s() -> f64 {
    1.0
}

impl SemanticSpec {
    /// One with these embeddings, and all else as it is unless told otherwise.
    pub fn new(embeddings: EndpointSpec) -> SemanticSpec {
        SemanticSpec {
            embeddings,
            same: SameAnswer::default(),
            max_false_hits: max_false_hits(),
            confidence: confidence(),
            audit: audit(),
            thresholds: thresholds(),
            entries: entries(),
            text_bytes: text_bytes(),
        }
    }

    /// The model that says whether answers are the same, if one does.
    pub fn judge(&self) -> Option<&EndpointSpec> {
        match &self.same {
            SameAnswer::Judge(judge) => Some(judge),
            SameAnswer::Text | SameAnswer::Embedding(_) => None,
        }
    }

    /// The servers that are asked, and what they are called.
    pub fn endpoints(&self) -> impl Iterator<Item = (&'static str, &EndpointSpec)> {
        let judge = self.judge().map(|judge| (JUDGE, judge));
        [Some((EMBEDDINGS, &self.embeddings)), judge].into_iter().flatten()
    }

    /// Checks everything that the types can't.
    pub fn validate(&self) -> Result<(), SettingError> {
        for (name, endpoint) in self.endpoints() {
            endpoint.validate(name)?;
        }
        let share = |name: &str, value: f64, least: f64, most: f64| match (least..=most).contains(&value) {
            true => Ok(()),
            false => {
                wrong(&format!("cache.semantic.{name}"), format!("{value} is not from {least} to {most}"))
            }
        };
        if let SameAnswer::Embedding(similarity) = self.same {
            share("same.embedding", similarity, 0.5, 1.0)?;
        }
        share("max_false_hits", self.max_false_hits, 0.0005, 0.2)?;
        share("confidence", self.confidence, 0.5, 0.9999)?;
        share("audit", self.audit, 0.001, 1.0)?;
        let rises = self.thresholds.windows(2).all(|pair| pair[0] < pair[1]);
        let sound = self.thresholds.iter().all(|at| (0.1..=1.0).contains(at));
        if !(1..=32).contains(&self.thresholds.len()) || !rises || !sound {
            let why = "write 1 to 32 similarities from 0.1 to 1, each greater than the one before";
            return wrong("cache.semantic.thresholds", why.to_owned());
        }
        if !(16..=65_536).contains(&self.entries) {
            return wrong("cache.semantic.entries", format!("{} is not from 16 to 65536", self.entries));
        }
        if !(16..=65_536).contains(&self.text_bytes) {
            return wrong(
                "cache.semantic.text_bytes",
                format!("{} is not from 16 to 65536", self.text_bytes),
            );
        }
        Ok(())
    }
}

impl EndpointSpec {
    fn validate(&self, name: &str) -> Result<(), SettingError> {
        self.place(name)?;
        if self.model.is_empty() {
            return wrong(name, "model is empty; write the name that the server knows it by".to_owned());
        }
        match (0.01..=60.0).contains(&self.timeout_s) {
            true => Ok(()),
            false => wrong(name, format!("timeout_s {} is not from 0.01 to 60 s", self.timeout_s)),
        }
    }

    /// Where it is. `name`: what it is called in the file.
    pub fn place(&self, name: &str) -> Result<ReplicaAddress, SettingError> {
        self.replica(name).place().map_err(|error| match error {
            SettingError::Conflict { why, .. } => SettingError::Conflict { name: name.to_owned(), why },
            other => other,
        })
    }

    /// It as connections know servers.
    pub fn replica(&self, name: &str) -> ReplicaSpec {
        ReplicaSpec::new(self.url.clone(), Some(name.to_owned()))
    }
}

fn wrong(name: &str, why: String) -> Result<(), SettingError> {
    Err(SettingError::Conflict { name: name.to_owned(), why })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slip_is_named() {
        let spec = || {
            let (url, model) = ("http://127.0.0.1:9".to_owned(), "m".to_owned());
            SemanticSpec::new(EndpointSpec { url, model, key: None, timeout_s: 1.0 })
        };
        assert!(spec().validate().is_ok());
        let refuses = |change: fn(&mut SemanticSpec), word: &str| {
            let mut spec = spec();
            change(&mut spec);
            let why = spec.validate().expect_err("a slip").to_string();
            assert!(why.contains(word), "{why}");
        };
        refuses(|spec| spec.embeddings.url = "ftp://x".to_owned(), "cache.semantic.embeddings: ");
        refuses(|spec| spec.embeddings.model.clear(), "model is empty");
        refuses(|spec| spec.embeddings.timeout_s = f64::NAN, "timeout_s");
        refuses(|spec| spec.max_false_hits = 1.0, "max_false_hits: 1 is not from 0.0005 to 0.2");
        refuses(|spec| spec.audit = 0.0, "audit");
        refuses(|spec| spec.confidence = 1.0, "confidence");
        refuses(|spec| spec.thresholds = vec![0.9, 0.9], "each greater");
        refuses(|spec| spec.thresholds.clear(), "1 to 32");
        refuses(|spec| spec.entries = 0, "entries");
        refuses(|spec| spec.text_bytes = 1, "text_bytes");
        refuses(|spec| spec.same = SameAnswer::Embedding(f64::NAN), "same.embedding");
        refuses(
            |spec| {
                spec.same = SameAnswer::Judge(EndpointSpec { url: String::new(), ..spec.embeddings.clone() });
            },
            "cache.semantic.same.judge: ",
        );
    }
}
