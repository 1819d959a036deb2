//! One request on its external-processing stream: receives head and body, books and names a replica, and accounts for
//! the visible part of the response.
//!
//! The body mode of the proxy decides when a replica is chosen. If the proxy sends the body, it is read completely
//! first. Otherwise only the head is known, without model and prompt. A stream without modes counts as full duplex in
//! both directions, because the endpoint picker protocol requires that.

use std::rc::Rc;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use http::request::Parts;
use http::{HeaderMap, Method, Request, Response, StatusCode};
use plimsoll_model::Span;
use plimsoll_wire::ext_proc::response::go_on;
use plimsoll_wire::ext_proc::{
    Answers, BodyChange, BodyMode, BodyModes, HeaderLines, HttpMessage, HttpPiece, Mutation,
    ProcessingRequest,
};
use plimsoll_wire::grpc::Code;
use tokio::time::{Instant, timeout_at};

use super::call::{GrpcCallError, GrpcReplies, GrpcRequests};
use super::reply as picker_reply;
use crate::head_verdict::HeadVerdict;
use crate::pool::ReplicaLease;
use crate::proxy::{REQUEST_ID, RejectedRequest, RequestContext, TierRewrite, Worker, authenticate};
use crate::reply::{self, ReplyBody};
use crate::response_observer::{self, ResponseObserver};
use crate::stats::{RequestEnd, RequestStage};
use crate::timer::soon;

const FULL_DUPLEX: BodyModes = BodyModes { request: BodyMode::FullDuplex, response: BodyMode::FullDuplex };

pub async fn run(
    worker: Rc<Worker>,
    mut inbox: GrpcRequests,
    outbox: GrpcReplies,
) -> Result<(), GrpcCallError> {
    let limit = soon(Span::from_secs_f64(worker.rules.now().limits.body_s));
    let exchange = Exchange { worker: &worker, outbox: &outbox, limit };
    match exchange.came(&mut inbox).await? {
        Some(PickerRequest::Whole(asked)) => exchange.placed(*asked, &mut inbox).await,
        Some(PickerRequest::Refused(rejected, context)) => exchange.refuses(*rejected, *context).await,
        // Another filter has already answered the client, or there is no request.
        Some(PickerRequest::Overtaken) | None => Ok(()),
    }
}

struct Exchange<'a> {
    worker: &'a Worker,
    outbox: &'a GrpcReplies,
    /// Deadline for receiving the complete request.
    limit: Instant,
}

/// The result of reading a request.
enum PickerRequest {
    Whole(Box<RoutableRequest>),
    Refused(Box<RejectedRequest>, Box<RequestContext>),
    Overtaken,
}

/// A request that is ready for routing.
struct RoutableRequest {
    context: RequestContext,
    body: Bytes,
    modes: BodyModes,
    subset: Option<Vec<String>>,
    due: PendingReply,
}

/// The reply that the proxy waits for.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
enum PendingReply {
    /// The reply to the head, without a body.
    Head,
    /// The reply to the complete body.
    Body,
    /// The reply to the head and then the body, with or without trailers.
    Both { trailers: bool },
    /// The reply to trailers that arrived instead of a body; its metadata names the replica.
    Trailers,
}

/// A request that a replica serves.
struct RoutedRequest {
    context: RequestContext,
    modes: BodyModes,
    /// Set if the proxy shows the response body while it streams.
    sees: bool,
    stage: Stage,
}

enum Stage {
    /// The response has not started.
    Waits(ReplicaLease),
    Answers(Box<ResponseObserver>),
    Over,
}

fn read(message: &[u8]) -> Result<ProcessingRequest<'_>, GrpcCallError> {
    ProcessingRequest::read(message).map_err(|e| GrpcCallError::new(Code::InvalidArgument, e.to_string()))
}

impl Exchange<'_> {
    /// Reads a request until it is ready for routing. Returns `None` if the stream contains no request.
    async fn came(&self, inbox: &mut GrpcRequests) -> Result<Option<PickerRequest>, GrpcCallError> {
        let late = |_| GrpcCallError::new(Code::DeadlineExceeded, "no request was received in time");
        let message = timeout_at(self.limit, inbox.next()).await.map_err(late)??;
        let Some(message) = message else { return Ok(None) };
        let arrived = self.worker.pool.clock.now();
        let first = read(&message)?;
        let Some(HttpMessage::RequestHeaders(lines, is_end)) = &first.said else {
            let why = "no request headers: write request_header_mode: SEND (or DEFAULT) in processing_mode";
            return Err(GrpcCallError::new(Code::InvalidArgument, why));
        };
        let modes = first.modes.unwrap_or(FULL_DUPLEX);
        if first.only_observes || modes.request == BodyMode::Other {
            let why = "not supported: observability_mode, and body modes other than NONE, STREAMED, BUFFERED, BUFFERED_PARTIAL and FULL_DUPLEX_STREAMED";
            return Err(GrpcCallError::new(Code::FailedPrecondition, why));
        }
        let (parts, is_sound) = parts(lines);
        let mut context = RequestContext::new(self.worker, arrived, parts);
        if let Err(rejected) = admit_head(&mut context, lines.len(), is_sound) {
            return Ok(Some(PickerRequest::Refused(rejected, Box::new(context))));
        }
        let gathered = match (is_end, modes.request) {
            (true, _) | (_, BodyMode::None | BodyMode::Streamed | BodyMode::Other) => {
                BufferedBody::Whole(Bytes::new(), PendingReply::Head)
            }
            (false, BodyMode::Buffered | BodyMode::BufferedPartial) => {
                self.goes_on(Answers::RequestHeaders).await;
                self.gather(inbox, &context, PendingReply::Body).await?
            }
            (false, BodyMode::FullDuplex) => {
                self.gather(inbox, &context, PendingReply::Both { trailers: false }).await?
            }
        };
        let (status, code, why) = match gathered {
            BufferedBody::Whole(body, due) => {
                let subset = first.subset;
                let routable = RoutableRequest { context, body, modes, subset, due };
                return Ok(Some(PickerRequest::Whole(Box::new(routable))));
            }
            BufferedBody::Overtaken => return Ok(Some(PickerRequest::Overtaken)),
            BufferedBody::TooLarge => {
                let most = context.rules.limits.body_bytes;
                let why = format!("The request's body is larger than {most} bytes.");
                (StatusCode::PAYLOAD_TOO_LARGE, "body_too_large", why)
            }
            BufferedBody::Late => {
                let within = context.rules.limits.body_s;
                let why = format!("The request's body was not received within {within} s.");
                (StatusCode::REQUEST_TIMEOUT, "slow_body", why)
            }
        };
        let rejected = RejectedRequest::bad(status, code, &why);
        Ok(Some(PickerRequest::Refused(rejected, Box::new(context))))
    }

    /// Reads a body to its end.
    async fn gather(
        &self,
        inbox: &mut GrpcRequests,
        context: &RequestContext,
        due: PendingReply,
    ) -> Result<BufferedBody, GrpcCallError> {
        let most = context.rules.limits.body_bytes;
        let mut body = BytesMut::new();
        loop {
            let message = match timeout_at(self.limit, inbox.next()).await {
                Ok(Ok(Some(message))) => message,
                Ok(Ok(None)) => return Ok(BufferedBody::Overtaken),
                Ok(Err(end)) if end.is_too_large() => return Ok(BufferedBody::TooLarge),
                Ok(Err(end)) => return Err(end),
                Err(_) => return Ok(BufferedBody::Late),
            };
            let (is_end, due) = match read(&message)?.said {
                Some(HttpMessage::RequestBody(piece)) if body.len() + piece.body.len() > most => {
                    return Ok(BufferedBody::TooLarge);
                }
                Some(HttpMessage::RequestBody(piece)) => {
                    body.extend_from_slice(piece.body);
                    // A buffered body arrives in one message, which the proxy may have truncated at its limit.
                    (piece.is_end || due == PendingReply::Body, due)
                }
                Some(HttpMessage::RequestTrailers) if due == PendingReply::Body => {
                    (true, PendingReply::Trailers)
                }
                Some(HttpMessage::RequestTrailers) => (true, PendingReply::Both { trailers: true }),
                _ => return Ok(BufferedBody::Overtaken),
            };
            if is_end {
                return Ok(BufferedBody::Whole(body.freeze(), due));
            }
        }
    }

    async fn goes_on(&self, to: Answers) {
        self.outbox.send(&go_on(to, &Mutation::default(), BodyChange::Keep, None)).await;
    }

    /// Sends a rejection to the client.
    async fn refuses(
        &self,
        rejected: RejectedRequest,
        mut context: RequestContext,
    ) -> Result<(), GrpcCallError> {
        let response = self.worker.reject(&mut context, rejected);
        self.answers(response, &context).await;
        Ok(())
    }

    /// Sends a response of the gateway to the client.
    async fn answers(&self, mut response: Response<ReplyBody>, context: &RequestContext) {
        response.headers_mut().entry(REQUEST_ID).or_insert(context.id.clone());
        self.outbox.send(&picker_reply::instead(response).await).await;
    }

    /// Routes a request, names its replica and accounts for the visible part of the response.
    async fn placed(&self, routable: RoutableRequest, inbox: &mut GrpcRequests) -> Result<(), GrpcCallError> {
        let worker = self.worker;
        let RoutableRequest { mut context, body, modes, subset, due } = routable;
        let sees = matches!(modes.response, BodyMode::Streamed | BodyMode::FullDuplex);
        if let Err(rejected) = worker.parse(&mut context, body, sees).await {
            return self.refuses(*rejected, context).await;
        }
        if let Some(allowed) = subset.as_ref().map(|subset| worker.pool.at(subset)) {
            let owner = context.parsed.among.take();
            let owner = owner.filter(|owner| owner.iter().all(|one| allowed.contains(one)));
            context.parsed.among = Some(owner.unwrap_or(allowed));
        }
        if let Some(page) = worker.models(&context) {
            context.end.count(RequestEnd::Answered);
            self.outbox.send(&picker_reply::instead(reply::json(page)).await).await;
            return Ok(());
        }
        worker.mirror(&context);
        worker.pool.came();
        let routed = tokio::select! {
            biased;
            routed = worker.route(&mut context) => routed,
            () = inbox.ended() => return Ok(()),
        };
        let mut lease = match routed {
            Ok(lease) => lease,
            Err(response) => {
                self.answers(response, &context).await;
                return Ok(());
            }
        };
        worker.record_send(&mut context, &mut lease);
        self.names(&context, &lease, due).await;
        let mut sent = RoutedRequest { context, modes, sees, stage: Stage::Waits(lease) };
        while let Some(message) = inbox.next().await? {
            self.follows(&mut sent, &message).await?;
            if matches!(sent.stage, Stage::Over) {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Sends the chosen replica to the proxy.
    async fn names(&self, context: &RequestContext, lease: &ReplicaLease, due: PendingReply) {
        let worker = self.worker;
        let of_key = |name: &str| context.rules.bearer(name);
        let own_key = of_key(&lease.replica().name);
        let mut further = worker.pool.next_best(&context.parsed, lease, worker.fallbacks);
        // The request carries one key, so a fallback replica must use an equal key.
        further.retain(|one| of_key(&one.name) == own_key);
        let endpoints = picker_reply::endpoints(lease, further.iter().map(Arc::as_ref));
        let TierRewrite { path, body } = worker.rewrite(context, lease.tier());
        let told = picker_reply::for_replica(context, lease, &endpoints, (path.as_ref(), body.as_ref()));
        let (to, change) = match (due, &body) {
            (PendingReply::Body, Some(body)) => (Answers::RequestBody, BodyChange::Replace(body)),
            (PendingReply::Body, None) => (Answers::RequestBody, BodyChange::Keep),
            (PendingReply::Trailers, _) => (Answers::RequestTrailers, BodyChange::Keep),
            (PendingReply::Head | PendingReply::Both { .. }, _) => {
                (Answers::RequestHeaders, BodyChange::Keep)
            }
        };
        self.outbox.send(&go_on(to, &told, change, Some(&endpoints))).await;
        if let PendingReply::Both { trailers } = due {
            let body = body.as_ref().unwrap_or(&context.request.body);
            picker_reply::back(self.outbox, Answers::RequestBody, body, !trailers).await;
            if trailers {
                self.goes_on(Answers::RequestTrailers).await;
            }
        }
    }

    /// Handles a message after the request was routed.
    async fn follows(&self, sent: &mut RoutedRequest, message: &[u8]) -> Result<(), GrpcCallError> {
        let request = read(message)?;
        match request.said {
            // The body of a request that was routed by its head.
            Some(HttpMessage::RequestBody(piece)) => {
                self.piece(Answers::RequestBody, sent.modes.request, piece).await;
            }
            Some(HttpMessage::RequestTrailers) => self.goes_on(Answers::RequestTrailers).await,
            Some(HttpMessage::ResponseHeaders(lines, is_end)) => {
                let told = self.heads(sent, &lines, is_end, request.served.as_deref())?;
                self.outbox.send(&go_on(Answers::ResponseHeaders, &told, BodyChange::Keep, None)).await;
                sent.ends(is_end);
            }
            Some(HttpMessage::ResponseBody(piece)) => {
                // A partially buffered body is not read, because it may be truncated here.
                let is_read = sent.modes.response != BodyMode::BufferedPartial;
                if let (Stage::Answers(answer), true) = (&mut sent.stage, is_read) {
                    answer.passes(piece.body, self.worker.pool.clock.now());
                }
                self.piece(Answers::ResponseBody, sent.modes.response, piece).await;
                sent.ends(piece.is_end);
            }
            Some(HttpMessage::ResponseTrailers) => {
                self.goes_on(Answers::ResponseTrailers).await;
                sent.ends(true);
            }
            Some(HttpMessage::RequestHeaders(..)) | None => {
                let why = "an unknown message, or a message that may not follow the request headers";
                return Err(GrpcCallError::new(Code::InvalidArgument, why));
            }
        }
        Ok(())
    }

    /// Replies to a part of a body without changing it.
    async fn piece(&self, to: Answers, mode: BodyMode, piece: HttpPiece<'_>) {
        match mode {
            BodyMode::FullDuplex => picker_reply::back(self.outbox, to, piece.body, piece.is_end).await,
            _ => self.goes_on(to).await,
        }
    }

    /// Handles the response head: evaluates it and returns the headers to add.
    fn heads(
        &self,
        sent: &mut RoutedRequest,
        lines: &HeaderLines<'_>,
        is_end: bool,
        served: Option<&str>,
    ) -> Result<Mutation, GrpcCallError> {
        let worker = self.worker;
        let now = worker.pool.clock.now();
        let Stage::Waits(lease) = std::mem::replace(&mut sent.stage, Stage::Over) else {
            return Err(GrpcCallError::new(Code::InvalidArgument, "a second head of a response"));
        };
        let context = &mut sent.context;
        let lease = self.at_last(context, lease, served);
        let status =
            picker_reply::pseudo(lines, ":status").and_then(|status| StatusCode::from_bytes(status).ok());
        let status = status.unwrap_or_default();
        let headers = picker_reply::headers(lines).unwrap_or_default();
        let kind = context.response_kind();
        let mut verdict = HeadVerdict::of((status, &headers), (kind, false), now, worker.pool.clock);
        // With the end of the stream after the head, it is unknown whether the proxy hides the body.
        verdict.is_unread |= is_end
            || matches!(sent.modes.response, BodyMode::None | BodyMode::BufferedPartial | BodyMode::Other);
        worker.stats.took(RequestStage::Head, now - lease.sent());
        let head = (now, status.as_u16(), verdict.retry_after());
        context.record(|record| record.head(head, &headers, None));
        let mut own = HeaderMap::new();
        worker.set_response_headers(context, &mut own, &lease);
        let protocol = response_observer::protocol(context.request.path.path());
        if response_observer::has_events(protocol, &headers) && sent.modes.response == BodyMode::Buffered {
            // A buffered event stream arrives in one piece but is read as a stream anyway.
            context.record(|record| record.of_try(|one| one.streams = true));
        }
        let stream = Some(protocol).filter(|_| sent.sees && response_observer::is_stream(protocol, &headers));
        let started = context.start_response(now, lease, verdict, &headers);
        let observer = ResponseObserver::new(started, stream, Arc::clone(&worker.stats), worker.pool.clock);
        sent.stage = Stage::Answers(Box::new(observer));
        Ok(picker_reply::set(&own))
    }

    /// Returns the booking on the replica that served the request. It differs from the choice if that was unreachable
    /// and the proxy reports the actual replica. The choice is not penalised, because the cause is not reported.
    fn at_last(
        &self,
        context: &mut RequestContext,
        lease: ReplicaLease,
        served: Option<&str>,
    ) -> ReplicaLease {
        let chosen = lease.replica().place.endpoint().map(|endpoint| endpoint.to_string());
        let Some(served) = served.filter(|served| Some(*served) != chosen.as_deref()) else { return lease };
        let at = self.worker.pool.at(&[served.to_owned()]);
        if at.is_empty() {
            return lease;
        }
        let among = context.parsed.among.replace(at);
        let moved = self.worker.pool.again(&context.parsed, &[], false);
        context.parsed.among = among;
        let Some(mut moved) = moved else { return lease };
        drop(lease);
        self.worker.record_send(context, &mut moved);
        moved
    }
}

/// The result of reading a body.
enum BufferedBody {
    Whole(Bytes, PendingReply),
    TooLarge,
    Late,
    /// The client was answered by another filter, or disconnected.
    Overtaken,
}

impl RoutedRequest {
    fn ends(&mut self, is_end: bool) {
        if let (true, Stage::Answers(answer)) = (is_end, &mut self.stage) {
            answer.end(true);
            self.stage = Stage::Over;
        }
    }
}

impl Drop for RoutedRequest {
    fn drop(&mut self) {
        // A proxy that hides the body drops the call at the end of the response. If it shows the body, a drop means
        // that the client disconnected.
        if let (Stage::Answers(answer), false) = (&mut self.stage, self.sees) {
            answer.end(true);
        }
    }
}

/// Admits a request by its head of `lines` header lines.
fn admit_head(
    context: &mut RequestContext,
    lines: usize,
    is_sound: bool,
) -> Result<(), Box<RejectedRequest>> {
    let most = context.rules.limits.headers;
    if lines > most {
        let why = format!("The request has more than {most} header lines.");
        let status = StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE;
        return Err(RejectedRequest::bad(status, "too_many_headers", &why));
    }
    if !is_sound {
        let why = "The request's head can't be read.";
        return Err(RejectedRequest::bad(StatusCode::BAD_REQUEST, "bad_head", why));
    }
    authenticate(context)
}

/// Returns the request head in the form of HTTP/1, and whether all its parts are valid.
fn parts(lines: &HeaderLines<'_>) -> (Parts, bool) {
    let mut parts = Request::new(()).into_parts().0;
    let method = picker_reply::pseudo(lines, ":method").and_then(|method| Method::from_bytes(method).ok());
    let uri =
        picker_reply::pseudo(lines, ":path").and_then(|path| std::str::from_utf8(path).ok()?.parse().ok());
    let headers = picker_reply::headers(lines);
    let is_sound = method.is_some() && uri.is_some() && headers.is_some();
    (parts.method, parts.uri) = (method.unwrap_or_default(), uri.unwrap_or_default());
    parts.headers = headers.unwrap_or_default();
    (parts, is_sound)
}
