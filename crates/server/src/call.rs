//! Serves gRPC: KServe v2 as Triton implements it, for engines that answer whole requests, and gRPC's health service.
//!
//! As in Triton, `ModelStreamInfer` answers the messages of a stream separately, in the order in which the engine finishes
//! them. Each response is marked as the last of its request (`triton_final_response`), because such an engine sends one per
//! request.

use std::rc::Rc;
use std::sync::Arc;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, SERVER};
use http::{HeaderValue, Method as HttpMethod, Request, Response};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use plimsoll_model::Span;
use plimsoll_sim::{Failure, Submit};
use plimsoll_wire::grpc::{self, CallMessages, Code, FrameError, HEALTH_CHECK};
use plimsoll_wire::kserve::grpc::{CONTENT_TYPE as GRPC, Method, server as messages};
use plimsoll_wire::kserve::server::FrontModel;
use plimsoll_wire::server::BadRequest;
use tokio::sync::{Semaphore, mpsc};

use crate::body::{AnswerBody, CallBody, CallReply, HeldRequest};
use crate::front::{Answer, Call};
use crate::infer::{named, refusal};
use crate::io::Conn;
use crate::truth::TruthRecord;
use crate::voice;

/// Most responses that wait for the connection.
const AHEAD: usize = 16;
/// Most messages of one call in the engine at a time.
const AT_ONCE: usize = 1024;

/// Code and message of a failed call.
type End = (Code, String);

/// Returns whether the request is a gRPC call.
pub(crate) fn is_call(request: &Request<Incoming>) -> bool {
    let kind = request.headers().get(CONTENT_TYPE).map_or(&b""[..], HeaderValue::as_bytes);
    request.method() == HttpMethod::POST && kind.starts_with(GRPC.as_bytes())
}

impl Call {
    pub(crate) fn called(self, request: Request<Incoming>) -> Answer {
        let (say, said) = mpsc::channel(AHEAD);
        let mut answer = Response::new(AnswerBody::Call(CallBody::new(said, &self.conn)));
        answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(GRPC));
        answer.headers_mut().insert("grpc-accept-encoding", HeaderValue::from_static("identity"));
        answer.headers_mut().insert(SERVER, voice::SERVER);
        tokio::task::spawn_local(async move {
            let leaves = say.clone();
            tokio::select! {
                // The client disconnected and needs no response.
                () = leaves.closed() => {}
                end = Rc::new(self).work(request, &say) => {
                    if let Err((code, why)) = end {
                        let _ = say.send(CallReply::Failed(code, why)).await;
                    }
                }
            }
        });
        answer
    }

    async fn work(
        self: Rc<Self>,
        request: Request<Incoming>,
        say: &mpsc::Sender<CallReply>,
    ) -> Result<(), End> {
        let path = request.uri().path().to_owned();
        let id = request.headers().get("x-request-id");
        let id = id.map(|id| String::from_utf8_lossy(id.as_bytes()).into_owned());
        let mut inbox = Inbox {
            body: request.into_body(),
            pieces: CallMessages::new(self.server.limits.body_bytes),
            conn: self.conn.clone(),
        };
        if path == HEALTH_CHECK {
            let message = inbox.next().await?.unwrap_or_default();
            let wrong = |e| (Code::InvalidArgument, format!("no HealthCheckRequest: {e}"));
            let service = grpc::health_asked(&message).map_err(wrong)?;
            self.conn.request_read();
            if !service.is_empty() && service != messages::SERVICE_NAME {
                return Err((Code::NotFound, format!("{service}: there is {}", messages::SERVICE_NAME)));
            }
            self.says(say, &grpc::health(true), None).await;
            return Ok(());
        }
        let method = Method::at(&path).zip(self.server.infers.as_ref());
        let Some((method, model)) = method else {
            return Err((Code::Unimplemented, format!("{path}: unknown service or method")));
        };
        match method {
            Method::ModelStreamInfer => self.streams(&mut inbox, say, (&path, id.as_deref())).await,
            Method::ModelInfer => {
                let message = inbox.only().await?;
                let mut record = TruthRecord { id, path, ..TruthRecord::default() };
                self.arrived(&mut record);
                let (response, held) = self.inferred(model, &message, record, false).await?;
                self.says(say, &response, Some(held)).await;
                Ok(())
            }
            asked => {
                let message = inbox.only().await?;
                self.conn.request_read();
                let told = told(asked, model, &message)?;
                self.says(say, &told, None).await;
                Ok(())
            }
        }
    }

    async fn says(&self, say: &mpsc::Sender<CallReply>, message: &[u8], held: Option<HeldRequest>) {
        // A client that has disconnected is no error.
        let _ = say.send(CallReply::Message(Bytes::from(grpc::framed(message)), held)).await;
    }

    /// Processes every message of the stream separately.
    async fn streams(
        self: &Rc<Self>,
        inbox: &mut Inbox,
        say: &mpsc::Sender<CallReply>,
        (path, id): (&str, Option<&str>),
    ) -> Result<(), End> {
        let places = Arc::new(Semaphore::new(AT_ONCE));
        // A stream may stay open for a long time before its first message, so the read limit is off.
        self.conn.request_read();
        while let Some(message) = inbox.next().await? {
            let mut record =
                TruthRecord { id: id.map(str::to_owned), path: path.to_owned(), ..TruthRecord::default() };
            self.arrived(&mut record);
            let place = Arc::clone(&places).acquire_owned().await;
            let (own, say) = (Rc::clone(self), say.clone());
            tokio::task::spawn_local(async move {
                let Some(model) = &own.server.infers else { return };
                let leaves = say.clone();
                tokio::select! {
                    () = leaves.closed() => {}
                    inferred = own.inferred(model, &message, record, true) => match inferred {
                        Ok((response, held)) => own.says(&say, &messages::streamed(&response), Some(held)).await,
                        // In a stream, an error fails one message and not the call.
                        Err((_, why)) => own.says(&say, &messages::streamed_error(&why), None).await,
                    },
                }
                drop(place);
            });
        }
        Ok(())
    }

    /// Runs an inference in the engine and returns the bytes of the response.
    async fn inferred(
        &self,
        model: &FrontModel,
        message: &[u8],
        mut record: TruthRecord,
        is_last: bool,
    ) -> Result<(Vec<u8>, HeldRequest), End> {
        let asked = match messages::parse(model, message) {
            Ok(asked) => asked,
            Err(BadRequest { status, message, .. }) => {
                self.log_refusal(record, status);
                return Err(self.refused(status, message));
            }
        };
        record.items = asked.items;
        let queue_timeout =
            asked.timeout_us.map(|us| Span::from_micros(i64::try_from(us).unwrap_or(i64::MAX / 1000)));
        let submit = Submit {
            items: asked.items,
            priority: asked.priority,
            queue_timeout,
            ..Submit::new(0, asked.items, 0)
        };
        let engine = &self.server.engine;
        let held = match engine.submit(&self.conn, record, submit) {
            Ok(stream) => HeldRequest::new(stream, engine.clone()),
            Err(plimsoll_sim::EngineRejection::Reset) => {
                self.conn.reset();
                return std::future::pending().await;
            }
            Err(rejected) => {
                let (status, why) = refusal(&rejected);
                return Err(self.refused(status, why));
            }
        };
        held.ended().await;
        match held.failure() {
            Some(Failure::Status { status, why }) => Err(self.refused(status, named(why))),
            Some(_) => {
                self.conn.reset();
                std::future::pending().await
            }
            None => Ok((messages::response(&asked, model, is_last), held)),
        }
    }

    fn refused(&self, status: u16, why: String) -> End {
        self.server.engine.metrics.borrow_mut().errors += 1;
        (code(status), why)
    }
}

/// Returns the response to a request for metadata of the server or its model.
fn told(asked: Method, model: &FrontModel, message: &[u8]) -> Result<Vec<u8>, End> {
    let of_model = || {
        let named = messages::model_asked(message).map_err(|e| (Code::InvalidArgument, e.to_string()))?;
        let (name, version) = &named;
        if *name == model.name && (version.is_empty() || version == "1") {
            return Ok(());
        }
        Err((Code::NotFound, format!("Request for unknown model: '{name}' is not found")))
    };
    match asked {
        Method::ServerMetadata => Ok(messages::server("plimsoll-engine", env!("CARGO_PKG_VERSION"))),
        Method::RepositoryIndex => Ok(messages::index(model)),
        Method::ModelMetadata => of_model().map(|()| messages::metadata(model)),
        Method::ModelConfig => of_model().map(|()| messages::config(model)),
        Method::ModelReady => Ok(messages::ready(of_model().is_ok())),
        _ => Ok(messages::ready(true)),
    }
}

/// Returns the gRPC code that corresponds to an HTTP status.
fn code(status: u16) -> Code {
    match status {
        429 | 413 => Code::ResourceExhausted,
        404 => Code::NotFound,
        400..=499 => Code::InvalidArgument,
        503 => Code::Unavailable,
        504 => Code::DeadlineExceeded,
        _ => Code::Internal,
    }
}

/// The messages that a client sends in a call.
struct Inbox {
    body: Incoming,
    pieces: CallMessages,
    conn: Rc<Conn>,
}

impl Inbox {
    /// Returns the next message; `None` = end of the messages.
    async fn next(&mut self) -> Result<Option<Bytes>, End> {
        loop {
            if let Some(message) = self.pieces.take().map_err(broken)? {
                return Ok(Some(message));
            }
            if !self.pieces.is_empty() {
                self.conn.request_begins();
            }
            match self.body.frame().await {
                Some(Ok(frame)) => frame.data_ref().into_iter().for_each(|data| self.pieces.push(data)),
                Some(Err(_)) => return Err((Code::Unavailable, "the caller disconnected".into())),
                None if self.pieces.is_empty() => return Ok(None),
                None => return Err((Code::InvalidArgument, "the call ends within a message".into())),
            }
        }
    }

    /// Returns the only message of a unary call.
    async fn only(&mut self) -> Result<Bytes, End> {
        let message =
            self.next().await?.ok_or((Code::InvalidArgument, "a call without a message".to_owned()))?;
        match self.next().await? {
            None => Ok(message),
            Some(_) => Err((Code::InvalidArgument, "a unary call with two messages".into())),
        }
    }
}

fn broken(error: FrameError) -> End {
    let code = match error {
        FrameError::TooLarge(_) => Code::ResourceExhausted,
        FrameError::Compressed => Code::Unimplemented,
        FrameError::Broken(_) => Code::InvalidArgument,
    };
    (code, error.to_string())
}
