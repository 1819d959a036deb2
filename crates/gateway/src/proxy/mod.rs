//! One request: read whole, answered ([`tries`] and [`race`], where two replicas are at it), its answer passed on.

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
use crate::doors::{self, KeyInForce, Shut, Toll};
use crate::explain::Choice;
use crate::judged::JudgedBy;
use crate::passing;
use crate::paths::has_dot_segment;
use crate::pool::ReplicaPool;
use crate::reply::{self, Out};
use crate::request::packed::{self, UnpackError};
use crate::request::{self, ParsedRequest, PromptBlocks, target};
use crate::rules::{InForce, Rules};
use crate::spec::LimitSpec;
use crate::stats::{End, RequestStage, Stats};
use crate::terms;
use crate::trace_context::TraceContext;
use crate::traffic::{Recording, Traffic, head_bytes};
use crate::upstream::Upstreams;

pub(crate) use tries::Renamed;

pub(crate) const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
const SESSION: HeaderName = HeaderName::from_static("x-session-id");
pub(crate) const REPLICA: HeaderName = HeaderName::from_static("x-plimsoll-replica");
pub(crate) const QUEUE_MS: HeaderName = HeaderName::from_static("x-plimsoll-queue-ms");
pub(crate) const EXPLAIN: HeaderName = HeaderName::from_static("x-plimsoll-explain");
const KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");
const PROXY_CONNECTION: HeaderName = HeaderName::from_static("proxy-connection");
/// Headers that are for one connection only (RFC 9110, 7.6.1), and `Expect`, which was answered here.
const OF_ONE_HOP: [HeaderName; 8] =
    [CONNECTION, KEEP_ALIVE, PROXY_CONNECTION, TE, TRAILER, TRANSFER_ENCODING, UPGRADE, EXPECT];

/// Where a list of models is asked for.
const MODELS: &str = "/v1/models";

/// Bytes of a packed body that are unpacked on the thread that serves: a larger one would keep its streams waiting.
const UNPACKED_HERE: usize = 64 << 10;

/// What one thread's requests share.
pub struct Worker {
    pub pool: Arc<ReplicaPool>,
    /// This thread's connections to them.
    pub upstreams: Rc<Upstreams>,
    pub stats: Arc<Stats>,
    pub rules: Arc<InForce>,
    /// Who waits, and in what order.
    pub admission: AdmissionSpec,
    /// Which requests are sent to a second replica when they are late.
    pub hedge: Option<HedgeSpec>,
    /// The last request's number, of all threads.
    pub numbers: Arc<AtomicU64>,
    pub traffic: Option<Arc<Traffic>>,
    pub shadow: Option<Shadow>,
    pub traces: bool,
    /// How often a stop was asked for.
    pub stop: watch::Receiver<u8>,
    /// Replicas that a picker names behind the chosen one.
    pub fallbacks: usize,
}

/// Replicas whose answers nobody sees.
pub struct Shadow {
    /// Who serves them: the same way, with counts and connections of its own.
    pub worker: Rc<Worker>,
    /// The share of sessions of which copies are sent.
    pub share: f64,
}

/// A request as its replica gets it, but for what is the replica's own.
#[derive(Clone)]
pub(crate) struct Message {
    pub method: Method,
    pub path: Uri,
    pub headers: HeaderMap,
    pub body: Bytes,
    /// The body, unpacked where it came compressed.
    pub text: Bytes,
}

/// A request in hand.
pub(crate) struct Call {
    pub rules: Arc<Rules>,
    pub came: At,
    pub id: HeaderValue,
    pub message: Message,
    pub asked: ParsedRequest,
    /// What decides which side of a split it is on: its session's name, or its own number.
    split: u64,
    pub terms: Terms,
    pub context: Option<TraceContext>,
    /// Times that it was handed to a replica.
    sent: usize,
    held: Span,
    pub toll: Option<Toll>,
    pub recording: Option<Recording>,
    pub ends: Arc<Stats>,
    /// Why the gateway itself did not send it.
    refused: Option<Refusal>,
    /// Does its client ask why it went where it went, and may it?
    asks_why: bool,
    /// The answer to that.
    why: Option<HeaderValue>,
}

impl Call {
    /// Where its answer may be kept, and under what.
    fn cached(&self) -> Option<(Arc<Cache>, CacheKey)> {
        let Message { method, path, headers, text, .. } = &self.message;
        let cache = self.rules.cache.as_ref().filter(|_| *method == Method::POST && !self.asks_why)?;
        // A query may ask for something else.
        let path = path.query().is_none().then(|| path.path())?;
        let key = cache.key(path, headers, text, self.terms.tenant)?;
        Some((Arc::clone(cache), key))
    }

    /// How its answer is judged.
    pub(crate) fn judged_by(&self) -> JudgedBy {
        JudgedBy::of(&self.message.method, self.message.path.path())
    }

    /// May it be sent again after a replica has got it? See [`request::may_repeat`].
    fn may_repeat(&self) -> bool {
        request::may_repeat(&self.message.method, self.message.path.path())
    }

    /// May it be sent again to the same replica, where a kept connection turns out to be closed?
    fn may_reuse(&self) -> bool {
        self.may_repeat() || self.message.method.is_idempotent()
    }

    /// What it asks, by a hash: equal for a client's own second try.
    fn hash(&self) -> u64 {
        let Message { path, body, .. } = &self.message;
        request::hash(path.path().as_bytes()) ^ request::hash(body).rotate_left(1)
    }

    /// Returns whether its answer may name an object that its replica keeps.
    pub(crate) fn makes_object(&self) -> bool {
        self.message.method == Method::POST && target::makes_object(self.message.path.path())
    }

    /// Its recording, with what was read of it.
    pub fn begun(&mut self, mut recording: Recording, now: At) -> Recording {
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

    /// Is it to be told why it goes where it goes? Of a second try always: it is rare, and what is asked about.
    fn explains(&self, tried: &[u32]) -> bool {
        self.asks_why
            || self.recording.as_ref().is_some_and(|recording| !tried.is_empty() || recording.explains())
    }

    fn explain(&mut self, choice: Choice) {
        if self.asks_why {
            self.why = serde_json::to_string(&choice).ok().and_then(|text| HeaderValue::try_from(text).ok());
        }
        if let Some(recording) = &mut self.recording {
            recording.because(&self.id, choice);
        }
    }

    /// The same again, which is charged to nobody. `ends`: who hears how it ends.
    fn copy(&self, ends: Arc<Stats>) -> Call {
        Call {
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

    pub fn record(&mut self, note: impl FnOnce(&mut Recording)) {
        if let Some(recording) = &mut self.recording {
            note(recording);
        }
    }
}

/// A request that was let in by its head.
pub(crate) struct Entered {
    pub rules: Arc<Rules>,
    /// Whose key it came with, where keys are asked for.
    key: Option<Arc<KeyInForce>>,
    came: At,
    id: HeaderValue,
    method: Method,
    path: Uri,
    headers: HeaderMap,
}

/// A request that goes nowhere.
pub(crate) struct Refused {
    pub end: End,
    pub response: Response<Out>,
}

/// Answers a request. However it ends, it is counted once.
pub async fn answer(worker: Rc<Worker>, request: Request<Incoming>) -> Response<Out> {
    let came = worker.pool.clock.now();
    let (parts, body) = request.into_parts();
    let id = worker.id(&parts.headers);
    let gone = Gone::new(&worker);
    // What only looks (GET /v1/models) is no load.
    let recorded = worker.traffic.as_ref().filter(|_| parts.method == Method::POST);
    let mut recording = recorded.map(|traffic| Recording::begin(traffic, worker.pool.clock, came));
    let mut response = match worker.read(came, id.clone(), parts, body).await {
        Ok(mut call) => {
            call.recording = recording.map(|recording| call.begun(recording, worker.pool.clock.now()));
            match (call.cached(), worker.models(&call)) {
                (_, Some(page)) => {
                    worker.stats.end(End::Answered);
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

/// Counts a request whose client went away before there was an answer.
pub(crate) struct Gone {
    stats: Arc<Stats>,
    counted: bool,
}

impl Gone {
    pub fn new(worker: &Worker) -> Gone {
        Gone { stats: Arc::clone(&worker.stats), counted: false }
    }

    /// It was, elsewhere.
    pub fn counted(mut self) {
        self.counted = true;
    }
}

impl Drop for Gone {
    fn drop(&mut self) {
        if !self.counted {
            self.stats.end(End::Cancelled);
        }
    }
}

impl Worker {
    /// Why no further requests should be sent here; `None` = they may.
    pub(crate) fn unready(&self) -> Option<&'static str> {
        let is_stopping = *self.stop.borrow() > 0;
        let stopping = is_stopping.then_some("the gateway stops");
        stopping.or_else(|| (!self.pool.any_usable()).then_some("no replica answers"))
    }

    /// The client's own id for its request, or a new one.
    pub(crate) fn id(&self, headers: &HeaderMap) -> HeaderValue {
        if let Some(own) = headers.get(REQUEST_ID).filter(|own| own.len() <= 128) {
            return own.clone();
        }
        let number = self.numbers.fetch_add(1, Ordering::Relaxed);
        let seed = self.pool.clock.anchor().realtime_ns as u64;
        let text = format!("{:016x}", mix(seed.wrapping_add(number)));
        HeaderValue::from_str(&text).unwrap_or(HeaderValue::from_static("0"))
    }

    /// Reads a request whole, or says what is wrong with it.
    async fn read(
        &self,
        came: At,
        id: HeaderValue,
        parts: Parts,
        body: Incoming,
    ) -> Result<Call, Box<Refused>> {
        let entered = self.enter(came, id, parts)?;
        if asks_upgrade(&entered.headers) {
            let why = "This gateway does not upgrade connections, for WebSockets or others; use this API over plain HTTP.";
            return Err(unread(StatusCode::NOT_IMPLEMENTED, "no_upgrade", why));
        }
        let body = whole(&entered.rules.limits, body).await?;
        let text = unpacked(&entered, &body).await?;
        self.call(entered, (body, text), true)
    }

    /// Lets a request in by its head, or says what is wrong with it. Before the body: who is not let in has nothing kept for him.
    pub(crate) fn enter(&self, came: At, id: HeaderValue, parts: Parts) -> Result<Entered, Box<Refused>> {
        let rules = self.rules.now();
        let key = rules.doors.admit(&parts.headers).map_err(|shut| {
            let mut refused = unread(StatusCode::UNAUTHORIZED, "invalid_api_key", words(shut));
            refused.end = End::Unauthorized;
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
        Ok(Entered { rules, key, came, id, method: parts.method, path, headers: parts.headers })
    }

    /// A request that was let in, with its body, as it came and unpacked. `sees`: whether its answer passes here, so that its first token is seen.
    pub(crate) fn call(
        &self,
        entered: Entered,
        (body, text): (Bytes, Bytes),
        sees: bool,
    ) -> Result<Call, Box<Refused>> {
        let Entered { rules, key, came, id, method, path, mut headers } = entered;
        let terms = terms::terms(&self.admission, &headers, key.as_deref(), came, body.len().max(text.len()));
        let terms = terms.map_err(|(code, why)| {
            let response = reply::error(StatusCode::BAD_REQUEST, code, &why, None);
            Box::new(Refused { end: End::Bad, response })
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
        let tolled = key.map(|key| Toll::take(key, asked.prompt_tokens, asked.most_tokens, self.pool.clock));
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
        Ok(Call {
            rules,
            came,
            id,
            message: Message { method, path, headers, body, text },
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

    /// How far prompts are cut into blocks.
    fn cut(&self) -> PromptBlocks {
        match (&self.traffic, self.pool.needs_blocks) {
            (Some(_), _) => PromptBlocks::Whole,
            (None, true) => PromptBlocks::Blocks,
            (None, false) => PromptBlocks::No,
        }
    }

    /// The list of all models, or what stands for several, where that is asked for and no replica has it.
    pub(crate) fn models(&self, call: &Call) -> Option<String> {
        let Message { method, path, .. } = &call.message;
        match path.path().strip_prefix(MODELS).filter(|_| *method == Method::GET)? {
            "" => self.pool.models_page(),
            one => self.pool.tiers.entry(one.strip_prefix('/')?).map(ToString::to_string),
        }
    }

    /// A replica's answer.
    pub(crate) async fn answers(&self, mut call: Call, gone: Gone) -> Response<Out> {
        self.mirror(&call);
        let response = self.serve(&mut call).await;
        // What a replica answers takes it along.
        call.toll.take().into_iter().for_each(Toll::waive);
        gone.counted();
        response
    }

    /// Sends a copy to a shadow, if it is one of those and the budget in force has nothing against more load; nobody waits for what becomes of it.
    pub(crate) fn mirror(&self, call: &Call) {
        let Some(shadow) = &self.shadow else { return };
        let is_green = self.budget_state().is_none_or(|state| state == BudgetState::Green);
        let is_one = split::arm(mix(call.split), shadow.share) == Arm::Canary;
        // A shadow has no object that another replica made.
        let goes_on = call.asked.object.is_some();
        if call.message.method != Method::POST || !is_green || !is_one || goes_on {
            return;
        }
        let worker = Rc::clone(&shadow.worker);
        let mut call = call.copy(Arc::clone(&worker.stats));
        // It makes nobody wait, and its replicas are on no side.
        (call.asked.arm, call.asked.among, call.terms.slo) = (Arm::Base, None, None);
        tokio::task::spawn_local(async move {
            let now = worker.pool.clock.now();
            let recording =
                worker.traffic.as_ref().map(|traffic| Recording::begin(traffic, worker.pool.clock, now));
            call.came = now;
            call.recording = recording.map(|recording| call.begun(recording, now));
            let mut body = worker.serve(&mut call).await.into_body();
            // It is read as a client would, and told to nobody.
            while let Some(Ok(_)) = body.frame().await {}
        });
    }

    /// Where the budget in force stands; `None` = there is none.
    pub(crate) fn budget_state(&self) -> Option<BudgetState> {
        self.traffic.as_ref().and_then(|traffic| traffic.budget.state())
    }
}

/// A request of which not all was read.
fn unread(status: StatusCode, code: &str, message: &str) -> Box<Refused> {
    let mut response = reply::error(status, code, message, None);
    // What else is on this connection can't be told from the rest of a body that nobody read.
    response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    Box::new(Refused { end: End::Bad, response })
}

/// A body, if it is all there in time and no larger than it may be.
async fn whole(limits: &LimitSpec, body: Incoming) -> Result<Bytes, Box<Refused>> {
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

/// The text of a body: what it was before it was packed.
pub(crate) async fn unpacked(entered: &Entered, body: &Bytes) -> Result<Bytes, Box<Refused>> {
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
        Box::new(Refused { end: End::Bad, response })
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

/// Returns whether a request is for another protocol than HTTP on this connection, such as a WebSocket. An offer of HTTP/2 or TLS may be declined (RFC 9110, 7.8).
fn asks_upgrade(headers: &HeaderMap) -> bool {
    let lines = headers.get_all(UPGRADE).iter().map(|line| line.to_str().unwrap_or("?"));
    lines.flat_map(|line| line.split(',')).map(|one| one.trim().to_ascii_lowercase()).any(|one| {
        let may_be_declined = ["", "h2", "h2c"].contains(&one.as_str());
        !may_be_declined && !one.starts_with("http/") && !one.starts_with("tls/")
    })
}

fn words(shut: Shut) -> &'static str {
    match shut {
        Shut::Missing => "No API key came: send it as Authorization: Bearer KEY.",
        Shut::Unknown => "The API key is none of those that are let in here.",
    }
}

/// A request whose key has asked for too much. Its body was read: the connection can go on.
fn over_limit(wait: Span) -> Refused {
    let seconds = wait.as_secs_f64().ceil().max(1.0) as u64;
    let why = format!("The API key is over its rate limit; try again in {seconds} s.");
    let response = reply::error(StatusCode::TOO_MANY_REQUESTS, "rate_limit_exceeded", &why, Some(seconds));
    Refused { end: End::Limited, response }
}

/// Takes out what is for one connection only, and what its `Connection` names. Of two lengths the chunks count (RFC 9112, 6.3).
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
