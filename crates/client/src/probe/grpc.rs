//! Probes a KServe v2 server over gRPC: readiness, metadata, model list, and the inputs of the target's model.
//!
//! `ModelConfig` and `RepositoryIndex` are Triton extensions. If a server does not implement them, their facts stay
//! unknown.

use plimsoll_model::Outcome;
use plimsoll_wire::grpc::{self, CallStatus};
use plimsoll_wire::kserve::grpc::{self as kserve, Method};

use super::{ProbeError, ProbeResponse, ProbeState, ProbedModel};
use crate::http1::header_template::RequestNames;
use crate::target::EncodedBody;

/// The result of a call: its message, or the failed status.
type CallResult = Result<Vec<u8>, CallStatus>;

impl ProbeState {
    /// Probes a KServe v2 server over gRPC.
    pub(super) async fn kserve_grpc(&mut self) -> Result<Vec<String>, ProbeError> {
        let ready = self.call(Method::ServerReady, &[]).await?.map_err(|status| self.failed(&status))?;
        if !kserve::read_ready(&ready).map_err(|why| self.not_this(why.to_string()))? {
            return Err(self.unreachable("the server is not ready (ServerReady)".into()));
        }
        if let Ok(message) = self.call(Method::ServerMetadata, &[]).await? {
            let server = kserve::read_server(&message).map_err(|why| self.not_this(why.to_string()))?;
            self.facts.insert("engine".into(), Some(server.name).filter(|name| !name.is_empty()));
            self.facts.insert("engine_version".into(), Some(server.version).filter(|v| !v.is_empty()));
        }
        let listed = self.call(Method::RepositoryIndex, &[]).await?;
        let models = listed.ok().and_then(|message| kserve::read_index(&message).ok()).unwrap_or_default();
        let only = if let [only] = &models[..] { Some(only.clone()) } else { None };
        if let Some(model) = self.spec.model.clone().or(only) {
            self.called_model(&model, &models).await?;
        }
        Ok(models)
    }

    async fn called_model(&mut self, name: &str, listed: &[String]) -> Result<(), ProbeError> {
        let asks = kserve::of_model(name, self.spec.version.as_deref());
        let model = match self.call(Method::ModelMetadata, &asks).await? {
            Ok(message) => kserve::read_model(&message)
                .map_err(|why| self.not_this(format!("ModelMetadata can't be read: {why}")))?,
            Err(status) => {
                let models = if listed.is_empty() { "none".into() } else { listed.join(", ") };
                let why = self.target.scrub(&format!("{}; models that are ready: {models}", status.text()));
                return Err(ProbeError::NoModel {
                    url: self.target.url.clone(),
                    model: name.to_owned(),
                    why,
                });
            }
        };
        if let Ok(message) = self.call(Method::ModelReady, &asks).await?
            && !kserve::read_ready(&message).unwrap_or(true)
        {
            return Err(self.unreachable(format!("the model {name} is not ready (ModelReady)")));
        }
        let config = self.call(Method::ModelConfig, &asks).await?;
        let config = config.ok().and_then(|message| kserve::read_config(&message).ok());
        let mut fact = |key: &str, value: Option<String>| {
            self.facts.insert(key.into(), value.filter(|text| !text.is_empty()));
        };
        fact("model_platform", Some(model.platform.clone()));
        fact("model_versions", Some(model.versions.join(", ")));
        fact("max_batch", config.map(|config| config.max_batch.to_string()));
        fact("decoupled", config.map(|config| config.decoupled.to_string()));
        let decoupled = config.is_some_and(|config| config.decoupled);
        let max_batch = config.map(|config| config.max_batch);
        self.served = Some(ProbedModel { model, max_batch, binary: true, decoupled });
        Ok(())
    }

    async fn call(&mut self, method: Method, message: &[u8]) -> Result<CallResult, ProbeError> {
        let path = self.target.uri(&method.path())?;
        let bytes = grpc::framed(message).into();
        let body = EncodedBody { content_type: kserve::CONTENT_TYPE, header_length: None, bytes };
        let request = self.target.posts(&path).with(&body, RequestNames::one(&"probe"), false);
        let ProbeResponse { head, body, call } = self.ask(request).await?;
        let head = head.unwrap_or_default();
        match call.or(head.call) {
            Some(CallStatus { code: 0, .. }) => {}
            Some(status) => return Ok(Err(status)),
            None if matches!(head.status, 401 | 403) => return Err(self.forbidden(head.status, None)),
            None => {
                let kind = head.content_type.unwrap_or_default();
                let why = format!("HTTP {} of type {kind:?} and no grpc-status", head.status);
                return Err(self.not_this(why));
            }
        }
        match grpc::unframed(&body) {
            Some((message, false)) => Ok(Ok(message.to_vec())),
            _ => Err(self.not_this(format!("{} gave no whole message", method.path()))),
        }
    }

    fn failed(&self, status: &CallStatus) -> ProbeError {
        match (status.code, status.outcome().map(|outcome: Outcome| outcome.retryable)) {
            (16, _) => self.forbidden(401, Some(status.text())),
            (7, _) => self.forbidden(403, Some(status.text())),
            (_, Some(true)) => self.unreachable(status.text()),
            _ => self.not_this(status.text()),
        }
    }
}
