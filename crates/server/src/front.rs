//! Serves the OpenAI-compatible API, from a request to the engine's response.
//!
//! Invalid requests are rejected before they reach the engine: wrong path (404), method (405), body size (413), or body
//! content (400, 404 for another model). A rejection by the engine is 429 with `Retry-After`, or 400.

use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;

use bytes::{Bytes, BytesMut};
use http::header::{ALLOW, CONTENT_TYPE, RETRY_AFTER, SERVER};
use http::{HeaderName, HeaderValue, Method, Request, Response, StatusCode};
use http_body::Body as _;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::service::Service;
use plimsoll_model::Protocol;
use plimsoll_sim::{EngineRejection, Failure, Submit};
use plimsoll_wire::prometheus;
use plimsoll_wire::server::{self as wire, BadRequest, GenerateRequest};

use crate::body::{AnswerBody, HeldRequest};
use crate::io::{Conn, ReceiveTimestamp};
use crate::page;
use crate::shared::Server;
use crate::truth::{TrueOutcome, TruthRecord};
use crate::voice::{self, AnswerWriter};

/// `Content-Type` of the metrics endpoint.
const PAGE: HeaderValue = HeaderValue::from_static(prometheus::CONTENT_TYPE);

/// Header that names the responding replica, as routers set it.
const REPLICA: HeaderName = HeaderName::from_static("x-replica-id");

pub(crate) type Answer = Response<AnswerBody>;

pub struct Front {
    server: Rc<Server>,
    conn: Rc<Conn>,
}

impl Front {
    /// Returns the service for the requests of this connection.
    pub(crate) fn new(server: Rc<Server>, conn: Rc<Conn>) -> Front {
        Front { server, conn }
    }
}

impl Service<Request<Incoming>> for Front {
    type Response = Answer;
    type Error = std::convert::Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Answer, Self::Error>>>>;

    fn call(&self, request: Request<Incoming>) -> Self::Future {
        let endpoint = voice::endpoint(request.uri().path());
        let call = Call { server: self.server.clone(), conn: self.conn.clone(), endpoint };
        Box::pin(async move { Ok(call.answer(request).await) })
    }
}

pub(crate) struct Call {
    pub server: Rc<Server>,
    pub conn: Rc<Conn>,
    /// Protocol of the path; `None` if the path does not use the engine.
    pub endpoint: Option<Protocol>,
}

impl Call {
    pub(crate) async fn answer(&self, request: Request<Incoming>) -> Answer {
        let path = request.uri().path();
        if let Some(model) = &self.server.infers
            && (path == "/v2" || path.starts_with("/v2/"))
        {
            return self.v2(model, request).await;
        }
        let Some(endpoint) = self.endpoint else {
            return self.read_only(&request);
        };
        if request.method() != Method::POST {
            return self.not_allowed("POST");
        }
        let mut record = TruthRecord {
            id: request.headers().get("x-request-id").map(|v| String::from_utf8_lossy(v.as_bytes()).into()),
            path: request.uri().path().to_owned(),
            ..TruthRecord::default()
        };
        let content_type = request.headers().get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
        let content_type = content_type.unwrap_or_default().to_owned();
        let body = match collect(request.into_body(), self.server.limits.body_bytes).await {
            Ok(body) => body,
            Err(refusal) => return self.refuse(record, refusal),
        };
        self.arrived(&mut record);
        let asked = match voice::parse(endpoint, (content_type.as_str(), &body[..]), &self.server) {
            Ok(asked) => asked,
            Err(refusal) => return self.refuse(record, refusal),
        };
        drop(body);
        self.submit(record, asked).await
    }

    /// Submits the request to the engine and returns its response.
    async fn submit(&self, mut record: TruthRecord, mut asked: GenerateRequest) -> Answer {
        record.stream = asked.stream;
        record.prompt_tokens = asked.prompt_tokens;
        (record.media, record.media_tokens) = (asked.media, asked.media_tokens);
        record.output_tokens = asked.max_tokens.unwrap_or(0);
        let engine = &self.server.engine;
        if asked.endpoint.streams() {
            engine.metrics.borrow_mut().max_tokens.observe(u64::from(record.output_tokens));
        }
        let blocks = std::mem::take(&mut asked.blocks);
        let adapter = (0..).zip(&self.server.adapters).find(|(_, name)| **name == asked.model);
        let submit = Submit {
            blocks,
            adapter: adapter.map(|(number, _)| number),
            ..Submit::new(0, record.prompt_tokens, record.output_tokens)
        };
        let stream = match engine.submit(&self.conn, record, submit) {
            Ok(stream) => stream,
            Err(rejected) => return self.rejected(&rejected).await,
        };
        let number = stream.id;
        let held = HeldRequest::new(stream, engine.clone());
        let model = adapter.map_or(&self.server.model, |(_, name)| name);
        if asked.stream && self.server.may_fail {
            // An error can set the status only before the first byte of the response.
            held.begun().await;
        } else if asked.stream && self.server.routes {
            // The response head contains the replica.
            held.placed().await;
        }
        if held.has_failed_unsaid() {
            return self.failed_as(held).await;
        }
        let kind = HeaderValue::from_static(wire::content_type(&asked));
        if asked.stream {
            let voice = AnswerWriter::new(&asked, number, model);
            let replica = held.replica();
            let mut answer = Response::new(AnswerBody::stream(held, voice, &self.server.page));
            answer.headers_mut().insert(CONTENT_TYPE, kind);
            return self.signed(answer, replica);
        }
        held.ended().await;
        if held.failure().is_some() {
            return self.failed_as(held).await;
        }
        let body = voice::whole(&asked, number, model, held.told());
        self.whole(StatusCode::OK, kind, body, Some(held))
    }

    /// Records the arrival of a complete request.
    pub(crate) fn arrived(&self, record: &mut TruthRecord) {
        self.conn.request_read();
        let ReceiveTimestamp { monotonic_ns, kernel } = self.conn.arrival();
        (record.arrival_ns, record.arrival_kernel) = (monotonic_ns, kernel);
    }

    /// Answers a request that needs no engine.
    fn read_only(&self, request: &Request<Incoming>) -> Answer {
        self.conn.request_read();
        let model = request.uri().path().strip_prefix("/v1/models/").filter(|id| !id.is_empty());
        let known = model.is_some()
            || matches!(
                request.uri().path(),
                "/health" | "/ping" | "/metrics" | "/v1/models" | "/version" | "/api/tags" | "/api/version"
            );
        if known && request.method() != Method::GET && request.method() != Method::HEAD {
            return self.not_allowed("GET");
        }
        if let Some(id) = model {
            return match voice::one_model(&self.server, id) {
                Ok(entry) => self.json(StatusCode::OK, entry, None),
                Err(refusal) => self.error(&refusal),
            };
        }
        match request.uri().path() {
            "/health" | "/ping" => self.whole(StatusCode::OK, voice::PLAIN, Bytes::new(), None),
            "/metrics" => self.whole(StatusCode::OK, PAGE, page::write(&self.server).into(), None),
            "/v1/models" => self.json(StatusCode::OK, voice::models(&self.server), None),
            "/api/tags" => self.json(StatusCode::OK, voice::tags(&self.server), None),
            "/version" | "/api/version" => self.json(StatusCode::OK, voice::version(), None),
            _ => self.error(&voice::refusal(404, "there is nothing at this path")),
        }
    }

    fn not_allowed(&self, method: &'static str) -> Answer {
        self.conn.request_read();
        let mut answer = self.error(&voice::refusal(405, "the method is not allowed here"));
        answer.headers_mut().insert(ALLOW, HeaderValue::from_static(method));
        answer
    }

    /// Rejects an invalid request and writes its line of the truth log.
    fn refuse(&self, record: TruthRecord, refusal: BadRequest) -> Answer {
        self.conn.request_read();
        self.log_refusal(record, refusal.status);
        self.error(&refusal)
    }

    /// Writes the truth record of an invalid request.
    pub(crate) fn log_refusal(&self, mut record: TruthRecord, status: u16) {
        if record.arrival_ns == 0 {
            let arrival = self.conn.arrival();
            (record.arrival_ns, record.arrival_kernel) = (arrival.monotonic_ns, arrival.kernel);
        }
        record.ending = TrueOutcome::Rejected;
        record.status = status;
        self.server.engine.log(record);
    }

    /// Returns the response to a request that the world rejected.
    async fn rejected(&self, why: &EngineRejection) -> Answer {
        if *why == EngineRejection::Reset {
            return self.reset().await;
        }
        let refusal = voice::rejected(why);
        let mut answer = self.error(&refusal);
        if let Some(wait) = why.retry_after() {
            // The header has whole seconds; rounding down would bring the client back too early.
            let seconds = (wait.0.max(0) as u64).div_ceil(1_000_000_000);
            answer.headers_mut().insert(RETRY_AFTER, HeaderValue::from(seconds));
        }
        answer
    }

    /// Returns the response to a request that the world failed before its first byte.
    pub(crate) async fn failed_as(&self, held: HeldRequest) -> Answer {
        match held.failure() {
            Some(Failure::Status { status, why }) => self.failed(&voice::refusal(status, why), Some(held)),
            Some(Failure::Cut) => {
                held.conn().kill();
                std::future::pending().await
            }
            _ => self.reset().await,
        }
    }

    /// Resets the connection, so that its requests get no response.
    pub(crate) async fn reset(&self) -> Answer {
        self.conn.reset();
        std::future::pending().await
    }

    fn error(&self, refusal: &BadRequest) -> Answer {
        self.failed(refusal, None)
    }

    fn failed(&self, refusal: &BadRequest, held: Option<HeldRequest>) -> Answer {
        self.server.engine.metrics.borrow_mut().errors += 1;
        let status = StatusCode::from_u16(refusal.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        self.json(status, voice::error_body(self.endpoint, refusal), held)
    }

    pub(crate) fn json(&self, status: StatusCode, body: Bytes, held: Option<HeldRequest>) -> Answer {
        self.whole(status, voice::JSON, body, held)
    }

    pub(crate) fn whole(
        &self,
        status: StatusCode,
        kind: HeaderValue,
        body: Bytes,
        held: Option<HeldRequest>,
    ) -> Answer {
        let replica = held.as_ref().and_then(HeldRequest::replica);
        let mut answer = Response::new(AnswerBody::whole(body, &self.conn, held));
        *answer.status_mut() = status;
        answer.headers_mut().insert(CONTENT_TYPE, kind);
        self.signed(answer, replica)
    }

    /// Adds the headers that name the server and, behind a router, the replica.
    fn signed(&self, mut answer: Answer, replica: Option<u32>) -> Answer {
        answer.headers_mut().insert(SERVER, voice::SERVER);
        if let Some(replica) = replica {
            answer.headers_mut().insert(REPLICA, HeaderValue::from(replica));
        }
        answer
    }
}

/// Reads a whole body, or returns the error. A body in one piece is not copied.
pub(crate) async fn collect(mut body: Incoming, limit: usize) -> Result<Bytes, BadRequest> {
    if body.size_hint().lower() > limit as u64 {
        return Err(too_large(limit));
    }
    let mut first = Bytes::new();
    let mut rest = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|_| voice::refusal(400, "the request body ended early"))?;
        let Ok(data) = frame.into_data() else { continue };
        if first.len() + rest.len() + data.len() > limit {
            return Err(too_large(limit));
        }
        if first.is_empty() && rest.is_empty() {
            first = data;
            continue;
        }
        rest.extend_from_slice(&std::mem::take(&mut first));
        rest.extend_from_slice(&data);
    }
    Ok(if rest.is_empty() { first } else { rest.freeze() })
}

fn too_large(limit: usize) -> BadRequest {
    voice::refusal(413, format!("the request body is over the limit of {limit} bytes"))
}
