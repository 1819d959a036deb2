//! Hedging: a second replica gets a request whose first token is late. The replica with the earlier first token
//! answers, and the other attempt is cancelled. `policy::hedge` decides when to hedge.
//!
//! Many servers send the response head long before the first token, and sent bytes cannot be withdrawn. A hedgeable
//! response is therefore buffered until its first token, at most for the permitted silence of a stream
//! (`limits.keep_alive_s`).

use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use http::Method;
use http_body_util::BodyExt;
use plimsoll_client::Clock;
use plimsoll_model::{BudgetState, Protocol, Span};
use plimsoll_wire::Decoder;
use tokio::time::{Instant, sleep_until, timeout_at};

use super::context::RequestContext;
use super::retry::UpstreamResponse;
use super::worker::Worker;
use crate::pool::ReplicaLease;
use crate::response_observer::{self, stream_type};
use crate::stats::RequestEnd;
use crate::timer::soon;
use crate::traffic::TryEnd;
use crate::upstream::UpstreamError;

/// Limit on the buffered bytes of a response: the first token is within the first few hundred bytes.
const MOST_HELD: usize = 64 << 10;
/// Limit on the buffering time if keep-alive comments are disabled.
const HELD_WITHIN: Duration = Duration::from_secs(15);

type ResponseFuture = Pin<Box<dyn Future<Output = Result<UpstreamResponse, UpstreamError>>>>;

/// An attempt that may still answer the request.
struct HedgeAttempt {
    lease: ReplicaLease,
    number: usize,
    clock: Clock,
    protocol: Protocol,
    sending: Option<ResponseFuture>,
    result: Option<Result<UpstreamResponse, UpstreamError>>,
    /// Decoder that searches for the first token.
    decoder: Decoder,
    /// Number of response bytes in the buffer.
    held: usize,
}

impl HedgeAttempt {
    /// Waits for the response head or a failure. The future is cancel-safe.
    async fn head(&mut self) {
        let Some(sending) = &mut self.sending else { return };
        let result = sending.await;
        self.sending = None;
        self.result = Some(result);
    }

    /// Waits for the first token or a failure. The future is cancel-safe.
    async fn first_token(&mut self) {
        self.head().await;
        let mut decoded = Vec::new();
        loop {
            let Some(Ok(answer)) = &mut self.result else { return };
            if !answer.is_stream(self.protocol) || !answers(answer) || self.held > MOST_HELD {
                return;
            }
            match answer.response.body_mut().frame().await {
                Some(Ok(frame)) => {
                    let Ok(data) = frame.into_data() else { return };
                    self.decoder.feed(&data, &mut decoded);
                    self.held += data.len();
                    answer.frames.push_back((self.clock.now(), data));
                }
                // Nothing was forwarded, so the request can be retried.
                Some(Err(error)) => self.result = Some(Err(UpstreamError::Broken(error.to_string()))),
                None => return,
            }
            if decoded.drain(..).any(|one| one.kind.is_token()) || self.decoder.is_stopped() {
                return;
            }
        }
    }

    /// Returns whether the attempt has a response that another replica could not improve.
    fn answers(&self) -> bool {
        matches!(&self.result, Some(Ok(answer)) if answers(answer))
    }

    fn has_head(&self) -> bool {
        self.sending.is_none()
    }

    /// Returns the booking and the response.
    fn end(self) -> (ReplicaLease, Result<UpstreamResponse, UpstreamError>) {
        let none = || Err(UpstreamError::Broken("no answer".to_owned()));
        (self.lease, self.result.unwrap_or_else(none))
    }
}

fn answers(answer: &UpstreamResponse) -> bool {
    matches!(answer.verdict.end, RequestEnd::Answered | RequestEnd::Refused)
}

impl Worker {
    /// Returns whether this request may be hedged.
    pub(super) fn may_hedge(&self, context: &RequestContext) -> bool {
        let path = context.request.path.path();
        let is_one = |paths: &[String]| paths.iter().any(|of| of == path);
        let is_stream = context.parsed.streams && context.request.method == Method::POST;
        is_stream && self.hedge.as_ref().is_some_and(|hedge| is_one(&hedge.paths))
    }

    fn lead(&self, context: &RequestContext, lease: ReplicaLease, number: usize) -> HedgeAttempt {
        let (upstreams, clock) = (Rc::clone(&self.upstreams), self.pool.clock);
        let (replica, request) =
            (Arc::clone(lease.replica()), self.upstream_request(context, &lease, number));
        let (kind, may_reuse) = (context.response_kind(), context.may_reuse());
        let sending = Box::pin(async move {
            let result = upstreams.send(&replica, may_reuse, || request.clone()).await;
            result.map(|(response, connection)| UpstreamResponse::new(response, connection, kind, clock))
        });
        let protocol = response_observer::protocol(context.request.path.path());
        let decoder = Decoder::new(protocol, true, 200, Some(stream_type(protocol)), false);
        HedgeAttempt {
            lease,
            number,
            clock,
            protocol,
            sending: Some(sending),
            result: None,
            decoder,
            held: 0,
        }
    }

    /// Sends a request and hedges it if it is late. Returns the booking and the response of the deciding replica.
    /// Another one that failed counts as tried.
    pub(super) async fn send_hedged(
        &self,
        context: &mut RequestContext,
        lease: ReplicaLease,
        number: usize,
        mut after: Span,
    ) -> (ReplicaLease, Result<UpstreamResponse, UpstreamError>) {
        let sent = lease.sent();
        let mut first = self.lead(context, lease, number);
        let limit = match Duration::from_secs_f64(context.rules.limits.keep_alive_s) {
            Duration::ZERO => HELD_WITHIN,
            limit => limit,
        };
        let most = Span(limit.as_nanos() as i64);
        let second = loop {
            let of = (Arc::clone(first.lease.replica()), first.lease.number());
            if after > most {
                tokio::select! {
                    biased;
                    () = first.head() => {}
                    () = self.until_lost(context, &of) => first.result = Some(Err(UpstreamError::Lost)),
                }
                return first.end();
            }
            let late = soon(sent + after - self.pool.clock.now());
            if timeout_at(late, first.first_token()).await.is_ok() {
                return first.end();
            }
            let state = self.budget_state().unwrap_or(BudgetState::Green);
            let explains = context.explains(true);
            match self.pool.hedge(&context.parsed, &first.lease, state, explains) {
                Ok(second) => break second,
                Err(why) => self.stats.withheld(why),
            }
            // The decision is repeated after twice the time, because the chance of a gain changes.
            after = after + after;
        };
        let mut second = second;
        let number = self.record_send(context, &mut second);
        let second = self.lead(context, second, number);
        self.decide(context, (first, second), Instant::now() + limit).await
    }

    /// Waits for the first token of either attempt.
    async fn decide(
        &self,
        context: &mut RequestContext,
        (mut first, mut second): (HedgeAttempt, HedgeAttempt),
        limit: Instant,
    ) -> (ReplicaLease, Result<UpstreamResponse, UpstreamError>) {
        let is_second = tokio::select! {
            biased;
            () = first.first_token() => false,
            () = second.first_token() => true,
            // A client may give up after a longer silence, so it gets the available response.
            () = sleep_until(limit) => match (second.has_head(), first.has_head()) {
                (true, _) => true,
                (false, true) => false,
                (false, false) => tokio::select! {
                    () = first.head() => false,
                    () = second.head() => true,
                },
            },
        };
        let (one, mut other) = if is_second { (second, first) } else { (first, second) };
        // The second replica wins if it answers, or if the first one failed.
        let won = is_second == one.answers();
        self.pool.hedge_ended(won, one.answers().then_some(&other.lease));
        self.stats.hedges[usize::from(!won)].fetch_add(1, Ordering::Relaxed);
        context.record(|recording| recording.turns_to(one.number));
        if !one.answers() {
            context.tried.push(one.lease.number());
            self.record_loser(context, one);
            context.record(|recording| recording.turns_to(other.number));
            other.head().await;
            return other.end();
        }
        context.record(|recording| {
            recording.turns_to(other.number);
            recording.ends(TryEnd::Superseded);
            recording.turns_to(one.number);
        });
        // The drop cancels the attempt: it closes the connection and releases the load.
        drop(other);
        one.end()
    }

    /// Records the failure of one attempt; the other one continues.
    fn record_loser(&self, context: &mut RequestContext, one: HedgeAttempt) {
        let (lease, result) = one.end();
        match result {
            Ok(answer) => {
                self.record_head(context, &answer, &lease);
                lease.end(answer.verdict.verdict);
                context.record(|recording| recording.ends(TryEnd::Whole));
            }
            Err(error) => self.record_failure(context, lease, &error),
        }
    }
}
