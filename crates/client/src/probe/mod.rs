//! Probes the endpoint once before any load: whether it responds, whether it supports the protocol, and its facts.
//!
//! The model list may fail for many reasons: keys may not permit it, and gateways do not serve it. One real request decides
//! then. "No server" and "another server" are distinguished, because the user's next step differs. The model list costs the
//! server nothing; only without a list does the probe request one token.

mod grpc;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;

use plimsoll_model::{Carries, Fingerprint, How, Media, Message, Outcome, Payload, Protocol, Role, Span};
use plimsoll_wire::grpc::CallStatus;
use plimsoll_wire::kserve::metadata::{self as kserve, ModelFacts};
use plimsoll_wire::{Decoder, Head, RequestOptions, encode};
use plimsoll_workload::{Connections, TargetSpec};
use serde_json::Value;
use tokio::runtime::{Builder, LocalOptions};

use crate::auth::secret::Secret;
use crate::clock::Clock;
use crate::driver::exchange::exchange;
use crate::driver::exchange_watch::{OutgoingRequest, WholeAnswer};
use crate::driver::recording::AttemptEnding;
use crate::driver::requests::options_of;
use crate::fallback::fall_back;
use crate::http1::header_template::RequestNames;
use crate::http1::keeping::KeepaliveShared;
use crate::http1::pool::ConnectionPool;
use crate::http1::request::RequestWriter;
use crate::http1::stamp::SocketMeter;
use crate::target::{EncodedBody, Target};

/// Time limit for one response of the endpoint.
const PATIENCE: Span = Span::from_secs(30);
/// Longest wait for a page other than a request, such as the model list.
const PAGE_PATIENCE: Span = Span::from_secs(10);
/// Most bytes of a response that are read.
const BODY_MAX: usize = 4 << 20;

/// Hint in the error of a server that failed without receiving a key.
pub const MAYBE_A_KEY: &str = "; no key was sent: if it needs one, give it with --key-env or --key-file";

#[derive(Clone, PartialEq, Debug)]
pub struct Probe {
    pub fingerprint: Fingerprint,
    /// Models that the endpoint lists; empty without a list.
    pub models: Vec<String>,
    /// Model to request: the target's model, or else the first in the list.
    pub model: Option<String>,
    /// Time from the first request to the head of its response, connection included.
    pub took: Span,
    /// Description of the model by a KServe server.
    pub served: Option<ProbedModel>,
    /// Models that name a base model: LoRA adapters, as vLLM lists them.
    pub adapters: Vec<String>,
    /// Reason for a missing model list; `None` if there is a list.
    pub no_list: Option<String>,
    /// Notes for the screen, such as a model that is not listed.
    pub notes: Vec<String>,
}

/// A model as described by a KServe server.
#[derive(Clone, PartialEq, Debug)]
pub struct ProbedModel {
    pub model: ModelFacts,
    /// Rows of the largest batch; 0 = no batching, `None` = not reported.
    pub max_batch: Option<u32>,
    /// Set if the server accepts raw tensors.
    pub binary: bool,
    /// Set if an inference may have any number of responses.
    pub decoupled: bool,
}

/// Reasons that no load can be sent. All of these are "source unavailable".
#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    #[error("{url} cannot be reached: {why}")]
    Unreachable {
        url: String,
        /// Error of the connection attempt, as text for users.
        why: String,
    },
    /// A server responds, but not with this protocol.
    #[error("{url} answers, but not as {protocol} should: {why}")]
    NotThis {
        url: String,
        protocol: &'static str,
        /// The response that arrived instead, and a suggestion.
        why: String,
    },
    /// The server requires a key, or another key.
    #[error("{}", forbidden(url, (*status, said), *given))]
    Forbidden {
        url: String,
        /// HTTP status, 401 or 403.
        status: u16,
        said: String,
        /// Set if a key was sent.
        given: bool,
    },
    #[error("{url} has no model {model} that is ready: {why}")]
    NoModel {
        url: String,
        model: String,
        /// Message of the server, and the models that it lists.
        why: String,
    },
    #[error(transparent)]
    Target(#[from] crate::target::TargetError),
    /// This machine can't make the request.
    #[error("cannot start to probe: {0}")]
    Local(#[from] std::io::Error),
}

/// Probes the endpoint. Blocks for about a minute at most.
///
/// # Errors
/// Fails with the reason that no load can be sent: see [`ProbeError`].
pub fn probe(spec: &TargetSpec, key: Option<Secret>) -> Result<Probe, ProbeError> {
    let target = Target::new(spec, key)?;
    let spec = spec.clone();
    // Runs on a separate thread, because the caller may be inside a runtime.
    let thread = std::thread::Builder::new().name("probe".into()).spawn(move || {
        let runtime = Builder::new_current_thread().enable_all().build_local(LocalOptions::default())?;
        runtime.block_on(ProbeState::new(target, spec).run())
    })?;
    thread.join().unwrap_or_else(|_| Err(std::io::Error::other("the probing thread died").into()))
}

/// Returns the error text of a denied access. The suggestion depends on whether a key was sent.
pub fn forbidden(url: &str, (status, said): (u16, &str), given: bool) -> String {
    let reason = if said.is_empty() { String::new() } else { format!(": {}", said.trim_end_matches('.')) };
    match given {
        true => format!(
            "{url}: the key was refused (HTTP {status}{reason}); check the key of --key-env, --key-file or the header, and its permissions"
        ),
        false => format!(
            "{url}: the server rejects requests without a key (HTTP {status}{reason}); give a key with --key-env or --key-file"
        ),
    }
}

struct ProbeState {
    target: Target,
    spec: TargetSpec,
    clock: Clock,
    pool: ConnectionPool,
    facts: BTreeMap<String, Option<String>>,
    notes: Vec<String>,
    took: Option<Span>,
    served: Option<ProbedModel>,
    adapters: Vec<String>,
    no_list: Option<String>,
}

/// The parts of a response that the probe uses.
#[derive(Debug, Default)]
struct ProbeResponse {
    head: Option<Head>,
    body: Vec<u8>,
    /// Status of a gRPC call, from its trailers; `None` over HTTP.
    call: Option<CallStatus>,
}

impl ProbeResponse {
    fn status(&self) -> u16 {
        self.head.as_ref().map_or(0, |head| head.status)
    }
}

impl ProbeState {
    fn new(target: Target, spec: TargetSpec) -> ProbeState {
        let clock = Clock::start();
        let pool = ConnectionPool::new(
            target.resolve(),
            SocketMeter::new(clock),
            Arc::new(AtomicU32::new(0)),
            KeepaliveShared::default(),
        );
        pool.set_policy(Connections::Prewarmed, 1, target.resolve());
        ProbeState {
            target,
            spec,
            clock,
            pool,
            facts: BTreeMap::new(),
            notes: Vec::new(),
            took: None,
            served: None,
            adapters: Vec::new(),
            no_list: None,
        }
    }

    async fn run(mut self) -> Result<Probe, ProbeError> {
        let models = match self.spec.protocol {
            Protocol::Http => self.knock().await?,
            Protocol::Kserve => self.kserve().await?,
            Protocol::KserveGrpc => self.kserve_grpc().await?,
            _ => self.openai().await?,
        };
        if let Some(model) = &self.spec.model
            && !models.is_empty()
            && !models.contains(model)
        {
            self.notes.push(format!("the endpoint does not list {model}; it lists {}", models.join(", ")));
        }
        let model = self.spec.model.clone().or_else(|| models.first().cloned());
        self.facts.insert("model".into(), model.clone());
        Ok(Probe {
            fingerprint: Fingerprint { url: self.target.url.clone(), facts: self.facts },
            models,
            model,
            took: self.took.unwrap_or(Span::ZERO),
            served: self.served,
            adapters: self.adapters,
            no_list: self.no_list,
            notes: self.notes,
        })
    }

    /// Reads the server's metadata, its models, and the inputs of the target's model.
    async fn kserve(&mut self) -> Result<Vec<String>, ProbeError> {
        let got = self.get(&self.target.path("")).await?;
        self.learn(&got);
        let status = got.head.as_ref().map_or(0, |head| head.status);
        let server = match (status, kserve::read_server(&got.body)) {
            (200..=299, Ok(server)) => server,
            (401 | 403, _) => return Err(self.forbidden(status, self.judge(&got).1)),
            _ => {
                let why = self.what_came("", &got);
                return Err(self.not_this(format!("{why}; name the URL that ends in /v2")));
            }
        };
        let models = self.index().await?;
        self.facts.insert("engine".into(), Some(server.name).filter(|name| !name.is_empty()));
        self.facts.insert("engine_version".into(), Some(server.version).filter(|v| !v.is_empty()));
        let only = if let [only] = &models[..] { Some(only) } else { None };
        if let Some(model) = self.spec.model.clone().or(only.cloned()) {
            self.served(&model, &models, server.binary).await?;
        }
        Ok(models)
    }

    /// Returns the models that are ready; empty if the server has no such list.
    async fn index(&mut self) -> Result<Vec<String>, ProbeError> {
        let path = self.target.uri("/repository/index")?;
        let body = EncodedBody { content_type: "application/json", header_length: None, bytes: "{}".into() };
        let got = self.ask(self.target.posts(&path).with(&body, RequestNames::one(&"probe"), false)).await?;
        Ok(kserve::read_index(&got.body).unwrap_or_default())
    }

    async fn served(&mut self, name: &str, listed: &[String], binary: bool) -> Result<(), ProbeError> {
        let version = self.spec.version.as_ref().map(|v| format!("/versions/{v}")).unwrap_or_default();
        let path = format!("/models/{name}{version}");
        let got = self.get(&self.target.path(&path)).await?;
        let status = got.head.as_ref().map_or(0, |head| head.status);
        let model = match (status, kserve::read_model(&got.body)) {
            (200..=299, Ok(model)) => model,
            (200..=299, Err(why)) => return Err(self.not_this(format!("GET {path} can't be read: {why}"))),
            _ => {
                let models = if listed.is_empty() { "none".into() } else { listed.join(", ") };
                let why = self.target.scrub(&self.what_came(&path, &got));
                let (url, why) = (self.target.url.clone(), format!("{why}; models that are ready: {models}"));
                return Err(ProbeError::NoModel { url, model: name.to_owned(), why });
            }
        };
        let got = self.get(&self.target.path(&format!("{path}/config"))).await?;
        let config = kserve::read_config(&got.body);
        let max_batch = config.map(|config| config.max_batch);
        let mut fact = |key: &str, value: Option<String>| {
            self.facts.insert(key.into(), value.filter(|text| !text.is_empty()));
        };
        fact("model_platform", Some(model.platform.clone()));
        fact("model_versions", Some(model.versions.join(", ")));
        fact("max_batch", max_batch.map(|most| most.to_string()));
        let decoupled = config.is_some_and(|config| config.decoupled);
        self.served = Some(ProbedModel { model, max_batch, binary, decoupled });
        Ok(())
    }

    fn forbidden(&self, status: u16, said: Option<String>) -> ProbeError {
        let (url, given) = (self.target.url.clone(), self.target.has_key());
        ProbeError::Forbidden { url, status, said: self.target.scrub(&said.unwrap_or_default()), given }
    }

    fn not_this(&self, why: String) -> ProbeError {
        let (url, protocol) = (self.target.url.clone(), self.spec.protocol.name());
        ProbeError::NotThis { url, protocol, why: self.target.scrub(&why) }
    }

    /// Probes any HTTP endpoint. Every HTTP response is accepted, because the endpoint can't be identified without sending
    /// work.
    async fn knock(&mut self) -> Result<Vec<String>, ProbeError> {
        let got = self.get(&self.target.path("")).await?;
        self.learn(&got);
        Ok(Vec::new())
    }

    async fn openai(&mut self) -> Result<Vec<String>, ProbeError> {
        let (list_at, version_at) = pages(self.spec.protocol);
        let no_list = match self.get(&self.target.path(list_at)).await {
            Ok(got) => {
                self.learn(&got);
                if let (200..=299, Some(models)) = (got.status(), list(&got.body)) {
                    self.learn_models(&models);
                    self.ask_version(version_at).await;
                    let named = |m: &Value| Some(m.get("id")?.as_str()?.to_owned());
                    let is_adapter = |m: &&Value| m.get("parent").is_some_and(Value::is_string);
                    self.adapters = models.iter().filter(is_adapter).filter_map(named).collect();
                    return Ok(models.iter().filter_map(named).collect());
                }
                let came = self.what_came(list_at, &got);
                if got.status() == 503 && self.spec.model.is_none() {
                    // As llama.cpp answers while it loads its model; its name will be in the list.
                    return Err(self.unreachable(format!("the server is not ready: {came}")));
                }
                came
            }
            Err(ProbeError::Unreachable { why, .. }) => format!("GET {list_at}: {why}"),
            Err(other) => return Err(other),
        };
        self.first_request(no_list).await.map(|()| Vec::new())
    }

    /// Requests one token in the form of the load, because there is no model list.
    async fn first_request(&mut self, no_list: String) -> Result<(), ProbeError> {
        let options = match options_of(&self.spec) {
            Ok(options) => RequestOptions { max_tokens: Some(1), ..options },
            Err(error) => return Err(self.not_this(error.to_string())),
        };
        let payload = match self.spec.protocol.carries() {
            Carries::Messages => Payload::Messages(vec![Message::text(Role::User, "hello")]),
            Carries::Documents => {
                Payload::Documents { query: "hello".into(), documents: vec!["hello".into()] }
            }
            Carries::Sound => Payload::Sound(Media::Audio { samples: 1600, rate: 16_000, key: 0 }),
            Carries::Text | Carries::Tensors => Payload::Text("hello".into()),
        };
        let encoded = encode(&payload, &options);
        let path = self.target.uri(&encoded.path)?;
        let body = EncodedBody::from(encoded);
        let got = self.ask(self.target.posts(&path).with(&body, RequestNames::one(&"probe"), false)).await?;
        let status = got.status();
        let (outcome, error) = self.judge(&got);
        if matches!(status, 401 | 403) {
            return Err(self.forbidden(status, error));
        }
        if !self.speaks(&outcome, status, (&got.body, error.as_deref())) {
            // LiteLLM returns 500 to requests without a key.
            let unkeyed = outcome.how == How::ServerError && !self.target.has_key();
            let key = if unkeyed { MAYBE_A_KEY } else { "" };
            let hint = self.hint().await;
            return Err(self.not_this(format!("{}{key}{hint}", error.unwrap_or(no_list))));
        }
        let answered = match error.filter(|_| !outcome.is_finished()) {
            None => "a first request was answered".to_owned(),
            Some(error) => format!("a first request gave HTTP {status}: {error}"),
        };
        self.notes.push(format!("no list of models ({no_list}); {answered}"));
        self.no_list = Some(no_list);
        Ok(())
    }

    /// Returns whether the response comes from a server of this protocol: a complete response, or an error with an
    /// explanation.
    ///
    /// Explained errors (no such model, unknown field, overload) pass, because the load will show them. A 404 that does not
    /// name the model comes from a wrong path. An error under a success status is rejected: LM Studio returns one for every
    /// unknown path.
    fn speaks(&self, outcome: &Outcome, status: u16, (body, said): (&[u8], Option<&str>)) -> bool {
        let said = said.unwrap_or_default();
        let model = self.spec.model.as_deref().filter(|model| !model.is_empty());
        let explains = match status {
            404 => model.is_some_and(|model| said.contains(model)),
            405 => false,
            400.. => {
                serde_json::from_slice::<Value>(body).is_ok()
                    || fall_back(&mut self.spec.clone(), said).is_some()
            }
            _ => false,
        };
        outcome.is_finished() || (explains && outcome.how != How::Redirected)
    }

    fn judge(&self, got: &ProbeResponse) -> (Outcome, Option<String>) {
        let head = got.head.clone().unwrap_or_default();
        let mut decoder = Decoder::with_head(self.spec.protocol, self.spec.stream, head, false);
        decoder.feed(&got.body, &mut Vec::new());
        let verdict = decoder.finish(true);
        (verdict.outcome, verdict.answer.error.map(|text| self.target.scrub(&text)))
    }

    /// Returns a suggestion. The most frequent mistakes are a base URL without `/v1` and one with a request path.
    async fn hint(&mut self) -> String {
        let (list_at, _) = pages(self.spec.protocol);
        let (url, own) = (self.target.url.trim_end_matches('/').to_owned(), self.target.path(""));
        let base = |question: &str| {
            let path = own.trim_end_matches('/').strip_suffix(question)?;
            Some((url.strip_suffix(question)?.to_owned(), format!("{path}{list_at}")))
        };
        let cut = Protocol::ALL.into_iter().filter_map(Protocol::path).find_map(base);
        // Ollama's URL has no `/v1`, but users add one by habit from OpenAI.
        let other = match self.spec.protocol.sends_lines() {
            true => url
                .strip_suffix("/v1")
                .zip(own.strip_suffix("/v1"))
                .map(|(url, path)| (url.to_owned(), format!("{path}{list_at}"))),
            false => Some((format!("{url}/v1"), self.target.path("/v1/models"))),
        };
        for (url, models) in cut.into_iter().chain(other) {
            if let Ok(got) = self.get(&models).await
                && list(&got.body).is_some()
            {
                return format!("; {url} does: use that");
            }
        }
        String::new()
    }

    fn what_came(&self, asked: &str, got: &ProbeResponse) -> String {
        let head = got.head.clone().unwrap_or_default();
        let text =
            String::from_utf8_lossy(&got.body[..got.body.len().min(60)]).trim().replace(['\r', '\n'], " ");
        let what = match (&head.location, text.starts_with('<')) {
            (Some(to), _) => format!("redirects to {to}"),
            (None, true) => "a web page".into(),
            (None, false) => format!("{text:?}"),
        };
        let path = if asked.is_empty() { self.target.path("") } else { asked.to_owned() };
        self.target.scrub(&format!("GET {path} gave HTTP {} and {what}", head.status))
    }

    fn learn(&mut self, got: &ProbeResponse) {
        if let Some(head) = &got.head {
            self.facts.insert("server_header".into(), head.server.clone());
            if head.replica.is_some() {
                self.facts.insert("replica".into(), head.replica.clone());
            }
        }
    }

    fn learn_models(&mut self, models: &[Value]) {
        let wanted = self.spec.model.as_deref();
        let named = |m: &&Value| wanted.is_none_or(|name| m.get("id").and_then(Value::as_str) == Some(name));
        let Some(model) = models.iter().find(named) else { return };
        let text = |key: &str| model.get(key).and_then(Value::as_str).map(str::to_owned);
        let number = |key: &str| model.get(key).and_then(Value::as_u64).map(|n| n.to_string());
        let meta = |key: &str| model.get("meta")?.get(key)?.as_u64().map(|n| n.to_string());
        // Engines report themselves as the owner of the models that they serve.
        let engine = text("owned_by").filter(|owner| {
            ["vllm", "sglang", "llamacpp", "plimsoll", "nvidia", "tensorrt_llm"].contains(&owner.as_str())
        });
        self.facts.insert("engine".into(), engine);
        self.facts.insert("max_context".into(), number("max_model_len").or_else(|| meta("n_ctx_train")));
        if let Some(root) = text("root") {
            self.facts.insert("model_root".into(), Some(root));
        }
        self.facts.insert("model_digest".into(), text("digest"));
    }

    /// Reads the version page that vLLM and related servers have next to the API. Other servers just return an error.
    async fn ask_version(&mut self, at: &str) {
        let version = match self.get(at).await {
            Ok(got) => serde_json::from_slice::<Value>(&got.body)
                .ok()
                .and_then(|v| Some(v.get("version")?.as_str()?.chars().take(64).collect())),
            Err(_) => None,
        };
        self.facts.insert("engine_version".into(), version);
    }

    async fn get(&mut self, path: &str) -> Result<ProbeResponse, ProbeError> {
        let path = path.parse().map_err(|e: http::uri::InvalidUri| self.unreachable(e.to_string()))?;
        let request = self.target.gets(&path).bare();
        self.ask_for(request, PAGE_PATIENCE).await
    }

    async fn ask(&mut self, request: RequestWriter) -> Result<ProbeResponse, ProbeError> {
        self.ask_for(request, PATIENCE).await
    }

    async fn ask_for(&mut self, request: RequestWriter, patience: Span) -> Result<ProbeResponse, ProbeError> {
        let from = self.clock.now();
        let seen = WholeAnswer::to(BODY_MAX);
        let request = OutgoingRequest::new(Some(request));
        let asked = exchange(&self.pool, patience, &request, &seen);
        let ending = tokio::time::timeout(patience.as_duration(), asked).await;
        let call = seen.trailers.into_inner().and_then(|trailers| trailers.call);
        let got = ProbeResponse { head: seen.head.into_inner(), body: seen.body.into_inner(), call };
        self.took = self.took.or(Some(self.clock.now() - from));
        if got.head.is_some() {
            return Ok(got);
        }
        match ending {
            Ok(AttemptEnding::Told { outcome, error }) => {
                let why = error.unwrap_or_else(|| outcome.how.name().to_owned());
                if outcome.how == How::Malformed {
                    return Err(ProbeError::NotThis {
                        url: self.target.url.clone(),
                        protocol: self.spec.protocol.name(),
                        why: self.target.scrub(&why),
                    });
                }
                Err(self.unreachable(why))
            }
            Ok(_) => Err(self.unreachable("closed without an answer".into())),
            Err(_) => Err(self.unreachable(format!("no answer within {patience}"))),
        }
    }

    fn unreachable(&self, why: String) -> ProbeError {
        ProbeError::Unreachable { url: self.target.url.clone(), why: self.target.scrub(&why) }
    }
}

/// Returns the paths of the model list and of the version, below the base URL, for a protocol.
fn pages(protocol: Protocol) -> (&'static str, &'static str) {
    match protocol {
        _ if protocol.sends_lines() => ("/api/tags", "/api/version"),
        Protocol::Pooling | Protocol::Classify => ("/v1/models", "/version"),
        _ => ("/models", "/version"),
    }
}

/// Parses the model list of OpenAI or Ollama; each entry has its name as `id`.
fn list(body: &[u8]) -> Option<Vec<Value>> {
    let value: Value = serde_json::from_slice(body).ok()?;
    if let Some(all) = value.get("data").and_then(Value::as_array) {
        return all.iter().all(|m| m.get("id").is_some()).then(|| all.clone());
    }
    let named = |model: &Value| {
        let mut model = model.clone();
        model["id"] = model.get("name")?.clone();
        Some(model)
    };
    value.get("models")?.as_array()?.iter().map(named).collect()
}
