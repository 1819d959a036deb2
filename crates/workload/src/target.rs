//! The endpoint, or several of one kind, and how they are spoken to.

use std::collections::{BTreeMap, HashSet};
use std::hash::Hasher;

use plimsoll_model::{Attempt, Protocol};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use siphasher::sip::SipHasher24;

use crate::tensors::TensorSpec;
use crate::{Documents, SpecError};

/// The endpoint and how it is spoken to.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct TargetSpec {
    /// Base URL, such as `https://llm.internal/v1`.
    pub url: String,
    /// Further endpoints of the same kind. The requests are dealt to `url` and these in turn, all of a session to one.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub further_urls: Vec<String>,
    /// What is spoken.
    pub protocol: Protocol,
    /// The model to ask for; none = the first one the endpoint lists.
    pub model: Option<String>,
    /// Ask for a streamed answer.
    pub stream: bool,
    /// The version of HTTP; gRPC is HTTP/2 by its nature.
    #[serde(skip_serializing_if = "HttpVersion::is_usual")]
    pub http: HttpVersion,
    /// Over HTTP/2: most requests at the same time on one connection; none = as many as the server allows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub streams_per_connection: Option<u32>,
    /// Further request headers; a value may hold `$NAME`, which is taken from the environment when it is sent, and `{session}`, `{request}`, `{trace}` and `{span}`,
    /// which name each request.
    pub headers: BTreeMap<String, String>,
    /// Environment variable that holds the key.
    pub key_env: Option<String>,
    /// File that holds the key; read again when it changes.
    pub key_file: Option<String>,
    /// Server that gives tokens to be the key, renewed before they expire.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token: Option<TokenSpec>,
    /// PEM files of the certificate that is shown where a server asks for one, and of its key; read again when they change.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client_cert: Option<String>,
    /// Key of `client_cert`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client_key: Option<String>,
    /// Check the server's certificate.
    pub tls_verify: bool,
    /// PEM file of further trusted roots.
    pub ca_file: Option<String>,
    /// Body of a request of one's own, with placeholders: JSON, or any text for an `http` target.
    pub body_template: Option<String>,
    /// Version of the model (`kserve`); none = the server's choice.
    pub version: Option<String>,
    /// Input tensors (`kserve`).
    pub tensors: TensorSpec,
    /// Documents of a request (`rerank`, `score`; none = 10), or texts of one (`pooling`, `classify`, `embeddings`; none = 1).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub documents: Option<Documents>,
    /// Ask the server not to end before the asked length.
    pub ignore_eos: bool,
    /// Field of the body that asks for the output length, such as `max_completion_tokens`; none = the protocol's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub length_field: Option<String>,
    /// Sampling temperature; none = the server's default.
    pub temperature: Option<f64>,
    /// Further fields of the request body.
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

/// A version of HTTP. Which one is part of what is measured, so it is asked for and never negotiated.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub enum HttpVersion {
    /// A request at a time on each connection.
    #[default]
    #[serde(rename = "1.1")]
    One,
    /// Many at a time: over TLS by ALPN, else by prior knowledge (h2c).
    #[serde(rename = "2")]
    Two,
}

impl HttpVersion {
    fn is_usual(&self) -> bool {
        *self == HttpVersion::One
    }
}

/// The optional fields of a request, as a server has accepted them.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct AcceptedFields {
    ignore_eos: bool,
    length_field: Option<String>,
    temperature: Option<f64>,
    extra: Map<String, Value>,
}

/// Most endpoints of a run: rows number them in 16 bits, and each has connections of its own.
const URLS_MAX: usize = 1024;

impl TargetSpec {
    /// Every endpoint, as rows number them.
    pub fn urls(&self) -> impl Iterator<Item = &String> {
        std::iter::once(&self.url).chain(&self.further_urls)
    }

    /// The optional fields that its requests have.
    pub fn fields(&self) -> AcceptedFields {
        let TargetSpec { ignore_eos, length_field, temperature, extra, .. } = self.clone();
        AcceptedFields { ignore_eos, length_field, temperature, extra }
    }

    /// Sends the fields that a server has accepted.
    pub fn take_fields(&mut self, fields: AcceptedFields) {
        let AcceptedFields { ignore_eos, length_field, temperature, extra } = fields;
        (self.ignore_eos, self.length_field, self.temperature, self.extra) =
            (ignore_eos, length_field, temperature, extra);
    }

    /// The same with one endpoint alone.
    #[must_use]
    pub fn only(&self, url: &str) -> TargetSpec {
        TargetSpec { url: url.to_owned(), further_urls: Vec::new(), ..self.clone() }
    }

    /// Number of the endpoint that gets a request, of a session all of its requests. Every round of as many sessions as there are endpoints gives each
    /// one, in an order drawn for that round: dealt in one order, an endpoint would be one worker's or one shard's alone, and what is slow there
    /// would look like the endpoint's.
    pub fn endpoint_of(&self, session: Option<u64>, request: u64) -> u16 {
        let (key, of) = (session.unwrap_or(request), 1 + self.further_urls.len() as u64);
        let mut hasher = SipHasher24::new_with_keys(0, of);
        hasher.write(&(key / of).to_le_bytes());
        ((key % of + hasher.finish() % of) % of) as u16
    }

    /// The row of a request that says which endpoint it goes to.
    pub fn placed(&self, row: Attempt) -> Attempt {
        Attempt { target: self.endpoint_of(row.session, row.request), ..row }
    }

    /// Can requests to it carry what these prompts show and play?
    pub(crate) fn carries_media(&self, images: bool, audio: bool) -> Result<(), SpecError> {
        let shows = matches!(
            self.protocol,
            Protocol::Chat | Protocol::Responses | Protocol::Messages | Protocol::OllamaChat
        );
        let own = self.body_template.is_some();
        let plays = matches!(self.protocol, Protocol::Chat | Protocol::Transcriptions);
        let wrong = match (images && (own || !shows), audio && (own || !plays)) {
            (true, _) => ("prompts.images", "chat, responses, messages and ollama_chat carry pictures"),
            (_, true) => ("prompts.audio", "chat and transcriptions carry sounds"),
            _ => return Ok(()),
        };
        let but = if own { ", and no body of one's own does" } else { "" };
        Err(SpecError::Conflict { path: wrong.0.into(), what: format!("{}{but}", wrong.1) })
    }

    /// Checks what the schema can't.
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

    /// Results that the answer to so many documents must have, where it has one for each document or text. A body of one's own may hold any number.
    pub fn results(&self, documents: u32) -> Option<u32> {
        let own = ["input", "documents", "text_2"].iter().any(|field| self.extra.contains_key(*field));
        if self.body_template.is_some() || own {
            return None;
        }
        match self.protocol {
            protocol if protocol.takes_texts() => Some(documents.max(1)),
            _ => None,
        }
    }
}

/// A server that gives tokens to clients who know a secret (OAuth 2.0 client credentials).
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TokenSpec {
    /// Its token endpoint.
    pub url: String,
    /// Who asks.
    pub client_id: String,
    /// Environment variable that holds the client's secret.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret_env: Option<String>,
    /// File that holds it; read at each renewal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret_file: Option<String>,
    /// What the token is to allow, in the server's words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scope: Option<String>,
    /// Whom the token is for, where the server asks that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub audience: Option<String>,
    /// How the client says who it is.
    #[serde(default)]
    pub auth: TokenAuth,
}

/// How a token's client says who it is.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum TokenAuth {
    /// In the form that it posts.
    #[default]
    Post,
    /// By HTTP's basic authentication.
    Basic,
}
