//! Serves KServe v2 over HTTP (`/v2/…`) for engines that answer whole requests, with Triton's statuses and messages.
//!
//! Errors have Triton's format, `{"error": "…"}`, because its clients parse it; the OpenAI front has a different format.
//! The front serves batchers, and queues, where every request is a batch of one.

use bytes::Bytes;
use http::header::{ALLOW, RETRY_AFTER};
use http::{HeaderValue, Method, Request, StatusCode};
use hyper::body::Incoming;
use plimsoll_model::Span;
use plimsoll_sim::spec::dynamic::{BatcherSpec, QueuePolicySpec, TimeoutAction};
use plimsoll_sim::{EngineRejection, Failure, ModeSpec, Submit};
use plimsoll_wire::kserve::{HEADER_LENGTH, server as kserve};
use plimsoll_wire::server::BadRequest;
use serde_json::{Value, json};

use crate::body::HeldRequest;
use crate::front::{Answer, Call, collect};
use crate::truth::TruthRecord;
use crate::voice;

const QUEUE_FULL: &str = "Exceeds maximum queue size";

/// Returns the model that an engine of this mode serves under KServe v2; `None` for engines that generate tokens.
pub fn model(name: &str, mode: &ModeSpec, inputs: &[kserve::ServedInput]) -> Option<kserve::FrontModel> {
    let (max_batch, instances, batching) = match mode {
        ModeSpec::Dynamic(spec) => (
            spec.max_batch_size,
            spec.instances,
            spec.dynamic_batching.as_ref().map(|b| config(b, spec.max_batch_size)),
        ),
        ModeSpec::Queue(queue) => (1, queue.servers, None),
        _ => return None,
    };
    let inputs = if inputs.is_empty() { vec![kserve::ServedInput::usual()] } else { inputs.to_vec() };
    Some(kserve::FrontModel {
        name: name.to_owned(),
        max_batch,
        dynamic_batching: batching,
        instances,
        inputs,
    })
}

/// Returns the `dynamic_batching` section of the model configuration, with Triton's keys.
fn config(spec: &BatcherSpec, max_batch: u32) -> Value {
    let preferred = match &spec.preferred_batch_size[..] {
        [] => vec![max_batch],
        sizes => sizes.to_vec(),
    };
    let levels = spec.priority_queue_policy.iter().map(|own| (own.level.to_string(), policy(&own.policy)));
    json!({
        "preferred_batch_size": preferred,
        "max_queue_delay_microseconds": spec.max_queue_delay_us,
        "preserve_ordering": spec.preserve_ordering,
        "priority_levels": spec.priority_levels,
        "default_priority_level": spec.default_priority_level,
        "default_queue_policy": policy(&spec.default_queue_policy),
        "priority_queue_policy": levels.collect::<serde_json::Map<_, _>>(),
    })
}

fn policy(spec: &QueuePolicySpec) -> Value {
    json!({
        "timeout_action": match spec.timeout_action {
            TimeoutAction::Reject => "REJECT",
            TimeoutAction::Delay => "DELAY",
        },
        "default_timeout_microseconds": spec.default_timeout_us,
        "allow_timeout_override": spec.allow_timeout_override,
        "max_queue_size": spec.max_queue_size,
    })
}

/// The resource of a path below `/v2`.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
enum Place<'a> {
    Server,
    Health,
    Index,
    Model { name: &'a str, version: Option<&'a str>, page: Page },
    Nothing,
}

#[derive(Copy, Clone, PartialEq, Eq, Debug)]
enum Page {
    Metadata,
    Ready,
    Config,
    Infer,
}

impl Place<'_> {
    fn read(path: &str) -> Place<'_> {
        let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).skip(1).take(6).collect();
        let page = |name| match name {
            "ready" => Some(Page::Ready),
            "config" => Some(Page::Config),
            "infer" => Some(Page::Infer),
            _ => None,
        };
        let (name, version, page) = match parts[..] {
            [] => return Place::Server,
            ["health", "live" | "ready"] => return Place::Health,
            ["repository", "index"] => return Place::Index,
            ["models", name] => (name, None, Some(Page::Metadata)),
            ["models", name, "versions", version] => (name, Some(version), Some(Page::Metadata)),
            ["models", name, "versions", version, last] => (name, Some(version), page(last)),
            ["models", name, last] => (name, None, page(last)),
            _ => return Place::Nothing,
        };
        page.map_or(Place::Nothing, |page| Place::Model { name, version, page })
    }

    fn method(&self) -> Method {
        match self {
            Place::Index | Place::Model { page: Page::Infer, .. } => Method::POST,
            _ => Method::GET,
        }
    }
}

impl Call {
    pub(crate) async fn v2(&self, model: &kserve::FrontModel, request: Request<Incoming>) -> Answer {
        let path = request.uri().path().to_owned();
        let place = Place::read(&path);
        let method = place.method();
        let fits = *request.method() == method || (method == Method::GET && request.method() == Method::HEAD);
        if place == Place::Nothing || !fits {
            self.conn.request_read();
            let nothing = place == Place::Nothing;
            let (status, why) = if nothing { (404, "Not Found") } else { (405, "Method Not Allowed") };
            let mut answer = self.told(status, why, None);
            if !nothing && let Ok(allowed) = HeaderValue::from_str(method.as_str()) {
                answer.headers_mut().insert(ALLOW, allowed);
            }
            return answer;
        }
        let page = match place {
            Place::Model { name, version, .. } if name != model.name || version.is_some_and(|v| v != "1") => {
                self.conn.request_read();
                let version = version.map(|v| format!(" version {v}")).unwrap_or_default();
                let name = name.chars().take(100).collect::<String>();
                return self.told(
                    404,
                    &format!("Request for unknown model: '{name}'{version} is not found"),
                    None,
                );
            }
            Place::Model { page: Page::Infer, .. } => return self.infer(model, path, request).await,
            Place::Server => Some(kserve::server_metadata("plimsoll-engine", env!("CARGO_PKG_VERSION"))),
            Place::Index => Some(kserve::index(model)),
            Place::Model { page: Page::Metadata, .. } => Some(kserve::model_metadata(model)),
            Place::Model { page: Page::Config, .. } => Some(kserve::model_config(model)),
            _ => None,
        };
        // The body is not needed, so the connection does not wait for it.
        self.conn.request_read();
        match page {
            Some(page) => self.json(StatusCode::OK, page, None),
            None => self.whole(StatusCode::OK, voice::PLAIN, Bytes::new(), None),
        }
    }

    async fn infer(&self, model: &kserve::FrontModel, path: String, request: Request<Incoming>) -> Answer {
        let text = |name: &str| {
            let value = request.headers().get(name)?;
            Some(String::from_utf8_lossy(value.as_bytes()).into_owned())
        };
        let mut record = TruthRecord { id: text("x-request-id"), path, ..TruthRecord::default() };
        let header_length = text(HEADER_LENGTH);
        let read = collect(request.into_body(), self.server.limits.body_bytes).await;
        self.arrived(&mut record);
        let asked = match read.and_then(|body| kserve::parse(model, &body, header_length.as_deref())) {
            Ok(asked) => asked,
            Err(BadRequest { status, message, .. }) => {
                self.log_refusal(record, status);
                return self.told(status, &message, None);
            }
        };
        record.items = asked.items;
        let submit = Submit {
            items: asked.items,
            priority: asked.priority,
            queue_timeout: asked
                .timeout_us
                .map(|us| Span::from_micros(i64::try_from(us).unwrap_or(i64::MAX / 1000))),
            ..Submit::new(0, asked.items, 0)
        };
        let engine = &self.server.engine;
        let held = match engine.submit(&self.conn, record, submit) {
            Ok(stream) => HeldRequest::new(stream, engine.clone()),
            Err(EngineRejection::Reset) => return self.reset().await,
            Err(rejected) => {
                let (status, why) = refusal(&rejected);
                return self.told(status, &why, None);
            }
        };
        held.ended().await;
        match held.failure() {
            Some(Failure::Status { status, why }) => self.told(status, &named(why), Some(held)),
            Some(_) => self.failed_as(held).await,
            None => self.json(StatusCode::OK, kserve::answer(&asked, model), Some(held)),
        }
    }

    /// Returns an error in Triton's format.
    fn told(&self, status: u16, why: &str, held: Option<HeldRequest>) -> Answer {
        self.server.engine.metrics.borrow_mut().errors += 1;
        let code = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let mut answer = self.json(code, kserve::error(why), held);
        // Triton sends no `Retry-After`, and clients must not rely on one.
        answer.headers_mut().remove(RETRY_AFTER);
        answer
    }
}

/// Returns the status and message of a request that the engine rejected.
pub(crate) fn refusal(why: &EngineRejection) -> (u16, String) {
    match why {
        EngineRejection::QueueFull { .. } => (503, named(QUEUE_FULL)),
        EngineRejection::Unavailable { status, why, .. } => (*status, named(why)),
        other => (other.status().unwrap_or(503), other.to_string()),
    }
}

/// Returns the message with Triton's prefix for errors of one request; time-outs have no prefix.
pub(crate) fn named(why: &str) -> String {
    if why == QUEUE_FULL { format!("[request id: <id_unknown>] {why}") } else { why.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_read() {
        let model = |version, page| Place::Model { name: "m", version, page };
        for (path, want) in [
            ("/v2", Place::Server),
            ("/v2/", Place::Server),
            ("/v2/health/ready", Place::Health),
            ("/v2/models/m", model(None, Page::Metadata)),
            ("/v2/models/m/versions/1/infer", model(Some("1"), Page::Infer)),
            ("/v2/models/m/config", model(None, Page::Config)),
            ("/v2/models/m/stats", Place::Nothing),
            ("/v2/models/m/versions/1/infer/x", Place::Nothing),
            ("/v2/models", Place::Nothing),
        ] {
            assert_eq!(Place::read(path), want, "{path}");
        }
    }
}
