//! Configuration of the semantic cache.

use plimsoll_policy::setting::SettingError;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::error::{conflict, within};
use crate::keys::KeySource;
use crate::spec::{ReplicaAddress, ReplicaSpec};

/// Name of the embeddings server in messages and metrics.
pub(crate) const EMBEDDINGS: &str = "cache.semantic.embeddings";
/// Name of the judge server in messages and metrics.
pub(crate) const JUDGE: &str = "cache.semantic.same.judge";

/// Semantic cache: answers of earlier requests with the same meaning.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SemanticSpec {
    /// Embeddings server: an OpenAI-compatible server with `/v1/embeddings`.
    pub embeddings: EndpointSpec,
    /// Criterion for equal answers [default: text].
    #[serde(default)]
    pub same: SameAnswer,
    /// Limit on the share of false hits: cached answers that differ from what a replica would have answered [default:
    /// 0.01].
    #[serde(default = "max_false_hits")]
    pub max_false_hits: f64,
    /// Confidence level of the bound on false hits [default: 0.95].
    #[serde(default = "confidence")]
    pub confidence: f64,
    /// Audit share: share of near and of identical requests that go to a replica anyway to measure false hits
    /// [default: 0.05].
    #[serde(default = "audit")]
    pub audit: f64,
    /// Candidate similarity thresholds (cosine) in ascending order. The lowest proven threshold is active; texts
    /// below the first are not compared [default: 0.70 to 0.99, 12 values].
    #[serde(default = "thresholds")]
    pub thresholds: Vec<f64>,
    /// Limit on the number of indexed texts; the oldest text is evicted first [default: 4096].
    #[serde(default = "entries")]
    pub entries: usize,
    /// Limit on the length of an embedded text in bytes. Embedding models truncate long texts, so texts with an equal
    /// start would appear identical [default: 2048].
    #[serde(default = "text_bytes")]
    pub text_bytes: usize,
}

/// An auxiliary server of the semantic cache.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct EndpointSpec {
    /// Base URL of the endpoint: `http://host:8000` or `https://…`.
    pub url: String,
    /// Model name in requests to the server.
    pub model: String,
    /// Source of the key that is sent as `Authorization: Bearer` [default: no key].
    #[serde(default)]
    pub key: Option<KeySource>,
    /// Timeout in s. Once cached answers are served, each cache miss waits for this server [default: 1.0].
    #[serde(default = "timeout_s")]
    pub timeout_s: f64,
}

/// Criterion by which two answers count as equal.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum SameAnswer {
    /// Equal words, ignoring case, punctuation and spacing.
    #[default]
    Text,
    /// Minimum cosine similarity of the answers' embeddings.
    Embedding(f64),
    /// Decision of a judge model: an OpenAI-compatible server with `/v1/chat/completions`.
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
    // Embedding models differ in scale. More thresholds need more comparisons, because all thresholds share the error
    // probability.
    vec![0.70, 0.75, 0.80, 0.85, 0.88, 0.90, 0.92, 0.94, 0.96, 0.97, 0.98, 0.99]
}

fn entries() -> usize {
    // This is 16 MiB for embeddings of 1 024 numbers.
    4_096
}

fn text_bytes() -> usize {
    // This is about 512 tokens, the input limit of many embedding models.
    2_048
}

fn timeout_s() -> f64 {
    1.0
}

impl SemanticSpec {
    /// Returns a configuration with this embeddings server and defaults elsewhere.
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

    /// Returns the judge server; `None` if answers are compared without a judge.
    pub fn judge(&self) -> Option<&EndpointSpec> {
        match &self.same {
            SameAnswer::Judge(judge) => Some(judge),
            SameAnswer::Text | SameAnswer::Embedding(_) => None,
        }
    }

    /// Returns the configured auxiliary servers with their names.
    pub fn endpoints(&self) -> impl Iterator<Item = (&'static str, &EndpointSpec)> {
        let judge = self.judge().map(|judge| (JUDGE, judge));
        [Some((EMBEDDINGS, &self.embeddings)), judge].into_iter().flatten()
    }

    /// Checks the rules that the types cannot express, and fails on the first invalid setting.
    pub fn validate(&self) -> Result<(), SettingError> {
        for (name, endpoint) in self.endpoints() {
            endpoint.validate(name)?;
        }
        let check =
            |name: &str, value: f64, limits| within(&format!("cache.semantic.{name}"), value, limits, "");
        if let SameAnswer::Embedding(similarity) = self.same {
            check("same.embedding", similarity, 0.5..=1.0)?;
        }
        check("max_false_hits", self.max_false_hits, 0.0005..=0.2)?;
        check("confidence", self.confidence, 0.5..=0.9999)?;
        check("audit", self.audit, 0.001..=1.0)?;
        let rises = self.thresholds.windows(2).all(|pair| pair[0] < pair[1]);
        let sound = self.thresholds.iter().all(|at| (0.1..=1.0).contains(at));
        if !(1..=32).contains(&self.thresholds.len()) || !rises || !sound {
            let why = "write 1 to 32 similarities from 0.1 to 1, each greater than the one before";
            return conflict("cache.semantic.thresholds", why);
        }
        within("cache.semantic.entries", self.entries, 16..=65_536, "")?;
        within("cache.semantic.text_bytes", self.text_bytes, 16..=65_536, "")
    }
}

impl EndpointSpec {
    fn validate(&self, name: &str) -> Result<(), SettingError> {
        self.place(name)?;
        if self.model.is_empty() {
            return conflict(name, "model is empty; write the name that the server knows it by");
        }
        match (0.01..=60.0).contains(&self.timeout_s) {
            true => Ok(()),
            false => conflict(name, format!("timeout_s {} is not from 0.01 to 60 s", self.timeout_s)),
        }
    }

    /// Returns the address of the server. `name` is the setting's name for messages. Fails if the URL is invalid.
    pub fn place(&self, name: &str) -> Result<ReplicaAddress, SettingError> {
        self.replica(name).place().map_err(|error| match error {
            SettingError::Conflict { why, .. } => SettingError::Conflict { name: name.to_owned(), why },
            other => other,
        })
    }

    /// Returns the server as a replica, because connections are made to replicas.
    pub fn replica(&self, name: &str) -> ReplicaSpec {
        ReplicaSpec::new(self.url.clone(), Some(name.to_owned()))
    }
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
