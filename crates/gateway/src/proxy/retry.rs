//! Evaluation of attempts: relay the response, retry on another replica, or reply with an error.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use http::header::{AUTHORIZATION, CONTENT_ENCODING, HOST};
use http::{HeaderValue, Request, Response, StatusCode};
use http_body::Body as _;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use plimsoll_client::Clock;
use plimsoll_model::{At, Protocol, Span};
use plimsoll_policy::ReplicaOutcome;

use super::context::{ForwardRequest, RequestContext};
use super::worker::{TierRewrite, Worker};
use crate::head_verdict::{HeadVerdict, ResponseKind};
use crate::pool::ReplicaLease;
use crate::replica::Replica;
use crate::reply::{self, ReplyBody};
use crate::response_observer;
use crate::stats::{RequestEnd, RequestStage};
use crate::timer::soon;
use crate::traffic::TryEnd;
use crate::upstream::{PooledConnection, UpstreamError};

/// Limits in bytes and time on a rejection that is kept during a retry.
const MOST_KEPT: usize = 64 << 10;
const KEPT_WITHIN: Span = Span::from_secs(1);
/// Interval of the check whether the replica of a waiting request is lost.
const LOOKS: Span = Span::from_millis(250);

/// Error text for a request that crashed two replicas.
pub(super) const BREAKS: &str = "Two replicas broke off at this request. The gateway blocks this request for up to ten minutes; change it.";

/// A rejection that is kept during a retry on another replica.
pub(crate) struct DeferredResponse {
    response: Response<ReplyBody>,
    end: RequestEnd,
}

impl DeferredResponse {
    /// Counts the rejection and returns it, because no better response exists.
    pub fn reply(self, context: &mut RequestContext) -> Response<ReplyBody> {
        context.refund();
        context.end.count(self.end);
        self.response
    }
}

/// A response whose head has arrived.
pub(super) struct UpstreamResponse {
    pub response: Response<Incoming>,
    pub connection: PooledConnection,
    pub verdict: HeadVerdict,
    pub head: At,
    /// Frames buffered before the decision to forward the response, with their arrival times.
    pub frames: VecDeque<(At, Bytes)>,
}

impl UpstreamResponse {
    pub fn new(
        response: Response<Incoming>,
        connection: PooledConnection,
        kind: ResponseKind,
        clock: Clock,
    ) -> UpstreamResponse {
        let now = clock.now();
        let is_empty = response.body().is_end_stream();
        let verdict = HeadVerdict::of((response.status(), response.headers()), (kind, is_empty), now, clock);
        UpstreamResponse { response, connection, verdict, head: now, frames: VecDeque::new() }
    }

    /// Returns whether the response is a stream of this protocol.
    pub fn is_stream(&self, protocol: Protocol) -> bool {
        response_observer::is_stream(protocol, self.response.headers())
    }
}

#[expect(
    clippy::large_enum_variant,
    reason = "one short-lived value for each request; a box would allocate for each"
)]
pub(super) enum NextStep {
    Relay(UpstreamResponse, ReplicaLease),
    Retry,
    Reply(Response<ReplyBody>),
}

/// Counts a failed request and returns its response.
pub(super) fn failed(context: &mut RequestContext, code: &str, why: &str) -> Response<ReplyBody> {
    context.refund();
    context.end.count(RequestEnd::Failed);
    reply::error(StatusCode::BAD_GATEWAY, code, why, None)
}

impl Worker {
    /// Evaluates an attempt and decides on the next step.
    pub(super) async fn evaluate(
        &self,
        context: &mut RequestContext,
        lease: ReplicaLease,
        result: Result<UpstreamResponse, UpstreamError>,
    ) -> NextStep {
        context.tried.push(lease.number());
        let response = match result {
            Ok(response) => response,
            Err(error) => return self.evaluate_error(context, lease, error),
        };
        self.record_head(context, &response, &lease);
        let end = response.verdict.end;
        if let (Some(doubted), RequestEnd::Answered | RequestEnd::Refused) = (context.doubted.take(), end) {
            self.pool.compared(doubted, end == RequestEnd::Refused);
        }
        let is_doubted = response.verdict.verdict == ReplicaOutcome::Refused
            && context.deferred.is_none()
            && self.pool.doubts(&context.parsed, &lease);
        let again = (response.verdict.again || is_doubted) && context.may_repeat();
        let is_worse = matches!(end, RequestEnd::Failed | RequestEnd::Shed)
            && context.deferred.as_ref().is_some_and(|deferred| deferred.end == RequestEnd::Refused);
        if !is_worse && (!again || !self.may_retry(context.reached)) {
            self.pool.answered(|| context.hash());
            return NextStep::Relay(response, lease);
        }
        context.doubted = is_doubted.then_some(lease.number());
        let deferred = self.defer(context, response, lease).await;
        context.record(|record| record.ends(TryEnd::Whole));
        match context.deferred.take_if(|_| is_worse) {
            Some(before) => NextStep::Reply(before.reply(context)),
            None => {
                context.deferred = deferred.or(context.deferred.take());
                NextStep::Retry
            }
        }
    }

    /// Decides on the next step after an attempt without a response.
    fn evaluate_error(
        &self,
        context: &mut RequestContext,
        lease: ReplicaLease,
        error: UpstreamError,
    ) -> NextStep {
        self.record_failure(context, lease, &error);
        match error {
            UpstreamError::NotSent(_) => {
                context.reached -= 1;
                if context.reached > 0 {
                    self.stats.retries.fetch_sub(1, Ordering::Relaxed);
                }
                NextStep::Retry
            }
            // The check found another replica and retry budget, so the request is retried.
            UpstreamError::Lost if context.may_repeat() => NextStep::Retry,
            broken => {
                let died = matches!(broken, UpstreamError::Died(_));
                let may_break = self.pool.broke(context.hash(), died);
                if may_break && context.may_repeat() && self.may_retry(context.reached) {
                    return NextStep::Retry;
                }
                NextStep::Reply(match context.deferred.take() {
                    Some(deferred) => deferred.reply(context),
                    None => {
                        let why = format!("The replica broke off before it answered: {}.", broken.why());
                        failed(context, "replica_failed", &why)
                    }
                })
            }
        }
    }

    /// Reads a complete rejection, so that it can be forwarded if no other replica does better.
    async fn defer(
        &self,
        context: &RequestContext,
        response: UpstreamResponse,
        lease: ReplicaLease,
    ) -> Option<DeferredResponse> {
        let UpstreamResponse { response, connection, verdict, frames, .. } = response;
        let (mut parts, body) = response.into_parts();
        self.set_response_headers(context, &mut parts.headers, &lease);
        let reading = Limited::new(body, MOST_KEPT).collect();
        let read = tokio::time::timeout_at(soon(KEPT_WITHIN), reading).await;
        lease.end(verdict.verdict);
        let rest = read.ok()?.ok()?.to_bytes();
        connection.give_back();
        let body: Bytes = match frames.is_empty() {
            true => rest,
            false => frames.iter().flat_map(|(_, data)| data).chain(&rest).copied().collect(),
        };
        let response = Response::from_parts(parts, ReplyBody::Own(Full::new(body)));
        Some(DeferredResponse { response, end: verdict.end })
    }

    /// Waits until a request without a response head should move. That is the case if its replica was removed, or if the
    /// replica is silent and this is the first attempt.
    pub(super) async fn until_lost(&self, context: &RequestContext, (replica, number): &(Arc<Replica>, u32)) {
        loop {
            tokio::time::sleep_until(soon(LOOKS)).await;
            if !replica.is_lost() {
                continue;
            }
            let may_move = || {
                context.tried.is_empty()
                    && context.may_repeat()
                    && self.pool.has_other(&context.parsed, *number)
                    && self.may_retry(1)
            };
            if self.pool.is_gone(*number) || may_move() {
                return;
            }
        }
    }

    fn may_retry(&self, sent: u32) -> bool {
        let may = self.pool.may_retry(sent);
        if !may {
            self.stats.denied.fetch_add(1, Ordering::Relaxed);
        }
        may
    }

    /// Returns the request for a replica. It has the identical body, except for a renamed model, and another host.
    pub(super) fn upstream_request(
        &self,
        context: &RequestContext,
        lease: &ReplicaLease,
        number: usize,
    ) -> Request<Full<Bytes>> {
        let place = &lease.replica().place;
        let ForwardRequest { method, path, headers, body, .. } = &context.request;
        let TierRewrite { path: own_path, body: own_body } = self.rewrite(context, lease.tier());
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
        context.trace.iter().for_each(|trace| trace.write(number, request.headers_mut()));
        if let Some(bearer) = context.rules.bearer(&lease.replica().name) {
            request.headers_mut().insert(AUTHORIZATION, bearer.clone());
        }
        request
    }

    /// Records the start of an attempt, and returns its number from 0.
    pub(crate) fn record_send(&self, context: &mut RequestContext, lease: &mut ReplicaLease) -> usize {
        if let Some(choice) = lease.explained.take() {
            context.explain(*choice);
        }
        let number = context.attempts;
        context.attempts += 1;
        let model = self.pool.tiers.of(&context.parsed, lease.tier()).map(|tier| tier.model.clone());
        context.record(|record| record.sends((lease.replica(), model), lease.sent(), number));
        number
    }

    /// Records the arrival of a response head.
    pub(super) fn record_head(
        &self,
        context: &mut RequestContext,
        response: &UpstreamResponse,
        lease: &ReplicaLease,
    ) {
        self.stats.took(RequestStage::Head, response.head - lease.sent());
        let head = (response.head, response.response.status().as_u16(), response.verdict.retry_after());
        context.record(|record| {
            record.head(head, response.response.headers(), Some(response.connection.way));
        });
    }

    /// Records an attempt without a response.
    pub(super) fn record_failure(
        &self,
        context: &mut RequestContext,
        lease: ReplicaLease,
        error: &UpstreamError,
    ) {
        let replica = Arc::clone(lease.replica());
        match error {
            // The replica is already ejected as silent; whether it fails is unknown.
            UpstreamError::Lost => drop(lease),
            _ => lease.end(ReplicaOutcome::Failed),
        }
        let end = match error {
            UpstreamError::NotSent(why) => {
                self.pool.set_up(&replica, false);
                TryEnd::NotSent(why.clone())
            }
            UpstreamError::Died(why) => {
                self.pool.set_up(&replica, false);
                TryEnd::Broken(why.clone())
            }
            UpstreamError::Broken(_) | UpstreamError::Lost => TryEnd::Broken(error.why().to_owned()),
        };
        context.record(|record| record.ends(end));
    }
}
