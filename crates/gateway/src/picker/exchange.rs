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
use http::{HeaderMap, HeaderValue, Method, Request, StatusCode};
use plimsoll_model::{At, Span};
use plimsoll_wire::ext_proc::response::go_on;
use plimsoll_wire::ext_proc::{
    Answers, BodyChange, BodyMode, BodyModes, HeaderLines, HttpPiece, Mutation, ProcessingRequest, Said,
};
use plimsoll_wire::grpc::Code;
use tokio::time::{Instant, timeout_at};

use super::call::{GrpcCallError, GrpcReplies, GrpcRequests};
use super::told;
use crate::doors::RateCharge;
use crate::judged::HeadVerdict;
use crate::owners::MadeObject;
use crate::passing::{self, ResponseObserver, StartedResponse};
use crate::pool::ReplicaLease;
use crate::proxy::{
    AuthenticatedRequest, CancelOnDrop, REQUEST_ID, RejectedRequest, RequestContext, TierRewrite, Worker,
    unpacked,
};
use crate::reply;
use crate::stats::{RequestEnd, RequestStage};
use crate::timer::soon;
use crate::traffic::RequestRecord;

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
        Some(PickerRequest::Refused(refused, begun)) => exchange.refuses(*refused, begun).await,
        // Another filter has already answered the client, or there is no request.
        Some(PickerRequest::Overtaken) | None => Ok(()),
    }
}

struct Exchange<'a> {
    worker: &'a Worker,
    outbox: &'a GrpcReplies,
    /// Deadline for the complete request.
    limit: Instant,
}

/// The result of reading a request.
enum PickerRequest {
    Whole(Box<RoutableRequest>),
    Refused(Box<RejectedRequest>, RequestStart),
    Overtaken,
}

/// A request whose head has arrived. A drop without an outcome counts as a client disconnect.
struct RequestStart {
    gone: CancelOnDrop,
    id: HeaderValue,
    recording: Option<RequestRecord>,
}

/// A request that is ready for routing.
struct RoutableRequest {
    entered: AuthenticatedRequest,
    body: Bytes,
    begun: RequestStart,
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
    call: RequestContext,
    modes: BodyModes,
    /// Set if the proxy shows the response body while it streams.
    sees: bool,
    stage: Stage,
}

enum Stage {
    /// The response has not started.
    Waits(ReplicaLease, CancelOnDrop),
    Answers(Box<ResponseObserver>),
    Over,
}

/// Returns a rejection of an invalid request.
fn bad(status: StatusCode, code: &str, why: &str) -> Box<RejectedRequest> {
    Box::new(RejectedRequest { end: RequestEnd::Bad, response: reply::error(status, code, why, None) })
}

fn read(message: &[u8]) -> Result<ProcessingRequest<'_>, GrpcCallError> {
    ProcessingRequest::read(message).map_err(|e| GrpcCallError::new(Code::InvalidArgument, e.to_string()))
}

impl Exchange<'_> {
    /// Reads a request until it is ready for routing. Returns `None` if the stream contains no request.
    async fn came(&self, inbox: &mut GrpcRequests) -> Result<Option<PickerRequest>, GrpcCallError> {
        let late = |_| GrpcCallError::new(Code::DeadlineExceeded, "no request came in time");
        let message = timeout_at(self.limit, inbox.next()).await.map_err(late)??;
        let Some(message) = message else { return Ok(None) };
        let came = self.worker.pool.clock.now();
        let first = read(&message)?;
        let Some(Said::RequestHeaders(lines, is_end)) = &first.said else {
            let why = "no request headers: write request_header_mode: SEND (or DEFAULT) in processing_mode";
            return Err(GrpcCallError::new(Code::InvalidArgument, why));
        };
        let modes = first.modes.unwrap_or(FULL_DUPLEX);
        if first.only_observes || modes.request == BodyMode::Other {
            let why = "observability_mode, and body modes other than NONE, STREAMED, BUFFERED, BUFFERED_PARTIAL and FULL_DUPLEX_STREAMED, leave nothing to pick";
            return Err(GrpcCallError::new(Code::FailedPrecondition, why));
        }
        let recorded =
            self.worker.traffic.as_ref().filter(|_| told::pseudo(lines, ":method") == Some(b"POST"));
        let recording = recorded.map(|to| RequestRecord::begin(to, self.worker.pool.clock, came));
        let gone = CancelOnDrop::new(self.worker);
        let parts = parts(lines);
        let id = self.worker.id(parts.as_ref().map_or(&HeaderMap::new(), |parts| &parts.headers));
        let begun = RequestStart { gone, id: id.clone(), recording };
        let entered = match self.enter(came, id, parts, lines.len()) {
            Ok(entered) => entered,
            Err(refused) => return Ok(Some(PickerRequest::Refused(refused, begun))),
        };
        let gathered = match (is_end, modes.request) {
            (true, _) | (_, BodyMode::None | BodyMode::Streamed | BodyMode::Other) => {
                BufferedBody::Whole(Bytes::new(), PendingReply::Head)
            }
            (false, BodyMode::Buffered | BodyMode::BufferedPartial) => {
                self.goes_on(Answers::RequestHeaders).await;
                self.gather(inbox, &entered, PendingReply::Body).await?
            }
            (false, BodyMode::FullDuplex) => {
                self.gather(inbox, &entered, PendingReply::Both { trailers: false }).await?
            }
        };
        Ok(Some(match gathered {
            BufferedBody::Whole(body, due) => {
                let subset = first.subset;
                PickerRequest::Whole(Box::new(RoutableRequest { entered, body, begun, modes, subset, due }))
            }
            BufferedBody::TooLarge => {
                let why =
                    format!("The request's body is larger than {} bytes.", entered.rules.limits.body_bytes);
                PickerRequest::Refused(bad(StatusCode::PAYLOAD_TOO_LARGE, "body_too_large", &why), begun)
            }
            BufferedBody::Late => {
                let why =
                    format!("The request's body did not come within {} s.", entered.rules.limits.body_s);
                PickerRequest::Refused(bad(StatusCode::REQUEST_TIMEOUT, "slow_body", &why), begun)
            }
            BufferedBody::Overtaken => PickerRequest::Overtaken,
        }))
    }

    /// Admits a request by its head. `lines` is the number of header lines.
    fn enter(
        &self,
        came: At,
        id: HeaderValue,
        parts: Option<Parts>,
        lines: usize,
    ) -> Result<AuthenticatedRequest, Box<RejectedRequest>> {
        let most = self.worker.rules.now().limits.headers;
        if lines > most {
            let why = format!("The request has more than {most} header lines.");
            return Err(bad(StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE, "too_many_headers", &why));
        }
        let unread = || bad(StatusCode::BAD_REQUEST, "bad_head", "The request's head can't be read.");
        self.worker.enter(came, id, parts.ok_or_else(unread)?)
    }

    /// Reads a body to its end.
    async fn gather(
        &self,
        inbox: &mut GrpcRequests,
        entered: &AuthenticatedRequest,
        due: PendingReply,
    ) -> Result<BufferedBody, GrpcCallError> {
        let most = entered.rules.limits.body_bytes;
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
                Some(Said::RequestBody(piece)) if body.len() + piece.body.len() > most => {
                    return Ok(BufferedBody::TooLarge);
                }
                Some(Said::RequestBody(piece)) => {
                    body.extend_from_slice(piece.body);
                    // A buffered body arrives in one message, which the proxy may have truncated at its limit.
                    (piece.is_end || due == PendingReply::Body, due)
                }
                Some(Said::RequestTrailers) if due == PendingReply::Body => (true, PendingReply::Trailers),
                Some(Said::RequestTrailers) => (true, PendingReply::Both { trailers: true }),
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
    async fn refuses(&self, refused: RejectedRequest, begun: RequestStart) -> Result<(), GrpcCallError> {
        let RequestStart { gone, id, recording } = begun;
        self.worker.stats.end(refused.end);
        gone.counted();
        let mut response = refused.response;
        if let Some(mut recording) = recording {
            recording.note(|told| told.own_status = Some(response.status().as_u16()));
        }
        response.headers_mut().entry(REQUEST_ID).or_insert(id);
        self.outbox.send(&told::instead(response).await).await;
        Ok(())
    }

    /// Routes a request, names its replica and accounts for the visible part of the response.
    async fn placed(&self, asked: RoutableRequest, inbox: &mut GrpcRequests) -> Result<(), GrpcCallError> {
        let worker = self.worker;
        let RoutableRequest { entered, body, begun, modes, subset, due } = asked;
        let sees = matches!(modes.response, BodyMode::Streamed | BodyMode::FullDuplex);
        let read = unpacked(&entered, &body).await;
        let mut call = match read.and_then(|text| worker.call(entered, (body, text), sees)) {
            Ok(call) => call,
            Err(refused) => return self.refuses(*refused, begun).await,
        };
        let RequestStart { gone, recording, .. } = begun;
        if let Some(allowed) = subset.as_ref().map(|subset| worker.pool.at(subset)) {
            let owner = call.asked.among.take().filter(|owner| owner.iter().all(|one| allowed.contains(one)));
            call.asked.among = Some(owner.unwrap_or(allowed));
        }
        call.recording = recording.map(|recording| call.begun(recording, worker.pool.clock.now()));
        if let Some(page) = worker.models(&call) {
            worker.stats.end(RequestEnd::Answered);
            gone.counted();
            self.outbox.send(&told::instead(reply::json(page)).await).await;
            return Ok(());
        }
        worker.mirror(&call);
        let placed = tokio::select! {
            biased;
            placed = worker.book(&mut call) => placed,
            () = inbox.ended() => return Ok(()),
        };
        let mut booked = match placed {
            Ok(booked) => booked,
            Err(refusal) => {
                let mut response = worker.refuse(&mut call, refusal);
                gone.counted();
                call.toll.take().into_iter().for_each(RateCharge::waive);
                response.headers_mut().entry(REQUEST_ID).or_insert(call.id.clone());
                self.outbox.send(&told::instead(response).await).await;
                return Ok(());
            }
        };
        worker.sends(&mut call, &mut booked);
        self.names(&call, &booked, due).await;
        let mut sent = RoutedRequest { call, modes, sees, stage: Stage::Waits(booked, gone) };
        while let Some(message) = inbox.next().await? {
            self.follows(&mut sent, &message).await?;
            if matches!(sent.stage, Stage::Over) {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Sends the chosen replica to the proxy.
    async fn names(&self, call: &RequestContext, booked: &ReplicaLease, due: PendingReply) {
        let worker = self.worker;
        let of_key = |name: &str| call.rules.bearer(name);
        let own_key = of_key(&booked.replica().name);
        let mut further = worker.pool.next_best(&call.asked, booked, worker.fallbacks);
        // The request carries one key, so a fallback replica must use an equal key.
        further.retain(|one| of_key(&one.name) == own_key);
        let endpoints = told::endpoints(booked, further.iter().map(Arc::as_ref));
        let TierRewrite { path, body } = worker.renamed(call, booked.tier());
        let told = told::for_replica(call, booked, &endpoints, (path.as_ref(), body.as_ref()));
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
            let body = body.as_ref().unwrap_or(&call.message.body);
            told::back(self.outbox, Answers::RequestBody, body, !trailers).await;
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
            Some(Said::RequestBody(piece)) => {
                self.piece(Answers::RequestBody, sent.modes.request, piece).await;
            }
            Some(Said::RequestTrailers) => self.goes_on(Answers::RequestTrailers).await,
            Some(Said::ResponseHeaders(lines, is_end)) => {
                let told = self.heads(sent, &lines, is_end, request.served.as_deref())?;
                self.outbox.send(&go_on(Answers::ResponseHeaders, &told, BodyChange::Keep, None)).await;
                sent.ends(is_end);
            }
            Some(Said::ResponseBody(piece)) => {
                // A partially buffered body is not read, because it may be truncated here.
                let is_read = sent.modes.response != BodyMode::BufferedPartial;
                if let (Stage::Answers(answer), true) = (&mut sent.stage, is_read) {
                    answer.passes(piece.body, self.worker.pool.clock.now());
                }
                self.piece(Answers::ResponseBody, sent.modes.response, piece).await;
                sent.ends(piece.is_end);
            }
            Some(Said::ResponseTrailers) => {
                self.goes_on(Answers::ResponseTrailers).await;
                sent.ends(true);
            }
            Some(Said::RequestHeaders(..)) | None => {
                let why = "a message that does not come after the request's head, or that nobody knows";
                return Err(GrpcCallError::new(Code::InvalidArgument, why));
            }
        }
        Ok(())
    }

    /// Replies to a part of a body without changing it.
    async fn piece(&self, to: Answers, mode: BodyMode, piece: HttpPiece<'_>) {
        match mode {
            BodyMode::FullDuplex => told::back(self.outbox, to, piece.body, piece.is_end).await,
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
        let Stage::Waits(booked, gone) = std::mem::replace(&mut sent.stage, Stage::Over) else {
            return Err(GrpcCallError::new(Code::InvalidArgument, "a second head of a response"));
        };
        let call = &mut sent.call;
        let booked = self.at_last(call, booked, served);
        let status = told::pseudo(lines, ":status").and_then(|status| StatusCode::from_bytes(status).ok());
        let headers = told::headers(lines).unwrap_or_default();
        let head = (status.unwrap_or_default(), &headers);
        let mut judged = HeadVerdict::of(head, (call.judged_by(), false), now, worker.pool.clock);
        // With the end of the stream after the head, it is unknown whether the proxy hides the body.
        judged.is_unread |= is_end
            || matches!(sent.modes.response, BodyMode::None | BodyMode::BufferedPartial | BodyMode::Other);
        worker.stats.took(RequestStage::Head, now - booked.sent());
        let status = status.unwrap_or_default().as_u16();
        call.record(|recording| recording.head((now, status, judged.retry_after()), &headers, None));
        let mut own = HeaderMap::new();
        worker.mark(call, &mut own, &booked);
        let protocol = passing::protocol(call.message.path.path());
        let has_events = passing::has_events(protocol, &headers);
        let is_stream = sent.sees && passing::is_stream(protocol, &headers);
        if has_events && sent.modes.response == BodyMode::Buffered {
            // A buffered event stream arrives in one piece but is read as a stream anyway.
            call.record(|recording| recording.of_try(|one| one.streams = true));
        }
        // Rejected and failed requests are not charged.
        let toll = call.toll.take();
        let (toll, waived) = match judged.end {
            RequestEnd::Answered | RequestEnd::Refused => (toll, None),
            _ => (None, toll),
        };
        waived.into_iter().for_each(RateCharge::waive);
        let recording = call.recording.take();
        let ends = Arc::clone(&call.ends);
        let made = call.makes_object().then(|| MadeObject::new(&headers, has_events));
        let begun =
            StartedResponse { came: call.came, head: now, booked, judged, toll, recording, ends, made };
        gone.counted();
        let (stats, clock) = (Arc::clone(&worker.stats), worker.pool.clock);
        let answer = ResponseObserver::new(begun, is_stream.then_some(protocol), stats, clock);
        sent.stage = Stage::Answers(Box::new(answer));
        Ok(told::set(&own))
    }

    /// Returns the booking on the replica that served the request. It differs from the choice if that was unreachable
    /// and the proxy reports the actual replica. The choice is not penalised, because the cause is not reported.
    fn at_last(&self, call: &mut RequestContext, booked: ReplicaLease, served: Option<&str>) -> ReplicaLease {
        let chosen = booked.replica().place.endpoint().map(|endpoint| endpoint.to_string());
        let Some(served) = served.filter(|served| Some(*served) != chosen.as_deref()) else { return booked };
        let at = self.worker.pool.at(&[served.to_owned()]);
        if at.is_empty() {
            return booked;
        }
        let among = call.asked.among.replace(at);
        let moved = self.worker.pool.again(&call.asked, &[], false);
        call.asked.among = among;
        let Some(mut moved) = moved else { return booked };
        drop(booked);
        self.worker.sends(call, &mut moved);
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

/// Returns the request head in the form of HTTP/1.
fn parts(lines: &HeaderLines<'_>) -> Option<Parts> {
    let mut parts = Request::new(()).into_parts().0;
    parts.method = Method::from_bytes(told::pseudo(lines, ":method")?).ok()?;
    parts.uri = std::str::from_utf8(told::pseudo(lines, ":path")?).ok()?.parse().ok()?;
    parts.headers = told::headers(lines)?;
    Some(parts)
}
