//! Admission of a request: authentication, path, body, parsed prompt, admission terms and rate-limit charge.

use std::time::Duration;

use bytes::Bytes;
use http::header::{
    ACCEPT_ENCODING, CONNECTION, CONTENT_LENGTH, EXPECT, HOST, TE, TRAILER, TRANSFER_ENCODING, UPGRADE,
    WWW_AUTHENTICATE,
};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Response, StatusCode, Uri};
use http_body::Body as _;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::body::Incoming;
use plimsoll_model::{At, Span};
use plimsoll_policy::{AdmissionParams, AdmissionSpec, split};

use super::context::RequestContext;
use super::worker::Worker;
use super::{EXPLAIN, REQUEST_ID};
use crate::auth::{self, ActiveKey, AuthError, RateCharge};
use crate::paths::has_dot_segment;
use crate::reply::{self, ReplyBody};
use crate::request::packed::{self, UnpackError};
use crate::request::{self, ParsedRequest};
use crate::spec::LimitSpec;
use crate::stats::{RequestEnd, RequestStage};
use crate::trace_context::TraceContext;

const SLO: HeaderName = HeaderName::from_static("x-slo-ttft-ms");
const CLASS: HeaderName = HeaderName::from_static("x-plimsoll-class");
/// Tenant of requests without a tenant.
const NOBODY: u64 = 0;
const SESSION: HeaderName = HeaderName::from_static("x-session-id");
const KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");
const PROXY_CONNECTION: HeaderName = HeaderName::from_static("proxy-connection");
/// Hop-by-hop headers (RFC 9110, 7.6.1), and `Expect`, which the gateway has answered.
const OF_ONE_HOP: [HeaderName; 8] =
    [CONNECTION, KEEP_ALIVE, PROXY_CONNECTION, TE, TRAILER, TRANSFER_ENCODING, UPGRADE, EXPECT];

/// Limit in bytes on a compressed body that is decompressed on the serving thread. A larger one would delay the
/// thread's streams.
const UNPACKED_HERE: usize = 64 << 10;

/// A rejected request with its response.
pub(crate) struct RejectedRequest {
    pub end: RequestEnd,
    pub response: Response<ReplyBody>,
}

impl RejectedRequest {
    /// Returns the rejection of an invalid request.
    pub fn bad(status: StatusCode, code: &str, why: &str) -> Box<RejectedRequest> {
        Box::new(RejectedRequest { end: RequestEnd::Bad, response: reply::error(status, code, why, None) })
    }

    /// Returns the rejection of a request that was not read completely.
    fn unread(status: StatusCode, code: &str, why: &str) -> Box<RejectedRequest> {
        let mut rejected = RejectedRequest::bad(status, code, why);
        // The connection closes, because the unread body cannot be separated from the next request.
        rejected.response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        rejected
    }

    fn unauthorized(error: AuthError) -> Box<RejectedRequest> {
        let why = match error {
            AuthError::Missing => "The API key is missing: send Authorization: Bearer KEY.",
            AuthError::Unknown => "The API key is unknown. Check the key, or request one from the operator.",
        };
        let mut rejected = RejectedRequest::unread(StatusCode::UNAUTHORIZED, "invalid_api_key", why);
        rejected.end = RequestEnd::Unauthorized;
        rejected.response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        rejected
    }

    /// Returns the rejection of a request whose key is over its limit. The body was read, so the connection stays
    /// open.
    fn over_limit(wait: Span) -> Box<RejectedRequest> {
        let seconds = wait.as_secs_f64().ceil().max(1.0) as u64;
        let why = format!("The API key is over its rate limit; retry in {seconds} s.");
        let status = StatusCode::TOO_MANY_REQUESTS;
        let response = reply::error(status, "rate_limit_exceeded", &why, Some(seconds));
        Box::new(RejectedRequest { end: RequestEnd::Limited, response })
    }
}

/// Authenticates a request and checks its path. It runs before the body is read, because a rejected client must not
/// occupy memory.
pub(crate) fn authenticate(context: &mut RequestContext) -> Result<(), Box<RejectedRequest>> {
    let RequestContext { rules, request, .. } = context;
    context.key = rules.doors.admit(&request.headers).map_err(RejectedRequest::unauthorized)?;
    if request.method == Method::CONNECT {
        let why = "CONNECT is not served here.";
        return Err(RejectedRequest::unread(StatusCode::METHOD_NOT_ALLOWED, "no_connect", why));
    }
    let path = request.path.path_and_query().map_or("/", |path| path.as_str());
    let Ok(path) = path.parse::<Uri>() else {
        let why = "The request's path can't be read.";
        return Err(RejectedRequest::unread(StatusCode::BAD_REQUEST, "bad_path", why));
    };
    if has_dot_segment(path.path()) {
        let why =
            "The request's path has a dot segment, . or .., which may lead elsewhere; send it resolved.";
        return Err(RejectedRequest::unread(StatusCode::BAD_REQUEST, "bad_path", why));
    }
    if !rules.paths.has(path.path()) {
        let why = format!(
            "The path {} is not open to clients; the gateway's file opens further paths under paths:.",
            path.path()
        );
        return Err(RejectedRequest::unread(StatusCode::FORBIDDEN, "path_not_open", &why));
    }
    request.path = path;
    Ok(())
}

/// Rejects a request that needs another protocol than HTTP, such as a WebSocket. An offer of HTTP/2 or TLS may be
/// declined (RFC 9110, 7.8).
pub(super) fn reject_upgrade(headers: &HeaderMap) -> Result<(), Box<RejectedRequest>> {
    let lines = headers.get_all(UPGRADE).iter().map(|line| line.to_str().unwrap_or("?"));
    let mut names = lines.flat_map(|line| line.split(',')).map(|one| one.trim().to_ascii_lowercase());
    let is_upgrade = names.any(|one| {
        let may_be_declined = ["", "h2", "h2c"].contains(&one.as_str());
        !may_be_declined && !one.starts_with("http/") && !one.starts_with("tls/")
    });
    if !is_upgrade {
        return Ok(());
    }
    let why =
        "This gateway does not upgrade connections, for WebSockets or others; use this API over plain HTTP.";
    Err(RejectedRequest::unread(StatusCode::NOT_IMPLEMENTED, "no_upgrade", why))
}

/// Reads a complete body within the limits of time and size.
pub(super) async fn read_body(limits: &LimitSpec, body: Incoming) -> Result<Bytes, Box<RejectedRequest>> {
    let (stated, most) = (body.size_hint().lower(), limits.body_bytes);
    let too_large = |of: &str| {
        let why = format!("The request's body{of} is larger than {most} bytes.");
        RejectedRequest::unread(StatusCode::PAYLOAD_TOO_LARGE, "body_too_large", &why)
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
            let why = "The request's body is incomplete, or its HTTP framing is invalid.";
            Err(RejectedRequest::unread(StatusCode::BAD_REQUEST, "broken_body", why))
        }
        Err(_) => {
            let why = format!("The request's body was not received within {} s.", limits.body_s);
            Err(RejectedRequest::unread(StatusCode::REQUEST_TIMEOUT, "slow_body", &why))
        }
    }
}

async fn unpack(context: &RequestContext) -> Result<Bytes, Box<RejectedRequest>> {
    let (headers, body) = (&context.request.headers, &context.request.body);
    let most = context.rules.limits.body_bytes;
    let text = match packed::is_packed(headers) && body.len() > UNPACKED_HERE {
        false => packed::unpacked(body, headers, most),
        true => {
            let (body, headers) = (body.clone(), headers.clone());
            let unpacking = tokio::task::spawn_blocking(move || packed::unpacked(&body, &headers, most));
            unpacking.await.unwrap_or(Err(UnpackError::Broken))
        }
    };
    text.map_err(|error| match error {
        UnpackError::Unknown(coding) => {
            let why = format!(
                "The request's Content-Encoding {coding} is not supported; send the body uncompressed, or as {}.",
                packed::READ
            );
            let status = StatusCode::UNSUPPORTED_MEDIA_TYPE;
            let mut rejected = RejectedRequest::bad(status, "unknown_encoding", &why);
            rejected.response.headers_mut().insert(ACCEPT_ENCODING, HeaderValue::from_static(packed::READ));
            rejected
        }
        UnpackError::Broken => {
            let why = "The request's body is not what its Content-Encoding states.";
            RejectedRequest::bad(StatusCode::BAD_REQUEST, "broken_encoding", why)
        }
        UnpackError::TooLarge => {
            let why = format!("The request's body, unpacked, is larger than {most} bytes.");
            RejectedRequest::bad(StatusCode::PAYLOAD_TOO_LARGE, "body_too_large", &why)
        }
    })
}

impl Worker {
    /// Parses an authenticated request with its body, and charges it to its key. `sees` is set if the response passes
    /// this gateway, so that its first token is visible.
    pub(crate) async fn parse(
        &self,
        context: &mut RequestContext,
        body: Bytes,
        sees: bool,
    ) -> Result<(), Box<RejectedRequest>> {
        context.request.body = body;
        context.request.text = unpack(context).await?;
        let RequestContext { rules, request, id, arrived, .. } = context;
        let (key, headers) = (context.key.take(), &mut request.headers);
        let bytes = request.body.len().max(request.text.len());
        context.terms = admission_terms(&self.admission, headers, key.as_deref(), *arrived, bytes)
            .map_err(|(code, why)| RejectedRequest::bad(StatusCode::BAD_REQUEST, code, &why))?;
        remove_hop_headers(headers);
        headers.remove(HOST);
        headers.remove(CONTENT_LENGTH);
        headers.insert(REQUEST_ID, id.clone());
        let asks_why = headers.remove(EXPLAIN).is_some_and(|value| value == "1");
        context.wants_explanation = asks_why && rules.explain_header;
        let target = (&request.method, request.path.path());
        let mut parsed = ParsedRequest::of(target, headers, &request.text, self.prompt_blocks());
        parsed.streams &= sees;
        let charge =
            key.map(|key| RateCharge::take(key, parsed.prompt_tokens, parsed.most_tokens, self.pool.clock));
        context.charge = charge.transpose().map_err(RejectedRequest::over_limit)?;
        if context.charge.is_some() && !rules.forward_keys {
            auth::strip(headers);
        }
        parsed.session = headers.get(SESSION).map(|name| request::hash(name.as_bytes()));
        context.split = parsed.session.unwrap_or_else(|| request::hash(id.as_bytes()));
        if let Some(rollout) = &self.pool.rollout {
            parsed.arm = split::arm(context.split, rollout.share());
        }
        if let Some((owner, arm)) = parsed.object.and_then(|object| self.pool.owner(object)) {
            (parsed.among, parsed.arm) = (Some(vec![owner]), arm);
        }
        context.trace = (self.traces && request.method == Method::POST).then(|| {
            TraceContext::of(headers, [request::hash(id.as_bytes()), self.pool.clock.now().0 as u64])
        });
        context.parsed = parsed;
        let now = self.pool.clock.now();
        self.stats.took(RequestStage::Read, now - context.arrived);
        context.record_request(now);
        Ok(())
    }

    /// Counts and records a rejected request, and returns its response.
    pub(crate) fn reject(
        &self,
        context: &mut RequestContext,
        rejected: RejectedRequest,
    ) -> Response<ReplyBody> {
        context.end.count(rejected.end);
        let status = rejected.response.status().as_u16();
        context.record(|record| record.note(|row| row.own_status = Some(status)));
        rejected.response
    }
}

/// Returns the terms of a request from its key and headers.
///
/// # Errors
/// Fails with an error code and a message if a header is invalid.
fn admission_terms(
    spec: &AdmissionSpec,
    headers: &HeaderMap,
    key: Option<&ActiveKey>,
    came: At,
    bytes: usize,
) -> Result<AdmissionParams, (&'static str, String)> {
    let text = |name: &HeaderName| headers.get(name).map(|value| value.to_str().unwrap_or_default().trim());
    // The class of a key takes precedence, because its holder may not change it.
    let class = match key.and_then(|key| key.class.as_deref()).or(text(&CLASS)) {
        None => 0,
        Some(name) => spec.class(name).ok_or_else(|| {
            let known: Vec<&str> = spec.classes.iter().map(|class| class.name.as_str()).collect();
            ("unknown_class", format!("{CLASS}: {name:?} is none of {}.", known.join(", ")))
        })?,
    };
    let slo = match text(&SLO) {
        None => spec.slo(class),
        Some(text) => {
            let ms = text.parse().ok().filter(|ms: &f64| (1.0..=86_400_000.0).contains(ms));
            let ms = ms.ok_or_else(|| {
                ("bad_slo", format!("{SLO}: {text:?} is no number of milliseconds from 1."))
            })?;
            Some(Span::from_secs_f64(ms / 1e3))
        }
    };
    let named = spec.tenant_header.as_ref().and_then(|name| headers.get(name)).map(HeaderValue::as_bytes);
    let tenant = key.map(|key| key.tenant.as_bytes()).or(named).map_or(NOBODY, request::hash);
    Ok(AdmissionParams { class, tenant, came, slo, bytes: bytes as u64 })
}

/// Removes hop-by-hop headers, and the headers that `Connection` names. Chunked encoding overrides a length (RFC
/// 9112, 6.3).
pub(super) fn remove_hop_headers(headers: &mut HeaderMap) {
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
