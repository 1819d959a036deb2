//! Handling of one request: read, route and send ([`tries`], and [`race`] for hedging), and forward the response.

mod race;
mod tries;

use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::header::{
    ACCEPT_ENCODING, CONNECTION, CONTENT_LENGTH, EXPECT, HOST, TE, TRAILER, TRANSFER_ENCODING, UPGRADE,
    WWW_AUTHENTICATE,
};
use http::request::Parts;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode, Uri};
use http_body::Body as _;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::body::Incoming;
use plimsoll_math::rng::mix;
use plimsoll_model::{Arm, At, BudgetState, Span};
use plimsoll_policy::{AdmissionSpec, HedgeSpec, Refusal, Terms, split};
use tokio::sync::watch;

use crate::cache::{Cache, CacheKey};
use crate::cached;
use crate::doors::{self, ActiveKey, AuthError, RateCharge};
use crate::explain::RouteExplanation;
use crate::judged::ResponseKind;
use crate::passing;
use crate::paths::has_dot_segment;
use crate::pool::ReplicaPool;
use crate::reply::{self, ReplyBody};
use crate::request::packed::{self, UnpackError};
use crate::request::{self, ParsedRequest, PromptBlocks, target};
use crate::rules::{ActiveConfig, ConfigHandle};
use crate::spec::LimitSpec;
use crate::stats::{RequestEnd, RequestStage, Stats};
use crate::terms;
use crate::trace_context::TraceContext;
use crate::traffic::{RequestRecord, TrafficRecorder, head_bytes};
use crate::upstream::Upstreams;

pub(crate) use tries::TierRewrite;

pub(crate) const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
const SESSION: HeaderName = HeaderName::from_static("x-session-id");
pub(crate) const REPLICA: HeaderName = HeaderName::from_static("x-plimsoll-replica");
pub(crate) const QUEUE_MS: HeaderName = HeaderName::from_static("x-plimsoll-queue-ms");
pub(crate) const EXPLAIN: HeaderName = HeaderName::from_static("x-plimsoll-explain");
const KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");
const PROXY_CONNECTION: HeaderName = HeaderName::from_static("proxy-connection");
/// Hop-by-hop headers (RFC 9110, 7.6.1), and `Expect`, which the gateway has answered.
const OF_ONE_HOP: [HeaderName; 8] =
    [CONNECTION, KEEP_ALIVE, PROXY_CONNECTION, TE, TRAILER, TRANSFER_ENCODING, UPGRADE, EXPECT];

/// Path of the model list.
const MODELS: &str = "/v1/models";

/// Limit in bytes on a compressed body that is decompressed on the serving thread. A larger one would delay the
/// thread's streams.
const UNPACKED_HERE: usize = 64 << 10;

/// The state that the requests of one thread share.
pub struct Worker {
    pub pool: Arc<ReplicaPool>,
    /// Connections of this thread to the replicas.
    pub upstreams: Rc<Upstreams>,
    pub stats: Arc<Stats>,
    pub rules: Arc<ConfigHandle>,
    pub admission: AdmissionSpec,
    /// Hedging settings; `None` if hedging is off.
    pub hedge: Option<HedgeSpec>,
    /// Counter of request numbers, shared by all threads.
    pub numbers: Arc<AtomicU64>,
    pub traffic: Option<Arc<TrafficRecorder>>,
    pub shadow: Option<ShadowTraffic>,
    pub traces: bool,
    /// Number of stop requests.
    pub stop: watch::Receiver<u8>,
    /// Number of fallback replicas that a picker names after the choice.
    pub fallbacks: usize,
}

/// Replicas that get copies of requests and whose responses are discarded.
pub struct ShadowTraffic {
    /// Worker of the shadows, with separate counters and connections.
    pub worker: Rc<Worker>,
    /// Share of sessions that is copied.
    pub share: f64,
}

/// A request without the parts that depend on its replica.
#[derive(Clone)]
pub(crate) struct ForwardRequest {
    pub method: Method,
    pub path: Uri,
    pub headers: HeaderMap,
    pub body: Bytes,
    pub text: Bytes,
}

/// A parsed request in progress.
pub(crate) struct RequestContext {
    pub rules: Arc<ActiveConfig>,
    pub came: At,
    pub id: HeaderValue,
    pub message: ForwardRequest,
    pub asked: ParsedRequest,
    /// Hash of the session or of the request id. It decides the side of a traffic split.
    split: u64,
    pub terms: Terms,
    pub context: Option<TraceContext>,
    /// Number of attempts.
    sent: usize,
    held: Span,
    pub toll: Option<RateCharge>,
    pub recording: Option<RequestRecord>,
    pub ends: Arc<Stats>,
    /// Reason why the gateway itself rejected the request.
    refused: Option<Refusal>,
    /// Set if the client requests a routing explanation and may get one.
    asks_why: bool,
    /// Routing explanation for the response header.
    why: Option<HeaderValue>,
}

impl RequestContext {
    /// Returns the cache and the key of a cacheable request.
    fn cached(&self) -> Option<(Arc<Cache>, CacheKey)> {
        let ForwardRequest { method, path, headers, text, .. } = &self.message;
        let cache = self.rules.cache.as_ref().filter(|_| *method == Method::POST && !self.asks_why)?;
        // A query may select another result.
        let path = path.query().is_none().then(|| path.path())?;
        let key = cache.key(path, headers, text, self.terms.tenant)?;
        Some((Arc::clone(cache), key))
    }

    /// Returns the rules for evaluating the response.
    pub(crate) fn judged_by(&self) -> ResponseKind {
        ResponseKind::of(&self.message.method, self.message.path.path())
    }

    /// Returns whether the request may be resent after a replica has received it. See [`request::may_repeat`].
    fn may_repeat(&self) -> bool {
        request::may_repeat(&self.message.method, self.message.path.path())
    }

    /// Returns whether the request may be resent to the same replica if a pooled connection turns out to be closed.
    fn may_reuse(&self) -> bool {
        self.may_repeat() || self.message.method.is_idempotent()
    }

    /// Returns a hash of path and body, which is equal for a client's own retry.
    fn hash(&self) -> u64 {
        let ForwardRequest { path, body, .. } = &self.message;
        request::hash(path.path().as_bytes()) ^ request::hash(body).rotate_left(1)
    }

    /// Returns whether the response may name an object that its replica stores.
    pub(crate) fn makes_object(&self) -> bool {
        self.message.method == Method::POST && target::makes_object(self.message.path.path())
    }

    /// Returns the recording with the data of the parsed request.
    pub fn begun(&mut self, mut recording: RequestRecord, now: At) -> RequestRecord {
        recording.note(|told| {
            told.read = now - self.came;
            told.class = self.terms.class as u16;
            told.context = self.context;
            told.protocol = passing::protocol(self.message.path.path());
            told.asked = self.asked.clone();
            told.bytes = self.message.body.len() as u64 + head_bytes(&self.message.headers);
        });
        recording
    }

    /// Returns whether the routing decision is explained. Retries always are, because they are rare and often
    /// investigated.
    fn explains(&self, tried: &[u32]) -> bool {
        self.asks_why
            || self.recording.as_ref().is_some_and(|recording| !tried.is_empty() || recording.explains())
    }

    fn explain(&mut self, choice: RouteExplanation) {
        if self.asks_why {
            self.why = serde_json::to_string(&choice).ok().and_then(|text| HeaderValue::try_from(text).ok());
        }
        if let Some(recording) = &mut self.recording {
            recording.because(&self.id, choice);
        }
    }

    /// Returns a copy of the request that is not charged. `ends` receives its outcome.
    fn copy(&self, ends: Arc<Stats>) -> RequestContext {
        RequestContext {
            rules: Arc::clone(&self.rules),
            came: self.came,
            id: self.id.clone(),
            message: self.message.clone(),
            asked: self.asked.clone(),
            split: self.split,
            terms: self.terms,
            context: None,
            sent: 0,
            held: Span::ZERO,
            toll: None,
            recording: None,
            ends,
            refused: None,
            asks_why: false,
            why: None,
        }
    }

    pub fn record(&mut self, note: impl FnOnce(&mut RequestRecord)) {
        if let Some(recording) = &mut self.recording {
            note(recording);
        }
    }
}

/// A request that was admitted by its head.
pub(crate) struct AuthenticatedRequest {
    pub rules: Arc<ActiveConfig>,
    /// API key of the request; `None` if all clients are accepted.
    key: Option<Arc<ActiveKey>>,
    came: At,
    id: HeaderValue,
    method: Method,
    path: Uri,
    headers: HeaderMap,
}

/// A rejected request with its response.
pub(crate) struct RejectedRequest {
    pub end: RequestEnd,
    pub response: Response<ReplyBody>,
}

/// Answers a request and counts its outcome exactly once.
pub async fn answer(worker: Rc<Worker>, request: Request<Incoming>) -> Response<ReplyBody> {
    let came = worker.pool.clock.now();
    let (parts, body) = request.into_parts();
    let id = worker.id(&parts.headers);
    let gone = CancelOnDrop::new(&worker);
    // Requests without work, such as GET /v1/models, are not recorded.
    let recorded = worker.traffic.as_ref().filter(|_| parts.method == Method::POST);
    let mut recording = recorded.map(|traffic| RequestRecord::begin(traffic, worker.pool.clock, came));
    let mut response = match worker.read(came, id.clone(), parts, body).await {
        Ok(mut call) => {
            call.recording = recording.map(|recording| call.begun(recording, worker.pool.clock.now()));
            match (call.cached(), worker.models(&call)) {
                (_, Some(page)) => {
                    worker.stats.end(RequestEnd::Answered);
                    gone.counted();
                    reply::json(page)
                }
                (Some((cache, key)), None) => cached::answer(&worker, call, (cache, key), gone).await,
                (None, None) => worker.answers(call, gone).await,
            }
        }
        Err(refused) => {
            worker.stats.end(refused.end);
            let status = refused.response.status().as_u16();
            recording.iter_mut().for_each(|recording| recording.note(|told| told.own_status = Some(status)));
            gone.counted();
            refused.response
        }
    };
    response.headers_mut().insert(REQUEST_ID, id);
    response
}

/// A guard that counts a request as cancelled if its client disconnects before a response.
pub(crate) struct CancelOnDrop {
    stats: Arc<Stats>,
    counted: bool,
}

impl CancelOnDrop {
    pub fn new(worker: &Worker) -> CancelOnDrop {
        CancelOnDrop { stats: Arc::clone(&worker.stats), counted: false }
    }

    /// Disarms the guard, because the request was counted elsewhere.
    pub fn counted(mut self) {
        self.counted = true;
    }
}

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        if !self.counted {
            self.stats.end(RequestEnd::Cancelled);
        }
    }
}

impl Worker {
    /// Returns the reason why the gateway is not ready, or `None` if it is ready.
    pub(crate) fn unready(&self) -> Option<&'static str> {
        let is_stopping = *self.stop.borrow() > 0;
        let stopping = is_stopping.then_some("the gateway stops");
        stopping.or_else(|| (!self.pool.any_usable()).then_some("no replica answers"))
    }

    /// Returns the client's request id, or a new one.
    pub(crate) fn id(&self, headers: &HeaderMap) -> HeaderValue {
        if let Some(own) = headers.get(REQUEST_ID).filter(|own| own.len() <= 128) {
            return own.clone();
        }
        let number = self.numbers.fetch_add(1, Ordering::Relaxed);
        let seed = self.pool.clock.anchor().realtime_ns as u64;
        let text = format!("{:016x}", mix(seed.wrapping_add(number)));
        HeaderValue::from_str(&text).unwrap_or(HeaderValue::from_static("0"))
    }

    /// Reads a complete request. Fails with an error response if it is invalid.
    async fn read(
        &self,
        came: At,
        id: HeaderValue,
        parts: Parts,
        body: Incoming,
    ) -> Result<RequestContext, Box<RejectedRequest>> {
        let entered = self.enter(came, id, parts)?;
        if asks_upgrade(&entered.headers) {
            let why = "This gateway does not upgrade connections, for WebSockets or others; use this API over plain HTTP.";
            return Err(unread(StatusCode::NOT_IMPLEMENTED, "no_upgrade", why));
        }
        let body = whole(&entered.rules.limits, body).await?;
        let text = unpacked(&entered, &body).await?;
        self.call(entered, (body, text), true)
    }

    /// Admits a request by its head. It runs before the body is read, because a rejected client must not occupy
    /// memory.
    pub(crate) fn enter(
        &self,
        came: At,
        id: HeaderValue,
        parts: Parts,
    ) -> Result<AuthenticatedRequest, Box<RejectedRequest>> {
        let rules = self.rules.now();
        let key = rules.doors.admit(&parts.headers).map_err(|shut| {
            let mut refused = unread(StatusCode::UNAUTHORIZED, "invalid_api_key", words(shut));
            refused.end = RequestEnd::Unauthorized;
            refused.response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            refused
        })?;
        if parts.method == Method::CONNECT {
            return Err(unread(StatusCode::METHOD_NOT_ALLOWED, "no_connect", "CONNECT is not served here."));
        }
        let path = parts.uri.path_and_query().map_or("/", |path| path.as_str());
        let Ok(path) = path.parse::<Uri>() else {
            return Err(unread(StatusCode::BAD_REQUEST, "bad_path", "The request's path can't be read."));
        };
        if has_dot_segment(path.path()) {
            let why =
                "The request's path has a dot segment, . or .., which may lead elsewhere; send it resolved.";
            return Err(unread(StatusCode::BAD_REQUEST, "bad_path", why));
        }
        if !rules.paths.has(path.path()) {
            let why = format!(
                "The path {} is not open to clients; the gateway's file opens further paths under paths:.",
                path.path()
            );
            return Err(unread(StatusCode::FORBIDDEN, "path_not_open", &why));
        }
        Ok(AuthenticatedRequest { rules, key, came, id, method: parts.method, path, headers: parts.headers })
    }

    /// Returns the call of an admitted request. The body is given as received and decompressed. `sees` is set if the
    /// response passes this gateway, so that its first token is visible.
    pub(crate) fn call(
        &self,
        entered: AuthenticatedRequest,
        (body, text): (Bytes, Bytes),
        sees: bool,
    ) -> Result<RequestContext, Box<RejectedRequest>> {
        let AuthenticatedRequest { rules, key, came, id, method, path, mut headers } = entered;
        let terms = terms::terms(&self.admission, &headers, key.as_deref(), came, body.len().max(text.len()));
        let terms = terms.map_err(|(code, why)| {
            let response = reply::error(StatusCode::BAD_REQUEST, code, &why, None);
            Box::new(RejectedRequest { end: RequestEnd::Bad, response })
        })?;
        for_next_hop(&mut headers);
        headers.remove(HOST);
        headers.remove(CONTENT_LENGTH);
        headers.insert(REQUEST_ID, id.clone());
        let asked_why = headers.remove(EXPLAIN).is_some_and(|value| value == "1");
        let asks_why = asked_why && rules.explain_header;
        let is_post = method == Method::POST;
        let mut asked = ParsedRequest::of((&method, path.path()), &headers, &text, self.cut());
        asked.streams &= sees;
        let tolled =
            key.map(|key| RateCharge::take(key, asked.prompt_tokens, asked.most_tokens, self.pool.clock));
        let toll = tolled.transpose().map_err(|wait| Box::new(over_limit(wait)))?;
        if toll.is_some() && !rules.forward_keys {
            doors::strip(&mut headers);
        }
        asked.session = headers.get(SESSION).map(|name| request::hash(name.as_bytes()));
        let split = asked.session.unwrap_or_else(|| request::hash(id.as_bytes()));
        if let Some(rollout) = &self.pool.rollout {
            asked.arm = split::arm(split, rollout.share());
        }
        if let Some((owner, arm)) = asked.object.and_then(|object| self.pool.owner(object)) {
            (asked.among, asked.arm) = (Some(vec![owner]), arm);
        }
        let context = (self.traces && is_post).then(|| {
            TraceContext::of(&mut headers, [request::hash(id.as_bytes()), self.pool.clock.now().0 as u64])
        });
        self.stats.took(RequestStage::Read, self.pool.clock.now() - came);
        Ok(RequestContext {
            rules,
            came,
            id,
            message: ForwardRequest { method, path, headers, body, text },
            asked,
            split,
            terms,
            context,
            sent: 0,
            held: Span::ZERO,
            toll,
            recording: None,
            ends: Arc::clone(&self.stats),
            refused: None,
            asks_why,
            why: None,
        })
    }

    /// Returns the extent to which prompts are cut into blocks.
    fn cut(&self) -> PromptBlocks {
        match (&self.traffic, self.pool.needs_blocks) {
            (Some(_), _) => PromptBlocks::Whole,
            (None, true) => PromptBlocks::Blocks,
            (None, false) => PromptBlocks::No,
        }
    }

    /// Returns the merged model list, or the entry of a name with a fallback list, if a replica alone cannot answer.
    pub(crate) fn models(&self, call: &RequestContext) -> Option<String> {
        let ForwardRequest { method, path, .. } = &call.message;
        match path.path().strip_prefix(MODELS).filter(|_| *method == Method::GET)? {
            "" => self.pool.models_page(),
            one => self.pool.tiers.entry(one.strip_prefix('/')?).map(ToString::to_string),
        }
    }

    /// Answers a request through a replica.
    pub(crate) async fn answers(&self, mut call: RequestContext, gone: CancelOnDrop) -> Response<ReplyBody> {
        self.mirror(&call);
        let response = self.serve(&mut call).await;
        // A forwarded response has already taken the charge.
        call.toll.take().into_iter().for_each(RateCharge::waive);
        gone.counted();
        response
    }

    /// Sends a copy to a shadow if the session is in the shadow share and the active SLO budget is green. The result
    /// is discarded.
    pub(crate) fn mirror(&self, call: &RequestContext) {
        let Some(shadow) = &self.shadow else { return };
        let is_green = self.budget_state().is_none_or(|state| state == BudgetState::Green);
        let is_one = split::arm(mix(call.split), shadow.share) == Arm::Canary;
        // A shadow does not store objects that another replica created.
        let goes_on = call.asked.object.is_some();
        if call.message.method != Method::POST || !is_green || !is_one || goes_on {
            return;
        }
        let worker = Rc::clone(&shadow.worker);
        let mut call = call.copy(Arc::clone(&worker.stats));
        // The copy has no latency objective, and shadows have no sides.
        (call.asked.arm, call.asked.among, call.terms.slo) = (Arm::Base, None, None);
        tokio::task::spawn_local(async move {
            let now = worker.pool.clock.now();
            let recording =
                worker.traffic.as_ref().map(|traffic| RequestRecord::begin(traffic, worker.pool.clock, now));
            call.came = now;
            call.recording = recording.map(|recording| call.begun(recording, now));
            let mut body = worker.serve(&mut call).await.into_body();
            // The response is read as by a client, and discarded.
            while let Some(Ok(_)) = body.frame().await {}
        });
    }

    /// Returns the state of the active SLO budget, or `None` without a budget.
    pub(crate) fn budget_state(&self) -> Option<BudgetState> {
        self.traffic.as_ref().and_then(|traffic| traffic.budget.state())
    }
}

/// Returns the rejection of a request that was not read completely.
fn unread(status: StatusCode, code: &str, message: &str) -> Box<RejectedRequest> {
    let mut response = reply::error(status, code, message, None);
    // The connection closes, because the unread body cannot be separated from the next request.
    response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    Box::new(RejectedRequest { end: RequestEnd::Bad, response })
}

/// Reads a complete body within the limits of time and size.
async fn whole(limits: &LimitSpec, body: Incoming) -> Result<Bytes, Box<RejectedRequest>> {
    let (stated, most) = (body.size_hint().lower(), limits.body_bytes);
    let too_large = |of: &str| {
        let why = format!("The request's body{of} is larger than {most} bytes.");
        unread(StatusCode::PAYLOAD_TOO_LARGE, "body_too_large", &why)
    };
    if stated > most as u64 {
        return Err(too_large(&format!(" of {stated} bytes")));
    }
    if body.is_end_stream() {
        return Ok(Bytes::new());
    }
    let reading = Limited::new(body, most).collect();
    match tokio::time::timeout(Duration::from_secs_f64(limits.body_s), reading).await {
        Ok(Ok(body)) => Ok(body.to_bytes()),
        Ok(Err(error)) if error.is::<LengthLimitError>() => Err(too_large("")),
        Ok(Err(_)) => {
            let why = "The request's body broke off or is not framed as HTTP says.";
            Err(unread(StatusCode::BAD_REQUEST, "broken_body", why))
        }
        Err(_) => {
            let why = format!("The request's body did not come within {} s.", limits.body_s);
            Err(unread(StatusCode::REQUEST_TIMEOUT, "slow_body", &why))
        }
    }
}

pub(crate) async fn unpacked(
    entered: &AuthenticatedRequest,
    body: &Bytes,
) -> Result<Bytes, Box<RejectedRequest>> {
    let most = entered.rules.limits.body_bytes;
    let text = match packed::is_packed(&entered.headers) && body.len() > UNPACKED_HERE {
        false => packed::unpacked(body, &entered.headers, most),
        true => {
            let (body, headers) = (body.clone(), entered.headers.clone());
            let unpacking = tokio::task::spawn_blocking(move || packed::unpacked(&body, &headers, most));
            unpacking.await.unwrap_or(Err(UnpackError::Broken))
        }
    };
    let refused = |status, code, why: &str| {
        let response = reply::error(status, code, why, None);
        Box::new(RejectedRequest { end: RequestEnd::Bad, response })
    };
    text.map_err(|error| match error {
        UnpackError::Unknown(coding) => {
            let why = format!(
                "The request's Content-Encoding {coding} is not read here; send it as it is, or as {}.",
                packed::READ
            );
            let mut refused = refused(StatusCode::UNSUPPORTED_MEDIA_TYPE, "unknown_encoding", &why);
            refused.response.headers_mut().insert(ACCEPT_ENCODING, HeaderValue::from_static(packed::READ));
            refused
        }
        UnpackError::Broken => {
            let why = "The request's body is not what its Content-Encoding states.";
            refused(StatusCode::BAD_REQUEST, "broken_encoding", why)
        }
        UnpackError::TooLarge => {
            let why = format!("The request's body, unpacked, is larger than {most} bytes.");
            refused(StatusCode::PAYLOAD_TOO_LARGE, "body_too_large", &why)
        }
    })
}

/// Returns whether a request needs another protocol than HTTP, such as a WebSocket. An offer of HTTP/2 or TLS may be
/// declined (RFC 9110, 7.8).
fn asks_upgrade(headers: &HeaderMap) -> bool {
    let lines = headers.get_all(UPGRADE).iter().map(|line| line.to_str().unwrap_or("?"));
    lines.flat_map(|line| line.split(',')).map(|one| one.trim().to_ascii_lowercase()).any(|one| {
        let may_be_declined = ["", "h2", "h2c"].contains(&one.as_str());
        !may_be_declined && !one.starts_with("http/") && !one.starts_with("tls/")
    })
}

fn words(shut: AuthError) -> &'static str {
    match shut {
        AuthError::Missing => "No API key came: send it as Authorization: Bearer KEY.",
        AuthError::Unknown => "The API key is none of those that are let in here.",
    }
}

/// Returns the rejection of a request whose key is over its limit. The body was read, so the connection stays open.
fn over_limit(wait: Span) -> RejectedRequest {
    let seconds = wait.as_secs_f64().ceil().max(1.0) as u64;
    let why = format!("The API key is over its rate limit; try again in {seconds} s.");
    let response = reply::error(StatusCode::TOO_MANY_REQUESTS, "rate_limit_exceeded", &why, Some(seconds));
    RejectedRequest { end: RequestEnd::Limited, response }
}

/// Removes hop-by-hop headers, and the headers that `Connection` names. Chunked encoding overrides a length (RFC
/// 9112, 6.3).
fn for_next_hop(headers: &mut HeaderMap) {
    if headers.contains_key(TRANSFER_ENCODING) {
        headers.remove(CONTENT_LENGTH);
    }
    if let Some(named) = headers.get(CONNECTION).cloned() {
        let names = named.to_str().unwrap_or_default().split(',').map(str::trim);
        for name in names.filter_map(|name| HeaderName::try_from(name).ok()) {
            headers.remove(name);
        }
    }
    OF_ONE_HOP.iter().for_each(|name| {
        headers.remove(name);
    });
}
