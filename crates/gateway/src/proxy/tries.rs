//! The attempts of a request: routing, sending, and retries on other replicas while no part of a response was
//! forwarded.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use http::header::{AUTHORIZATION, CONTENT_ENCODING, HOST};
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, Uri};
use http_body::Body as _;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use plimsoll_client::Clock;
use plimsoll_model::{At, Protocol, Span};
use plimsoll_policy::{Refusal, ReplicaOutcome};

use super::{EXPLAIN, ForwardRequest, QUEUE_MS, REPLICA, REQUEST_ID, RequestContext, Worker, for_next_hop};
use crate::explain::ExplainMode;
use crate::judged::{HeadVerdict, ResponseKind};
use crate::owners::MadeObject;
use crate::passing::{self, StartedResponse};
use crate::pool::ReplicaLease;
use crate::queue::Placement;
use crate::relay::{Relay, RelayInput};
use crate::replica::Replica;
use crate::reply::{self, ReplyBody};
use crate::stats::{self, RequestEnd, RequestStage};
use crate::terms;
use crate::tiers::MODEL;
use crate::timer::soon;
use crate::traffic::TryEnd;
use crate::upstream::{PooledConnection, UpstreamError};

/// Limits in bytes and time on a rejection that is kept during a retry.
const MOST_KEPT: usize = 64 << 10;
const KEPT_WITHIN: Span = Span::from_secs(1);
/// Interval of the check whether the replica of a waiting request is lost.
const LOOKS: Span = Span::from_millis(250);

/// A rejection that is kept during a retry on another replica.
struct DeferredResponse {
    response: Response<ReplyBody>,
    end: RequestEnd,
}

/// A response whose head has arrived.
pub(super) struct UpstreamResponse {
    pub response: Response<Incoming>,
    pub lent: PooledConnection,
    pub judged: HeadVerdict,
    pub head: At,
    /// Frames buffered before the decision to forward the response, with their arrival times.
    pub held: VecDeque<(At, Bytes)>,
}

impl UpstreamResponse {
    pub fn new(
        response: Response<Incoming>,
        lent: PooledConnection,
        by: ResponseKind,
        clock: Clock,
    ) -> UpstreamResponse {
        let now = clock.now();
        let is_empty = response.body().is_end_stream();
        let judged = HeadVerdict::of((response.status(), response.headers()), (by, is_empty), now, clock);
        UpstreamResponse { response, lent, judged, head: now, held: VecDeque::new() }
    }

    /// Returns whether the response is a stream of this protocol.
    pub fn is_stream(&self, protocol: Protocol) -> bool {
        passing::is_stream(protocol, self.response.headers())
    }
}

impl Worker {
    /// Routes and sends a request until it has a response.
    pub(super) async fn serve(&self, call: &mut RequestContext) -> Response<ReplyBody> {
        self.pool.came();
        if !self.pool.may_send(|| call.hash()) {
            return failed(call, "request_breaks_replicas", BREAKS);
        }
        let mut tried: Vec<u32> = Vec::new();
        let mut kept: Option<DeferredResponse> = None;
        // The replica whose rejection is checked on another replica.
        let mut doubted = None;
        // Counts attempts that reached a replica. The others cost the request nothing and are not retries.
        let mut sent = 0;
        loop {
            let booked = match self.at_once(call, &tried) {
                Some(booked) => booked,
                None => {
                    if let Some(kept) = kept {
                        return self.instead(call, kept);
                    }
                    if sent > 0 {
                        let why = "No further replica could take the request after one broke off.";
                        return failed(call, "replica_failed", why);
                    }
                    tried.clear();
                    match self.place(call).await {
                        Ok(booked) => booked,
                        Err(refusal) => return self.refuse(call, refusal),
                    }
                }
            };
            // A retry never returns to a model that was skipped.
            call.asked.tier = booked.tier();
            sent += 1;
            if sent > 1 {
                self.stats.retries.fetch_add(1, Ordering::Relaxed);
            }
            let (booked, answered) = self.send(call, booked, &mut tried).await;
            tried.push(booked.number());
            match answered {
                Ok(answer) => {
                    self.heard(call, &answer, &booked);
                    let end = answer.judged.end;
                    if let (Some(before), RequestEnd::Answered | RequestEnd::Refused) = (doubted.take(), end)
                    {
                        self.pool.compared(before, end == RequestEnd::Refused);
                    }
                    let is_doubted = answer.judged.verdict == ReplicaOutcome::Refused
                        && kept.is_none()
                        && self.pool.doubts(&call.asked, &booked);
                    let again = (answer.judged.again || is_doubted) && call.may_repeat();
                    let is_worse = matches!(end, RequestEnd::Failed | RequestEnd::Shed)
                        && kept.as_ref().is_some_and(|kept| kept.end == RequestEnd::Refused);
                    if !is_worse && (!again || !self.may_retry(sent)) {
                        self.pool.answered(|| call.hash());
                        return self.pass(call, answer, booked);
                    }
                    doubted = is_doubted.then_some(booked.number());
                    let fresh = self.keep(call, answer, booked).await;
                    call.record(|recording| recording.ends(TryEnd::Whole));
                    match (kept, is_worse) {
                        (Some(kept), true) => return self.instead(call, kept),
                        (before, _) => kept = fresh.or(before),
                    }
                }
                Err(unanswered) => {
                    self.broke(call, booked, &unanswered);
                    match unanswered {
                        UpstreamError::NotSent(_) => {
                            sent -= 1;
                            if sent > 0 {
                                self.stats.retries.fetch_sub(1, Ordering::Relaxed);
                            }
                        }
                        // The check found another replica and retry budget, so the loop continues.
                        UpstreamError::Lost if call.may_repeat() => {}
                        broken => {
                            let died = matches!(broken, UpstreamError::Died(_));
                            let may_break = self.pool.broke(call.hash(), died);
                            if may_break && call.may_repeat() && self.may_retry(sent) {
                                continue;
                            }
                            let why = format!("The replica broke off before it answered: {}.", broken.why());
                            return match kept {
                                Some(kept) => self.instead(call, kept),
                                None => failed(call, "replica_failed", &why),
                            };
                        }
                    }
                }
            }
        }
    }

    /// Sends a request to a replica, and hedges it if it is late. Returns the deciding replica and its response;
    /// others that failed are added to `tried`.
    async fn send(
        &self,
        call: &mut RequestContext,
        mut booked: ReplicaLease,
        tried: &mut Vec<u32>,
    ) -> (ReplicaLease, Result<UpstreamResponse, UpstreamError>) {
        let number = self.sends(call, &mut booked);
        let after = if self.may_hedge(call) { self.pool.hedge_after(&booked) } else { None };
        if let Some(after) = after {
            return self.race(call, (booked, number), after, tried).await;
        }
        let (of, by) = ((Arc::clone(booked.replica()), booked.number()), call.judged_by());
        let request = || self.request(call, &booked, number);
        let answered = tokio::select! {
            biased;
            answered = self.upstreams.send(booked.replica(), call.may_reuse(), request) => answered,
            () = self.until_lost(call, &of, tried) => Err(UpstreamError::Lost),
        };
        (booked, answered.map(|(response, lent)| UpstreamResponse::new(response, lent, by, self.pool.clock)))
    }

    /// Waits until a request without a response head should move. That is the case if its replica is gone, or if the
    /// replica is silent and this is the first attempt.
    pub(super) async fn until_lost(
        &self,
        call: &RequestContext,
        (replica, number): &(Arc<Replica>, u32),
        tried: &[u32],
    ) {
        loop {
            tokio::time::sleep_until(soon(LOOKS)).await;
            if !replica.is_lost() {
                continue;
            }
            let may_move = || {
                tried.is_empty()
                    && call.may_repeat()
                    && self.pool.has_other(&call.asked, *number)
                    && self.may_retry(1)
            };
            if self.pool.is_gone(*number) || may_move() {
                return;
            }
        }
    }

    /// Forwards the kept rejection, because no better response exists.
    fn instead(&self, call: &RequestContext, kept: DeferredResponse) -> Response<ReplyBody> {
        call.ends.end(kept.end);
        kept.response
    }

    /// Records the start of an attempt, and returns its number from 0.
    pub(crate) fn sends(&self, call: &mut RequestContext, booked: &mut ReplicaLease) -> usize {
        if let Some(choice) = booked.explained.take() {
            call.explain(*choice);
        }
        let number = call.sent;
        call.sent += 1;
        let model = self.pool.tiers.of(&call.asked, booked.tier()).map(|tier| tier.model.clone());
        call.record(|recording| recording.sends((booked.replica(), model), booked.sent(), number));
        number
    }

    /// Records the arrival of a response head.
    pub(super) fn heard(&self, call: &mut RequestContext, answer: &UpstreamResponse, booked: &ReplicaLease) {
        self.stats.took(RequestStage::Head, answer.head - booked.sent());
        let told = (answer.head, answer.response.status().as_u16(), answer.judged.retry_after());
        call.record(|recording| recording.head(told, answer.response.headers(), Some(answer.lent.way)));
    }

    /// Records an attempt without a response.
    pub(super) fn broke(&self, call: &mut RequestContext, booked: ReplicaLease, unanswered: &UpstreamError) {
        let replica = Arc::clone(booked.replica());
        match unanswered {
            // The replica is already ejected as silent; whether it fails is unknown.
            UpstreamError::Lost => drop(booked),
            _ => booked.end(ReplicaOutcome::Failed),
        }
        let end = match unanswered {
            UpstreamError::NotSent(why) => {
                self.pool.set_up(&replica, false);
                TryEnd::NotSent(why.clone())
            }
            UpstreamError::Died(why) => {
                self.pool.set_up(&replica, false);
                TryEnd::Broken(why.clone())
            }
            UpstreamError::Broken(_) | UpstreamError::Lost => TryEnd::Broken(unanswered.why().to_owned()),
        };
        call.record(|recording| recording.ends(end));
    }

    fn may_retry(&self, sent: u32) -> bool {
        let may = self.pool.may_retry(sent);
        if !may {
            self.stats.denied.fetch_add(1, Ordering::Relaxed);
        }
        may
    }

    /// Returns the request for a replica. It has the identical body, except for a renamed model, and another host.
    pub(super) fn request(
        &self,
        call: &RequestContext,
        booked: &ReplicaLease,
        number: usize,
    ) -> Request<Full<Bytes>> {
        let place = &booked.replica().place;
        let ForwardRequest { method, path, headers, body, .. } = &call.message;
        let TierRewrite { path: own_path, body: own_body } = self.renamed(call, booked.tier());
        let (path, is_repacked) = (own_path.as_ref().unwrap_or(path), own_body.is_some());
        let mut request = Request::new(Full::new(own_body.unwrap_or_else(|| body.clone())));
        *request.method_mut() = method.clone();
        *request.uri_mut() = match place.base.is_empty() {
            true => path.clone(),
            // Both paths are already validated, and their concatenation is valid.
            false => format!("{}{path}", place.base).parse().unwrap_or_else(|_| path.clone()),
        };
        *request.headers_mut() = headers.clone();
        if is_repacked {
            request.headers_mut().remove(CONTENT_ENCODING);
        }
        if let Ok(host) = HeaderValue::from_str(place.authority.as_str()) {
            request.headers_mut().insert(HOST, host);
        }
        call.context.iter().for_each(|context| context.write(number, request.headers_mut()));
        if let Some(bearer) = call.rules.bearer(&booked.replica().name) {
            request.headers_mut().insert(AUTHORIZATION, bearer.clone());
        }
        request
    }

    /// Returns the path or body with the model of the chosen tier. A renamed body is the decompressed text.
    pub(crate) fn renamed(&self, call: &RequestContext, tier: u32) -> TierRewrite {
        let Some(tier) = self.pool.tiers.of(&call.asked, tier) else { return TierRewrite::default() };
        match call.asked.is_model_in_path {
            true => TierRewrite { path: tier.named_in_path(&call.message.path, &call.asked), body: None },
            false if call.message.body.is_empty() => TierRewrite::default(),
            false => TierRewrite { path: None, body: Some(tier.named_in(&call.message.text, &call.asked)) },
        }
    }

    /// Books a replica, immediately or after queueing, for a request that another proxy sends.
    pub(crate) async fn book(&self, call: &mut RequestContext) -> Result<ReplicaLease, Refusal> {
        self.pool.came();
        let booked = match self.at_once(call, &[]) {
            Some(booked) => booked,
            None => self.place(call).await?,
        };
        call.asked.tier = booked.tier();
        Ok(booked)
    }

    /// Books a replica for a request that does not queue: a retry, or a request other than POST. The latter is no
    /// inference and must not wait behind any.
    fn at_once(&self, call: &mut RequestContext, tried: &[u32]) -> Option<ReplicaLease> {
        if tried.is_empty() && call.message.method == Method::POST {
            return None;
        }
        let began = self.pool.clock.now();
        let booked = self.pool.again(&call.asked, tried, call.explains(tried))?;
        self.routed(call, began);
        Some(booked)
    }

    /// Books a replica, immediately or after queueing.
    async fn place(&self, call: &mut RequestContext) -> Result<ReplicaLease, Refusal> {
        let began = self.pool.clock.now();
        let state = self.budget_state().unwrap_or_default();
        let explains = match call.explains(&[]) {
            true => ExplainMode::Always,
            false if call.recording.is_some() => ExplainMode::PassedOver,
            false => ExplainMode::Never,
        };
        let placing = self.pool.place(&call.asked, &call.terms, state, explains);
        self.routed(call, began);
        let waits = match placing {
            Placement::Booked(booked) => return Ok(booked),
            Placement::Refused(refusal) => return Err(refusal),
            Placement::Waits(waits) => waits,
        };
        let given = waits.wait().await;
        let held = self.pool.clock.now() - began;
        call.held += held;
        call.record(|recording| recording.note(|told| told.held += held));
        self.stats.took(RequestStage::Queue, held);
        given
    }

    fn routed(&self, call: &mut RequestContext, began: At) {
        let routed = self.pool.clock.now() - began;
        self.stats.took(RequestStage::Route, routed);
        call.record(|recording| recording.note(|told| told.routed += routed));
    }

    pub(crate) fn refuse(&self, call: &mut RequestContext, refusal: Refusal) -> Response<ReplyBody> {
        call.refused = Some(refusal);
        self.pool.refused[call.terms.class][stats::reason(refusal)].fetch_add(1, Ordering::Relaxed);
        let (mut response, end) = terms::refused(refusal);
        call.ends.end(end);
        response.headers_mut().insert(QUEUE_MS, queue_ms(call));
        let status = response.status().as_u16();
        let held_back = matches!(refusal, Refusal::HeldBack(_));
        call.record(|recording| {
            recording.note(|told| (told.own_status, told.held_back) = (Some(status), held_back));
        });
        response
    }

    /// Forwards a response as it arrives.
    fn pass(
        &self,
        call: &mut RequestContext,
        answer: UpstreamResponse,
        booked: ReplicaLease,
    ) -> Response<ReplyBody> {
        let protocol = passing::protocol(call.message.path.path());
        let stream = Some(protocol).filter(|protocol| answer.is_stream(*protocol));
        let UpstreamResponse { response, lent, judged, head, held } = answer;
        let (mut parts, body) = response.into_parts();
        self.mark(call, &mut parts.headers, &booked);
        let keep_alive = Duration::from_secs_f64(call.rules.limits.keep_alive_s);
        // Rejected and failed requests are not charged.
        let toll = call.toll.take_if(|_| matches!(judged.end, RequestEnd::Answered | RequestEnd::Refused));
        let recording = call.recording.take();
        let ends = Arc::clone(&call.ends);
        let made = call
            .makes_object()
            .then(|| MadeObject::new(&parts.headers, passing::has_events(protocol, &parts.headers)));
        let begun = StartedResponse { came: call.came, head, booked, judged, toll, recording, ends, made };
        let relayed = RelayInput { begun, held, lent, keep_alive };
        let relay = Relay::new(body, relayed, stream, Arc::clone(&self.stats), self.pool.clock);
        Response::from_parts(parts, ReplyBody::Relayed(Box::new(relay)))
    }

    /// Reads a complete rejection, so that it can be forwarded if no other replica does better.
    async fn keep(
        &self,
        call: &RequestContext,
        answer: UpstreamResponse,
        booked: ReplicaLease,
    ) -> Option<DeferredResponse> {
        let UpstreamResponse { response, lent, judged, held, .. } = answer;
        let (mut parts, body) = response.into_parts();
        self.mark(call, &mut parts.headers, &booked);
        let reading = Limited::new(body, MOST_KEPT).collect();
        let read = tokio::time::timeout_at(soon(KEPT_WITHIN), reading).await;
        booked.end(judged.verdict);
        let rest = read.ok()?.ok()?.to_bytes();
        lent.give_back();
        let body: Bytes = match held.is_empty() {
            true => rest,
            false => held.iter().flat_map(|(_, data)| data).chain(&rest).copied().collect(),
        };
        Some(DeferredResponse {
            response: Response::from_parts(parts, ReplyBody::Own(Full::new(body))),
            end: judged.end,
        })
    }

    /// Sets the gateway's response headers.
    pub(crate) fn mark(&self, call: &RequestContext, headers: &mut HeaderMap, booked: &ReplicaLease) {
        for_next_hop(headers);
        headers.insert(REPLICA, booked.replica().header.clone());
        call.why.iter().for_each(|why| {
            headers.insert(EXPLAIN, why.clone());
        });
        if let Some(tier) = self.pool.tiers.of(&call.asked, booked.tier()) {
            headers.insert(MODEL, tier.header.clone());
        }
        headers.insert(QUEUE_MS, queue_ms(call));
        headers.insert(REQUEST_ID, call.id.clone());
    }
}

/// Error text for a request that crashed two replicas.
const BREAKS: &str =
    "Two replicas broke off at this request. It is not sent to a third for up to ten minutes; change it.";

/// The parts of a request that change for its replica; `None` if unchanged.
#[derive(Default)]
pub(crate) struct TierRewrite {
    pub path: Option<Uri>,
    pub body: Option<Bytes>,
}

fn failed(call: &RequestContext, code: &str, why: &str) -> Response<ReplyBody> {
    call.ends.end(RequestEnd::Failed);
    reply::error(StatusCode::BAD_GATEWAY, code, why, None)
}

fn queue_ms(call: &RequestContext) -> HeaderValue {
    HeaderValue::from((call.held.0 / 1_000_000).max(0))
}
