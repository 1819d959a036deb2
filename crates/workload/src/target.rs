//! Configures the endpoint, or several of one kind, and its requests.

use std::collections::{BTreeMap, HashSet};
use std::hash::Hasher;

use plimsoll_model::{Attempt, Protocol};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use siphasher::sip::SipHasher24;

use crate::tensors::TensorSpec;
use crate::{Documents, SpecError};

/// Settings of the endpoint, the protocol and the requests.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct TargetSpec {
    /// Base URL of the endpoint, such as `https://llm.internal/v1`.
    pub url: String,
    /// Further endpoints of equal kind. Requests are distributed over `url` and these; all requests of a session go to one
    /// endpoint.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub further_urls: Vec<String>,
    /// Protocol of the endpoint; default `chat`.
    pub protocol: Protocol,
    /// Model to request; default: the first one that the endpoint lists.
    pub model: Option<String>,
    /// Request a streamed response; default true.
    pub stream: bool,
    /// HTTP version; gRPC always uses HTTP/2.
    #[serde(skip_serializing_if = "HttpVersion::is_usual")]
    pub http: HttpVersion,
    /// Most concurrent requests per HTTP/2 connection; default: the server's limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub streams_per_connection: Option<u32>,
    /// Additional request headers. A value may contain `$NAME`, which is read from the environment, and `{session}`,
    /// `{request}`, `{trace}` and `{span}`, which identify each request.
    pub headers: BTreeMap<String, String>,
    /// Environment variable with the API key.
    pub key_env: Option<String>,
    /// File with the API key; reloaded when it changes.
    pub key_file: Option<String>,
    /// Token server that issues the API key; tokens are renewed before they expire.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token: Option<TokenSpec>,
    /// PEM file of the client certificate (mutual TLS); reloaded when it changes, with its key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client_cert: Option<String>,
    /// PEM file with the private key of `client_cert`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client_key: Option<String>,
    /// Verify the server's certificate; default true.
    pub tls_verify: bool,
    /// PEM file with additional trusted certificate authorities.
    pub ca_file: Option<String>,
    /// Custom request body with placeholders: JSON, or any text for an `http` target.
    pub body_template: Option<String>,
    /// Model version (`kserve`); default: the server's choice.
    pub version: Option<String>,
    /// Input tensors of a request (protocol `kserve`).
    pub tensors: TensorSpec,
    /// Documents per request (`rerank`, `score`; default 10), or texts per request (`pooling`, `classify`, `embeddings`;
    /// default 1).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub documents: Option<Documents>,
    /// Request that the server ignores the end-of-sequence token, so that outputs have the requested length; default true.
    pub ignore_eos: bool,
    /// Field of the request body with the output length, such as `max_completion_tokens`; default: the protocol's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub length_field: Option<String>,
    /// Sampling temperature; absent for the default of the server.
    pub temperature: Option<f64>,
    /// Additional fields of the request body.
    pub extra: Map<String, Value>,
}

impl Default for TargetSpec {
    fn default() -> TargetSpec {
        TargetSpec {
            url: String::new(),
            further_urls: Vec::new(),
            protocol: Protocol::Chat,
            model: None,
            stream: true,
            http: HttpVersion::default(),
            streams_per_connection: None,
            headers: BTreeMap::new(),
            key_env: None,
            key_file: None,
            token: None,
            client_cert: None,
            client_key: None,
            tls_verify: true,
            ca_file: None,
            body_template: None,
            version: None,
            tensors: TensorSpec::default(),
            documents: None,
            ignore_eos: true,
            length_field: None,
            temperature: None,
            extra: Map::new(),
        }
    }
}

/// HTTP version. It is configured and never negotiated, because it is part of the measurement.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub enum HttpVersion {
    /// One request at a time per connection.
    #[default]
    #[serde(rename = "1.1")]
    One,
    /// Concurrent requests per connection: over TLS by ALPN, otherwise by prior knowledge (h2c).
    #[serde(rename = "2")]
    Two,
}

impl HttpVersion {
    fn is_usual(&self) -> bool {
        *self == HttpVersion::One
    }
}

/// The optional fields of a request that a server has accepted.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct AcceptedFields {
    ignore_eos: bool,
    length_field: Option<String>,
    temperature: Option<f64>,
    extra: Map<String, Value>,
}

/// Most endpoints of a run, because each has a separate connection pool and rows number endpoints in 16 bits.
const URLS_MAX: usize = 1024;

impl TargetSpec {
    /// Returns all endpoints, in the order of their numbers in rows.
    pub fn urls(&self) -> impl Iterator<Item = &String> {
        std::iter::once(&self.url).chain(&self.further_urls)
    }

    /// Returns the optional fields of the requests.
    pub fn fields(&self) -> AcceptedFields {
        let TargetSpec { ignore_eos, length_field, temperature, extra, .. } = self.clone();
        AcceptedFields { ignore_eos, length_field, temperature, extra }
    }

    /// Keeps only the optional fields that a server has accepted.
    pub fn take_fields(&mut self, fields: AcceptedFields) {
        let AcceptedFields { ignore_eos, length_field, temperature, extra } = fields;
        (self.ignore_eos, self.length_field, self.temperature, self.extra) =
            (ignore_eos, length_field, temperature, extra);
    }

    /// Returns the target with this endpoint only.
    #[must_use]
    pub fn only(&self, url: &str) -> TargetSpec {
        TargetSpec { url: url.to_owned(), further_urls: Vec::new(), ..self.clone() }
    }

    /// Returns the endpoint number of a request, equal for all requests of a session.
    ///
    /// Each round of sessions, one per endpoint, visits all endpoints in a random order. With a fixed order an endpoint
    /// would belong to one worker or shard, and a slow worker would be indistinguishable from a slow endpoint.
    pub fn endpoint_of(&self, session: Option<u64>, request: u64) -> u16 {
        let (key, of) = (session.unwrap_or(request), 1 + self.further_urls.len() as u64);
        let mut hasher = SipHasher24::new_with_keys(0, of);
        hasher.write(&(key / of).to_le_bytes());
        ((key % of + hasher.finish() % of) % of) as u16
    }

    /// Returns the row with its endpoint number set.
    pub fn placed(&self, row: Attempt) -> Attempt {
        Attempt { target: self.endpoint_of(row.session, row.request), ..row }
    }

    /// Checks that the protocol supports images and audio, if the prompts have them.
    pub(crate) fn carries_media(&self, images: bool, audio: bool) -> Result<(), SpecError> {
        let shows = matches!(
            self.protocol,
            Protocol::Chat | Protocol::Responses | Protocol::Messages | Protocol::OllamaChat
        );
        let own = self.body_template.is_some();
        let plays = matches!(self.protocol, Protocol::Chat | Protocol::Transcriptions);
        let wrong = match (images && (own || !shows), audio && (own || !plays)) {
            (true, _) => ("prompts.images", "only chat, responses, messages and ollama_chat send images"),
            (_, true) => ("prompts.audio", "only chat and transcriptions send audio"),
            _ => return Ok(()),
        };
        let but = if own { "; a custom body does not" } else { "" };
        Err(SpecError::Conflict { path: wrong.0.into(), what: format!("{}{but}", wrong.1) })
    }

    /// Checks rules that the schema can't express.
    pub(crate) fn validate(&self) -> Result<(), SpecError> {
        if self.further_urls.len() >= URLS_MAX {
            let many = self.further_urls.len() + 1;
            return Err(SpecError::value("further_urls", many, &format!("at most {URLS_MAX} endpoints")));
        }
        if self.streams_per_connection == Some(0) {
            return Err(SpecError::value("streams_per_connection", 0, "at least 1"));
        }
        if self.token.is_some() && (self.key_env.is_some() || self.key_file.is_some()) {
            let what = "a token is the key: drop key_env and key_file, or the token".to_owned();
            return Err(SpecError::Conflict { path: "token".into(), what });
        }
        if self.token.as_ref().is_some_and(|token| token.secret_env.is_none() == token.secret_file.is_none())
        {
            let what = "name the client's secret: secret_env (a variable) or secret_file, and one of them"
                .to_owned();
            return Err(SpecError::Conflict { path: "token".into(), what });
        }
        if self.client_cert.is_none() != self.client_key.is_none() {
            let what = "a certificate is shown with its key: name client_cert and client_key".to_owned();
            return Err(SpecError::Conflict { path: "client_cert".into(), what });
        }
        let mut seen = HashSet::new();
        match self.urls().find(|url| !seen.insert(url.trim_end_matches('/'))) {
            Some(twice) => Err(SpecError::Conflict {
                path: "further_urls".into(),
                what: format!("{twice} is named twice: each endpoint gets one share of the requests"),
            }),
            None => Ok(()),
        }
    }

    /// Returns the number of results that a response must have: one per document, or the images. `None` if the protocol or a
    /// custom body does not determine it.
    pub fn results(&self, documents: u32) -> Option<u32> {
        let own = ["input", "documents", "text_2"].iter().any(|field| self.extra.contains_key(*field));
        if self.body_template.is_some() || own {
            return None;
        }
        match self.protocol {
            protocol if protocol.takes_texts() => Some(documents.max(1)),
            Protocol::Images => Some(self.extra.get("n").and_then(Value::as_u64).unwrap_or(1) as u32),
            _ => None,
        }
    }
}

/// Token server for OAuth 2.0 client credentials.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TokenSpec {
    /// URL of the endpoint that issues tokens.
    pub url: String,
    /// Client id for the token endpoint.
    pub client_id: String,
    /// Environment variable with the client secret.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret_env: Option<String>,
    /// File with the client secret; read at each renewal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret_file: Option<String>,
    /// Scope of the token, as defined by the server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scope: Option<String>,
    /// Audience of the token, if the server requires one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub audience: Option<String>,
    /// Transmission of the client id and secret; default `post`.
    #[serde(default)]
    pub auth: TokenAuth,
}

/// Transmission of the client id and secret.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum TokenAuth {
    /// Id and secret in the posted form.
    #[default]
    Post,
    /// Id and secret as HTTP basic authentication.
    Basic,
}
