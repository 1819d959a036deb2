//! The state of one request, which all phases of [`serve_request`](super::serve_request) share.

use std::sync::Arc;

use bytes::Bytes;
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Method, Uri};
use plimsoll_model::{Arm, At, Span};
use plimsoll_policy::AdmissionParams;

use super::Worker;
use super::retry::DeferredResponse;
use crate::active_config::ActiveConfig;
use crate::auth::{ActiveKey, RateCharge};
use crate::cache::{Cache, CacheKey};
use crate::explain::RouteExplanation;
use crate::head_verdict::{HeadVerdict, ResponseKind};
use crate::owners::MadeObject;
use crate::pool::ReplicaLease;
use crate::request::{self, ParsedRequest, target};
use crate::response_observer::{self, StartedResponse};
use crate::stats::{EndCounter, RequestEnd};
use crate::trace_context::TraceContext;
use crate::traffic::{RequestRecord, head_bytes};

/// A request without the parts that depend on its replica.
#[derive(Clone)]
pub(crate) struct ForwardRequest {
    pub method: Method,
    pub path: Uri,
    pub headers: HeaderMap,
    /// Body as received; empty until the admission has read it.
    pub body: Bytes,
    /// Decompressed body.
    pub text: Bytes,
}

pub(crate) struct RequestContext {
    pub rules: Arc<ActiveConfig>,
    pub arrived: At,
    pub id: HeaderValue,
    pub request: ForwardRequest,
    /// Counter of the outcome, which passes to the relay with the response.
    pub end: EndCounter,
    pub record: Option<RequestRecord>,
    // Set by the admission.
    /// API key of the request until it is charged; `None` if all clients are accepted.
    pub key: Option<Arc<ActiveKey>>,
    pub parsed: ParsedRequest,
    pub terms: AdmissionParams,
    pub charge: Option<RateCharge>,
    /// Hash of the session or of the request id. It decides the side of a traffic split.
    pub split: u64,
    pub trace: Option<TraceContext>,
    /// Set if the client requests a routing explanation and may get one.
    pub wants_explanation: bool,
    // Set by routing and sending.
    /// Routing explanation for the response header.
    pub explanation: Option<HeaderValue>,
    pub queue_time: Span,
    pub attempts: usize,
    /// Number of attempts that reached a replica. The others cost the request nothing and are not retries.
    pub reached: u32,
    /// Replicas of earlier attempts.
    pub tried: Vec<u32>,
    /// Rejection of an earlier attempt, forwarded if no other replica does better.
    pub deferred: Option<DeferredResponse>,
    /// Replica whose rejection is checked on another replica.
    pub doubted: Option<u32>,
}

impl RequestContext {
    /// Returns the context of a request whose head arrived at `arrived`.
    pub fn new(worker: &Worker, arrived: At, parts: Parts) -> RequestContext {
        let Parts { method, uri: path, headers, .. } = parts;
        let id = worker.id(&headers);
        let request = ForwardRequest { method, path, headers, body: Bytes::new(), text: Bytes::new() };
        RequestContext::of(worker, arrived, id, request)
    }

    fn of(worker: &Worker, arrived: At, id: HeaderValue, request: ForwardRequest) -> RequestContext {
        // Requests without work, such as GET /v1/models, are not recorded.
        let recorder = worker.traffic.as_ref().filter(|_| request.method == Method::POST);
        RequestContext {
            rules: worker.rules.now(),
            arrived,
            id,
            request,
            end: EndCounter::new(&worker.stats),
            record: recorder.map(|recorder| RequestRecord::begin(recorder, worker.pool.clock, arrived)),
            key: None,
            parsed: ParsedRequest::default(),
            terms: AdmissionParams { class: 0, tenant: 0, came: arrived, slo: None, bytes: 0 },
            charge: None,
            split: 0,
            trace: None,
            wants_explanation: false,
            explanation: None,
            queue_time: Span::ZERO,
            attempts: 0,
            reached: 0,
            tried: Vec::new(),
            deferred: None,
            doubted: None,
        }
    }

    /// Returns a copy for a shadow. It starts `now`, is not charged and has no latency objective. Shadows have no sides.
    pub fn copy(&self, shadow: &Worker, now: At) -> RequestContext {
        let mut copy = RequestContext {
            rules: Arc::clone(&self.rules),
            parsed: ParsedRequest { arm: Arm::Base, among: None, ..self.parsed.clone() },
            terms: AdmissionParams { slo: None, ..self.terms },
            ..RequestContext::of(shadow, now, self.id.clone(), self.request.clone())
        };
        copy.record_request(now);
        copy
    }

    fn path(&self) -> &str {
        self.request.path.path()
    }

    /// Returns the cache and the key of a cacheable request.
    pub fn cache_key(&self) -> Option<(Arc<Cache>, CacheKey)> {
        let ForwardRequest { method, path, headers, text, .. } = &self.request;
        let cache =
            self.rules.cache.as_ref().filter(|_| *method == Method::POST && !self.wants_explanation)?;
        // A query may select another result.
        let path = path.query().is_none().then(|| path.path())?;
        let key = cache.key(path, headers, text, self.terms.tenant)?;
        Some((Arc::clone(cache), key))
    }

    /// Returns the rules for evaluating the response.
    pub fn response_kind(&self) -> ResponseKind {
        ResponseKind::of(&self.request.method, self.path())
    }

    /// Returns whether the request may be resent after a replica has received it. See [`request::may_repeat`].
    pub fn may_repeat(&self) -> bool {
        request::may_repeat(&self.request.method, self.path())
    }

    /// Returns whether the request may be resent to the same replica if a pooled connection turns out to be closed.
    pub fn may_reuse(&self) -> bool {
        self.may_repeat() || self.request.method.is_idempotent()
    }

    /// Returns a hash of path and body, which is equal for a client's own retry.
    pub fn hash(&self) -> u64 {
        request::hash(self.path().as_bytes()) ^ request::hash(&self.request.body).rotate_left(1)
    }

    /// Returns whether the response may name an object that its replica stores.
    fn makes_object(&self) -> bool {
        self.request.method == Method::POST && target::makes_object(self.path())
    }

    /// Returns whether the routing decision is explained. Retries always are, because they are rare and often
    /// investigated.
    pub fn explains(&self, is_retry: bool) -> bool {
        self.wants_explanation || self.record.as_ref().is_some_and(|record| is_retry || record.explains())
    }

    pub fn explain(&mut self, choice: RouteExplanation) {
        if self.wants_explanation {
            let text = serde_json::to_string(&choice).ok();
            self.explanation = text.and_then(|text| HeaderValue::try_from(text).ok());
        }
        if let Some(record) = &mut self.record {
            record.because(&self.id, choice);
        }
    }

    /// Records the data of the parsed request.
    pub fn record_request(&mut self, now: At) {
        let Some(record) = &mut self.record else { return };
        record.note(|row| {
            row.read = now - self.arrived;
            row.class = self.terms.class as u16;
            row.context = self.trace;
            row.protocol = response_observer::protocol(self.request.path.path());
            row.asked = self.parsed.clone();
            row.bytes = self.request.body.len() as u64 + head_bytes(&self.request.headers);
        });
    }

    pub fn record(&mut self, note: impl FnOnce(&mut RequestRecord)) {
        if let Some(record) = &mut self.record {
            note(record);
        }
    }

    /// Returns the accounting of a response whose head arrived at `head`. It takes over the charge, the record and the
    /// outcome counter.
    pub fn start_response(
        &mut self,
        head: At,
        lease: ReplicaLease,
        verdict: HeadVerdict,
        headers: &HeaderMap,
    ) -> StartedResponse {
        // Rejected and failed requests are not charged.
        if !matches!(verdict.end, RequestEnd::Answered | RequestEnd::Refused) {
            self.refund();
        }
        let has_events = response_observer::has_events(response_observer::protocol(self.path()), headers);
        StartedResponse {
            arrived: self.arrived,
            head,
            lease,
            verdict,
            charge: self.charge.take(),
            record: self.record.take(),
            end: self.end.take(),
            made: self.makes_object().then(|| MadeObject::new(headers, has_events)),
        }
    }

    /// Refunds the charge, because no replica served the request.
    pub fn refund(&mut self) {
        self.charge.take().into_iter().for_each(RateCharge::waive);
    }
}
