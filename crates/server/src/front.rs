//! The OpenAI-compatible front: from a request to the engine's answer, read top to bottom.
//!
//! What is refused is refused before the engine hears of it: the path (404), the method (405), the body's size (413),
//! what the body says (400, 404 for another model). What the engine refuses is 429 with `Retry-After`, or 400.

use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;

use bytes::{Bytes, BytesMut};
use http::header::{ALLOW, CONTENT_TYPE, RETRY_AFTER, SERVER};
use http::{HeaderValue, Method, Request, Response, StatusCode};
use http_body::Body as _;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::service::Service;
use plimsoll_model::Protocol;
use plimsoll_sim::Rejected;
use plimsoll_wire::openai::server::{Asked, BadRequest};
use plimsoll_wire::prometheus;

use crate::body::{AnswerBody, Held};
use crate::io::Conn;
use crate::page;
use crate::serve::Server;
use crate::truth::{Ending, Record};
use crate::voice::{self, Voice};

/// `Content-Type` of the metrics page.
const PAGE: HeaderValue = HeaderValue::from_static(prometheus::CONTENT_TYPE);

type Answer = Response<AnswerBody>;

/// The service of one connection.
pub struct Front {
    server: Rc<Server>,
    conn: Rc<Conn>,
}

impl Front {
    /// A front for the requests of this connection.
    pub(crate) fn new(server: Rc<Server>, conn: Rc<Conn>) -> Front {
        Front { server, conn }
    }
}

impl Service<Request<Incoming>> for Front {
    type Response = Answer;
    type Error = std::convert::Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Answer, Self::Error>>>>;

    fn call(&self, request: Request<Incoming>) -> Self::Future {
        let call = Call { server: self.server.clone(), conn: self.conn.clone() };
        Box::pin(async move { Ok(call.answer(request).await) })
    }
}

/// One request on its way through.
struct Call {
    server: Rc<Server>,
    conn: Rc<Conn>,
}

impl Call {
    async fn answer(&self, request: Request<Incoming>) -> Answer {
        let Some(endpoint) = voice::endpoint(request.uri().path()) else {
            return self.read_only(&request);
        };
        if request.method() != Method::POST {
            return self.not_allowed("POST");
        }
        let mut record = Record {
            id: request.headers().get("x-request-id").map(|v| String::from_utf8_lossy(v.as_bytes()).into()),
            path: request.uri().path().to_owned(),
            ..Record::default()
        };
        let body = match collect(request.into_body(), self.server.limits.body_bytes).await {
            Ok(body) => body,
            Err(refusal) => return self.refuse(record, refusal),
        };
        self.conn.request_read();
        let arrival = self.conn.arrival();
        (record.arrival_ns, record.arrival_kernel) = (arrival.monotonic_ns, arrival.kernel);
        let asked = match voice::parse(endpoint, &body, &self.server.model, &self.server.limits) {
            Ok(asked) => asked,
            Err(refusal) => return self.refuse(record, refusal),
        };
        drop(body);
        self.submit(record, asked).await
    }

    /// Hands the request to the engine and answers as it goes.
    async fn submit(&self, mut record: Record, mut asked: Asked) -> Answer {
        record.stream = asked.stream;
        record.prompt_tokens = asked.prompt_tokens;
        record.output_tokens = asked.max_tokens.unwrap_or(0);
        let engine = &self.server.engine;
        if asked.endpoint != Protocol::Embeddings {
            engine.metrics.borrow_mut().max_tokens.observe(u64::from(record.output_tokens));
        }
        let blocks = std::mem::take(&mut asked.blocks);
        let stream = match engine.submit(&self.conn, record, blocks) {
            Ok(stream) => stream,
            Err(rejected) => return self.rejected(&rejected),
        };
        let number = stream.id;
        let held = Held::new(stream, engine.clone());
        let model = &self.server.model;
        if asked.stream {
            let voice = Voice::new(&asked, number, model);
            let mut answer = Response::new(AnswerBody::stream(held, voice, &self.server.page));
            answer.headers_mut().insert(CONTENT_TYPE, voice::EVENT_STREAM);
            return self.signed(answer);
        }
        held.ended().await;
        self.json(StatusCode::OK, voice::whole(&asked, number, model), Some(held))
    }

    /// What needs no engine.
    fn read_only(&self, request: &Request<Incoming>) -> Answer {
        self.conn.request_read();
        let known =
            matches!(request.uri().path(), "/health" | "/ping" | "/metrics" | "/v1/models" | "/version");
        if known && request.method() != Method::GET && request.method() != Method::HEAD {
            return self.not_allowed("GET");
        }
        match request.uri().path() {
            "/health" | "/ping" => self.whole(StatusCode::OK, voice::PLAIN, Bytes::new(), None),
            "/metrics" => self.whole(StatusCode::OK, PAGE, page::write(&self.server).into(), None),
            "/v1/models" => self.json(StatusCode::OK, voice::models(&self.server), None),
            "/version" => self.json(StatusCode::OK, voice::version(), None),
            _ => self.error(&voice::refusal(404, "there is nothing at this path")),
        }
    }

    fn not_allowed(&self, method: &'static str) -> Answer {
        self.conn.request_read();
        let mut answer = self.error(&voice::refusal(405, "the method is not allowed here"));
        answer.headers_mut().insert(ALLOW, HeaderValue::from_static(method));
        answer
    }

    /// A request that was wrong; it has its line in the truth log.
    fn refuse(&self, mut record: Record, refusal: BadRequest) -> Answer {
        self.conn.request_read();
        if record.arrival_ns == 0 {
            let arrival = self.conn.arrival();
            (record.arrival_ns, record.arrival_kernel) = (arrival.monotonic_ns, arrival.kernel);
        }
        record.ending = Ending::Rejected;
        record.status = refusal.status;
        self.server.engine.log(record);
        self.error(&refusal)
    }

    fn rejected(&self, why: &Rejected) -> Answer {
        let refusal = voice::rejected(why);
        let mut answer = self.error(&refusal);
        if matches!(refusal.status, 429 | 503) {
            answer.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("1"));
        }
        answer
    }

    fn error(&self, refusal: &BadRequest) -> Answer {
        self.server.engine.metrics.borrow_mut().errors += 1;
        let status = StatusCode::from_u16(refusal.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        self.json(status, voice::error_body(refusal), None)
    }

    fn json(&self, status: StatusCode, body: Bytes, held: Option<Held>) -> Answer {
        self.whole(status, voice::JSON, body, held)
    }

    fn whole(&self, status: StatusCode, kind: HeaderValue, body: Bytes, held: Option<Held>) -> Answer {
        let mut answer = Response::new(AnswerBody::whole(body, &self.conn, held));
        *answer.status_mut() = status;
        answer.headers_mut().insert(CONTENT_TYPE, kind);
        self.signed(answer)
    }

    fn signed(&self, mut answer: Answer) -> Answer {
        answer.headers_mut().insert(SERVER, voice::SERVER);
        answer
    }
}

/// Reads a body whole, or says why not. One that came in one piece is not copied.
async fn collect(mut body: Incoming, limit: usize) -> Result<Bytes, BadRequest> {
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
