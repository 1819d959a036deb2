//! The path of a request through the gateway.
//!
//! ```text
//! receive   head: id, arrival time, recording
//! admit     key, path, body, prompt, admission terms, charge   ──► rejection
//!           cached or shared response (`cache_lookup`)               ──► client
//! route     replica from the pool, or the queue                ──► rejection   ◄─┐
//! send      request to the replica, hedged if late                               │
//!           evaluation of the response head                    ──► retry ────────┘
//! relay     frames to the client (`relay`)                     ──► client
//! account   outcome, charge, circuit breaker and record (`response_observer`)
//! ```
//!
//! [`serve_request`] and [`forward`] call the phases in this order. All phases share one [`RequestContext`]. Its
//! [`EndCounter`](crate::stats::EndCounter) counts the outcome once, also if the client disconnects.

mod admission;
mod context;
mod hedge;
mod retry;
mod worker;

use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response};
use hyper::body::Incoming;
use plimsoll_model::At;
use plimsoll_policy::Refusal;

use crate::cache_lookup;
use crate::explain::ExplainMode;
use crate::pool::{Placement, ReplicaLease};
use crate::relay::{Relay, RelayInput};
use crate::reply::{self, ReplyBody};
use crate::response_observer;
use crate::stats::{self, RequestEnd, RequestStage};
use crate::tiers::MODEL;
use crate::upstream::UpstreamError;
pub(crate) use admission::{RejectedRequest, authenticate};
pub(crate) use context::RequestContext;
use retry::{NextStep, UpstreamResponse};
pub(crate) use worker::TierRewrite;
pub use worker::{ShadowTraffic, Worker};

pub(crate) const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
pub(crate) const REPLICA: HeaderName = HeaderName::from_static("x-plimsoll-replica");
pub(crate) const QUEUE_MS: HeaderName = HeaderName::from_static("x-plimsoll-queue-ms");
pub(crate) const EXPLAIN: HeaderName = HeaderName::from_static("x-plimsoll-explain");

/// Serves a request: receive → admit → cached response, or [`forward`].
pub async fn serve_request(worker: Rc<Worker>, request: Request<Incoming>) -> Response<ReplyBody> {
    let arrived = worker.pool.clock.now();
    let (parts, body) = request.into_parts();
    let mut context = RequestContext::new(&worker, arrived, parts);
    let id = context.id.clone();
    let mut response = match admit(&worker, &mut context, body).await {
        Err(rejected) => worker.reject(&mut context, *rejected),
        Ok(()) => match (worker.models(&context), context.cache_key()) {
            (Some(page), _) => {
                context.end.count(RequestEnd::Answered);
                reply::json(page)
            }
            (None, Some((cache, key))) => cache_lookup::serve_cached(&worker, context, cache, key).await,
            (None, None) => forward(&worker, context).await,
        },
    };
    response.headers_mut().insert(REQUEST_ID, id);
    response
}

/// Admits a request, or rejects it with a response.
async fn admit(
    worker: &Worker,
    context: &mut RequestContext,
    body: Incoming,
) -> Result<(), Box<RejectedRequest>> {
    authenticate(context)?;
    admission::reject_upgrade(&context.request.headers)?;
    let body = admission::read_body(&context.rules.limits, body).await?;
    worker.parse(context, body, true).await
}

/// Serves an admitted request: route → send → relay, with retries while no part of a response was forwarded.
pub(crate) async fn forward(worker: &Rc<Worker>, mut context: RequestContext) -> Response<ReplyBody> {
    worker.mirror(&context);
    worker.pool.came();
    let context = &mut context;
    if !worker.pool.may_send(|| context.hash()) {
        return retry::failed(context, "request_breaks_replicas", retry::BREAKS);
    }
    loop {
        let lease = match worker.route(context).await {
            Ok(lease) => lease,
            Err(response) => return response,
        };
        let (lease, result) = worker.send(context, lease).await;
        match worker.evaluate(context, lease, result).await {
            NextStep::Relay(response, lease) => return worker.relay(context, response, lease),
            NextStep::Retry => {}
            NextStep::Reply(response) => return response,
        }
    }
}

impl Worker {
    /// Routes a request to a replica, immediately or after queueing. A retry does not queue. Fails with the response
    /// to the client.
    pub(crate) async fn route(
        &self,
        context: &mut RequestContext,
    ) -> Result<ReplicaLease, Response<ReplyBody>> {
        let lease = match self.book_immediately(context) {
            Some(lease) => lease,
            None => {
                if let Some(deferred) = context.deferred.take() {
                    return Err(deferred.reply(context));
                }
                if context.reached > 0 {
                    let why =
                        "A replica broke off, and no other replica could take the request. Retry later.";
                    return Err(retry::failed(context, "replica_failed", why));
                }
                context.tried.clear();
                self.place(context).await.map_err(|refusal| self.refuse(context, refusal))?
            }
        };
        // A retry never returns to a model that was skipped.
        context.parsed.tier = lease.tier();
        Ok(lease)
    }

    /// Books a replica for a request that does not queue: a retry, or a request other than POST. The latter is no
    /// inference and must not wait behind any.
    fn book_immediately(&self, context: &mut RequestContext) -> Option<ReplicaLease> {
        let is_retry = !context.tried.is_empty();
        if !is_retry && context.request.method == Method::POST {
            return None;
        }
        let began = self.pool.clock.now();
        let lease = self.pool.again(&context.parsed, &context.tried, context.explains(is_retry))?;
        self.record_routing(context, began);
        Some(lease)
    }

    /// Books a replica, immediately or after queueing.
    async fn place(&self, context: &mut RequestContext) -> Result<ReplicaLease, Refusal> {
        let began = self.pool.clock.now();
        let state = self.budget_state().unwrap_or_default();
        let explains = match context.explains(false) {
            true => ExplainMode::Always,
            false if context.record.is_some() => ExplainMode::PassedOver,
            false => ExplainMode::Never,
        };
        let placing = self.pool.place(&context.parsed, &context.terms, state, explains);
        self.record_routing(context, began);
        let wait = match placing {
            Placement::Booked(lease) => return Ok(lease),
            Placement::Refused(refusal) => return Err(refusal),
            Placement::Waits(wait) => wait,
        };
        let given = wait.wait().await;
        let waited = self.pool.clock.now() - began;
        context.queue_time += waited;
        context.record(|record| record.note(|row| row.held += waited));
        self.stats.took(RequestStage::Queue, waited);
        given
    }

    fn record_routing(&self, context: &mut RequestContext, began: At) {
        let routed = self.pool.clock.now() - began;
        self.stats.took(RequestStage::Route, routed);
        context.record(|record| record.note(|row| row.routed += routed));
    }

    /// Counts and records a request without a replica, and returns its response.
    fn refuse(&self, context: &mut RequestContext, refusal: Refusal) -> Response<ReplyBody> {
        self.pool.refused[context.terms.class][stats::reason(refusal)].fetch_add(1, Ordering::Relaxed);
        let (mut response, end) = reply::refused(refusal);
        context.end.count(end);
        context.refund();
        response.headers_mut().insert(QUEUE_MS, queue_ms(context));
        let status = response.status().as_u16();
        let held_back = matches!(refusal, Refusal::HeldBack(_));
        context.record(|record| {
            record.note(|row| (row.own_status, row.held_back) = (Some(status), held_back));
        });
        response
    }

    /// Sends a request to a replica, and hedges it if it is late. Returns the deciding replica and its response.
    async fn send(
        &self,
        context: &mut RequestContext,
        mut lease: ReplicaLease,
    ) -> (ReplicaLease, Result<UpstreamResponse, UpstreamError>) {
        context.reached += 1;
        if context.reached > 1 {
            self.stats.retries.fetch_add(1, Ordering::Relaxed);
        }
        let number = self.record_send(context, &mut lease);
        let late = if self.may_hedge(context) { self.pool.hedge_after(&lease) } else { None };
        if let Some(late) = late {
            return self.send_hedged(context, lease, number, late).await;
        }
        let replica = (Arc::clone(lease.replica()), lease.number());
        let request = || self.upstream_request(context, &lease, number);
        let result = tokio::select! {
            biased;
            result = self.upstreams.send(lease.replica(), context.may_reuse(), request) => result,
            () = self.until_lost(context, &replica) => Err(UpstreamError::Lost),
        };
        let kind = context.response_kind();
        let result = result
            .map(|(response, connection)| UpstreamResponse::new(response, connection, kind, self.pool.clock));
        (lease, result)
    }

    /// Relays a response as it arrives. The relay accounts for it: see [`response_observer::ResponseObserver`].
    fn relay(
        &self,
        context: &mut RequestContext,
        response: UpstreamResponse,
        lease: ReplicaLease,
    ) -> Response<ReplyBody> {
        let protocol = response_observer::protocol(context.request.path.path());
        let stream = Some(protocol).filter(|protocol| response.is_stream(*protocol));
        let UpstreamResponse { response, connection, verdict, head, frames } = response;
        let (mut parts, body) = response.into_parts();
        self.set_response_headers(context, &mut parts.headers, &lease);
        let keep_alive = Duration::from_secs_f64(context.rules.limits.keep_alive_s);
        let started = context.start_response(head, lease, verdict, &parts.headers);
        let input = RelayInput { started, frames, connection, keep_alive };
        let relay = Relay::new(body, input, stream, Arc::clone(&self.stats), self.pool.clock);
        Response::from_parts(parts, ReplyBody::Relayed(Box::new(relay)))
    }

    pub(crate) fn set_response_headers(
        &self,
        context: &RequestContext,
        headers: &mut HeaderMap,
        lease: &ReplicaLease,
    ) {
        admission::remove_hop_headers(headers);
        headers.insert(REPLICA, lease.replica().header.clone());
        context.explanation.iter().for_each(|why| {
            headers.insert(EXPLAIN, why.clone());
        });
        if let Some(tier) = self.pool.tiers.of(&context.parsed, lease.tier()) {
            headers.insert(MODEL, tier.header.clone());
        }
        headers.insert(QUEUE_MS, queue_ms(context));
        headers.insert(REQUEST_ID, context.id.clone());
    }
}

fn queue_ms(context: &RequestContext) -> HeaderValue {
    HeaderValue::from((context.queue_time.0 / 1_000_000).max(0))
}
